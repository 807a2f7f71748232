"""Sums of independent integers and the Rényi divergences between them, safe from underflow and overflow.

A log-law is an array of natural logarithms of probabilities. A ``Sum`` holds a law in blocks of 32 outcomes, each
block with its own power of two, so that tails far below the smallest float keep full relative precision while
convolution stays plain multiplication and addition of positive numbers: no cancellation, no logarithm in the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp, inf, ldexp

import numpy as np
import numpy.typing as npt
from numba import njit

from rqm._checks import FloatArray

IntArray = npt.NDArray[np.int64]

BLOCK = 32
EMPTY = -(2**60)
"""The exponent of a block that holds only zeros."""
UNIT_ROUNDOFF = 2.0**-53

# Sums of positive numbers may be taken in any order; the error bound of ``certificate.outward`` allows for it.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})


@dataclass(frozen=True)
class Sum:
    """The law of an integer: outcome z has probability ``mantissa[z // 32, z % 32] · 2**exponent[z // 32]``."""

    mantissa: FloatArray  # (blocks, 32), the largest entry of a block in [1/2, 1)
    exponent: IntArray  # (blocks,)

    @staticmethod
    def of(log_law: FloatArray) -> "Sum":
        """Build from the logarithms of the probabilities of 0, 1, 2, …"""
        blocks = -(-len(log_law) // BLOCK)
        padded = np.full(blocks * BLOCK, -inf)
        padded[: len(log_law)] = log_law
        tiles = padded.reshape(blocks, BLOCK) / np.log(2)
        top = tiles.max(axis=1)
        exponent = np.where(np.isneginf(top), EMPTY, np.floor(np.where(np.isneginf(top), 0, top)) + 1)
        with np.errstate(under="ignore"):
            mantissa = np.exp2(tiles - np.where(exponent == EMPTY, 0, exponent)[:, None])
        return Sum(mantissa, exponent.astype(np.int64))

    @staticmethod
    def nothing() -> "Sum":
        """The law of the constant 0: the sum over nobody."""
        return Sum.of(np.zeros(1))

    def __add__(self, other: "Sum") -> "Sum":
        """The law of the sum of two independent integers."""
        return Sum(*convolve(self.mantissa, self.exponent, other.mantissa, other.exponent))

    def times(self, count: int) -> "Sum":
        """The law of the sum of ``count`` independent copies."""
        result, square = Sum.nothing(), self
        while count:
            if count & 1:
                result = result + square
            count >>= 1
            if count:
                square = square + square
        return result

    def log_law(self, outcomes: int) -> FloatArray:
        """The logarithms of the probabilities of 0, …, outcomes − 1."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.mantissa) + np.log(2) * self.exponent[:, None].astype(np.float64)
        return np.asarray(np.where(self.mantissa > 0, logs, -inf).ravel()[:outcomes])


@compiled
def convolve_into(
    x: FloatArray, ex: IntArray, y: FloatArray, ey: IntArray, out: FloatArray, eout: IntArray
) -> int:  # pragma: no cover (compiled)
    """Convolve two blocked laws into ``out``; return the blocks used. Only non-negative numbers are added."""
    nx, ny = x.shape[0], y.shape[0]
    last = np.zeros(ny, dtype=np.int64)  # the last outcome of each block of y that is not zero
    for j in range(ny):
        for q in range(32):
            if y[j, q] > 0.0:
                last[j] = q
    window = np.empty(64)
    acc = np.empty(32)
    size = 1
    for b in range(nx + ny):
        top = EMPTY
        for j in range(max(0, b - nx), min(ny, b + 1)):
            if b - j < nx:
                top = max(top, ex[b - j] + ey[j])
            if j < b:
                top = max(top, ex[b - j - 1] + ey[j])
        for z in range(32):
            acc[z] = 0.0
        for j in range(max(0, b - nx), min(ny, b + 1)):
            # The outcomes of x that meet block j of y in block b: one block of x and the one before it.
            if ey[j] == EMPTY:
                continue
            i = b - j
            behind = ldexp(1.0, max(ex[i - 1] + ey[j] - top, -1080)) if i > 0 else 0.0
            level = ldexp(1.0, max(ex[i] + ey[j] - top, -1080)) if i < nx else 0.0
            front, back = window[:32], window[32:]
            before, here = x[max(i - 1, 0)], x[min(i, nx - 1)]
            for z in range(32):
                front[z] = before[z] * behind
                back[z] = here[z] * level
            for q in range(last[j] + 1):
                yq = y[j, q]
                offset = np.uint64(32 - q)  # an unsigned index cannot count from the end, so the loop vectorises
                for z in range(32):
                    acc[z] += yq * window[np.uint64(z) + offset]
        largest = 0.0
        for z in range(32):
            largest = max(largest, acc[z])
        if largest > 0.0:
            power = frexp(largest)[1]
            scale = ldexp(1.0, -power)
            for z in range(32):
                out[b, z] = acc[z] * scale
            eout[b] = top + power
            size = b + 1
        else:
            for z in range(32):
                out[b, z] = 0.0
            eout[b] = EMPTY
    return size


@compiled
def convolve(
    x: FloatArray, ex: IntArray, y: FloatArray, ey: IntArray
) -> tuple[FloatArray, IntArray]:  # pragma: no cover (compiled)
    """Convolve two blocked laws."""
    out = np.empty((x.shape[0] + y.shape[0], 32))
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
        for z in range(32):
            if a[k, z] > 0.0:
                ratio = np.log(a[k, z]) - np.log(b[k, z]) + np.log(2.0) * (ea[k] - eb[k])
                weight = a[k, z] * scale
                mass += weight
                total += weight * (ratio if alpha == 1.0 else np.expm1((alpha - 1) * ratio))
    total /= mass
    return total if alpha == 1.0 else np.log1p(total) / (alpha - 1)


@compiled
def divergences(
    a: FloatArray, ea: IntArray, b: FloatArray, eb: IntArray, alphas: FloatArray, out: FloatArray
) -> None:  # pragma: no cover (compiled)
    """Write D_α(A ‖ B) to ``out`` for every order, infinite where A can be what B cannot."""
    blocks = a.shape[0]
    if blocks > b.shape[0]:
        out[:] = np.inf
        return
    ratio = np.empty((blocks, 32))  # A/B within a block, scaled so that its largest is 1
    peak = np.empty(blocks)  # the logarithm of that largest
    for k in range(blocks):
        high = 0.0
        impossible = False
        for z in range(32):
            az, bz = a[k, z], b[k, z]
            quotient = az / bz if bz > 0.0 else 0.0
            impossible |= (az > 0.0) & (bz == 0.0)
            ratio[k, z] = quotient
            high = max(high, quotient)
        if impossible:
            out[:] = np.inf
            return
        if high == 0.0:
            peak[k] = -np.inf
            continue
        if high == np.inf:  # beyond a float within one block: by logarithms
            high = -np.inf
            for z in range(32):
                ratio[k, z] = np.log(a[k, z]) - np.log(b[k, z]) if a[k, z] > 0.0 else -np.inf
                high = max(high, ratio[k, z])
            for z in range(32):
                ratio[k, z] = np.exp(ratio[k, z] - high)
        else:
            scale = 1.0 / high
            for z in range(32):
                ratio[k, z] *= scale
            high = np.log(high)
        peak[k] = high + np.log(2.0) * (ea[k] - eb[k])
    highest = peak.max()
    power = np.empty(32)
    base = np.empty(32)
    for order in range(alphas.shape[0]):
        alpha = alphas[order]
        if alpha == np.inf:
            out[order] = highest
            continue
        if alpha == 1.0 or (alpha - 1) * highest < 0.5:
            out[order] = _near_kl(a, ea, b, eb, alpha)
            continue
        by_squaring = alpha <= 4096 and alpha == np.floor(alpha)
        best, reach = 0, -np.inf  # a block adds at most 32·exp(reach): start with the most promising one
        for k in range(blocks):
            if peak[k] > -np.inf and np.log(2.0) * eb[k] + alpha * peak[k] > reach:
                best, reach = k, np.log(2.0) * eb[k] + alpha * peak[k]
        top, total = -np.inf, 0.0
        for turn in range(blocks):
            k = best if turn == 0 else turn - 1 if turn <= best else turn
            reach = np.log(2.0) * eb[k] + alpha * peak[k]
            if reach + 4.0 < top - 50.0 or peak[k] == -np.inf:  # log(32) < 4: too little to matter
                continue
            if by_squaring:  # no exponentials
                for z in range(32):
                    power[z] = 1.0
                    base[z] = ratio[k, z]
                n = int(alpha)
                while True:
                    if n & 1:
                        for z in range(32):
                            power[z] *= base[z]
                    n >>= 1
                    if n == 0:
                        break
                    for z in range(32):
                        base[z] *= base[z]
            else:
                for z in range(32):
                    power[z] = ratio[k, z] ** alpha
            part = 0.0
            for z in range(32):
                part += b[k, z] * power[z]
            if part == 0.0:
                continue
            term = np.log(part) + reach
            if term > top:
                total = total * np.exp(top - term) + 1.0
                top = term
            else:
                total += np.exp(term - top)
        out[order] = (top + np.log(total)) / (alpha - 1)


def renyi_divergence(log_p: FloatArray, log_q: FloatArray, alphas: Sequence[float]) -> FloatArray:
    """D_α(P ‖ Q) for each order α ∈ [1, ∞] (Rényi 1961; 1 is the KL divergence), from log-laws.

    >>> log_p, log_q = np.log([0.75, 0.25]), np.log([0.5, 0.5])
    >>> renyi_divergence(log_p, log_q, [2, np.inf]).round(6).tolist()
    [0.223144, 0.405465]
    """
    p, q = Sum.of(np.asarray(log_p)), Sum.of(np.asarray(log_q))
    out = np.empty(len(alphas))
    divergences(p.mantissa, p.exponent, q.mantissa, q.exponent, np.asarray(alphas, dtype=np.float64), out)
    return out
