"""Dataclasses whose fields are checked by their annotations."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest

from rqm._util.checks import ClosedFraction, Count, Fraction, FractionOrOne, FractionOrZero, Positive, check_fields


@dataclass
class Inner:
    name: str = "inner"


@dataclass
class Table:
    limit: ClassVar[int] = 0
    count: Count = 1
    positive: Positive = 1.0
    fraction: Fraction = 0.5
    or_zero: FractionOrZero = 0.0
    or_one: FractionOrOne = 1.0
    closed: ClosedFraction = 0.0
    maybe: Count | None = None
    choice: Literal["first", "second"] = "first"
    inner: Inner | None = None
    flag: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "table.")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"count": np.int64(3), "positive": 2, "or_zero": 0, "or_one": 1, "closed": 1},
        {"maybe": 2, "choice": "second", "inner": Inner(), "flag": True, "names": ("a",)},
    ],
)
def test_values_that_are_allowed_are_left_as_they_are(values):
    table = Table(**values)
    assert all(getattr(table, name) is value for name, value in values.items())


@pytest.mark.parametrize(
    ("name", "value", "kind", "allowed"),
    [
        ("count", 0, ValueError, "a whole number ≥ 1"),
        ("count", True, TypeError, "a whole number ≥ 1"),
        ("count", None, TypeError, "a whole number ≥ 1"),
        ("positive", 0.0, ValueError, "a positive finite number"),
        ("positive", float("inf"), ValueError, "a positive finite number"),
        ("fraction", 1, ValueError, "above 0 and below 1"),
        ("fraction", float("nan"), ValueError, "above 0 and below 1"),
        ("or_zero", 1, ValueError, "at least 0 and below 1"),
        ("or_one", 0, ValueError, "above 0 and at most 1"),
        ("closed", 1.5, ValueError, "from 0 to 1"),
        ("maybe", 0, ValueError, "a whole number ≥ 1"),
        ("choice", "frist", ValueError, "one of first, second; did you mean first?"),
        ("inner", {"name": "x"}, TypeError, "Inner"),
        ("flag", 1, TypeError, "true or false"),
        ("names", ["a"], TypeError, "tuple"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_allowed(name, value, kind, allowed):
    with pytest.raises(kind, match=re.escape(f"table.{name} = {value!r}: must be ") + ".*" + re.escape(allowed)):
        Table(**{name: value})


def test_a_text_is_asked_for_in_words():
    with pytest.raises(TypeError, match="name = 3: must be a string"):
        check_fields(Inner(3))
