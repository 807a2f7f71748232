"""Reads the folders of runs: plan, metrics, summary and findings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from rqm._util.files import read_json
from rqm.config.plan import PLAN, Plan
from rqm.config.run_files import SUMMARY, finished, read_metrics
from rqm.simulation.findings import findings


@final
@dataclass(frozen=True)
class RunFolder:
    """The contents of a run's folder.

    Attributes:
        path: The folder.
        plan: The plan.
        metrics: One entry for each round.
        summary: The end of the run; None if it is unfinished.
        findings: Privacy, pmf and evaluated model, see `rqm.simulation.findings`.
    """

    path: Path
    plan: Plan
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    findings: dict[str, Any]

    @property
    def variant(self) -> str:
        """The variant in a sweep, where the folder is `VARIANT/seed-NUMBER`, otherwise the name of the folder."""
        return self.path.parent.name if self.path.name.startswith("seed-") else self.path.name

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """The guarantee as `rqm account --json` prints it, with its trade-off curve; None if there is none."""
        guarantee: dict[str, Any] | None = self.findings["privacy"].get("guarantee")
        return guarantee

    def evaluations(self, key: str) -> tuple[Any, Any]:
        """Rounds in which the server evaluated "loss" or "accuracy", and the values."""
        points = [(line["round"], line[key]) for line in self.metrics if np.isfinite(line.get(key, np.nan))]
        rounds, values = np.array(points, dtype=float).reshape(-1, 2).T
        return rounds, values

    def total(self, key: str) -> float:
        """The sum of a metric over all rounds."""
        return float(sum(line.get(key, 0) or 0 for line in self.metrics))

    @property
    def accuracy(self) -> float | None:
        """The final accuracy, or the latest of an unfinished run."""
        if self.summary:
            accuracy: float | None = self.summary["accuracy"]
            return accuracy
        _, values = self.evaluations("accuracy")
        return float(values[-1]) if len(values) else None


def read_run(path: Path, data: Path | None = None) -> RunFolder:
    """Read the folder of a run, finished or not.

    Args:
        path: The folder.
        data: The folder of the data; default $RQM_DATA, else the user's cache.

    Returns:
        The contents. A line of metrics that was cut off by a crash is left out.

    Raises:
        ValueError: If a file is damaged.
    """
    summary = read_json(path / SUMMARY, "a summary") if finished(path) else None
    return RunFolder(path, Plan.of_run(path), read_metrics(path), summary, findings(path, data))


def read_runs(folders: list[Path], data: Path | None = None) -> list[RunFolder]:
    """Read all runs in some folders.

    Args:
        folders: Folders of runs, or of sweeps, where runs are in `VARIANT/seed-NUMBER`.
        data: The folder of the data; default $RQM_DATA, else the user's cache.

    Returns:
        The runs.

    Raises:
        FileNotFoundError: If a folder has no run.
        ValueError: If a file is damaged.
    """
    runs = []
    for folder in folders:
        plans = [folder / PLAN] if (folder / PLAN).exists() else sorted(folder.glob(f"*/*/{PLAN}"))
        if not plans:
            raise FileNotFoundError(f"RUN_DIR = {folder}: holds no run ({PLAN} is missing), and no sweep")
        runs += [read_run(plan.parent, data) for plan in plans]
    return runs
