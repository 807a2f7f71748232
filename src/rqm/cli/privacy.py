"""``rqm privacy``: what one coordinate leaks in one round."""

import json
import math
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.compiler import start_lean
from rqm._util.words import many
from rqm.cli.options import JsonOption, Reports, or_counted_by
from rqm.cli.words import say
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.rappor import Rappor

if TYPE_CHECKING:
    from rqm import RenyiBound


class Others(StrEnum):
    """What the other clients send."""

    worst = "worst"
    balanced = "balanced"
    random = "random"


class Distribution(StrEnum):
    """Which distribution to account for."""

    paper = "paper"
    sampled = "sampled"


def count(rappor: Rappor, *, reports: int | None = None, as_json: bool = False) -> None:
    """What reports of RAPPOR tell of a value, and of who has it."""
    seen = 1 if reports is None else reports
    facts = {
        "mechanism": {"mechanism": rappor.kind, **asdict(rappor)},
        "reports": seen,
        "epsilon": rappor.epsilon(seen),
        "epsilon_one": rappor.epsilon_one,
        "epsilon_infinity": rappor.epsilon_infinity,
        "epsilon_change": rappor.epsilon_change(seen),
        "recovered": rappor.recovered(seen),
    }
    if as_json:
        typer.echo(
            json.dumps({key: _finite(value) if isinstance(value, float) else value for key, value in facts.items()})
        )
        return
    typer.echo(
        f"{many(seen, 'report')} of one value: ε = {facts['epsilon']:.6g}, pure, against anybody "
        f"(one {rappor.epsilon_one:.6g}, any number {rappor.epsilon_infinity:.6g})\n"
        f"whether a value was changed, after so many reports before and after: ε = {facts['epsilon_change']:.6g}\n"
        f"a bit of what is kept is guessed right in {100 * rappor.recovered(seen):.4g} % of all cases: it is a name"
    )


@or_counted_by(count)
def command(
    mech: Mechanism,
    *,
    clients: Annotated[int, typer.Option(help="n, the clients in the sum; 1 is local privacy.")] = 1,
    alpha: Annotated[float, typer.Option(help="The Rényi order: 1 is KL, inf is pure differential privacy.")] = 2.0,
    others: Annotated[
        Others, typer.Option(help="The other clients' inputs; only 'worst' gives a guarantee.")
    ] = Others.worst,
    seed: Annotated[int, typer.Option(help="Seed of --others random.")] = 0,
    distribution: Annotated[
        Distribution, typer.Option(help="The paper's pmf, or the integer table that is sampled in deployment.")
    ] = Distribution.paper,
    reports: Reports = None,
    as_json: JsonOption = False,
) -> None:
    """Rényi privacy of **one coordinate in one round**, attained and certified; of vqsgd, of a whole message.

    Examples:

        rqm privacy --margin 1.0 --keep 0.42 --clients 40 --alpha 2

        rqm privacy --mechanism pbm --theta 0.25 --clients 40 --alpha 2 --json

        rqm privacy --mechanism rounding --levels 2 --margin 20 --clients 100

        rqm privacy --mechanism discrete-gaussian --scale 2 --clients 40

        rqm privacy --mechanism rappor --hashes 2 --reports 10
    """
    start_lean()
    from rqm import renyi
    from rqm.cli.waits import waiting

    with waiting("searching and certifying", quiet=as_json, key=f"privacy {mech} {clients} {others}"):
        bound = renyi(mech.channel, alpha, clients, others.value, distribution=distribution.value, seed=seed)
    facts = describe(mech, bound, others.value)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(facts)


def describe(mech: Mechanism, bound: "RenyiBound", others: str) -> dict[str, Any]:
    """Everything there is to say about a bound, ready for JSON; of all integers of a message that can differ."""
    whole, channel = mech.whole is not None, mech.channel
    facts: dict[str, Any] = {
        "mechanism": mech.to_dict(),
        "alpha": _finite(bound.alpha),
        "clients": bound.clients,
        "neighboring": bound.neighboring,
        "threat_model": bound.threat_model,
        "per": "message and round" if whole else "coordinate and round",
        "distribution": bound.distribution,
        "others": others,
        "lower": _finite(mech.differing * bound.lower),
        "upper": _finite(mech.differing * bound.upper),
        "certified": bound.certified,
        "worst": {
            "x": bound.witness.x,
            "x_prime": bound.witness.x_prime,
            "others": [{"x": x, "clients": count} for x, count in bound.witness.other_inputs.items()],
        },
        "variance_max": None if whole else channel.variance_max / channel.clip**2,
        "bits": mech.bits,
    }
    if channel.theorem_bound is not None and bound.clients == 1:
        facts["theorem_bound"] = channel.theorem_bound
    return {**facts, "sentence": sentence(facts)}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"  # JSON has no infinity


def sentence(facts: dict[str, Any]) -> str:
    """What a bound means."""
    order = f"D_{facts['alpha']:g}" if isinstance(facts["alpha"], float) else "D_inf"
    if not facts["certified"]:
        return f"For these inputs {order} is {_number(facts['lower'])}; others may leak more: no guarantee."
    if facts["upper"] == "inf":
        return "Not private: some outcomes give a client's value away, whatever the others send."
    seen = "its message" if facts["clients"] == 1 else f"the sum over {facts['clients']:,} clients"
    return (
        f"Replacing one client's value changes the distribution of {seen} by {order} ≤ {_number(facts['upper'])} at "
        f"most, whatever all others send: proven, for one {facts['per'].replace(' and ', ' in one ')}."
    )


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    number = _number
    worst = facts["worst"]
    parameters = {k: v for k, v in facts["mechanism"].items() if k != "mechanism"}
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("mechanism", f"{facts['mechanism']['mechanism']}  {parameters}")
    table.add_row("adversary sees", facts["threat_model"] if facts["clients"] > 1 else "the client's message (local)")
    table.add_row("neighboring", f"{facts['neighboring']}, {facts['distribution']} distribution")
    what = "attained by some inputs" if facts["certified"] else f"these inputs ({facts['others']} others), ±clip"
    order = f"D_{number(facts['alpha'])}"
    table.add_row(f"[bold]{order}[/bold]", f"{number(facts['lower'])}   {what}")
    if facts["certified"]:
        table.add_row("", f"[bold]{number(facts['upper'])}[/bold]   certified for all inputs of everyone")
    else:
        table.add_row("", "not a guarantee: other inputs may leak more (use --others worst)")
    table.add_row("worst pair", f"x = {worst['x']:.6g}, x' = {worst['x_prime']:.6g} (in units of clip)")
    if worst["others"]:
        spread = ", ".join(f"{o['clients']} at {o['x']:.4g}" for o in worst["others"])
        table.add_row("others", spread)
    if "theorem_bound" in facts:
        table.add_row("Theorem 5.2", f"D_inf ≤ {facts['theorem_bound']:.6g}")
    if facts["variance_max"] is not None:
        table.add_row("variance, bits", f"≤ {facts['variance_max']:.4g} clip² a client, {many(facts['bits'], 'bit')}")
    console = Console()
    say(facts["sentence"], bold=True)
    console.print(table)
    of_all = "Of a whole message of any length, per round: no more of it can differ."
    of_one = "Per coordinate and per round. A model of d coordinates leaks up to d times as much each round."
    console.print(f"[dim]{of_one if facts['per'].startswith('coordinate') else of_all}[/dim]")
