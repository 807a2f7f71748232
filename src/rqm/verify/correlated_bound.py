"""Correlated noise: μ of one participation, and ε of a record in a fixed order.

A participation shifts the noise of the sums by one step along a random path of rounds. Y is the
likelihood ratio of shifted noise over noise. Its pmf is discretized from the last round of the path
back. docs/verify.md has the proof and the symbols.
"""

from collections.abc import Iterator
from math import asinh, ceil, exp, floor, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from .gaussian_bound import SLACK, best_tests, coordinate_bound, gaussian_epsilon
from .integer_pmfs import (
    TAIL,
    Array,
    end_pmfs,
    missing_from_sum,
    other_sums,
    transient_noise,
    unbounded_noise,
)
from .ledger_claims import Claims
from .report import Unverifiable

PATH_DENSITY, NOISE_DENSITY = 28, 10
"""Grid points in one standard deviation of a ratio: of a path, and of one round's noise."""
STDS_BELOW, STDS_ABOVE = 13, 17
"""Standard deviations below and above 1 in which the grid is even."""
IGNORED = 1e-60
"""Probabilities below this are left out."""
GRID_EXTENT = 1e4
"""How far the grid goes beyond its even part, in units of that."""
LONGEST_DELAY = 4.0
"""A shift of transient noise for more than this many times σ_A/σ_B rounds changes nothing."""
FEW_CLIENTS = 200
"""Honest clients up to which their rounding may be far from Gaussian, and longer paths may be better."""
MAX_PATH = 1000
"""Rounds of a record's path, at most."""

RESIDUAL_DENSITY, RESIDUAL_EXTENT = 36, 80
"""With residual noise: grid points in a standard deviation of Y, and standard deviations above 1."""
CELL_WIDTH, CELL_RANGE = 0.5, 10.0
"""Width of the cells of F's outcomes, and how far from the middle they go, in standard deviations."""
NEGLIGIBLE = 1e-32
"""With residual noise: probabilities below this are not carried on."""
RESIDUAL_PATH = 4
"""With residual noise a path has at most this many times m rounds."""

RECORD_TAILS = (1e-22, 1e-25, 1e-28)
"""What either end of a record's coordinate may lose: the first that is small enough is taken."""
RECORD_TAIL_PART = 0.02
"""The part of δ that all of these ends may cost."""
MASS_ERROR = 1e-6
"""Beyond this error of its total, a pmf is not trusted."""


class Ratio(NamedTuple):
    """The likelihood ratio of shifted noise over noise.

    Attributes:
        values: Its values.
        pmf: Their probabilities under unshifted noise.
        unmatched: Probability, under shifted noise, of outcomes that unshifted noise does not have.
    """

    values: Array
    pmf: Array
    unmatched: float

    @property
    def std(self) -> float:
        """The standard deviation."""
        return sqrt(float(self.pmf @ (self.values - self.pmf @ self.values) ** 2))

    def capped(self, largest: float) -> "Ratio":
        """Larger values count as the largest; the rest of them is shown by shifted noise alone."""
        excess = float(self.pmf @ np.maximum(self.values - largest, 0))
        return Ratio(np.minimum(self.values, largest), self.pmf, self.unmatched + excess)

    def checked(self) -> "Ratio":
        """The same, if both pmfs add up to one.

        Raises:
            Unverifiable: If they do not.
        """
        totals = float(self.pmf.sum()), float(self.pmf @ self.values) + self.unmatched
        if not all(abs(total - 1) < MASS_ERROR for total in totals):
            raise Unverifiable(f"noise: probabilities of a path add up to {totals}, not to 1")
        return self

    def sum_pmf(self, probability: float) -> Array:
        """The pmf of a sum with a user's bit that is one with this probability; last, what only the bit shows."""
        return np.append(self.pmf * (1 + probability * (self.values - 1)), probability * self.unmatched)


def participation_mu(claims: Claims, honest: int, failure: float) -> float:
    """μ of one participation of a user.

    See docs/verify.md#lemma-6.

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
    smallest = inf
    ratios = _residual_ratio if claims.noise["residual_std"] else _transient_ratios
    with np.errstate(all="ignore"):
        for ratio, missing in ratios(claims, honest):
            bits_low, bits_high = (ratio.checked().sum_pmf(float(end[1])) for end in (low, high))
            tail = failure / (2 * claims.sent) - missing
            tests = best_tests(bits_low, bits_high, tail, missing) if tail > 0 else None
            mu = inf if tests is None else coordinate_bound(tests, claims.is_zero_out).mu(claims)
            if mu >= smallest:
                break
            smallest = mu
    if not smallest > 0:
        raise Unverifiable(f"noise = {claims.noise}: no μ was computed")
    return smallest


def fixed_order_epsilon(claims: Claims, honest: int, count: int) -> tuple[float, float]:
    """ε of a record in a fixed order of rounds, where silos cancel a part of their noise in their next message.

    See docs/verify.md#lemma-7.

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
    steps = claims.distance_anywhere * claims.mechanism["steps"] / 2
    with np.errstate(all="ignore"):
        ratio, rounds = record_path(residual, transient, claims.window)
        noise = np.append(ratio.pmf, 0.0)
        shifted = np.append(ratio.pmf * ratio.values, ratio.unmatched)
        missing = rounds * (missing_residual + missing_transient) + _ignored(rounds)
        for tail in RECORD_TAILS:
            tests = best_tests(noise, shifted, tail - missing, missing)
            if tests is None:
                break
            slope = 2 * tests.steepest * SLACK
            mu = sqrt(count) * slope * steps
            failure = _ends_failure(slope, steps, count * claims.sent, mu, tail)
            if failure < RECORD_TAIL_PART * claims.delta:
                return gaussian_epsilon(mu, claims.delta - failure)[0], mu
    return inf, inf


def record_path(residual: Array, transient: Array, separation: int) -> tuple[Ratio, int]:
    """The likelihood ratio of a path that ends in independent noise of known pmf.

    Args:
        residual: The pmf of the noise of a sum that is not canceled.
        transient: The pmf of the noise of a sum that is.
        separation: Rounds from a participation to the next.

    Returns:
        The ratio, and the rounds of the path.
    """
    variances = _variance(residual), _variance(transient)
    if not min(variances) > 0:
        raise Unverifiable("noise: there is none")
    grids = [_grid(1 / sqrt(variance), NOISE_DENSITY) for variance in variances]
    by_residual, by_transient = (
        _without_rare(grid, *_shift_ratio(pmf, grid)) for pmf, grid in zip((residual, transient), grids, strict=True)
    )
    rounds = min(separation, ceil(LONGEST_DELAY * sqrt(variances[1] / variances[0])) + 1, MAX_PATH)
    delays = delay_pmf(rounds, variances[1], variances[0])
    return _path_ratio(delays, by_residual, by_transient).checked(), rounds


def _ends_failure(slope: float, steps: float, coordinates: int, mu: float, tail: float) -> float:
    """What the ends of all coordinates cost, on every part of the way in which none moves by more than a step."""
    cut = coordinates * (4 * tail + ndtr(ndtri(2 * tail) + slope))
    return float(max(1, ceil(steps)) * ndtr(ndtri(min(cut, 0.5)) + mu))


# -- all noise but the others' bits is transient --------------------------------------------------


def _transient_ratios(claims: Claims, honest: int) -> Iterator[tuple[Ratio, float]]:
    """Y for several pmfs of the path's length, any of which is valid; and the probability that it lacks."""
    assert claims.noise is not None
    low, high, _ = end_pmfs(claims.mechanism)
    transient, missing = transient_noise(claims.noise["transient_std"], honest)
    variance = _variance(transient)
    bits_variance = _bits_variance(low, high, honest - 1)
    rounds = min(ceil(LONGEST_DELAY * sqrt(variance / bits_variance)) + 1, claims.window)
    grid = _grid(1 / sqrt(variance), NOISE_DENSITY)
    by_noise = _without_rare(grid, *_shift_ratio(transient, grid))
    by_bits = bits_ratio(low, high, honest - 1)
    missing = rounds * (missing + missing_from_sum(honest, TAIL)) + _ignored(rounds)
    for factor in (1, 1 / 2, 1 / 4, 1 / 8) if honest <= FEW_CLIENTS else (1,):
        yield _path_ratio(delay_pmf(rounds, variance, factor * bits_variance), by_bits, by_noise), missing


def _bits_variance(low: Array, high: Array, number: int) -> float:
    """The least variance of the sum of this many clients' bits."""
    return float(number * min(low[0] * low[1], high[0] * high[1]))


def bits_ratio(low: Array, high: Array, number: int) -> Ratio:
    """A ratio that dominates that of a sum of bits and the sum plus one, for all inputs.

    Its curves E(q − ρ)₊ and E(ρ − q)₊ are the largest of all inputs, and straight between grid points.

    See docs/verify.md#lemma-6.

    Args:
        low: The pmf of a bit at −c.
        high: The pmf of a bit at c.
        number: How many clients' bits are summed.

    Returns:
        The ratio.
    """
    grid = _grid(1 / sqrt(_bits_variance(low, high, number)), NOISE_DENSITY)
    gaps = np.diff(grid)
    middle = int(np.searchsorted(grid, 1.0))
    under = np.zeros(len(grid))
    over = np.zeros(len(grid))
    for pmf in other_sums(low, high, number):
        ratio_pmf, unmatched = _shift_ratio(pmf, grid)
        below = np.cumsum(ratio_pmf)[:-1]
        above = np.cumsum(ratio_pmf[::-1])[-2::-1]
        under = np.maximum(under, np.append(0.0, np.cumsum(below * gaps)))
        over = np.maximum(over, np.append(np.cumsum((above * gaps)[::-1])[::-1], 0.0) + unmatched)
    below = np.diff(under)[:middle] / gaps[:middle]
    above = np.append(-np.diff(over)[middle:] / gaps[middle:], 0.0)
    at_middle = np.array([1 - below[-1] - above[0]])
    pmf = np.concatenate([below[:1], np.diff(below), at_middle, -np.diff(above)])
    return _without_rare(grid, np.maximum(pmf, 0), float(over[-1]))


def delay_pmf(rounds: int, transient: float, residual: float) -> Array:
    """The pmf of how many rounds a shift stays in the transient noise, 0 to `rounds` − 1.

    It is the best one if both noises are Gaussian.

    Args:
        rounds: The most rounds, plus one.
        transient: Variance of the transient noise.
        residual: Variance of the noise that takes the shift over.

    Returns:
        The probabilities.
    """
    angle = 2 * asinh(sqrt(residual / transient) / 2)

    def scaled_sinh(x: float) -> float:
        end = rounds * angle
        return exp(x - end) * (1 - exp(-2 * x)) / (1 - exp(-2 * end))

    return -np.diff([scaled_sinh(remaining * angle) for remaining in range(rounds, -1, -1)])


def _path_ratio(delays: Array, by_residual: Ratio, by_transient: Ratio) -> Ratio:
    """Y = c ρ_B + (1 − c) ρ_A Y′ from the last round back; c is the probability to end, given that it came so far."""
    y = by_residual
    reached = float(delays[-1])
    for probability in delays[-2::-1].tolist():
        reached += probability
        c = probability / reached
        grid = _grid(sqrt(by_transient.std**2 + (1 + by_transient.std**2) * y.std**2), PATH_DENSITY)
        product = _on_grid(y, by_transient, np.multiply, _either(y.unmatched, by_transient.unmatched), grid)
        grid = _grid(sqrt((c * by_residual.std) ** 2 + ((1 - c) * product.std) ** 2), PATH_DENSITY)
        parts = by_residual._replace(values=c * by_residual.values), product._replace(values=(1 - c) * product.values)
        y = _on_grid(*parts, np.add, c * by_residual.unmatched + (1 - c) * product.unmatched, grid)
    return y


def _on_grid(first: Ratio, second: Ratio, operation: np.ufunc, unmatched: float, grid: Array) -> Ratio:
    """The sum or product of two independent ratios, on a grid."""
    values = operation.outer(first.values, second.values).ravel()
    pmf = np.multiply.outer(first.pmf, second.pmf).ravel()
    return _without_rare(grid, *_split(grid, values, pmf, unmatched))


def _shift_ratio(pmf: Array, grid: Array) -> tuple[Array, float]:
    """The ratio of noise plus one over noise, on a grid; and what only the former shows, or nearly so."""
    noise = np.append(pmf, 0.0)
    shifted = np.append(0.0, pmf)
    is_far = shifted > grid[-1] * noise
    unmatched = float((shifted - grid[-1] * noise)[is_far].sum())
    is_finite = ~is_far & (noise > 0)
    values = np.full(len(noise), grid[-1])
    values[is_finite] = shifted[is_finite] / noise[is_finite]
    return _split(grid, values, noise, unmatched)


def _variance(pmf: Array) -> float:
    outcomes = np.arange(len(pmf))
    return float(pmf @ (outcomes - pmf @ outcomes) ** 2)


def _grid(std: float, density: int) -> Array:
    """0, even steps around 1, and beyond them steps that grow."""
    step = min(std, 0.5) / density
    even = 1 + step * np.arange(-min(STDS_BELOW * density, int(0.999 / step)), STDS_ABOVE * density + 1)
    growing = (even[-1] - 1) * np.geomspace(1, GRID_EXTENT, 20 * int(log(GRID_EXTENT)))[1:]
    return np.concatenate([[0.0], even, 1 + growing])


def _split(grid: Array, values: Array, pmf: Array, unmatched: float) -> tuple[Array, float]:
    """Split values between their neighbors on the grid, with means kept: a larger ratio in convex order."""
    is_beyond = values > grid[-1]
    unmatched += float(((values - grid[-1]) * pmf)[is_beyond].sum())
    values = np.minimum(values, grid[-1])
    right = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    fraction = (values - grid[right - 1]) / (grid[right] - grid[right - 1])
    size = len(grid)
    on_grid = np.bincount(right, fraction * pmf, size) + np.bincount(right - 1, (1 - fraction) * pmf, size)
    return np.asarray(on_grid, dtype=np.float64), unmatched


def _without_rare(grid: Array, pmf: Array, unmatched: float) -> Ratio:
    """A ratio on a grid without probabilities so small that they are left out."""
    is_kept = pmf > IGNORED
    return Ratio(grid[is_kept], pmf[is_kept], unmatched)


def _ignored(rounds: int) -> float:
    """More than all that a path of so many rounds leaves out."""
    return rounds * 10**4 * IGNORED


def _either(first: float, second: float) -> float:
    """The probability of one event or another that is independent."""
    return first + second - first * second


# -- a part of the noise is residual --------------------------------------------------------------


class Corners(NamedTuple):
    """The pair of ratios of F on few points.

    Attributes:
        points: ρ_one, ρ_back and their probability.
        outside: The probability of all other points.
        unmatched_one: Probability, under noise shifted by one, of what noise does not show there.
        unmatched_back: The same, of noise shifted back.
    """

    points: list[tuple[float, float, float]]
    outside: float
    unmatched_one: float
    unmatched_back: float


def _residual_ratio(claims: Claims, honest: int) -> Iterator[tuple[Ratio, float]]:
    """Y with residual noise E, transient noise F and gain m; and the probability that it lacks."""
    assert claims.noise is not None
    low, high, _ = end_pmfs(claims.mechanism)
    gain = claims.noise["gain"]
    transient, missing_transient = transient_noise(claims.noise["transient_std"], honest)
    residual, missing_residual = transient_noise(claims.noise["residual_std"], honest)
    grid = _grid(1 / sqrt(_variance(residual)), NOISE_DENSITY)
    by_residual = _without_rare(grid, *_shift_ratio(residual, grid))
    rounds = min(RESIDUAL_PATH * gain, claims.window)
    variances = _variance(residual), _variance(transient), _bits_variance(low, high, honest - 1)
    ratio = residual_path(
        by_residual, bits_ratio(low, high, honest - 1), transient_corners(transient, gain), variances, gain, rounds
    )
    missing = missing_transient + missing_residual + missing_from_sum(honest, TAIL)
    yield ratio, rounds * missing + _ignored(rounds)


def transient_corners(pmf: Array, gain: int) -> Corners:
    """Both ratios of F. Cells of outcomes are split between three corners each, with both means kept.

    As ρ_one grows ρ_back falls, and the curve bends one way: an outcome lies below the line between
    the ends of its cell, and so within the triangle of these ends and the corner below them.

    See docs/verify.md#lemma-6.

    Args:
        pmf: The pmf of F.
        gain: m, the gain of the noise.

    Returns:
        The points.

    Raises:
        Unverifiable: If F is too narrow, or the curve bends both ways.
    """
    middle = len(pmf) // 2
    std = sqrt(_variance(pmf))
    first = max(1, floor(middle - CELL_RANGE * std))
    last = min(len(pmf) - gain, ceil(middle + CELL_RANGE * std))
    if last - first < 3:
        raise Unverifiable(f"gain = {gain}: the transient noise is too narrow for it")
    noise = pmf[first : last + 1]
    ratio_one = pmf[first - 1 : last] / noise
    ratio_back = pmf[first + gain - 1 : last + gain] / noise
    points = []
    width = max(1, round(CELL_WIDTH * std))
    for start in range(0, len(noise) - 1, width):
        end = min(start + width, len(noise) - 1)
        cell = slice(start, end + (end == len(noise) - 1))
        u = (ratio_one[cell] - ratio_one[start]) / (ratio_one[end] - ratio_one[start])
        v = (ratio_back[cell] - ratio_back[end]) / (ratio_back[start] - ratio_back[end])
        height = (ratio_back[start] - ratio_back[end]) / ratio_back[start]
        if not (u.min() >= 0 and v.min() >= 0 and height * ((u + v).max() - 1) <= 1e-11):
            raise Unverifiable(f"gain = {gain}: the ratios of the transient noise do not bend one way")
        at_corner = np.maximum(1 - u - v, 0.0)
        points += [
            (float(ratio_one[end]), float(ratio_back[end]), float(noise[cell] @ u)),
            (float(ratio_one[start]), float(ratio_back[start]), float(noise[cell] @ v)),
            (float(ratio_one[start]), float(ratio_back[end]), float(noise[cell] @ at_corner)),
        ]
    outside, unmatched_one, unmatched_back = (
        float(pmf[: first + k].sum() + pmf[last + 1 + k :].sum()) for k in (0, -1, gain - 1)
    )
    return Corners([point for point in points if point[2] > 0], outside, unmatched_one, unmatched_back)


def end_weights(
    residual: float, transient: float, gain: int, bits: float, following: float | None
) -> tuple[float, float, float]:
    """The best e and c if all noise were Gaussian.

    Args:
        residual: Variance of E.
        transient: Variance of F.
        gain: m.
        bits: Variance of the others' bits.
        following: μ² of the round after; None: the path must end here.

    Returns:
        e, c and μ².
    """
    if following is None:
        cost = 1 / residual + (gain - 1) ** 2 / transient
        e = 1 / (1 + cost * bits)
        return e, 1 - e, cost * e**2 + (1 - e) ** 2 / bits
    cross = gain / transient + following
    matrix = np.array(
        [[1 / residual + gain**2 / transient + following, cross], [cross, 1 / transient + 1 / bits + following]]
    )
    e, c = np.linalg.solve(matrix, np.array([cross, 1 / transient + following])).tolist()
    if c < 0:
        e = min(1.0, cross / matrix[0, 0])
        c = 0.0
    if e + c > 1:
        return end_weights(residual, transient, gain, bits, None)
    squared = e**2 / residual + (1 - c - gain * e) ** 2 / transient + c**2 / bits + following * (1 - e - c) ** 2
    return e, c, float(squared)


class EvenPmf(NamedTuple):
    """The probabilities of `first` steps of a grid, one more, …"""

    first: int
    pmf: Array

    @property
    def values(self) -> Array:
        """The numbers of steps."""
        return np.arange(float(self.first), self.first + len(self.pmf))

    def plus(self, addend: "EvenPmf") -> "EvenPmf":
        """The pmf of the sum with an independent variable."""
        return EvenPmf(self.first + addend.first, np.convolve(self.pmf, addend.pmf))

    def cut(self, low: int, high: int) -> tuple["EvenPmf", float, float]:
        """The part from low to high; the probability of the rest, and that times its values."""
        start = max(0, low - self.first)
        stop = max(0, high + 1 - self.first)
        outside = np.concatenate([self.pmf[:start], self.pmf[stop:]])
        values = self.values
        moment = float(outside @ np.concatenate([values[:start], values[stop:]])) if len(outside) else 0.0
        return EvenPmf(self.first + start, self.pmf[start:stop]), float(outside.sum()), moment


def _even(values: Array, pmf: Array) -> EvenPmf:
    """Values in steps, split between the two points around each with means kept."""
    left = values.astype(np.int64)
    fraction = values - left
    first = int(left.min())
    left -= first
    size = int(left.max()) + 2
    on_grid = np.bincount(left, pmf * (1 - fraction), size) + np.bincount(left + 1, pmf * fraction, size)
    return EvenPmf(first, on_grid.astype(np.float64))


def _mixture(components: list[tuple[float, EvenPmf]]) -> EvenPmf:
    """The pmf of one of several variables, each with some probability."""
    first = min(component.first for _, component in components)
    stop = max(component.first + len(component.pmf) for _, component in components)
    total = np.zeros(stop - first)
    for probability, component in components:
        start = component.first - first
        total[start : start + len(component.pmf)] += probability * component.pmf
    return EvenPmf(first, total)


def residual_path(
    by_residual: Ratio, by_bits: Ratio, corners: Corners, variances: tuple[float, float, float], gain: int, rounds: int
) -> Ratio:
    """Y = e ρ_E ρ_back + c ρ_B + (1 − e − c) ρ_one Y′, from the last round back, on even grids from 0.

    Values beyond a grid, and rare ones, become 0; their mean counts as shown by shifted noise alone.

    See docs/verify.md#lemma-6.

    Args:
        by_residual: ρ_E.
        by_bits: ρ_B.
        corners: ρ_one and ρ_back.
        variances: Those of E, F and the bits.
        gain: m.
        rounds: The rounds of the path.

    Returns:
        Y.
    """
    residual, transient, bits = variances
    by_residual = by_residual.capped(_largest(by_residual))
    by_bits = by_bits.capped(_largest(by_bits))
    following: float | None = None
    step = 1.0
    y = EvenPmf(1, np.ones(1))
    at_zero = 0.0  # the probability of Y = 0, of which all terms are dropped from then on
    unmatched = 0.0
    for _ in range(rounds):
        old_step = step
        e, c, following = end_weights(residual, transient, gain, bits, following)
        on = max(0.0, 1 - e - c)
        step = min(sqrt(following), 0.5) / RESIDUAL_DENSITY
        parts = []
        for ratio_one, ratio_back, probability in corners.points:
            going = _even(on * ratio_one * old_step / step * y.values, y.pmf)
            ending = _even(e * ratio_back / step * by_residual.values, by_residual.pmf)
            parts.append((probability, going.plus(ending)))
        total = _mixture(parts).plus(_even(c / step * by_bits.values, by_bits.pmf))
        often = total.first + np.append(np.flatnonzero(total.pmf > NEGLIGIBLE), int(total.pmf.argmax()))
        top = round(1 / step) + RESIDUAL_EXTENT * RESIDUAL_DENSITY
        low = int(often.min())
        y, rare, moment = total.cut(low, max(low, min(int(often.max()), top)))
        dropped = _either(at_zero, corners.outside)
        unmatched_end = _either(by_residual.unmatched, corners.unmatched_back)
        unmatched = on * _either(unmatched, corners.unmatched_one) + step * moment
        unmatched += e * _either(unmatched_end, at_zero) + c * _either(by_bits.unmatched, dropped)
        at_zero = dropped + rare
    values = np.append(0.0, step * y.values)
    pmf = np.append(at_zero, y.pmf)
    return Ratio(values[pmf > 0], pmf[pmf > 0], unmatched)


def _largest(ratio: Ratio) -> float:
    """The largest value of a ratio that counts as a value."""
    return 1 + RESIDUAL_EXTENT * min(ratio.std, 0.5)
