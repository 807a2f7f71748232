"""Privacy loss distributions of few coordinates against brute force and dp-accounting's own."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, Participation, StochasticRounding, ThreatModel, renyi
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.audit.attained import attained_epsilon
from rqm.bounds import Bound, PrivacyProfile, epsilon
from rqm.certify import privacy_loss
from rqm.certify.affine_rdp import end_sums
from rqm.certify.privacy_loss import coordinates_profile
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam

ENDS = np.array([-1.0, 1.0])


def profile(mechanism, others):
    """A grid of ε and the largest δ of one coordinate of an affine mechanism at each."""
    low, high = ends = mechanism.pmf(ENDS)
    pairs = list(end_sums(tuple(map(tuple, ends.tolist())), others))
    deltas, interval = privacy_loss._largest_profile(pairs, float(abs(np.log(high / low)).max()) * (1 + 1e-9))
    return (np.arange(len(deltas)) - len(deltas) // 2) * interval, deltas


def composed_epsilon(mechanism, *, honest, coordinates, delta, distribution="paper"):
    """ε of some coordinates, each with any two inputs."""
    bound = coordinates_profile(mechanism, honest=honest, coordinates=coordinates, distribution=distribution)
    return epsilon(Bound(PrivacyProfile(((bound, 1),))), delta)


def hockey_stick(p, q, eps):
    return np.maximum(p - np.exp(eps) * q, 0).sum()


@settings(max_examples=40)
@given(
    st.one_of(
        st.builds(StochasticRounding, levels=st.just(2), margin=st.floats(0.3, 20)),
        st.builds(RQM, levels=st.just(4), margin=st.floats(6, 30), keep=st.floats(0.1, 0.9)),
    ),
    st.integers(0, 5),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.data(),
)
def test_the_profile_is_above_every_pair(mechanism, others, x, y, data):
    grid, deltas = profile(mechanism, others)
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0, 0.3]), min_size=others, max_size=others))
    base = np.ones(1)
    for sign in signs:
        base = np.convolve(base, mechanism.pmf(sign))
    p, q = (np.convolve(mechanism.pmf(v), base) for v in (x, y))
    for index in (0, 1000, 2000, 2100, 3000, 4000):
        assert hockey_stick(p, q, grid[index]) <= deltas[index] + 1e-12


def test_the_profile_is_attained():
    mechanism = StochasticRounding(levels=2, margin=1.0)
    grid, deltas = profile(mechanism, 3)
    pmfs = mechanism.pmf(ENDS)
    for index in (2200, 2500, 3000):
        largest = 0.0
        for signs in product([0, 1], repeat=3):
            base = np.ones(1)
            for sign in signs:
                base = np.convolve(base, pmfs[sign])
            exact = hockey_stick(np.convolve(pmfs[1], base), np.convolve(pmfs[0], base), grid[index])
            largest = max(largest, exact)
        assert deltas[index] == pytest.approx(largest, abs=1e-12)


def test_the_composition_of_one_client_is_that_of_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as pld

    mechanism = StochasticRounding(levels=2, margin=3.0)
    low, high = ({z: float(np.log(w)) for z, w in enumerate(pmf)} for pmf in mechanism.pmf(ENDS))
    exact = pld.from_two_probability_mass_functions(low, high, value_discretization_interval=1e-5).self_compose(30)
    assert composed_epsilon(mechanism, honest=1, coordinates=30, delta=1e-5) == pytest.approx(
        exact.get_epsilon_for_delta(1e-5), rel=2e-3
    )


@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(levels=2, margin=3.0), RQM(levels=16, margin=40.0), PBM(theta=0.05)], ids=repr
)
def test_the_better_bound_is_reported_and_named(mechanism):
    participation = Participation(10, 5, 100, max_participations=2)
    small, large = (account(Release(mechanism, dim, dim**0.5), participation, ThreatModel(), 1e-5) for dim in (4, 4000))
    assert small.accountant == "pld"
    assert large.accountant in ("rdp", "gaussian")
    by_renyi = min(
        8 * bound.upper + np.log(1e5) / (bound.alpha - 1) for bound in renyi(mechanism, [2.0, 4.0, 8.0, 16.0, 32.0], 10)
    )
    assert 0 < small.epsilon < by_renyi


@pytest.mark.parametrize(
    "mechanism", [DiscreteGaussian(scale=0.4, steps=5, bits=6), Skellam(scale=1.0, steps=3, bits=5)]
)
@pytest.mark.parametrize("honest", [1, 3])
def test_additive_noise_is_above_every_pair_and_attained(mechanism, honest):
    """Any inputs of the user and of the others, of the noise as it is sampled, the sum taken modulo 2**bits."""
    bound = coordinates_profile(mechanism, honest=honest, coordinates=1, distribution="sampled")
    rng = np.random.default_rng(2)
    epsilons = np.linspace(0.05, 4, 12)

    def pmf(inputs):
        out = np.fft.fft(np.eye(1, mechanism.levels)[0])
        for x in inputs:
            out = out * np.fft.fft(np.array(mechanism.sampled_pmf(x), dtype=float).ravel())
        return np.maximum(np.fft.ifft(out).real, 0)

    closest = 0.0
    for draw in range(60):
        x, y, *other_inputs = rng.uniform(-1, 1, honest + 1)
        x, y, other_inputs = (x, y, other_inputs) if draw else (-1.0, 1.0, [1.0] * (honest - 1))
        p, q = pmf([x, *other_inputs]), pmf([y, *other_inputs])
        for eps in epsilons:
            exact, delta = hockey_stick(p, q, eps), float(bound.delta(np.array([eps]))[0])
            assert exact <= delta + 1e-12
            closest = max(closest, exact / delta)
    assert closest > 0.999


def test_a_coordinate_with_additive_noise_is_accounted_for_by_its_losses():
    for mechanism in (Skellam(scale=0.32, steps=15, bits=8), Binomial(scale=0.33, steps=41, bits=10)):
        result = account(Release(mechanism, 1, 1.0), Participation(10), ThreatModel(), 1e-6)
        assert result.accountant == "pld"
        assert 9.5 < result.epsilon < 10.2


@settings(max_examples=40)
@given(
    st.builds(PBM, theta=st.floats(0.02, 0.49), levels=st.integers(3, 6)),
    st.lists(st.sampled_from([-1.0, 1.0, 0.3, 0.0]), max_size=4),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_a_coordinate_of_several_trials_is_above_every_pair(mechanism, others, x, y):
    bound = coordinates_profile(mechanism, honest=len(others) + 1, coordinates=1)
    base = np.ones(1)
    for input_ in others:
        base = np.convolve(base, mechanism.pmf(input_))
    p, q = (np.convolve(mechanism.pmf(v), base) for v in (x, y))
    for eps in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        assert hockey_stick(p, q, eps) <= bound.delta(np.array([eps]))[0] + 1e-12


@pytest.mark.parametrize(("theta", "honest"), [(0.25, 40), (0.45, 300), (0.4987, 10_000)])
def test_several_trials_are_bounded_together_near_what_is_attained(theta, honest):
    mechanism = PBM(theta=theta)
    certified = composed_epsilon(mechanism, honest=honest, coordinates=1, delta=1e-6, distribution="sampled")
    attained = attained_epsilon(mechanism, honest, 1, 1.0, 1e-6)
    assert attained <= certified <= 1.003 * attained
