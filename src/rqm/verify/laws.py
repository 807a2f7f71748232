"""Laws of what is sent, rebuilt from the mechanisms' definitions and from the rule that rounds them to integers.

The rule is that of ``docs/proofs/integer-table.md``. A law is an array of probabilities; sums of independent ones lose
their farthest tails, which whoever uses them charges at their worst.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil, expm1, inf, lgamma, log1p
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BLOCKS = 40
"""Ways to split the others between the two ends come in blocks, each at most one so many-th of all."""
TAIL, LONG = 1e-40, 512
"""Probability that may be dropped at each end of a sum that has so many outcomes."""
FAR = 1e-120
"""The same of noise that is shifted afterwards."""
FLATTEST = 2**-14
"""How much an outcome leans at the ends of the clip, at least: an encoder has 1,024 positions between them."""
LARGEST = 10**9
"""Coins beyond which factorials lose too many digits."""
UNITS = 2**40
"""A row of the deployed law is made of integers that add up to this."""


class Unsure(Exception):  # noqa: N818 (no error: the answer "cannot verify")
    """Something that this verifier cannot tell."""


def ends(mech: dict[str, Any]) -> tuple[Array, Array, int]:
    """The laws at −c and c, and how many independent trials a coordinate is."""
    if mech["mechanism"] == "vqsgd":
        return *mech["laws"], 1
    if mech["mechanism"] == "pbm":
        eta, rows, trials = min(1.0, 2 * mech["theta"] * (1 + 1e-12)), np.eye(2), mech["levels"] - 1
    else:
        levels, reach, trials = mech["levels"], 1 + Fraction(mech["margin"]), 1
        if levels % 2 or reach < levels - 1:
            raise Unsure(f"levels = {levels}, margin = {mech['margin']}: a level lies inside the clip")
        eta, j = float((levels - 1) / reach), levels // 2 - 1
        rows = np.eye(2) if mech["mechanism"] == "rounding" else np.array([_row(mech, j), _row(mech, j + 1)])
    if eta < FLATTEST:
        raise Unsure("the outer levels lie so far out that no encoder takes them")
    up, down = (1 + eta) / 2, (1 - eta) / 2
    return up * rows[0] + down * rows[1], down * rows[0] + up * rows[1], trials


def _row(mech: dict[str, Any], j: int) -> Array:
    """RQM's law at level j: keep it; or else round between the nearest levels that are kept, i below and k above."""
    levels = mech["levels"]
    keep = np.concatenate([[1.0], np.broadcast_to(np.array(mech["keep"], dtype=float), levels - 2), [1.0]])
    below = np.array([keep[i] * np.prod(1 - keep[i + 1 : j]) for i in range(j)])
    above = np.array([keep[k] * np.prod(1 - keep[j + 1 : k]) for k in range(j + 1, levels)])
    i, k = np.arange(j)[:, None], np.arange(j + 1, levels)[None]
    joint = (1 - keep[j]) * below[:, None] * above[None] / (k - i)
    row = np.concatenate([(joint * (k - j)).sum(axis=1), [keep[j]], (joint * (j - i)).sum(axis=0)])
    return np.array(_integers(row, j), dtype=float) / UNITS


def _integers(row: Array, mean: int) -> list[int]:
    """A row in integers: every possible outcome has one at least; total and mean are mended where most of it lies."""
    units = [max(1, round(p * UNITS)) if p > 0 else 0 for p in row.tolist()]
    if sum(one > 0 for one in units) == 1:
        return [UNITS if one else 0 for one in units]
    giver = units.index(max(units))
    units[giver] += UNITS - sum(units)
    shift = mean * UNITS - sum(i * n for i, n in enumerate(units))
    sign = 1 if shift > 0 else -1
    if not 0 <= giver + sign < len(units):
        giver = max((i for i in range(len(units)) if i != giver), key=lambda i: units[i])
    if shift:
        taker = max(range(len(units)), key=lambda i: units[i] * sign * (i - giver))
        moved, rest = divmod(abs(shift), abs(taker - giver))
        units[taker], units[giver] = units[taker] + moved, units[giver] - moved
        if rest:  # one unit goes the rest of the way, between outcomes that are possible
            able = [i for i in range(len(units)) if 0 <= i + sign * rest < len(units) and units[i + sign * rest] > 0]
            givers = [i for i in (giver, *able) if i in able and units[i] > 1] or [giver]
            units[givers[0]] -= 1
            units[givers[0] + sign * rest] += 1
    if min(units) < 0:
        raise Unsure("a row of the table cannot be rounded to integers")
    return units


def _times(a: Array, b: Array, modulus: int = 2**62, tail: float = TAIL) -> Array:
    """The law of a sum, but for its farthest tails: relative errors stay small, since nothing is taken away."""
    law = np.convolve(a, b)
    if len(law) > modulus:
        return np.asarray(np.bincount(np.arange(len(law)) % modulus, law), dtype=np.float64)
    if len(law) < LONG:
        return law
    first, last = np.searchsorted(np.cumsum(law), tail), np.searchsorted(np.cumsum(law[::-1]), tail)
    return law[first : len(law) - last]


def power(law: Array, count: int, modulus: int = 2**62, tail: float = TAIL) -> Array:
    """The law of a sum of so many, but for its farthest tails."""
    if count < 2:
        return law if count else np.ones(1)
    half = power(law, count // 2, modulus, tail)
    twice = _times(half, half, modulus, tail)
    return _times(twice, law, modulus, tail) if count % 2 else twice


def _ladder(law: Array, counts: list[int]) -> list[Array]:
    """Sums of so many copies of a law, for counts that grow."""
    some = cache(lambda count: power(law, count))
    out = [some(counts[0])]
    for before, after in pairwise(counts):
        out.append(_times(out[-1], some(after - before)))
    return out


def others(low: Array, high: Array, number: int) -> Iterator[Array]:
    """Laws of the others' sum such that, for all their inputs, one of them is part of it.

    A block is all ways in which at least ``start`` and fewer than the next start of them are at the high end; those
    clients in whom they differ are left out. Blocks are small where nearly all clients are at the same end.
    """
    starts = [0]
    while starts[-1] <= number:
        start = starts[-1]
        starts.append(start + max(1, min(ceil(number / BLOCKS), min(start, number - start) // 4)))
    surely_low = [max(0, number - following + 1) for following in starts[1:]]
    lows = reversed(_ladder(low, surely_low[::-1]))
    for one, other in zip(_ladder(high, starts[:-1]), lows, strict=True):
        yield np.convolve(one, other)


def _core(mech: dict[str, Any]) -> Array:
    """The law of a client's noise as it is sampled, without the unit that every outcome has."""
    size, deviation = 2 ** mech["bits"], mech["scale"] * mech["steps"] / 2
    t = np.arange(size) - size // 2
    if mech["mechanism"] == "discrete-gaussian":
        logs = -(t**2) / (2 * deviation**2)
    elif mech["mechanism"] == "skellam":
        from scipy.special import ive  # noqa: PLC0415 (rare)

        logs = np.log(ive(abs(t), deviation**2))
    else:
        half = max(1, -(-ceil(4 * deviation**2 - 1e-9) // 2))  # of an even number of coins
        if half > LARGEST:
            raise Unsure(f"scale = {mech['scale']}: the noise does not fit {mech['bits']} bits")
        logs = np.array([-lgamma(half + s + 1) - lgamma(half - s + 1) if abs(s) <= half else -inf for s in t.tolist()])
    law = np.exp(logs - logs.max())
    units = np.maximum(1, np.rint(law / law.sum() * UNITS))
    units[0] = 1
    units[size // 2] += UNITS - units.sum()
    if not units[size // 2] > 1:
        raise Unsure(f"scale = {mech['scale']}: the noise does not fit {mech['bits']} bits")
    core = np.trim_zeros(units - 1)
    return np.asarray(core / core.sum())


def noise(mech: dict[str, Any], honest: int) -> Array:
    """The law of the sum of all honest clients' noise modulo M, as it is sampled."""
    # Every outcome has a unit: with that chance the outcome is uniform, and so is then the sum of all.
    size = 2 ** mech["bits"]
    total = power(_core(mech), honest, size)
    folded = np.concatenate([total, np.zeros(size - len(total))])
    uniform = -expm1(honest * log1p(-size / UNITS))
    return np.asarray((1 - uniform) * folded + uniform / size)


def cores(mech: dict[str, Any], honest: int) -> tuple[Array, float]:
    """The law of that sum if nobody's noise is uniform, not modulo M; and what it lacks at most."""
    law = power(_core(mech), honest, tail=FAR)
    return law, 8 * (honest + LONG) * FAR
