"""Files: atomic writes, tables in JSON, locks, and the folder of the user's state."""

import json
import os
import tomllib
from collections.abc import Callable
from contextlib import suppress
from errno import EISDIR
from pathlib import Path
from typing import Any

from rqm._util.checks import shown

MAX_TABLE_DEPTH = 64
"""Levels of nested tables and lists in a file. Python's recursion limit is 1,000."""


def state_folder() -> Path:
    """The folder of a user's keys and policy. It is created if it does not exist.

    It is `$RQM_STATE`, or else `rqm` in `$XDG_STATE_HOME`, by default `~/.local/state`.
    """
    folder = os.environ.get("RQM_STATE")
    base = os.environ.get("XDG_STATE_HOME")
    path = Path(folder or Path(base or Path.home() / ".local" / "state") / "rqm")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def cache_folder() -> Path:
    """The folder of a user's data sets and pages: `rqm` in `$XDG_CACHE_HOME`, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rqm"


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(file: int, *, wait: bool = False) -> bool:
    """Lock an open file against other processes.

    Args:
        file: A file descriptor. Closing it removes the lock.
        wait: Whether to wait while another process has the lock.

    Returns:
        Whether this process has the lock.

    Raises:
        OSError: If the system has no file locks.
    """
    try:
        import fcntl  # noqa: PLC0415 (not on Windows)
    except ModuleNotFoundError:
        raise OSError("this system has no file locks, which a ledger needs") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def append(file: int, data: bytes, problem: str) -> None:
    """Add bytes to an open file and flush them to the disk.

    Args:
        file: A file descriptor, opened with `O_APPEND`.
        data: The bytes. If not all of them can be written, those that were are cut off.
        problem: The message of the error.

    Raises:
        OSError: If the disk is full.
    """
    size = os.fstat(file).st_size
    if os.write(file, data) != len(data):
        os.truncate(file, size)
        raise OSError(problem)
    os.fsync(file)


def write_atomically(path: Path, data: bytes, *, new: bool = False, private: bool = False) -> None:
    """Write a file in one step: after a crash it has either the old or the new content.

    Pipes and devices are written to directly.

    Args:
        path: The file.
        data: Its content.
        new: Whether the file must not exist, even if another process creates it meanwhile.
        private: Whether only its owner may read it, from its creation on.

    Raises:
        FileExistsError: If it is `new` and exists. The existing file is left as it is.
        OSError: If it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, "Is a directory", str(path))
    if not new and path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part" if new else f"{path.name}.part")
    try:
        temporary.unlink(missing_ok=True)  # a killed process may have left it, with other permissions
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
        if isinstance(error, OSError) and error.strerror:  # name the file itself, not the temporary one
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise
    sync_folder(path.parent)


def write_json(path: Path, values: Any, *, new: bool = False) -> None:
    """Write a JSON file atomically.

    Args:
        path: The file.
        values: What `json.dumps` accepts.
        new: Whether the file must not exist.
    """
    write_atomically(path, (json.dumps(values, indent=1) + "\n").encode(), new=new)


def read_bytes(path: Path, limit: int = 2**27) -> bytes:
    """The content of a file. Pipes and devices, which may have no end, are refused.

    Args:
        path: The file.
        limit: The most bytes that it may have.

    Returns:
        The content.

    Raises:
        ValueError: If it is no regular file, or larger. OSError: If it cannot be read.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path}: is a device or a pipe: must be a file")
    if path.stat().st_size > limit:
        raise ValueError(f"{path}: has more than {limit >> 20} MiB")
    return path.read_bytes()


def read_json(path: Path, description: str) -> dict[str, Any]:
    """Read a table from a JSON file.

    Args:
        path: The file.
        description: What the file must contain, for the message.

    Returns:
        The table.

    Raises:
        ValueError: If the file has no table; the message names the file.
    """
    try:
        return parse_table(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path}: is damaged, must be {description} ({error})") from None


def read_toml(path: Path | str, description: str) -> dict[str, Any]:
    """Read the tables of a TOML file.

    Args:
        path: The file.
        description: What the file must contain, for the message.

    Returns:
        The tables.

    Raises:
        ValueError: If the file is no TOML, or empty.
    """
    try:
        values = parse_table(read_bytes(Path(path)).decode(), tomllib.loads)
    except ValueError as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None
    if not values:
        raise ValueError(f"{path}: says nothing: must be {description}")
    return values


def parse_table(text: str | bytes, parse: Callable[[Any], Any] = json.loads) -> dict[str, Any]:
    """Read a table of names and values.

    Args:
        text: The text.
        parse: The parser of its format; JSON by default.

    Returns:
        The table.

    Raises:
        ValueError: If the text has another value, or is nested too deeply.

    >>> parse_table('{"rounds": 3}')
    {'rounds': 3}
    """
    try:
        values = parse(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_TABLE_DEPTH}") from None
    if not isinstance(values, dict):
        raise ValueError(f"it holds {shown(values)}: must be a table of names and values")
    _check_depth(values)
    return values


def _check_depth(values: Any) -> None:
    """Refuse values that are nested so deeply that showing, copying or comparing them would fail."""
    level = [values]
    for _ in range(MAX_TABLE_DEPTH):
        children = (value.values() if isinstance(value, dict) else value for value in level)
        level = [child for group in children for child in group if isinstance(child, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_TABLE_DEPTH}")
