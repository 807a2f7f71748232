"""The ledger: what has been spent, written down before anything is released.

A text file, one JSON object a line, each with the hash of the line before and signed by the server's key: nothing can
be taken out or changed unseen. A charge is on the disk before the sum that it pays for is asked for, so a process that
is killed at any point has spent at most what the file says. A line that was being written when that happened was never
paid out, and is cut off.

Whoever can put back an older copy of the file, and of everything else, cannot be seen from inside. A witness can tell,
or the head (the hash of the last line) that was written down elsewhere and is passed as ``expect_head``.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple, final

from rqm._util.checks import whole
from rqm._util.closing import Closing
from rqm._util.disk import lock, sync_folder
from rqm.privacy.signing import LedgerError, Signer, Witness, signed

__all__ = ["FORMAT", "LEDGER", "START", "Ledger", "LedgerError", "holds", "participations", "read"]

LEDGER = "ledger.jsonl"
"""Its name in the folder of a run."""
FORMAT = 3
"""Format 2 had no signatures; format 1 was about a plan, not about a private mean. Both go on."""
START = "0" * 64
NOT_HASHED = ("hash", "signature")


class _Found(NamedTuple):
    """All lines of a file, the hash of the last, how many bytes are theirs, and whether the last has no newline."""

    lines: list[dict[str, Any]]
    head: str
    whole: int
    open: bool


@final
class Ledger(Closing):
    """An open ledger; no other process can open it meanwhile.

    ``about`` describes what is charged for. A new file begins with it; an old one must have begun with the ``same``. A
    new file is signed by the ``key``, an old one by the key that it began with. All is checked before anything is
    written.
    """

    def __init__(
        self,
        path: Path,
        about: dict[str, Any],
        expect_head: str | None = None,
        same: Callable[[dict[str, Any], dict[str, Any]], bool] = eq,
        *,
        key: Signer | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.path, self.witness, self._process, there = path, witness, os.getpid(), path.exists()
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not _locked(self._file, path):
                raise LedgerError(f"{path}: another process is charging it")
            found = _read(path)
            self.charges, self.head = found.lines, found.head
            if not self.charges and not _unfinished(path.read_bytes(), about, key):
                raise LedgerError(f"{path}: line 1 was changed, or was never finished by who began it for another plan")
            self._key = self._checked(about, expect_head, same, key)
            self._begin(about, found)
        except BaseException:
            self.close()
            if not there and path.exists() and not path.stat().st_size:
                path.unlink()
            raise

    def _checked(
        self, about: dict[str, Any], expect_head: str | None, same: Callable[[Any, Any], bool], key: Signer | None
    ) -> Signer | None:
        """Refuse a file that is not the one that is to be charged; the key that signs from here on."""
        path = self.path
        if expect_head is not None and expect_head != self.head:
            raise LedgerError(f"{path}: ends with {self.head}: expected {expect_head}; it is not the latest copy")
        if self.witness is not None:
            self.witness.check(path, [str(line["hash"]) for line in self.charges])
        if not self.charges:
            return key
        if not same(self.charges[0]["about"], json.loads(json.dumps(about))):
            raise LedgerError(f"{path}: belongs to another plan")
        public = self.charges[0].get("key")
        if public is None:
            if key is not None and (self.charges[0]["ledger"] == FORMAT or key.has_signed(path)):
                raise LedgerError(
                    f"{path}: is not signed, and may have been written anew; where there is a key ({key.path}) every "
                    "ledger is, but those of older versions, which go on without --key"
                )
            return None
        if key is None or key.public != public:
            mine = "there is none here" if key is None else f"that of {key.path} is {key.public}"
            raise LedgerError(f"{path}: is signed by the key {public}; {mine}: give the key that it was begun with")
        key.has_signed(path, now=True)
        for number, line in enumerate(self.charges, start=1):
            if not signed(public, line["hash"], line["signature"]):
                raise LedgerError(f"{path}: line {number} is not signed by its key: it was written anew")
        return key

    def _begin(self, about: dict[str, Any], found: _Found) -> None:
        """Mend the end of the file, if somebody was killed there; write the first line of a new one."""
        assert self._file is not None
        if found.open:
            self._put(b"\n")
        elif found.whole < os.fstat(self._file).st_size:
            os.truncate(self._file, found.whole)  # a line that was never finished, and so never paid out
            os.fsync(self._file)
        self._size = os.fstat(self._file).st_size
        if not self.charges:
            self._write(_first(about, self._key))
            sync_folder(self.path.parent)
        elif self.witness is not None:
            self._tell()  # what it may have missed

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def close(self) -> None:
        """Let others open the ledger."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def charge(self, turn: int) -> str:
        """Pay for one release, of round ``turn``; return the new head.

        When this returns the charge is on the disk, and the witness has seen it.
        """
        return self._write({"round": whole("round", turn, 0, 10**18 - 1)})

    @property
    def _nonce(self) -> dict[str, str]:
        """What makes every line different from those of a copy that was put back, or of the same plan elsewhere."""
        return {"nonce": os.urandom(8).hex()} if not self.charges or "nonce" in self.charges[0] else {}

    def _write(self, body: dict[str, Any]) -> str:
        line = {**body, **self._nonce, "previous": self.head}
        line["hash"] = _hash(line)
        if self._key is not None:
            line["signature"] = self._key.sign(line["hash"])
            if not self.charges:
                self._key.has_signed(self.path, now=True)
        self._check_mine()
        self._put((json.dumps(line) + "\n").encode())
        self.charges.append(line)
        self.head = str(line["hash"])
        if self.witness is not None:
            self._tell()
        return self.head

    def _tell(self) -> None:
        assert self.witness is not None
        self.witness.tell(self.path, str(self.charges[0]["hash"]), len(self.charges), self.head)

    def _check_mine(self) -> None:
        """Whether this process opened the file, and nobody has touched it since."""
        nothing = "nothing is released that was not charged"
        if self._file is None:
            raise LedgerError(f"{self.path}: is closed; {nothing}")
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: was opened by another process, of which this one is a copy; {nothing}")
        mine = os.fstat(self._file)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise LedgerError(f"{self.path}: was taken away or replaced by another file; {nothing}")
        if mine.st_size != self._size:
            raise LedgerError(f"{self.path}: has {mine.st_size} bytes, {self._size} were written; {nothing}")

    def _put(self, data: bytes) -> None:
        """Add bytes to the file; when this returns they are on the disk. After a failed write nothing more is added."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, data) != len(data):
                os.truncate(self._file, size)
                raise OSError(f"{self.path}: the disk is full; nothing is released that was not charged")
            os.fsync(self._file)
        except OSError:
            self.close()  # what is on the disk now, only the disk knows
            raise
        self._size = size + len(data)

    def __contains__(self, head: str) -> bool:
        """Whether the ledger once ended with this head."""
        return any(line["hash"] == head for line in self.charges)

    @property
    def spent(self) -> Counter[int]:
        """How often each round was charged: more than once where it was interrupted and done again."""
        return Counter(line["round"] for line in self.charges[1:])


def read(path: Path) -> tuple[dict[str, Any], Counter[int], str]:
    """What a ledger is about, how often each round was charged, and its head; without opening it for writing."""
    lines, head, *_ = _read(path)
    if not lines:
        raise LedgerError(f"{path}: {'holds no whole line of a ledger' if path.stat().st_size else 'is empty'}")
    return lines[0]["about"], Counter(line["round"] for line in lines[1:]), head


def holds(path: Path, head: str) -> bool:
    """Whether a ledger once ended with this head."""
    return any(line["hash"] == head for line in _read(path).lines)


def participations(spent: Counter[int], most: int | None) -> int:
    """The most releases that one user can have been part of, who takes part in at most ``most`` rounds."""
    return sum(count for _, count in spent.most_common(most))


def _read(path: Path) -> _Found:
    """All whole lines. What comes after them must be the beginning of another: a newline may not just be lost."""
    lines: list[dict[str, Any]] = []
    head, whole = START, 0
    *raws, tail = path.read_bytes().split(b"\n")
    for raw in raws:
        line = _line(raw, head, lines)
        if line is None:
            other = "" if lines else "; or this is no ledger"
            raise LedgerError(f"{path}: line {len(lines) + 1} was changed, or a line before it is missing{other}")
        lines.append(line)
        head, whole = line["hash"], whole + len(raw) + 1
    last = _line(tail, head, lines) if tail else None
    if last is not None:
        return _Found([*lines, last], last["hash"], whole + len(tail), open=True)
    if tail and not _begins(tail, head, lines[0] if lines else None):
        raise LedgerError(f"{path}: line {len(lines) + 1}, the last, was changed")
    return _Found(lines, head, whole, open=False)


def _first(about: dict[str, Any], key: Signer | None) -> dict[str, Any]:
    """How a new ledger begins."""
    return {"ledger": FORMAT, "about": about} | ({} if key is None else {"key": key.public})


def _unfinished(data: bytes, about: dict[str, Any], key: Signer | None) -> bool:
    """Whether these bytes are what is left of somebody who was killed while he began this very ledger."""
    start = json.dumps(_first(about, key))[:-1].encode()
    if len(data) <= len(start):
        return start.startswith(data)
    parts = {"nonce": "?" * 16, "previous": START, "hash": "?" * 64} | ({} if key is None else {"signature": "?" * 128})
    rest, digits = data.removeprefix(start), b"0123456789abcdef"
    end = b", " + json.dumps(parts)[1:].encode() + b"\n"
    return len(rest) < min(len(data), len(end)) and all(
        one == due or (due == ord("?") and one in digits) for one, due in zip(rest, end, strict=False)
    )


def _line(raw: bytes, head: str, before: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A line that follows this head, as it was written to the byte; None if it is anything else."""
    try:
        line = json.loads(raw)
        if not isinstance(line, dict):
            return None
        good = json.dumps(line).encode() == raw and line["previous"] == head and line["hash"] == _hash(line)
        first = before[0] if before else line
        names = {"previous", "hash"} | ({"nonce"} & first.keys()) | ({"signature"} if "key" in first else set())
        if before:
            good = good and type(line["round"]) is int and line["round"] >= 0
            good = good and line.keys() == names | {"round"}
        else:
            good = good and isinstance(line["about"], dict)
            good = good and type(line["ledger"]) is int and 1 <= line["ledger"] <= FORMAT
            good = good and (line["ledger"] == FORMAT or not {"key", "nonce"} & line.keys())
            good = good and ("key" not in line or re.fullmatch("[0-9a-f]{64}", line["key"]) is not None)
            good = good and line.keys() == names | {"ledger", "about"} | ({"key"} & line.keys())
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return line if good else None


def _begins(tail: bytes, head: str, first: dict[str, Any] | None) -> bool:
    """Whether these bytes are how a line would begin that somebody was writing when he was killed."""
    if first is None:
        return True  # only who would begin it himself can tell
    nonce = rb', "nonce": "[0-9a-f]{16}"' if "nonce" in first else b""
    own = re.match(rb'\{"round": (0|[1-9][0-9]{0,17})' + nonce + rb"(?=,|$)", tail)
    if own is None:  # cut off within what is its own, of which only the pattern is known
        pattern = _cut(b'{"round": ') + b"|" + rb'\{"round": [0-9]{1,18}' + _cut(b', "nonce": "')
        return re.fullmatch(pattern, tail) is not None
    body = {**json.loads(own[0] + b"}"), "previous": head}
    rest = json.dumps({**body, "hash": _hash(body)})[:-1].encode()
    if len(tail) <= len(rest) or "key" not in first:
        return (rest + b"}").startswith(tail)
    return tail.startswith(rest) and re.fullmatch(_cut(b', "signature": "'), tail.removeprefix(rest)) is not None


def _cut(start: bytes) -> bytes:
    """A pattern for any beginning of ``start``, and for hexadecimal digits after all of it."""
    parts = b"|".join(re.escape(start[:size]) for size in range(len(start)))
    return b"(?:" + parts + b"|" + re.escape(start) + rb'[0-9a-f]*"?)'


def _hash(line: dict[str, Any]) -> str:
    body = {key: value for key, value in line.items() if key not in NOT_HASHED}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _locked(file: int, path: Path) -> bool:
    try:
        return lock(file)
    except OSError as error:
        raise LedgerError(f"{path}: {error}") from None
