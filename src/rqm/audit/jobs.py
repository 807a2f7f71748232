"""The audits that train or invert, as jobs: an experiment in, a dictionary ready for JSON out.

They need torch, NumPy and SciPy only, so that they also run where there is nothing else.
"""

from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from rqm._util.pictures import packed
from rqm.audit.inversion import Reconstruction, audit_inversion, summary
from rqm.audit.membership import audit_membership
from rqm.audit.training import audit_training
from rqm.data import load
from rqm.data.federated_data import FederatedData
from rqm.plan.experiments import find
from rqm.plan.plan import Plan
from rqm.plan.sweep import Sweep

SHOWN = 8
"""Pictures that are kept of each kind."""
POINTS = 200
"""Points that are kept of a curve."""

Watch = Callable[[str], object]


def variants(
    experiment: str, settings: Iterable[str] = (), chosen: Iterable[str] = (), data: Path | None = None
) -> tuple[dict[str, Plan], FederatedData]:
    """The plans of an experiment's variants, all or those that are chosen, and its data."""
    plans = Sweep.from_toml(find(experiment), settings).variants
    for name in chosen:
        if name not in plans:
            raise ValueError(f"variant = {name}: must be among {', '.join(plans)}")
    kept = {name: plan for name, plan in plans.items() if not chosen or name in chosen}
    names = sorted({plan.data for plan in kept.values()})
    if len(names) > 1:
        raise ValueError(
            f"{experiment}: its variants have different data ({', '.join(names)}); choose one by --variant"
        )
    return kept, load(names[0], data)


def training(
    plans: dict[str, Plan],
    data: FederatedData,
    *,
    delta: float | None = None,
    canaries: int = 1000,
    confidence: float = 0.95,
    claimed: float | None = None,
    watch: Watch = lambda name: None,
) -> dict[str, Any]:
    """Plant canaries in a run of every variant; ``claimed`` is asked of the accountant unless it is given."""
    out, claims = {}, {}
    for name, plan in plans.items():  # all of them first: a plan without an ε is to be refused before hours of training
        claims[name] = inf if not plan.mechanism.private else _claim(plan, delta) if claimed is None else claimed
    for name, plan in plans.items():
        watch(name)
        found = audit_training(plan, data, claims[name], delta, canaries=canaries, confidence=confidence)
        out[name] = {**found.to_dict(), "plan": plan.to_dict()}
    return out


def _claim(plan: Plan, delta: float | None) -> float:
    from rqm.plan.account import account  # noqa: PLC0415 (takes the compiler)

    return account(plan, delta).epsilon


def inversion(data: FederatedData, *, watch: Watch = lambda name: None, **options: Any) -> dict[str, Any]:
    """Invert gradients; the scores of each kind, and some of the pictures."""
    found: list[Reconstruction] = []
    for one in audit_inversion(data, **options):
        found.append(one)
        watch(one.kind)
    kinds = dict.fromkeys(one.kind for one in found)
    rows = [[one for one in found if one.kind == kind] for kind in kinds]
    shown = {
        kind: [{"picture": packed(one.rebuilt), "similarity": one.similarity} for one in row[:SHOWN]]
        for kind, row in zip(kinds, rows, strict=True)
    }
    truth = [{"picture": packed(one.truth)} for one in rows[0][:SHOWN]]
    return {"data": data.name, "options": options, "kinds": summary(found), "pictures": {"the picture": truth, **shown}}


def membership(
    plans: dict[str, Plan], data: FederatedData, *, watch: Watch = lambda name: None, **options: Any
) -> dict[str, Any]:
    """Attack models of every variant; scores, and the curve of each."""
    out = {}
    for name, plan in plans.items():

        def told(model: int, name: str = name) -> None:
            watch(f"{name}, model {model + 1}")

        found, false, true = audit_membership(plan, data, watch=told, **options)
        kept = np.unique(np.geomspace(1, len(false), POINTS).astype(int)) - 1
        out[name] = {
            **found.to_dict(),
            "false_positives": false[kept].round(6).tolist(),
            "true_positives": true[kept].round(6).tolist(),
            "plan": plan.to_dict(),
        }
    return out
