"""The folder of a run: the names of its files, and what can be told from them without torch."""

import json
import struct
from pathlib import Path

METRICS, SUMMARY, FINDINGS, CHECKPOINT = "metrics.jsonl", "summary.json", "findings.json", "checkpoint.safetensors"
"""A line a round; the end of a run; what was found out about it; its model."""


def finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    return (folder / SUMMARY).exists()


def recorded_head(folder: Path) -> str | None:
    """The head of the ledger when the last checkpoint was written; None if there was no ledger, or no checkpoint."""
    try:
        with (folder / CHECKPOINT).open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 2**20)))
        head = json.loads(header["__metadata__"]["state"])["ledger_head"]
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError):
        return None
    return head if isinstance(head, str) else None
