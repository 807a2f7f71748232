"""Many coordinates of few clients: a μ of the whole release, told from scratch by ``docs/proofs/scores.md``.

One law Y on a grid is above the score of any coordinate in convex order; a sum of N of them is below s·Z, Z normal.
"""

from collections.abc import Iterator
from math import inf, log, pi, sqrt

import numpy as np

from .laws import TAIL, Array, others

CLIENTS = 32
"""Honest clients up to whom it is worth while: of more, a coordinate alone is nearly normal."""
GRID, TERMS = 24, 512
"""Steps of Y from zero to the largest score, and scores that are added up at most: as accountants have them."""
ENDS = 1.01e-7
"""The part of Y that lies at its two ends, and covers what rounding takes away there; more than accountants put."""
LEAST = 1e-199
"""Probabilities below this go to the ends of a sum: more than accountants move there."""
SHORT = 112
"""Outcomes of a sum from which on accountants cut off tails: those of which nothing is left out have this bound."""
FLOATS = 650.0
"""−log of what is far from the smallest float."""
SLACK = 1 + 1e-9
"""More than the rounding errors of sums of positive numbers."""


def summed(low: Array, high: Array, honest: int, budget: float) -> float:
    """μ² over the squared distance of two vectors; ``budget``: the most of that, in largest ones of a coordinate."""
    whole, best, before = int(min(budget, 2.0**60)), inf, inf
    if honest > CLIENTS or whole < 2 or not _exact(low, high, honest):
        return inf
    for terms, rate in _rates(*_above(low, high, honest), min(whole, TERMS)):
        # Blocks of so many, sorted by size: each but the first counts for no more than the block before it.
        best = min(best, rate * (1 + (terms - 1) / budget))
        here = rate * (1 + (terms - 1) / whole)
        if here > before:
            break
        before = here
    return best * SLACK


def _exact(low: Array, high: Array, honest: int) -> bool:
    """Whether sums hold all outcomes: none is cut off, none below all floats, none that one end has and not another."""
    least = np.minimum(low, high)
    rarest, last = float(least[low + high > 0].min()), float(min(least[0], least[-1]))
    whole = honest * (len(low) - 1) < SHORT or last**honest > TAIL
    return whole and rarest > 0 and -honest * log(rarest) < FLOATS


def _above(low: Array, high: Array, honest: int) -> tuple[Array, float]:
    """Y on −GRID, …, GRID and the unit of that: above all scores, and what is opposite to them, in convex order.

    The curve E(s − τ)₊ is convex in the own input. Scores have mean zero: the curve at −τ is τ more than that of −s.
    """
    cases = []
    for other in others(low, high, honest - 1):
        rise = np.convolve((high - low) / 2, other)
        for end in (low, high):
            law = np.convolve(end, other)
            cases += [(sign * rise[law > 0], law[law > 0]) for sign in (1, -1)]
    unit = max(float((rise / law).max()) for rise, law in cases) * SLACK / GRID
    places = unit * np.arange(GRID + 1)
    curve = np.zeros(GRID + 1)
    for rise, law in cases:
        curve = np.maximum(curve, np.maximum(rise - places[:, None] * law, 0).sum(axis=1))
    curve[-1] = 0.0  # no score is further out
    right = np.maximum(np.diff(curve, 2, append=0.0), 0) / unit  # at 1, …, GRID
    right *= min(1.0, 0.5 / right.sum()) * (1 - ENDS)
    right[-1] += ENDS / 2
    law = np.concatenate([right[::-1], [max(0.0, 1 - 2 * right.sum())], right])
    # What rounding has left below the curve is made up for by a larger unit.
    reached = unit * np.cumsum(np.cumsum(right[::-1]))[::-1]
    return law, unit * max(1.0, float((curve[:-1] / reached).max())) * SLACK


def _rates(law: Array, unit: float, most: int) -> Iterator[tuple[int, float]]:
    """N and s²/N for N = 1, 2, 4, …, the sum of N below s·Z; ``out`` lies as far out as such a sum can be."""
    terms, out = 1, 0.0
    while terms <= most:
        yield terms, (unit * _normal(law, out, GRID * terms)) ** 2 / terms
        law, terms = np.convolve(law, law), 2 * terms
        law = (law + law[::-1]) / 2
        cut = int(np.argmax(law > LEAST))
        # A sum of which a part is out there lies within the ends, and is symmetric; products may be below all floats.
        out = 2 * out + 2 * float(law[:cut].sum()) + len(law) * 1e-300
        law = law[cut : len(law) - cut]


def _normal(law: Array, out: float, furthest: int) -> float:
    """The least s for which a symmetric law is below s·Z in convex order: by E[S; the p largest] where it bends."""
    from scipy.special import ndtri_exp  # noqa: PLC0415 (takes a while)

    above = np.arange(len(law) // 2, 0, -1)
    masses = np.append(out / 2, law[: len(above)])
    chance, mean = np.cumsum(masses), np.cumsum(masses * np.append(furthest, above))
    z = ndtri_exp(np.log(chance[chance > 0]))
    return float((mean[chance > 0] * np.exp(z * z / 2)).max()) * sqrt(2 * pi)
