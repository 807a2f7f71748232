"""Sweeps: an experiment's variants, each with several seeds, in one folder that can be left and taken up again."""

import json
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, final

import numpy as np
from scipy.stats import t as student

from rqm._checks import known_keys, whole
from rqm.federated import run
from rqm.federated.clients import FederatedData
from rqm.federated.loop import Record
from rqm.federated.plan import Plan, assign, read_toml

VARIES = [
    "mechanism", "transforms", "client", "server", "model", "data", "rounds", "clients", "population", "participations"
]  # fmt: skip
"""What may differ between the variants of an experiment."""


@final
@dataclass(frozen=True)
class Sweep:
    """The plans of an experiment, by the names of its variants, and how many seeds each is run with."""

    variants: dict[str, Plan]
    seeds: int

    @classmethod
    def from_toml(cls, path: Path, settings: Iterable[str] = (), *, first: bool = False) -> "Sweep":
        """Read an experiment: a plan, and under ``[[variants]]`` what differs from it, each with a ``name``.

        With ``first`` only the first variant is read: what a single run of the experiment is.
        """
        settings = list(settings)
        values = read_toml(path, settings)
        seeds = whole("seeds", values.pop("seeds", 1), 1)
        variants = values.pop("variants", [])[: 1 if first else None]
        plans = {}
        for variant in variants or [{"name": "plan"}]:
            changes = {key: value for key, value in variant.items() if key != "name"}
            if "name" not in variant:
                raise ValueError(f"{path}: a variant has no name")
            known_keys(changes, VARIES, "variants.")
            merged = deepcopy({**values, **changes})
            for setting in settings:
                if not setting.startswith("seeds="):
                    assign(merged, setting)  # once more: a setting also changes what a variant says
            plans[str(variant["name"])] = Plan.from_dict(merged)
        return cls(plans, seeds)

    def runs(self, folder: Path) -> list[tuple[str, Plan, Path]]:
        """Every run of the sweep: its variant, plan and folder."""
        return [
            (name, replace(plan, seed=plan.seed + seed), folder / slug(name) / f"seed-{plan.seed + seed}")
            for seed in range(self.seeds)
            for name, plan in self.variants.items()
        ]


def slug(name: str) -> str:
    """A name as a folder's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "variant"


def carry_out(
    sweep: Sweep,
    load: Callable[[str], FederatedData],
    folder: Path,
    watch: Callable[[str, Plan, Record], object] = lambda *_: None,
    minutes: float | None = None,
) -> bool:
    """Run what is not finished yet; return whether all is done. Stops, all saved, when the minutes are over."""
    deadline = None if minutes is None else monotonic() + 60 * minutes
    data: dict[str, FederatedData] = {}

    def late() -> bool:
        return deadline is not None and monotonic() > deadline

    for name, plan, place in sweep.runs(folder):
        if run.finished(place):
            continue
        if late():
            return False
        if not (place / run.PLAN).exists():
            run.start(plan, place)
        if plan.data not in data:
            data[plan.data] = load(plan.data)
        try:
            run.carry_out(plan, data[plan.data], place, lambda r, n=name, p=plan: watch(n, p, r), late)  # type: ignore[misc]
        except TimeoutError:
            return False
    return True


def curves(sweep: Sweep, folder: Path) -> dict[str, dict[str, Any]]:
    """For each variant: the evaluated rounds, and loss and accuracy with one row for each seed that is finished."""
    found: dict[str, dict[str, Any]] = {}
    for name, _, place in sweep.runs(folder):
        if run.finished(place):
            lines = [json.loads(text) for text in (place / run.METRICS).read_text().splitlines()]
            lines = [line for line in lines if "accuracy" in line]
            entry = found.setdefault(name, {"round": [line["round"] for line in lines], "loss": [], "accuracy": []})
            for key in ("loss", "accuracy"):
                entry[key].append([line[key] for line in lines])
    return found


def save_curves(sweep: Sweep, folder: Path) -> Path:
    """Write the curves of all finished runs, with their plans, into one small file; return its path."""
    found = curves(sweep, folder)
    for name, entry in found.items():
        entry["plan"] = sweep.variants[name].to_dict()
    run.write_json(folder / "curves.json", found)
    return folder / "curves.json"


def mean_and_interval(values: Any) -> tuple[Any, Any]:
    """Mean over the first axis and the half-width of its 95 % confidence interval (Student); NaN for one seed."""
    values = np.asarray(values, dtype=float)
    count = len(values)
    if count < 2:
        return values.mean(axis=0), np.full(values.shape[1:], np.nan)
    return values.mean(axis=0), student.ppf(0.975, count - 1) * values.std(axis=0, ddof=1) / count**0.5
