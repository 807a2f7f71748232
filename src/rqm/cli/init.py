"""``rqm init``: files to start from."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rqm.cli.options import JsonOption


def command(
    folder: Annotated[Path, typer.Argument(help="Where to write it; made if it is not there.")],
    flower: Annotated[
        bool, typer.Option("--flower", help="A Flower app that runs, with a user's ε = 8 against the server.")
    ] = False,
    policy: Annotated[
        bool, typer.Option("--policy", help="A node's own policy, which it holds against the server.")
    ] = False,
    trust_server: Annotated[
        bool,
        typer.Option(
            "--trust-server", help="With --policy: one that trusts the server with everything, for simulations."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write files to start from: a Flower app, or the policy of a node, with a line on each of its limits.

    The app trains a small model on made-up data, with a user's ε = 8 against the server, and runs at once; your model
    and data go into app/task.py.

    Without a policy a node takes part in nothing. Its owner changes the file as he likes, and names it when he starts
    the SuperNode; without that, the node looks for policy.toml in $RQM_STATE (default ~/.local/state/rqm), where it
    keeps its own ledgers, too.

    Examples:

        rqm init --flower mine

        rqm init --policy ~/.local/state/rqm

        rqm init --policy mine && flower-supernode … --node-config 'rqm-policy="mine/policy.toml"'
    """
    if flower == policy or (trust_server and not policy):
        raise ValueError("give --flower, or --policy (with --trust-server or without): what to begin")
    if flower:
        _flower(folder, as_json)
        return
    path = _policy(folder, trusting=trust_server)
    words = f"{path}: written{'' if trust_server else '; change it to what you allow'}"
    typer.echo(json.dumps({"files": [str(path)]}) if as_json else words)


def _policy(folder: Path, *, trusting: bool) -> Path:
    from rqm.plan.policy import POLICY, TEMPLATE, TRUSTING

    return _new(folder / POLICY, (TRUSTING if trusting else TEMPLATE).encode())


def _new(path: Path, data: bytes) -> Path:
    """Write a file that is not there yet."""
    from rqm._util.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_atomically(path, data, new=True)
    except FileExistsError:
        raise ValueError(f"{path}: is there already, and is not overwritten") from None
    return path


def _flower(folder: Path, as_json: bool) -> None:
    """The app of the package's template, and a policy for those who simulate it."""
    import rqm

    template = Path(rqm.__file__).parent / "flower" / "template"
    files = [path for path in sorted(template.rglob("*")) if path.suffix in (".py", ".toml")]
    for there in (folder / path.relative_to(template) for path in files):
        if there.exists():
            raise ValueError(f"{there}: is there already, and is not overwritten")
    written = [_new(folder / path.relative_to(template), path.read_bytes()) for path in files]
    written.append(_policy(folder / "simulated", trusting=True))
    command = (
        f"RQM_STATE={folder.absolute()}/simulated FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run {folder} "
        "local --stream --federation-config 'num-supernodes=50 client-resources-num-cpus=1'"
    )
    if as_json:
        typer.echo(json.dumps({"files": list(map(str, written)), "command": command}))
        return
    typer.echo(
        f"{folder}: a Flower app for fifty nodes with ε = 8; your model and data go into app/task.py. Simulate it:"
    )
    typer.echo(command)
