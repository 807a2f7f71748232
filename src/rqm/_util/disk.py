"""What lies on the disk between runs: a folder for a user's keys and marks, locks, names that are really there."""

import os
from pathlib import Path

STATE = "RQM_STATE"
"""The environment variable that names the folder, instead of the default."""


def state_folder() -> Path:
    """The folder, made if it is not there: ``$RQM_STATE``, or ``rqm`` under ``$XDG_STATE_HOME`` (~/.local/state)."""
    given, base = os.environ.get(STATE), os.environ.get("XDG_STATE_HOME")
    folder = Path(given) if given else (Path(base) if base else Path.home() / ".local" / "state") / "rqm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def sync_folder(folder: Path) -> None:
    """Let the names in a folder be on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(file: int, *, wait: bool = False) -> bool:
    """Let no other process have this open file; whether nobody else had it. OSError where there are no locks."""
    try:
        import fcntl  # noqa: PLC0415 (not everywhere)
    except ModuleNotFoundError:
        raise OSError("this system has no file locks, which a ledger needs") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
