"""``rqm init``: files to start from."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Where to write it; made if it is not there.")],
    policy: Annotated[
        bool, typer.Option("--policy", help="A node's own policy, which it holds against the server.")
    ] = False,
    trust_server: Annotated[
        bool,
        typer.Option(
            "--trust-server", help="With --policy: one that trusts the server with everything, for simulations."
        ),
    ] = False,
) -> None:
    """Write a file to start from: the policy of a node, with a line on each of its limits.

    Without a policy a node takes part in nothing. Its owner changes the file as he likes, and names it when he starts
    the SuperNode; without that, the node looks for policy.toml in $RQM_STATE (default ~/.local/state/rqm), where it
    keeps its own ledgers, too.

    Examples:

        rqm init --policy ~/.local/state/rqm

        rqm init --policy mine && flower-supernode … --node-config 'rqm-policy="mine/policy.toml"'
    """
    from rqm._util.files import write_atomically
    from rqm.plan.policy import POLICY, TEMPLATE, TRUSTING

    if not policy:
        raise ValueError("give --policy: what to begin")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / POLICY
    try:
        write_atomically(path, (TRUSTING if trust_server else TEMPLATE).encode(), new=True)
    except FileExistsError:
        raise ValueError(f"{path}: is there already, and is not overwritten") from None
    typer.echo(f"{path}: written{'' if trust_server else '; change it to what you allow'}")
