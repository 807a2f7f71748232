"""The law of a sum of many independent copies, with small relative errors far out in its tails.

A Fourier transform knows the middle of a sum's law well, and nothing of its tails. So the law is tilted, p(z) e^{θz},
until the place that is looked at is its middle, transformed there, and tilted back; place by place, four deviations
apart. Where two of them meet they must agree.
"""

from math import ceil, log, sqrt

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.solve import zero

NEGLIGIBLE = 1e-30
"""Probabilities below this are dropped at the ends."""
SHORT, FEW = 2**13, 8
"""Up to so many outcomes, or of so few copies, a sum is made by adding up products."""
APART = 2.0
"""Half of the distance of two places, in deviations."""
AGREE = 1e-10
"""Where two places meet, their relative difference at most."""


def summed(law: FloatArray, count: int, negligible: float = NEGLIGIBLE, *, few: int = FEW) -> tuple[FloatArray, int]:
    """The law of a sum of ``count`` copies without its negligible ends, and the value of its first outcome.

    The first outcome of ``law`` is 0. What is dropped has a probability of at most 4 · count · len(law) · negligible.

    >>> found, first = summed(np.array([0.5, 0.5]), 3)
    >>> found.tolist(), first
    ([0.125, 0.375, 0.375, 0.125], 0)
    """
    if count > few and count * (len(law) - 1) >= SHORT:
        try:
            return _by_places(law, count, negligible)
        except ArithmeticError:  # a law of another kind: the slow way
            pass
    return _by_products(law, count, negligible)


def _by_products(law: FloatArray, count: int, negligible: float) -> tuple[FloatArray, int]:
    out, begin, square, start = np.ones(1), 0, law, 0
    while count:
        if count & 1:
            out, begin = trimmed(np.convolve(out, square), begin + start, negligible)
        count >>= 1
        if count:
            square, start = trimmed(np.convolve(square, square), 2 * start, negligible)
    return out, begin


def trimmed(law: FloatArray, begin: int, negligible: float = NEGLIGIBLE) -> tuple[FloatArray, int]:
    """A law that begins at ``begin``, without its negligible ends."""
    seen = np.flatnonzero(law > negligible)
    return law[seen[0] : seen[-1] + 1], begin + int(seen[0])


def _by_places(law: FloatArray, count: int, negligible: float) -> tuple[FloatArray, int]:
    z = np.arange(len(law), dtype=np.float64)
    mean = float(law @ z)
    deviation = sqrt(count * float(law @ (z - mean) ** 2))
    parts: dict[int, tuple[int, FloatArray]] = {}
    for side in (1, -1):
        place = 0 if side == 1 else -1
        while True:
            middle = count * mean + 2 * APART * place * deviation
            found = _around(law, count, middle, ceil(APART * deviation) + 1)
            if found[1].max() < negligible:
                break
            parts[place] = found
            place += side
    return _joined([parts[place] for place in sorted(parts)], negligible)


def _joined(parts: list[tuple[int, FloatArray]], negligible: float) -> tuple[FloatArray, int]:
    """One law from pieces that overlap a little."""
    begin, out = parts[0]
    for start, piece in parts[1:]:
        shared = len(out) - (start - begin)
        if shared < 1:
            raise ArithmeticError("two places do not meet")
        here, there = out[len(out) - shared :], piece[:shared]
        if (abs(here - there) > AGREE * here).any():
            raise ArithmeticError("two places do not agree")
        out = np.concatenate([out, piece[shared:]])
    return trimmed(out, begin, negligible)


def _around(law: FloatArray, count: int, middle: float, reach: int) -> tuple[int, FloatArray]:
    """The sum's law from ``middle`` − reach to ``middle`` + reach, and where that begins."""
    z = np.arange(len(law), dtype=np.float64)
    logs = np.log(np.maximum(law, 1e-320))

    def tilted(theta: float) -> tuple[FloatArray, float]:
        weights = logs + theta * z
        top = float(weights.max())
        powers = np.exp(weights - top)
        total = float(powers.sum())
        return powers / total, top + log(total)

    def missed(theta: float) -> float:
        return float(tilted(theta)[0] @ z) - middle / count

    bound = 1e-3
    while missed(-bound) > 0 or missed(bound) < 0:
        bound *= 2
        if bound > 1e3:
            raise ArithmeticError("a place beyond the ends")
    theta = zero(missed, -bound, bound, xtol=1e-14)
    one, scale = tilted(theta)
    centre = round(float(one @ z))
    deviation = sqrt(count * float(one @ (z - float(one @ z)) ** 2))
    size = 1 << max(len(law), 2 * ceil(15 * deviation) + 2 * reach + 1).bit_length()
    wrapped = np.zeros(size)
    wrapped[(np.arange(len(law)) - centre) % size] = one
    power = np.fft.irfft(np.fft.rfft(wrapped) ** count, size)
    first = round(middle) - reach
    values = np.arange(max(first, 0), min(round(middle) + reach, count * (len(law) - 1)) + 1)
    back = np.exp(count * scale - theta * values)
    return int(values[0]), np.maximum(power[(values - count * centre) % size], 0) * back
