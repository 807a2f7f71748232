"""``rqm figures``: the paper's privacy figures, with what is attained and certified beside them."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rqm._util.checks import nearest
from rqm._util.compiler import start_lean
from rqm.cli import names as completed
from rqm.cli.options import JsonOption
from rqm.cli.words import listing


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Which figures; all of them if none is named.",
            autocompletion=completed.figures,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the PNG and CSV files.")] = Path("out/figures"),
    show: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw the paper's privacy figures as PNG, each with its numbers as CSV.

    Examples:

        rqm figures --list

        rqm figures renyi-theta25 --out out/figures
    """
    start_lean()
    from rqm.cli.waits import waiting
    from rqm.report.figures import draw, save
    from rqm.report.paper import FIGURES

    if show and as_json:
        typer.echo(json.dumps({"figures": {name: figure.shows for name, figure in FIGURES.items()}}))
        return
    if show:
        listing({name: figure.shows for name, figure in FIGURES.items()})
        return
    for name in names or []:
        if name not in FIGURES:
            raise ValueError(f"NAME = {name}: must be among {', '.join(FIGURES)}{nearest(name, FIGURES)}")
    chosen, written = names or list(FIGURES), []
    with waiting("figures", sum(FIGURES[name].steps for name in chosen), quiet=as_json) as wait:
        for name in chosen:
            table = save(FIGURES[name].numbers(partial(wait.end, name)), out / f"{name}.csv")
            written += [draw(table), table]
    if as_json:
        typer.echo(json.dumps({"files": list(map(str, written))}))
        return
    for path in written:
        typer.echo(str(path))
