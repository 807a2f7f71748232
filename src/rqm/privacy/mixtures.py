"""Scores of many coordinates, bounded by Gaussians whose variances are drawn: tight for few coordinates and for many.

Let s be the score of a coordinate, and E(s − τ)₊ ≤ π(τ) for all inputs of everybody. If a mixture of centred Gaussians,
√V·Z, has no less of it at every τ, it is above s in convex order, and Σ a_j s_j is below √M·Z, M = Σ a_j² V_j. Under a
budget Σ a_j² ≤ S, a_j² ≤ S/N, the worst is N coordinates at their furthest, or as if all variances were their mean
(``docs/proofs/inner.md``). So a release is s-GDP with s² about S times the mean of V.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf, log, pi, sqrt

import numpy as np
from scipy.special import ndtr

from rqm._util.checks import FloatArray

DEVIATIONS = np.concatenate([np.linspace(0.9, 1.6, 29), [1.7, 1.9, 2.2, 2.6, 3.2, 4.0]])
"""Those of the Gaussians, in units of that whose mean is π(0)."""
WITHIN = 60
"""Places between two where π is known, at which the mixture is compared with the line between them."""
DEEPEST = 1e-70
"""What is less than that part of π(0) is put at the largest score."""
STEEP = 1e4
"""More than enough of a mixture at one place."""
GRID = 0.05
"""Variances are held as multiples of this part of their mean."""
MOST = 64
"""Coordinates at their furthest that are looked at: to think of fewer, further out, is to be on the safe side."""
TANGENT = 0.61
"""For t below this times √m, E(√m Z − t)₊ is above the line from zero to it, and so its concave hull is itself."""
CURVED = 0.3705
"""The largest t³ d²/dm² E(√m Z − t)₊, at t² = 5.45 m, rounded up."""
STEP = 0.02
"""Thresholds of scores, in deviations, that are tried; twice as many probabilities."""
NEVER = 1e-200
"""Probabilities that are added to those farthest out."""


def _missing(x: FloatArray) -> FloatArray:
    """E(Z − x)₊ of a standard Gaussian, x ≥ 0."""
    near, far = np.minimum(x, 7.0), np.maximum(x, 7.0)
    close = _density(near) - near * ndtr(-near)
    # An alternating series, cut where it is below.
    return np.asarray(np.where(x < 7, close, _density(far) / far**2 * (1 - 3 / far**2)))


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-x * x / 2) / sqrt(2 * pi))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A law of variances with as many ``weights``, and a chance ``out`` of being at ± ``furthest``."""

    variances: FloatArray
    weights: FloatArray
    out: float
    furthest: float

    @staticmethod
    def over(places: FloatArray, above: FloatArray) -> "Mixture | None":
        """One that is above every law with E(s − τ)₊ ≤ ``above`` at ``places``, which end where it is zero."""
        from scipy.optimize import linprog  # noqa: PLC0415 (takes a while)

        unit = sqrt(2 * pi) * float(above[0])
        known = int(np.searchsorted(-above, -DEEPEST * above[0]))
        known = max(2, min(known + 1, len(above) - 1))
        furthest = float(places[-1])
        out = 2 * float(above[known - 1]) / (furthest - float(places[known - 1]))
        deviations = unit * DEVIATIONS
        x = np.concatenate([np.linspace(a, b, WITHIN) for a, b in pairwise(places[:known])])
        wanted = np.interp(x, places, above)
        found = np.array([deviation * _missing(x / deviation) for deviation in deviations]).T
        with np.errstate(over="ignore"):
            rows = np.minimum(found / wanted[:, None], STEEP)
        solved = linprog(
            (deviations / unit) ** 4, A_ub=-rows, b_ub=-np.ones(len(x)), A_eq=np.ones((1, len(deviations))), b_eq=[1.0]
        )
        if solved.x is None:
            return None
        weights = np.maximum(solved.x, 0)
        weights /= weights.sum()
        short = _shortfall(x, wanted, deviations, weights * (1 - out))
        if not 0 < short <= 1.2 or out > 1e-9:
            return None
        return Mixture((deviations * short) ** 2, weights, out, furthest)

    @property
    def mean(self) -> float:
        """The mean of the variances, with what is out."""
        return float(self.weights @ self.variances)

    @lru_cache(maxsize=64)  # noqa: B019 (as long as those who ask)
    def _sums(self, count: int) -> tuple[FloatArray, FloatArray]:
        """The mean of so many variances, in units of its own mean, and its law; each is spread over two multiples."""
        scaled = self.variances / self.mean / GRID
        low = np.floor(scaled).astype(np.int64)
        part, size = scaled - low, int(low.max()) + 2
        one = np.zeros(size)
        np.add.at(one, low, self.weights * (1 - part))
        np.add.at(one, low + 1, self.weights * part)
        law, square, left = np.ones(1), one, count
        while left:
            if left & 1:
                law = _cut(np.convolve(law, square))
            square, left = _cut(np.convolve(square, square)), left >> 1
        return np.arange(len(law)) * GRID / count, law

    def factor(self, count: int, dim: int, tail: float) -> float:
        """s² over S, for events likelier than ``tail``, of ``dim`` coordinates; S is ``count`` times the furthest."""
        count = min(count, MOST)
        m, law = self._sums(count)
        mean = float(law @ m)
        spread = float(law @ (m - mean) ** 2)
        last = _quantile(tail)
        t = np.arange(STEP, last * 2.0, STEP)[:, None]
        seen = law > 0
        m, law = m[seen], law[seen]
        # Beyond t² the function of m is concave: there a tangent is above, and it all is convex.
        root = np.sqrt(np.minimum(m, t * t))
        tangent = np.maximum(m - t * t, 0) * float(_density(np.ones(1))[0]) / (2 * t)
        extreme = (root * _missing(t / np.maximum(root, 1e-150)) + tangent) @ law
        deviation = np.full_like(t[:, 0], sqrt(mean))
        curved = np.where(t[:, 0] < TANGENT * sqrt(mean), 0.0, CURVED / (2 * t[:, 0] ** 3) * spread)
        even = deviation * _missing(t[:, 0] / deviation) + curved
        bound = np.minimum(extreme, even)
        z = np.append(np.arange(0, last, STEP / 2), last)
        p, isoperimetric = ndtr(-z), _density(z)
        lines = (bound[:, None] + t * p) / isoperimetric
        worst = np.maximum(lines[:, :-1], lines[:, 1:]).min(axis=0).max()
        with np.errstate(over="ignore"):
            more = 2 * sqrt(dim / self.mean) * self.out * self.furthest / float(isoperimetric[-1])
        return float((worst + more) ** 2 * self.mean * (1 + 1e-9)) if more < 1 else inf


def _quantile(tail: float) -> float:
    """The z beyond which a standard Gaussian is with a chance of ``tail``."""
    from scipy.special import ndtri_exp  # noqa: PLC0415 (rare)

    return float(-ndtri_exp(log(tail)))


def _cut(law: FloatArray) -> FloatArray:
    """Without what never happens far out; that is added to the last that does."""
    last = int(np.flatnonzero(law > NEVER)[-1])
    kept = law[: last + 1].copy()
    kept[-1] += law[last + 1 :].sum()
    return kept


def _shortfall(x: FloatArray, wanted: FloatArray, deviations: FloatArray, weights: FloatArray) -> float:
    """By what factor the deviations must grow for the mixture to be above lines between places, also in between.

    A convex function is above its tangents; where those of two neighbouring places meet, it is above that.
    """
    value = np.array([d * _missing(x / d) for d in deviations]).T @ weights
    slope = -np.array([ndtr(-x / d) for d in deviations]).T @ weights
    gap = np.diff(x)
    rise = slope[1:] - slope[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(rise > 0, (value[:-1] - value[1:] + slope[1:] * gap) / rise, 0.0)
    step = np.clip(np.nan_to_num(step), 0, gap)
    lowest = np.minimum(value[:-1], value[:-1] + slope[:-1] * step)
    with np.errstate(divide="ignore"):
        inside = np.where(gap > 0, wanted[:-1] / np.maximum(lowest, 1e-300), 0.0)
    return float(max(1.0, inside.max(), (wanted / np.maximum(value, 1e-300)).max())) * (1 + 1e-9)
