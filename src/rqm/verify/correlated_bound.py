"""Correlated noise: μ of one participation, and ε of a record in a fixed order of rounds.

A participation shifts the noise of the sums by one step along a random path of rounds.
docs/verify.md#lemma-6 has the proof and the symbols.
"""

from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtr, ndtri

from .gaussian_bound import SLACK, best_tests, dominating_pmf, gaussian_epsilon, split_on_grid
from .integer_pmfs import TAIL, Array, end_pmfs, missing_from_sum, other_sums, transient_noise, unbounded_noise
from .ledger_claims import Claims
from .verification_report import Unverifiable

MIN_PROBABILITY, IGNORED = 1e-60, 1e-53
"""Less likely values of a ratio are left out; more than the probability of all that a round leaves out."""
SHIFT_DENSITY = 10
"""Grid points in one standard deviation of the ratio of a shift of one noise."""
RECORD_TAIL = 1e-28
"""Probability of either tail of a record's coordinate."""


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


class TransientRatios(NamedTuple):
    """The joint pmf, on few points, of two likelihood ratios of transient noise F.

    Attributes:
        points: The ratio of F + 1, the ratio of F − (m − 1), and their probability.
        unmatched_one: Probability that F + 1 is no outcome of F.
        unmatched_back: Probability that F − (m − 1) is no outcome of F.
    """

    points: list[tuple[float, float, float]]
    unmatched_one: float
    unmatched_back: float


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
    gain = claims.noise["gain"]
    transient, missing = transient_noise(claims.noise["transient_std"], honest)
    residual = None
    if claims.noise["residual_std"]:
        residual, missing_residual = transient_noise(claims.noise["residual_std"], honest)
        missing += missing_residual
    bits_variance = float((honest - 1) * min(low[0] * low[1], high[0] * high[1]))
    missing += missing_from_sum(honest, TAIL)
    with np.errstate(all="ignore"):
        bits = bits_ratio(low, high, honest - 1, bits_variance)
        ratio, rounds = path_ratio(bits, bits_variance, transient, claims.window, residual, gain)
        bit_low, bit_high = (ratio.bit_sum_pmf(float(end[1])) for end in (low, high))
        ignored = rounds * (missing + IGNORED)
        tests = best_tests(bit_low, bit_high, failure / (2 * claims.sent) - ignored, ignored)
        if tests is None:
            return inf
        squared_mus = tests.squared_mus(claims.is_zero_out) * [claims.squared_distance, claims.sent]
    mu = sqrt(float(squared_mus.min()) * SLACK)
    if not mu > 0:
        raise Unverifiable(f"noise = {claims.noise}: no μ was computed")
    return mu


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
    distance = claims.distance_anywhere * claims.mechanism["steps"] / 2
    with np.errstate(all="ignore"):
        by_residual = shift_ratio(residual, pmf_variance(residual))
        ratio, rounds = path_ratio(by_residual, pmf_variance(residual), transient, claims.window)
        missing = rounds * (missing_residual + missing_transient + IGNORED)
        tests = best_tests(ratio.bit_sum_pmf(0), ratio.bit_sum_pmf(1), RECORD_TAIL - missing, missing)
        if tests is None:
            return inf, inf
        slope = 2 * tests.steepest * SLACK
        mu = sqrt(count) * slope * distance
        # What the tails of all coordinates cost, on every segment along which none changes by more than a step.
        tails = count * claims.sent * (4 * RECORD_TAIL + ndtr(ndtri(2 * RECORD_TAIL) + slope))
        failure = float(max(1, ceil(distance)) * ndtr(ndtri(min(tails, 0.5)) + mu))
    if not failure < 0.02 * claims.delta:
        return inf, inf
    return gaussian_epsilon(mu, claims.delta - failure)[0], mu


# -- the ratio of one noise -----------------------------------------------------------------------


def pmf_variance(pmf: Array) -> float:
    """Return the variance of a pmf on integers."""
    outcomes = np.arange(len(pmf))
    return float(pmf @ (outcomes - pmf @ outcomes) ** 2)


def _grid_step(std: float, density: int) -> tuple[float, float]:
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
    return _on_grid(values, noise, float(noise[-1]), _grid_step(1 / sqrt(variance), SHIFT_DENSITY))


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
    step, largest = _grid_step(1 / sqrt(variance), SHIFT_DENSITY)
    size = ceil(largest / step) + 2
    pmfs = []
    for bits in other_sums(low, high, number):
        ratio = shift_ratio(bits, variance)
        pmf = np.pad(ratio.pmf, (ratio.first, size - ratio.first - len(ratio.pmf)))
        pmfs.append((pmf, ratio.unmatched / step))
    pmf, beyond = dominating_pmf(pmfs, round(1 / step))
    return Ratio(step, 0, pmf, beyond * step)


def transient_ratios(noise: Array, gain: int) -> TransientRatios:
    """Return both ratios of F. Outcomes in cells are split between the corners of a box, with both means preserved.

    As the first ratio increases, the second decreases. So at most three of the corners are used.
    See docs/verify.md#lemma-6.

    Args:
        noise: The pmf of F.
        gain: m, the gain of the noise; 1 without residual noise, where the second ratio is 1.

    Returns:
        The ratios.
    """
    width = max(1, round(0.5 * sqrt(pmf_variance(noise))))  # a tenth less changes μ by less than 0.1 %
    noise = noise[noise > MIN_PROBABILITY]
    ratio_one = np.append(0.0, noise[:-1]) / noise
    ratio_back = np.append(noise[gain - 1 :], np.zeros(min(gain - 1, len(noise)))) / noise
    points = []
    for start in range(0, len(noise), width):
        cell = slice(start, start + width + 1)  # with the start of the next one
        low_one, low_back = ratio_one[cell].min(), ratio_back[cell].min()
        high_one, high_back = ratio_one[cell].max(), ratio_back[cell].max()
        cell = slice(start, start + width)
        u = (ratio_one[cell] - low_one) / (high_one - low_one or 1)
        v = (ratio_back[cell] - low_back) / (high_back - low_back or 1)
        beyond = 1 - u - v  # negative where values lie beyond the diagonal of the box
        corners = (
            (high_one, low_back, u + np.minimum(beyond, 0)),
            (low_one, high_back, v + np.minimum(beyond, 0)),
            (low_one, low_back, np.maximum(beyond, 0)),
            (high_one, high_back, np.maximum(u + v - 1, 0)),
        )
        points += [(float(x), float(y), float(noise[cell] @ weight)) for x, y, weight in corners]
    return TransientRatios(
        [point for point in points if point[2] > 0], float(noise[-1]), float(noise[: gain - 1].sum())
    )


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
    inverse_std = 1 / np.sqrt([residual or 1.0, transient, last])
    while len(weights) < window:
        shifts = np.array(  # of each noise in standard deviations, by e, c and the rest
            [
                [inverse_std[0], 0, 0],
                [(1 - gain) * inverse_std[1], 0, inverse_std[1]],
                [0, inverse_std[2], 0],
                [0, 0, sqrt(following)],
            ]
        )
        is_possible = [residual > 0, True, bool(weights)]
        total = 1e3 * inverse_std.max()  # weight of the condition that the three add up to 1
        solution, _ = nnls(np.vstack([shifts, [total] * 3]) * is_possible, [0, 0, 0, 0, total])
        solution /= solution.sum()
        squared_mu = float(((shifts @ solution) ** 2).sum())
        if weights and squared_mu > (1 - 1e-4) * following:
            break
        following = squared_mu
        weights.append((float(solution[0]), float(solution[1]), squared_mu))
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
    by_transient = transient_ratios(transient, gain)
    by_residual = None if residual is None else shift_ratio(residual, pmf_variance(residual))
    residual_variance = 0.0 if residual is None else pmf_variance(residual)
    weights = path_weights(residual_variance, pmf_variance(transient), gain, last, window)
    y = Ratio(1.0, 1, np.ones(1), 0.0)
    for e, c, squared_mu in weights:
        grid = _grid_step(sqrt(squared_mu), 36)
        onward = max(0.0, 1 - e - c)
        unmatched = onward * _either(y.unmatched, by_transient.unmatched_one)
        mixture = np.zeros(2 * ceil(grid[1] / grid[0]) + 4)
        for ratio_one, ratio_back, probability in by_transient.points:
            term = _on_grid(onward * ratio_one * y.values, y.pmf, 0.0, grid)
            if by_residual is not None:
                term = _sum(term, _on_grid(e * ratio_back * by_residual.values, by_residual.pmf, 0.0, grid))
            mixture[term.first : term.first + len(term.pmf)] += probability * term.pmf
            unmatched += probability * term.unmatched
        if by_residual is not None:
            unmatched += e * _either(by_residual.unmatched, by_transient.unmatched_back)
        passed_on = _on_grid(grid[0] * np.arange(float(len(mixture))), mixture, unmatched, grid)
        y = _sum(passed_on, _on_grid(c * by_last.values, by_last.pmf, c * by_last.unmatched, grid))
        y = _on_grid(y.values, y.pmf, y.unmatched, grid)
    totals = float(y.pmf.sum()), float(y.pmf @ y.values) + y.unmatched
    if not all(abs(total - 1) < 1e-6 for total in totals):
        raise Unverifiable(f"noise: probabilities of a path add up to {totals}, not to 1")
    return y, len(weights)


def _sum(first: Ratio, second: Ratio) -> Ratio:
    """The sum of two independent ratios, each times a weight, on the same grid."""
    pmf = np.convolve(first.pmf, second.pmf)
    return Ratio(first.step, first.first + second.first, pmf, first.unmatched + second.unmatched)


def _either(first: float, second: float) -> float:
    """The probability of at least one of two independent events."""
    return first + second - first * second
