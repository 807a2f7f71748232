"""``rqm keys``: a node's identity, and the roster of a federation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rqm._util.words import many
from rqm.cli.options import JsonOption

app = typer.Typer(
    no_args_is_help=True,
    help="A node's identity, and the roster of a federation: who may take part, by their public keys.",
)
RosterFile = Annotated[Path, typer.Argument(help="The file of the roster: a public key on each line.")]


@app.command("new")
def new(
    folder: Annotated[Path | None, typer.Argument(help="Where the node's policy is; default $RQM_STATE.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the secret key of this node, once, and print the public one, for the roster.

    Examples:

        rqm keys new
    """
    from rqm._util.disk import state_folder
    from rqm.plan.policy import IDENTITY
    from rqm.secagg import Identity

    path = (folder or state_folder()) / IDENTITY
    path.parent.mkdir(parents=True, exist_ok=True)
    public = Identity.new(path).public.hex()
    typer.echo(json.dumps({"public": public, "file": str(path)}) if as_json else public)


@app.command("roster")
def roster(
    file: RosterFile,
    add: Annotated[list[str] | None, typer.Argument(help="Public keys to add, 64 hexadecimal digits each.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Add public keys to a roster, or begin one; print its hash, by which all compare theirs.

    Examples:

        rqm keys roster roster.txt 3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29
    """
    if not file.exists() and not add:
        raise FileNotFoundError(f"{file}: no such file; give the public keys that it is to begin with")
    _write(file, [*(_lines(file) if file.exists() else []), *(add or [])], as_json)


@app.command("rotate")
def rotate(
    file: RosterFile,
    old: Annotated[str, typer.Argument(help="The public key that goes.")],
    new: Annotated[str, typer.Argument(help="The public key that comes.")],
    as_json: JsonOption = False,
) -> None:
    """Put a node's new public key into the place of its old one; every node needs the new roster.

    Examples:

        rqm keys rotate roster.txt OLD NEW
    """
    lines = _lines(file)
    places = [number for number, line in enumerate(lines) if line.split("#", 1)[0].strip() == old]
    if not places:
        raise ValueError(f"{file}: does not hold the key {old}")
    lines[places[0]] = lines[places[0]].replace(old, new, 1)
    _write(file, lines, as_json)


def _lines(file: Path) -> list[str]:
    """What is in a file that should be a roster."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is no text: must be a roster, a public key on each line") from None


def _write(file: Path, lines: list[str], as_json: bool) -> None:
    """Write a roster, if it is one."""
    from rqm._util.files import write_atomically
    from rqm.secagg import Roster

    try:
        found = Roster.parse("\n".join(lines))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    write_atomically(file, ("\n".join(lines) + "\n").encode())
    facts = {"keys": len(found.keys), "hash": found.hash.hex()}
    typer.echo(json.dumps(facts) if as_json else f"{many(len(found.keys), 'key')}, hash {found.hash.hex()}")
