"""How well two inputs can be told apart by the best events, in units of the Gaussian: z = Φ⁻¹ of their probabilities.

For laws that are affine between two ends the best events are the same for all inputs: the outcomes that speak most for
one end, one after the other (``docs/proofs/gaussian.md``).
"""

from dataclasses import dataclass
from math import log, pi
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri_exp

from rqm._util.checks import FloatArray
from rqm.privacy.setting import Neighbours

ERROR = 1e-11
"""More than the error of Φ⁻¹ of a sum of positive numbers."""
CELLS = 32
"""Stretches into which the way from zero to an end of the clip is cut, where it matters."""
AT_ONCE = 256
"""Events that are looked at closely at a time, those that could be worst first."""

Places = npt.NDArray[np.int64]


class Coordinate(NamedTuple):
    """μ² of a coordinate: at most ``most``; and at most ``per_square`` times 2(u² + u'²), or u² if u' is zero."""

    per_square: float
    most: float


@dataclass(frozen=True)
class Events:
    """The best events to tell inputs apart, each with its probability and that of its complement.

    Rows are for the inputs −1, 0 and 1, columns for events. ``rise`` is half of what an event's probability rises by
    from −1 to 1.
    """

    inside: FloatArray
    outside: FloatArray
    rise: FloatArray

    @classmethod
    def of(cls, low: FloatArray, high: FloatArray, tail: float) -> "Events | None":
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

    def at(self, u: float | FloatArray, some: slice | Places = slice(None)) -> FloatArray:
        """Φ⁻¹ of the probability of some events for the input u, or inputs of the same sign."""
        end, part = (2, u) if np.min(u) >= 0 else (0, -u)
        inside, outside = ((1 - part) * both[1, some] + part * both[end, some] for both in (self.inside, self.outside))
        with np.errstate(divide="ignore"):
            return np.asarray(
                np.where(inside <= outside, ndtri_exp(np.log(inside)), -ndtri_exp(np.log(outside))), dtype=np.float64
            )

    def apart(self) -> float:
        """The smallest μ for which the two ends are μ-GDP."""
        return float((abs(self.at(1.0) - self.at(-1.0)) + ERROR).max())

    def steepest(self) -> float:
        """The largest slope of Φ⁻¹ over all events and inputs: it is found at an end."""
        return max(float(self._slope(self.at(end)).max()) for end in (1.0, -1.0))

    def _slope(self, z: FloatArray, some: slice | Places = slice(None)) -> FloatArray:
        """The slopes of Φ⁻¹ of some events where it is z."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.rise[some] * np.exp(z * z / 2 + log(2 * pi) / 2)  # over φ(z)
        return np.asarray(np.where(np.isnan(found), np.inf, found))

    def mean_slopes(self, some: Places, sign: int) -> FloatArray:
        """Bounds of (Φ⁻¹ at ± x − Φ⁻¹ at 0) / ± x, a row for each x from 0 to 1 by ``CELLS``; first the slope at 0."""
        start = self.at(0.0, some)
        steepest = self._slope(start, some)
        x = (np.arange(1, CELLS + 1) / CELLS)[:, None]
        now = self.at(sign * x, some)
        # Φ⁻¹ rises by no more than its steepest slope on the way, which is at one end of it.
        most = np.maximum(steepest, self._slope(now, some))
        with np.errstate(invalid="ignore"):
            found = np.minimum((abs(now - start) + ERROR) / x, most)
        return np.vstack([steepest, np.where(np.isnan(found), np.inf, found)])

    def worst(self, known: Coordinate, neighbours: Neighbours) -> Coordinate:
        """The largest μ² over these events and what is known already."""
        middle = self.at(0.0)
        slope = self._slope(middle)
        ways = []
        for sign in (1, -1):
            end = self.at(float(sign))
            with np.errstate(invalid="ignore"):
                way = np.minimum(abs(end - middle) + ERROR, np.maximum(slope, self._slope(end)))
            ways.append(np.where(np.isnan(way), np.inf, way))
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
        slopes = [self.mean_slopes(some, sign) for sign in (1, -1)]
        found = slopes[0][0] ** 2
        edges = (np.arange(CELLS + 1) / CELLS)[:, None]
        for one, other in (slopes, slopes[::-1]):
            steep, end = np.maximum(one[:-1], one[1:]), other[-1]
            with np.errstate(divide="ignore", invalid="ignore"):
                x = np.clip(np.nan_to_num(steep / end, nan=1.0, posinf=1.0), edges[:-1], edges[1:])
            found = np.maximum(found, ((x * steep + end) ** 2 / (2 * (x * x + 1))).max(axis=0))
        return np.asarray(found)
