"""Files that are either the old or the new ones, whatever happens while they are written; and tables read from them."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from errno import EISDIR
from pathlib import Path
from typing import Any

from rqm._util.checks import shown
from rqm._util.disk import sync_folder

DEEPEST = 64
"""Tables and lists in a file are nested no deeper than this."""
LARGEST_TEXT = 2**27
"""Bytes of a table's file."""


def write_atomically(path: Path, data: bytes, *, new: bool = False, private: bool = False) -> None:
    """Replace a file in one step: after a crash or on a full disk it is what it was before.

    A ``new`` one must not be there yet, not even by another process: FileExistsError, and that one stays. A ``private``
    one can be read by its owner alone, from the moment on when it comes into being. What is there and is no file (but a
    pipe, or a device) is written to, and stays what it is.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, "Is a directory", str(path))
    if not new and path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part" if new else f"{path.name}.part")
    try:
        temporary.unlink(missing_ok=True)  # a killed process may have left it, with other rights
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(temporary, path)
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.strerror:  # of the file that was asked for, not of the one beside it
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise
    sync_folder(path.parent)


def write_json(path: Path, values: Any, *, new: bool = False) -> None:
    """Write a JSON file, atomically."""
    write_atomically(path, (json.dumps(values, indent=1) + "\n").encode(), new=new)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The table that a JSON file holds, or a ValueError that names the file and ``what`` it must be."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_TEXT + 1)
        if len(text) > LARGEST_TEXT:
            raise ValueError(f"it has more than {LARGEST_TEXT >> 20} MiB")
        return parse_table(text)
    except ValueError as error:
        raise ValueError(f"{path}: is damaged, must be {what} ({error})") from None


def parse_table(text: str | bytes, parse: Callable[[Any], Any] = json.loads) -> dict[str, Any]:
    """The table of names and values that a text holds, in JSON or whatever ``parse`` reads; else a ValueError.

    >>> parse_table('{"rounds": 3}')
    {'rounds': 3}
    """
    try:
        values = parse(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST}") from None
    if not isinstance(values, dict):
        raise ValueError(f"it holds {shown(values)}: must be a table of names and values")
    _check_depth(values)
    return values


def _check_depth(values: Any) -> None:
    """Refuse what is nested so deep that showing, copying or comparing it would fail."""
    level = [values]
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for many in inner for one in many if isinstance(one, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST}")
