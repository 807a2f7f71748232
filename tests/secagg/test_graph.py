"""Clients draw their neighbors; degrees and thresholds keep what they promise, by counts that simulations meet."""

from itertools import combinations
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import hypergeom

from rqm.secagg.graph import draw_neighbors, log_isolated_sets, log_marked, security

RARE, FORBIDDEN = -20 * log(2), -41 * log(2)
"""Logarithms of the chance of a failed round, and of each of the two ways to isolate clients."""


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 70))
def test_as_many_neighbors_as_the_degree_or_all(others, degree):
    drawn = draw_neighbors(others, degree)
    assert len(drawn) == min(degree, len(others))
    assert drawn == sorted(set(drawn) & others)


@pytest.mark.statistical
def test_every_pair_is_as_likely():
    def worst(draw):
        counts = np.zeros((10, 10))
        for _ in range(2000):
            counts += [np.isin(np.arange(10), draw([v for v in range(10) if v != u])) for u in range(10)]
        error = (2000 * 4 / 9 * 5 / 9) ** 0.5
        return np.abs(counts[~np.eye(10, dtype=bool)] - 2000 * 4 / 9).max() / error

    assert worst(lambda others: draw_neighbors(others, 4)) < 5
    rng = np.random.default_rng(0)
    weights = np.array([1.2, *[1.0] * 8])  # one of them a fifth more often
    assert worst(lambda others: rng.choice(others, 4, replace=False, p=weights / weights.sum())) > 5


def test_tails_are_those_of_the_hypergeometric_distribution():
    for population, degree in ((9, 4), (50, 10), (999, 40)):
        marked = np.arange(population + 1)
        for threshold in range(1, degree + 1, 3):
            expected = hypergeom.sf(threshold - 1, population, marked, degree)
            np.testing.assert_allclose(np.exp(log_marked(threshold, degree, population)), expected, rtol=1e-9)


def graphs(clients, degree, count, seed=0):
    """Who has drawn whom, in so many graphs."""
    rng = np.random.default_rng(seed)
    order = rng.random((count, clients, clients))
    order[:, np.arange(clients), np.arange(clients)] = 2.0  # never oneself
    return order <= np.sort(order, axis=2)[:, :, degree - 1 : degree]


def closed_sets(drew, size, corrupt, threshold):
    """Sets of so many honest clients that each have drawn enough from the set and the corrupt, who come last."""
    clients, counts = drew.shape[1], np.zeros(len(drew))
    for members in combinations(range(clients - corrupt), size):
        inside = [*members, *range(clients - corrupt, clients)]
        counts += (drew[:, members][:, :, inside].sum(axis=2) >= threshold).all(axis=1)
    return counts


@pytest.mark.statistical
@pytest.mark.parametrize(("clients", "corrupt", "degree", "threshold"), [(12, 2, 5, 3), (11, 0, 4, 3), (12, 3, 5, 4)])
def test_sets_that_a_server_could_isolate_are_as_many_as_computed(clients, corrupt, degree, threshold):
    """Weakened parameters, so that such sets are seen. The bound counts them for any number of corrupt clients."""
    drew, bound = graphs(clients, degree, 4000), np.exp(log_isolated_sets(clients, clients, corrupt, degree, threshold))

    def expected_count(size, marked):
        return comb(clients - corrupt, size) * hypergeom.sf(threshold - 1, clients - 1, marked, degree) ** size

    for size in range(1, (clients - corrupt) // 2 + 1):
        counts = closed_sets(drew, size, corrupt, threshold)
        expected = expected_count(size, size - 1 + corrupt)
        error = 5 * (counts.std() / len(counts) ** 0.5 + 1e-3)
        assert abs(counts.mean() - expected) < error
        assert expected <= bound[size - 1] * (1 + 1e-9)
        if expected > 0.2:  # a distribution that is slightly off is seen
            assert abs(counts.mean() - expected_count(size, size + corrupt)) > error


@pytest.mark.statistical
def test_clients_that_keep_too_few_neighbors_are_as_many_as_computed():
    clients, dropouts, degree, threshold = 60, 12, 10, 7
    drew = graphs(clients, degree, 3000)
    starved = (drew[:, dropouts:, dropouts:].sum(axis=2) < threshold).sum(axis=1)  # of those who stay
    error = 5 * starved.std() / len(starved) ** 0.5
    expected, wrong = (
        (clients - dropouts) * np.exp(log_marked(degree - threshold + 1, degree, clients - 1)[marked])
        for marked in (dropouts, dropouts + 1)
    )
    assert abs(starved.mean() - expected) < error
    assert abs(starved.mean() - wrong) > error


@pytest.mark.parametrize(("clients", "survivors", "corrupt"), [(300, 285, 15), (1000, 950, 50), (1000, 900, 100)])
def test_the_bounds_are_kept_and_one_neighbor_less_would_not_do(clients, survivors, corrupt):
    def failure(degree, threshold):
        return hypergeom.logsf(degree - threshold, clients - 1, clients - survivors, degree) + log(clients)

    def isolated(degree, threshold, silent, smallest=0):
        return logsumexp(log_isolated_sets(clients, survivors, corrupt, degree, threshold, silent)[smallest:])

    degree, threshold, minimum = security(clients, survivors, corrupt)
    assert failure(degree, threshold) <= RARE
    assert isolated(degree, threshold, 0) <= FORBIDDEN
    assert isolated(degree, threshold, clients - survivors, minimum - survivors) <= FORBIDDEN
    assert 0 < minimum - survivors <= clients // 100
    for less in range(1, degree):
        if failure(degree - 1, less) <= RARE:
            silent = isolated(degree - 1, less, clients - survivors, clients // 100)
            assert max(isolated(degree - 1, less, 0), silent) > FORBIDDEN


def test_the_degree_grows_with_the_security():
    degree = security(1000, 900, 100)[0]
    assert security(1000, 900, 100, security_bits=80)[0] > degree
    assert security(1000, 900, 50)[0] < degree < security(1000, 880, 100)[0]
    assert degree < security(10_000, 9_000, 1000)[0] < 1.5 * degree  # with the logarithm of the clients
    assert security(40, 30, 4) == (39, 29, 30)  # all others: nothing is left to chance


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((10, 5, 3), "clients = 10, survivors = 5, corrupt = 3"),
        ((2, 2), "clients = 2"),
        ((10, 11), "survivors = 11"),
        ((10, 9, 10), "corrupt = 10"),
        ((10, 9, 0, 0), "security_bits = 0"),
        ((10, 9, 0, 1, 0), "failure_bits = 0"),
        ((10**9, 9 * 10**8, 10**8), "clients = 1000000000: must be"),
    ],
)
def test_what_cannot_be(arguments, match):
    with pytest.raises(ValueError, match=match):
        security(*arguments)


def test_sets_are_counted_up_to_half_of_all_whoever_is_silent():
    """With some that are linked and silent, the smaller side may still be as large as that."""
    assert len(log_isolated_sets(30, 26, 2, 8, 6)) == len(log_isolated_sets(30, 26, 2, 8, 6, silent=4)) == 15
