"""What is known of a run from its folder: plan, metrics, and what was found out about it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from rqm._util.files import read_json
from rqm.plan.folder import SUMMARY, finished, read_metrics
from rqm.plan.plan import PLAN, Plan
from rqm.training.findings import findings


@final
@dataclass(frozen=True)
class Run:
    """One run. ``group`` is what runs that differ only in their seed have in common."""

    folder: Path
    group: str
    plan: Plan
    lines: list[dict[str, Any]]
    summary: dict[str, Any] | None
    found: dict[str, Any]

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """What is guaranteed to every user, as `rqm account --json` prints it, with its trade-off curve."""
        known: dict[str, Any] | None = self.found["privacy"].get("guarantee")
        return known

    @property
    def done(self) -> int:
        """Rounds that were carried out."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    @property
    def same(self) -> str:
        """What runs have in common that differ in their seed only."""
        return json.dumps({**self.plan.to_dict(), "seed": 0}, sort_keys=True)

    def evaluated(self, key: str) -> tuple[Any, Any]:
        """Rounds and values where the server evaluated."""
        some = [line for line in self.lines if np.isfinite(line.get(key, np.nan))]
        return np.array([line["round"] for line in some], dtype=float), np.array([line[key] for line in some])

    def total(self, key: str) -> float:
        """The sum of a value over all rounds."""
        return float(sum(line.get(key, 0) or 0 for line in self.lines))

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        _, values = self.evaluated("accuracy")
        if self.summary:
            found = self.summary["accuracy"]
            return None if found is None else float(found)
        return float(values[-1]) if len(values) else None


def read(folder: Path, group: str = "", data: Path | None = None) -> Run:
    """Read the folder of a run, finished or not; a line of metrics that was cut off by a crash is left out."""
    if not (folder / PLAN).exists():
        raise FileNotFoundError(f"RUN_DIR = {folder}: holds no run ({PLAN} is missing)")
    lines = read_metrics(folder)
    summary = read_json(folder / SUMMARY, "a summary") if finished(folder) else None
    return Run(folder, group or folder.name, Plan.of_run(folder), lines, summary, findings(folder, data))


def find(folders: list[Path], data: Path | None = None) -> list[Run]:
    """All runs in some folders: of a run, or of a sweep (variant/seed)."""
    found = []
    for folder in folders:
        if (folder / PLAN).exists():
            found.append(read(folder, data=data))
            continue
        inner = sorted(path.parent for path in folder.glob(f"*/*/{PLAN}")) if folder.is_dir() else []
        if not inner:
            raise FileNotFoundError(f"RUN_DIR = {folder}: holds no run ({PLAN} is missing), and no sweep")
        found += [read(path, path.parent.name, data) for path in inner]
    return found
