"""`rqm figures`: the paper's privacy figures, with the attained and certified values."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rqm._util.checks import one_of
from rqm._util.imports import start_lean
from rqm.cli import completion
from rqm.cli.formatting import Result
from rqm.cli.progress import progress


def command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", autocompletion=completion.figures)] = None,
    out: Path = Path("out/figures"),
    is_list: Annotated[bool, typer.Option("--list")] = False,
) -> Result:
    """Draw the paper's privacy figures as PNG, each with its numbers as CSV.

    Examples:

        rqm figures --list

        rqm figures renyi-theta25 --out out/figures

    Args:
        names: The figures; without one, all are drawn.
        out: Folder for the PNG and CSV files.
        is_list: Print the names and stop.
    """
    start_lean()
    from rqm.report.paper_figures import PAPER_FIGURES, save_csv
    from rqm.report.plots import save

    if is_list:
        subjects = {name: figure.description for name, figure in PAPER_FIGURES.items()}
        return Result({"figures": subjects}, rows=list(subjects.items()))
    names = names or list(PAPER_FIGURES)
    for name in names:
        one_of("NAME", name, PAPER_FIGURES)
    files: list[str] = []
    with progress("figures", sum(PAPER_FIGURES[name].steps for name in names)) as bar:
        for name in names:
            rows = PAPER_FIGURES[name].compute(partial(bar.end, name))
            files.append(str(save(PAPER_FIGURES[name].plot(rows), out / f"{name}.png")))
            files.append(str(save_csv(rows, out / f"{name}.csv")))
    return Result({"files": files}, lines=files)
