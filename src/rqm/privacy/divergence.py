"""Sums of independent integers and the Rényi divergences between them, safe from underflow and overflow.

A log-law is an array of natural logarithms of probabilities. A ``Sum`` holds a law in small blocks, each
block with its own power of two, so that tails far below the smallest float keep full relative precision while
convolution stays plain multiplication and addition of positive numbers: no cancellation, no logarithm in the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, log1p

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.threads import in_turns
from rqm.privacy.compiled import BLOCK, EMPTY, IntArray, convolve, divergences

UNIT_ROUNDOFF = 2.0**-53
LOG2 = log(2)
FEW = 4096
"""Pairs of laws that are not worth another thread."""
LONG = 8
"""Blocks from which on a law has tails worth leaving out."""


@dataclass(frozen=True)
class Sum:
    """The law of an integer: block k holds ``mantissa[k] · 2**exponent[k]``.

    Of a long sum the farthest tails may be left out; their probability is at most ``exp(log_lost)``. Where such a law
    begins is forgotten: it is the same for both laws of a pair.
    """

    mantissa: FloatArray  # (blocks, BLOCK), the largest entry of a block in [1/2, 1)
    exponent: IntArray  # (blocks,)
    log_lost: float = -inf

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

    def steep(self) -> bool:
        """Whether the law falls so fast within a block that products of two such laws may underflow."""
        smallest = np.where(self.mantissa > 0, self.mantissa, 1.0).min()
        return bool(smallest < 2.0**-500)

    @staticmethod
    @cache
    def nothing() -> "Sum":
        """The law of the constant 0: the sum over nobody."""
        return Sum.of(np.zeros(1))

    def __add__(self, other: "Sum") -> "Sum":
        """The law of the sum of two independent integers."""
        lost = float(np.logaddexp(self.log_lost, other.log_lost))
        return Sum(*convolve(self.mantissa, self.exponent, other.mantissa, other.exponent), lost)

    def times(self, count: int, log_tail: float = -inf) -> "Sum":
        """The law of the sum of ``count`` independent copies, all on the way trimmed by ``log_tail``."""
        result, square = Sum.nothing(), self
        while count:
            if count & 1:
                result = (result + square).trimmed(log_tail)
            count >>= 1
            if count:
                square = (square + square).trimmed(log_tail)
        return result

    def trimmed(self, log_tail: float) -> "Sum":
        """Without the blocks at each end whose probability is together at most ``exp(log_tail)``, if it is long."""
        if log_tail == -inf or len(self.exponent) < LONG:
            return self
        first, below = _tail(self.mantissa, self.exponent, log_tail)
        last, above = _tail(self.mantissa[::-1], self.exponent[::-1], log_tail)
        if not first + last:
            return self
        kept = slice(first, len(self.exponent) - last)
        lost = float(np.logaddexp.reduce([self.log_lost, below, above])) + 1e-9
        return Sum(self.mantissa[kept], self.exponent[kept], lost)

    def log_law(self, outcomes: int) -> FloatArray:
        """The logarithms of the probabilities of 0, …, outcomes − 1."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.mantissa) + np.log(2) * self.exponent[:, None].astype(np.float64)
        return np.asarray(np.where(self.mantissa > 0, logs, -inf).ravel()[:outcomes])


def _tail(mantissa: FloatArray, exponent: IntArray, log_tail: float) -> tuple[int, float]:
    """How many of the first blocks have together at most ``exp(log_tail)``, and the logarithm of what they have."""
    cut, total = 0, -inf
    for power in exponent.tolist():
        if (power - 1) * LOG2 > log_tail:  # already its largest outcome is more
            break
        mass = float(mantissa[cut].sum()) if power != EMPTY else 0.0
        here = log(mass) + power * LOG2 if mass else -inf
        more = max(total, here) + log1p(exp(-abs(total - here))) if min(total, here) > -inf else max(total, here)
        if more > log_tail:
            break
        cut, total = cut + 1, more
    return cut, total


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


def all_pairs(laws: int) -> IntArray:
    """All ordered pairs of different laws."""
    return np.argwhere(~np.eye(laws, dtype=np.bool_))


def unlike_pairs(laws: FloatArray) -> IntArray:
    """Ordered pairs of different laws, a row each, that differ in more than the names of the outcomes.

    Of a table whose rows are each other's but for the place of one entry (randomized response) all pairs are alike.

    >>> unlike_pairs(np.log([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])).tolist()
    [[2, 0]]
    """
    rows, outcomes = laws.shape
    own = np.eye(rows, outcomes, dtype=np.bool_)
    if rows == outcomes > 1 and (laws[own] == laws[0, 0]).all() and (laws[~own] == laws[0, 1]).all():
        return np.array([[rows - 1, 0]])
    return all_pairs(rows)


def pair_divergences(base: Sum, laws: Sequence[Sum], pairs: IntArray, orders: FloatArray) -> FloatArray:
    """D_α(base + laws[i] ‖ base + laws[j]) for each pair (i, j) and each order, of shape (pairs, orders)."""
    sums = {int(v): base + laws[v] for v in np.unique(pairs)}
    out = np.empty((len(pairs), len(orders)))

    def fill(part: slice) -> None:
        for row, (i, j) in zip(out[part], pairs[part].tolist(), strict=True):
            a, b = sums[i], sums[j]
            divergences(a.mantissa, a.exponent, b.mantissa, b.exponent, orders, row)

    in_turns(fill, len(pairs), least=FEW)
    return out
