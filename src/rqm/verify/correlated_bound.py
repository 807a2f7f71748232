"""Correlated noise: μ of one participation, and ε of a record in a fixed order of rounds.

A participation shifts the noise of the sums by one step along a random path of rounds.
docs/verify.md#lemma-6 has the proof and the symbols.
"""

from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from .gaussian_bound import SLACK, BestTests, best_tests, dominating_pmf, gaussian_epsilon, split_on_grid
from .integer_pmfs import TAIL, Array, end_pmfs, missing_from_sum, other_sums, transient_noise, unbounded_noise
from .ledger_claims import Claims
from .verification_report import Unverifiable

MIN_PROBABILITY = 1e-60
"""Less likely values of a ratio are left out."""


class Ratio(NamedTuple):
    """The likelihood ratio of shifted noise over noise, at multiples of a step.

    Attributes:
        step: The distance of two values.
        first: The smallest value, in steps.
        pmf: The probabilities of this and the following values under unshifted noise.
        unmatched: Probability, under shifted noise, of outcomes that unshifted noise does not have.
    """

    step: float
    first: int
    pmf: Array
    unmatched: float

    @property
    def values(self) -> Array:
        """The values."""
        return self.step * np.arange(float(self.first), self.first + len(self.pmf))

    def bit_sum_pmf(self, probability: float) -> Array:
        """The pmf of noise and a bit that is one with this probability; last, outcomes without noise."""
        return np.append(self.pmf * (1 + probability * (self.values - 1)), probability * self.unmatched)

    def scaled(self, factor: float, grid: tuple[float, float]) -> "Ratio":
        """The ratio times a factor, on another grid."""
        return _on_grid(factor * self.values, self.pmf, factor * self.unmatched, grid)

    def plus(self, other: "Ratio") -> "Ratio":
        """The sum of this ratio and an independent one on the same grid."""
        pmf = np.convolve(self.pmf, other.pmf)
        return Ratio(self.step, self.first + other.first, pmf, self.unmatched + other.unmatched)


@np.errstate(all="ignore")
def participation_mu(claims: Claims, honest: int, failure: float) -> float:
    """Bound μ of one participation of a user. See docs/verify.md#lemma-6.

    Args:
        claims: What a release is.
        honest: Honest clients in each round, the user included.
        failure: Probability of the outcomes that μ leaves out.

    Returns:
        μ, infinite if there is none.

    Raises:
        Unverifiable: If messages are not bits.
    """
    low, high, trials = end_pmfs(claims.mechanism)
    if len(low) != 2 or trials != 1 or claims.noise is None:
        raise Unverifiable("noise: this verifier has a bound for rounding to two levels only")
    if honest == 1:
        return inf
    transient, missing = transient_noise(claims.noise["transient_std"], honest)
    residual = None
    if claims.noise["residual_std"]:
        residual, missing_residual = transient_noise(claims.noise["residual_std"], honest)
        missing += missing_residual
    missing += missing_from_sum(honest, TAIL)
    bits_variance = float((honest - 1) * min(low[0] * low[1], high[0] * high[1]))
    bits = bits_ratio(low, high, honest - 1, bits_variance)
    path = path_ratio(bits, bits_variance, transient, claims.window, residual, claims.noise["gain"])
    tests = _bit_tests(path, (float(low[1]), float(high[1])), missing, failure / (2 * claims.sent))
    squared_mus = tests.squared_mus(claims.is_zero_out) * [claims.squared_distance, claims.sent]
    mu = sqrt(float(squared_mus.min()) * SLACK)
    if not mu > 0:
        raise Unverifiable(f"noise = {claims.noise}: no μ was computed")
    return mu


@np.errstate(all="ignore")
def fixed_order_epsilon(claims: Claims, honest: int, count: int) -> tuple[float, float]:
    """Bound ε of a record in a fixed order of rounds, with transient noise. See docs/verify.md#lemma-7.

    Args:
        claims: What a release is.
        honest: Honest silos in a round and in the next, the record's own included.
        count: Rounds that the record is in.

    Returns:
        ε and μ; both infinite if there is no bound.
    """
    assert claims.noise is not None
    residual, missing_residual = unbounded_noise(claims.mechanism, honest)
    transient, missing_transient = transient_noise(claims.noise["transient_std"], honest)
    variance = pmf_variance(residual)
    path = path_ratio(shift_ratio(residual, variance), variance, transient, claims.window)
    tail = 1e-28  # of a coordinate, on either side
    tests = _bit_tests(path, (0, 1), missing_residual + missing_transient, tail)
    slope = 2 * tests.steepest * SLACK
    distance = claims.distance_anywhere * claims.mechanism["steps"] / 2
    mu = sqrt(count) * slope * distance
    # What the tails of all coordinates cost, on every segment along which none changes by more than a step.
    tails = count * claims.sent * (4 * tail + ndtr(ndtri(2 * tail) + slope))
    failure = float(max(1, ceil(distance)) * ndtr(ndtri(min(tails, 0.5)) + mu))
    if not failure < 0.02 * claims.delta:
        return inf, inf
    return gaussian_epsilon(mu, claims.delta - failure)[0], mu


def _bit_tests(path: tuple[Ratio, int], probabilities: tuple[float, float], missing: float, tail: float) -> BestTests:
    """The tests of noise and a bit with either probability, by the ratio of a path and its number of rounds."""
    ratio, rounds = path
    missing = rounds * (missing + 1e-53)  # more than the probability of all values that are left out
    low, high = (ratio.bit_sum_pmf(probability) for probability in probabilities)
    return best_tests(low, high, tail - missing, missing)


# -- the ratio of one noise -----------------------------------------------------------------------


def pmf_variance(pmf: Array) -> float:
    """Return the variance of a pmf on integers."""
    outcomes = np.arange(len(pmf))
    return float(pmf @ (outcomes - pmf @ outcomes) ** 2)


def _grid_of(std: float, density: int = 10) -> tuple[float, float]:
    """The step of a grid and its largest value, for a ratio with this standard deviation."""
    std = min(std, 0.5)
    return std / density, 1 + 80 * std  # a larger ratio is split into the largest and a remainder


def _on_grid(values: Array, pmf: Array, unmatched: float, grid: tuple[float, float]) -> Ratio:
    """Split values between their neighbors on a grid, with means preserved: a larger ratio in convex order."""
    step, largest = grid
    is_likely = pmf > MIN_PROBABILITY
    values = values[is_likely]
    pmf = pmf[is_likely]
    unmatched += float(pmf @ np.maximum(values - largest, 0))
    position = np.minimum(values, largest) / step
    first = int(position.min())
    size = int(position.max()) - first + 2
    return Ratio(step, first, split_on_grid(position - first, pmf, size), unmatched)


def shift_ratio(noise: Array, variance: float) -> Ratio:
    """Return the ratio of noise plus one over noise.

    Args:
        noise: The pmf of the noise.
        variance: Its variance, or less: decides how fine the grid is.

    Returns:
        The ratio.

    Raises:
        Unverifiable: If the variance is zero.
    """
    if not variance > 0:
        raise Unverifiable("noise: there is none")
    noise = noise[noise > MIN_PROBABILITY]
    values = np.append(0.0, noise[:-1]) / noise
    return _on_grid(values, noise, float(noise[-1]), _grid_of(1 / sqrt(variance)))


def bits_ratio(low: Array, high: Array, number: int, variance: float) -> Ratio:
    """Return a ratio that dominates that of a sum of bits and the sum plus one, for all inputs.

    Its curves E(q − ρ)₊ and E(ρ − q)₊ are the largest of all inputs, and straight between grid points.
    See docs/verify.md#lemma-6.

    Args:
        low: The pmf of a bit at −c.
        high: The pmf of a bit at c.
        number: How many clients' bits are summed.
        variance: The smallest variance of the sum.

    Returns:
        The ratio.
    """
    step, largest = _grid_of(1 / sqrt(variance))
    size = ceil(largest / step) + 2
    pmfs = []
    for bits in other_sums(low, high, number):
        ratio = shift_ratio(bits, variance)
        pmf = np.pad(ratio.pmf, (ratio.first, size - ratio.first - len(ratio.pmf)))
        pmfs.append((pmf, ratio.unmatched / step))
    pmf, beyond = dominating_pmf(pmfs, round(1 / step))
    return Ratio(step, 0, pmf, beyond * step)


def transient_ratios(noise: Array, gain: int) -> tuple[list[tuple[float, float, float]], float, float]:
    """Return the joint pmf of both ratios of F, on few points.

    Outcomes in cells are split between the corners of a box, with both means preserved. As the first ratio
    increases, the second decreases. So at most three of the corners are used. See docs/verify.md#lemma-6.

    Args:
        noise: The pmf of F.
        gain: m, the gain of the noise; 1 without residual noise, where the second ratio is 1.

    Returns:
        The points: the ratio of F + 1, the ratio of F − (m − 1), and their probability. Then the probabilities
        that F + 1 is no outcome of F, and that F − (m − 1) is none.
    """
    width = max(1, round(0.5 * sqrt(pmf_variance(noise))))  # a tenth less changes μ by less than 0.1 %
    noise = noise[noise > MIN_PROBABILITY]
    ratio_one = np.append(0.0, noise[:-1]) / noise
    ratio_back = np.append(noise[gain - 1 :], np.zeros(min(gain - 1, len(noise)))) / noise
    points = []
    for start in range(0, len(noise), width):
        cell = slice(start, start + width)
        (low_one, high_one, u), (low_back, high_back, v) = (_between(ratio[cell]) for ratio in (ratio_one, ratio_back))
        beyond = np.maximum(u + v - 1, 0)  # positive where values lie beyond the diagonal of the box
        corners = (
            (high_one, low_back, u - beyond),
            (low_one, high_back, v - beyond),
            (low_one, low_back, np.maximum(1 - u - v, 0)),
            (high_one, high_back, beyond),
        )
        points += [(x, y, float(noise[cell] @ weight)) for x, y, weight in corners]
    return [point for point in points if point[2] > 0], float(noise[-1]), float(noise[: gain - 1].sum())


def _between(values: Array) -> tuple[float, float, Array]:
    """The smallest and the largest value, and how far each value lies between them, from 0 to 1."""
    low, high = float(values.min()), float(values.max())
    return low, high, (values - low) / (high - low or 1)


# -- the ratio of a path --------------------------------------------------------------------------


def path_weights(
    residual: float, transient: float, gain: int, last: float, window: int
) -> list[tuple[float, float, float]]:
    """Return e, c and μ² of each round of the path that is best if all noise is Gaussian, the last round first.

    Args:
        residual: Variance of E, 0 if there is none.
        transient: Variance of F.
        gain: m.
        last: Variance of the other noise that a path may end in.
        window: The largest number of rounds.

    Returns:
        The weights; one more round would reduce μ² by less than 0.01 %.
    """
    weights: list[tuple[float, float, float]] = []
    following = 0.0  # μ² of the round after
    by_transient = np.array([1.0 - gain, 0, 1])  # shifts of F by e, c and the rest
    while len(weights) < window:
        quadratic = (
            np.diag([1 / (residual or 1.0), 1 / last, following]) + np.outer(by_transient, by_transient) / transient
        )
        used = np.flatnonzero([residual > 0, True, bool(weights)])
        solution = np.zeros(3)  # never negative: no element beside the diagonal is positive
        solution[used] = np.linalg.solve(quadratic[np.ix_(used, used)], np.ones(len(used)))
        squared_mu = 1 / float(solution.sum())
        if weights and squared_mu > (1 - 1e-4) * following:
            break
        following = squared_mu
        e, c, _ = (solution * squared_mu).tolist()
        weights.append((e, c, squared_mu))
    return weights


def path_ratio(
    by_last: Ratio, last: float, transient: Array, window: int, residual: Array | None = None, gain: int = 1
) -> tuple[Ratio, int]:
    """Return Y = e ρ_E ρ_back + c ρ_B + (1 − e − c) ρ_one Y′, from the last round back.

    See docs/verify.md#lemma-6.

    Args:
        by_last: ρ_B, the ratio of the other noise that a path may end in.
        last: Variance of that noise, for the choice of e and c.
        transient: The pmf of F.
        window: The largest number of rounds.
        residual: The pmf of E; None: there is none, and e = 0.
        gain: m.

    Returns:
        Y, and the number of rounds.

    Raises:
        Unverifiable: If the probabilities do not add up to 1.
    """
    points, unmatched_one, unmatched_back = transient_ratios(transient, gain)
    by_residual = Ratio(1.0, 1, np.ones(1), 0.0)
    residual_variance = 0.0
    if residual is not None:
        residual_variance = pmf_variance(residual)
        by_residual = shift_ratio(residual, residual_variance)
    weights = path_weights(residual_variance, pmf_variance(transient), gain, last, window)
    y = Ratio(1.0, 1, np.ones(1), 0.0)
    for e, c, squared_mu in weights:
        grid = _grid_of(sqrt(squared_mu), 36)
        onward = max(0.0, 1 - e - c)
        unmatched = onward * unmatched_one + e * unmatched_back
        mixture = np.zeros(2 * ceil(grid[1] / grid[0]) + 4)
        for ratio_one, ratio_back, probability in points:
            term = y.scaled(onward * ratio_one, grid)
            if e:
                term = term.plus(by_residual.scaled(e * ratio_back, grid))
            mixture[term.first : term.first + len(term.pmf)] += probability * term.pmf
            unmatched += probability * term.unmatched
        y = Ratio(grid[0], 0, mixture, unmatched).scaled(1, grid).plus(by_last.scaled(c, grid)).scaled(1, grid)
    totals = float(y.pmf.sum()), float(y.pmf @ y.values) + y.unmatched
    if not all(abs(total - 1) < 1e-6 for total in totals):
        raise Unverifiable(f"noise: probabilities of a path add up to {totals}, not to 1")
    return y, len(weights)
