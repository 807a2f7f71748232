"""Checks of user input. Every message names the value and what is allowed."""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def shown(value: Any, length: int = 80) -> str:
    """A value as an error message shows it.

    Args:
        value: Any object. Its `repr` may fail.
        length: Characters that are shown; longer texts are cut.

    Returns:
        The text.

    >>> shown("rqm"), shown(2**20000), len(shown("x" * 1000))
    ("'rqm'", 'an int of 20001 bits', 80)
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or nested too deeply
        text = f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= length else text[: length - 1] + "…"


def real(name: str, value: Any, allowed: str, low: float, high: float, *, closed: str = "") -> float:
    """Return a number as a float if it lies in an interval.

    Args:
        name: The name of the parameter, for the message.
        value: The number, of Python or NumPy; no bool.
        allowed: The interval in words, for the message.
        low: The lower end.
        high: The upper end.
        closed: Contains "[" if `low` is allowed and "]" if `high` is; by default neither is.

    Returns:
        The number.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is NaN or outside the interval.
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
    """Return an integer as an int if it is in a range.

    Args:
        name: The name of the parameter, for the message.
        value: The integer, of Python or NumPy; no bool.
        low: The smallest allowed value.
        high: The largest allowed value; None: 2**64, so that no message or file grows without limit.

    Returns:
        The integer.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is out of range.
    """
    allowed = f"a whole number ≥ {low}" if high is None else f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} = {shown(value)}: must be {allowed}")
    if high is None and value > 2**64:
        raise ValueError(f"{name} = {shown(value)}: must be at most 2**64")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} = {shown(value)}: must be {allowed}")
    return int(value)


def floats(name: str, x: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return numbers as a contiguous float32 or float64 array.

    Args:
        name: The name of the parameter, for the message.
        x: The numbers. An array that is contiguous float32 or float64 is returned itself.

    Returns:
        The array: float32 for half and single precision, else float64.

    Raises:
        TypeError: If they are not real numbers.
        ValueError: If rows differ in length.
    """
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{name}: ragged; every row must have the same length ({error})") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}: must be real numbers")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: must be a plain array")
    kind = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return np.asarray(array, dtype=kind, order="C")


def not_finite(name: str, array: npt.NDArray[np.floating]) -> ValueError:
    """The error for an array that holds NaN or infinity."""
    value = array[~np.isfinite(array)].flat[0]
    return ValueError(f"{name} contains {value}: every value must be finite")


def inputs(name: str, x: npt.ArrayLike) -> FloatArray:
    """Return numbers as a float64 array, or raise if one is NaN or infinite."""
    array = floats(name, x).astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise not_finite(name, array)
    return array


def sums(name: str, x: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return an int64 array unchanged, and other numbers as floats without NaN or infinity, or raise."""
    return x if type(x) is np.ndarray and x.dtype == np.int64 else inputs(name, x)


def known_keys(
    values: Iterable[str],
    names: list[str],
    prefix: str = "",
    inner: Iterable[str] = (),
    needed: Iterable[str] = (),
) -> None:
    """Raise for an unknown key, with the nearest known one, and for a missing key.

    Args:
        values: The keys of a table.
        names: The known keys.
        prefix: The name of the table with a dot, for the message.
        inner: Names in other tables, such as `server.rate`. They are suggested for `rate`.
        needed: Keys that must be in `values`.

    Raises:
        ValueError: If a key is unknown or missing.
    """
    for key in values:
        if key not in names:
            name = str(key)[:80]
            full_names = {full.rpartition(".")[2]: full for full in reversed([*inner, *names])}
            matches = get_close_matches(name, full_names, 1, 0.6)
            hint = f"did you mean {prefix}{full_names[matches[0]]}?" if matches else f"known are {', '.join(names)}"
            raise ValueError(f"{prefix}{name}: unknown key; {hint}")
    for key in needed:
        if key not in values:
            raise ValueError(f"{prefix}{key}: must be given, with {prefix}{f', {prefix}'.join(names[:3])}, …")


def nearest(name: str, names: Iterable[str]) -> str:
    """A suggestion as the end of an error message.

    Args:
        name: The unknown name.
        names: The known names.

    Returns:
        The nearest known name in a question; an empty text if none is near.

    >>> nearest("glyhps", ["demo", "glyphs"]), nearest("q", ["demo"])
    ('; did you mean glyphs?', '')
    >>> nearest("PBM", ["rqm", "pbm"])
    '; did you mean pbm?'
    """
    by_lower_case = {known_name.lower(): known_name for known_name in names}
    matches = get_close_matches(name.lower(), list(by_lower_case), 1, 0.6)
    return f"; did you mean {by_lower_case[matches[0]]}?" if matches else ""


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise for a value that is not allowed, with the nearest allowed one.

    Args:
        name: The name of the parameter, for the message.
        value: Any object.
        allowed: The allowed texts.

    Raises:
        ValueError: If the value is not among them.
    """
    names = list(allowed)
    if value not in names:
        suggestion = nearest(value, names) if isinstance(value, str) else ""
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(names)}{suggestion}")


def order(alpha: Any) -> float:
    """Return a Rényi order in [1, 10¹²] or ∞, or raise. Floats overflow with larger ones."""
    allowed = "at least 1 (the KL divergence) and at most 1e12, or inf (pure DP)"
    return real("alpha", alpha, allowed, 1, math.inf if alpha == math.inf else 1e12, closed="[]")


def padded(dim: int) -> int:
    """The smallest power of two that is at least `dim`."""
    return 1 << (whole("dim", dim, 1) - 1).bit_length()


# -- fields of dataclasses ------------------------------------------------------------------------

Count = Annotated[int, partial(whole, low=1)]
Positive = Annotated[float, partial(real, allowed="a positive finite number", low=0, high=math.inf)]
Fraction = Annotated[float, partial(real, allowed="above 0 and below 1", low=0, high=1)]
FractionOrZero = Annotated[float, partial(real, allowed="at least 0 and below 1", low=0, high=1, closed="[")]
FractionOrOne = Annotated[float, partial(real, allowed="above 0 and at most 1", low=0, high=1, closed="]")]
ClosedFraction = Annotated[float, partial(real, allowed="from 0 to 1", low=0, high=1, closed="[]")]


def check_fields(table: Any, prefix: str = "") -> None:
    """Check every field of a dataclass by its annotation.

    An annotation is a class, a `Literal`, or `Annotated` with a function that takes the name and the value, such as
    `Count`. Each may be followed by `| None`.

    Args:
        table: The dataclass. Its annotations must be defined in its module at run time.
        prefix: The name of the table with a dot, for the message.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is not allowed.
    """
    for name, check in _field_checks(type(table)).items():  # type: ignore[arg-type] # mypy takes no class for hashable
        check(prefix + name, getattr(table, name))


@cache
def _field_checks(table: Any) -> dict[str, Callable[[str, Any], object]]:
    """The check of each field of a dataclass."""
    hints = get_type_hints(table, include_extras=True)
    return {entry.name: _check_of(hints[entry.name]) for entry in fields(table)}


def _check_of(hint: Any) -> Callable[[str, Any], object]:
    """The check of values with this annotation."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        check = _check_of(get_args(hint)[0])
        return lambda name, value: None if value is None else check(name, value)
    if origin is Annotated:
        return hint.__metadata__[0]  # type: ignore[no-any-return]
    if origin is Literal:
        return lambda name, value: one_of(name, value, get_args(hint))
    return lambda name, value: instance_of(name, value, origin or hint)


def instance_of(name: str, value: Any, kind: type) -> None:
    """Raise a TypeError for a value that is not an instance of a class."""
    if not isinstance(value, kind):
        description = {bool: "true or false", str: "a string"}.get(kind, kind.__name__)
        raise TypeError(f"{name} = {shown(value)}: must be {description}")
