"""The graph is regular and random; degrees and thresholds keep what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from rqm.secagg.graph import degree_of, regular, security


@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=60), st.integers(1, 20).map(lambda half: 2 * half))
def test_every_client_has_as_many_neighbours_and_they_agree(ids, degree):
    graph = regular(sorted(ids), degree)
    assert graph.keys() == ids
    for u, neighbours in graph.items():
        assert len(neighbours) == degree_of(len(ids), degree) == min(degree, len(ids) - 1)
        assert neighbours == sorted(set(neighbours) - {u})
        assert all(u in graph[v] for v in neighbours)


def test_every_pair_is_as_likely():
    counts = np.zeros((10, 10))
    for _ in range(2000):
        for u, neighbours in regular(list(range(10)), 4).items():
            counts[u, neighbours] += 1
    pairs = counts[np.triu_indices(10, 1)]
    error = (2000 * 4 / 9 * 5 / 9) ** 0.5
    assert np.abs(pairs - 2000 * 4 / 9).max() < 5 * error


@pytest.mark.parametrize(
    ("clients", "corrupt", "dropout"), [(40, 0.1, 0.1), (100, 0.05, 0.3), (300, 0.1, 0.2), (60, 0.2, 0.1)]
)
def test_random_graphs_keep_the_promise(clients, corrupt, dropout):
    degree, threshold = security(clients, corrupt, dropout, security_bits=20, failure_bits=20)
    rng = np.random.default_rng(clients)
    for _ in range(20):
        graph = regular(list(range(clients)), degree)
        order = rng.permutation(clients)
        bad = set(order[: int(np.ceil(corrupt * clients))].tolist())
        lost = set(rng.permutation(clients)[: int(np.ceil(dropout * clients))].tolist())
        for neighbours in graph.values():
            caught = len(bad.intersection(neighbours))
            assert 2 * threshold > degree + (caught if degree == clients - 1 else 2 * caught)
            assert degree - len(lost.intersection(neighbours)) >= threshold


def test_the_degree_grows_with_what_is_asked():
    degree, threshold = security(1000, 0.1, 0.1)
    assert degree % 2 == 0
    assert degree / 2 < threshold < degree
    assert security(1000, 0.1, 0.1, security_bits=80)[0] > degree
    assert security(1000, 0.05, 0.1)[0] < degree < security(1000, 0.1, 0.15)[0]
    assert degree < security(100_000)[0] < 2 * degree  # with the logarithm of the clients


def test_two_degrees_less_would_not_do():
    degree, threshold = security(1000, 0.1, 0.1)
    for less in range(threshold - 2, threshold + 1):
        caught = hypergeom.logsf((2 * less - degree + 2 - 1) // 2, 899, 100, degree - 2) + np.log(1000)
        gone = hypergeom.logsf(degree - 2 - less, 999, 100, degree - 2) + np.log(1000)
        assert caught > -40 * np.log(2) or gone > -20 * np.log(2)


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"clients = 10, corrupt = 0.3, dropout = 0.5"):
        security(10, 0.3, 0.5)
    with pytest.raises(ValueError, match=r"corrupt = 0\.5"):
        security(10, 0.5)
    with pytest.raises(ValueError, match="clients = 2"):
        security(2)
