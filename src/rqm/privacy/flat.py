"""The compiled inner loop of ``privacy`` where every probability fits a plain float: several times faster.

``compiled.evaluate`` holds laws in blocks with a power of two of their own, since tails may lie far below the smallest
float. Mostly they do not. Here a law is one array and one power of two; whatever might be lost below 2**-900, or is
zero, or overflows, is not answered but left to the blocks.
"""

import numpy as np
from numba import njit

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import BLOCK, EMPTY, FAST, POWERS, WHOLE, Blocked, IntArray, compiled

DEEPEST = -900
SMALLEST = 2.0**DEEPEST
"""Sums from here on have lost nothing that counts: what underflows in them is less than 2**-1000."""
REACH = 1000
"""Powers of two between the largest and the smallest block of a law that is tried."""
ROUNDED = 1e-8
"""More than the relative errors of probabilities of sums of up to 10⁵ others."""
TAPS = 8
"""Outcomes of one law that are added to all of the other in one turn."""

numbers = njit(cache=True, nogil=True, error_model="numpy", fastmath={*FAST, "nnan", "nsz"})
"""For functions whose arguments are never NaN: then the largest of many is found several at a time."""


@numbers
def _largest(values: FloatArray) -> float:  # pragma: no cover (compiled)
    largest = values[0]
    for z in range(values.shape[0]):
        largest = max(largest, values[z])
    return float(largest)


@numbers
def _smallest(values: FloatArray) -> float:  # pragma: no cover (compiled)
    smallest = values[0]
    for z in range(values.shape[0]):
        smallest = min(smallest, values[z])
    return float(smallest)


@compiled
def _flatten(mantissa: FloatArray, exponent: IntArray, top: int, out: FloatArray) -> int:  # pragma: no cover (compiled)
    """Write a blocked law, over 2**top, to ``out`` from TAPS on, with as many zeros around; return how many outcomes.

    None if its blocks lie too far apart.
    """
    size = 0
    for k in range(exponent.shape[0]):
        below = exponent[k] - top
        if exponent[k] != EMPTY and below < -REACH:
            return 0
        scale = 0.0 if exponent[k] == EMPTY else POWERS[POWERS.shape[0] - 1 + below]
        for z in range(BLOCK):
            out[TAPS + BLOCK * k + z] = mantissa[k, z] * scale
            if mantissa[k, z] > 0.0:  # be it lost as a float
                size = BLOCK * k + z + 1
    out[:TAPS] = 0.0
    out[TAPS + size : TAPS + size + 2 * TAPS] = 0.0
    return size


@compiled
def _convolve(x: FloatArray, nx: int, y: FloatArray, ny: int, out: FloatArray) -> int:  # pragma: no cover (compiled)
    """Convolve two flat laws of so many outcomes into ``out``, laid out as they are; return how many it has."""
    size = nx + ny - 1
    out[: size + 3 * TAPS] = 0.0
    x0, x1, x2, x3, x4, x5, x6, x7 = x[8:], x[7:], x[6:], x[5:], x[4:], x[3:], x[2:], x[1:]
    for q in range(TAPS, ny + TAPS, TAPS):
        y0, y1, y2, y3, y4, y5, y6, y7 = y[q], y[q + 1], y[q + 2], y[q + 3], y[q + 4], y[q + 5], y[q + 6], y[q + 7]
        part = out[q : q + nx + TAPS - 1]
        for z in range(nx + TAPS - 1):
            part[z] += (
                y0 * x0[z] + y1 * x1[z] + y2 * x2[z] + y3 * x3[z] + y4 * x4[z] + y5 * x5[z] + y6 * x6[z] + y7 * x7[z]
            )
    return size


@compiled
def _without_tails(law: FloatArray, size: int, least: float) -> tuple[int, int]:  # pragma: no cover (compiled)
    """The outcomes that stay when the blocks at both ends are left out none of which reaches ``least``."""
    start, stop = 0, -(-size // BLOCK)
    while start + 1 < stop and _largest(law[TAPS + BLOCK * start : TAPS + BLOCK * (start + 1)]) < least:
        start += 1
    while start + 1 < stop and _largest(law[TAPS + BLOCK * (stop - 1) : TAPS + min(BLOCK * stop, size)]) < least:
        stop -= 1
    return BLOCK * start, min(BLOCK * stop, size)


@compiled
def _by_squaring(
    b: FloatArray, ratio: FloatArray, order: int, power: FloatArray, base: FloatArray
) -> float:  # pragma: no cover (compiled)
    """The sum of b · ratio**order; ``power`` and ``base`` are room."""
    size, total = b.shape[0], 0.0
    if order == 2:
        for z in range(size):
            total += b[z] * ratio[z] * ratio[z]
        return total
    for z in range(size):
        power[z] = b[z]
        base[z] = ratio[z]
    while True:
        if order & 1:
            for z in range(size):
                power[z] *= base[z]
        order >>= 1
        if order == 0:
            break
        for z in range(size):
            base[z] *= base[z]
    for z in range(size):
        total += power[z]
    return total


@compiled
def _divergence(
    a: FloatArray, b: FloatArray, ratio: FloatArray, highest: float, alpha: float, top: int, room: FloatArray
) -> float:  # pragma: no cover (compiled)
    """D_α of two laws over 2**top, from their ratio; not finite if floats do not reach so far.

    Of an order −ε below zero, the logarithm of their hockey-stick divergence at ε.
    """
    if alpha == np.inf:
        return float(np.log(highest))
    total = 0.0
    if alpha < 0.0:
        more, less = 1.0 + ROUNDED, np.exp(-alpha) * (1.0 - ROUNDED)
        for z in range(a.shape[0]):
            total += max(more * a[z] - less * b[z], 0.0)
        return float(np.log(total + SMALLEST) + np.log(2.0) * top)
    if alpha == 1.0 or (alpha - 1) * np.log(highest) < 0.5:  # as ``compiled`` does: no cancellation as α tends to 1
        mass = 0.0
        for z in range(a.shape[0]):
            loss = np.log(ratio[z])
            total += a[z] * (loss if alpha == 1.0 else np.expm1((alpha - 1) * loss))
            mass += a[z]
        return total / mass if alpha == 1.0 else np.log1p(total / mass) / (alpha - 1)
    if alpha <= WHOLE and alpha == np.floor(alpha):
        total = _by_squaring(b, ratio, int(alpha), room[0], room[1])
    else:
        for z in range(a.shape[0]):
            total += b[z] * ratio[z] ** alpha
    return float((np.log(total) + np.log(2.0) * top) / (alpha - 1))


@compiled
def _cell(
    laws: FloatArray,
    size: int,
    asked: tuple[IntArray, FloatArray],
    top: int,
    cell: int,
    table: FloatArray,
    room: FloatArray,
) -> bool:  # pragma: no cover (compiled)
    """Raise one cell of the table to the divergence of every pair of ``laws``; False if one is not known."""
    pairs, orders = asked
    ratio = room[2, :size]
    for k in range(pairs.shape[0]):
        a, b = laws[pairs[k, 0], TAPS : TAPS + size], laws[pairs[k, 1], TAPS : TAPS + size]
        for z in range(size):
            ratio[z] = a[z] / b[z]
        highest = _largest(ratio)
        row = table[cell, k] if table.shape[1] > 1 else table[cell, 0]
        for order in range(orders.shape[1]):
            if np.isnan(orders[k, order]):
                continue
            value = _divergence(a, b, ratio, highest, orders[k, order], top, room)
            if not np.isfinite(value):
                return False
            row[order] = max(row[order], value)
    return True


@compiled
def evaluate_flat(
    places: IntArray,
    first: Blocked,
    second: Blocked,
    own: Blocked,
    asked: tuple[IntArray, FloatArray],
    least: int,
    table: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Fill the table as ``compiled.evaluate`` does; cells that floats do not reach get NaN.

    Where hockey-stick divergences are asked for, what is too small for floats does not count.
    """
    sticks = asked[1].size > 0 and asked[1][0, 0] < 0.0
    many, top_own = own[0].shape[0], own[1].max()
    nx, ny, no = BLOCK * first[0].shape[1], BLOCK * second[0].shape[1], BLOCK * own[0].shape[1]
    x, y, base = np.empty(nx + 3 * TAPS), np.empty(ny + 3 * TAPS), np.empty(nx + ny + 3 * TAPS)
    flat, sizes = np.empty((many, no + 3 * TAPS)), np.empty(many, np.int64)
    laws, room = np.empty((many, nx + ny + no + 3 * TAPS)), np.empty((3, nx + ny + no))
    for v in range(many):
        sizes[v] = _flatten(own[0][v], own[1][v], top_own, flat[v])
    for cell in range(places.shape[0]):
        i, j, ni, nj = places[cell]
        top_x, top_y = first[1][i, :ni].max(), second[1][j, :nj].max()
        sx = _flatten(first[0][i, :ni], first[1][i, :ni], top_x, x)
        sy = _flatten(second[0][j, :nj], second[1][j, :nj], top_y, y)
        good = sx > 0 and sy > 0 and sizes.min() > 0 and sizes.min() == sizes.max()
        if good:
            size = _convolve(x, sx, y, sy, base)
            below = least - 1 - top_x - top_y
            lowest = 2.0 ** float(below) if below > DEEPEST else 0.0  # no tail is cut that floats may have lost
            start, stop = _without_tails(base, size, lowest)
            base[start : start + TAPS] = 0.0
            base[TAPS + stop : TAPS + stop + 2 * TAPS] = 0.0
            size = stop - start + sizes[0] - 1
            for v in range(many):
                _convolve(base[start:], stop - start, flat[v], sizes[v], laws[v])
                good &= sticks or _smallest(laws[v, TAPS : TAPS + size]) >= SMALLEST
        if not (good and _cell(laws, size, asked, top_x + top_y + top_own, cell, table, room)):
            table[cell] = np.nan
