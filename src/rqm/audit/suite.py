"""Audits as jobs: experiments in, dictionaries ready for JSON out.

Canaries, inversion and membership need only torch, NumPy and SciPy. Where there is nothing else,
`python -m rqm.audit training|inversion|membership --out FILE` runs them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from rqm._util.files import write_json
from rqm._util.text import picture_to_text
from rqm.audit.inversion import audit_inversion, summary
from rqm.audit.membership import audit_membership
from rqm.audit.training import audit_training
from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.data import load
from rqm.data.federated_data import FederatedData
from rqm.mechanisms.discrete import DiscreteMechanism

Watch = Callable[[str], object]
"""Called with what is being done."""
Row = dict[str, Any]


def load_variants(
    experiment: str, settings: Iterable[str] = (), chosen: Iterable[str] = (), data: Path | None = None
) -> tuple[dict[str, Plan], FederatedData]:
    """The plans of an experiment and its data.

    Args:
        experiment: Name or file of the experiment.
        settings: Changes to its plans, "key=value".
        chosen: Names of variants; none: all.
        data: Folder of the data.

    Returns:
        The plans by the names of the variants, and the data.

    Raises:
        ValueError: If there is no such variant, or the variants have different data.
    """
    plans = Sweep.from_toml(find(experiment), settings).variants
    for name in chosen:
        if name not in plans:
            raise ValueError(f"variant = {name}: must be among {', '.join(plans)}")
    plans = {name: plan for name, plan in plans.items() if not chosen or name in chosen}
    names = sorted({plan.data for plan in plans.values()})
    if len(names) > 1:
        raise ValueError(
            f"{experiment}: its variants have different data ({', '.join(names)}); choose one by --variant"
        )
    return plans, load(names[0], data)


def plant_canaries(
    plans: dict[str, Plan],
    data: FederatedData,
    *,
    delta: float | None = None,
    claimed: float | None = None,
    watch: Watch = lambda name: None,
    **options: Any,
) -> dict[str, Row]:
    """Plant canaries in a run of every variant.

    Args:
        plans: The plans of the variants.
        data: Their data.
        delta: δ of the claim; None: the plan's.
        claimed: The ε to test; None: what the accountant states.
        watch: Called with each variant.
        **options: Options of `audit_training`.

    Returns:
        The audit and the plan of each variant.
    """
    claims = {name: _claim(plan, delta, claimed) for name, plan in plans.items()}  # refuses before hours of training
    results = {}
    for name, plan in plans.items():
        watch(name)
        results[name] = audit_training(plan, data, claims[name], delta, **options).to_dict() | {"plan": plan.to_dict()}
    return results


def _claim(plan: Plan, delta: float | None, claimed: float | None) -> float:
    if not plan.mechanism.adds_noise:
        return inf
    if claimed is not None:
        return claimed
    from rqm.config.account import account  # noqa: PLC0415 (needs the compiler)

    return account(plan, delta).epsilon


def invert_gradients(data: FederatedData, *, watch: Watch = lambda kind: None, **options: Any) -> Row:
    """Rebuild pictures from gradients.

    Args:
        data: The data whose test pictures are attacked.
        watch: Called after each attack.
        **options: Options of `audit_inversion`.

    Returns:
        The scores of each kind of observation, and up to eight pictures of each.
    """
    attacks = []
    pictures = dict[str, list[Row]]({"the picture": []})
    for attack in audit_inversion(data, **options):
        attacks.append(attack)
        watch(attack.kind)
        rebuilt = {"picture": picture_to_text(attack.rebuilt), "similarity": attack.similarity}
        pictures.setdefault(attack.kind, []).append(rebuilt)
        if attack.kind == attacks[0].kind:
            pictures["the picture"].append({"picture": picture_to_text(attack.truth)})
    shown = {kind: row[:8] for kind, row in pictures.items()}
    return {"data": data.name, "options": options, "kinds": summary(attacks), "pictures": shown}


def infer_membership(
    plans: dict[str, Plan], data: FederatedData, *, watch: Watch = lambda model: None, **options: Any
) -> dict[str, Row]:
    """Attack the models of every variant.

    Args:
        plans: The plans of the variants.
        data: Their data.
        watch: Called after each model.
        **options: Options of `audit_membership`.

    Returns:
        The audit and the plan of each variant.
    """
    results = {}
    for name, plan in plans.items():
        audit = audit_membership(plan, data, watch=partial(_watch_model, watch, name), **options)
        results[name] = audit.to_dict() | {"plan": plan.to_dict()}
    return results


def _watch_model(watch: Watch, variant: str, model: int) -> None:
    watch(f"{variant}, model {model + 1}")


def audit_everything(out: Path, watch: Watch = lambda step: None) -> Row:
    """Run every audit, small enough for two cores and a few minutes.

    Args:
        out: Folder for JSON files.
        watch: Called with each step.

    Returns:
        The results. `good` says that no claim was contradicted, and that every mutant was caught.
    """
    from rqm.audit.mutants import audit_mutants  # noqa: PLC0415
    from rqm.audit.privacy import audit_privacy  # noqa: PLC0415
    from rqm.audit.sampler import audit_sampler  # noqa: PLC0415
    from rqm.mechanisms.rqm import RQM  # noqa: PLC0415
    from rqm.registry import kinds  # noqa: PLC0415
    from rqm.related.mvu import private_table  # noqa: PLC0415 (these need the compiler)

    results: Row = {"sampler": {}, "privacy": []}
    mechanisms: dict[str, DiscreteMechanism] = {"table by linear program": private_table(3.0, 8, rows=9)}
    for made in kinds().values():
        if made.has_integer_messages and made.kind != "table":
            for name, parameters in (made.examples or {made.kind: {}}).items():
                mechanisms[name] = made.from_dict(dict(parameters)).discrete
    for name, mechanism in mechanisms.items():
        watch(f"sampler and privacy of {name}")
        results["sampler"][name] = audit_sampler(mechanism, draws=500_000).to_dict()
        delta = 0.01 if mechanism.is_modular else 0.0  # no number of draws reaches the tails of additive noise
        for clients, draws, audited_delta in ((1, 4_000_000, delta), (3, 500_000, 0.0)):
            audit = audit_privacy(mechanism, clients, draws=draws, delta=audited_delta)
            results["privacy"].append({"mechanism": name} | audit.to_dict())
    watch("the paper's claim")
    results["paper"] = audit_privacy(RQM(keep=0.23), draws=20_000_000, claim="paper").to_dict()
    watch("a run with canaries")
    results["training"] = plant_canaries(*load_variants("audit"))
    watch("inversion")
    results["inversion"] = invert_gradients(load("glyphs"), pictures=2, clients=8, iterations=80)
    watch("membership")
    results["membership"] = infer_membership(*load_variants("membership"), models=8, users=120)
    watch("mutants")
    results["mutants"] = [verdict.to_dict() for verdict in audit_mutants()]
    results["good"] = (
        all(audit["passed"] for audit in results["sampler"].values())
        and results["paper"]["contradicted"]  # or the audit has no power
        and not any(audit["contradicted"] for audit in [*results["privacy"], *results["training"].values()])
        and all(verdict["caught"] for verdict in results["mutants"])
    )
    write_json(out / "audit.json", results)
    for name in ("inversion", "membership"):
        write_json(out / f"{name}.json", results[name])
    return results


def markdown(results: Row) -> str:
    """The results of `audit_everything` as tables."""

    def by_name(audits: dict[str, Row]) -> list[Row]:
        return [{"name": name} | audit for name, audit in audits.items()]

    measured = ("claimed", "measured", "contradicted")
    return "\n".join(
        [
            "Samplers against their exact pmfs: the p-value of the worst test, times the number of tests\n",
            _table(by_name(results["sampler"]), "name", "p_value", "passed"),
            "ε of one coordinate, alone and in a sum of three: certified and measured (confidence 99.9 %)\n",
            _table(results["privacy"], "mechanism", "clients", "delta", *measured),
            "The paper's claim for RQM (1.0, 0.23), which looks at ±clip only\n",
            _table([results["paper"]], *measured),
            "ε of a whole run, measured with canaries (confidence 95 %)\n",
            _table(by_name(results["training"]), "name", "guesses", "correct", *measured),
            "Pictures rebuilt from gradients (inversion.png)\n",
            _table(by_name(results["inversion"]["kinds"]), "name", "similarity", "identified"),
            "Members found at 1 % false positives (membership.png)\n",
            _table(by_name(results["membership"]), "name", "found", "found_low", "found_high", "area", "accuracy"),
            "Mutants\n",
            _table(results["mutants"], "name", "mistake", "caught", "audit", "evidence"),
        ]
    )


def _table(rows: list[Row], *columns: str) -> str:
    lines = [list(columns), ["---"] * len(columns)]
    for row in rows:
        values = [row[column] for column in columns]
        lines.append([f"{value:.4g}" if isinstance(value, float) else str(value) for value in values])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Run one audit and write its result.

    Args:
        arguments: Command-line arguments; None: those of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rqm.audit", description="Other options, --name VALUE, are those of the audit's function."
    )
    parser.add_argument("audit", choices=["training", "inversion", "membership"])
    parser.add_argument("--experiment", default="audit")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", default="glyphs", help="whose pictures to invert")
    chosen, others = parser.parse_known_args(arguments)
    try:
        options: Row = {name.removeprefix("--"): _value(text) for name, text in zip(*[iter(others)] * 2, strict=True)}
        options["watch"] = partial(print, file=sys.stderr, flush=True)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        if chosen.audit == "inversion":
            result = invert_gradients(load(chosen.dataset, chosen.data), **options)
        else:
            audit = plant_canaries if chosen.audit == "training" else infer_membership
            result = audit(*load_variants(chosen.experiment, chosen.set, chosen.variant, chosen.data), **options)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"rqm: {error}", file=sys.stderr)
        return 2
    write_json(chosen.out, result)
    return 0


def _value(text: str) -> Any:
    """A number, or text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
