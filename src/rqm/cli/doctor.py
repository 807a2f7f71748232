"""``rqm doctor``: is everything here, and does it work?"""

import json
from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Look at the environment, the optional parts, the GPU, the source of entropy and the encoder, in seconds.

    Exit code 1 if something that is installed does not work. Example:

        rqm doctor
    """
    from rqm.doctor import examine

    found = examine()
    good = all(one.state != "broken" for one in found)
    if as_json:
        typer.echo(json.dumps({"good": good, "checks": [one.to_dict() for one in found]}))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        colours = {"good": "green", "missing": "yellow", "broken": "bold red"}
        for one in found:
            table.add_row(f"[{colours[one.state]}]{one.state}[/]", escape(one.name), escape(one.facts))
        Console().print(table)
    if not good:
        raise typer.Exit(1)
