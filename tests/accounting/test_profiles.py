"""Privacy profiles and Rényi curves on random samples, against enumerations and dp_accounting."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import hypergeom

from rqm import RQM, StochasticRounding, bounds
from rqm.accounting.profiles import (
    mixed,
    poisson_sampled_gaussian,
    renyi_without_replacement,
    sampled_without_replacement,
)
from rqm.bounds import Bound, GdpMu, PrivacyProfile, RdpCurve, ReleaseProfile, compose, epsilon, profile_of

MECHANISMS = [StochasticRounding(clip=1.0, levels=2, margin=0.5), RQM(clip=1.0, margin=2.5, levels=4, keep=0.5)]
SAMPLED_ORDERS = tuple(map(float, range(2, 129)))


def composed_epsilon(parts, delta):
    """ε of releases that are given by their profiles, each so often."""
    return epsilon(compose([(Bound(PrivacyProfile(((profile, 1),))), count) for profile, count in parts]), delta)


def gaussian(mu):
    return profile_of(GdpMu(mu))


def gaussian_curve(noise_multiplier, orders, sensitivity=1.0):
    """The Rényi curve of a Gaussian mechanism."""
    return RdpCurve(tuple(map(float, orders)), np.array(orders) * (sensitivity / noise_multiplier) ** 2 / 2)


def sum_pmf(mech, inputs):
    """The pmf of a sum of clients with these inputs of a coordinate."""
    pmf = np.ones(1)
    for x in inputs:
        pmf = np.convolve(pmf, mech.pmf(x))
    return pmf


def hockey_stick(p, q, eps):
    """The hockey-stick divergence, the larger of both directions."""
    factor = np.exp(np.atleast_1d(eps))[:, None]
    return np.maximum(np.maximum(p - factor * q, 0).sum(axis=1), np.maximum(q - factor * p, 0).sum(axis=1))


def exact_epsilon(pairs, delta):
    """The exact ε over some pairs of pmfs."""
    low, high = 0.0, 50.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        is_enough = max(hockey_stick(p, q, middle)[0] for p, q in pairs) <= delta
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def one_release(mech, clients):
    """The exact profile of a sum, a vector replaced: over all other inputs at the ends."""
    rests = product((-1.0, 1.0), repeat=clients - 1)
    pairs = [(sum_pmf(mech, [1, *other_inputs]), sum_pmf(mech, [-1, *other_inputs])) for other_inputs in rests]
    return ReleaseProfile(lambda eps: np.max([hockey_stick(p, q, eps) for p, q in pairs], axis=0))


@pytest.mark.parametrize(
    ("mu", "releases", "delta"), [(1e-3, 4, 1e-6), (0.1, 100, 1e-9), (0.5, 1, 1e-5), (0.5, 30, 0.1), (3.0, 2, 1e-9)]
)
def test_profiles_of_gaussians_compose_as_gaussians(mu, releases, delta):
    exact = bounds.gaussian_epsilon(mu * releases**0.5, delta)
    stated = composed_epsilon([(gaussian(mu), releases)], delta)
    assert exact * (1 - 1e-9) - 1e-9 <= stated <= exact * 1.001 + 1e-4


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
@pytest.mark.parametrize(
    ("users", "clients"),
    [(4, 2), pytest.param(8, 1, marks=pytest.mark.slow), (8, 3), pytest.param(6, 5, marks=pytest.mark.slow), (5, 5)],
)
def test_sampling_is_never_below_the_enumeration_and_close(mech, users, clients):
    """All samples, all users' inputs at the ends, one replaced; one round, or two with any inputs in each."""
    profile, pairs_of_one = sampled_without_replacement(one_release(mech, clients), clients / users), []
    for high in range(users):
        other_inputs = [1.0] * high + [-1.0] * (users - 1 - high)
        pmfs = [
            np.mean([sum_pmf(mech, sample) for sample in combinations([user_input, *other_inputs], clients)], axis=0)
            for user_input in (1.0, -1.0)
        ]
        pairs_of_one += [pmfs, pmfs[::-1]]
    pairs_of_two = [
        [np.multiply.outer(first, second).ravel() for first, second in zip(*two, strict=True)]
        for two in product(pairs_of_one, repeat=2)
    ]
    for pairs, delta in product((pairs_of_one, pairs_of_two), (0.1, 1e-2, 1e-4)):
        rounds = 1 if pairs is pairs_of_one else 2
        exact, stated = exact_epsilon(pairs, delta), composed_epsilon([(profile, rounds)], delta)
        assert exact - 1e-6 <= stated
        if clients in (1, users) and exact > 0.1:  # else the other users of a sample hide more than any fixed inputs
            assert stated <= exact * 1.05


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_a_random_number_of_honest_clients_is_a_mixture(mech):
    """A round holds 4 of 12 users of whom 7 are honest; the server knows who, and that the user is among them."""
    others = hypergeom(11, 6, 3)
    parts = [(float(others.pmf(k)), one_release(mech, k + 1)) for k in range(4)]
    for releases, delta in product((1, 2), (1e-2, 1e-4)):
        pairs = []
        for other_inputs in product((-1.0, 1.0), repeat=3):  # inputs of the honest clients
            pmfs = [
                np.concatenate(
                    [weight * sum_pmf(mech, [user_input, *other_inputs[:k]]) for k, (weight, _) in enumerate(parts)]
                )
                for user_input in (1.0, -1.0)
            ]
            pairs.append([pmf if releases == 1 else np.multiply.outer(pmf, pmf).ravel() for pmf in pmfs])
        exact, stated = exact_epsilon(pairs, delta), composed_epsilon([(mixed(parts), releases)], delta)
        assert exact - 1e-6 <= stated <= exact * 1.05
        assert stated < composed_epsilon([(one_release(mech, 1), releases)], delta)  # the smallest cohort alone


@pytest.mark.parametrize(("multiplier", "eps"), [(1.80, 10), (2.55, 5), (3.45, 3)])
def test_an_outsider_of_a_long_run(multiplier, eps, monkeypatch):
    """100 of 3,400 users, 1,500 rounds, δ = 1/3,400."""
    release = sampled_without_replacement(gaussian(2 / multiplier), 100 / 3400)
    stated = composed_epsilon([(release, 1500)], 1 / 3400)
    assert 0.9 * eps < stated < eps
    assert stated < 0.5 * composed_epsilon([(gaussian(2 / multiplier), 1500)], 1 / 3400)  # without sampling
    monkeypatch.setattr(bounds, "PLD_GRID_SIZE", 2**15)
    assert composed_epsilon([(release, 1500)], 1 / 3400) == pytest.approx(stated, rel=1e-4)


def test_small_epsilons_are_finite():
    release = sampled_without_replacement(gaussian(2 / 12.0), 100 / 10**5)
    assert 1e-5 < composed_epsilon([(release, 100)], 1e-5) < 0.05


@pytest.mark.parametrize(("mu", "rate"), [(0.5, 0.01), (0.9, 0.3), (3.0, 0.05), (1.5, 1.0)])
def test_the_profile_of_poisson_sampling_is_that_of_its_losses(mu, rate):
    profile = poisson_sampled_gaussian(mu, rate)
    losses = profile.loss(1e-4)
    for eps in (0.0, 0.1, 0.5, 1.5):
        formula = float(profile.delta(np.array([eps]))[0])
        assert formula == pytest.approx(losses.get_delta_for_epsilon(eps), rel=1e-3, abs=1e-9)
        if formula > 1e-9:  # five percent less would be noticed
            assert float(poisson_sampled_gaussian(0.95 * mu, rate).delta(np.array([eps]))[0]) < 0.99 * formula


@pytest.mark.parametrize(("clients", "noise"), [(100, 2.54), (10, 1.0), (1000, 8.0)])
def test_sampled_curves_are_never_below_the_gaussians_own(clients, noise):
    """dp_accounting uses the Gaussian's exact moments where the general theorem takes a factor of two."""
    import dp_accounting as dp

    orders = list(map(float, range(2, 33)))
    theirs = dp.rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(3400, clients, dp.GaussianDpEvent(noise / 2)))
    ratio = renyi_without_replacement(gaussian_curve(noise, orders, 2.0), clients / 3400).values / theirs._rdp
    assert (ratio >= 1 - 1e-9).all()
    assert ratio[0] == pytest.approx(1)
    assert ratio[:4].max() < (1.1 if clients == 10 else 3)


def test_what_is_refused():
    with pytest.raises(ValueError, match="rate = 0"):
        sampled_without_replacement(gaussian(1.0), 0)
    with pytest.raises(ValueError, match="all whole numbers from 2 on"):
        renyi_without_replacement(gaussian_curve(1.0, (1.5, 2.0, 3.0)), 0.1)
    for releases in (1, 2):  # some outcome reveals everything
        everything = ReleaseProfile(lambda eps: np.full_like(eps, 0.5))
        assert composed_epsilon([(everything, releases)], 1e-6) == np.inf
