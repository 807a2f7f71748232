"""The compiled loops over tables of counts: means over those that a spread of clients can add, and what decides them.

A table has four axes, one for each group of clients.
"""

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import Bools, IntArray, compiled


@compiled
def spread_means(
    table: FloatArray, thin: FloatArray, spreads: IntArray, out: FloatArray
) -> None:  # pragma: no cover (compiled)
    """Write the mean of a table over the counts c ≤ k of each spread k; c has the chance ∏ thin[g, k, c]."""
    for s in range(spreads.shape[0]):
        k0, k1, k2, k3 = spreads[s]
        total = 0.0
        for a in range(k0 + 1):
            pa = thin[0, k0, a]
            for b in range(k1 + 1 if pa > 0.0 else 0):
                pb = pa * thin[1, k1, b]
                for c in range(k2 + 1 if pb > 0.0 else 0):
                    pc = pb * thin[2, k2, c]
                    if pc > 0.0:
                        row = table[a, b, c]
                        part = 0.0
                        for d in range(k3 + 1):
                            part += thin[3, k3, d] * row[d]
                        total += pc * part
        out[s] = total


@compiled
def open_counts(
    table: FloatArray, exact: Bools, thin: FloatArray, spreads: IntArray, least: FloatArray
) -> tuple[FloatArray, IntArray]:  # pragma: no cover (compiled)
    """What the counts that are not exact add to the mean of each spread, and those that add at least so much.

    The latter are taken for exact from now on.
    """
    adds, found, many = np.zeros(spreads.shape[0]), np.empty((1024, 4), np.int64), 0
    for s in range(spreads.shape[0]):
        k0, k1, k2, k3 = spreads[s]
        for a in range(k0 + 1):
            pa = thin[0, k0, a]
            for b in range(k1 + 1 if pa > 0.0 else 0):
                pb = pa * thin[1, k1, b]
                for c in range(k2 + 1 if pb > 0.0 else 0):
                    pc = pb * thin[2, k2, c]
                    for d in range(k3 + 1 if pc > 0.0 else 0):
                        if not exact[a, b, c, d]:
                            share = pc * thin[3, k3, d] * table[a, b, c, d]
                            adds[s] += share
                            if share > least[s]:
                                exact[a, b, c, d] = True
                                if many == len(found):
                                    found = np.concatenate((found, np.empty_like(found)))
                                found[many] = a, b, c, d
                                many += 1
    return adds, found[:many]


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
