"""What several clients add together whatever their inputs: common shapes of blocks, found by linear programs.

The laws of single clients at different knots have little in common near the ends of the grid. Sums of a few of them
have much more: tails are filled in, and corners are round. If the sum of every choice of b knots is at least
weight · (shape ∗ some law of its own), a block of b clients adds the shape with that chance, whatever its inputs, and
what else it adds may be left out (``docs/proofs/certificate.md``). What a solver says is checked in plain arithmetic.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.divergence import Sum
from rqm.privacy.shapes import Group, variance

CHOICES = 800
"""Choices of knots that a block may have."""
SIZES = (1, 2, 3, 5)
"""Clients of a block; the largest is one less where five have too many choices."""
OUTERMOST = 3
"""Knots at either end that may be a group of their own."""
SPARE = 4
"""There are blocks of one client more for so many others: else there is hardly one."""
RARE = 1e-11
"""Outcomes of a sum that are less likely are left out of what is common."""
MASS = 3.0
"""What mass counts for beside its squared distance, in variances."""
ROUNDS = 3
"""How often shape and what is added to it are found by turns."""
TRIES, ALIKE, WORST = 3, 0.985, 12
"""How often a shape is looked for, until in no choice of knots it has less than this part of the weight in those that
were looked at; of the others the worst are taken along, so many at a time."""


def block_sizes(knots: int, others: int) -> list[int]:
    """Clients that are taken together, of a group of so many knots; with more others there are never fewer ways."""
    largest = max(size for size in range(1, SIZES[-1] + 1) if comb(knots + size - 1, size) <= max(CHOICES, knots))
    return [size for size in sorted({min(size, largest) for size in SIZES}) if (size - 1) * SPARE <= others]


def third_size(knots: int) -> int:
    """Clients that are taken together of three groups of so many knots."""
    middle = knots - 2 * min(OUTERMOST, (knots - 1) // 2)
    return max(size for size in range(1, SIZES[-1] + 1) if comb(middle + size - 1, size) <= max(CHOICES, middle))


def outermost(half: FloatArray, *, last: bool) -> list[FloatArray]:
    """A half of the knots, cut in two: those nearest to its end, with least noise, are a group of their own."""
    outer = max(2, len(half) // 3)
    return [half[:-outer], half[-outer:]] if last else [half[outer:], half[:outer]]


def thirds(logs: FloatArray, size: int) -> list[FloatArray]:
    """The knots, cut in three: those nearest to either end, with least noise, and all between them.

    At the ends laws are cut off, each at its own distance and on its own side: they have least in common with others.
    As many are on their own as leave most noise to the least noisy third, by blocks of so many clients at one knot.
    """
    every = range(1, min(OUTERMOST, (len(logs) - 1) // 2) + 1)
    fitting = [outer for outer in every if comb(len(logs) - 2 * outer + size - 1, size) <= CHOICES] or [every[-1]]
    most = max(fitting, key=lambda outer: _least(_key(logs), size, outer))
    return [logs[:most], logs[most:-most], logs[-most:]]


@lru_cache(maxsize=64)
def _least(logs: tuple[tuple[float, ...], ...], size: int, outer: int) -> float:
    """About the least noise of a third."""
    found = []
    for part in (logs[:outer], logs[outer:-outer], logs[-outer:]):
        laws = np.exp(np.array(part))
        shape, weight = _alternating(np.array([_summed([law] * size) for law in laws]), size * min(map(variance, laws)))
        found.append(weight * variance(shape))
    return min(found)


def _summed(laws: Iterable[FloatArray]) -> FloatArray:
    """The law of the sum of clients with these laws."""
    return reduce(np.convolve, laws, np.ones(1))


def _key(logs: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, logs.tolist()))


def block_of(logs: FloatArray, size: int) -> Group:
    """The common shape of the sums of ``size`` clients at any of these knots, by their log-laws."""
    if len(logs) == 1:
        return Group(Sum.of(logs[0]).times(size), 1.0, size * variance(np.exp(logs[0])))
    first, mirrored = _key(logs), _key(logs[::-1, ::-1])
    shape, weight = _found(min(first, mirrored), size)
    shape = shape if first <= mirrored else shape[::-1]
    with np.errstate(divide="ignore"):
        return Group(Sum.of(np.log(shape)), weight, variance(shape))


@lru_cache(maxsize=64)
def _found(logs: tuple[tuple[float, ...], ...], size: int) -> tuple[FloatArray, float]:
    """The shape, and its weight."""
    laws = np.exp(np.array(logs))
    choices = list(combinations_with_replacement(range(len(laws)), size))
    sums = [_summed(laws[list(choice)]) for choice in choices]
    alike = [k for k, choice in enumerate(choices) if choice[0] == choice[-1]]
    return _common(np.array(sums), alike, size * min(map(variance, laws)))


def _common(sums: FloatArray, some: list[int], unit: float) -> tuple[FloatArray, float]:
    """The best shape that was found, and its weight in the worst of the sums.

    It is looked for in ``some`` of them first. Those in which it has much less weight are taken along from then on.
    """
    best, weight = np.ones(1), 0.0
    for _ in range(TRIES):
        shape, hoped = _alternating(sums[some], unit)
        masses = np.array([_added(one, shape).sum() for one in sums])
        least = float(masses.min())
        if least * variance(shape) > weight * variance(best):
            best, weight = shape, least
        if least > ALIKE * hoped:
            break
        some = [*some, *(int(k) for k in np.argsort(masses)[:WORST] if k not in some and masses[k] < ALIKE * hoped)]
    return best, weight * (1 - 1e-12)


def _alternating(sums: FloatArray, unit: float) -> tuple[FloatArray, float]:
    """The best shape that is found by turns with what is added to it, and its weight in the worst of these sums."""
    means = sums @ np.arange(sums.shape[1])
    low = np.floor(means + 1e-9).astype(np.int64)
    part = np.clip(means - low, 0, 1)
    added = np.zeros_like(sums)
    added[np.arange(len(sums)), low] = 1 - part
    added[np.arange(len(sums)), np.minimum(low + 1, sums.shape[1] - 1)] += part
    best, weight = np.ones(1), 0.0
    for _ in range(ROUNDS):
        shape = _shape(sums, added, unit)
        if shape is None:
            break
        laws = [_added(one, shape) for one in sums]
        least = min(float(law.sum()) for law in laws)
        if least * variance(shape) > weight * variance(best):
            best, weight = shape, least
        middle = round(float(shape @ np.arange(len(shape))))
        added = np.zeros_like(sums)
        for row, law in zip(added, laws, strict=True):
            if law.sum() > 0:
                row[np.minimum(np.flatnonzero(law) + middle, sums.shape[1] - 1)] = law[law > 0] / law.sum()
    return best, weight


def _shape(sums: FloatArray, added: FloatArray, unit: float) -> FloatArray | None:
    """The shape with most mass and variance such that, with what is ``added``, it is below every sum."""
    from scipy.optimize import linprog  # noqa: PLC0415 (takes a while)
    from scipy.sparse import csr_matrix, vstack  # noqa: PLC0415

    width = sums.shape[1]
    away = np.arange(-width + 1, width)  # from where what is added stands
    rows, impossible = [], np.zeros(len(away), dtype=np.bool_)
    for law, more in zip(sums, added, strict=True):
        matrix = np.zeros((width, len(away)))
        for place in np.flatnonzero(more):
            at = away + place
            inside = (at >= 0) & (at < width)
            impossible |= ~inside
            matrix[at[inside], np.flatnonzero(inside)] += more[place]
        rare = law < RARE
        impossible |= (matrix[rare] > 0).any(axis=0)
        rows.append(csr_matrix(matrix[~rare] / law[~rare, None]))
    possible = np.flatnonzero(~impossible)
    if not len(possible):
        return None
    worth = MASS * unit + away[possible].astype(np.float64) ** 2
    limits: Any = vstack(rows).tocsc()[:, possible]
    solved = linprog(-worth, A_ub=limits, b_ub=np.ones(limits.shape[0]), method="highs")
    if solved.x is None or not solved.x.max() > 1e-9:
        return None
    mass = np.zeros(len(away))
    mass[possible] = np.where(solved.x > 1e-9, solved.x, 0.0)
    shape = np.trim_zeros(mass)
    return np.asarray(shape / shape.sum())


def _added(law: FloatArray, shape: FloatArray) -> FloatArray:
    """As much as possible of a law of its own that with the shape is below ``law``: checked, and cut if not."""
    from scipy.optimize import linprog  # noqa: PLC0415 (takes a while)

    places = len(law) - len(shape) + 1
    if places < 1:
        return np.zeros(1)
    shifted = np.zeros((len(law), places))
    for place in range(places):
        shifted[place : place + len(shape), place] = shape
    rare = law < RARE
    possible = ~(shifted[rare] > 0).any(axis=0)
    if not possible.any():
        return np.zeros(places)
    rows = shifted[~rare][:, possible] / law[~rare, None]
    solved = linprog(-np.ones(rows.shape[1]), A_ub=rows, b_ub=np.ones(len(rows)), method="highs")
    found = np.zeros(places)
    if solved.x is not None:
        found[possible] = np.where(solved.x > 1e-12, solved.x, 0.0)
    total = shifted @ found
    with np.errstate(divide="ignore", invalid="ignore"):
        room = float(np.where(total > 0, law / total, np.inf).min(initial=1.0))
    return found * min(1.0, room) * (1 - 1e-12)
