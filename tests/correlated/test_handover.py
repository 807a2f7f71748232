"""Likelihood ratios of paths: against whole small runs that are enumerated, and against Gaussians."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import CorrelatedNoise
from rqm.correlated.certificate import one_shift
from rqm.correlated.handover import (
    best_step,
    gaussian_squared_mu,
    path_ratio,
    pmf_variance,
    ratio_above,
    shift_ratios,
)
from tests.correlated.enumeration import best_path, curve, path_cost, shifted_pair

# -- probabilities of a path ----------------------------------------------------------------------


def rounding_path(rounds, transient, rounding):
    """The probabilities that a path without residual noise ends after 0, 1, … rounds."""
    steps, later = [], np.inf
    for _ in range(rounds):
        steps.insert(0, best_step(0.0, transient, 1, rounding, later))
        later = steps[0].squared_mu
    reached = np.cumprod([1.0, *[step.onward for step in steps[:-1]]])
    return reached * [step.rounding for step in steps]


@settings(max_examples=25)
@given(st.integers(1, 40), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_the_path_is_the_best_for_gaussians(rounds, transient, rounding):
    path = rounding_path(rounds, transient, rounding)
    assert path.sum() == pytest.approx(1)
    assert (path >= 0).all()
    assert path == pytest.approx(best_path(transient, rounding, rounds), abs=1e-6)
    best = path_cost(path, transient, rounding)
    assert best == pytest.approx(gaussian_squared_mu(rounds, 0.0, transient, 1, rounding))
    rng = np.random.default_rng(0)
    for _ in range(20):
        alternative = np.abs(path + 0.01 * rng.normal(size=rounds))
        assert path_cost(alternative / alternative.sum(), transient, rounding) >= best * (1 - 1e-9)


@settings(max_examples=50)
@given(
    st.floats(0.1, 1e3),
    st.floats(0.1, 1e4),
    st.integers(2, 50),
    st.one_of(st.just(0.0), st.floats(0.1, 1e4)),
    st.one_of(st.just(np.inf), st.floats(1e-4, 10)),
)
def test_a_step_is_the_best_for_gaussians(residual, transient, gain, rounding, later):
    """Against the same quadratic form at random steps; the probabilities of each add up to 1."""
    best = best_step(residual, transient, gain, rounding, later)
    assert best.residual + best.rounding + best.onward == pytest.approx(1)
    assert min(best[:3]) >= 0
    rng = np.random.default_rng(0)
    for alternative in rng.dirichlet(np.ones(3), 50) * [1, bool(rounding), later < np.inf]:
        e, c, onward = alternative / alternative.sum()
        squared = e**2 / residual + (1 - c - gain * e) ** 2 / transient
        squared += (c**2 / rounding if rounding else 0) + (later * onward**2 if onward else 0)
        assert squared >= best.squared_mu * (1 - 1e-9)


def test_gaussian_values_are_exact_for_a_single_participation():
    """Of T rounds with covariance σ_B² + σ_A² (A_t − A_{t−1}), by its inverse."""
    rounds, transient, rounding = 12, 30.0, 2.0
    canceled = np.eye(rounds) - np.eye(rounds, k=-1)
    covariance = rounding * np.eye(rounds) + transient * canceled @ canceled.T
    exact = np.linalg.inv(covariance)[0, 0]
    squared_mu = gaussian_squared_mu(rounds, 0.0, transient, 1, rounding)
    assert exact <= squared_mu <= 1.02 * exact  # noise of the last round is never canceled


# -- likelihood ratios ----------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.floats(0.0, 5.0),
)
def test_a_ratio_of_several_pmfs_reveals_no_less_than_each(first, second, q):
    pmfs = [np.array(masses) / sum(masses) for masses in (first, second)]
    ratio = ratio_above(pmfs, 4.0)
    ours = ratio.singular + float(ratio.probabilities @ np.maximum(ratio.values - q, 0))
    assert float(ratio.probabilities.sum()) == pytest.approx(1, abs=1e-9)
    assert float(ratio.probabilities @ ratio.values) + ratio.singular == pytest.approx(1, abs=1e-9)
    for pmf in pmfs:
        assert ours >= curve(*shifted_pair(pmf), q) - 1e-12


def test_the_ratio_of_a_path_without_residual_noise_has_all_its_mass():
    rounding, transient = binomial(9, 0.4), CorrelatedNoise(3.0).transient.summed(10)[0]
    variances = 0.0, pmf_variance(transient), pmf_variance(rounding)
    ratios = one_shift(ratio_above([transient], variances[1]))
    ratio = path_ratio(ratios, None, ratio_above([rounding], variances[2]), variances, 1, 6)
    assert ratio.probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert ratio.probabilities @ ratio.values + ratio.singular == pytest.approx(1, abs=1e-9)


# -- whole runs with residual noise ---------------------------------------------------------------


def random_pmf(rng, width):
    """A log-concave pmf of 2 · width + 1 outcomes, other than a Gaussian."""
    z = np.arange(-width, width + 1)
    pmf = np.exp(-(z**2) / (2 * rng.uniform(0.6, 1.2) * width) - rng.uniform(0, 0.02) * z**4 / width**2)
    return pmf / pmf.sum()


NO_OTHERS = np.ones(1)
"""The pmf of the rounding of no other clients."""


def enumerated_views(residual, transient, gain, rounding, user):
    """The pmf of all sums that a server sees, for a user's rounded coordinate in each round, as a dictionary."""
    views = {}
    wide, narrow = len(transient) // 2, len(residual) // 2
    draws = [
        (e - narrow, f - wide, r, p * q * c)
        for (e, p), (f, q), (r, c) in product(enumerate(residual), enumerate(transient), enumerate(rounding))
    ]
    for rounds in product(draws, repeat=len(user)):
        canceled, probability, view = 0, 1.0, []
        for bit, (e, f, r, draw_probability) in zip(user, rounds, strict=True):
            view.append(gain * e + f + r - canceled + bit)
            canceled, probability = (gain - 1) * e + f, probability * draw_probability
        views[tuple(view)] = views.get(tuple(view), 0.0) + probability
    return views


def exact_curve(residual, transient, gain, rounding, user, points):
    """sup W(E) − q N(E) for the pmfs of what is seen with this user and with a user of zeros."""
    pmfs = [enumerated_views(residual, transient, gain, rounding, bit) for bit in (tuple(0 for _ in user), user)]
    views = sorted(set(pmfs[0]) | set(pmfs[1]))
    noise, shifted = (np.array([pmf.get(view, 0.0) for view in views]) for pmf in pmfs)
    return np.array([curve(noise, shifted, q) for q in points])


def certified_ratio(residual, transient, gain, rounds, rounding=NO_OTHERS):
    """The certified likelihood ratio of a shift by one step."""
    variances = pmf_variance(residual), pmf_variance(transient), pmf_variance(rounding)
    ratio = path_ratio(
        shift_ratios(transient, gain),
        ratio_above([residual], variances[0], 8),
        ratio_above([rounding], variances[2]),
        variances,
        gain,
        rounds,
    )
    assert ratio.probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert ratio.probabilities @ ratio.values + ratio.singular == pytest.approx(1, abs=1e-9)
    return ratio


def certified_curve(residual, transient, gain, rounds, points, rounding=NO_OTHERS):
    """sup W(E) − q N(E) by the certificate."""
    ratio = certified_ratio(residual, transient, gain, rounds, rounding)
    return np.array([np.maximum(ratio.values - q, 0) @ ratio.probabilities + ratio.singular for q in points])


POINTS = np.concatenate([[0.0], np.geomspace(0.05, 20, 60), np.linspace(0.9, 1.1, 9)])


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("others", [0, 2])
def test_no_run_reveals_more_than_the_certificate(rounds, others):
    rng, nearest = np.random.default_rng(rounds), 0.0
    for _ in range(12 if rounds < 3 else 2):
        gain = int(rng.integers(2, 4))
        residual = random_pmf(rng, int(rng.integers(1, 3)))
        transient = random_pmf(rng, int(rng.integers(4, 7 if rounds < 3 else 5)))
        rounding = binomial(others, rng.uniform(0.3, 0.7))
        if rounds == 3 and others:
            residual, transient, gain = random_pmf(rng, 1), random_pmf(rng, 4), 2
        user = (1,) + (0,) * (rounds - 1)
        exact = exact_curve(residual, transient, gain, rounding, user, POINTS)
        bound = certified_curve(residual, transient, gain, rounds, POINTS, rounding)
        assert (exact <= bound + 1e-9).all()
        nearest = max(nearest, float((exact[20:40] / bound[20:40]).max()))
    assert nearest > 0.5


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_without_residual_noise_reveals_more_than_the_certificate(rounds):
    rng, nearest = np.random.default_rng(rounds), 0.0
    for _ in range(8):
        transient, rounding = random_pmf(rng, int(rng.integers(1, 4))), binomial(3, rng.uniform(0.2, 0.8))
        variances = 0.0, pmf_variance(transient), pmf_variance(rounding)
        ratios = one_shift(ratio_above([transient], variances[1]))
        ratio = path_ratio(ratios, None, ratio_above([rounding], variances[2]), variances, 1, rounds)
        bound = np.array([np.maximum(ratio.values - q, 0) @ ratio.probabilities + ratio.singular for q in POINTS])
        exact = exact_curve(np.ones(1), transient, 1, rounding, (1,) + (0,) * (rounds - 1), POINTS)
        assert (exact <= bound + 1e-9).all()
        nearest = max(nearest, float((exact[20:40] / bound[20:40]).max()))
    assert nearest > 0.8


def binomial(count, probability):
    """The pmf of a binomial distribution."""
    pmf = NO_OTHERS
    for _ in range(count):
        pmf = np.convolve(pmf, [1 - probability, probability])
    return pmf


@pytest.mark.slow
def test_participations_sooner_than_the_separation_reveal_more_than_two():
    """Rounds 0 and 2 with paths of less than two rounds each; in rounds 0 and 1 they would share the noise."""
    residual, transient, rounding = gaussian_pmf(2.0, 5), gaussian_pmf(7.0, 20), binomial(2, 0.5)
    ratio = certified_ratio(residual, transient, 3, 2, rounding)
    values, probabilities = (np.multiply.outer(row, row).ravel() for row in (ratio.values, ratio.probabilities))
    singular = 1 - (1 - ratio.singular) ** 2
    bound = np.array([np.maximum(values - q, 0) @ probabilities + singular for q in POINTS])
    views = [view_pmf(residual, transient, 3, rounding, user) for user in ((0, 0, 0), (1, 0, 1), (1, 1, 0))]
    separated, sooner = (np.array([curve(views[0], shifted, q) for q in POINTS]) for shifted in views[1:])
    assert (separated <= bound + 1e-9).all()
    assert (sooner > 1.02 * separated)[(POINTS > 0.8) & (POINTS < 1.5)].all()


def gaussian_pmf(deviation, largest):
    """A Gaussian at −largest, …, largest."""
    z = np.arange(-largest, largest + 1)
    pmf = np.exp(-(z**2) / (2 * deviation**2))
    return pmf / pmf.sum()


def view_pmf(residual, transient, gain, rounding, user, *, remaining=1, reveals_last=False):
    """The pmf of `enumerated_views` as an array, for pmfs that are too wide for it, from the last round back.

    With one more round in front, what it cancels shifts the next sum. All but `remaining` of E is canceled.
    `reveals_last` also shows what the last round would have canceled.
    """
    narrow, wide = len(residual) // 2, len(transient) // 2
    largest, largest_canceled = gain * narrow + wide, (gain - remaining) * narrow + wide
    later = np.ones(1) if reveals_last else np.ones(())
    for bit in reversed(user):
        size = later.shape[0] + 2 * largest_canceled if later.ndim else 1
        joint = np.zeros((2 * largest + 1, size, *later.shape[1:]))
        for (e, p), (f, q) in product(enumerate(residual), enumerate(transient)):
            added, canceled = gain * (e - narrow) + f - wide, (gain - remaining) * (e - narrow) + f - wide
            start = largest_canceled - canceled
            joint[largest + added, slice(start, start + later.shape[0]) if later.ndim else 0] += p * q * later
        later = np.zeros((2 * largest + 1 + len(rounding), *joint.shape[1:]))
        for r, probability in enumerate(rounding):
            later[r + bit : r + bit + 2 * largest + 1] += probability * joint
    return later.ravel()


def two_round_curve(residual, transient, gain, **options):
    """The exact curve of a single client's two rounds, with what the second one would have canceled."""
    views = [view_pmf(residual, transient, gain, NO_OTHERS, (bit, 0), reveals_last=True, **options) for bit in (0, 1)]
    return np.array([curve(*views, q) for q in POINTS])


@pytest.mark.slow
def test_two_rounds_of_wide_noise_are_near_the_certificate_and_a_broken_scheme_exceeds_it():
    residual, transient = gaussian_pmf(2.0, 8), gaussian_pmf(8.0, 32)
    exact, bound = two_round_curve(residual, transient, 4), certified_curve(residual, transient, 4, 2, POINTS)
    is_near_one = (POINTS > 0.94) & (POINTS < 1.01)
    assert (exact <= bound + 1e-9).all()
    assert (exact[is_near_one] > 0.9 * bound[is_near_one]).all()
    narrower = two_round_curve(gaussian_pmf(1.75, 8), gaussian_pmf(7.0, 32), 4)  # an eighth less noise
    assert (narrower[is_near_one] > bound[is_near_one]).all()
    all_canceled = two_round_curve(residual, transient, 4, remaining=0)  # there is no residual noise
    assert (all_canceled[is_near_one] > 5 * bound[is_near_one]).all()


@pytest.mark.parametrize(("clients", "noise"), [(100, (64.0, 2.0, 16)), (1000, (27.0, 1.0, 50))])
def test_where_noise_is_wide_it_is_the_gaussian_value(clients, noise):
    drawn, rounding = CorrelatedNoise(*noise), binomial(clients - 1, 0.5)
    (transient, _), (residual, _) = drawn.transient.summed(clients), drawn.residual.summed(clients)
    ratio = certified_ratio(residual, transient, drawn.gain, 34, rounding)
    exact = gaussian_squared_mu(34, clients * noise[1] ** 2, clients * noise[0] ** 2, noise[2], (clients - 1) / 4)
    assert exact <= ratio.variance <= 1.03 * exact


@pytest.mark.parametrize(
    ("noise", "clients", "rounds"),
    [
        ((4.0, 1.0, 144), 3, 3),  # a gain far beyond the sum of transient noise
        ((2.0, 1.0, 100), 100, 5),
        ((0.5, 1.0, 300), 1000, 5),
        ((30.0, 2.0, 1024), 100, 3),
        ((8.0, 1.0, 30), 10, 5),  # ratios far above all points
        ((40.0, 2.0, 50), 2, 5),  # tails of the table, where ratios are not convex
        ((40.0, 2.0, 50), 1, 2),
        ((10.0, 1.0, 5), 100_000, 5),  # ratios that are almost linear
        ((100.0, 1.0, 2), 1000, 5),
    ],
)
def test_odd_parameters_have_a_bound_too(noise, clients, rounds):
    drawn = CorrelatedNoise(*noise)
    (transient, _), (residual, _) = drawn.transient.summed(clients), drawn.residual.summed(clients)
    ratio = certified_ratio(residual, transient, drawn.gain, rounds, binomial(min(clients, 200) - 1, 0.5))
    assert ratio.probabilities.min() >= 0
    assert ratio.singular >= 0
    shifts = shift_ratios(transient, drawn.gain)
    for values, singular in ((shifts.up, shifts.singular_up), (shifts.down, shifts.singular_down)):
        assert values.min() >= 0
        assert values @ shifts.probabilities + singular == pytest.approx(1, abs=1e-9)
