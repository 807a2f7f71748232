"""The compiled loops over tables of counts: means over those that a spread of clients can add, and what decides them.

A table has four axes, one for each group of clients.
"""

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import Bools, IntArray, compiled


def spread_means(table: FloatArray, thin: FloatArray, spreads: IntArray) -> FloatArray:
    """The mean of a table over the counts c ≤ k of each spread k; c has the chance ∏ thin[g, k, c]."""
    means = np.empty(len(spreads))
    _walk(table, thin, spreads, means, None)
    return means


def large_counts(table: FloatArray, thin: FloatArray, spreads: IntArray, least: FloatArray) -> IntArray:
    """The counts that add more than so much to the mean of a spread."""
    large = np.zeros(table.shape, dtype=np.bool_)
    _walk(table, thin, spreads, least, large)
    return np.stack(np.unravel_index(np.flatnonzero(large), large.shape), axis=1)


@compiled
def _walk(
    table: FloatArray, thin: FloatArray, spreads: IntArray, each: FloatArray, large: Bools | None
) -> None:  # pragma: no cover (compiled)
    """Write the means of spreads into ``each``; or mark in ``large`` what adds more than ``each`` says.

    The two are compiled apart.
    """
    for s in range(spreads.shape[0]):
        k0, k1, k2, k3 = spreads[s]
        total = 0.0
        for a in range(k0 + 1):
            pa = thin[0, k0, a]
            for b in range(k1 + 1 if pa > 0.0 else 0):
                pb = pa * thin[1, k1, b]
                for c in range(k2 + 1 if pb > 0.0 else 0):
                    pc = pb * thin[2, k2, c]
                    if large is None:
                        row = table[a, b, c]
                        part = 0.0
                        for d in range(k3 + 1 if pc > 0.0 else 0):
                            part += thin[3, k3, d] * row[d]
                        total += pc * part
                    else:
                        for d in range(k3 + 1 if pc > 0.0 else 0):
                            if pc * thin[3, k3, d] * table[a, b, c, d] > each[s]:
                                large[a, b, c, d] = True
        if large is None:
            each[s] = total


@compiled
def lower_beyond(
    table: FloatArray, counts: IntArray, values: FloatArray, stride: int
) -> None:  # pragma: no cover (compiled)
    """Put in the values of some counts; those with a few shapes more are no larger."""
    for s in range(counts.shape[0]):
        a, b, c, d = counts[s]
        beyond = table[a : a + stride, b : b + stride, c : c + stride, d : d + stride]
        for i in np.ndindex(beyond.shape):
            beyond[i] = min(beyond[i], values[s])
