"""`rqm keys`: a node's identity, and the roster of a federation."""

from pathlib import Path
from typing import Annotated

import typer

from rqm._util.text import many
from rqm.cli.command import Command
from rqm.cli.formatting import Result

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A node's identity, and the roster of a federation: the public keys of the nodes that may take part.",
)


@app.command("new", cls=Command)
def new(folder: Annotated[Path | None, typer.Argument()] = None) -> Result:
    """Create the secret key of this node and print the public key, for the roster.

    Examples:

        rqm keys new

    Args:
        folder: The folder of the node's policy; default $RQM_STATE.
    """
    from rqm._util.files import state_folder
    from rqm.ledger.node_policy import IDENTITY
    from rqm.secagg import Identity

    path = (folder or state_folder()) / IDENTITY
    path.parent.mkdir(parents=True, exist_ok=True)
    public = Identity.new(path).public.hex()
    return Result({"public": public, "file": str(path)}, lines=[public])


@app.command("roster", cls=Command)
def roster(file: Path, add: Annotated[list[str] | None, typer.Argument()] = None) -> Result:
    """Add public keys to a roster, or start one, and print its hash, which all nodes compare.

    Examples:

        rqm keys roster roster.txt 3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29

    Args:
        file: The roster: a file with a public key on each line.
        add: Public keys to add, 64 hexadecimal digits each.
    """
    if not file.exists() and not add:
        raise FileNotFoundError(f"{file}: no such file; give the public keys of a new roster")
    lines = _read(file) if file.exists() else []
    return _write(file, lines + (add or []))


@app.command("rotate", cls=Command)
def rotate(file: Path, old: str, new: str) -> Result:
    """Replace a node's public key by its new one. Every node then needs the new roster.

    Examples:

        rqm keys rotate roster.txt OLD NEW

    Args:
        file: The roster: a file with a public key on each line.
        old: The public key to remove.
        new: The public key to put in its place.
    """
    lines = _read(file)
    for number, line in enumerate(lines):
        if line.split("#", 1)[0].strip() == old:
            lines[number] = line.replace(old, new, 1)
            break
    else:
        raise ValueError(f"{file}: does not hold the key {old}")
    return _write(file, lines)


def _read(file: Path) -> list[str]:
    """The lines of a roster."""
    from rqm._util.files import read_bytes

    try:
        return read_bytes(file).decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is no text: must be a roster, a public key on each line") from None


def _write(file: Path, lines: list[str]) -> Result:
    """Validate a roster and write it."""
    from rqm._util.files import write_atomically
    from rqm.secagg import Roster

    text = "\n".join(lines)
    try:
        parsed = Roster.parse(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    write_atomically(file, f"{text}\n".encode())
    facts = {"keys": len(parsed.keys), "hash": parsed.hash.hex()}
    return Result(facts, lines=[f"{many(len(parsed.keys), 'key')}, hash {parsed.hash.hex()}"])
