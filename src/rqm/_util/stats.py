"""Means over seeds, with their confidence intervals."""

from typing import Any

import numpy as np
from scipy.special import stdtrit


def mean_and_interval(values: Any) -> tuple[Any, Any]:
    """Mean over the first axis and the half-width of its 95 % confidence interval (Student); NaN for one seed."""
    values = np.asarray(values, dtype=float)
    count = len(values)
    if count < 2:
        return values.mean(axis=0), np.full(values.shape[1:], np.nan)
    return values.mean(axis=0), stdtrit(count - 1, 0.975) * values.std(axis=0, ddof=1) / count**0.5
