"""``rqm account``: what plans, or the ledgers of runs, guarantee to every user."""

import json
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.words import many
from rqm.cli import names
from rqm.cli.options import (
    AdversaryOption,
    DeltaOption,
    HonestClientsOption,
    HonestFractionOption,
    JsonOption,
    NeighboringOption,
    PopulationOption,
    SetOption,
)
from rqm.cli.words import say

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee

Runs = dict[str, "tuple[Guarantee | None, dict[str, Any]]"]
"""By name: the guarantee, or None where there is no noise; and the charges and head of its ledger."""
TOGETHER = "all runs together"
SaveOption = Annotated[
    Path | None,
    typer.Option(help="Write a certificate: ε for any number of rounds, for machines without an accountant."),
]


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Shipped experiments (rqm experiments), TOML files, ledgers, or folders of runs or sweeps.",
            autocompletion=names.experiments,
        ),
    ],
    delta: DeltaOption = None,
    adversary: AdversaryOption = None,
    neighboring: NeighboringOption = None,
    honest_clients: HonestClientsOption = None,
    honest_fraction: HonestFractionOption = None,
    population: PopulationOption = None,
    settings: SetOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Account for a whole training run: certified (ε, δ) for every user, with all assumptions.

    For a plan: the privacy loss that is planned. For a ledger, or the folder of a run: the loss of the rounds that
    were charged. Options change the question, not the plan. For several runs on the same users, the ε of all of them
    together comes last.

    Examples:

        rqm account emnist-theta25

        rqm account plan.toml --delta 1e-6 --honest-clients 72 --json

        rqm account runs/first runs/second
    """
    changes: dict[str, Any] = {
        "delta": delta,
        "adversary": adversary,
        "neighboring": neighboring,
        "honest_clients": honest_clients,
        "honest_fraction": honest_fraction,
        "population": population,
    }
    accounts: list[tuple[str, Runs]] = []
    for run in runs:
        path = Path(run or "nothing")
        if not path.exists() or path.suffix == ".toml":
            accounts.append((run, _plans(run, settings or [], changes, save, quiet=as_json)))
            continue
        if settings or save:
            option = f"set = {settings[0]}" if settings else f"save = {save}"
            raise ValueError(f"{option}: must come with a plan; {run} holds charges, which nothing changes")
        accounts.append((run, _ledgers(path, changes)))
    if len(runs) > 1:
        _show_together(accounts, delta, as_json=as_json)
        return
    ((_, found),) = accounts
    if as_json:
        facts = [{"name": name, **_facts(guarantee, charged)} for name, (guarantee, charged) in found.items()]
        typer.echo(json.dumps(facts[0] if len(facts) == 1 else {"runs": facts}))
        return
    for name, (guarantee, charged) in found.items():
        text = _text(guarantee, charged)
        say(f"{name}: {text}" if len(found) > 1 or not charged else text)


def _show_together(accounts: list[tuple[str, Runs]], delta: float | None, *, as_json: bool) -> None:
    """Print what several runs guarantee together, after each of them."""
    from rqm.accounting.guarantee import compose_guarantees

    facts: list[dict[str, Any]] = []
    guarantees = []
    for run, found in accounts:
        for name, (guarantee, charged) in found.items():
            if guarantee is None and not charged:
                raise ValueError(f"{run}: {name} adds no noise: several runs together guarantee nothing")
            facts.append({"name": run if len(found) == 1 else f"{run} {name}", **_facts(guarantee, charged)})
            guarantees += [] if guarantee is None else [guarantee]
    together = compose_guarantees(guarantees, delta)
    if as_json:
        typer.echo(json.dumps({"name": TOGETHER, **_facts(together, {}), "runs": facts}))
        return
    for one in facts:
        say(f"{one['name']}: {one.get('headline', 'nothing has been charged yet: ε = 0')}")
    say(f"{TOGETHER}: {together}")


def _plans(experiment: str, settings: list[str], changes: dict[str, Any], save: Path | None, *, quiet: bool) -> Runs:
    """Every variant of an experiment."""
    from rqm._util.files import write_json
    from rqm.cli.waits import waiting
    from rqm.plan.account import per_parameter, planned_mean
    from rqm.plan.experiments import find
    from rqm.plan.guard import CERTIFICATE, certificate
    from rqm.plan.sweep import Sweep

    found: Runs = {}
    certificates: list[dict[str, Any]] = []
    for name, plan in Sweep.from_toml(find(experiment), settings).variants.items():
        if not plan.mechanism.private:
            found[name] = None, {}
            continue
        with waiting(f"accounting for {name}", quiet=quiet, key=f"account {experiment} {name} {sorted(settings)}"):
            mean = planned_mean(plan, **changes)
            found[name] = per_parameter(mean.guarantee(workload=plan.workload), mean, plan), {}
            if save is not None:
                if mean.threat_model.adversary != "server" or mean.threat_model.neighboring == "zero-out":
                    raise ValueError(f"save = {save}: must come without --adversary and --neighboring")
                certificates.append(certificate(mean, name))
    if save is not None:
        write_json(save, {"certificates_format": CERTIFICATE, "certificates": certificates})
    return found


def _ledgers(path: Path, changes: dict[str, Any]) -> Runs:
    """The ledger of a run, or all of a sweep's."""
    from rqm.ledger.ledger import LEDGER
    from rqm.plan.account import account_ledger

    inner = sorted(path.glob(f"*/*/{LEDGER}")) if path.is_dir() and not (path / LEDGER).exists() else []
    if not inner:
        return {path.name: account_ledger(path, **changes)}
    return {one.parent.relative_to(path).as_posix(): account_ledger(one, **changes) for one in inner}


def _facts(guarantee: "Guarantee | None", charged: dict[str, Any]) -> dict[str, Any]:
    if guarantee is None:
        return {"epsilon": 0.0 if charged else None, **charged}
    facts = {key: "inf" if value == inf else value for key, value in guarantee.to_dict().items()}  # JSON has no inf
    return {**facts, **charged}


def _text(guarantee: "Guarantee | None", charged: dict[str, Any]) -> str:
    """A guarantee, and where its ledger ends."""
    if guarantee is None:
        return "nothing has been charged yet: ε = 0" if charged else "no noise, no privacy"
    if not charged:
        return str(guarantee)
    return (
        f"{guarantee}\n\n{many(charged['charges'], 'charge')} for {many(charged['rounds_charged'], 'round')}; "
        f"the ledger ends with {charged['head_hash']}."
    )
