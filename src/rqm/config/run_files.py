"""The folder of a run: the names of its files, and how they are read without torch."""

from pathlib import Path
from typing import Any

from rqm._util.checks import shown, whole
from rqm._util.files import parse_table, read_bytes
from rqm._util.tensor_file import Arrays, parse

METRICS, SUMMARY, FINDINGS, CHECKPOINT = "metrics.jsonl", "summary.json", "findings.json", "checkpoint.safetensors"
"""A line per round; the end of a run; its evaluation for the report; its model."""
STATE = "state"
"""The text in a checkpoint that holds everything but the arrays, as JSON."""


def finished(folder: Path) -> bool:
    """Whether a run has ended."""
    return (folder / SUMMARY).exists()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a line that was cut off by a crash, and all after it, are left out."""
    path = folder / METRICS
    lines = list[dict[str, Any]]()
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = parse_table(text)
            whole("round", line.get("round"), 1)
        except (ValueError, TypeError):
            break
        lines.append(line)
    return lines


def read_checkpoint(folder: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """The arrays and the state of a run's checkpoint.

    Args:
        folder: The folder of the run.

    Returns:
        Both, or None if there is no checkpoint.

    Raises:
        ValueError: If the checkpoint is damaged.
    """
    path = folder / CHECKPOINT
    try:
        arrays, texts = parse(read_bytes(path, 2**36))
        if texts.keys() != {STATE}:
            raise ValueError(f"it has the texts {shown(list(texts))}: must be {STATE}")
        state = parse_table(texts[STATE])
        whole("round", state.get("round"), 0)
        whole("metrics_bytes", state.get("metrics_bytes"), 0)
        head = state.get("ledger_head")
        if not (head is None or isinstance(head, str)):
            raise ValueError(f"ledger_head = {shown(head)}: must be a hash, or null")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    return arrays, state


def recorded_head(folder: Path) -> str | None:
    """The head of the ledger when the last checkpoint was written; None without a ledger or a checkpoint."""
    checkpoint = read_checkpoint(folder)
    return None if checkpoint is None else checkpoint[1].get("ledger_head")
