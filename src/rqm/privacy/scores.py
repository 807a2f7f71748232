"""A release of many coordinates as a Gaussian mechanism, where one coordinate of few clients is far from one.

A coin has a trade-off function that is a quarter away from a Gaussian's; the sum of what a million coins tell has not.
On the straight way from one vector to another, Φ⁻¹ of an event's probability rises no faster than s, if the score of
the release is below s·Z in convex order, Z a Gaussian. Scores of coordinates add up, and convex order goes with sums
(``docs/proofs/scores.md``). No outcome is left out: nothing is charged to δ.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, log, pi

import numpy as np
from scipy.special import ndtri_exp

from rqm._util.checks import FloatArray
from rqm.privacy.vector import splits_of_others

FEW = 32
"""Clients up to whom it is worth while: of more, a coordinate is nearly a Gaussian itself."""
CELLS = 24
"""Places from zero to the largest score at which the law of all scores is bounded; in between it is spread outwards."""
MOST = 512
"""Scores that are added up at most."""
SPARE = 1e-7
"""The part of the law that is put at its ends: more than rounding errors take away anywhere."""
NEGLIGIBLE = 1e-200
"""Probabilities below this are moved to the ends."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers, and of Φ⁻¹."""


def summed_rate(laws: tuple[tuple[float, ...], ...], others: int, budget: float) -> float:
    """A bound of μ² over the squared distance of two vectors in clips, if that may be as large as it says.

    The law of a coordinate is affine between ``laws``. ``budget`` is the largest squared distance of vectors, in units
    of the largest of one coordinate: so many coordinates change at least. Infinite if no bound is known.
    """
    best = inf
    if others >= FEW or budget < 2:
        return best
    for count, rate in _rates(laws, others, int(budget)):
        # Sorted, and cut into blocks of so many, all coordinates of a block are taken for its largest.
        best = min(best, rate * (1 + (count - 1) / budget))
    return best * SLACK


@lru_cache(maxsize=256)
def _rates(laws: tuple[tuple[float, ...], ...], others: int, most: int) -> tuple[tuple[int, float], ...]:
    """For N = 1, 2, 4, …: the least s²/N for which N scores are below s·Z in convex order, until nothing is gained."""
    found: list[tuple[int, float]] = []
    for count, rate in _doubled(*_spread(np.array(laws[0]), np.array(laws[1]), others), min(most, MOST)):
        found.append((count, rate))
        if len(found) > 1 and rate * (1 + (count - 1) / most) > found[-2][1] * (1 + (count / 2 - 1) / most):
            break
    return tuple(found)


def _spread(low: FloatArray, high: FloatArray, others: int) -> tuple[FloatArray, float]:
    """A symmetric law on −CELLS, …, CELLS that is above every score of a coordinate in convex order; and its unit.

    E(S − t)₊ is convex in the own input, so it is largest at an end of the clip; the others stand at the ends too.
    """
    rises, laws = [], []
    for base, missing in splits_of_others(low, high, others):
        ends = np.array([np.convolve(end, base) for end in (low, high)])
        ends = ends[:, (ends > 0).any(axis=0)]
        if missing > 0 or not ends.all():
            return np.empty(0), inf
        rises += [(ends[1] - ends[0]) / 2] * 2
        laws += list(ends)
    largest = max(float((abs(rise) / law).max()) for rise, law in zip(rises, laws, strict=True)) * SLACK
    if not largest > 0:
        return np.empty(0), inf
    unit = largest / CELLS
    t = np.arange(-CELLS, CELLS + 1) * unit
    above = np.maximum(-t, 0)
    for rise, law in zip(rises, laws, strict=True):
        for sign in (1, -1):
            above = np.maximum(above, np.maximum(sign * rise - t[:, None] * law, 0).sum(axis=1))
    found = np.maximum(np.diff(np.concatenate([[-t[0] + unit], above, [0.0]]), 2), 0)
    found = (found + found[::-1]) / found.sum() / 2 * (1 - SPARE)
    found[[0, -1]] += SPARE / 2
    # What was made is looked at once more: nowhere may rounding have left it below. At both ends it cannot have.
    reached = unit * np.cumsum(np.cumsum(found[::-1]))[::-1]
    return (found, unit) if (reached[2:] >= above[1:-1]).all() else (np.empty(0), inf)


def _doubled(law: FloatArray, unit: float, most: int) -> Iterator[tuple[int, float]]:
    """N and s²/N for sums of N = 1, 2, 4, … copies.

    Little mass is moved to both ends of what a sum can be, which makes it larger in convex order; ``out`` is that mass.
    """
    count, out = 1, 0.0
    while len(law) and count <= most:
        yield count, (unit * _factor(law, out, CELLS * count)) ** 2 / count
        law, out, count = np.convolve(law, law), 2 * out, 2 * count
        kept = np.flatnonzero(law > NEGLIGIBLE)
        first = min(int(kept[0]), len(law) - 1 - int(kept[-1]))
        out += 2 * float(law[:first].sum()) + len(law) * 1e-300
        law = law[first : len(law) - first]


def _factor(law: FloatArray, out: float, furthest: int) -> float:
    """The least s for which a symmetric law is below s·Z in convex order: E[S; its best p] ≤ s φ(Φ⁻¹(p)) for all p."""
    half = len(law) // 2
    values = np.arange(half, -1, -1, dtype=np.float64)  # by symmetry p ≤ ½ is enough
    masses = np.concatenate([[out / 2], law[::-1][: half + 1]])
    chance = np.cumsum(masses)
    mean = np.cumsum(masses * np.concatenate([[furthest], values]))
    seen = (chance > 0) & (chance <= 0.5 * SLACK)
    z = ndtri_exp(np.log(chance[seen]))
    with np.errstate(over="ignore"):
        return float((mean[seen] * np.exp(z * z / 2 + log(2 * pi) / 2)).max())
