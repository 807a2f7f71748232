"""What a verification found, and how files that may hold anything are read."""

import json
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""An object of JSON."""


class Unverifiable(Exception):  # noqa: N818 (no error: the answer "cannot verify")
    """Something that this verifier cannot tell."""


@dataclass
class Report:
    """What a verification found.

    Attributes:
        path: The ledger, or the folder of a run.
        wrong: What cannot be true.
        unsure: What this verifier cannot tell.
        notes: What else is good to know.
        epsilon: ε of all charges by the verifier's own bound; None if it has none.
        lower: No accountant can truthfully state less than this.
        delta: δ.
        charges: Releases that were charged.
        rounds: Rounds that were charged.
        max_participations: The most releases that one user, or record, is part of.
        min_honest: The least number of honest clients whose noise is counted on.
        unit: What is protected: "user" or "record".
        neighboring: The neighboring relation.
        adversary: Whom the guarantee holds against: "server" or "outsider".
        headline: The guarantee in one line, by this verifier.
        assumptions: The conditions under which it holds, by this verifier; None if they are not known.
        head_hash: The hash of the last line.
        key: The public key that the ledger began with.
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
    max_participations: int | None = None
    min_honest: int | None = None
    unit: str | None = None
    neighboring: str | None = None
    adversary: str | None = None
    headline: str | None = None
    assumptions: list[str] | None = None
    head_hash: str | None = None
    key: str | None = None

    @property
    def status(self) -> str:
        """One of "verified", "wrong" and "cannot verify"."""
        return "wrong" if self.wrong else "cannot verify" if self.unsure else "verified"

    def to_dict(self) -> Row:
        """Return everything, ready for JSON."""
        values = {name: str(value) if value == inf else value for name, value in asdict(self).items()}
        return {"status": self.status, **values}


def read_bytes(path: Path) -> bytes:
    """The bytes of a file.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        Unverifiable: If it is no file, is too large, or cannot be read.
    """
    largest = 2**30
    try:
        if path.stat().st_size > largest or not path.is_file():
            raise Unverifiable(f"{path}: is no file, or has more than {largest} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Unverifiable(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def parse_json(raw: bytes) -> Any:
    """The value of a JSON text; None if it is none, or too deep or large for a ledger."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError, MemoryError):
        return None


def shown(value: Any) -> str:
    """A value as a message shows it: in full if it is short."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = f"a {type(value).__name__} of {value.bit_length()} bits"
    return text if len(text) <= 80 else text[:79] + "…"
