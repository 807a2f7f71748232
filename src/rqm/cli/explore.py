"""``rqm explore``: the interactive page."""

import json
import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rqm.cli.options import JsonOption


def command(
    out: Annotated[Path | None, typer.Option(help="Write the page to this file; else into the user's cache.")] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the default browser.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page that shows laws, privacy and error as parameters move, and open it.

    The page needs no network: it computes by itself.

    Examples:

        rqm explore

        rqm explore --out explorer.html --no-open
    """
    from rqm.report.explorer import build

    path = (out or _cache() / "explorer.html").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build(), encoding="utf-8")
    typer.echo(json.dumps({"page": str(path)}) if as_json else str(path))
    if open_ and not webbrowser.open(path.as_uri()):
        typer.echo("rqm: no browser could be started; open the file above", err=True)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rqm"
