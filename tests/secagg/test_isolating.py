"""A hundred clients, eighty survivors: rounds end whoever is lost; a server that parts a clique learns nothing."""

from random import Random

import numpy as np
import pytest

from tests.secagg.isolating import COUNT, correlation, isolated, main, with_losses


@pytest.mark.slow
def test_rounds_with_losses_end_and_those_of_an_isolating_server_do_not():
    """The same a thousand times: ``python -m tests.secagg.isolating 1000`` (an hour)."""
    found = main(30, seed=1)
    assert found["ended_with_up_to_20_lost"] == 30
    assert found["attacks_that_got_shares"] == 0
    assert found["attacks_that_got_vectors"] > 5
    for mean, spread in found["correlation_times_root_d"].values():  # that of noise: 0 and 1
        assert abs(mean) < 5 * spread / found["attacks_that_got_vectors"] ** 0.5
        assert 0.5 < spread < 2


def test_one_of_each():
    assert with_losses(Random(3))
    revealed, found = isolated(Random(1))
    assert not revealed
    assert max(map(abs, found)) < 6


def test_a_leak_would_be_seen():
    """The values themselves, or with masks that the server knows, stand out by far."""
    z = np.random.default_rng(0).integers(0, 16, (100, COUNT))
    masks = np.random.default_rng(1).integers(0, 2**11, (100, COUNT))
    clique = set(range(23))
    plain = correlation(dict(enumerate(z)), z, clique, 2**11)
    hidden = correlation(dict(enumerate((z + masks) % 2**11)), z, clique, 2**11)
    assert min(plain) > 0.9 * COUNT**0.5
    assert max(map(abs, hidden)) < 6
