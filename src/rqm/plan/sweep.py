"""Experiments: a plan, the variants of it that are compared, and how many seeds each is run with."""

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import final

from rqm._util.checks import known_keys, whole
from rqm.accounting.participation import Participation, ThreatModel
from rqm.plan.plan import Plan, assign, read_toml

VARIES = [
    *(
        "mechanism",
        "noise",
        "transforms",
        "client",
        "server",
        "records",
        "adapt",
        "model",
        "data",
        "dim",
        "delta",
        "lost",
    ),
    *(one.name for kind in (Participation, ThreatModel) for one in fields(kind)),
]
"""What may differ between the variants of an experiment."""
MOST_SEEDS = 10_000


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
        seeds = whole("seeds", values.pop("seeds", 1), 1, MOST_SEEDS)
        variants = values.pop("variants", [])
        if not isinstance(variants, list) or not all(isinstance(one, dict) for one in variants):
            raise TypeError(f"{path}: variants must be tables, each under [[variants]]")
        plans: dict[str, Plan] = {}
        for variant in variants[: 1 if first else None] or [{"name": "plan"}]:
            changes = {key: value for key, value in variant.items() if key != "name"}
            if "name" not in variant:
                raise ValueError(f"{path}: a variant has no name")
            known_keys(changes, VARIES, "variants.")
            merged = deepcopy({**values, **changes})
            for setting in settings:
                if not setting.startswith("seeds="):
                    assign(merged, setting)  # once more: a setting also changes what a variant says
            name = str(variant["name"])
            twin = next((other for other in plans if slug(other) == slug(name)), None)
            if twin is not None:
                raise ValueError(f"{path}: the variants {twin!r} and {name!r} would share a folder; name them apart")
            try:
                plans[name] = Plan.from_dict(merged)
            except (ValueError, TypeError) as error:
                if settings:  # which are named as they were typed
                    raise
                raise type(error)(f"{path}: {error}") from None
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
