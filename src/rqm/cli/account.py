"""``rqm account``: what a plan guarantees to every user, over the whole run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rqm.privacy.guarantee import Guarantee


def command(
    experiment: Annotated[
        str,
        typer.Argument(help="A shipped experiment (rqm experiments), a TOML file, a ledger or the folder of a run."),
    ],
    delta: Annotated[float | None, typer.Option(help="δ; by default one over the population, or 1e-5.")] = None,
    observer: Annotated[
        str, typer.Option(help="server (knows who takes part) or outsider (sees the models).")
    ] = "server",
    neighbours: Annotated[str, typer.Option(help="replace (one user by another) or zero-out.")] = "replace",
    honest: Annotated[
        str | None, typer.Option(help="Honest clients of a round (80), or the fraction of the population (0.8).")
    ] = None,
    population: Annotated[
        int | None, typer.Option(help="Users that clients are sampled from, for the outsider.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the plan.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Account for a whole training run: (ε, δ) for every user, certified, and beside it the value per coordinate.

    Examples:

        rqm account emnist-theta25

        rqm account plan.toml --delta 1e-6 --honest 0.8 --json
    """
    from rich.console import Console

    from rqm.experiments import find
    from rqm.federated.account import account
    from rqm.federated.sweep import Sweep
    from rqm.mechanisms.noiseless import Noiseless

    if Path(experiment).is_dir() or experiment.endswith(".jsonl"):
        _from_ledger(Path(experiment), as_json)
        return
    plans = Sweep.from_toml(find(experiment), settings or []).variants
    share = None if honest is None else float(honest) if "." in honest else int(honest)
    found: dict[str, Guarantee | None] = {}
    for name, plan in plans.items():
        users = population or plan.population
        chosen = delta if delta is not None else 1 / users if users else 1e-5
        if isinstance(plan.mechanism, Noiseless):
            found[name] = None
            continue
        facts: dict[str, Any] = {"observer": observer, "neighbours": neighbours, "honest": share}
        with Console(stderr=True).status(f"accounting for {name}"):
            found[name] = account(plan, chosen, population=population, **facts)
    if as_json:
        runs = [{"name": name, **(one.to_dict() if one else {"epsilon": None})} for name, one in found.items()]
        typer.echo(json.dumps({**runs[0], "runs": runs}))
        return
    for name, one in found.items():
        typer.echo(f"{name}: {say(one)}")


def _from_ledger(path: Path, as_json: bool) -> None:
    """What a ledger says was spent, whether or not the run has come to its end."""
    from rqm.federated.account import account_ledger

    one, charged = account_ledger(path)
    if one is None:
        typer.echo(json.dumps({"epsilon": 0.0, **charged}) if as_json else "nothing has been charged yet: ε = 0")
        return
    if as_json:
        typer.echo(json.dumps({**one.to_dict(), **charged}))
        return
    typer.echo(say(one))
    typer.echo(
        f"  {charged['charges']} charges for {charged['rounds_charged']} rounds; "
        f"the ledger ends with {charged['head']}."
    )


def say(one: "Guarantee | None") -> str:
    """A guarantee in words."""
    if one is None:
        return "no noise, no privacy"
    whom = {"server": "the server", "outsider": "an outsider who sees all models, but not who took part"}[one.observer]
    if one.trusted_server:
        whom = "whoever sees the noised sums but not the server's memory"
    what = {"replace": "replaced by another", "zero-out": "replaced by zero"}[one.neighbours]
    lines = [
        f"({one.epsilon:.4g}, {one.delta:.3g})-DP for every user against {whom}, certified;",
        f"  a user's vectors {what} in up to {one.participations:,} of {one.rounds:,} rounds,",
        f"  {one.honest:,} of {one.clients:,} clients of a round honest, {one.dim:,} coordinates (α = {one.order:g}).",
    ]
    if one.per_coordinate is not None:
        lines.append(f"  D₂ of one coordinate in one round: {one.per_coordinate:.4g}.")
    if one.noise_std_over_gaussian is not None:
        lines.append(
            f"  The noise is {one.noise_std_over_gaussian:.4f} times a trusted server's Gaussian at the same ε."
        )
    if one.epsilon > 100:
        lines.append("  An ε of this size protects nobody: clip in L2, rotate, and widen the margin (rqm.calibrate).")
    secagg = "" if one.bits_under_secagg is None else f", {one.bits_under_secagg} under secure aggregation"
    lines.append(f"  {one.bits_per_coordinate} bits a coordinate{secagg}.")
    return "\n".join(lines)
