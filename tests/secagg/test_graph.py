"""Clients draw their neighbours; degrees and thresholds keep what they promise, by counts that simulations meet."""

from itertools import combinations
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from rqm.secagg.graph import degree_of, drawn, parted, security, tail, total


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 70))
def test_as_many_as_are_asked_for_or_all(others, degree):
    found = drawn(others, degree)
    assert len(found) == degree_of(len(others) + 1, degree)
    assert found == sorted(set(found) & others)


@pytest.mark.statistical
def test_every_pair_is_as_likely():
    def worst(draw):
        counts = np.zeros((10, 10))
        for _ in range(2000):
            counts += [np.isin(np.arange(10), draw([v for v in range(10) if v != u])) for u in range(10)]
        error = (2000 * 4 / 9 * 5 / 9) ** 0.5
        return np.abs(counts[~np.eye(10, dtype=bool)] - 2000 * 4 / 9).max() / error

    assert worst(lambda others: drawn(others, 4)) < 5
    rng = np.random.default_rng(0)
    weights = np.array([1.2, *[1.0] * 8])  # one of them a fifth more often
    assert worst(lambda others: rng.choice(others, 4, replace=False, p=weights / weights.sum())) > 5


def test_the_tail_is_that_of_the_hypergeometric_law():
    for population, degree in ((9, 4), (50, 10), (999, 40)):
        marked = np.arange(0, population, max(1, population // 11))
        for least in range(0, degree + 1, 3):
            ours = tail(np.full(len(marked), least), degree, population, marked)
            np.testing.assert_allclose(np.exp(ours), hypergeom.sf(least - 1, population, marked, degree), rtol=1e-9)


def graphs(clients, degree, count, seed=0):
    """Who has drawn whom, in so many graphs."""
    rng = np.random.default_rng(seed)
    order = rng.random((count, clients, clients))
    order[:, np.arange(clients), np.arange(clients)] = 2.0  # never oneself
    return order <= np.sort(order, axis=2)[:, :, degree - 1 : degree]


def closed(drew, size, corrupt, threshold):
    """Sets of so many honest clients who each have drawn enough from the set and the corrupt, who come last."""
    clients, found = drew.shape[1], np.zeros(len(drew))
    for some in combinations(range(clients - corrupt), size):
        inside = [*some, *range(clients - corrupt, clients)]
        found += (drew[:, some][:, :, inside].sum(axis=2) >= threshold).all(axis=1)
    return found


@pytest.mark.statistical
@pytest.mark.parametrize(("clients", "corrupt", "degree", "threshold"), [(12, 2, 5, 3), (11, 0, 4, 3), (12, 3, 5, 4)])
def test_sets_that_a_server_could_part_are_as_many_as_computed(clients, corrupt, degree, threshold):
    """Weakened parameters, so that such sets are seen. The bound counts them for any number of corrupt clients."""
    drew, bound = graphs(clients, degree, 4000), np.exp(parted(clients, clients, corrupt, degree, threshold))
    for size in range(1, (clients - corrupt) // 2 + 1):
        found = closed(drew, size, corrupt, threshold)
        chance = hypergeom.sf(threshold - 1, clients - 1, size - 1 + corrupt, degree)
        expected = comb(clients - corrupt, size) * chance**size
        error = 5 * (found.std() / len(found) ** 0.5 + 1e-3)
        assert abs(found.mean() - expected) < error
        assert expected <= bound[size - 1] * (1 + 1e-9)
        if expected > 0.2:  # a law that is slightly off is seen
            other = hypergeom.sf(threshold - 1, clients - 1, size + corrupt, degree)
            assert abs(found.mean() - comb(clients - corrupt, size) * other**size) > error


@pytest.mark.statistical
def test_clients_who_keep_too_few_neighbours_are_as_many_as_computed():
    clients, lost, degree, threshold = 60, 12, 10, 7
    drew = graphs(clients, degree, 3000)
    starved = (drew[:, lost:, lost:].sum(axis=2) < threshold).sum(axis=1)  # of those who stay
    expected = (clients - lost) * hypergeom.sf(degree - threshold, clients - 1, lost, degree)
    error = 5 * starved.std() / len(starved) ** 0.5
    assert abs(starved.mean() - expected) < error
    wrong = (clients - lost) * hypergeom.sf(degree - threshold, clients - 1, lost + 1, degree)
    assert abs(starved.mean() - wrong) > error


@pytest.mark.parametrize(("clients", "survivors", "corrupt"), [(300, 285, 15), (1000, 950, 50), (1000, 900, 100)])
def test_the_bounds_are_kept_and_one_neighbour_less_would_not_do(clients, survivors, corrupt):
    degree, threshold, minimum = security(clients, survivors, corrupt)
    gone = hypergeom.logsf(degree - threshold, clients - 1, clients - survivors, degree) + log(clients)
    assert gone <= -20 * log(2)
    assert total(parted(clients, survivors, corrupt, degree, threshold)) <= -41 * log(2)
    silent = parted(clients, survivors, corrupt, degree, threshold, clients - survivors)
    assert total(silent[minimum - survivors :]) <= -41 * log(2)
    assert 0 < minimum - survivors <= clients // 100
    for less in range(1, degree):
        kept = hypergeom.logsf(degree - 1 - less, clients - 1, clients - survivors, degree - 1) + log(clients)
        if kept <= -20 * log(2):
            few = total(parted(clients, survivors, corrupt, degree - 1, less)) > -41 * log(2)
            apart = parted(clients, survivors, corrupt, degree - 1, less, clients - survivors)
            assert few or total(apart[clients // 100 :]) > -41 * log(2)


def test_the_degree_grows_with_what_is_asked():
    degree = security(1000, 900, 100)[0]
    assert security(1000, 900, 100, security_bits=80)[0] > degree
    assert security(1000, 900, 50)[0] < degree < security(1000, 880, 100)[0]
    assert degree < security(10_000, 9_000, 1000)[0] < 1.5 * degree  # with the logarithm of the clients
    assert security(40, 30, 4) == (39, 29, 30)  # all others: nothing is left to chance


def test_what_cannot_be():
    with pytest.raises(ValueError, match="clients = 10, survivors = 5, corrupt = 3"):
        security(10, 5, 3)
    with pytest.raises(ValueError, match="clients = 2"):
        security(2, 2)
    with pytest.raises(ValueError, match="survivors = 11"):
        security(10, 11)
    with pytest.raises(ValueError, match="clients = 1000000000: must be"):
        security(10**9, 9 * 10**8, 10**8)


def test_sets_are_counted_up_to_half_of_all_whoever_is_silent():
    """With some who are linked and silent, the smaller side may still be as large as that."""
    assert len(parted(30, 26, 2, 8, 6)) == len(parted(30, 26, 2, 8, 6, silent=4)) == 15
