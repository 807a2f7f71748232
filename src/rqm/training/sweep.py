"""Sweeps: an experiment's variants, each with several seeds, in one folder that can be left and taken up again."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from rqm._util.checks import real
from rqm._util.files import read_json, write_json
from rqm.data.federated_data import FederatedData
from rqm.plan.account import account_ledger
from rqm.plan.folder import SUMMARY, finished, read_metrics
from rqm.plan.leak import leak
from rqm.plan.plan import Plan
from rqm.plan.sweep import Sweep
from rqm.training import run
from rqm.training.statement import Statement
from rqm.training.trainer import Record, Trainer, validate


def carry_out(
    sweep: Sweep,
    load: Callable[[str], FederatedData],
    folder: Path,
    watch: Callable[[str, Plan, Record], object] = lambda *_: None,
    minutes: float | None = None,
    certificate: Path | None = None,
    make: Callable[[Plan, FederatedData], Trainer] = Trainer,
) -> bool:
    """Run what is not finished yet; return whether all is done. Stops, all saved, when the minutes are over.

    All variants are validated before the first begins.
    """
    if minutes is not None:
        real("minutes", minutes, "a positive finite number", 0, inf)
    deadline = None if minutes is None else monotonic() + 60 * minutes
    for name, plan, place in sweep.runs(folder):
        if finished(place) and not _is_of(plan, place):
            raise ValueError(f"{name}: {place} holds a run of another plan; sweep into another folder")
    left = [(name, plan, place) for name, plan, place in sweep.runs(folder) if not finished(place)]
    data = {name: load(name) for name in dict.fromkeys(plan.data for _, plan, _ in left)}
    for name, plan, _ in left:
        try:
            validate(plan, data[plan.data])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def late() -> bool:
        return deadline is not None and monotonic() > deadline

    for name, plan, place in left:
        if late():
            return False

        def told(record: Record, name: str = name, plan: Plan = plan) -> None:
            watch(name, plan, record)

        try:
            run.carry_out(plan, data[plan.data], place, told, late, certificate=certificate, make=make)
        except TimeoutError:
            return False
    return True


def _is_of(plan: Plan, place: Path) -> bool:
    """Whether a finished run is one of this plan, promises included."""
    done = Plan.of_run(place)
    stated = all(getattr(plan, name) in (None, getattr(done, name)) for name in ("delta", "budget_epsilon"))
    return plan.can_continue(done) and stated and plan.threat_model == done.threat_model


def curves(sweep: Sweep, folder: Path) -> dict[str, dict[str, Any]]:
    """For each variant: the evaluated rounds, and loss and accuracy with one row for each seed that is finished."""
    found: dict[str, dict[str, Any]] = {}
    for name, _, place in sweep.runs(folder):
        if finished(place):
            lines = [line for line in read_metrics(place) if "accuracy" in line]
            rounds = [line["round"] for line in lines]
            entry = found.setdefault(name, {"round": rounds, "loss": [], "accuracy": [], "plan": Plan.of_run(place)})
            for key in ("loss", "accuracy"):
                entry[key].append([line[key] for line in lines])
    return found


def save_curves(sweep: Sweep, folder: Path) -> Path:
    """Write the curves of all finished runs, with their plans, into one small file; return its path."""
    found = curves(sweep, folder)
    for entry in found.values():
        plan: Plan = entry["plan"]
        entry["plan"] = plan.to_dict()
        try:
            entry["leak"] = leak(plan)
        except ModuleNotFoundError:  # a bare GPU machine has no accountant
            entry["leak"] = None
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "curves.json", found)
    return folder / "curves.json"


def save_summary(sweep: Sweep, folder: Path, seconds: float | None = None) -> dict[str, Any] | None:
    """Write the summary of a sweep whose first variant promises users something; None where it does not, or not yet.

    Its ε with all conditions in a ``sentence``, and its accuracy beside that of the variant without noise.
    """
    runs = list(sweep.runs(folder))
    name, plan, place = runs[0]
    if (
        not all(finished(path) for _, _, path in runs)
        or plan.transforms.l2_clip is None
        or not plan.mechanism.adds_noise
    ):
        return None
    details, _ = account_ledger(place)
    own = read_json(place / SUMMARY, "a summary")
    if details is None:
        return None
    free = [path for _, one, path in runs if not one.mechanism.adds_noise]
    told = Statement(details, plan.seed, behind=own.get("users_behind"))
    found = {
        "variant": name,
        "epsilon": details.epsilon,
        "delta": details.delta,
        "accuracy": own["accuracy"],
        "accuracy_noise_free": read_json(free[0] / SUMMARY, "a summary")["accuracy"] if free else None,
        "bits_per_coordinate": details.bits_per_coordinate,
        "bits_under_secagg": details.bits_under_secagg,
        "wire_bits_per_parameter": details.wire_bits_per_parameter,
        "users": details.participation.population,
        "users_behind": own.get("users_behind"),
        "certified": details.certified,
        "sentence": str(told),
        "seconds": seconds,
    }
    write_json(folder / SUMMARY, found)
    return found
