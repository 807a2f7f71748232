"""The ledger file: charges, each on the disk before the sum that it pays for is asked for.

A text file with one JSON object a line, each with the hash of the line before and signed by the
server's key, so that no line can be removed or changed unnoticed. A process that is killed at any
point has spent at most what the file says. A line that was being written at that moment was never
paid out and is cut off.

Restoring an older copy of the file, together with everything else, cannot be noticed from inside.
A witness notices it, and so does the head (the hash of the last line) if it was written down
elsewhere and is passed as `expect_head`.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple, final

from rqm._util.checks import whole
from rqm._util.files import append, lock, read_bytes, sync_folder
from rqm.ledger.signing import LedgerError, Signer, Witness, is_signed

LEDGER = "ledger.jsonl"
"""The name of the file in the folder of a run."""
LEDGER_FORMAT = 4
START_HASH = "0" * 64
"""The hash before the first line."""


class _Content(NamedTuple):
    """All lines of a file, the hash of the last, how many bytes they have, and whether the last
    lacks its newline."""

    lines: list[dict[str, Any]]
    head: str
    size: int
    lacks_newline: bool


@final
class Ledger(AbstractContextManager["Ledger"]):
    """An open ledger; no other process can open it meanwhile.

    Everything is checked before anything is written.

    Args:
        path: The file. A new one is begun.
        subject: What is charged for. A new file begins with it; an existing one must have begun
            with the same.
        expect_head: The hash that the last line must have.
        same: Whether two descriptions of what is charged for agree.
        key: The server's key. A new file is signed by it, an existing one must have begun with
            it.
        witness: Keeps the heads elsewhere.

    Raises:
        LedgerError: If the file is in use, was changed, is an older copy, or belongs to another
        plan or key.
    """

    def __init__(
        self,
        path: Path,
        subject: dict[str, Any],
        expect_head: str | None = None,
        same: Callable[[dict[str, Any], dict[str, Any]], bool] = eq,
        *,
        key: Signer | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.path = path
        self.witness = witness
        self._process = os.getpid()
        existed = path.exists()
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not _is_locked(self._file, path):
                raise LedgerError(f"{path}: another process is charging it")
            content = _read(path)
            self.lines = content.lines
            self.head = content.head
            if not self.lines and not _is_own_beginning(path.read_bytes(), subject, key):
                raise LedgerError(
                    f"{path}: line 1 was changed, or the file was begun for another plan and not finished"
                )
            self._key = self._checked_key(subject, expect_head, same, key)
            self._begin(subject, content)
        except BaseException:
            self.close()
            if not existed and path.exists() and not path.stat().st_size:
                path.unlink()
            raise

    def _checked_key(
        self, subject: dict[str, Any], expect_head: str | None, same: Callable[[Any, Any], bool], key: Signer | None
    ) -> Signer | None:
        """Refuse a file that is not the one to be charged; return the key that signs from here on."""
        path = self.path
        if expect_head is not None and expect_head != self.head:
            raise LedgerError(f"{path}: ends with {self.head}, expected {expect_head}; it is not the latest copy")
        if self.witness is not None:
            self.witness.check(path, [str(line["hash"]) for line in self.lines])
        if not self.lines:
            return key
        if not same(self.lines[0]["about"], json.loads(json.dumps(subject))):
            raise LedgerError(f"{path}: belongs to another plan")
        public = self.lines[0].get("key")
        if public is None:
            if key is not None:
                raise LedgerError(
                    f"{path}: is not signed, but there is a key here ({key.path}), so it may have been rewritten"
                )
            return None
        if key is None or key.public != public:
            local_key = "there is none here" if key is None else f"that of {key.path} is {key.public}"
            raise LedgerError(
                f"{path}: is signed by the key {public}; {local_key}: give the key that it was begun with"
            )
        for number, line in enumerate(self.lines, start=1):
            if not is_signed(public, line["hash"], line["signature"]):
                raise LedgerError(f"{path}: line {number} is not signed by its key: it was rewritten")
        return key

    def _begin(self, subject: dict[str, Any], content: _Content) -> None:
        """Repair the end of the file after an interruption; write the first line of a new file."""
        assert self._file is not None
        if content.lacks_newline:
            self._append(b"\n")
        elif content.size < os.fstat(self._file).st_size:
            os.truncate(self._file, content.size)  # a line that was never finished, and so never paid out
            os.fsync(self._file)
        self._size = os.fstat(self._file).st_size
        if not self.lines:
            self._write(_first_line(subject, self._key))
            sync_folder(self.path.parent)
        elif self.witness is not None:
            self._report()  # what it may have missed

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def close(self) -> None:
        """Let other processes open the ledger."""
        file = self._file
        self._file = None
        if file is not None:
            os.close(file)

    def __exit__(self, *_: object) -> None:
        self.close()

    def charge(self, round_index: int) -> str:
        """Pay for one release. When this returns, the charge is on the disk and the witness has seen
        it.

        Args:
            round_index: The round, from 0.

        Returns:
            The new head.
        """
        return self._write({"round": whole("round", round_index, 0, 10**18 - 1)})

    def _write(self, body: dict[str, Any]) -> str:
        # The nonce makes every line different from those of a restored copy, or of the same plan elsewhere.
        line = {**body, "nonce": os.urandom(8).hex(), "previous": self.head}
        line["hash"] = _hash(line)
        if self._key is not None:
            line["signature"] = self._key.sign(line["hash"])
        self._check_untouched()
        self._append((json.dumps(line) + "\n").encode())
        self.lines.append(line)
        self.head = str(line["hash"])
        if self.witness is not None:
            self._report()
        return self.head

    def _report(self) -> None:
        assert self.witness is not None
        self.witness.report(self.path, str(self.lines[0]["hash"]), len(self.lines), self.head)

    def _check_untouched(self) -> None:
        """Refuse to write if another process opened the file, or anyone touched it since."""
        nothing = "nothing is released that was not charged"
        if self._file is None:
            raise LedgerError(f"{self.path}: is closed; {nothing}")
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: was opened by another process, of which this one is a copy; {nothing}")
        opened = os.fstat(self._file)
        try:
            present = os.stat(self.path)
        except FileNotFoundError:
            present = None
        if present is None or (present.st_dev, present.st_ino) != (opened.st_dev, opened.st_ino):
            raise LedgerError(f"{self.path}: was removed or replaced by another file; {nothing}")
        if opened.st_size != self._size:
            raise LedgerError(f"{self.path}: has {opened.st_size} bytes, {self._size} were written; {nothing}")

    def _append(self, data: bytes) -> None:
        """Add bytes to the file and sync it. After a failed write nothing more is added."""
        assert self._file is not None
        size = os.fstat(self._file).st_size + len(data)
        try:
            append(self._file, data, f"{self.path}: the disk is full; nothing is released that was not charged")
        except OSError:
            self.close()  # what is on the disk now is not known
            raise
        self._size = size

    def __contains__(self, head: str) -> bool:
        """Whether the ledger once ended with this head."""
        return any(line["hash"] == head for line in self.lines)

    @property
    def charges(self) -> Counter[int]:
        """How often each round was charged: more than once where it was interrupted and repeated."""
        return Counter(line["round"] for line in self.lines[1:])


class LedgerContent(NamedTuple):
    """The content of a ledger.

    Attributes:
        subject: What is charged for.
        charges: How often each round was charged.
        head: The hash of the last line.
        heads: The hashes of all lines.
    """

    subject: dict[str, Any]
    charges: Counter[int]
    head: str
    heads: frozenset[str]


def read(path: Path) -> LedgerContent:
    """Read a ledger without opening it for writing.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        LedgerError: If it is empty or was changed.
    """
    lines, head, *_ = _read(path)
    if not lines:
        raise LedgerError(f"{path}: {'holds no complete line of a ledger' if path.stat().st_size else 'is empty'}")
    heads = frozenset(str(line["hash"]) for line in lines)
    return LedgerContent(lines[0]["about"], Counter(line["round"] for line in lines[1:]), head, heads)


def _read(path: Path) -> _Content:
    """All complete lines. What follows them must be the beginning of another: a newline may not just
    be lost."""
    lines: list[dict[str, Any]] = []
    head = START_HASH
    size = 0
    *raws, tail = read_bytes(path, 2**33).split(b"\n")
    for raw in raws:
        line = _parsed(raw, head, lines)
        if line is None:
            raise LedgerError(
                f"{path}: line {len(lines) + 1} was changed, or a line before it is missing{_hint(raw, lines)}"
            )
        lines.append(line)
        head = line["hash"]
        size = size + len(raw) + 1
    last = _parsed(tail, head, lines) if tail else None
    if last is not None:
        return _Content([*lines, last], last["hash"], size + len(tail), lacks_newline=True)
    if tail and not _is_beginning(tail, head, lines[0] if lines else None):
        raise LedgerError(f"{path}: line {len(lines) + 1}, the last, was changed")
    return _Content(lines, head, size, lacks_newline=False)


def _hint(raw: bytes, lines: list[dict[str, Any]]) -> str:
    """What the first line may be instead."""
    if lines:
        return ""
    version = re.match(rb'\{"ledger": ([0-9]+)', raw)
    if version is not None and int(version[1]) != LEDGER_FORMAT:
        versions = f"it has format {int(version[1])}, this version reads format {LEDGER_FORMAT}"
        return f"; {versions}: use the rqm that wrote it"
    return "; or this is no ledger"


def _first_line(subject: dict[str, Any], key: Signer | None) -> dict[str, Any]:
    return {"ledger": LEDGER_FORMAT, "about": subject} | ({} if key is None else {"key": key.public})


def _is_own_beginning(data: bytes, subject: dict[str, Any], key: Signer | None) -> bool:
    """Whether these bytes are left of an interrupted attempt to begin this very ledger."""
    start = json.dumps(_first_line(subject, key))[:-1].encode()
    if len(data) <= len(start):
        return start.startswith(data)
    fields = {"nonce": "?" * 16, "previous": START_HASH, "hash": "?" * 64}
    if key is not None:
        fields["signature"] = "?" * 128
    remainder = data.removeprefix(start)
    digits = b"0123456789abcdef"
    end = b", " + json.dumps(fields)[1:].encode() + b"\n"
    return len(remainder) < min(len(data), len(end)) and all(
        byte == due or (due == ord("?") and byte in digits) for byte, due in zip(remainder, end, strict=False)
    )


def _parsed(raw: bytes, head: str, earlier: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A line that follows this head, exactly as it was written; None if it is anything else."""
    try:
        line: dict[str, Any] = json.loads(raw)
        names = {"previous", "hash", "nonce"} | ({"signature"} if "key" in (earlier[0] if earlier else line) else set())
        if earlier:
            names.add("round")
            is_valid = type(line["round"]) is int and line["round"] >= 0
        else:
            names |= {"ledger", "about"} | ({"key"} & line.keys())
            is_format = type(line["ledger"]) is int and line["ledger"] == LEDGER_FORMAT
            is_valid = is_format and isinstance(line["about"], dict)
            is_valid = is_valid and re.fullmatch("[0-9a-f]{64}", line.get("key", START_HASH)) is not None
        is_next = line.keys() == names and line["previous"] == head and line["hash"] == _hash(line)
        return line if is_valid and is_next and json.dumps(line).encode() == raw else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # another value, or too deep
        return None


def _is_beginning(tail: bytes, head: str, first: dict[str, Any] | None) -> bool:
    """Whether these bytes are the beginning of a line that was being written."""
    if first is None:
        return True  # only the process that would begin it can tell
    prefix = re.match(rb'\{"round": (0|[1-9][0-9]{0,17}), "nonce": "[0-9a-f]{16}"(?=,|$)', tail)
    if prefix is None:  # cut off within the part that is the line's own, of which only the pattern is known
        pattern = _prefix_of(b'{"round": ') + b"|" + rb'\{"round": [0-9]{1,18}' + _prefix_of(b', "nonce": "')
        return re.fullmatch(pattern, tail) is not None
    body = {**json.loads(prefix[0] + b"}"), "previous": head}
    remainder = json.dumps({**body, "hash": _hash(body)})[:-1].encode()
    if len(tail) <= len(remainder) or "key" not in first:
        return (remainder + b"}").startswith(tail)
    return (
        tail.startswith(remainder)
        and re.fullmatch(_prefix_of(b', "signature": "'), tail.removeprefix(remainder)) is not None
    )


def _prefix_of(start: bytes) -> bytes:
    """A pattern for any beginning of `start`, and for hexadecimal digits after all of it."""
    parts = b"|".join(re.escape(start[:size]) for size in range(len(start)))
    return b"(?:" + parts + b"|" + re.escape(start) + rb'[0-9a-f]*"?)'


def _hash(line: dict[str, Any]) -> str:
    body = {key: value for key, value in line.items() if key not in ("hash", "signature")}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _is_locked(file: int, path: Path) -> bool:
    try:
        return lock(file)
    except OSError as error:
        raise LedgerError(f"{path}: {error}") from None
