"""Experiments: a plan, its variants that are compared, and the number of seeds of each."""

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from rqm._util.checks import known_keys, whole
from rqm.config.plan import Plan, assign, plan_keys, read_plan_file


@final
@dataclass(frozen=True)
class Sweep:
    """The plans of an experiment.

    Attributes:
        variants: The plans by the names of the variants.
        seeds: How many seeds each variant is run with.
    """

    variants: dict[str, Plan]
    seeds: int

    @classmethod
    def from_toml(cls, path: Path, settings: Iterable[str] = (), *, first: bool = False) -> "Sweep":
        """Read an experiment: a plan, and under `[[variants]]` what differs from it, each with a `name`.

        Args:
            path: The TOML file.
            settings: Keys that are set to other values, such as "server.rate=0.5".
            first: Whether to read the first variant only, which is what a single run uses.

        Returns:
            The experiment.

        Raises:
            ValueError: If a value is not allowed, or two variants would share a folder.
        """
        settings = list(settings)
        values = read_plan_file(path, settings)
        seeds = whole("seeds", values.pop("seeds", 1), 1, 10_000)
        variants = values.pop("variants", [])
        if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
            raise TypeError(f"{path}: variants must be tables, each under [[variants]]")
        same = {
            "dropout",
            "examples",
            "budget_epsilon",
            "secagg",
            "seed",
            "device",
            "evaluate_every",
            "checkpoint_every",
        }
        may_differ = [key for key in plan_keys() if key not in same]
        plans: dict[str, Plan] = {}
        for variant in variants[: 1 if first else None] or [{"name": "plan"}]:
            changes = {key: value for key, value in variant.items() if key != "name"}
            if "name" not in variant:
                raise ValueError(f"{path}: a variant has no name")
            known_keys(changes, may_differ, "variants.")
            merged = deepcopy({**values, **changes})
            for setting in settings:
                if not setting.startswith("seeds="):
                    assign(merged, setting)  # a setting overrides the variant as well
            name = str(variant["name"])
            twin = next((earlier for earlier in plans if slug(earlier) == slug(name)), None)
            if twin is not None:
                raise ValueError(f"{path}: the variants {twin!r} and {name!r} would share a folder; rename one")
            try:
                plans[name] = Plan.from_dict(merged)
            except (ValueError, TypeError) as error:
                if settings:  # the command line names them as they were typed
                    raise
                raise type(error)(f"{path}: {error}") from None
        return cls(plans, seeds)

    def runs(self, folder: Path) -> list[tuple[str, Plan, Path]]:
        """Every run of the experiment: its variant, plan and folder."""
        return [
            (name, replace(plan, seed=plan.seed + seed), folder / slug(name) / f"seed-{plan.seed + seed}")
            for seed in range(self.seeds)
            for name, plan in self.variants.items()
        ]


def slug(name: str) -> str:
    """A name as the name of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "variant"
