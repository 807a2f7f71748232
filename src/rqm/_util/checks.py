"""Checks of user input: every message names the value that was given and what is allowed."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

MOST = 2**64
"""Whole numbers that nobody has named a limit for are no larger."""

FloatArray = npt.NDArray[np.float64]


def real(name: str, value: Any, allowed: str, low: float, high: float, *, closed: str = "") -> float:
    """Return ``value`` as a float inside the interval, or raise.

    ``closed`` holds "[" and/or "]" where the ends of the interval are allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} = {value!r}: must be a number, {allowed}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} = {str(value)[:12]}…: must be {allowed}") from None
    above = number >= low if "[" in closed else number > low
    below = number <= high if "]" in closed else number < high
    if not (above and below):  # NaN fails both comparisons
        raise ValueError(f"{name} = {value!r}: must be {allowed}")
    return number


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in ``low..high``, or raise."""
    allowed = f"a whole number ≥ {low}" if high is None else f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} = {value!r}: must be {allowed}")
    if high is None and value > MOST:
        raise ValueError(f"{name} = {str(value)[:20]}…: must be at most 2**64")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} = {value!r}: must be {allowed}")
    return int(value)


def floats(name: str, x: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return ``x`` as a contiguous float32 or float64 array (of the same memory where it is one), or raise."""
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{name}: ragged; every row must have the same length ({error})") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}: must be real numbers")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: must be a plain one, in which nothing is hidden")
    kind = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return np.asarray(array, dtype=kind, order="C")


def not_finite(name: str, array: npt.NDArray[np.floating]) -> ValueError:
    """The error for an array that holds NaN or infinity."""
    bad = array[~np.isfinite(array)].flat[0]
    return ValueError(f"{name} contains {bad}: every value must be finite")


def inputs(name: str, x: npt.ArrayLike) -> FloatArray:
    """Return ``x`` as a float64 array without NaN or infinity, or raise."""
    array = floats(name, x).astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise not_finite(name, array)
    return array


def known_keys(values: Iterable[str], names: list[str], prefix: str = "") -> None:
    """Raise for a key that is not among the names, and suggest the nearest."""
    for key in values:
        if key not in names:
            near = get_close_matches(key, names, 1, 0.4)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(names)}"
            raise ValueError(f"{prefix}{key}: unknown key; {hint}")


def order(alpha: Any) -> float:
    """Return the Rényi order α ∈ [1, ∞], or raise."""
    return real("alpha", alpha, "at least 1 (1 is the KL divergence, inf is pure DP)", 1, math.inf, closed="[]")


def padded(dim: int) -> int:
    """The smallest power of two that is not below ``dim``."""
    return 1 << (whole("dim", dim, 1) - 1).bit_length()
