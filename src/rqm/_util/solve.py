"""Zeros and minima of functions, without the half second that SciPy's take to import until one is asked for."""

from collections.abc import Callable


def zero(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """Where a function is zero whose signs at two places differ (Brent 1973).

    >>> round(zero(lambda x: x * x - 2, 0, 2, xtol=1e-12), 9)
    1.414213562
    """
    from scipy.optimize import brentq  # noqa: PLC0415 (takes half a second)

    return float(brentq(function, low, high, xtol=xtol, rtol=1e-12))


def lowest(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """Where a function of one valley is least between two places (Brent 1973).

    >>> round(lowest(lambda x: (x - 1) ** 2, -8, 8, xtol=1e-9), 6)
    1.0
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 (takes half a second)

    return float(minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xtol}).x)
