"""A release as a Gaussian mechanism: certified μ for which two inputs are no easier to tell than N(0, 1) and N(μ, 1).

Rényi divergences lose some per cent of noise on the way to (ε, δ); trade-off functions do not. Where the law of a
coordinate is affine on the clip, the release of a whole vector under an L2 budget is μ-GDP (Dong, Roth and Su 2022) but
for outcomes far out in the tails, whose probability is charged to δ (``docs/proofs/gaussian.md``). From then on
everything is the Gaussian's own, exact account: squares of μ add up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, pi, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri_exp

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.setting import Neighbours, checked_delta, checked_epsilon
from rqm.privacy.vector import end_laws, splits_of_others

SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""
ROUNDING = 1e-14
"""More than the relative errors of probabilities."""
ERROR = 1e-11
"""More than the error of Φ⁻¹ of such a sum."""
CELLS = 128
"""Stretches into which the way from zero to an end of the clip is cut, where it matters."""
AT_ONCE = 256
"""Events that are looked at closely at a time, those that could be worst first."""

Places = npt.NDArray[np.int64]


def gaussian_deltas(mu: float, epsilon: FloatArray) -> FloatArray:
    """δ of telling N(0, 1) from N(μ, 1) at some ε, exactly (Balle and Wang 2018) but for rounding, which is up."""
    if not mu:
        return np.zeros_like(epsilon)
    likely = ndtr(mu / 2 - epsilon / mu) * (1 + ROUNDING)
    return np.asarray(np.clip(likely - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)), 0, 1))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The same at one ε."""
    return float(gaussian_deltas(mu, np.array(epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε at which δ is enough; itself enough.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    delta = checked_delta(delta)
    if gaussian_delta(mu, 0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    found = float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0, high, xtol=1e-12, rtol=1e-12))
    return found * (1 + 1e-10) + 1e-11


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private; itself private."""
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    found = brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, high, xtol=1e-13, rtol=1e-12)
    return float(found) * (1 - 1e-10)


def vector_gdp(
    mech: Channel,
    *,
    honest: int,
    dim: int,
    l2_clip: float,
    lost: float,
    neighbours: Neighbours = "replace",
    law: Law = "paper",
) -> float:
    """Certified μ of the sum over ``honest`` clients of ``dim`` coordinates, one client's vector changed.

    For laws that are affine on the clip, or made of trials that are; but for outcomes of probability ``lost``.

    >>> from rqm import Rounding
    >>> mech = Rounding(clip=4 / 1024, levels=2, margin=20.7)
    >>> round(vector_gdp(mech, honest=100, dim=2**20, l2_clip=1.0, lost=1e-9), 3)
    2.375
    """
    if not mech.affine:
        raise ValueError("mechanism: must have a law that is affine on the clip, without a level inside")
    honest, dim = whole("honest", honest, 1), whole("dim", dim, 1)
    l2_clip, lost = real("l2_clip", l2_clip, "a positive finite number", 0, inf), checked_delta(lost)
    laws, trials = end_laws(mech, law)
    ends = tuple(map(tuple, laws.tolist()))
    tail = lost / (2 * dim * trials) / SLACK
    found = coordinate(ends, honest - 1, neighbours, 2.0 ** np.floor(np.log2(tail)))
    budget = (l2_clip / mech.clip) ** 2
    squared = trials * min((4 if neighbours == "replace" else 1) * budget * found.per_square, dim * found.most)
    return sqrt(squared)


class Coordinate(NamedTuple):
    """μ² of a coordinate: at most ``most``; and at most ``per_square`` times 2(u² + u'²), or u² if u' is zero."""

    per_square: float
    most: float


@lru_cache(maxsize=256)
def coordinate(laws: tuple[tuple[float, ...], ...], others: int, neighbours: Neighbours, tail: float) -> Coordinate:
    """What a coordinate leaks whose law is affine between ``laws``, beside others, but for ``tail`` at each end."""
    low, high = (np.array(law) for law in laws)
    worst = Coordinate(0.0, 0.0)
    for base, missing in splits_of_others(low, high, others):
        if 2 * missing > tail:
            raise ValueError(f"lost: {tail:.3g} at each end of a coordinate is less than can be told apart")
        events = _Events.of(np.convolve(low, base), np.convolve(high, base), tail - missing)
        if events is not None:
            worst = events.worst(worst, neighbours)
    return Coordinate(worst.per_square * SLACK, worst.most * SLACK)


@dataclass(frozen=True)
class _Events:
    """The best events to tell inputs apart, each with its probability and that of its complement.

    Rows are for the inputs −1, 0 and 1, columns for events. ``rise`` is half of what an event's probability rises by
    from −1 to 1.
    """

    inside: FloatArray
    outside: FloatArray
    rise: FloatArray

    @classmethod
    def of(cls, low: FloatArray, high: FloatArray, tail: float) -> "_Events | None":
        """The outcomes that speak most for one end, one after the other, but for a tail at each side."""
        seen = (low > 0) | (high > 0)
        low, high = low[seen], high[seen]
        order = np.argsort((low - high) / (low + high), kind="stable")
        laws = np.array([low, (low + high) / 2, high])[:, order]
        inside, outside = np.cumsum(laws, axis=1)[:, :-1], np.cumsum(laws[:, ::-1], axis=1)[:, -2::-1]
        change = (laws[2] - laws[0]) / 2
        up, down = np.cumsum(change)[:-1], -np.cumsum(change[::-1])[-2::-1]
        rise = np.where(inside[1] < outside[1], up, down)
        first = int(np.searchsorted(inside[[0, 2]].max(axis=0), tail, side="right")) - 1
        last = inside.shape[1] - int(np.searchsorted(outside[[0, 2]].max(axis=0)[::-1], tail, side="right"))
        kept = slice(max(first, 0), last + 1)
        if not inside[:, kept].size:
            return None  # all of it is tail
        return cls(inside[:, kept], outside[:, kept], np.maximum(rise[kept], 0))

    def at(self, u: float, some: slice | Places = slice(None)) -> FloatArray:
        """Φ⁻¹ of the probability of some events for the input u."""
        end, part = (2, u) if u >= 0 else (0, -u)
        inside, outside = ((1 - part) * both[1, some] + part * both[end, some] for both in (self.inside, self.outside))
        with np.errstate(divide="ignore"):
            return np.asarray(
                np.where(inside <= outside, ndtri_exp(np.log(inside)), -ndtri_exp(np.log(outside))), dtype=np.float64
            )

    def mean_slopes(self, some: Places, sign: int) -> Iterator[FloatArray]:
        """Bounds of (Φ⁻¹ at ± x − Φ⁻¹ at 0) / ± x, for x from 0 to 1 by ``CELLS``; the first is the slope at 0."""
        start = self.at(0.0, some)
        steepest = self.rise[some] * _steepness(start)
        yield steepest
        for cell in range(1, CELLS + 1):
            x = cell / CELLS
            now = self.at(sign * x, some)
            # Φ⁻¹ rises by no more than its steepest slope on the way, which is at one end of it.
            most = np.maximum(steepest, self.rise[some] * _steepness(now))
            yield np.minimum((abs(now - start) + ERROR) / x, most)

    def worst(self, known: Coordinate, neighbours: Neighbours) -> Coordinate:
        """The largest μ² over these events and what is known already."""
        middle = self.at(0.0)
        slope = self.rise * _steepness(middle)
        ways = []
        for sign in (1, -1):
            end = self.at(float(sign))
            ways.append(np.minimum(abs(end - middle) + ERROR, np.maximum(slope, self.rise * _steepness(end))))
        if neighbours == "zero-out":
            crude = np.maximum.reduce([slope, *ways]) ** 2
            return Coordinate(max(known.per_square, crude.max()), max(known.most, np.maximum(*ways).max() ** 2))
        most = max(known.most, float(((ways[0] + ways[1]) ** 2).max()))
        crude = sum((np.maximum(slope, way) ** 2 for way in ways), start=np.zeros(len(slope))) / 2
        found, order = known.per_square, np.argsort(-crude)
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            if crude[some[0]] <= found:
                break
            found = max(found, float(self._closely(some[crude[some] > found]).max()))
        return Coordinate(found, most)

    def _closely(self, some: Places) -> FloatArray:
        """The largest μ² / (2 (u² + u'²)) of some events over all u ≥ 0 ≥ u': at 0, or with one of them at its end."""
        slopes = [np.array(list(self.mean_slopes(some, sign))) for sign in (1, -1)]
        found = slopes[0][0] ** 2
        edges = (np.arange(CELLS + 1) / CELLS)[:, None]
        for one, other in (slopes, slopes[::-1]):
            steep, end = np.maximum(one[:-1], one[1:]), other[-1]
            with np.errstate(divide="ignore", invalid="ignore"):
                x = np.clip(np.nan_to_num(steep / end, nan=1.0, posinf=1.0), edges[:-1], edges[1:])
            found = np.maximum(found, ((x * steep + end) ** 2 / (2 * (x * x + 1))).max(axis=0))
        return np.asarray(found)


def _steepness(z: FloatArray) -> FloatArray:
    """The slope of Φ⁻¹ where it is z: 1/φ(z)."""
    return np.asarray(np.exp(z * z / 2 + log(2 * pi) / 2))
