"""An ε that some inputs attain in a release of many coordinates: no guarantee, but what a stated ε cannot be below.

One client's vector is turned over at some coordinates, all others hold the same there. The laws are known exactly; of
many coordinates whatever event is looked at gives an ε that is attained, so losses may be rounded to a grid, on which
their sums are known. Audits draw from the same pairs (``rqm.audit.vector``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.sums import summed

Ints = npt.NDArray[np.int64]

INPUTS = (1.0, 0.5, 0.25)
"""Sizes, in clips, about, of the coordinates that are turned over: of fewer large ones or of more small ones."""
CROWDS = 5
"""Inputs of the others, about, that are tried."""
FAINT = 1e-60
"""Probabilities of the others' sums that are left out at the ends."""
PARTS = 64
"""Parts of a loss's deviation to which losses of one of many coordinates are rounded …"""
FAR, WIDE = 60.0, 16.0
"""… up to so many deviations; a sum of many is looked at so many deviations of its own to either side."""


@dataclass(frozen=True)
class Pair:
    """Two vectors of a client: ``count`` coordinates, all ``size`` clips below zero or all above it.

    All others hold ``others`` clips there. ``low`` and ``high`` are the laws of a coordinate's sum for the two vectors,
    ``crowd`` that of the others' sum alone; their first outcomes are ``begin``, or 0 of sums modulo their length.
    """

    size: float
    count: int
    others: float
    low: FloatArray
    high: FloatArray
    crowd: FloatArray
    begin: int = 0

    def losses(self) -> FloatArray:
        """How much each outcome of a coordinate speaks for the vector above zero, as a logarithm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(self.high) - np.log(self.low)
        return np.asarray(np.clip(np.nan_to_num(found, nan=0.0), -700, 700))

    def epsilon(self, delta: float) -> float:
        """An ε at δ that the pair attains, in the direction that tells more."""
        both = ((self.high, self.low), (self.low, self.high))
        return max(event_epsilon(*tails(p, q, self.count), delta) for p, q in both)


def attained_epsilon(mech: Channel, honest: int, dim: int, l2_clip: float, delta: float) -> float:
    """The largest ε at δ, of those that were tried, for vectors of ``dim`` coordinates within ``l2_clip``."""
    return max((pair.epsilon(delta) for pair in pairs(mech, honest, dim, l2_clip)), default=0.0)


def pairs(mech: Channel, honest: int, dim: int, l2_clip: float) -> Iterator[Pair]:
    """Pairs of vectors of ``dim`` coordinates within ``l2_clip``, each with what all others hold."""
    for size in dict.fromkeys(_sizes(mech)):
        count = min(dim, int((l2_clip / mech.clip / size) ** 2 * (1 + 1e-9)))
        if count:
            yield from _turned(mech, honest, size, count)


def _sizes(mech: Channel) -> Iterator[float]:
    """Sizes to turn over; of additive noise such that nothing is left to round, a third of the clip among them."""
    if mech.additive is None:
        yield from INPUTS
        return
    steps = mech.additive.steps
    for size in (*INPUTS, 1 / 3):
        yield (2 * int(size * steps / 2 - 1e-9) + 1) / steps if size < 1 else 1.0


def _turned(mech: Channel, honest: int, size: float, count: int) -> Iterator[Pair]:
    if mech.additive is not None:
        additive = mech.additive
        far, turn = round(size * additive.steps), honest * additive.offset
        level = (additive.steps - far) // 2
        below, above = (np.roll(additive.summed(honest), turn + at) for at in (level, level + far))
        crowd = (
            np.roll(additive.summed(honest - 1), turn - additive.offset)
            if honest > 1
            else np.eye(1, mech.levels).ravel()
        )
        yield Pair(size, count, -1.0, below, above, crowd)
        return
    below, above = (np.exp(mech.log_law(x * mech.clip, "sampled")) for x in (-size, size))
    breakpoints = mech.breakpoints[mech.breakpoints >= 0]
    for x in breakpoints[:: -max(1, len(breakpoints) // CROWDS)]:
        crowd, begin = summed(np.exp(mech.log_law(x, "sampled")), honest - 1, FAINT)
        low, high = np.convolve(below, crowd), np.convolve(above, crowd)
        yield Pair(size, count, float(x / mech.clip), low, high, crowd, begin)


def tails(p: FloatArray, q: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """Probabilities of some events under two laws of ``count`` coordinates, from few outcomes to all.

    Of one coordinate the outcomes that speak most for the first law, one after the other. Of many, sums of losses above
    a threshold, each loss rounded: probabilities are right whatever that rounding costs the adversary.
    """
    return thresholds(p, q, count)[1:]


def thresholds(p: FloatArray, q: FloatArray, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same, and before them the summed loss from which on each event begins, halfway to the next one.

    Of many coordinates losses that are not rounded make other events there, of nearly these probabilities.
    """
    seen = (p > 0) & (q > 0)
    p, q = p[seen], q[seen]
    loss = np.log(p) - np.log(q)
    if count == 1:
        order = np.argsort(-loss, kind="stable")
        loss = loss[order]
        return np.append((loss[:-1] + loss[1:]) / 2, -inf), np.cumsum(p[order]), np.cumsum(q[order])
    middle = float(p @ loss / p.sum())
    deviation = sqrt(float(p @ (loss - middle) ** 2 / p.sum()))
    if deviation == 0.0:
        return np.full(1, -inf), np.ones(1), np.ones(1)
    gap = deviation / PARTS
    steps = np.rint((loss - middle).clip(-FAR * deviation, FAR * deviation) / gap).astype(np.int64)
    first, last = int(steps.min()), int(steps.max())
    spread, near = count * (last - first), int(2 * (WIDE * sqrt(count) * PARTS + last - first))
    size = 1 << (min(spread, near) + 1).bit_length()
    start = count * first if spread <= near else -size // 2
    # Where the second law is tilted by the losses it lies where the first does, and small probabilities keep digits.
    tilted = q * np.exp(gap * steps)
    total = float(tilted.sum())
    mine, other = (_power(steps % size, law, size, count) for law in (p, tilted / total))
    places = (start + np.arange(size))[::-1]
    mine, other = (np.roll(law, -start)[::-1] for law in (mine, other))
    with np.errstate(over="ignore", invalid="ignore"):
        back = other * np.exp(count * log(total) - gap * places)
    least = count * middle + gap * (places - 0.5).astype(np.float64)
    return least, np.cumsum(mine), np.cumsum(np.nan_to_num(back, posinf=1e300))


def _power(places: Ints, law: FloatArray, size: int, count: int) -> FloatArray:
    """The law of a sum of so many, modulo ``size``."""
    one = np.zeros(size)
    np.add.at(one, places, law)
    return np.maximum(np.fft.irfft(np.fft.rfft(one) ** count, size), 0)


def event_epsilon(gained: FloatArray, paid: FloatArray, delta: float) -> float:
    """The largest ε at δ that one of some events attains."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(gained - delta, 0)) - np.log(paid)
    return max(0.0, float(np.nan_to_num(found, nan=0.0).max()))
