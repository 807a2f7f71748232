"""The hash chain of a ledger: its lines, their signatures, and the heads that a witness recorded."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .verification_report import Report, Row, Unverifiable, parse_json, read_bytes, shown


def read_lines(data: bytes, report: Report) -> list[Row]:
    """Return all lines of a ledger, each checked against the line before it.

    Args:
        data: The bytes of the ledger.
        report: Changed lines are added to it.

    Returns:
        The lines before the first changed one.

    Raises:
        Unverifiable: If the ledger is empty, or has another format.
    """
    known_format = 4
    lines: list[Row] = []
    raws = data.split(b"\n")
    for raw in raws if raws[-1] else raws[:-1]:
        line = parse_json(raw)
        version = line.get("ledger", known_format) if isinstance(line, dict) and not lines else known_format
        if version != known_format or isinstance(version, bool):
            raise Unverifiable(
                f"ledger = {shown(version)}: this version verifies format {known_format}; "
                "use `rqm verify` of the version that wrote the ledger"
            )
        fault = next(_faults(raw, line, lines), None)
        if fault and len(lines) == len(raws) - 1 and lines:
            report.unsure.append(f"line {len(lines) + 1}, the last, is unfinished: it is not counted ({fault})")
        elif fault:
            report.wrong.append(f"line {len(lines) + 1} {fault}")
        if fault:
            return lines
        lines.append(line)
    if not lines:
        raise Unverifiable("the ledger is empty")
    if raws[-1]:
        report.notes.append("the last line has no newline: its charge may not have been paid out; it is counted")
    return lines


def _faults(raw: bytes, line: Any, previous_lines: list[Row]) -> Iterator[str]:
    """What is wrong with a line, to the byte. Only the first fault counts: later checks rely on earlier ones."""
    if not isinstance(line, dict) or json.dumps(line).encode() != raw:
        yield "is not as a ledger's writer writes it"
    is_first = not previous_lines
    signature = ["signature"] if "key" in (line if is_first else previous_lines[0]) else []
    content = ["ledger", "about", *(["key"] if signature else [])] if is_first else ["round"]
    names = [*content, "nonce", "previous", "hash", *signature]
    if list(line) != names:
        yield f"has the keys {shown(list(line))}: expected {', '.join(names)}"
    if not is_first and (type(line["round"]) is not int or line["round"] < 0):
        yield f"charges round {shown(line['round'])}: expected a whole number"
    if is_first and (type(line["ledger"]) is not int or not isinstance(line["about"], dict)):
        yield "does not say what is charged for"
    if not isinstance(line["nonce"], str) or not re.fullmatch("[0-9a-f]{16}", line["nonce"]):
        yield f"has the nonce {shown(line['nonce'])}: expected 16 hexadecimal digits"
    previous = "0" * 64 if is_first else previous_lines[-1]["hash"]
    if line["previous"] != previous:
        yield f"follows {shown(line['previous'])}: expected {previous}; a line was removed, inserted or moved"
    body = {name: value for name, value in line.items() if name not in ("hash", "signature")}
    expected = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    if line["hash"] != expected:
        yield f"was changed: its hash is {shown(line['hash'])}: expected {expected}"


def _public_key(key: str | Path) -> str:
    """A public key in hexadecimal, from itself or from a file."""
    text = str(key)
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        data = read_bytes(Path(key))
        text = data.hex() if len(data) == 32 else data.decode(errors="replace").strip()
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise Unverifiable(f"key = {key}: must be 32 bytes in hexadecimal, or a file that holds them")
    return text.lower()


def check_signatures(lines: list[Row], expected: str | Path | None, report: Report) -> None:
    """Check that one key signed every line, and that it is the expected one.

    Args:
        lines: The lines of the ledger.
        expected: The server's public key, in hexadecimal or in a file; None: it is not known.
        report: What is wrong is added to it.
    """
    key = None if expected is None else _public_key(expected)
    ledger_key = report.key = lines[0].get("key")
    if ledger_key is None:
        report.notes.append("the ledger is not signed: anyone who can write the file can replace it")
        if key is not None:
            report.wrong.append(f"the ledger is not signed: expected the key {key}")
        return
    if key not in (None, ledger_key):
        report.wrong.append(f"the ledger is signed by the key {shown(ledger_key)}: expected {key}")
    if key is None:
        report.notes.append(
            f"signed by the key {shown(ledger_key)}: the writer of the ledger may have made it; compare it (--key)"
        )
    for number, line in enumerate(lines, start=1):
        try:
            if not re.fullmatch("[0-9a-f]{64}", ledger_key) or not re.fullmatch("[0-9a-f]{128}", line["signature"]):
                raise ValueError
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(ledger_key))
            public.verify(bytes.fromhex(line["signature"]), b"rqm ledger" + bytes.fromhex(line["hash"]))
        except (InvalidSignature, ValueError, TypeError):
            report.wrong.append(f"line {number} is not signed by the key {shown(ledger_key)}")
            return


def check_heads(hashes: list[str], witness: Path | str | None, head: str | None, report: Report) -> None:
    """Check that heads which were recorded elsewhere are in the ledger, each at its position.

    Args:
        hashes: The hashes of all lines.
        witness: The file of a witness, with a line for each head that was reported to it.
        head: A head that was written down.
        report: What is wrong is added to it.
    """
    if head is not None and head not in hashes:
        report.wrong.append(f"the head {head} is not in the ledger, which is an older copy, or another")
    elif head is not None and head != hashes[-1]:
        report.notes.append(f"{len(hashes) - 1 - hashes.index(head)} charges came after the head {head}")
    if witness is None:
        return
    *raws, tail = read_bytes(Path(witness)).split(b"\n")
    values = [parse_json(raw) for raw in raws if raw.strip()]
    rows = [value for value in values if isinstance(value, dict)]
    if tail.strip() or len(rows) < len(values):
        report.notes.append("the witness has lines that cannot be read")
    entries = [row for row in rows if row.get("ledger") == hashes[0]]
    recorded = 0
    for entry in entries:
        lines = entry.get("lines")
        if type(lines) is not int or not 0 < lines <= len(hashes):
            fault = f"the ledger has {len(hashes)} lines: the witness recorded {shown(lines)}"
        elif hashes[lines - 1] != entry.get("head"):
            fault = f"line {lines} is {hashes[lines - 1]}: the witness recorded {shown(entry.get('head'))}"
        elif lines < recorded:
            fault = f"the witness recorded line {lines} after line {recorded}: an older copy was restored and continued"
            fault += ", or two ledgers began alike"
        else:
            recorded = lines
            continue
        report.wrong.append(fault)
        return
    if not entries:
        report.wrong.append(f"the witness has no record of a ledger that begins with {hashes[0]}")
    elif recorded < len(hashes) - 1:
        report.wrong.append(f"the ledger has {len(hashes)} lines: the witness recorded {recorded}, at most one less")
