"""Bounds on one release by Gaussian DP, except for outcomes far in the tails, which are charged to δ.

The μ of a release is the least μ such that it is no easier to tell two neighbors apart than N(0, 1)
and N(μ, 1). docs/verify.md has the proofs.
"""

from collections.abc import Iterable
from math import ceil, exp, floor, inf, log, log2, pi, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from .integer_pmfs import (
    LONG,
    TAIL,
    Array,
    end_pmfs,
    missing_from_sum,
    modular_noise,
    other_sums,
    step_std,
    unbounded_noise,
)
from .ledger_claims import AFFINE, Claims
from .verification_report import Unverifiable

ERROR, SLACK = 1e-11, 1 + 1e-6
"""More than the rounding errors of a difference of Φ⁻¹, and of μ² and ε."""
SCORE_POINTS, MAX_TERMS = 24, 512
"""Points of a score's grid on either side of zero, and scores that are added up at most."""
ROUNDING = 1 + 1e-9
"""More than the rounding errors of sums of positive numbers."""


def gaussian_delta(mu: float, epsilon: Array) -> Array:
    """δ(ε) of N(0, 1) and N(μ, 1) (Balle and Wang 2018), rounded up."""
    above = ndtr(mu / 2 - epsilon / mu)
    with np.errstate(over="ignore"):
        return np.asarray(np.maximum(above * (1 + 1e-12) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)), 0))


def gaussian_epsilon(mu: float, delta: float) -> tuple[float, float]:
    """The smallest ε of μ-GDP at δ, from above and from below."""
    if not mu * mu < inf:
        return inf, 0.0
    if gaussian_delta(mu, np.zeros(1)) <= delta:
        return 0.0, 0.0
    largest = mu * mu / 2 + mu * sqrt(2 * log(1 / delta))
    root = brentq(lambda epsilon: float(gaussian_delta(mu, epsilon)) - delta, 0, largest, xtol=1e-300)
    return root * SLACK, root / SLACK


class BestTests(NamedTuple):
    """The power of each best test at three inputs, −1, 0 and 1.

    Attributes:
        z: Φ⁻¹ of the power: a row for each input.
        slopes: The derivatives of z by the input.
    """

    z: Array
    slopes: Array

    @property
    def steepest(self) -> float:
        """The largest slope between the ends: 1/φ(Φ⁻¹(p)) is convex in p."""
        return float(self.slopes[[0, 2]].max(initial=0))

    def squared_mus(self, is_zero_out: bool) -> Array:
        """μ² of a coordinate over its squared distance, and at most. See docs/verify.md#lemma-1."""
        rises = np.diff(self.z, axis=0) + ERROR
        slopes = np.maximum(self.slopes[1], rises) ** 2
        if is_zero_out:
            return np.array([slopes.max(initial=0), rises.max(initial=0) ** 2])
        return np.array([slopes.sum(axis=0).max(initial=0) / 2, rises.sum(axis=0).max(initial=0) ** 2])


def best_tests(low: Array, high: Array, tail: float, missing: float) -> BestTests | None:
    """Return the tests of two pmfs by their likelihood ratio, except for the outcomes farthest out.

    See docs/verify.md#lemma-3.

    Args:
        low: The pmf at the lower end.
        high: The pmf at the upper end.
        tail: Probability of the outcomes that are left out on either side; none are if it is negative.
        missing: Probability that the pmfs lack.

    Returns:
        The tests; None if the missing probability matters.
    """
    if tail < 0:
        return None
    low, high = low[low + high > 0], high[low + high > 0]
    order = np.argsort((low - high) / (low + high))
    pmfs = np.array([low, (low + high) / 2, high])[:, order]
    power = np.cumsum(pmfs, axis=1)[:, :-1]
    complement = np.cumsum(pmfs[:, ::-1], axis=1)[:, -2::-1]
    first = max(0, int(np.searchsorted(power.max(axis=0), tail, side="right")) - 1)
    last = min(power.shape[1], int(np.searchsorted(-complement.max(axis=0), -tail, side="left")) + 1)
    power = power[:, first:last]
    complement = complement[:, first:last]
    if min(power.min(initial=1), complement.min(initial=1)) < 1e12 * missing:
        return None
    z = np.where(power < complement, ndtri(np.minimum(power, 0.5)), -ndtri(np.minimum(complement, 0.5)))
    rise = np.where(power[1] < complement[1], power[2] - power[0], complement[0] - complement[2]) / 2
    return BestTests(z, np.maximum(rise, 0) * np.exp(z**2 / 2) * sqrt(2 * pi))


def split_on_grid(positions: Array, pmf: Array, size: int) -> Array:
    """Split values between their neighbors on a grid, with means preserved: a larger variable in convex order.

    Args:
        positions: The values, in steps of the grid from its first point.
        pmf: Their probabilities.
        size: The number of points.

    Returns:
        The probabilities of the points.
    """
    left = np.minimum(positions.astype(np.int64), size - 2)
    fraction = positions - left
    on_grid = np.bincount(left, pmf * (1 - fraction), size) + np.bincount(left + 1, pmf * fraction, size)
    return np.asarray(on_grid, dtype=np.float64)


def dominating_pmf(pmfs: Iterable[tuple[Array, float]], middle: int) -> tuple[Array, float]:
    """Return the least pmf on a grid that is above others in convex order, from their curves E(q − X)₊ and E(X − q)₊.

    Args:
        pmfs: Pmfs on the grid, and the part of each mean that is far beyond the grid, in steps.
        middle: Below this point the first curve is used, which is precise there, then the second.

    Returns:
        The pmf, and the part of its mean that is far beyond the grid.
    """
    under, over = np.zeros(1), np.zeros(1)
    for pmf, beyond in pmfs:
        under = np.maximum(under, np.append(0.0, np.cumsum(np.cumsum(pmf)[:-1])))
        over = np.maximum(over, np.append(0.0, np.cumsum(np.cumsum(pmf[:0:-1]))) + beyond)
    below = np.diff(under)[:middle]
    above = np.diff(over)[::-1][middle:]
    pmf = np.concatenate([below[:1], np.diff(below), [1 - below[-1] - above[0]], -np.diff(above), above[-1:]])
    return np.maximum(pmf, 0), float(over[0])


def release_mu(claims: Claims, honest: int, failure: float) -> float:
    """μ of one release with independent noise.

    Args:
        claims: What a release is.
        honest: Honest clients in the sum, the user's included.
        failure: Probability of the outcomes that μ leaves out.

    Returns:
        μ, infinite if there is none.
    """
    with np.errstate(all="ignore"):
        return (_affine_mu if claims.kind in AFFINE else _additive_mu)(claims, honest, failure)


def _tail(failure: float, coordinates: int) -> float:
    """What each end of each coordinate may lose, rounded down to a power of two as the accountant does."""
    return 2.0 ** floor(log2(failure / (2 * coordinates)))


def _affine_mu(claims: Claims, honest: int, failure: float) -> float:
    """Of mechanisms whose pmf is affine on the clip: by slopes through zero, or by sums of scores."""
    low, high, trials = end_pmfs(claims.mechanism)
    if honest * (len(low) - 1) ** 2 > 4 * 10**6:
        raise Unverifiable(f"{honest} honest clients of {len(low)} outcomes: takes this verifier too long")
    squares = claims.squared_distance * trials
    squares_anywhere = claims.distance_anywhere**2 * trials
    missing = missing_from_sum(honest, TAIL) if honest * (len(low) - 1) >= LONG / 2 else 0.0
    tail = _tail(failure, claims.sent * trials) - missing
    smallest = min(squares, squares_anywhere)
    by_scores = smallest * sum_of_scores_rate(low, high, honest, smallest / (1 if claims.is_zero_out else 4))
    squared_mus = np.zeros(2)
    steepest = 0.0
    for others in other_sums(low, high, honest - 1):
        tests = best_tests(np.convolve(low, others), np.convolve(high, others), tail, missing)
        if tests is None:
            return sqrt(by_scores * SLACK)
        squared_mus = np.maximum(squared_mus, tests.squared_mus(claims.is_zero_out))
        steepest = max(steepest, tests.steepest)
    by_slopes = float((squared_mus * [squares, claims.sent * trials]).min())
    return sqrt(min(by_slopes, by_scores, squares_anywhere * steepest**2) * SLACK)


def _additive_mu(claims: Claims, honest: int, failure: float) -> float:
    """Of additive noise: whole steps exactly, a fraction of a step by the steepest slope.

    A segment of whole steps and a fraction lies within two more steps. Outcomes beyond its least likely
    tails, and that many more steps on either side, are merged into one. See docs/verify.md#lemma-5.
    """
    steps = claims.mechanism["steps"]
    last = steps / 2 if claims.is_zero_out else float(steps)
    anywhere = inf if claims.distance_anywhere == inf else anywhere_mu(claims, honest, claims.distance_anywhere)
    pmf, missing = unbounded_noise(claims.mechanism, honest)
    tail = _tail(failure, claims.sent) - missing
    if not tail > missing:
        return anywhere
    first = int(np.searchsorted(np.cumsum(pmf), tail, side="right"))
    stop = len(pmf) - int(np.searchsorted(np.cumsum(pmf[::-1]), tail, side="right"))

    def tests(shift: int, room: int) -> BestTests | None:
        still, shifted = (_merge_tails(pmf, first - room - k, stop + room - k) for k in (0, shift))
        return best_tests(still, shifted, 0.0, missing)

    whole = np.zeros(ceil(last) + 1)
    slopes = np.zeros(ceil(last))
    for shift in range(1, len(whole)):
        by_step = tests(1, shift + 1)
        if by_step is None:
            return anywhere
        slopes[shift - 1] = 2 * by_step.steepest
        whole[shift] = shift * slopes[shift - 1]
        by_shift = tests(shift, shift + 2)
        if by_shift is not None:
            whole[shift] = min(whole[shift], (by_shift.z[2] - by_shift.z[0]).max(initial=0) + ERROR)
    if not (slopes.min() > 0 and slopes.max() < inf):
        return anywhere
    whole = np.maximum.accumulate(whole)
    distances = np.append(0.0, np.geomspace(1e-4, 1, 8000))  # over the largest; between two, the larger one counts
    shifts = last * distances[1:]
    above = np.ceil(shifts).astype(int)
    mus = np.minimum(whole[above - 1] + slopes[above - 1] * (shifts - above + 1), whole[above])
    return min(anywhere, sqrt(worst_sum(distances, mus**2, claims.sent, claims.squared_length) * SLACK))


def _merge_tails(pmf: Array, start: int, stop: int) -> Array:
    """A pmf from one outcome up to another: those before in one, and those after."""
    low = max(start, 0)
    high = min(stop, len(pmf))
    padded = np.pad(pmf[low:high], (low - start, stop - high))
    return np.concatenate([[pmf[:low].sum()], padded, [pmf[high:].sum()]])


def worst_sum(distances: Array, values: Array, count: int, squares: float) -> float:
    """The largest sum of a function of each coordinate's distance, under a bound on the sum of squared distances.

    Any price of a squared distance gives a bound.

    See docs/verify.md#lemma-5.

    Args:
        distances: Increasing distances, over the largest, from 0 to 1.
        values: An increasing function of the distance, at all of them but the first.
        count: The number of coordinates.
        squares: The largest sum of their squared distances, in units of the largest distance.

    Returns:
        The sum, at most.
    """
    farthest = float(values[-1])
    if not 0 < farthest < inf:
        return count * farthest
    starts = distances[:-1] ** 2

    def bound(log_price: float) -> float:
        price = exp(log_price)
        return price * squares / count + float((values - price * starts).max())

    nearby = log(farthest)
    best = minimize_scalar(bound, bounds=(nearby - 8, nearby + 8), method="bounded")
    return count * min(float(best.fun), farthest)


def anywhere_mu(claims: Claims, honest: int, distance: float) -> float:
    """μ of a release with additive noise in which a vector moves by a distance, wherever it lies.

    See docs/verify.md#lemma-5.

    Args:
        claims: What a release is.
        honest: Honest clients, or silos, in the sum.
        distance: The L2 distance, in units of the clip of a coordinate.

    Returns:
        μ.
    """
    mechanism = claims.mechanism
    if honest * 20 * step_std(mechanism) > 60_000:
        raise Unverifiable(
            f"{honest} honest silos or clients, steps = {mechanism['steps']}: takes this verifier too long"
        )
    pmf = modular_noise(mechanism, honest)
    tests = best_tests(pmf, np.roll(pmf, 1), 0.0, 0.0)
    if tests is None:
        raise Unverifiable("the noise has outcomes of probability zero")
    return float(tests.steepest * distance * mechanism["steps"] * SLACK)


# -- a release as a whole: sums of scores ---------------------------------------------------------


def sum_of_scores_rate(low: Array, high: Array, honest: int, squares: float) -> float:
    """Bound μ² of a whole release over the squared distance of two vectors. See docs/verify.md#lemma-4.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        honest: Honest clients in the sum, the user's included.
        squares: The largest squared distance, in units of the largest of one coordinate.

    Returns:
        The rate, infinite where sums are not exact, or are not worth computing.
    """
    smaller = np.minimum(low, high)
    rarest = float(smaller[low + high > 0].min())
    # Of so few outcomes nothing is cut off, here or by the accountant; so likely ones are no subnormal floats.
    is_whole = honest * (len(low) - 1) < 112 or float(smaller[[0, -1]].min()) ** honest > TAIL
    is_exact = rarest > 0 and is_whole and -honest * log(rarest) < 650
    smallest = inf
    if honest > 32 or squares < 2 or not is_exact:  # of more clients, one coordinate is nearly normal
        return smallest
    pmf, unit = dominating_score(low, high, honest)
    # No rate is below the variance of a score. Where even that would be no smaller, the rest is not computed.
    variance = unit**2 * float(pmf @ np.arange(-SCORE_POINTS, SCORE_POINTS + 1) ** 2)
    at_ends = 0.0  # this part of the sum lies as far out as such a sum can be
    terms = 1
    while terms <= min(squares, MAX_TERMS) and variance * (1 + (terms - 1) / squares) < smallest:
        scale = unit * normal_scale(pmf, at_ends, SCORE_POINTS * terms)
        # Coordinates in blocks of so many, sorted: each block but the first counts for no more than the one before.
        rate = scale**2 / terms * (1 + (terms - 1) / squares)
        if rate > smallest:
            break
        smallest = rate
        terms = 2 * terms
        pmf = np.convolve(pmf, pmf)
        pmf = (pmf + pmf[::-1]) / 2
        cut = int(np.argmax(pmf > 1e-199))
        at_ends = 2 * at_ends + 2 * float(pmf[:cut].sum()) + len(pmf) * 1e-300
        pmf = pmf[cut : len(pmf) - cut]
    return smallest * ROUNDING


def dominating_score(low: Array, high: Array, honest: int) -> tuple[Array, float]:
    """Return a symmetric pmf on a grid that is above every score and its opposite in convex order, and the grid's unit.

    The curve E(s − τ)₊ is convex in the user's input, so it is largest at an end of the clip.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        honest: Honest clients in the sum, the user's included.

    Returns:
        The pmf, and the unit of the grid.
    """
    scores = []
    for others in other_sums(low, high, honest - 1):
        rise = np.convolve((high - low) / 2, others)
        for end in (low, high):
            pmf = np.convolve(end, others)
            scores.append((rise[pmf > 0] / pmf[pmf > 0], pmf[pmf > 0]))
    unit = max(float(abs(score).max()) for score, _ in scores) * ROUNDING / SCORE_POINTS
    pmfs = [
        (split_on_grid(SCORE_POINTS + sign * score / unit, pmf, 2 * SCORE_POINTS + 1), 0.0)
        for score, pmf in scores
        for sign in (1, -1)
    ]
    pmf, _ = dominating_pmf(pmfs, SCORE_POINTS)
    moved = 1.01e-7  # to the ends: more than the rounding errors
    pmf = (1 - moved) * (pmf + pmf[::-1]) / 2
    pmf[[0, -1]] += moved / 2
    return pmf, unit


def normal_scale(pmf: Array, at_ends: float, farthest: int) -> float:
    """Return the least s for which a symmetric pmf is below s·Z in convex order, with Z normal.

    Args:
        pmf: The pmf.
        at_ends: Probability of values even farther out.
        farthest: The largest of these values.

    Returns:
        s, by the expectation over the largest values at each probability.
    """
    above = np.arange(len(pmf) // 2, 0, -1)
    masses = np.append(at_ends / 2, pmf[: len(above)])
    probability = np.cumsum(masses)
    mean = np.cumsum(masses * np.append(farthest, above))
    z = ndtri_exp(np.log(probability[probability > 0]))
    return float((mean[probability > 0] * np.exp(z * z / 2)).max()) * sqrt(2 * pi)
