"""A hundred clients, eighty survivors: rounds end whoever drops out; a server that isolates a clique learns nothing."""

from random import Random

import numpy as np
import pytest

from tests.secagg.isolating import COUNT, correlation, isolated_round, main, round_with_dropouts


@pytest.mark.slow
def test_rounds_with_dropouts_end_and_those_of_an_isolating_server_do_not():
    """The same a thousand times: ``python -m tests.secagg.isolating 1000`` (an hour)."""
    results = main(30, seed=1)
    assert results["ended_with_up_to_20_dropouts"] == 30
    assert results["attacks_that_got_shares"] == 0
    assert results["attacks_that_got_vectors"] > 5
    assert len(results["correlation_times_root_d"]) == 2
    for mean, spread in results["correlation_times_root_d"].values():  # that of noise: 0 and 1
        assert abs(mean) < 5 * spread / results["attacks_that_got_vectors"] ** 0.5
        assert 0.5 < spread < 2


def test_one_of_each():
    assert round_with_dropouts(Random(3))
    revealed, correlations = isolated_round(Random(1))
    assert not revealed
    assert max(map(abs, correlations)) < 6


def test_a_leak_would_be_seen():
    """The values themselves, or with masks that the server knows, stand out by far."""
    values = np.random.default_rng(0).integers(0, 16, (100, COUNT))
    masks = np.random.default_rng(1).integers(0, 2**11, (100, COUNT))
    clique = set(range(23))
    plain = correlation(dict(enumerate(values)), values, clique, 2**11)
    hidden = correlation(dict(enumerate((values + masks) % 2**11)), values, clique, 2**11)
    assert min(plain) > 0.9 * COUNT**0.5
    assert max(map(abs, hidden)) < 6
