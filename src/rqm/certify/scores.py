"""GDP of many coordinates of few clients, where a single coordinate is far from Gaussian.

A coin has a trade-off function that is a quarter away from a Gaussian's; the sum over a million
coins has not. On the straight line from one vector to another, Φ⁻¹ of an event's probability
rises no faster than s if the score of the release is below s·Z in convex order, with Z standard
normal. Scores of coordinates add up, and convex order is kept by sums (docs/proofs/scores.md). No
outcome is left out.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, log, pi

import numpy as np
from scipy.special import ndtri_exp

from rqm._util.checks import FloatArray
from rqm.certify.affine_rdp import Ends, end_sums
from rqm.certify.distributions import ROUND_UP


def summed_rate(ends: Ends, others: int, coordinates: float) -> float:
    """A bound on μ² over the squared distance of two vectors in clips.

    See docs/proofs/scores.md#lemma-3.

    Args:
        ends: The pmfs of a coordinate at the two ends of the clip.
        others: Number of other clients.
        coordinates: The largest squared distance of the vectors in units of the largest of one
            coordinate, a lower bound on the number of coordinates that change.

    Returns:
        The bound, infinite if none is known.
    """
    if others >= 32 or coordinates < 2:  # with many clients a coordinate is nearly Gaussian itself
        return inf
    rates = [_of_blocks(rate, count, coordinates) for count, rate in _rates(ends, others, int(coordinates))]
    return min(rates, default=inf) * ROUND_UP


def _of_blocks(rate: float, count: int, coordinates: float) -> float:
    """The rate if coordinates are sorted and cut into blocks of `count`, all of which count as the largest."""
    return rate * (1 + (count - 1) / coordinates)


@lru_cache(maxsize=256)
def _rates(ends: Ends, others: int, max_count: int) -> tuple[tuple[int, float], ...]:
    """For N = 1, 2, 4, …: the least s²/N for which N scores are below s·Z, until nothing is gained."""
    score, unit = _upper_score(ends, others)
    rates: list[tuple[int, float]] = []
    best = inf
    for count, rate in _doubled_sums(score, unit, min(max_count, 512)):
        rates.append((count, rate))
        if _of_blocks(rate, count, max_count) > best:
            break
        best = _of_blocks(rate, count, max_count)
    return tuple(rates)


def _upper_score(ends: Ends, others: int, cells: int = 24) -> tuple[FloatArray, float]:
    """A symmetric pmf on −cells, …, cells that is above every score in convex order, and its unit.

    E(S − t)₊ is convex in the client's own input, so it is largest at an end of the clip; so it
    is in the others'.

    See docs/proofs/scores.md#lemma-2.
    """
    rises, pmfs = [], []
    for low, high, missing in end_sums(ends, others):
        at_ends = np.array([low, high])[:, (low > 0) | (high > 0)]
        if missing > 0 or not at_ends.all():
            return np.empty(0), inf
        rises += [(at_ends[1] - at_ends[0]) / 2] * 2
        pmfs += list(at_ends)
    scores = [float((abs(rise) / pmf).max()) for rise, pmf in zip(rises, pmfs, strict=True)]
    largest = max(scores) * ROUND_UP
    if not largest > 0:
        return np.empty(0), inf
    unit = largest / cells
    t = np.arange(-cells, cells + 1) * unit
    stop_loss = np.maximum(-t, 0)
    for rise, pmf in zip(rises, pmfs, strict=True):
        for signed_rise in (rise, -rise):
            excess = np.maximum(signed_rise - t[:, None] * pmf, 0)
            stop_loss = np.maximum(stop_loss, excess.sum(axis=1))
    beyond = np.concatenate([[largest + unit], stop_loss, [0.0]])
    score = np.maximum(np.diff(beyond, 2), 0)
    end_mass = 1e-7  # above what rounding errors take away anywhere
    score = (score + score[::-1]) / score.sum() / 2 * (1 - end_mass)
    score[[0, -1]] += end_mass / 2
    # Rounding may have left the result below the stop-loss function nowhere.
    tails = np.cumsum(score[::-1])
    reached = unit * np.cumsum(tails)[::-1]
    return (score, unit) if (reached[2:] >= stop_loss[1:-1]).all() else (np.empty(0), inf)


def _doubled_sums(score: FloatArray, unit: float, max_count: int) -> Iterator[tuple[int, float]]:
    """N and s²/N for sums of N = 1, 2, 4, … copies; rare outcomes are moved to both ends of what a
    sum can be.

    See docs/proofs/scores.md#lemma-5.
    """
    cells = len(score) // 2
    count = 1
    total_shift = 0.0
    while len(score) and count <= max_count:
        factor = unit * _gaussian_factor(score, total_shift, cells * count)
        yield count, factor**2 / count
        score = np.convolve(score, score)
        total_shift = 2 * total_shift
        count = 2 * count
        likely = np.flatnonzero(score > 1e-200)
        first = min(int(likely[0]), len(score) - 1 - int(likely[-1]))
        total_shift += 2 * float(score[:first].sum()) + len(score) * 1e-300
        score = score[first : len(score) - first]


def _gaussian_factor(score: FloatArray, total_shift: float, farthest: int) -> float:
    """The least s for which a symmetric S is below s·Z in convex order: E[S; its best p] ≤ s
    φ(Φ⁻¹(p)) for all p.

    See docs/proofs/scores.md#lemma-5.
    """
    half = len(score) // 2
    values = np.arange(half, -1, -1, dtype=np.float64)  # by symmetry p ≤ ½ is enough
    masses = np.concatenate([[total_shift / 2], score[::-1][: half + 1]])
    probability = np.cumsum(masses)
    mean = np.cumsum(masses * np.concatenate([[farthest], values]))
    used = (probability > 0) & (probability <= 0.5 * ROUND_UP)
    z = ndtri_exp(np.log(probability[used]))
    with np.errstate(over="ignore"):
        over_density = np.exp(z * z / 2 + log(2 * pi) / 2)
        return float((mean[used] * over_density).max())
