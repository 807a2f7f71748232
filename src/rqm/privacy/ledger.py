"""The ledger: what has been spent, written down before anything is released.

A text file, one JSON object a line, each with the hash of the line before: nothing can be taken out or changed unseen.
A charge is on the disk before the sum that it pays for is revealed, so a process that is killed at any point has spent
at most what the file says. A line that was being written when that happened was never paid out, and is cut off.

Whoever can put back an older copy of the file, and of everything else, cannot be seen from inside. Write down the head
(the hash of the last line) elsewhere, and pass it as ``expect_head``.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from operator import eq
from pathlib import Path
from typing import Any, final

from rqm._util.closing import Closing

LEDGER = "ledger.jsonl"
"""Its name in the folder of a run."""
FORMAT = 2
START = "0" * 64


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or is in use."""


@final
class Ledger(Closing):
    """An open ledger; no other process can open it meanwhile.

    ``about`` describes what is charged for. A new file begins with it; an old one must have begun with the ``same``.
    """

    def __init__(
        self,
        path: Path,
        about: dict[str, Any],
        expect_head: str | None = None,
        same: Callable[[dict[str, Any], dict[str, Any]], bool] = eq,
    ) -> None:
        self.path = path
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            _lock(self._file, path)
            self.charges, self.head, whole = _read(path)
            if whole < os.fstat(self._file).st_size:
                os.truncate(self._file, whole)  # a line that was never finished, and so never paid out
            if expect_head is not None and expect_head != self.head:
                raise LedgerError(f"{path}: ends with {self.head}: expected {expect_head}; it is not the latest copy")
            if not self.charges:
                self._write({"ledger": FORMAT, "about": about})
                _sync_folder(path.parent)
            elif not same(self.charges[0]["about"], json.loads(json.dumps(about))):
                raise LedgerError(f"{path}: belongs to another plan")
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def close(self) -> None:
        """Let others open the ledger."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def charge(self, turn: int) -> str:
        """Pay for one release, of round ``turn``; return the new head. When this returns the charge is on the disk."""
        return self._write({"round": int(turn)})

    def _write(self, body: dict[str, Any]) -> str:
        line = {**body, "previous": self.head}
        line["hash"] = _hash(line)
        data = (json.dumps(line) + "\n").encode()
        if self._file is None:
            raise LedgerError(f"{self.path}: is closed; nothing is released that was not charged")
        size = os.fstat(self._file).st_size
        if os.write(self._file, data) != len(data):
            os.truncate(self._file, size)
            raise OSError(f"{self.path}: the disk is full; nothing is released that was not charged")
        os.fsync(self._file)
        self.charges.append(line)
        self.head = str(line["hash"])
        return self.head

    def __contains__(self, head: str) -> bool:
        """Whether the ledger once ended with this head."""
        return any(line["hash"] == head for line in self.charges)

    @property
    def spent(self) -> Counter[int]:
        """How often each round was charged: more than once where it was interrupted and done again."""
        return Counter(line["round"] for line in self.charges[1:])


def read(path: Path) -> tuple[dict[str, Any], Counter[int], str]:
    """What a ledger is about, how often each round was charged, and its head; without opening it for writing."""
    lines, head, _ = _read(path)
    if not lines:
        raise LedgerError(f"{path}: is empty")
    return lines[0]["about"], Counter(line["round"] for line in lines[1:]), head


def holds(path: Path, head: str) -> bool:
    """Whether a ledger once ended with this head."""
    return any(line["hash"] == head for line in _read(path)[0])


def participations(spent: Counter[int], most: int | None) -> int:
    """The most releases that one user can have been part of, who takes part in at most ``most`` rounds."""
    return sum(count for _, count in spent.most_common(most))


def _read(path: Path) -> tuple[list[dict[str, Any]], str, int]:
    """All lines, the head, and how many bytes are whole lines."""
    data, lines, head, whole = path.read_bytes(), [], START, 0
    for number, raw in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(raw)
            good = line["previous"] == head and line["hash"] == _hash(line)
            good &= "about" in line if number == 1 else isinstance(line["round"], int)
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise LedgerError(f"{path}: line {number} was changed, or a line before it is missing")
        lines.append(line)
        head, whole = line["hash"], whole + len(raw) + 1
    return lines, head, whole


def _hash(line: dict[str, Any]) -> str:
    body = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl  # noqa: PLC0415 (not everywhere)
    except ModuleNotFoundError:
        raise LedgerError(f"{path}: this system has no file locks, which a ledger needs") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LedgerError(f"{path}: another process is charging it") from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
