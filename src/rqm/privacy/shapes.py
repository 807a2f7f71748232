"""Common shapes: the noise that a client adds whatever its input, within a group of neighbouring knots."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.divergence import Sum


@dataclass(frozen=True)
class Group:
    """Knots that share a shape: each of their laws is at least ``weight`` times a shift of it."""

    shape: Sum
    weight: float
    spread: float  # variance of the shape


def variance(law: FloatArray) -> float:
    """The variance of a law, whatever its mass."""
    z = np.arange(len(law))
    mass = law.sum()
    return float(law @ z**2 / mass - (law @ z / mass) ** 2)


def common_shape(laws: FloatArray) -> tuple[FloatArray, float]:
    """The aligned minimum of some laws: ``laws[i] ≥ weight · shift(shape)`` for each i, by construction."""
    best = np.zeros(1)
    for reference in laws[[0, len(laws) // 2, -1]]:
        shifts = [_best_shift(reference, law) for law in laws]
        low, high = max(0, *(-s for s in shifts)), min(len(reference), *(len(reference) - s for s in shifts))
        if high <= low:
            continue
        overlap = np.min([law[low + s : high + s] for law, s in zip(laws, shifts, strict=True)], axis=0)
        if overlap.sum() > best.sum():
            best = overlap
    weight = float(best.sum())
    return (best / weight, weight * (1 - 1e-12)) if weight > 0 else (np.ones(1), 0.0)


def _best_shift(reference: FloatArray, law: FloatArray) -> int:
    """How far to the right of ``reference`` the other law lies: the shift with the largest overlap."""
    guess = int(np.argmax(law)) - int(np.argmax(reference))
    mean = round(float((law - reference) @ np.arange(len(law))))
    width = len(law)

    def overlap(shift: int) -> float:
        low, high = max(0, -shift), min(width, width - shift)
        return float(np.minimum(reference[low:high], law[low + shift : high + shift]).sum())

    return max({guess, mean}, key=overlap)


def group_of(logs: FloatArray) -> Group:
    """The group of all these log-laws; alone, a law is its own shape and nothing is lost."""
    if len(logs) == 1:
        return Group(Sum.of(logs[0]), 1.0, variance(np.exp(logs[0])))
    laws = np.exp(logs)
    laws[laws < 1e-300] = 0.0  # such floats are no longer accurate; leaving a little out is always allowed
    shape, weight = common_shape(laws)
    with np.errstate(divide="ignore"):
        return Group(Sum.of(np.log(shape)), weight, variance(shape))


def _noise(group: Group, rate: float) -> float:
    """How much noise a client of the group adds, given how dearly its absence is paid for."""
    return -float(np.log(1 - group.weight * (1 - np.exp(-rate * group.spread))))


def partition(logs: FloatArray, groups: int) -> list[Group]:
    """Cut the rows into ``groups`` runs of neighbours so that the least noisy run is as noisy as possible."""
    rows = len(logs)
    if groups >= rows:
        return [group_of(logs[i : i + 1]) for i in range(rows)]
    steps = range(rows) if rows <= 12 else [2**k for k in range(rows.bit_length())]  # many knots: finer at the ends
    cuts = sorted({0, rows, *(k for k in steps if k < rows), *(rows - k for k in steps if k < rows)})
    rate = 1 / max(min(variance(np.exp(row)) for row in logs), 1e-12)
    made: dict[tuple[int, int], Group] = {}

    def group(a: int, b: int) -> Group:
        if (a, b) not in made:
            made[a, b] = group_of(logs[a:b])
        return made[a, b]

    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (inf, [0])}
    for k in range(1, groups + 1):
        for b in cuts[1:]:
            options = [
                (min(best[a, k - 1][0], _noise(group(a, b), rate)), [*best[a, k - 1][1], b])
                for a in cuts
                if a < b and (a, k - 1) in best
            ]
            if options:
                best[b, k] = max(options, key=lambda option: option[0])
    return [group(a, b) for a, b in pairwise(best[rows, groups][1])]
