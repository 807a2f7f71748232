"""The compiled loops over tables of counts: means over those that a spread of clients can add, and what decides them.

A table has four axes, one for each group of clients.
"""

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.threads import in_turns
from rqm.privacy.compiled import IntArray, compiled

SOME = 512
"""Spreads whose means one core takes at a time."""


def spread_means(table: FloatArray, thin: FloatArray, spreads: IntArray) -> FloatArray:
    """The mean of a table over the counts c ≤ k of each spread k; c has the chance ∏ thin[g, k, c]."""
    means = np.empty(len(spreads))
    in_turns(lambda part: _means(table, thin, spreads[part], means[part]), len(spreads), SOME)
    return means


@compiled
def _means(
    table: FloatArray, thin: FloatArray, spreads: IntArray, means: FloatArray
) -> None:  # pragma: no cover (compiled)
    for s in range(spreads.shape[0]):
        k0, k1, k2, k3 = spreads[s]
        total = 0.0
        for a in range(k0 + 1):
            pa = thin[0, k0, a]
            for b in range(k1 + 1 if pa > 0.0 else 0):
                pb = pa * thin[1, k1, b]
                for c in range(k2 + 1 if pb > 0.0 else 0):
                    pc = pb * thin[2, k2, c]
                    row = table[a, b, c]
                    part = 0.0
                    for d in range(k3 + 1 if pc > 0.0 else 0):
                        part += thin[3, k3, d] * row[d]
                    total += pc * part
        means[s] = total


@compiled
def take_large(
    table: FloatArray, thin: FloatArray, spreads: IntArray, least: FloatArray, most: float
) -> IntArray:  # pragma: no cover (compiled)
    """The counts that add more than so much to the mean of a spread; they are zero in the table from then on.

    Nothing in it is above ``most``.
    """
    taken, many = np.empty((64, 4), dtype=np.int64), 0
    for s in range(spreads.shape[0]):
        k0, k1, k2, k3 = spreads[s]
        for a in range(k0 + 1):
            pa = thin[0, k0, a]
            for b in range(k1 + 1 if pa * most > least[s] else 0):
                pb = pa * thin[1, k1, b]
                for c in range(k2 + 1 if pb * most > least[s] else 0):
                    pc = pb * thin[2, k2, c]
                    for d in range(k3 + 1 if pc * most > least[s] else 0):
                        if pc * thin[3, k3, d] * table[a, b, c, d] > least[s]:
                            if many == taken.shape[0]:
                                taken = np.concatenate((taken, np.empty_like(taken)))
                            taken[many, 0], taken[many, 1], taken[many, 2], taken[many, 3] = a, b, c, d
                            many += 1
                            table[a, b, c, d] = 0.0
    return taken[:many]


@compiled
def lower_beyond(
    table: FloatArray, opened: FloatArray, counts: IntArray, values: FloatArray, stride: int
) -> None:  # pragma: no cover (compiled)
    """Put the values of some counts into both tables; those with a few shapes more are no larger."""
    many = table.shape
    for s in range(counts.shape[0]):
        value, (a, b, c, d) = values[s], counts[s]
        for i in range(a, min(a + stride, many[0])):
            for j in range(b, min(b + stride, many[1])):
                for k in range(c, min(c + stride, many[2])):
                    for m in range(d, min(d + stride, many[3])):
                        table[i, j, k, m] = min(table[i, j, k, m], value)
                        opened[i, j, k, m] = min(opened[i, j, k, m], value)
