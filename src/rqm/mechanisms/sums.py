"""The pmf of a sum of many independent copies, with small relative errors far out in its tails.

A Fourier transform gives the middle of a sum's pmf accurately, and nothing of its tails. So the pmf is tilted,
p(z) e^{θz}, until the window of interest is in the middle, transformed, and tilted back (saddlepoint exponential
tilting). Windows follow each other every four standard deviations. Where two of them meet they must agree.
"""

from math import ceil, log, sqrt

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.numeric import find_root

NEGLIGIBLE = 1e-30
"""Probabilities below this are dropped at the ends."""
MAX_DIRECT_OUTCOMES, MAX_DIRECT_COPIES = 2**13, 8
"""Sums with fewer outcomes, or of no more copies, are convolved directly."""
WINDOW_RADIUS = 2.0
"""Half of the distance of two windows, in standard deviations of the sum."""


def summed(
    pmf: FloatArray, count: int, negligible: float = NEGLIGIBLE, *, max_direct_copies: int = MAX_DIRECT_COPIES
) -> tuple[FloatArray, int]:
    """The pmf of a sum of independent copies, without its negligible ends.

    Args:
        pmf: The pmf of one copy at 0, 1, ….
        count: Number of copies.
        negligible: Outcomes with smaller probabilities are dropped at the ends. The dropped probability is at most
            4 · count · len(pmf) · negligible.
        max_direct_copies: Up to this many copies are convolved directly.

    Returns:
        The pmf, and the value of its first outcome.

    >>> pmf, first = summed(np.array([0.5, 0.5]), 3)
    >>> pmf.tolist(), first
    ([0.125, 0.375, 0.375, 0.125], 0)
    """
    if count > max_direct_copies and count * (len(pmf) - 1) >= MAX_DIRECT_OUTCOMES:
        try:
            return _by_windows(pmf, count, negligible)
        except ArithmeticError:  # not unimodal enough for windows to agree
            pass
    total, first, power, power_first = np.ones(1), 0, pmf, 0
    while count:
        if count & 1:
            total, first = _trimmed(np.convolve(total, power), first + power_first, negligible)
        count >>= 1
        if count:
            power, power_first = _trimmed(np.convolve(power, power), 2 * power_first, negligible)
    return total, first


def _trimmed(pmf: FloatArray, first: int, negligible: float) -> tuple[FloatArray, int]:
    """A pmf without its negligible ends, and its first outcome."""
    support = np.flatnonzero(pmf > negligible)
    return pmf[support[0] : support[-1] + 1], first + int(support[0])


def _by_windows(pmf: FloatArray, count: int, negligible: float) -> tuple[FloatArray, int]:
    """The pmf of a sum, from windows that overlap a little."""
    z = np.arange(len(pmf), dtype=np.float64)
    mean = float(pmf @ z)
    deviation = sqrt(count * float(pmf @ (z - mean) ** 2))
    windows: list[tuple[int, FloatArray]] = []
    for direction in (1, -1):
        index = 0 if direction == 1 else -1
        while True:
            center = count * mean + 2 * WINDOW_RADIUS * index * deviation
            window = _window(pmf, count, center, ceil(WINDOW_RADIUS * deviation) + 1)
            if window[1].max() < negligible:
                break
            windows.insert(len(windows) if direction == 1 else 0, window)
            index += direction
    first, total = windows[0]
    for start, values in windows[1:]:
        overlap = len(total) - (start - first)
        if overlap < 1:
            raise ArithmeticError("two windows do not meet")
        left, right = total[len(total) - overlap :], values[:overlap]
        max_mismatch = 1e-10  # The largest relative difference of two windows where they meet.
        if (abs(left - right) > max_mismatch * left).any():
            raise ArithmeticError("two windows do not agree")
        total = np.concatenate([total, values[overlap:]])
    return _trimmed(total, first, negligible)


def _window(pmf: FloatArray, count: int, center: float, radius: int) -> tuple[int, FloatArray]:
    """The sum's pmf from `center` − radius to `center` + radius, and the first of these outcomes."""
    z = np.arange(len(pmf), dtype=np.float64)
    logs = np.log(np.maximum(pmf, 1e-320))

    def tilt(theta: float) -> tuple[FloatArray, float]:
        exponents = logs + theta * z
        largest = float(exponents.max())
        weights = np.exp(exponents - largest)
        total = float(weights.sum())
        return weights / total, largest + log(total)

    def mean_error(theta: float) -> float:
        return float(tilt(theta)[0] @ z) - center / count

    bound = 1e-3
    while mean_error(-bound) > 0 or mean_error(bound) < 0:
        bound *= 2
        if bound > 1e3:
            raise ArithmeticError("the window lies beyond the last outcome")
    theta = find_root(mean_error, -bound, bound, xtol=1e-14)
    tilted, log_scale = tilt(theta)
    mean = float(tilted @ z)
    shift = round(mean)
    deviation = sqrt(count * float(tilted @ (z - mean) ** 2))
    size = 1 << max(len(pmf), 2 * ceil(15 * deviation) + 2 * radius + 1).bit_length()
    periodic = np.zeros(size)
    periodic[(np.arange(len(pmf)) - shift) % size] = tilted
    power = np.fft.irfft(np.fft.rfft(periodic) ** count, size)
    last = min(round(center) + radius, count * (len(pmf) - 1))
    values = np.arange(max(round(center) - radius, 0), last + 1)
    untilted = np.maximum(power[(values - count * shift) % size], 0) * np.exp(count * log_scale - theta * values)
    return int(values[0]), untilted
