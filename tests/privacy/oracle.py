"""Rényi divergences of sums by other means: 50 digits of mpmath, and plain long doubles."""

import numpy as np
from mpmath import mp, mpf


def exact_law(mech, x):
    """The paper's law at x from the parameters alone, in mpmath."""
    from fractions import Fraction

    from rqm import RQM

    if isinstance(mech, RQM):
        return [mpf(p.numerator) / mpf(p.denominator) for p in mech.exact_pmf(Fraction(float(x)))]
    p = mpf(1) / 2 + mpf(mech.theta) * mpf(float(x)) / mpf(mech.clip)
    n = mech.levels - 1
    return [mp.binomial(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def convolve(a, b):
    out = [mpf(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def divergence(p, q, alpha):
    if alpha == 1:
        return mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True))
    if alpha == mp.inf:
        return max(mp.log(a / b) for a, b in zip(p, q, strict=True))
    alpha = mpf(alpha)
    return mp.log(mp.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True))) / (alpha - 1)


def quick_divergence(laws, pair, others, alpha):
    """D_α by plain long doubles; ``others`` are indices of laws. For few clients and mild laws only."""
    p, q = (laws[i].astype(np.longdouble) for i in pair)
    for v in others:
        p, q = np.convolve(p, laws[v].astype(np.longdouble)), np.convolve(q, laws[v].astype(np.longdouble))
    ratio = np.log(p) - np.log(q)
    if np.isinf(alpha):
        return float(ratio.max())
    if alpha < 1 + 1e-6:  # the sum below would cancel
        return float((p * ratio).sum() / p.sum())
    terms = alpha * np.log(p) - (alpha - 1) * np.log(q)
    top = terms.max()
    return float((top + np.log(np.exp(terms - top).sum())) / (alpha - 1))
