"""Profiles of releases that are sampled, mixed and composed: against enumerations of everything that can happen."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import hypergeom

from rqm import RQM, Rounding
from rqm.privacy.gaussian import gaussian_epsilon
from rqm.privacy.profiles import composed_epsilon, gaussian, mixed, sampled
from tests.privacy.test_gaussian import law_of

MECHANISMS = [Rounding(clip=1.0, levels=2, margin=0.5), RQM(clip=1.0, margin=2.5, levels=4, keep=0.5)]


def delta_of(p, q, epsilon):
    """The hockey-stick divergence, the larger of both directions."""
    factor = np.exp(np.atleast_1d(epsilon))[:, None]
    return np.maximum(np.maximum(p - factor * q, 0).sum(axis=1), np.maximum(q - factor * p, 0).sum(axis=1))


def epsilon_of(pairs, delta):
    """The exact ε over some pairs of laws."""
    low, high = 0.0, 50.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        enough = max(delta_of(p, q, middle)[0] for p, q in pairs) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return high


def one_release(mech, clients):
    """The exact profile of a sum, a vector replaced: over all others at the ends."""
    pairs = [(law_of(mech, [1, *rest]), law_of(mech, [-1, *rest])) for rest in product((-1.0, 1.0), repeat=clients - 1)]
    return lambda epsilon: np.max([delta_of(p, q, epsilon) for p, q in pairs], axis=0)


@pytest.mark.parametrize(
    ("mu", "releases", "delta"), [(1e-3, 4, 1e-6), (0.1, 100, 1e-9), (0.5, 1, 1e-5), (0.5, 30, 0.1), (3.0, 2, 1e-9)]
)
def test_a_gaussian_is_composed_as_a_gaussian(mu, releases, delta):
    exact = gaussian_epsilon(mu * releases**0.5, delta)
    found = composed_epsilon([(gaussian(mu), releases)], delta)
    assert exact * (1 - 1e-9) - 1e-9 <= found <= exact * 1.001 + 1e-4


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
@pytest.mark.parametrize(
    ("users", "clients"),
    [(4, 2), pytest.param(8, 1, marks=pytest.mark.slow), (8, 3), pytest.param(6, 5, marks=pytest.mark.slow), (5, 5)],
)
def test_sampling_is_never_below_what_can_happen_and_close(mech, users, clients):
    """All samples of all users' inputs at the ends, one of whom is replaced; one round, or two with any inputs each."""
    profile, once = sampled(one_release(mech, clients), clients / users), []
    for high in range(users):
        rest = [1.0] * high + [-1.0] * (users - 1 - high)
        laws = [
            np.mean([law_of(mech, some) for some in combinations([own, *rest], clients)], axis=0) for own in (1.0, -1.0)
        ]
        once += [laws, laws[::-1]]
    twice = [[np.multiply.outer(a, b).ravel() for a, b in zip(*two, strict=True)] for two in product(once, repeat=2)]
    for pairs, delta in product((once, twice), (0.1, 1e-2, 1e-4)):
        rounds = 1 if pairs is once else 2
        exact, found = epsilon_of(pairs, delta), composed_epsilon([(profile, rounds)], delta)
        assert exact - 1e-6 <= found
        if clients in (1, users) and exact > 0.1:  # else the others of a sample hide more than any fixed ones
            assert found <= exact * 1.05


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_an_unknown_number_of_honest_clients_is_a_mixture(mech):
    """A round holds 4 of 12 users of whom 7 are honest; the server knows who, and that the user is among them."""
    chance = hypergeom(11, 6, 3)
    parts = [(float(chance.pmf(k)), one_release(mech, k + 1)) for k in range(4)]
    for releases, delta in product((1, 2), (1e-2, 1e-4)):
        pairs = []
        for rest in product((-1.0, 1.0), repeat=3):  # who is honest stands at these ends
            laws = [
                np.concatenate([weight * law_of(mech, [own, *rest[:k]]) for k, (weight, _) in enumerate(parts)])
                for own in (1.0, -1.0)
            ]
            pairs.append([law if releases == 1 else np.multiply.outer(law, law).ravel() for law in laws])
        exact, found = epsilon_of(pairs, delta), composed_epsilon([(mixed(parts), releases)], delta)
        assert exact - 1e-6 <= found <= exact * 1.05
        assert found < composed_epsilon([(one_release(mech, 1), releases)], delta)  # at the worst


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1.80, 10), (2.55, 5), (3.45, 3)])
def test_an_outsider_of_a_long_run(multiplier, epsilon):
    """100 of 3,400 users, 1,500 rounds, δ = 1/3,400."""
    one = sampled(gaussian(2 / multiplier), 100 / 3400)
    found = composed_epsilon([(one, 1500)], 1 / 3400)
    assert 0.9 * epsilon < found < epsilon
    assert composed_epsilon([(one, 1500)], 1 / 3400, cells=2**15) == pytest.approx(found, rel=1e-4)
    assert found < 0.5 * composed_epsilon([(gaussian(2 / multiplier), 1500)], 1 / 3400)  # not to sample


def test_small_epsilons_are_finite():
    one = sampled(gaussian(2 / 12.0), 100 / 10**5)
    assert 1e-5 < composed_epsilon([(one, 100)], 1e-5) < 0.05


def test_what_is_refused():
    with pytest.raises(ValueError, match="rate = 0"):
        sampled(gaussian(1.0), 0)
    for releases in (1, 2):  # some outcome tells all
        assert composed_epsilon([(lambda epsilon: np.full_like(epsilon, 0.5), releases)], 1e-6) == np.inf
