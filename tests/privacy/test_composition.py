"""Composition, sampling and conversion against dp-accounting and published values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.accountant import gaussian_noise
from rqm.privacy.accountant import spent as spent_by
from rqm.privacy.composition import (
    ORDERS,
    SAMPLED_ORDERS,
    Rdp,
    gaussian_rdp,
    poisson_gaussian_epsilon,
    smallest,
    without_replacement,
)
from rqm.privacy.event import Event
from rqm.privacy.setting import Setting


@pytest.mark.parametrize(("epsilon", "noise"), [(3, 1.61364), (5, 1.17056), (10, 0.84793)])
def test_a_trusted_servers_noise_is_the_published_one(epsilon, noise):
    """Poisson sampling at rate 100/3,400, 1,500 rounds, δ = 1/3,400, add/remove, integer orders 2..128 and 256."""
    assert poisson_gaussian_epsilon(noise + 1e-4, 100 / 3400, 1500, 1 / 3400) < epsilon
    assert poisson_gaussian_epsilon(noise - 1e-4, 100 / 3400, 1500, 1 / 3400) > epsilon


def test_one_gaussian_release_agrees_with_the_analytic_mechanism():
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    for z in (0.8, 1.5, 4.0):
        accountant = PLDAccountant()
        accountant.compose(GaussianDpEvent(z))
        exact = accountant.get_epsilon(1e-6)
        ours, _ = gaussian_rdp(z, ORDERS, "zero-out").epsilon(1e-6)
        assert exact <= ours <= 1.12 * exact
        doubled, _ = gaussian_rdp(2 * z, ORDERS, "replace").epsilon(1e-6)
        assert doubled == pytest.approx(ours)


def test_conversion_is_dp_accountings():
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(list(ORDERS))
    accountant.compose(dp.GaussianDpEvent(2.0), 7)
    ours, order = gaussian_rdp(2.0, ORDERS, "zero-out").times(7).epsilon(1e-5)
    assert ours == pytest.approx(accountant.get_epsilon_and_optimal_order(1e-5)[0])
    assert order == accountant.get_epsilon_and_optimal_order(1e-5)[1]


@pytest.mark.parametrize(("clients", "noise"), [(100, 2.54), (10, 1.0), (1000, 8.0)])
def test_sampling_is_never_below_the_gaussians_own_bound(clients, noise):
    """dp-accounting uses the Gaussian's exact moments where the general theorem takes a factor of two."""
    import dp_accounting as dp

    orders = list(map(float, range(2, 33)))
    theirs = dp.rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(3400, clients, dp.GaussianDpEvent(noise / 2)))
    ours = without_replacement(gaussian_rdp(noise, orders, "replace"), clients, 3400)
    ratio = ours.values / theirs._rdp
    assert (ratio >= 1 - 1e-9).all()
    assert ratio[0] == pytest.approx(1)
    assert ratio[:4].max() < (1.1 if clients == 10 else 3)


def test_the_outsiders_noise_is_the_reference():
    """Replace-one, n = 100 of N = 3,400, T = 1,500, δ = 1/N, ε = 10: 2.54 by Rényi divergences, 1.76 by profiles."""

    def by_divergences(z):
        return without_replacement(gaussian_rdp(z, SAMPLED_ORDERS, "replace"), 100, 3400).times(1500)

    found = smallest(lambda z: by_divergences(z).epsilon(1 / 3400)[0] <= 10, 1.0)
    assert found == pytest.approx(2.54, abs=0.005)
    setting = Setting(clients=100, population=3400, rounds=1500, delta=1 / 3400, observer="outsider")
    assert [gaussian_noise(setting, epsilon) for epsilon in (10, 5, 3)] == pytest.approx(
        [1.758, 2.486, 3.377], abs=2e-3
    )


def test_zero_out_divergences_cannot_be_sampled():
    zero_out = gaussian_rdp(1.0, SAMPLED_ORDERS, "zero-out")
    with pytest.raises(ValueError, match="takes 'replace' divergences"):
        without_replacement(zero_out, 10, 100)
    with pytest.raises(ValueError, match="all integers from 2 on"):
        without_replacement(gaussian_rdp(1.0, ORDERS, "replace"), 10, 100)
    event = Event(Gaussian(1.0), 1, 1.0)
    found = [
        spent_by(event, Setting(10, 5, population=100, observer="outsider", neighbours=relation)).epsilon
        for relation in ("zero-out", "replace")
    ]
    assert found[0] == found[1]  # whatever the relation: the user's place is taken by somebody else


@settings(max_examples=60)
@given(
    st.floats(0.3, 20),
    st.integers(1, 50),
    st.integers(0, 5000),
    st.integers(1, 200),
    st.floats(1e-9, 1e-2),
    st.sampled_from(["server", "outsider"]),
)
def test_epsilon_is_monotone_in_everything(noise, clients, more, rounds, delta, observer):
    def spent(noise=noise, clients=clients, population=clients + more + 1, rounds=rounds, delta=delta, k=rounds):
        setting = Setting(clients, rounds, delta, population, observer, k)
        return spent_by(Event(Gaussian(noise), 1, 1.0), setting).epsilon

    here = spent()
    nearly = here * (1 + 1e-9) + 1e-9
    assert spent(noise=1.1 * noise) <= nearly
    assert spent(population=clients + more + 50) <= nearly
    assert spent(delta=2 * delta) <= nearly
    assert spent(rounds=rounds + 3, k=rounds + 3) >= here * (1 - 1e-9)
    assert spent(clients=clients + 1) >= here * (1 - 1e-9)
    if observer == "server":
        assert spent(k=1) <= nearly


def test_the_smallest_that_is_enough():
    for target in (1e-3, 0.7, 1.0, 250.0):
        found = smallest(lambda z, t=target: z >= t, 1.0)
        assert target <= found <= 1.001 * target
    with pytest.raises(ValueError, match="no amount"):
        smallest(lambda _: False, 1.0)


def test_bad_values_are_named():
    rdp = Rdp((2.0,), np.array([1.0]), "replace")
    with pytest.raises(ValueError, match="delta = 0"):
        rdp.epsilon(0)
    with pytest.raises(ValueError, match="population = 5"):
        without_replacement(gaussian_rdp(1.0, SAMPLED_ORDERS, "replace"), 10, 5)
