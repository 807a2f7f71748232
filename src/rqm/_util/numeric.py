"""Roots and minima of functions, and means with confidence intervals.

SciPy's optimizers take half a second to import, which every ε would wait for. So roots are found here, and the
optimizers are imported when a minimum is first needed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import stdtrit


def find_root(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """A root of a function, by bisection and inverse quadratic interpolation (Chandrupatla 1997).

    Args:
        function: A continuous function with different signs at `low` and `high`.
        low: The lower end of the interval.
        high: The upper end.
        xtol: Absolute error of the root. Its relative error may be 10⁻¹².

    Returns:
        The root.

    Raises:
        ValueError: If the signs do not differ.

    >>> round(find_root(lambda x: x * x - 2, 0, 2, xtol=1e-12), 9)
    1.414213562
    """
    a, b, fraction = float(high), float(low), 0.5
    f_a, f_b = function(a), function(b)
    if not f_a * f_b <= 0:
        raise ValueError(f"low = {low}, high = {high}: the function must have different signs there")
    if not f_a * f_b:
        return b if f_a else a
    while True:
        x = a + fraction * (b - a)
        f_x = function(x)
        if (f_x > 0) == (f_a > 0):
            c, f_c = a, f_a
        else:
            c, f_c, b, f_b = b, f_b, a, f_a
        a, f_a = x, f_x
        best, at_best = (a, f_a) if abs(f_a) < abs(f_b) else (b, f_b)
        margin = (xtol + 1e-12 * abs(best)) / 2 / abs(b - a)
        if margin > 0.5 or at_best == 0:
            return best
        xi, phi = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        fraction = 0.5
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:  # else the interpolation is not monotone in between
            fraction = f_a / (f_b - f_a) * f_c / (f_b - f_c)
            fraction += (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        fraction = min(1 - margin, max(margin, fraction))


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
