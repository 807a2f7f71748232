"""What took long to work out, kept on disk by its content: arguments, and the code that worked it out.

A changed line of that code changes every key, so old values are never read by new code. Whatever is wrong with the
folder or a file in it, the value is worked out anew, and nobody is told.
"""

import json
import os
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from rqm._util.files import write_atomically

SOURCES = ("_util", "mechanisms", "certify")
"""Packages on whose text every value depends."""


def folder() -> Path | None:
    """Where values are kept: $RQM_CACHE, or the user's cache; None if $RQM_CACHE is ``off``."""
    told = os.environ.get("RQM_CACHE")
    if told:
        return None if told == "off" else Path(told)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "rqm" if base else Path("~/.cache/rqm").expanduser()


@cache
def _code() -> str:
    """The digest of the code that values come from, and of what it computes with."""
    import numpy  # noqa: PLC0415

    root = Path(__file__).parents[1]
    digest = sha256(numpy.__version__.encode())
    for package in SOURCES:
        for path in sorted((root / package).glob("*.py")):
            digest.update(f"\0{package}/{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _exact(value: Any) -> Any:
    """An argument as JSON that tells any two apart: floats by their bits."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[key, _exact(part)] for key, part in sorted(value.items())]}
    if isinstance(value, (list, tuple)):
        return [_exact(part) for part in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    raise TypeError(f"{type(value).__name__}: has no exact form")


def _path(name: str, arguments: Sequence[Any]) -> Path | None:
    place = folder()
    if place is None:
        return None
    key = sha256(json.dumps([name, _code(), _exact(arguments)]).encode()).hexdigest()
    return place / f"{key}.json"


def read(name: str, arguments: Sequence[Any]) -> Any:
    """What was written under this name for these arguments; None if there is nothing, or nothing that is whole."""
    try:
        path = _path(name, arguments)
        if path is None:
            return None
        held = json.loads(path.read_bytes())
        text = held["value"]
        return json.loads(text) if sha256(text.encode()).hexdigest() == held["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def write(name: str, arguments: Sequence[Any], value: Any) -> None:
    """Keep numbers, texts, lists and tables, if every number is finite; where that is not possible, nothing is kept."""
    try:
        path = _path(name, arguments) if _finite(value) else None
        if path is None:
            return
        text = json.dumps(value)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = {"value": text, "sha256": sha256(text.encode()).hexdigest()}
        write_atomically(path, json.dumps(held).encode(), private=True)
    except (OSError, TypeError, ValueError):
        return


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_finite, value))
