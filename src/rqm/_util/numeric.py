"""Roots and minima of functions, and means with confidence intervals.

SciPy's optimizers take half a second to import. They are imported when they are first used.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import stdtrit


def find_root(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """A root of a function, by Brent's method (Brent 1973).

    Args:
        function: A continuous function with different signs at `low` and `high`.
        low: The lower end of the interval.
        high: The upper end.
        xtol: Absolute error of the root. Its relative error may be 10⁻¹².

    Returns:
        The root.

    >>> round(find_root(lambda x: x * x - 2, 0, 2, xtol=1e-12), 9)
    1.414213562
    """
    from scipy.optimize import brentq  # noqa: PLC0415 (takes half a second)

    return float(brentq(function, low, high, xtol=xtol, rtol=1e-12))


def find_minimum(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """The argument at which a unimodal function is smallest, by Brent's method (Brent 1973).

    Args:
        function: A function with one local minimum between `low` and `high`.
        low: The lower end of the interval.
        high: The upper end.
        xtol: Absolute error of the argument.

    Returns:
        The argument.

    >>> round(find_minimum(lambda x: (x - 1) ** 2, -8, 8, xtol=1e-9), 6)
    1.0
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 (takes half a second)

    return float(minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xtol}).x)


def mean_and_interval(values: Any) -> tuple[Any, Any]:
    """Mean over the first axis and the half-width of its 95 % confidence interval (Student); NaN for one seed."""
    values = np.asarray(values, dtype=float)
    count = len(values)
    if count < 2:
        return values.mean(axis=0), np.full(values.shape[1:], np.nan)
    return values.mean(axis=0), stdtrit(count - 1, 0.975) * values.std(axis=0, ddof=1) / count**0.5
