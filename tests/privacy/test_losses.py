"""Privacy loss distributions of few coordinates against brute force and dp-accounting's own."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, Rounding, renyi
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.privacy.attained import attained_epsilon
from rqm.privacy.event import Event
from rqm.privacy.guarantee import guarantee
from rqm.privacy.losses import composed_epsilon, coordinates, profile
from rqm.privacy.setting import Setting

ENDS = np.array([-1.0, 1.0])


def hockey_stick(p, q, epsilon):
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()


@settings(max_examples=40)
@given(
    st.one_of(
        st.builds(Rounding, levels=st.just(2), margin=st.floats(0.3, 20)),
        st.builds(RQM, levels=st.just(4), margin=st.floats(6, 30), keep=st.floats(0.1, 0.9)),
    ),
    st.integers(0, 5),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.data(),
)
def test_the_profile_is_above_every_pair(mech, others, x, y, data):
    grid, deltas = profile(*mech.pmf(ENDS), others)
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0, 0.3]), min_size=others, max_size=others))
    base = np.ones(1)
    for sign in signs:
        base = np.convolve(base, mech.pmf(sign))
    p, q = (np.convolve(mech.pmf(v), base) for v in (x, y))
    for index in (0, 1000, 2000, 2100, 3000, 4000):
        assert hockey_stick(p, q, grid[index]) <= deltas[index] + 1e-12


def test_the_profile_is_attained():
    mech = Rounding(levels=2, margin=1.0)
    grid, deltas = profile(*mech.pmf(ENDS), 3)
    laws = mech.pmf(ENDS)
    for index in (2200, 2500, 3000):
        found = 0.0
        for signs in product([0, 1], repeat=3):
            base = np.ones(1)
            for sign in signs:
                base = np.convolve(base, laws[sign])
            found = max(found, hockey_stick(np.convolve(laws[1], base), np.convolve(laws[0], base), grid[index]))
        assert deltas[index] == pytest.approx(found, abs=1e-12)


def test_one_clients_composition_is_dp_accountings():
    from dp_accounting.pld import privacy_loss_distribution as pld

    mech = Rounding(levels=2, margin=3.0)
    low, high = ({z: float(np.log(w)) for z, w in enumerate(law)} for law in mech.pmf(ENDS))
    theirs = pld.from_two_probability_mass_functions(low, high, value_discretization_interval=1e-5).self_compose(30)
    assert composed_epsilon(mech, honest=1, releases=30, delta=1e-5) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-5), rel=2e-3
    )


@pytest.mark.parametrize(
    "mech", [Rounding(levels=2, margin=3.0), RQM(levels=16, margin=40.0), PBM(theta=0.05)], ids=repr
)
def test_the_better_of_the_two_is_reported_and_named(mech):
    setting = Setting(clients=10, population=100, rounds=5, participations=2)
    few, many = (guarantee(Event(mech, dim, dim**0.5), setting) for dim in (4, 4000))
    assert few.accountant == "pld"
    assert many.accountant in ("rdp", "gaussian")
    rdp_alone = min(
        8 * bound.upper + np.log(1e5) / (bound.alpha - 1) for bound in renyi(mech, [2.0, 4.0, 8.0, 16.0, 32.0], 10)
    )
    assert 0 < few.epsilon < rdp_alone


@pytest.mark.parametrize("mech", [DiscreteGaussian(scale=0.4, steps=5, bits=6), Skellam(scale=1.0, steps=3, bits=5)])
@pytest.mark.parametrize("honest", [1, 3])
def test_additive_noise_is_above_every_pair_and_attained(mech, honest):
    """Any inputs of the user and of the others, of the noise as it is sampled, the sum taken modulo 2**bits."""
    found, rng = coordinates(mech, honest=honest, releases=1, law="sampled"), np.random.default_rng(2)
    epsilons = np.linspace(0.05, 4, 12)

    def law(inputs):
        out = np.fft.fft(np.eye(1, mech.levels)[0])
        for x in inputs:
            out = out * np.fft.fft(np.array(mech.sampled_pmf(x), dtype=float).ravel())
        return np.maximum(np.fft.ifft(out).real, 0)

    closest = 0.0
    for turn in range(60):
        x, y, *rest = rng.uniform(-1, 1, honest + 1)
        x, y, rest = (x, y, rest) if turn else (-1.0, 1.0, [1.0] * (honest - 1))
        p, q = law([x, *rest]), law([y, *rest])
        for epsilon in epsilons:
            truth, stated = hockey_stick(p, q, epsilon), float(found(np.array([epsilon]))[0])
            assert truth <= stated + 1e-12
            closest = max(closest, truth / stated)
    assert closest > 0.999


def test_a_coordinate_with_additive_noise_is_accounted_for_by_its_losses():
    setting = Setting(clients=10, rounds=1, delta=1e-6)
    for mech in (Skellam(scale=0.32, steps=15, bits=8), Binomial(scale=0.33, steps=41, bits=10)):
        found = guarantee(Event(mech, 1, 1.0), setting)
        assert found.accountant == "pld"
        assert 9.5 < found.epsilon < 10.2


@settings(max_examples=40)
@given(
    st.builds(PBM, theta=st.floats(0.02, 0.49), levels=st.integers(3, 6)),
    st.lists(st.sampled_from([-1.0, 1.0, 0.3, 0.0]), max_size=4),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_a_coordinate_of_several_trials_is_above_every_pair(mech, others, x, y):
    found = coordinates(mech, honest=len(others) + 1, releases=1)
    base = np.ones(1)
    for other in others:
        base = np.convolve(base, mech.pmf(other))
    p, q = (np.convolve(mech.pmf(v), base) for v in (x, y))
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        assert hockey_stick(p, q, epsilon) <= found(np.array([epsilon]))[0] + 1e-12


@pytest.mark.parametrize(("theta", "honest"), [(0.25, 40), (0.45, 300), (0.4987, 10_000)])
def test_several_trials_are_accounted_for_together_and_what_is_stated_is_attained(theta, honest):
    mech = PBM(theta=theta)
    stated = composed_epsilon(mech, honest=honest, releases=1, delta=1e-6, law="sampled")
    reached = attained_epsilon(mech, honest, 1, 1.0, 1e-6)
    assert reached <= stated <= 1.003 * reached
