"""The chain of a ledger's lines: hashes, signatures, and heads that a witness was told."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from .laws import Unsure

Row = dict[str, Any]

START = "0" * 64
LARGEST = 2**30
"""Files beyond so many bytes are not read."""


@dataclass
class Report:
    """What was found. ``wrong``: what cannot be true; ``unsure``: what nobody can tell here; ``notes``: good to know.

    ``epsilon`` holds for all that was charged; no accountant can truthfully state less than ``lower``.
    """

    path: str
    wrong: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    epsilon: float | None = None
    lower: float | None = None
    delta: float | None = None
    charges: int = 0
    rounds: int = 0
    participations: int = 0
    honest: int | None = None
    unit: str = "user"
    head: str | None = None
    key: str | None = None

    @property
    def status(self) -> str:
        """One of "verified", "wrong" and "cannot verify"."""
        return "wrong" if self.wrong else "cannot verify" if self.unsure else "verified"

    def to_dict(self) -> Row:
        """Return everything, ready for JSON."""
        values = {name: str(one) if one == inf else one for name, one in asdict(self).items()}
        return {"status": self.status, **values}


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder."""
    try:
        return path.is_dir()
    except OSError as error:
        raise Unsure(f"{shown(str(path))}: cannot be read ({error.strerror})") from None


def content(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        if path.stat().st_size > LARGEST or not path.is_file():
            raise Unsure(f"{path}: is no file, or has more than {LARGEST} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Unsure(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def parsed(raw: bytes) -> Any:
    """What JSON says; None if it is none, or none that anybody writes here."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError, MemoryError):
        return None


def shown(value: Any) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = f"a {type(value).__name__} of some {value.bit_length()} bits"
    return text if len(text) <= 80 else text[:79] + "…"


def chain(data: bytes, report: Report) -> list[Row]:
    """All lines of a ledger, each checked against the one before; what is not as it was written is reported."""
    lines: list[Row] = []
    raws = data.split(b"\n")
    for raw in raws if raws[-1] else raws[:-1]:
        line = parsed(raw)
        if not lines and isinstance(line, dict) and line.get("ledger", 3) not in (2, 3):
            raise Unsure(f"ledger = {shown(line['ledger'])}: formats 2 and 3 can be verified")
        fault = _fault(raw, line, lines)
        if fault and len(lines) == len(raws) - 1 and lines:
            report.unsure.append(f"line {len(lines) + 1}, the last, is unfinished: it is not counted ({fault})")
        elif fault:
            report.wrong.append(f"line {len(lines) + 1} {fault}")
        if fault:
            return lines
        lines.append(line)
    if not lines:
        raise Unsure("the ledger is empty")
    if raws[-1]:
        report.notes.append("the last line has no newline: its charge may not have been paid out; it is counted")
    return lines


def _fault(raw: bytes, line: Any, before: list[Row]) -> str | None:
    """What is wrong with a line, to the byte; None if it is as it was written."""
    if not isinstance(line, dict) or json.dumps(line).encode() != raw:
        return "is not what a ledger's writer writes"
    first = before[0] if before else line
    signed = ["signature"] if "key" in first else []
    names = ["round"] if before else ["ledger", "about", *(["key"] if signed else [])]
    names += ["nonce"] if "nonce" in first else []
    if list(line) != [*names, "previous", "hash", *signed] or (signed and first["ledger"] != 3):
        return f"has the keys {shown(list(line))}: expected {', '.join([*names, 'previous', 'hash', *signed])}"
    if before and (type(line["round"]) is not int or line["round"] < 0):
        return f"charges round {shown(line['round'])}: expected a whole number"
    if not before and (type(line["ledger"]) is not int or not isinstance(line["about"], dict)):
        return "does not say what is charged for"
    expected = before[-1]["hash"] if before else START
    if line["previous"] != expected:
        return f"follows {shown(line['previous'])}: expected {expected}; a line was taken out, put in or moved"
    body = {name: value for name, value in line.items() if name not in ("hash", "signature")}
    found = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return None if line["hash"] == found else f"was changed: its hash is {shown(line['hash'])}: expected {found}"


def _public(key: str | Path | None) -> str | None:
    """A public key in hexadecimal, from itself or from a file."""
    if key is None or re.fullmatch("[0-9a-fA-F]{64}", str(key)):
        return None if key is None else str(key).lower()
    data = content(Path(key))
    text = data.hex() if len(data) == 32 else data.decode(errors="replace").strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise Unsure(f"key = {key}: must be 32 bytes in hexadecimal, or a file that holds them")
    return text


def signatures(lines: list[Row], given: str | Path | None, report: Report) -> None:
    """Every line must be signed by the key that the ledger began with, and that by the one that is known."""
    key = _public(given)
    own = report.key = lines[0].get("key")
    if own is None:
        report.notes.append("the ledger is not signed: whoever can write the file can write another one")
        if key is not None:
            report.wrong.append(f"the ledger is not signed: expected the key {key}")
        return
    if key not in (None, own):
        report.wrong.append(f"the ledger is signed by the key {shown(own)}: expected {key}")
    if key is None:
        report.notes.append(
            f"signed by the key {shown(own)}: whoever wrote the ledger may have made it; compare it (--key)"
        )
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 (not everywhere)
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ModuleNotFoundError:
        raise Unsure("signatures cannot be checked: cryptography is not installed") from None
    for number, line in enumerate(lines, start=1):
        try:
            if not re.fullmatch("[0-9a-f]{64}", own) or not re.fullmatch("[0-9a-f]{128}", line["signature"]):
                raise ValueError
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(own))
            public.verify(bytes.fromhex(line["signature"]), b"rqm ledger" + bytes.fromhex(line["hash"]))
        except (InvalidSignature, ValueError, TypeError):
            report.wrong.append(f"line {number} is not signed by the key {shown(own)}")
            return


def heads(hashes: list[str], witness: Path | str | None, head: str | None, report: Report) -> None:
    """What was told to a witness, or written down, must be in the ledger, at its place."""
    if head is not None and head not in hashes:
        report.wrong.append(f"the head {head} is not in the ledger, which is an older copy, or another")
    elif head is not None and head != hashes[-1]:
        report.notes.append(f"{len(hashes) - 1 - hashes.index(head)} charges came after the head {head}")
    if witness is None:
        return
    *raws, tail = content(Path(witness)).split(b"\n")
    told = [parsed(raw) for raw in raws if raw.strip()]
    if tail.strip() or not all(isinstance(one, dict) for one in told):
        report.notes.append("the witness has lines that cannot be read")
    told = [one for one in told if isinstance(one, dict) and one.get("ledger") == hashes[0]]
    most = 0
    for one in told:
        lines = one.get("lines")
        if type(lines) is not int or not 0 < lines <= len(hashes):
            fault = f"the ledger has {len(hashes)} lines: the witness was told of {shown(lines)}"
        elif hashes[lines - 1] != one.get("head"):
            fault = f"line {lines} is {hashes[lines - 1]}: the witness was told {shown(one.get('head'))}"
        elif lines < most:
            fault = f"the witness was told of line {lines} after line {most}: the ledger was put back and went on"
            fault += ", or two ledgers began alike"
        else:
            most = lines
            continue
        report.wrong.append(fault)
        return
    if not told:
        report.wrong.append(f"the witness was never told of a ledger that begins with {hashes[0]}")
    elif most < len(hashes) - 1:
        report.wrong.append(f"the ledger has {len(hashes)} lines: the witness was told of {most}, at most one less")
