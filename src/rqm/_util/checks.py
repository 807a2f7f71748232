"""Checks of user input: every message names the value that was given and what is allowed."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

MOST = 2**64
"""Whole numbers that nobody has named a limit for are no larger."""

LARGEST_ORDER = 1e12
LONGEST = 80
"""Characters of a value that a message shows."""

FloatArray = npt.NDArray[np.float64]


def shown(value: Any) -> str:
    """A value as a message shows it: in full if it is short.

    >>> shown("rqm"), shown(2**20000), len(shown("x" * 1000))
    ("'rqm'", 'an int of 20001 bits', 80)
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or nested too deeply
        text = f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def real(name: str, value: Any, allowed: str, low: float, high: float, *, closed: str = "") -> float:
    """Return ``value`` as a float inside the interval, or raise.

    ``closed`` holds "[" and/or "]" where the ends of the interval are allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} = {shown(value)}: must be a number, {allowed}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} = {shown(value)}: must be {allowed}") from None
    above = number >= low if "[" in closed else number > low
    below = number <= high if "]" in closed else number < high
    if not (above and below):  # NaN fails both comparisons
        raise ValueError(f"{name} = {shown(value)}: must be {allowed}")
    return number


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in ``low..high``, or raise."""
    allowed = f"a whole number ≥ {low}" if high is None else f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} = {shown(value)}: must be {allowed}")
    if high is None and value > MOST:
        raise ValueError(f"{name} = {shown(value)}: must be at most 2**64")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} = {shown(value)}: must be {allowed}")
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


def sums(name: str, x: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return ``x`` as it is if it is an array of int64, else as ``inputs``, or raise."""
    return x if type(x) is np.ndarray and x.dtype == np.int64 else inputs(name, x)


def known_keys(
    values: Iterable[str],
    names: list[str],
    prefix: str = "",
    inner: Iterable[str] = (),
    needed: Iterable[str] = (),
) -> None:
    """Raise for a key that is not among the names, and suggest the nearest; and for one that is ``needed``.

    ``inner`` are names of tables beside them (``server.rate``), of which somebody may have left out the first part.
    """
    for key in values:
        if key not in names:
            name = str(key)[:LONGEST]
            homes = {one.rpartition(".")[2]: one for one in reversed([*inner, *names])}
            near = get_close_matches(name, homes, 1, 0.6)
            hint = f"did you mean {prefix}{homes[near[0]]}?" if near else f"known are {', '.join(names)}"
            raise ValueError(f"{prefix}{name}: unknown key; {hint}")
    for key in needed:
        if key not in values:
            raise ValueError(f"{prefix}{key}: must be given, with {prefix}{f', {prefix}'.join(names[:3])}, …")


def nearest(name: str, names: Iterable[str]) -> str:
    """What somebody who wrote this may have meant, as the end of a message: nothing if no name is near.

    >>> nearest("glyhps", ["demo", "glyphs"]), nearest("q", ["demo"])
    ('; did you mean glyphs?', '')
    >>> nearest("PBM", ["rqm", "pbm"])
    '; did you mean pbm?'
    """
    known = {one.lower(): one for one in names}
    near = get_close_matches(name.lower(), list(known), 1, 0.6)
    return f"; did you mean {known[near[0]]}?" if near else ""


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise for a value that is not among those that are allowed, and suggest the nearest."""
    names = list(allowed)
    if value not in names:
        meant = nearest(value, names) if isinstance(value, str) else ""  # no repr of what is nested without end
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(names)}{meant}")


def order(alpha: Any) -> float:
    """Return the Rényi order α ∈ [1, 10¹²] or ∞, or raise: with larger ones floats overflow."""
    allowed = "at least 1 (the KL divergence) and at most 1e12, or inf (pure DP)"
    return real("alpha", alpha, allowed, 1, math.inf if alpha == math.inf else LARGEST_ORDER, closed="[]")


def padded(dim: int) -> int:
    """The smallest power of two that is not below ``dim``."""
    return 1 << (whole("dim", dim, 1) - 1).bit_length()
