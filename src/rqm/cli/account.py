"""``rqm account``: what a plan, or the ledger of a run, guarantees to every user, over the whole run."""

import json
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.words import many
from rqm.cli import names
from rqm.cli.options import DeltaOption, HonestOption, JsonOption, SetOption, number_or_share
from rqm.cli.words import say

if TYPE_CHECKING:
    from rqm.privacy.guarantee import Guarantee

Found = dict[str, "tuple[Guarantee | None, dict[str, Any]]"]
"""By name: the guarantee, or None where there is no noise; and what a ledger says besides."""


SaveOption = Annotated[
    Path | None,
    typer.Option(help="Write a certificate: ε for any number of rounds, for machines without an accountant."),
]


def command(
    experiment: Annotated[
        str,
        typer.Argument(
            help="A shipped experiment (rqm experiments), a TOML file, a ledger, or the folder of a run or of a sweep.",
            autocompletion=names.experiments,
        ),
    ],
    delta: DeltaOption = None,
    observer: Annotated[
        str | None, typer.Option(help="server (knows who takes part; the default) or outsider (sees the models).")
    ] = None,
    neighbours: Annotated[
        str | None, typer.Option(help="replace (one user by another; the default) or zero-out.")
    ] = None,
    honest: HonestOption = None,
    population: Annotated[
        int | None, typer.Option(help="Users that clients are sampled from: for the outsider, and for a fraction.")
    ] = None,
    settings: SetOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Account for a whole training run: (ε, δ) for every user, certified, and beside it the value per coordinate.

    Of a plan: what is to be spent. Of a ledger, or the folder of a run: what was, finished or not. Options ask another
    question of the same plan or charges.

    Examples:

        rqm account emnist-theta25

        rqm account plan.toml --delta 1e-6 --honest 72 --json

        rqm account runs/first
    """
    changes: dict[str, Any] = {
        "delta": delta,
        "observer": observer,
        "neighbours": neighbours,
        "honest": number_or_share(honest),
        "population": population,
    }
    path = Path(experiment or "nothing")
    if path.exists() and path.suffix != ".toml":
        if settings or save:
            what = f"set = {settings[0]}" if settings else f"save = {save}"
            raise ValueError(
                f"{what}: must come with a plan; {experiment} holds what was charged, which nothing changes"
            )
        found = _ledgers(path, changes)
    else:
        found = _plans(experiment, settings or [], changes, save, quiet=as_json)
    if as_json:
        runs = [{"name": name, **_facts(one, charged)} for name, (one, charged) in found.items()]
        typer.echo(json.dumps({**runs[0], "runs": runs}))
        return
    for name, (one, charged) in found.items():
        say(f"{name}: {_say(one, charged)}" if len(found) > 1 or not charged else _say(one, charged))


def _plans(experiment: str, settings: list[str], changes: dict[str, Any], save: Path | None, *, quiet: bool) -> Found:
    """Every variant of an experiment."""
    from rqm._util.files import write_json
    from rqm.cli.waits import waiting
    from rqm.plan.account import per_parameter, planned_mean
    from rqm.plan.experiments import find
    from rqm.plan.guard import CERTIFICATE, certificate
    from rqm.plan.sweep import Sweep

    found: Found = {}
    certificates = []
    for name, plan in Sweep.from_toml(find(experiment), settings).variants.items():
        if not plan.mechanism.private:
            found[name] = None, {}
            continue
        with waiting(f"accounting for {name}", quiet=quiet, key=f"account {experiment} {name} {sorted(settings)}"):
            mean = planned_mean(plan, **changes)
            found[name] = per_parameter(mean.guarantee_of(None, plan.workload), mean, plan, changes.get("dim")), {}
            if save is not None:
                if mean.observer != "server" or mean.neighbours != "replace":
                    raise ValueError(
                        f"save = {save}: must come without --observer and --neighbours, as a guard charges"
                    )
                certificates.append(certificate(mean, name))
    if save is not None:
        write_json(save, {"certificates_format": CERTIFICATE, "certificates": certificates})
    return found


def _ledgers(path: Path, changes: dict[str, Any]) -> Found:
    """The ledger of a run, or all of a sweep's."""
    from rqm.plan.account import account_ledger
    from rqm.privacy.ledger import LEDGER

    inner = sorted(path.glob(f"*/*/{LEDGER}")) if path.is_dir() and not (path / LEDGER).exists() else []
    if not inner:
        return {path.name: account_ledger(path, **changes)}
    return {one.parent.relative_to(path).as_posix(): account_ledger(one, **changes) for one in inner}


def _facts(one: "Guarantee | None", charged: dict[str, Any]) -> dict[str, Any]:
    if one is None:
        return {"epsilon": 0.0 if charged else None, **charged}
    facts = {key: "inf" if value == inf else value for key, value in one.to_dict().items()}  # JSON has no infinity
    return {**facts, **charged}


def _say(one: "Guarantee | None", charged: dict[str, Any]) -> str:
    """A guarantee in words, and where its ledger ends."""
    if one is None:
        return "nothing has been charged yet: ε = 0" if charged else "no noise, no privacy"
    said = str(one) if one.unit == "record" else f"{one.sentence}.\n{one}"  # a record's is in its words
    if not charged:
        return said
    return (
        f"{said}\n  {many(charged['charges'], 'charge')} for {many(charged['rounds_charged'], 'round')}; "
        f"the ledger ends with {charged['head']}."
    )
