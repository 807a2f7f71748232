"""Goodness of fit, for every test that draws samples."""

import numpy as np
from scipy.stats import chisquare


def p_value(observed, law):
    """Chi-square, with outcomes too rare for it gathered into one."""
    law = np.asarray(law, dtype=float)
    expected = observed.sum() * law
    rare = expected < 20
    assert observed[law == 0].sum() == 0
    groups = [(observed[~rare], expected[~rare])]
    if rare.any() and expected[rare].sum() > 0:
        groups.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    seen, wanted = (np.concatenate(part) for part in zip(*groups, strict=True))
    return chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue if len(seen) > 1 else 1.0


def joint_p_value(first, second, law):
    """Chi-square of two sequences of outcomes against independence, each with the given law."""
    law = np.asarray(law, dtype=float)
    pairs = np.bincount(first.astype(np.int64) * len(law) + second, minlength=len(law) ** 2)
    return p_value(pairs, np.outer(law, law).ravel())
