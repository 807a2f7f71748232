"""`rqm explore`: the interactive page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rqm.cli.formatting import Result


def command(
    out: Path | None = None,
    is_opened: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> Result:
    """Write one self-contained page that shows distributions, privacy and error as parameters change, and open it.

    The page needs no network and does all computations itself.

    Examples:

        rqm explore

        rqm explore --out explorer.html --no-open

    Args:
        out: The file to write; default in the user's cache.
        is_opened: Show the page in the default browser.
    """
    from rqm._util.files import cache_folder
    from rqm.report.explorer import build_explorer

    path = (out or cache_folder() / "explorer.html").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build_explorer(), encoding="utf-8")
    if is_opened and not webbrowser.open(path.as_uri()):
        typer.echo("rqm: no browser could be started; open the file yourself", err=True)
    return Result({"page": str(path)}, lines=[str(path)])
