"""``rqm figures``: the paper's privacy figures, with what is attained and certified beside them."""

from pathlib import Path
from typing import Annotated

import typer

from rqm._util.compiler import start_lean


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which figures; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the PNG and CSV files.")] = Path("out/figures"),
    show: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
) -> None:
    """Draw the paper's privacy figures as PNG, each with its numbers as CSV.

    Examples:

        rqm figures --list

        rqm figures renyi-theta25 --out out/figures
    """
    start_lean()
    from rqm.privacy.figures import FIGURES
    from rqm.report.figures import draw, save

    if show:
        for name, figure in FIGURES.items():
            typer.echo(f"{name:20}{figure.shows}")
        return
    for name in names or []:
        if name not in FIGURES:
            raise ValueError(f"NAME = {name}: must be among {', '.join(FIGURES)}")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        chosen = names or list(FIGURES)
        task = bar.add_task("figures", total=sum(FIGURES[name].steps for name in chosen))
        written = []
        for name in chosen:
            bar.update(task, description=name)
            table = save(FIGURES[name].numbers(lambda: bar.advance(task)), out / f"{name}.csv")
            written += [draw(table), table]
    for path in written:
        typer.echo(str(path))
