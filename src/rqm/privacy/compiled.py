"""The compiled inner loops of ``privacy``: sums, divergences and the walk over all counts.

They share one file because the compiler's cache of a function does not notice when a function it calls has changed
in another file.
"""

from math import frexp, ldexp

import numpy as np
import numpy.typing as npt
from numba import njit

from rqm._util.checks import FloatArray

IntArray = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Blocked = tuple[FloatArray, IntArray]
"""Laws in blocks: numbers, and the power of two of each block."""

BLOCK = 16
"""Outcomes that share a power of two: few enough that even a law falling by 2³² a step fits a float in a block."""
EMPTY = -(2**60)
"""The exponent of a block that holds only zeros."""
LEAST = -1080
POWERS = np.ldexp(1.0, np.arange(LEAST, 1))
"""2**LEAST, …, 1/2, 1: the smallest is zero."""
WHOLE = 256
"""The largest order by squaring: no power of a ratio from 1/2 on is beyond a float."""
TINY = 1e-270
"""What floats that are lost below all others do not add to."""

# Sums of positive numbers may be taken in any order; the error bound of ``certificate.outward`` allows for it.
FAST = {"reassoc", "contract"}
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
# Where a call, and counting who holds its arrays, costs a tenth:
inlined = njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, inline="always")


@inlined
def _settle(sums: tuple[float, ...], out: FloatArray) -> int:  # pragma: no cover (compiled)
    """Write a block, scaled so that its largest entry lies in [1/2, 1); return the power of two, or EMPTY."""
    largest = 0.0
    for z in range(BLOCK):
        out[z] = sums[z]
        largest = max(largest, sums[z])
    if largest == 0.0:
        return EMPTY
    power = frexp(largest)[1]
    scale = ldexp(1.0, -power)
    for z in range(BLOCK):
        out[z] *= scale
    return power


@compiled
def convolve_into(
    x: FloatArray, ex: IntArray, y: FloatArray, ey: IntArray, out: FloatArray, eout: IntArray
) -> int:  # pragma: no cover (compiled)
    """Convolve two blocked laws into ``out``; return the blocks used. Only non-negative numbers are added.

    The sixteen sums of a block are sixteen variables, and so stay in registers.
    """
    nx, ny = x.shape[0], y.shape[0]
    last = np.zeros(ny, dtype=np.int64)  # the last outcome of each block of y that is not zero
    for j in range(ny):
        for q in range(BLOCK):
            if y[j, q] > 0.0:
                last[j] = q
    window = np.empty(2 * BLOCK)
    size = 1
    for b in range(nx + ny):
        top = EMPTY
        for j in range(max(0, b - nx), min(ny, b + 1)):
            if b - j < nx:
                top = max(top, ex[b - j] + ey[j])
            if j < b:
                top = max(top, ex[b - j - 1] + ey[j])
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = a10 = a11 = a12 = a13 = a14 = a15 = 0.0
        for j in range(max(0, b - nx), min(ny, b + 1)):
            # The outcomes of x that meet block j of y in block b: one block of x and the one before it.
            if ey[j] == EMPTY:
                continue
            i = b - j
            behind = POWERS[max(ex[i - 1] + ey[j] - top, LEAST) - LEAST] if i > 0 else 0.0
            level = POWERS[max(ex[i] + ey[j] - top, LEAST) - LEAST] if i < nx else 0.0
            front, back = window[:BLOCK], window[BLOCK:]
            before, here = x[max(i - 1, 0)], x[min(i, nx - 1)]
            for z in range(BLOCK):
                front[z] = before[z] * behind
                back[z] = here[z] * level
            for q in range(last[j] + 1):
                yq = y[j, q]
                o = np.uint64(BLOCK - q)  # an unsigned index cannot count from the end
                a0 += yq * window[o]
                a1 += yq * window[o + np.uint64(1)]
                a2 += yq * window[o + np.uint64(2)]
                a3 += yq * window[o + np.uint64(3)]
                a4 += yq * window[o + np.uint64(4)]
                a5 += yq * window[o + np.uint64(5)]
                a6 += yq * window[o + np.uint64(6)]
                a7 += yq * window[o + np.uint64(7)]
                a8 += yq * window[o + np.uint64(8)]
                a9 += yq * window[o + np.uint64(9)]
                a10 += yq * window[o + np.uint64(10)]
                a11 += yq * window[o + np.uint64(11)]
                a12 += yq * window[o + np.uint64(12)]
                a13 += yq * window[o + np.uint64(13)]
                a14 += yq * window[o + np.uint64(14)]
                a15 += yq * window[o + np.uint64(15)]
        sums = (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15)
        power = _settle(sums, out[b])
        eout[b] = EMPTY if power == EMPTY else top + power
        size = size if power == EMPTY else b + 1
    return size


@compiled
def convolve(
    x: FloatArray, ex: IntArray, y: FloatArray, ey: IntArray
) -> tuple[FloatArray, IntArray]:  # pragma: no cover (compiled)
    """Convolve two blocked laws."""
    out = np.empty((x.shape[0] + y.shape[0], BLOCK))
    eout = np.empty(x.shape[0] + y.shape[0], dtype=np.int64)
    size = convolve_into(x, ex, y, ey, out, eout)
    return out[:size], eout[:size]


@compiled
def _near_kl(
    a: FloatArray, ea: IntArray, b: FloatArray, eb: IntArray, alpha: float
) -> float:  # pragma: no cover (compiled)
    """D_α for α close to 1 (and the KL divergence at 1), with no cancellation as α tends to 1."""
    total, mass = 0.0, 0.0
    for k in range(a.shape[0]):
        if ea[k] < -1070:
            continue
        scale = ldexp(1.0, ea[k])
        for z in range(BLOCK):
            if a[k, z] > 0.0:
                ratio = np.log(a[k, z]) - np.log(b[k, z]) + np.log(2.0) * (ea[k] - eb[k])
                weight = a[k, z] * scale
                mass += weight
                total += weight * (ratio if alpha == 1.0 else np.expm1((alpha - 1) * ratio))
    total /= mass
    return total if alpha == 1.0 else np.log1p(total) / (alpha - 1)


@inlined
def _ratios(
    a: FloatArray, ea: IntArray, b: FloatArray, eb: IntArray, ratio: FloatArray, peak: FloatArray, lift: IntArray
) -> bool:  # pragma: no cover (compiled)
    """Write A/B to ``ratio``, the largest of a block to ``peak``, in [1/2, 1), all times two to the power of ``lift``.

    False if A can be what B cannot.
    """
    for k in range(a.shape[0]):
        high = 0.0
        impossible = False
        for z in range(BLOCK):
            az, bz = a[k, z], b[k, z]
            quotient = az / bz if bz > 0.0 else 0.0
            impossible |= (az > 0.0) & (bz == 0.0)
            ratio[k, z] = quotient
            high = max(high, quotient)
        if impossible:
            return False
        power = 0
        if high == np.inf:  # beyond a float within one block: by logarithms
            high = -np.inf
            for z in range(BLOCK):
                ratio[k, z] = np.log2(a[k, z]) - np.log2(b[k, z]) if a[k, z] > 0.0 else -np.inf
                high = max(high, ratio[k, z])
            power = int(np.floor(high)) + 1
            for z in range(BLOCK):
                ratio[k, z] = np.exp2(ratio[k, z] - power)
            high = np.exp2(high - power)
        elif high > 0.0:
            high, power = frexp(high)
            scale = ldexp(1.0, -power)
            for z in range(BLOCK):
                ratio[k, z] *= scale
        peak[k], lift[k] = high, ea[k] - eb[k] + power
    return True


@inlined
def _by_squaring(
    b: FloatArray, eb: IntArray, ratio: FloatArray, peak: FloatArray, lift: IntArray, order: int, room: FloatArray
) -> float:  # pragma: no cover (compiled)
    """(order − 1) D for a whole order, from the ratios, in powers of two: one logarithm in all.

    Starts with the block that may add most; those that add too little are left out. NaN if floats do not reach so low.
    """
    blocks, best, most = peak.shape[0], 0, EMPTY
    for k in range(blocks):
        if peak[k] > 0.0 and eb[k] + order * lift[k] > most:
            best, most = k, eb[k] + order * lift[k]
    (power, base), total, least = (room[0], room[1]), 0.0, LEAST
    for turn in range(blocks):
        k = best if turn == 0 else turn - 1 if turn <= best else turn
        below = eb[k] + order * lift[k] - most
        if below < least or peak[k] == 0.0:
            continue
        for z in range(BLOCK):
            power[z], base[z] = b[k, z], ratio[k, z]
        n = order
        while True:
            if n & 1:
                for z in range(BLOCK):
                    power[z] *= base[z]
            n >>= 1
            if n == 0:
                break
            for z in range(BLOCK):
                base[z] *= base[z]
        total += power.sum() * POWERS[below - LEAST]
        if turn == 0 and total > 0.0:  # a block is no more than BLOCK times two to the power of ``below``
            least = max(LEAST, frexp(total)[1] - 75)
    return np.log(total) + np.log(2.0) * most if total > TINY else np.nan


@inlined
def _of_order(
    b: FloatArray, eb: IntArray, ratio: FloatArray, peak: FloatArray, lift: IntArray, alpha: float
) -> float:  # pragma: no cover (compiled)
    """(α − 1) D_α from the ratios, block by block; blocks that add too little are left out."""
    blocks, best, reach = peak.shape[0], 0, -np.inf  # first the block that may add most
    for k in range(blocks):
        here = np.log(2.0) * eb[k] + alpha * (np.log(peak[k]) + np.log(2.0) * lift[k])
        if here > reach:
            best, reach = k, here
    top, total = -np.inf, 0.0
    for turn in range(blocks):
        k = best if turn == 0 else turn - 1 if turn <= best else turn
        reach = np.log(2.0) * eb[k] + alpha * (np.log(peak[k]) + np.log(2.0) * lift[k])
        if reach + 4.0 < top - 50.0 or peak[k] == 0.0:  # log(BLOCK) < 4: too little to matter
            continue
        part, scale = 0.0, 1.0 / peak[k]
        for z in range(BLOCK):
            part += b[k, z] * (ratio[k, z] * scale) ** alpha
        if part == 0.0:
            continue
        term = np.log(part) + reach
        if term > top:
            total = total * np.exp(top - term) + 1.0
            top = term
        else:
            total += np.exp(term - top)
    return float(top + np.log(total))


@inlined
def _highest(peak: FloatArray, lift: IntArray) -> float:  # pragma: no cover (compiled)
    """The logarithm of the largest ratio."""
    mantissa, power = 0.0, EMPTY
    for k in range(peak.shape[0]):
        if peak[k] > 0.0 and (lift[k] > power or (lift[k] == power and peak[k] > mantissa)):
            mantissa, power = peak[k], lift[k]
    return float(np.log(mantissa) + np.log(2.0) * power)


@compiled
def divergences(
    a: FloatArray, ea: IntArray, b: FloatArray, eb: IntArray, alphas: FloatArray, out: FloatArray
) -> None:  # pragma: no cover (compiled)
    """Write D_α(A ‖ B) to ``out`` for every order, infinite where A can be what B cannot.

    An order that is NaN is not wanted: its place gets −∞.
    """
    blocks = a.shape[0]
    ratio, room = np.empty((blocks, BLOCK)), np.empty((2, BLOCK))
    peak, lift = np.empty(blocks), np.empty(blocks, np.int64)
    if blocks > b.shape[0] or not _ratios(a, ea, b, eb, ratio, peak, lift):
        out[:] = np.inf
        return
    highest = _highest(peak, lift)
    for order in range(alphas.shape[0]):
        alpha = alphas[order]
        if np.isnan(alpha):
            out[order] = -np.inf
        elif alpha == np.inf:
            out[order] = highest
        elif alpha == 1.0 or (alpha - 1) * highest < 0.5:
            out[order] = _near_kl(a, ea, b, eb, alpha)
        else:
            found = np.nan
            if alpha <= WHOLE and alpha == np.floor(alpha):
                found = _by_squaring(b, eb, ratio, peak, lift, int(alpha), room)
            out[order] = (_of_order(b, eb, ratio, peak, lift, alpha) if np.isnan(found) else found) / (alpha - 1)


@inlined
def _all_pairs(
    base: Blocked,
    own: Blocked,
    asked: tuple[IntArray, FloatArray],
    ends: tuple[FloatArray, IntArray, IntArray, FloatArray],
    cell: int,
    table: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise one cell of the table to the divergence of every pair of own laws, each beside the ``base`` of all others.

    ``ends`` is room for the sums, how many blocks each has, and the values of a pair.
    """
    (pairs, orders), (law, elaw, used, values) = asked, ends
    for v in range(own[0].shape[0]):
        used[v] = convolve_into(base[0], base[1], own[0][v], own[1][v], law[v], elaw[v])
    for k in range(pairs.shape[0]):
        i, j = pairs[k, 0], pairs[k, 1]
        divergences(law[i, : used[i]], elaw[i, : used[i]], law[j, : used[j]], elaw[j, : used[j]], orders[k], values)
        row = table[cell, k] if table.shape[1] > 1 else table[cell, 0]
        for order in range(orders.shape[1]):
            row[order] = max(row[order], values[order])


@inlined
def _room(own: Blocked, orders: int, size: int) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:
    """What ``_all_pairs`` writes to."""
    many = own[0].shape[0]
    return np.zeros((many, size, BLOCK)), np.full((many, size), EMPTY), np.zeros(many, np.int64), np.empty(orders)


@compiled
def evaluate(
    places: IntArray,
    first: Blocked,
    second: Blocked,
    own: Blocked,
    asked: tuple[IntArray, FloatArray],
    least: int,
    table: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Fill the table: the divergence of every pair beside ``first[i] + second[j]``, one row for each of the places.

    A place is i, j and how many blocks the two laws have; ``asked`` are pairs and orders. Blocks at both ends of a sum
    are left out whose largest probability is below 2**least.
    """
    size = first[0].shape[1] + second[0].shape[1] + own[0].shape[1] + 4
    ends = _room(own, asked[1].shape[1], size)
    room, eroom = np.zeros((size, BLOCK)), np.full(size, EMPTY)
    for cell in range(places.shape[0]):
        i, j, ni, nj = places[cell]
        x, ex, y, ey = first[0][i, :ni], first[1][i, :ni], second[0][j, :nj], second[1][j, :nj]
        start, stop = 0, convolve_into(x, ex, y, ey, room, eroom)
        while eroom[start] < least and start + 1 < stop:
            start += 1
        while eroom[stop - 1] < least and start + 1 < stop:
            stop -= 1
        _all_pairs((room[start:stop], eroom[start:stop]), own, asked, ends, cell, table)


@compiled
def enumerate_counts(
    c0: int,
    steps: int,
    laws: tuple[Blocked, Blocked, Blocked, Blocked],
    asked: tuple[IntArray, FloatArray],
    size: int,
    table: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise cell ``c0`` of the table to the largest divergence of a pair over all counts that begin with c0.

    ``laws`` are the sum of the first c0, the shapes but the last, one's own, and the powers of the last, of which there
    are as many as the others leave; ``asked`` pairs and orders.
    """
    (start, estart), (shapes, eshapes), own, (powers, epowers) = laws
    groups = shapes.shape[0]
    law = np.zeros((groups, size, BLOCK))
    elaw = np.full((groups, size), EMPTY)
    used = np.full(groups, start.shape[0])
    for g in range(groups):
        law[g, : start.shape[0]] = start
        elaw[g, : start.shape[0]] = estart
    ends = _room(own, asked[1].shape[1], size)
    room, eroom = np.zeros((size, BLOCK)), np.full(size, EMPTY)
    count = np.zeros(groups, dtype=np.int64)
    count[0] = c0
    while True:
        total, n = count.sum(), used[groups - 1]
        left = steps - total
        n = convolve_into(law[groups - 1, :n], elaw[groups - 1, :n], powers[left], epowers[left], room, eroom)
        _all_pairs((room[:n], eroom[:n]), own, asked, ends, c0, table)
        g = groups - 1
        while g > 0 and total == steps:
            total -= count[g]
            count[g] = 0
            g -= 1
        if g == 0:
            return
        n = used[g]
        n = convolve_into(law[g, :n], elaw[g, :n], shapes[g], eshapes[g], room, eroom)
        count[g] += 1
        for h in range(g, groups):
            law[h, :n], elaw[h, :n] = room[:n], eroom[:n]
            used[h] = n
