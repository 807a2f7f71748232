"""A release as a Gaussian mechanism: certified μ for which it is μ-GDP.

Two distributions are μ-GDP if no test tells them apart better than it tells N(0, 1) from N(μ, 1)
(Dong, Roth and Su 2022). Where the pmf of a coordinate is affine on the clip, the release of a
whole vector under an L2 bound is μ-GDP, except for outcomes far in the tails whose probability is
the bound's `failure` (docs/proofs/affine.md#theorem-10). Unlike Rényi divergences, trade-off functions
lose nothing on the way to (ε, δ).

The best tests of two inputs are events: the outcomes that speak most for one end of the clip, one
after the other. They are the same for all inputs. Events are measured by z = Φ⁻¹ of their
probability.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, pi, sqrt

import numpy as np
from scipy.special import ndtri_exp

from rqm._util.checks import FloatArray, one_of, real, whole
from rqm.bounds import Neighboring
from rqm.certify.affine_rdp import Ends, end_pmfs, end_sums, squared_distance
from rqm.certify.distributions import ROUND_UP, IntArray
from rqm.certify.scores import summed_rate
from rqm.certify.trials import CoordinateGdp, nan_as_infinity, summed_trials, z_distance
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind


def affine_gdp(
    mechanism: DiscreteMechanism,
    *,
    honest: int,
    dim: int,
    l2_clip: float,
    failure: float,
    neighboring: Neighboring = "replace-one",
    distribution: PmfKind = "paper",
) -> float:
    """Certified μ of the sum over honest clients of whole vectors, with one client's vector changed.

    See docs/proofs/affine.md#theorem-10.

    Args:
        mechanism: A mechanism whose pmf, or that of its trials, is affine on the clip.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        l2_clip: L2 bound of a vector.
        failure: Probability of the outcomes that μ leaves out.
        neighboring: "replace-one" or "zero-out".
        distribution: "paper" or "sampled".

    Returns:
        μ, infinite if none is known.

    >>> from rqm import StochasticRounding
    >>> mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=20.7)
    >>> round(affine_gdp(mechanism, honest=100, dim=2**20, l2_clip=1.0, failure=1e-9), 3)
    2.375
    """
    honest = whole("honest", honest, 1)
    dim = whole("dim", dim, 1)
    real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    one_of("neighboring", neighboring, ("replace-one", "zero-out"))
    ends = end_pmfs(mechanism, distribution)
    trials = mechanism.bernoulli_trials
    tail = _tail(failure, dim * trials)
    coordinate = coordinate_gdp(ends, honest - 1, neighboring, tail)
    distance = squared_distance(mechanism, l2_clip, neighboring)
    squared = trials * min(distance * coordinate.per_square, dim * coordinate.largest)
    variance = honest * trials * float(mechanism.variance(mechanism.clip)) / mechanism.clip**2
    if trials > 1 and coordinate.per_square * variance > 1.1:  # else the sum is Gaussian enough, and takes seconds
        summed = summed_trials((ends[0][1], ends[1][1]), trials, honest, neighboring, trials * tail)
        squared = min(squared, distance * summed.per_square, dim * summed.largest)
    per_coordinate = 4 if neighboring == "replace-one" else 1
    longest = trials * min(distance / per_coordinate, dim)
    return sqrt(min(squared, per_coordinate * longest * summed_rate(ends, honest - 1, longest)))


def affine_gdp_anywhere(
    mechanism: DiscreteMechanism,
    *,
    honest: int,
    dim: int,
    sensitivity: float,
    failure: float,
    distribution: PmfKind = "paper",
) -> float:
    """Certified μ if the vector may lie anywhere in the clip and moves by at most `sensitivity` in
    L2.

    See docs/proofs/affine.md#theorem-11.

    Args:
        mechanism: A mechanism whose pmf, or that of its trials, is affine on the clip.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        sensitivity: The largest L2 distance of neighboring vectors.
        failure: Probability of the outcomes that μ leaves out.
        distribution: "paper" or "sampled".

    Returns:
        μ, infinite if none is known.
    """
    ends = end_pmfs(mechanism, distribution)
    trials = mechanism.bernoulli_trials
    distance = (sensitivity / mechanism.clip) ** 2
    tail = _tail(failure, dim * trials)
    longest = trials * min(distance, 4 * dim)
    by_slope = steepest_slope(ends, honest - 1, tail) ** 2
    by_scores = summed_rate(ends, honest - 1, longest / min(4.0, distance))
    rate = min(by_slope, by_scores)
    largest_slope = coordinate_gdp(ends, honest - 1, "replace-one", tail).largest
    return sqrt(min(longest * rate, trials * dim * largest_slope))


def _tail(failure: float, coordinates: int) -> float:
    """The tail at each end of a coordinate, rounded down to a power of two so that results can be
    reused."""
    failure = real("failure", failure, "above 0 and below 1", 0, 1)
    return float(2.0 ** np.floor(np.log2(failure / (2 * coordinates) / ROUND_UP)))


@lru_cache(maxsize=256)
def coordinate_gdp(ends: Ends, others: int, neighboring: Neighboring, tail: float) -> CoordinateGdp:
    """μ² of a coordinate whose pmf is affine between two pmfs, beside other clients, except for a
    tail at each end.

    See docs/proofs/affine.md#lemma-8.

    Args:
        ends: The pmfs at the two ends of the clip.
        others: Number of other clients.
        neighboring: "replace-one" or "zero-out".
        tail: Probability at each end of the sum that is left out.

    Returns:
        The largest over all splits of the other clients between the two ends; infinite if tails
        are unknown.
    """
    worst = CoordinateGdp(0.0, 0.0)
    for events in _events_of_splits(ends, others, tail):
        if events is None:
            return CoordinateGdp(inf, inf)
        worst = events.raised(worst, neighboring)
    return CoordinateGdp(worst.per_square * ROUND_UP, worst.largest * ROUND_UP)


@lru_cache(maxsize=256)
def steepest_slope(ends: Ends, others: int, tail: float) -> float:
    """The largest ratio of μ of a coordinate to the distance of its two inputs, in clips.

    Args:
        ends: The pmfs at the two ends of the clip.
        others: Number of other clients.
        tail: Probability at each end of the sum that is left out.

    Returns:
        The ratio, over all splits of the other clients; infinite if tails are unknown.
    """
    slopes = [inf if events is None else events.steepest_slope() for events in _events_of_splits(ends, others, tail)]
    return max(slopes, default=0.0) * ROUND_UP


def _events_of_splits(ends: Ends, others: int, tail: float) -> Iterator["BestEvents | None"]:
    """The best events beside every split of the other clients; None where a tail is unknown."""
    for low, high, missing in end_sums(ends, others):
        if 2 * missing > tail:
            yield None
        elif events := BestEvents.between(low, high, tail - missing):
            yield events


@dataclass(frozen=True)
class BestEvents:
    """The best events to tell inputs apart, with their probabilities and those of their complements.

    Rows are for the inputs −1, 0 and 1 (in clips), columns for events.

    Attributes:
        inside: Probabilities of the events.
        outside: Probabilities of their complements.
        rise: Half of what the probability of an event rises by from −1 to 1.
    """

    inside: FloatArray
    outside: FloatArray
    rise: FloatArray

    @classmethod
    def between(cls, low: FloatArray, high: FloatArray, tail: float) -> "BestEvents | None":
        """The outcomes that speak most for one end, one after the other, without a tail at each
        side.

        See docs/proofs/affine.md#lemma-5.

        Args:
            low: The pmf at the input −1.
            high: The pmf at the input 1.
            tail: Probability at each side that is left out.

        Returns:
            The events, or None if everything is tail.
        """
        is_seen = (low > 0) | (high > 0)
        low, high = low[is_seen], high[is_seen]
        by_ratio = np.argsort((low - high) / (low + high), kind="stable")
        pmfs = np.array([low, (low + high) / 2, high])[:, by_ratio]
        inside = np.cumsum(pmfs, axis=1)[:, :-1]
        outside = np.cumsum(pmfs[:, ::-1], axis=1)[:, -2::-1]
        change = (pmfs[2] - pmfs[0]) / 2
        up = np.cumsum(change)[:-1]
        down = -np.cumsum(change[::-1])[-2::-1]
        rise = np.where(inside[1] < outside[1], up, down)
        likely_inside = inside[[0, 2]].max(axis=0) > tail
        likely_outside = outside[[0, 2]].max(axis=0) > tail
        first = np.count_nonzero(~likely_inside) - 1
        last = np.count_nonzero(likely_outside)
        used = slice(max(first, 0), last + 1)
        if not inside[:, used].size:
            return None
        return cls(inside[:, used], outside[:, used], np.maximum(rise[used], 0))

    def z(self, u: float | FloatArray, events: slice | IntArray = slice(None)) -> FloatArray:
        """Φ⁻¹ of the probability of some events.

        Args:
            u: The input in clips, from −1 to 1, or inputs of the same sign.
            events: Which events; by default all.

        Returns:
            A value for each event.
        """
        end = 2 if np.min(u) >= 0 else 0
        weight = np.abs(u)
        inside = (1 - weight) * self.inside[1, events] + weight * self.inside[end, events]
        outside = (1 - weight) * self.outside[1, events] + weight * self.outside[end, events]
        with np.errstate(divide="ignore"):
            z = ndtri_exp(np.log(np.minimum(inside, outside)))
        return np.where(inside <= outside, z, -z)

    def mu_between_ends(self) -> float:
        """The smallest μ for which the two ends are μ-GDP."""
        return float(z_distance(self.z(1.0), self.z(-1.0)).max())

    def steepest_slope(self) -> float:
        """The largest slope of z over all events and inputs; it is attained at an end.

        See docs/proofs/affine.md#lemma-6.
        """
        return max(float(self._slope(self.z(end)).max()) for end in (1.0, -1.0))

    def _slope(self, z: FloatArray, events: slice | IntArray = slice(None)) -> FloatArray:
        """The slopes of Φ⁻¹ of some events where it is z."""
        with np.errstate(over="ignore", invalid="ignore"):
            over_density = np.exp(z * z / 2 + log(2 * pi) / 2)
            return nan_as_infinity(self.rise[events] * over_density)

    def _mean_slope(
        self, u: float | FloatArray, center: FloatArray, slope: FloatArray, events: slice | IntArray = slice(None)
    ) -> FloatArray:
        """Bounds of |z(u) − z(0)| / |u| for some events, of which z and its slope at 0 are given.

        See docs/proofs/affine.md#lemma-6.
        """
        z = self.z(u, events)
        steepest = np.maximum(slope, self._slope(z, events))  # on the way z is steepest at one end of it
        with np.errstate(invalid="ignore"):
            mean = z_distance(z, center) / np.abs(u)
        return nan_as_infinity(np.minimum(mean, steepest))

    def raised(self, bounds: CoordinateGdp, neighboring: Neighboring) -> CoordinateGdp:
        """The largest μ² over these events and those before.

        See docs/proofs/affine.md#lemma-7.

        Args:
            bounds: The largest so far. Events that cannot exceed it are not bounded closely.
            neighboring: "replace-one" or "zero-out".

        Returns:
            The larger of each.
        """
        center = self.z(0.0)
        slope = self._slope(center)
        rises = [self._mean_slope(end, center, slope) for end in (1.0, -1.0)]
        slopes = [np.maximum(slope, rise) for rise in rises]
        return bounds.raised(rises, slopes, self._per_square, neighboring, batch_size=256)

    def _per_square(self, events: IntArray) -> float:
        """The largest μ² / (2(u² + u'²)) of some events over all u ≥ 0 ≥ u': at 0, or with one of
        them at its end.

        See docs/proofs/affine.md#lemma-7.
        """
        center = self.z(0.0, events)
        slope = self._slope(center, events)
        edges = np.linspace(0, 1, 33)[:, None]  # of the intervals in which the mean slope is bounded
        up = np.vstack([slope, self._mean_slope(edges[1:], center, slope, events)])
        down = np.vstack([slope, self._mean_slope(-edges[1:], center, slope, events)])
        largest = float(slope.max()) ** 2
        for mean, end in ((up, down[-1]), (down, up[-1])):
            steepest = np.maximum(mean[:-1], mean[1:])
            with np.errstate(divide="ignore", invalid="ignore"):
                best = steepest / end
            best = np.where(np.isfinite(best), best, 1.0)
            x = np.clip(best, edges[:-1], edges[1:])
            squares = (x * steepest + end) ** 2 / (2 * (x * x + 1))
            largest = max(largest, float(nan_as_infinity(squares).max()))
        return largest
