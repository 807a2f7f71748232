"""``rqm report``: a run as a page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rqm.cli.options import DataOption, JsonOption


def command(
    run_dir: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or of a sweep; several are compared.", show_default=False)
    ],
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="The file; else report.html in the (first) folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained HTML file about a run: learning, privacy, bits, time, the model, and how to repeat it.

    Several runs, or the folder of a sweep, are compared. `rqm train` writes one at its end.

    Examples:

        rqm report runs/first

        rqm report runs/first runs/second --out compared.html
    """
    path = write(run_dir, out, data, quiet=as_json)
    typer.echo(json.dumps({"report": str(path)}) if as_json else str(path))


def write(folders: list[Path], out: Path | None = None, data: Path | None = None, *, quiet: bool = False) -> Path:
    """Build and save a report; return its path."""
    from rqm._util.files import write_atomically
    from rqm.cli.waits import waiting
    from rqm.report.page import build

    with waiting("writing the report", quiet=quiet, key=f"report of {len(folders)}"):
        text = build(folders, data)
    path = out or folders[0] / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path
