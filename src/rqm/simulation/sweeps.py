"""Sweeps: the variants of an experiment, each with several seeds, in one folder; they continue after interruptions."""

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from rqm._util.checks import real
from rqm._util.files import read_json, write_json
from rqm.config.account import account_ledger
from rqm.config.coordinate_divergences import leak
from rqm.config.plan import Plan
from rqm.config.run_files import SUMMARY, finished, read_metrics
from rqm.config.sweep import Sweep
from rqm.data.federated_data import FederatedData
from rqm.simulation.loop import Outcome, RunState, check_data
from rqm.simulation.run_folder import MakeState, carry_out
from rqm.simulation.train import Statement


def carry_out_sweep(
    sweep: Sweep,
    load: Callable[[str], FederatedData],
    folder: Path,
    watch: Callable[[str, Plan, Outcome], object] = lambda *_: None,
    minutes: float | None = None,
    certificate: Path | None = None,
    make: MakeState = RunState,
) -> bool:
    """Carry out all runs that are not finished. All variants are validated before the first begins.

    Args:
        sweep: The experiment.
        load: Loads data by the name in a plan.
        folder: The folder of the sweep.
        watch: Called after each round with the name of the variant, its plan and the outcome.
        minutes: Save and stop after this time; None: never.
        certificate: A file of certificates for machines without the accountant.
        make: Makes the state of a run.

    Returns:
        Whether all runs are finished.

    Raises:
        ValueError: If a variant cannot be carried out, or the folder holds runs of other plans.
    """
    if minutes is not None:
        real("minutes", minutes, "a positive finite number", 0, inf)
    deadline = inf if minutes is None else monotonic() + 60 * minutes
    remaining = []
    for name, plan, path in sweep.runs(folder):
        if not finished(path):
            remaining.append((name, plan, path))
        elif not _is_run_of(plan, path):
            raise ValueError(f"{name}: {path} holds a run of another plan; sweep into another folder")
    data = {name: load(name) for name in dict.fromkeys(plan.data for _, plan, _ in remaining)}
    for name, plan, _ in remaining:
        try:
            check_data(plan, data[plan.data])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def is_late() -> bool:
        return monotonic() > deadline

    for name, plan, path in remaining:
        if is_late():
            return False
        try:
            carry_out(
                plan, data[plan.data], path, partial(watch, name, plan), is_late, make=make, certificate=certificate
            )
        except TimeoutError:
            return False
    return True


def _is_run_of(plan: Plan, path: Path) -> bool:
    """Whether a finished run is one of this plan, with the same guarantee."""
    done = Plan.of_run(path)
    is_same = all(getattr(plan, name) in (None, getattr(done, name)) for name in ("delta", "budget_epsilon"))
    return plan.can_continue(done) and is_same and plan.threat_model == done.threat_model


def save_curves(sweep: Sweep, folder: Path) -> Path:
    """Write the learning curves of all finished runs into `curves.json`.

    Each variant has its plan, the evaluated rounds, and loss and accuracy with a row for each seed.

    Args:
        sweep: The experiment.
        folder: The folder of the sweep.

    Returns:
        The path of the file.
    """
    curves: dict[str, dict[str, Any]] = {}
    for name, _, path in sweep.runs(folder):
        if not finished(path):
            continue
        lines = [line for line in read_metrics(path) if "accuracy" in line]
        if name not in curves:
            plan = Plan.of_run(path)
            try:
                leakage = leak(plan)
            except ModuleNotFoundError:  # a bare GPU machine has no accountant
                leakage = None
            rounds = [line["round"] for line in lines]
            curves[name] = {"round": rounds, "loss": [], "accuracy": [], "plan": plan.to_dict(), "leak": leakage}
        for key in ("loss", "accuracy"):
            curves[name][key].append([line[key] for line in lines])
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "curves.json", curves)
    return folder / "curves.json"


def save_summary(sweep: Sweep, folder: Path, seconds: float | None = None) -> dict[str, Any] | None:
    """Write the guarantee of a sweep's first variant, and its accuracy beside that of the variant without noise.

    Args:
        sweep: The experiment.
        folder: The folder of the sweep.
        seconds: How long the sweep took.

    Returns:
        The summary; None if runs are missing, or the first variant has no guarantee for users.
    """
    runs = sweep.runs(folder)
    name, plan, path = runs[0]
    is_finished = all(finished(run_path) for _, _, run_path in runs)
    if not is_finished or plan.transforms.l2_clip is None or not plan.mechanism.adds_noise:
        return None
    guarantee, _ = account_ledger(path)
    if guarantee is None:
        return None
    run = read_json(path / SUMMARY, "a summary")
    noise_free = [run_path for _, run_plan, run_path in runs if not run_plan.mechanism.adds_noise]
    users_behind = run.get("users_behind")
    summary = {
        "variant": name,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "accuracy": run["accuracy"],
        "accuracy_noise_free": read_json(noise_free[0] / SUMMARY, "a summary")["accuracy"] if noise_free else None,
        "bits_per_coordinate": guarantee.bits_per_coordinate,
        "bits_under_secagg": guarantee.bits_under_secagg,
        "wire_bits_per_parameter": guarantee.wire_bits_per_parameter,
        "users": guarantee.participation.population,
        "users_behind": users_behind,
        "certified": guarantee.certified,
        "sentence": str(Statement(guarantee, plan.seed, users_behind=users_behind)),
        "seconds": seconds,
    }
    write_json(folder / SUMMARY, summary)
    return summary
