"""Claims, their composition and their conversion to ε, against dp_accounting and exact formulas."""

from math import e, exp, expm1, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rqm import bounds
from rqm.accounting.release import RDP_ORDERS
from rqm.bounds import (
    Bound,
    EpsilonResult,
    GdpMu,
    HonestClients,
    MaxParticipations,
    PrivacyProfile,
    PureEpsilon,
    RdpCurve,
    ReleaseProfile,
    SecureSum,
    compose,
    epsilon,
    epsilon_of_gaussian,
    epsilon_of_laplace,
    gaussian,
    gaussian_deltas,
    gaussian_epsilon,
    laplace,
    loss_distribution,
    profile_at,
    profile_of,
    smallest_mu,
)

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])


def gaussian_curve(noise_multiplier, orders=RDP_ORDERS, sensitivity=1.0):
    """The Rényi curve of a Gaussian mechanism."""
    return RdpCurve(tuple(map(float, orders)), np.array(orders) * (sensitivity / noise_multiplier) ** 2 / 2)


def random_claims(rng):
    """One claim of each kind."""
    curve = gaussian_curve(float(rng.uniform(0.5, 3)))
    profile = PrivacyProfile(((profile_of(GdpMu(float(rng.uniform(0.2, 2)))), 1),))
    return [GdpMu(float(rng.uniform(0.1, 3))), PureEpsilon(float(rng.uniform(0.1, 3))), curve, profile]


# -- Rényi curves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier", [0.8, 1.5, 4.0])
def test_a_gaussian_curve_is_near_the_analytic_mechanism(noise_multiplier):
    exact = epsilon_of_gaussian(noise_multiplier, 1e-6)
    stated = epsilon(Bound(gaussian_curve(noise_multiplier)), 1e-6)
    assert exact <= stated <= 1.12 * exact
    doubled = gaussian_curve(2 * noise_multiplier, sensitivity=2.0)
    assert epsilon(Bound(doubled), 1e-6) == pytest.approx(stated)


def test_the_conversion_of_curves_is_dp_accountings():
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(list(RDP_ORDERS))
    accountant.compose(dp.GaussianDpEvent(2.0), 7)
    bound = compose([(Bound(gaussian_curve(2.0)), 7)])
    assert epsilon(bound, 1e-5) == pytest.approx(accountant.get_epsilon_and_optimal_order(1e-5)[0])
    assert EpsilonResult.of(bound, 1e-5, "rdp").order == accountant.get_epsilon_and_optimal_order(1e-5)[1]


@given(st.floats(0.3, 5), st.floats(1e-9, 0.1))
def test_a_curve_never_says_less_than_the_exact_profile(noise_multiplier, delta):
    eps = epsilon(Bound(gaussian_curve(noise_multiplier)), delta)
    assert gaussian_deltas(1 / noise_multiplier, np.array([eps]))[0] <= delta * (1 + 1e-9)
    by_profile = profile_of(gaussian_curve(noise_multiplier)).delta(EPSILONS)
    assert (by_profile >= gaussian_deltas(1 / noise_multiplier, EPSILONS)).all()


# -- exact claims ---------------------------------------------------------------------------------


def test_pure_epsilon_is_randomized_response():
    eps = 1.3
    p, q = (np.array([exp(eps), 1.0]) / (1 + exp(eps)), np.array([1.0, exp(eps)]) / (1 + exp(eps)))
    exact = [np.maximum(p - exp(at) * q, 0).sum() for at in EPSILONS]
    assert profile_of(PureEpsilon(eps)).delta(EPSILONS) == pytest.approx(exact, abs=1e-15)
    assert epsilon(Bound(PureEpsilon(eps)), 1e-9) == eps
    exact = -2 * norm.ppf(1 / (1 + exp(eps)))  # by the fixed point of the trade-off function
    assert exact <= smallest_mu(Bound(PureEpsilon(eps))) <= 1.004 * exact
    assert epsilon(compose([(Bound(PureEpsilon(eps)), 3)]), 1e-9) == pytest.approx(3 * eps)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_the_laplace_profile_is_an_integral(scale):
    x = np.linspace(-40 * scale, 40 * scale + 1, 400_001)
    p, q = (np.exp(-abs(x - at) / scale) / (2 * scale) for at in (0.0, 1.0))
    exact = [np.maximum(p - exp(at) * q, 0).sum() * (x[1] - x[0]) for at in EPSILONS]
    assert profile_of(laplace(scale).claim).delta(EPSILONS) == pytest.approx(exact, abs=2e-4)
    assert epsilon_of_laplace(scale, 1e-12) == pytest.approx(1 / scale, rel=1e-6)
    assert epsilon_of_laplace(scale, 0.1) < 1 / scale


def test_laplace_noise_composes_as_dp_accountings():
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.LaplaceDpEvent(2.0), 10)
    assert epsilon_of_laplace(2.0, 1e-5, 10) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("multiplier", "releases"), [(1.0, 1), (5.0, 100), (20.0, 7)])
def test_gaussians_compose_exactly(multiplier, releases):
    claim = compose([(gaussian(multiplier), releases)]).claim
    assert claim.mu == pytest.approx(sqrt(releases) / multiplier)
    assert epsilon_of_gaussian(multiplier, 1e-5, releases) == gaussian_epsilon(claim.mu, 1e-5)


# -- composition ----------------------------------------------------------------------------------


def test_mixed_claims_compose_by_their_losses():
    together = epsilon(compose([(gaussian(2.0), 3), (laplace(5.0), 4)]), 1e-5)
    separate = epsilon(compose([(gaussian(2.0), 3)]), 1e-5), epsilon(compose([(laplace(5.0), 4)]), 1e-5)
    assert max(separate) < together < sum(separate)
    pure = epsilon(compose([(gaussian(2.0), 1), (Bound(PureEpsilon(0.4)), 1)]), 1e-5)
    assert gaussian_epsilon(0.5, 1e-5) < pure <= gaussian_epsilon(0.5, 1e-5) + 0.4


def test_failures_add_up_and_assumptions_are_joined():
    first = Bound(GdpMu(0.1), 1e-7).assuming(SecureSum(), HonestClients(3, 4))
    second = Bound(GdpMu(0.2), 2e-7, frozenset({SecureSum(), MaxParticipations(1, 2)}))
    total = compose([(first, 3), (second, 2)])
    assert total.failure == pytest.approx(7e-7)
    assert total.assumptions == {SecureSum(), HonestClients(3, 4), MaxParticipations(1, 2)}
    assert epsilon(total, 1e-6) == pytest.approx(gaussian_epsilon(sqrt(3 * 0.01 + 2 * 0.04), 3e-7), rel=1e-9)


def test_curves_compose_with_curves_at_the_same_orders_to_a_curve():
    curve = Bound(gaussian_curve(1.0))
    assert isinstance(compose([(curve, 1), (curve, 2)]).claim, RdpCurve)


def test_curves_among_other_claims_count_by_the_profiles_that_they_imply():
    """No composition may be smaller than that of the Gaussians that the curves belong to."""
    curve, two = Bound(gaussian_curve(1.0)), epsilon(compose([(gaussian(1.0), 2)]), 1e-5)
    for other_bound in (gaussian(1.0), Bound(gaussian_curve(1.0, RDP_ORDERS[1:]))):
        composed = compose([(curve, 1), (other_bound, 1)])
        assert not isinstance(composed.claim, RdpCurve)
        assert two <= epsilon(composed, 1e-5) < 1.3 * two
    for other_bound in (Bound(PureEpsilon(1.0)), laplace(1.0)):
        assert epsilon(compose([(curve, 1), (other_bound, 1)]), 1e-5) >= epsilon(gaussian(1.0), 1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_delta_is_paid_for_what_is_left_out_whatever_the_claim(seed):
    """Infinite ε where δ is not larger than the failure; and a larger ε the more is left out."""
    for claim in random_claims(np.random.default_rng(seed)):
        without, with_some = epsilon(Bound(claim), 1e-5), epsilon(Bound(claim, 0.9e-5), 1e-5)
        assert without <= with_some < inf
        assert without < with_some or isinstance(claim, PureEpsilon)
        assert epsilon(Bound(claim, 1e-5), 1e-5) == inf
        assert epsilon(Bound(claim, 2e-5), 1e-5) == inf
        assert EpsilonResult.of(Bound(claim, 1e-5), 1e-5, "rdp").order is None


@pytest.mark.parametrize("eps", [0.01, 1.0, 1.5, 2.0, 37.3, 4e5])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.3])
def test_a_single_pair_of_epsilon_and_delta(eps, delta):
    bound = Bound(profile_at(eps, delta))
    assert eps <= epsilon(bound, delta) <= eps * (1 + 1e-9) + 1e-10
    assert epsilon(bound, 0.5 * delta) == inf


@pytest.mark.parametrize(("mu", "eps"), [(0.3, 0.7), (1.0, 3.0)])
def test_the_smallest_mu_covers_a_profile(mu, eps):
    """Of the worse of two mechanisms, so that no single formula gives it."""

    def larger(at):
        return np.maximum(gaussian_deltas(mu, at), profile_of(PureEpsilon(eps)).delta(at))

    profile = PrivacyProfile(((ReleaseProfile(larger), 1),))
    smallest = smallest_mu(Bound(profile))
    grid = np.linspace(0, 10, 2001)
    assert (gaussian_deltas(smallest, grid) >= larger(grid) - 1e-12).all()
    assert (gaussian_deltas(0.97 * smallest, grid) < larger(grid) - 1e-12).any()
    assert smallest_mu(Bound(gaussian_curve(1.0))) is None
    assert smallest_mu(Bound(GdpMu(inf))) is None
    assert smallest_mu(Bound(PureEpsilon(inf))) is None


def test_a_loss_distribution_is_a_dp_accounting_object():
    losses = loss_distribution(PrivacyProfile(((profile_of(GdpMu(0.5)), 4),)), 1e-5)
    assert losses.get_epsilon_for_delta(1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)
    assert loss_distribution(PrivacyProfile(((ReleaseProfile(lambda at: np.full_like(at, 0.5)), 2),)), 1e-5) is None


def test_large_epsilons_are_infinite_or_right_and_nothing_overflows():
    assert epsilon(Bound(PrivacyProfile(((profile_of(GdpMu(2000.0)), 3),))), 1e-6) == inf
    assert epsilon(Bound(GdpMu(300.0)), 1e-6) == pytest.approx(300**2 / 2 + 300 * 4.753, rel=1e-3)
    assert epsilon(Bound(GdpMu(inf)), 1e-6) == inf
    assert epsilon(Bound(GdpMu(0.0)), 1e-6) == 0.0


@pytest.mark.parametrize("delta", [0, 1, -1e-6, float("nan")])
def test_a_delta_that_is_none_is_refused(delta):
    for claim in random_claims(np.random.default_rng(0)):
        with pytest.raises(ValueError, match="delta = "):
            epsilon(Bound(claim), delta)


@pytest.mark.parametrize("value", [0.0, -1.0, inf, float("nan")])
def test_noise_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="noise_multiplier = "):
        gaussian(value)
    with pytest.raises(ValueError, match="scale = "):
        laplace(value)
    with pytest.raises(ValueError, match="releases = 0"):
        epsilon_of_gaussian(1.0, 1e-5, 0)


def test_basic_formulas():
    """Dwork and Roth 2014: what the exact account must not exceed."""
    assert epsilon_of_gaussian(sqrt(2 * log(1.25 / 1e-5)), 1e-5) < 1
    assert epsilon(compose([(Bound(PureEpsilon(0.1)), 100)]), 1e-5) == pytest.approx(10)
    advanced = sqrt(2 * 100 * log(1 / 1e-5)) * 0.1 + 100 * 0.1 * expm1(0.1)
    by_losses = PrivacyProfile(((profile_of(PureEpsilon(0.1)), 1),))
    assert epsilon(compose([(Bound(by_losses), 100)]), 1e-5) < advanced < e * 10


def test_the_grid_is_fine_enough(monkeypatch):
    claim = PrivacyProfile(((profile_of(GdpMu(0.1)), 50), (profile_of(PureEpsilon(0.05)), 20)))
    stated = epsilon(Bound(claim), 1e-6)
    monkeypatch.setattr(bounds, "PLD_GRID_SIZE", 2**15)
    assert epsilon(Bound(claim), 1e-6) == pytest.approx(stated, rel=1e-3)
    assert epsilon(Bound(claim), 1e-6) <= stated * (1 + 1e-6)
