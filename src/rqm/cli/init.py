"""`rqm init`: files to start from."""

from pathlib import Path

from rqm.cli.formatting import Result


def command(
    folder: Path,
    flower: bool = False,
    policy: bool = False,
    trust_server: bool = False,
) -> Result:
    """Write files to start from: a Flower app, or the policy of a node with a comment on each of its limits.

    The app trains a small model on synthetic data, with ε = 8 for a user against the server. It runs as it is. Put your
    model and data into app/task.py. An app of your own becomes private with `rqm flower check --write`.

    A node without a policy takes part in nothing. Its owner edits the file and names it when starting the SuperNode.
    Otherwise the node reads policy.toml in $RQM_STATE (default ~/.local/state/rqm), where it also stores its ledgers.

    Examples:

        rqm init --flower mine

        rqm init --policy ~/.local/state/rqm

        rqm init --policy mine && flower-supernode … --node-config 'rqm-policy="mine/policy.toml"'

    Args:
        folder: The folder to write to; created if it does not exist.
        flower: A Flower app that runs, with ε = 8 for a user against the server.
        policy: A policy: the limits that a node enforces against the server.
        trust_server: With --policy: one that trusts the server with everything, for simulations.
    """
    if flower == policy or (trust_server and not policy):
        raise ValueError("give --flower, or --policy (optionally with --trust-server): what to write")
    if flower:
        return _write_app(folder)
    path = _write_policy(folder, is_trusting=trust_server)
    advice = "" if trust_server else "; change it to what you allow"
    return Result({"files": [str(path)]}, lines=[f"{path}: written{advice}"])


def _write_policy(folder: Path, *, is_trusting: bool) -> Path:
    """Write the policy of a node."""
    from rqm.ledger.node_policy import POLICY, TEMPLATE, TRUSTING

    return _write_new(folder / POLICY, (TRUSTING if is_trusting else TEMPLATE).encode())


def _write_new(path: Path, data: bytes) -> Path:
    """Write a file that does not exist yet."""
    from rqm._util.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_atomically(path, data, new=True)
    except FileExistsError:
        raise ValueError(f"{path}: is there already, and is not overwritten") from None
    return path


def _write_app(folder: Path) -> Result:
    """Write the Flower app of the template."""
    import rqm

    template = Path(rqm.__file__).parent / "flower" / "template"
    sources = [path for path in sorted(template.rglob("*")) if path.suffix in (".py", ".toml", ".md")]
    files = {folder / path.relative_to(template): path for path in sources}
    for path in files:
        if path.exists():
            raise ValueError(f"{path}: is there already, and is not overwritten; rqm flower check looks at an app")
    written = [_write_new(path, source.read_bytes()) for path, source in files.items()]
    run = f"rqm flower simulate {folder} --nodes 50"
    text = f"{folder}: a Flower app for 50 nodes with ε = 8. Put your model and data into app/task.py. Simulate it:"
    return Result({"files": [str(path) for path in written], "command": run}, lines=[text, run])
