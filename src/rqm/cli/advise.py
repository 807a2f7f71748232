"""``rqm advise``: which mechanism for a budget of privacy and bits."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm.cli.options import (
    AdversaryOption,
    HonestClientsOption,
    HonestFractionOption,
    JsonOption,
    NeighboringOption,
    PopulationOption,
)

if TYPE_CHECKING:
    from rqm.advice.adviser import Advice, Progress


class Unit(StrEnum):
    """What is protected."""

    user = "user"
    record = "record"


LIMITS = [0.01 * 2**k for k in range(11)] + [32.0]
"""Bits a parameter between which the front of few coordinates is drawn."""

PureDelta = Annotated[
    float | None, typer.Option(help="δ; none: pure DP for one client's one coordinate, else 1e-5 or 1/N.")
]

BitsOption = Annotated[
    int | None, typer.Option(help="Bits that a client may send for a coordinate (4; 32 for two messages).")
]
MaxParticipations = Annotated[
    int | None, typer.Option(help="The most rounds that a user takes part in (1, or what the separation allows).")
]
MinSeparation = Annotated[
    int, typer.Option(help="Users take turns: the least rounds from a user's participation to the next.")
]
MaxBits = Annotated[float | None, typer.Option(help="Send only so many coordinates that masked vectors keep to this.")]
MeanLength = Annotated[
    float | None,
    typer.Option(help="How long the clients' mean is, in L2 clips (1); alone: as many coordinates as that needs."),
]
Plot = Annotated[Path | None, typer.Option(help="Draw error against ε (few coordinates: against bits) into this file.")]


def _of_users(unit: Unit) -> Unit:
    """Refuse records, which have their own way."""
    if unit is not Unit.user:
        raise ValueError(
            f"unit = {unit.value}: must be user; for records of silos rqm.calibrate_records finds the noise, and "
            "whether they are drawn in secret or taken in a fixed order"
        )
    return unit


UnitOption = Annotated[
    Unit, typer.Option(help="What is protected; for a record: rqm.calibrate_records.", callback=_of_users)
]


def command(
    clients: Annotated[int, typer.Option(help="n, clients in a round's sum; 1: everybody hides alone.")] = 1,
    dim: Annotated[int, typer.Option(help="d, coordinates of a client's vector (padded, if rotated).")] = 1,
    epsilon: Annotated[float | None, typer.Option(help="The ε to be kept.")] = None,
    noise: Annotated[float | None, typer.Option(help="Instead: the noise of the sum, in units of the L2 clip.")] = None,
    delta: PureDelta = None,
    bits: BitsOption = None,
    levels: Annotated[int | None, typer.Option(help="The same as the most outcomes: 16 is 4 bits.")] = None,
    population: PopulationOption = None,
    rounds: Annotated[int, typer.Option(help="T, rounds of training.")] = 1,
    max_participations: MaxParticipations = None,
    min_separation: MinSeparation = 1,
    honest_clients: HonestClientsOption = None,
    honest_fraction: HonestFractionOption = None,
    adversary: AdversaryOption = None,
    neighboring: NeighboringOption = None,
    l2_clip: Annotated[float, typer.Option(help="C, the L2 clip of a client's vector.")] = 1.0,
    max_bits_per_parameter: MaxBits = None,
    mean_length: MeanLength = None,
    unit: UnitOption = Unit.user,
    plot: Plot = None,
    as_json: JsonOption = False,
) -> None:
    """Rank the mechanisms that reach an ε within some bits, by their worst-case error.

    The error (`mse`) is that of one coordinate of the decoded mean, in units of clip²: the clip is 4 C / √d after a
    rotation, C for a single coordinate. With several rounds noise that cancels is ranked, too, and all of them by the
    noise in the models, over a trusted server's; its bits are those of both messages. Of few, their choice's is in it.

    Examples:

        rqm advise --clients 1000 --population 1000000 --rounds 250 --dim 1048576 --epsilon 10

        rqm advise --clients 100 --population 3400 --rounds 1500 --min-separation 34 --dim 1048576 --epsilon 10

        rqm advise --clients 1 --epsilon 5.4699 --levels 16 --json
    """
    from rqm.advice.adviser import advise

    few = {"max_bits_per_parameter": max_bits_per_parameter, "mean_length": mean_length}
    with _progress(quiet=as_json) as told:
        advice = advise(
            clients=clients,
            dim=dim,
            epsilon=epsilon,
            noise=noise,
            delta=delta,
            bits=bits,
            levels=levels,
            population=population,
            rounds=rounds,
            max_participations=max_participations,
            min_separation=min_separation,
            honest_clients=honest_clients,
            honest_fraction=honest_fraction,
            adversary=adversary or "server",
            neighboring=neighboring or "replace-one",
            l2_clip=l2_clip,
            **few,
            progress=told,
        )
    _told(advice, plot, as_json)


def _told(advice: "Advice", plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        _plot(advice, plot, quiet=as_json)
    _show(advice, plot, as_json)


def _plot(advice: "Advice", plot: Path, *, quiet: bool) -> None:
    from rqm.advice.adviser import pareto
    from rqm.advice.few import front
    from rqm.report.pareto import draw, draw_front

    centre = advice.request.epsilon or advice.best.epsilon
    if advice.best.coordinates is not None:
        with _progress(quiet) as told:
            draw_front(front(advice.request, LIMITS, told), plot)
        return
    with _progress(quiet) as told:
        asked = replace(advice.request, epsilon=centre, noise=None)
        lines = pareto(asked, [centre * 2**k for k in range(-3, 3)], told)
    draw(lines, plot)


@contextmanager
def _progress(quiet: bool) -> "Iterator[Progress]":
    from rqm.cli.waits import waiting

    with waiting("asking the mechanisms", quiet=quiet, key="advise") as wait:
        yield lambda name, number, count: wait.at(number, count, name)


def _show(advice: "Advice", plot: Path | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(advice.to_dict()))
        return
    from rich.console import Console
    from rich.table import Table

    from rqm.advice.adviser import measure

    best, value = advice.best, measure(advice.candidates, advice.request)
    cancels, few = any(one.noise for one in advice.candidates), best.coordinates is not None
    table = Table(box=None, padding=(0, 2, 0, 0))
    last: tuple[str, ...] = ("coordinates", "bits", "a parameter") if few else ("bits", "under secagg")
    heads = ("", "ε", "error, clip²", "noise of models" if cancels else "over the best", *last)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=number > 0)
    for place, one in enumerate(advice.candidates):
        under = "" if one.bits_under_secagg is None else str(one.bits_under_secagg)
        over = one.iterate_noise if cancels else value(one) / value(best)
        last = (str(one.bits_per_coordinate), under)
        if few:
            wire = 32 if one.wire_bits_per_parameter is None else one.wire_bits_per_parameter
            last = (f"{one.coordinates or advice.request.dim:,}", under or "32", f"{wire:.3g}")
        style = "bold" if place == 0 else ("dim" if one.trusted_server else "")
        table.add_row(
            one.name,
            f"{one.epsilon:.4g}",
            f"{one.mse:.4g}",
            f"{over:.4g}",
            *last,
            style=style,
        )
    console = Console()
    console.print(f"[bold]{best.name}[/bold]: {best.reason}.", highlight=False)
    console.print(table)
    for name, reason in advice.left_out.items():
        console.print(f"Not ranked, {name}: {reason}.", highlight=False)
    threat = advice.request.threat_model
    delta = "pure DP" if advice.request.pure else f"δ = {advice.request.delta:.3g}"
    console.print(
        f"[dim]Certified for every user, {delta}, {threat.neighboring}, against the {threat.adversary}.[/dim]"
    )
    fields = {key: value for key, value in best.mechanism.to_dict().items() if key != "rows"}
    fields |= {"coordinates": best.coordinates} if few else {}
    fields |= {} if best.noise is None else {"noise": best.noise.to_dict()}
    console.print(f"the best: {fields}", highlight=False)
    if plot is not None:
        typer.echo(str(plot))
