"""Gaussian DP: ε of a μ, and the best tests of two pmfs, which give a μ of a release.

The μ of a release is the least μ such that it is no easier to tell two neighbors apart than N(0, 1)
and N(μ, 1), except for outcomes far in the tails, which are charged to δ. docs/verify.md has the proofs.
"""

from collections.abc import Iterable
from math import floor, inf, log, log2, pi, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from .integer_pmfs import Array

SLACK = 1 + 1e-6
"""More than the rounding errors of μ² and ε."""


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

    def rise(self, lower: int, upper: int) -> Array:
        """How much z increases from one input to another, with more than the rounding errors."""
        return np.asarray(self.z[upper] - self.z[lower] + 1e-11)

    @property
    def steepest(self) -> float:
        """The largest slope between the ends: 1/φ(Φ⁻¹(p)) is convex in p."""
        return float(self.slopes[[0, 2]].max(initial=0))

    def squared_mus(self, is_zero_out: bool) -> Array:
        """μ² of a coordinate over its squared distance, and at most. See docs/verify.md#lemma-1."""
        rises = np.array([self.rise(0, 1), self.rise(1, 2)])
        slopes = np.maximum(self.slopes[1], rises) ** 2
        if is_zero_out:
            return np.array([slopes.max(initial=0), rises.max(initial=0) ** 2])
        return np.array([slopes.sum(axis=0).max(initial=0) / 2, rises.sum(axis=0).max(initial=0) ** 2])


def best_tests(low: Array, high: Array, tail: float, missing: float) -> BestTests:
    """Return the tests of two pmfs by their likelihood ratio, except for the outcomes farthest out.

    See docs/verify.md#lemma-3.

    Args:
        low: The pmf at the lower end.
        high: The pmf at the upper end.
        tail: Probability of the outcomes that are left out on either side.
        missing: Probability that the pmfs lack.

    Returns:
        The tests; one that is certain if the missing probability matters.
    """
    certain = BestTests(np.array([[-inf], [0.0], [inf]]), np.full((3, 1), inf))
    if tail < 0:
        return certain
    low, high = low[low + high > 0], high[low + high > 0]
    order = np.argsort((low - high) / (low + high))
    pmfs = np.array([low, (low + high) / 2, high])[:, order]
    power = np.cumsum(pmfs, axis=1)[:, :-1]
    complement = np.cumsum(pmfs[:, ::-1], axis=1)[:, -2::-1]
    is_likely = np.append(power.max(axis=0)[1:], 1) > tail  # with the outcome that comes next
    is_likely &= np.append(1, complement.max(axis=0)[:-1]) > tail
    power = power[:, is_likely]
    complement = complement[:, is_likely]
    smaller = np.minimum(power, complement)
    if smaller.min(initial=1) < 1e12 * missing:
        return certain
    z = np.where(power < complement, 1, -1) * ndtri(smaller)
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


def tail_probability(failure: float, coordinates: int) -> float:
    """What each end of each coordinate may lose, rounded down to a power of two as the accountant does."""
    return 2.0 ** floor(log2(failure / (2 * coordinates)))
