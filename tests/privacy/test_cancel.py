"""The certificate of noise that cancels: near the Gaussian's where noise is wide, never better; and what it rests on.

Whole runs that were enumerated are in ``test_cancel_views.py``.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, Rounding
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.transient import Transient
from rqm.privacy.accountant import spent
from rqm.privacy.cancel import cancelled_gdp, ratio, view
from rqm.privacy.event import Event
from rqm.privacy.gaussian import gaussian_epsilon, vector_gdp
from rqm.privacy.holding import gaussian_paths, holding
from rqm.privacy.setting import Setting

WIDE = Event(Rounding(clip=4 / 1024, levels=2, margin=8.61), 2**20, 1.0, 25.36, 64)
OF_FEW = Event(Rounding(clip=4 / 1024, levels=2, margin=26.8), 2**20, 1.0, 25.72, 34)


def shift(law):
    """A law and the same one step higher."""
    return np.append(law, 0.0), np.append(0.0, law)


def curve(noise, moved, q):
    """sup over events of W(E) − q N(E), by going through all outcomes."""
    return np.maximum(moved - q * noise, 0).sum()


@pytest.mark.parametrize(("event", "clients", "most"), [(WIDE, 1000, 1.01), (OF_FEW, 100, 1.025)])
def test_where_noise_is_wide_it_is_the_gaussian_value(event, clients, most):
    over = event.mu("replace", clients, 1e-9) / event.least_mu("replace", clients)
    assert 1 <= over <= most


def test_noise_that_cancels_hides_what_coins_alone_do_not():
    coins = vector_gdp(WIDE.mechanism, honest=1000, dim=2**20, l2_clip=1.0, lost=1e-9, law="sampled")
    assert 5 * WIDE.mu("replace", 1000, 1e-9) < coins


def test_with_nothing_to_hold_it_is_the_certificate_of_coins():
    mech = Rounding(clip=0.25, levels=2, margin=3.0)
    alone = vector_gdp(mech, honest=30, dim=64, l2_clip=1.0, lost=1e-9, law="sampled")
    ours = cancelled_gdp(mech, Transient(5.0), honest=30, separation=1, dim=64, l2_clip=1.0, lost=1e-9)
    assert alone * (1 - 1e-6) <= ours <= 1.02 * alone  # the others' worst is the worst of all curves here, not of each


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.floats(0.0, 5.0),
)
def test_a_ratio_of_several_laws_tells_no_less_than_each(one, other, q):
    laws = [np.array(law) / sum(law) for law in (one, other)]
    found = ratio(laws, 4.0)
    ours = found.alone + float(found.chances @ np.maximum(found.values - q, 0))
    assert float(found.chances.sum()) == pytest.approx(1, abs=1e-9)
    assert float(found.chances @ found.values) + found.alone == pytest.approx(1, abs=1e-9)
    for law in laws:
        assert ours >= curve(*shift(law), q) - 1e-12


@settings(max_examples=25)
@given(st.integers(1, 40), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_the_law_of_the_holding_time_is_the_best_for_gaussians(rounds, transient, others):
    w = holding(rounds, transient, others)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()

    def cost(law):
        longer = 1 - np.cumsum(law)[:-1]
        return (longer**2).sum() / transient + (law**2).sum() / others

    assert cost(w) == pytest.approx(gaussian_paths(rounds, transient, others))
    rng = np.random.default_rng(0)
    for _ in range(20):
        near = np.abs(w + 0.01 * rng.normal(size=rounds))
        assert cost(near / near.sum()) >= cost(w) * (1 - 1e-9)


def test_gaussian_paths_are_exact_for_one_participation():
    """Of T rounds with covariance σ_B² + σ_A² (A_t − A_{t−1}), by its inverse."""
    rounds, transient, others = 12, 30.0, 2.0
    taken = np.eye(rounds) - np.eye(rounds, k=-1)
    covariance = others * np.eye(rounds) + transient * taken @ taken.T
    exact = np.linalg.inv(covariance)[0, 0]
    ours = gaussian_paths(rounds, transient, others)
    assert exact <= ours <= 1.02 * exact  # held to the end, noise need not be made up for


def test_fewer_honest_clients_less_separation_and_less_noise_cost_more():
    base = {"honest": 200, "separation": 8, "dim": 256, "l2_clip": 1.0, "lost": 1e-6}
    mech, noise = Rounding(clip=0.25, levels=2, margin=12.0), Transient(8.0)
    best = cancelled_gdp(mech, noise, **base)
    assert cancelled_gdp(mech, noise, **base | {"honest": 150}) > best
    assert cancelled_gdp(mech, noise, **base | {"separation": 4}) > best
    assert cancelled_gdp(mech, Transient(4.0), **base) > best
    assert cancelled_gdp(mech, noise, **base, neighbours="zero-out") < best


@pytest.mark.parametrize("mech", [RQM(), PBM(), Rounding(levels=4, margin=9.0)])
def test_other_mechanisms_are_refused(mech):
    with pytest.raises(ValueError, match="two levels"):
        cancelled_gdp(mech, Transient(8.0), honest=10, separation=3, dim=4, l2_clip=1.0, lost=1e-6)


def test_coins_that_are_none_hide_nobody():
    """At a level there is one outcome, and others who hold it add nothing: only transient noise is left."""
    values = {"honest": 10, "separation": 3, "dim": 4, "l2_clip": 1.0, "lost": 1e-6}
    assert cancelled_gdp(Rounding(levels=2), Transient(8.0), **values) > 5


def test_laws_of_a_view_lack_nothing():
    ends = np.array([[0.6, 0.4], [0.4, 0.6]])
    low, high, lacks, error = view(ends, Transient(3.0).summed(10)[0], 9, 6)
    assert low.sum() == pytest.approx(1, abs=1e-9)
    assert high.sum() == pytest.approx(1, abs=1e-9)
    assert lacks < 1e-20
    assert error < 1e-5


def test_participations_add_up_and_their_separation_is_counted_on():
    setting = Setting(clients=100, rounds=340, delta=1e-4, participations=10, separation=34)
    lost = 1e-3 * 1e-4 / 10
    mu = OF_FEW.mu("replace", 100, lost)
    found = spent(OF_FEW, setting)
    assert found.epsilon == pytest.approx(gaussian_epsilon(mu * sqrt(10), 1e-4 - 10 * lost))
    assert found.accountant == "gaussian"
    assert spent(OF_FEW, setting, {0: 2}).epsilon > spent(OF_FEW, setting, {0: 1}).epsilon  # done again: twice
    assert setting.apart == 34
    assert replace(setting, participations=1).apart == 340


def test_a_trusted_server_of_the_same_shape_is_accounted_for_exactly():
    event = Event(Gaussian(2.0), 8, 1.0, 30.0, 20)
    assert event.mu("replace", 5, 1e-9) == pytest.approx(2 * sqrt(gaussian_paths(20, 900.0, 4.0)))


def test_how_often_a_user_came_back_follows_from_the_rounds_that_were_charged():
    """Not from those that were planned: a run may go on, or be young."""
    event = Event(Rounding(clip=0.125, levels=2, margin=3.0), 1024, 1.0, 8.0, 10)
    planned = Setting(clients=100, rounds=10, delta=1e-6, separation=10)
    longer = replace(planned, rounds=100)
    charges = dict.fromkeys(range(100), 1)
    assert spent(event, planned, charges) == spent(event, longer, charges) == spent(event, longer)
    young = spent(event, longer, dict.fromkeys(range(10), 1))
    assert young == spent(event, planned)
    assert young.epsilon < spent(event, longer, dict.fromkeys(range(11), 1)).epsilon


def test_noise_that_cancels_costs_no_more_than_coins_alone():
    mech = Rounding(clip=0.125, levels=2, margin=0.2)
    setting = Setting(clients=100, rounds=60, delta=1e-6, participations=2, separation=30)
    alone = spent(Event(mech, 1024, 1.0), setting)
    assert spent(Event(mech, 1024, 1.0, 8.0, 30), setting).epsilon <= alone.epsilon
