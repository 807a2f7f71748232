"""Pmfs with breakpoints inside the clip, as the paper uses RQM: (ε, δ) of one coordinate, and μ of a
vector.

Such a pmf is affine only between neighboring breakpoints, so neither the worst pair of inputs nor
the worst inputs of the other clients are known in advance.

- *One coordinate*: its hockey-stick divergence is certified over all pairs of breakpoints and all
  placements of the other clients (`blocks.py`).
- *A vector under an L2 bound*: on the straight line between two vectors, Φ⁻¹ of an event's
  probability rises no faster than s if the score of the release is below s·Z in convex order.
  E(score − τ)₊ of a coordinate is a hockey-stick divergence of two neighboring breakpoints, which
  is certified for all inputs. A mixture of Gaussians above it gives s (docs/proofs/interior-levels.md#theorem-17).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf, log, pi, sqrt

import numpy as np
from scipy.special import erfcx, ndtr, ndtri, ndtri_exp

from rqm._util.checks import FloatArray
from rqm.certify.blocks import NEGLIGIBLE_PART, largest_means, other_clients, pairs_of_client
from rqm.certify.distributions import (
    EMPTY_SUM,
    SMALLEST_ENTRY,
    Comparison,
    IntArray,
    OtherSums,
    PartialSum,
    divergence_table,
    repeated,
)
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind


def _equal_inputs(own_pmfs: FloatArray, honest: int) -> list[PartialSum]:
    """Sums of all other clients at one breakpoint, one for each breakpoint. What is cut is far below every δ."""
    return [repeated(pmf, honest - 1, 1e-100) for pmf in own_pmfs]


def _attained(own_pmfs: FloatArray, honest: int, pairs: IntArray, epsilons: FloatArray) -> FloatArray:
    """Hockey-stick divergences of some pairs of breakpoints, the largest with all other clients at
    one breakpoint."""
    others = OtherSums.of(_equal_inputs(own_pmfs, honest))
    table, _ = divergence_table(others, Comparison(own_pmfs, pairs, epsilons, "hockey-stick"))
    return np.asarray(table.max(axis=0))


def _certified(
    own_pmfs: FloatArray, honest: int, pairs: IntArray, epsilons: FloatArray, negligible: float
) -> Iterator[FloatArray]:
    """Ever smaller bounds of hockey-stick divergences of some pairs of breakpoints, for all placements of the other
    clients; the first is that of a single client."""

    def averaged(table: FloatArray, missing: FloatArray) -> FloatArray:
        return np.minimum(table + missing, 1)

    comparison = Comparison(own_pmfs, pairs, epsilons, "hockey-stick")
    table, _ = divergence_table(OtherSums.of([EMPTY_SUM]), comparison)
    best = table[0]
    yield best
    tail = max(SMALLEST_ENTRY, negligible / honest)
    for family in other_clients(own_pmfs, honest - 1, tail=tail):
        means = largest_means(family, comparison, averaged, negligible)
        best = np.minimum(best, means)
        yield best


# -- one coordinate -------------------------------------------------------------------------------


def coordinate_epsilon(
    mechanism: DiscreteMechanism, delta: float, honest: int, distribution: PmfKind = "paper"
) -> float:
    """ε of one coordinate of one release at δ, certified for all inputs.

    See docs/proofs/interior-levels.md#theorem-11.

    Args:
        mechanism: A mechanism with a table of pmfs.
        delta: δ.
        honest: Number of honest clients in the sum.
        distribution: "paper" or "sampled".

    Returns:
        A certified ε, infinite if there is none.
    """
    if mechanism.has_noiseless_inputs:
        return inf
    attained = attained_epsilon(mechanism, delta, honest, distribution)
    if attained == inf:
        return inf
    own_pmfs = np.exp(mechanism.breakpoint_log_pmfs(distribution))
    pairs = pairs_of_client(own_pmfs, honest - 1)
    ratios = (1.002, 1.005, 1.01, 1.015, 1.019, 1.03, 1.05, 1.08, 1.12, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0, 10.0)
    tried = np.array([max(attained * ratio, 0.01 * (ratio - 1)) for ratio in ratios])  # if hardly any ε is attained
    epsilons = np.tile(tried, (len(pairs), 1))
    single_client = _attained(own_pmfs, 1, pairs, epsilons)
    matters = (single_client > delta).any(axis=1)
    deltas = single_client.max(axis=0)
    for bounds in _certified(own_pmfs, honest, pairs[matters], epsilons[matters], NEGLIGIBLE_PART * delta):
        deltas = bounds.max(axis=0, initial=0.0)
        if deltas[0] <= delta:
            break
    is_enough = deltas * (1 + 1e-9) <= delta
    return float(tried[np.argmax(is_enough)]) if is_enough.any() else inf


def attained_epsilon(mechanism: DiscreteMechanism, delta: float, honest: int, distribution: PmfKind = "paper") -> float:
    """An ε at which δ is attained by some inputs, all other clients at one breakpoint: no certified
    ε is below it.

    Args:
        mechanism: A mechanism with a table of pmfs.
        delta: δ.
        honest: Number of honest clients in the sum.
        distribution: "paper" or "sampled".

    Returns:
        ε to four digits, infinite if δ is attained at every ε.
    """
    own_pmfs = np.exp(mechanism.breakpoint_log_pmfs(distribution))
    pairs = pairs_of_client(own_pmfs, honest - 1)

    def last_attained(epsilons: FloatArray) -> int:
        """The index of the largest ε at which δ is attained; −1 if there is none."""
        table = _attained(own_pmfs, honest, pairs, np.tile(epsilons, (len(pairs), 1)))
        return int(np.flatnonzero(table.max(axis=0) > delta).max(initial=-1))

    low, high = 0.0, 1.0
    while last_attained(np.array([high])) == 0:
        low, high = high, 2 * high
        if high > 1e3:
            return inf
    while high - low > 1e-4 * high:
        grid = np.linspace(low, high, 10)
        last = max(last_attained(grid), 0)
        low = float(grid[last])
        high = float(grid[last + 1])
    return high


# -- a vector under an L2 bound -------------------------------------------------------------------


def interior_gdp(
    mechanism: DiscreteMechanism,
    *,
    honest: int,
    dim: int,
    squared: float,
    farthest: float,
    failure: float,
    distribution: PmfKind = "paper",
) -> float:
    """Certified μ of the sum over honest clients of whole vectors, with one client's vector changed.

    See docs/proofs/interior-levels.md#lemma-13.

    Args:
        mechanism: A mechanism with a table of pmfs.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        squared: The largest squared distance of neighboring vectors, in clips².
        farthest: The largest squared distance of one of their coordinates, in clips².
        failure: Probability of the outcomes that μ leaves out.
        distribution: "paper" or "sampled".

    Returns:
        μ, infinite if there is none or if it would be useless.
    """
    squared = min(squared, dim * farthest)
    useless_mu = 9.0  # an ε of more than 80 is not certified
    if mechanism.has_noiseless_inputs:
        return inf
    if sqrt(squared * 1.06 * score_variance(mechanism, honest, distribution)) > useless_mu:  # about μ
        return inf
    scores = _scores(mechanism, honest, distribution)
    if scores is None:
        return inf
    count = max(1, int(squared / farthest * (1 + 1e-9)))
    smallest = 0.0
    for _ in range(40):  # the tail is left out at both ends of the line between the two vectors
        tail = float(ndtr(ndtri(failure / 2) - smallest))
        mu = sqrt(squared * scores.factor(count, dim, max(tail, 1e-300)))
        if mu <= smallest:
            return mu * (1 + 1e-9)
        smallest = mu * 1.001
        if smallest > 2 * useless_mu:
            break
    return inf


@lru_cache(maxsize=64)
def score_variance(mechanism: DiscreteMechanism, honest: int, distribution: PmfKind) -> float:
    """The largest variance of a coordinate's score with all other clients at one breakpoint.

    It is about μ² over the squared distance in clips, and no bound.

    Args:
        mechanism: A mechanism with a table of pmfs.
        honest: Number of honest clients in the sum.
        distribution: "paper" or "sampled".

    Returns:
        The variance, per clip².
    """
    own_pmfs = np.exp(mechanism.breakpoint_log_pmfs(distribution))
    widths = _cell_widths(mechanism, distribution)[:, None]
    largest = 0.0
    for base in _equal_inputs(own_pmfs, honest):
        sums = np.array([np.convolve(own_pmf, base.pmf) for own_pmf in own_pmfs])
        squares = (np.diff(sums, axis=0) / widths) ** 2
        for inside in (sums[:-1], sums[1:]):
            terms = np.divide(squares, inside, out=np.zeros_like(squares), where=inside > 0)
            largest = max(largest, float(terms.sum(axis=1).max()))
    return largest


def _cell_widths(mechanism: DiscreteMechanism, distribution: PmfKind) -> FloatArray:
    """Distances of neighboring breakpoints, in clips.

    For sampled pmfs they are distances of integer positions, in units of half their span: the encoder's grid ends up
    to one position inside the clip.
    """
    if distribution == "paper":
        return np.asarray(np.diff(mechanism.breakpoints) / mechanism.clip)
    recipe = mechanism.sampler
    positions = recipe.position(mechanism.breakpoints)
    return np.asarray(np.diff(positions) * (2 / (recipe.high - recipe.low)))


@lru_cache(maxsize=64)
def _scores(mechanism: DiscreteMechanism, honest: int, distribution: PmfKind) -> "GaussianMixture | None":
    """A distribution above every score of a coordinate in convex order; None if none is known."""
    own_pmfs = np.exp(mechanism.breakpoint_log_pmfs(distribution))
    widths = _cell_widths(mechanism, distribution)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = own_pmfs[1:] / own_pmfs[:-1]
        scores = (np.maximum(ratio, 1 / ratio) - 1) / widths[:, None]
    largest = float(np.nanmax(scores)) * (1 + 1e-9)
    if not np.isfinite(largest):
        return None
    return GaussianMixture.above(*_bounded_scores(own_pmfs, honest, widths, largest))


def _bounded_scores(
    own_pmfs: FloatArray, honest: int, widths: FloatArray, largest: float
) -> tuple[FloatArray, FloatArray]:
    """Some τ from zero to the largest score, and bounds of E(score − τ)₊ over all inputs of all
    clients.

    See docs/proofs/interior-levels.md#lemma-14.
    """
    pairs, epsilons, weights = _stop_loss_terms(widths, np.zeros(1))
    at_zero = weights * _attained(own_pmfs, honest, pairs, epsilons)
    deviation = sqrt(2 * pi) * float(at_zero.max())  # of a Gaussian with that mean of its positive part
    steps = [np.arange(0, 4.1, 0.25), np.arange(4.5, 8.1, 0.5), np.arange(9, 17), np.arange(19, 40, 3)]
    tau = np.concatenate(steps) * deviation
    tau = tau[tau < largest]
    pairs, epsilons, weights = _stop_loss_terms(widths, tau)
    attained = (weights * _attained(own_pmfs, honest, pairs, epsilons)).max(axis=0)
    is_rare = np.append(attained < 1e-60 * deviation, True)
    used = int(np.argmax(is_rare)) + 1
    tau = tau[:used]
    attained = attained[:used]
    epsilons = np.ascontiguousarray(epsilons[:, :used])
    weights = weights[:, :used]
    negligible = NEGLIGIBLE_PART * float(attained.min() / weights.max())
    certified = np.full(len(tau), inf)
    for bounds in _certified(own_pmfs, honest, pairs, epsilons, negligible):
        certified = (weights * bounds).max(axis=0)
        if (certified <= 1.02 * attained).all():
            break
    above = np.append(certified * (1 + 1e-9) + deviation * 1e-100, 0.0)
    return np.append(tau, largest), np.maximum.accumulate(above[::-1])[::-1]


def _stop_loss_terms(widths: FloatArray, tau: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """E(score − τ)₊ in every cell, in both directions, at both ends of the cell, as weighted
    hockey-stick divergences.

    On a cell of width w between P and Q the score is (Q − P)/w over the pmf. Under P, E(score −
    τ)₊ is the divergence at log(1 + τw) over w; under Q it is (1 − τw)/w times that at −log(1 −
    τw).

    See docs/proofs/interior-levels.md#lemma-14.

    Returns:
        Pairs of breakpoints (rows), and for each pair and τ the ε and the weight of a divergence.
    """
    widths = widths[:, None]
    step = widths * tau
    steep = np.maximum(1 - step, 1e-300)
    epsilons = np.concatenate([np.log1p(step), -np.log(steep)])
    weights = np.concatenate([np.ones_like(step) / widths, np.where(step < 1, steep, 0.0) / widths])
    cells = np.arange(len(widths))
    up = np.stack([cells + 1, cells], axis=1)
    down = np.stack([cells, cells + 1], axis=1)
    pairs = np.concatenate([up, up, down, down])
    return pairs, np.concatenate([epsilons, epsilons]), np.concatenate([weights, weights])


# -- mixtures of Gaussians above a score ----------------------------------------------------------


def _stop_loss(x: FloatArray) -> FloatArray:
    """E(Z − x)₊ of a standard normal Z, x ≥ 0, by Mills' ratio: up to x = 38, where it vanishes, the relative error
    is below 10⁻¹²."""
    x = np.minimum(x, 1e6)
    mills_ratio = sqrt(pi / 2) * erfcx(x / sqrt(2))
    return np.asarray(_density(x) * np.maximum(1 - x * mills_ratio, 0))


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-x * x / 2) / sqrt(2 * pi))


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """√V·Z with a random variance V, and a small probability of a farthest value of either sign.

    Attributes:
        variances: Values of V.
        weights: Their probabilities.
        farthest_mass: Probability of ±`farthest`.
        farthest: The farthest value.
    """

    variances: FloatArray
    weights: FloatArray
    farthest_mass: float
    farthest: float

    @staticmethod
    def above(thresholds: FloatArray, stop_loss: FloatArray) -> "GaussianMixture | None":
        """A mixture above every symmetric score with E(S − τ)₊ ≤ `stop_loss` in convex order.

        See docs/proofs/interior-levels.md#lemma-15.

        Args:
            thresholds: Values of τ, the last of them the largest score.
            stop_loss: Bounds at these τ; the last is zero.

        Returns:
            The mixture with the least fourth moments that a linear program finds, or None.
        """
        from scipy.optimize import linprog  # noqa: PLC0415 (takes half a second)

        unit = sqrt(2 * pi) * float(stop_loss[0])
        # Beyond the last threshold that is used, all is put at the largest score.
        used = int(np.searchsorted(-stop_loss, -1e-70 * stop_loss[0]))
        used = max(2, min(used + 1, len(stop_loss) - 1))
        farthest = float(thresholds[-1])
        beyond = farthest - float(thresholds[used - 1])
        farthest_mass = 2 * float(stop_loss[used - 1]) / beyond
        deviations = unit * np.concatenate([np.linspace(0.9, 1.6, 29), [1.7, 1.9, 2.2, 2.6, 3.2, 4.0]])
        x = np.concatenate([np.linspace(a, b, 60) for a, b in pairwise(thresholds[:used])])
        needed = np.interp(x, thresholds, stop_loss)
        with np.errstate(over="ignore"):
            rows = deviations * _stop_loss(x[:, None] / deviations) / needed[:, None]
        fourth_moments = (deviations / unit) ** 4
        total = np.ones((1, len(deviations)))
        at_least = np.minimum(rows, 1e4)
        solved = linprog(fourth_moments, A_ub=-at_least, b_ub=-np.ones(len(x)), A_eq=total, b_eq=[1.0])
        if solved.x is None:
            return None
        weights = np.maximum(solved.x, 0)
        weights /= weights.sum()
        shortfall = _shortfall(x, needed, deviations, weights * (1 - farthest_mass))
        if not 0 < shortfall <= 1.2 or farthest_mass > 1e-9:
            return None
        return GaussianMixture((deviations * shortfall) ** 2, weights, farthest_mass, farthest)

    @cached_property
    def mean(self) -> float:
        """The mean of V."""
        return float(self.weights @ self.variances)

    def _mean_of(self, count: int) -> tuple[FloatArray, FloatArray]:
        """The mean of `count` independent V in units of E V, and its pmf; each V is spread over two
        multiples of a step."""
        step = 0.05
        scaled = self.variances / self.mean / step
        low = np.floor(scaled).astype(np.int64)
        fraction = scaled - low
        square = np.zeros(int(low.max()) + 2)
        np.add.at(square, low, self.weights * (1 - fraction))
        np.add.at(square, low + 1, self.weights * fraction)
        pmf, left = np.ones(1), count
        while left:
            if left & 1:
                pmf = _without_rare_end(np.convolve(pmf, square))
            square = _without_rare_end(np.convolve(square, square))
            left = left >> 1
        return np.arange(len(pmf)) * step / count, pmf

    def factor(self, count: int, dim: int, tail: float) -> float:
        """μ² over the squared distance of two vectors, for events that are likelier than a tail.

        See docs/proofs/interior-levels.md#lemma-16.

        Args:
            count: The squared distance of the vectors in units of the farthest coordinate's.
            dim: Number of coordinates.
            tail: Probability of events that are left out.

        Returns:
            The factor, infinite if the farthest values matter too much.
        """
        m, pmf = self._mean_of(min(count, 64))  # fewer and farther coordinates only loosen the bound
        mean = float(pmf @ m)
        spread = float(pmf @ (m - mean) ** 2)
        last = float(-ndtri_exp(log(tail)))
        step = 0.02  # of the thresholds, in standard deviations
        t = np.arange(step, last * 2.0, step)[:, None]
        m, pmf = m[pmf > 0], pmf[pmf > 0]
        # Beyond t² the function of m is concave: there a tangent is above it, and all of it is convex.
        root = np.sqrt(np.minimum(m, t * t))
        beyond = np.maximum(m - t * t, 0)
        tangent = beyond * _density(np.ones(1)) / (2 * t)
        extreme = (root * _stop_loss(t / np.maximum(root, 1e-150)) + tangent) @ pmf
        # Up to t = 0.61 √m the tangent of E(√m Z − t)₊ at m lies above it. The largest t³ d²/dm² of it is 0.3705, at
        # t² = 5.45 m, rounded up (docs/proofs/interior-levels.md#lemma-16).
        deviation = sqrt(mean)
        threshold = t[:, 0]
        curvature = np.where(threshold < 0.61 * deviation, 0.0, 0.3705 / (2 * threshold**3) * spread)
        even = deviation * _stop_loss(threshold / deviation) + curvature
        z = np.append(np.arange(0, last, step / 2), last)
        isoperimetric = _density(z)
        lines = (np.minimum(extreme, even)[:, None] + t * ndtr(-z)) / isoperimetric
        between = np.maximum(lines[:, :-1], lines[:, 1:])
        worst = between.min(axis=0).max()
        with np.errstate(over="ignore"):
            farthest_mean = self.farthest_mass * self.farthest
            more = 2 * sqrt(dim / self.mean) * farthest_mean / float(isoperimetric[-1])
        return float((worst + more) ** 2 * self.mean * (1 + 1e-9)) if more < 1 else inf


def _without_rare_end(pmf: FloatArray) -> FloatArray:
    """The pmf without the values above which probabilities are below 10⁻²⁰⁰; the last value gets these."""
    last = int(np.flatnonzero(pmf > 1e-200)[-1])
    trimmed = pmf[: last + 1].copy()
    trimmed[-1] += pmf[last + 1 :].sum()
    return trimmed


def _shortfall(x: FloatArray, needed: FloatArray, deviations: FloatArray, weights: FloatArray) -> float:
    """The factor by which deviations must grow for the mixture to be above the lines, also between
    points.

    A convex function is above its tangents; where those of two neighboring points meet, it is
    above that.

    See docs/proofs/interior-levels.md#lemma-15.
    """
    scaled = x[:, None] / deviations
    value = deviations * _stop_loss(scaled) @ weights
    slope = -ndtr(-scaled) @ weights
    gap = np.diff(x)
    rise = slope[1:] - slope[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        meeting = (value[:-1] - value[1:] + slope[1:] * gap) / rise
        step = np.clip(np.nan_to_num(np.where(rise > 0, meeting, 0.0)), 0, gap)
        lowest = np.minimum(value[:-1], value[:-1] + slope[:-1] * step)
        between = np.where(gap > 0, needed[:-1] / np.maximum(lowest, 1e-300), 0.0)
    at_points = needed / np.maximum(value, 1e-300)
    return max(1.0, float(between.max()), float(at_points.max())) * (1 + 1e-9)
