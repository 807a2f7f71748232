"""`rqm flower`: make an existing Flower app private, and simulate it."""

from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm.cli.command import Command
from rqm.cli.formatting import Result

if TYPE_CHECKING:
    from rqm.flower.app_check import AppCheck

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Make Flower apps private, and simulate them."
)


@app.command(cls=Command)
def check(
    folder: Path,
    epsilon: float = 8.0,
    clients: int | None = None,
    is_written: Annotated[bool, typer.Option("--write")] = False,
) -> Result:
    """Say what would happen if an existing Flower app were made private, and write the lines that make it so.

    The app's server code runs up to the start of its strategy. Nothing is sent or trained. With --write the lines are
    added: PrivateClientApp, rqm.flower.private and a table of settings.

    Examples:

        rqm flower check my-app

        rqm flower check my-app --epsilon 3 --clients 100 --write

    Args:
        folder: The folder of the app, with its pyproject.toml.
        epsilon: ε for each node over all rounds, where the app has no table of settings.
        clients: Nodes in a round, where the app has no table of settings; default 10.
        is_written: Add the lines to the app's files.
    """
    from rqm._util.files import write_atomically
    from rqm.flower.app_check import check_app

    result = check_app(folder, clients=clients, epsilon=epsilon)
    lines = [f"{path}: would change; write it with --write" for path in result.edits]
    if is_written and result.edits:
        for path, text in result.edits.items():
            write_atomically(path, text.encode())
        lines = [f"{path}: written" for path in result.edits]
    notes = [f"Problem: {problem}" for problem in result.problems] + [f"Note: {change}" for change in result.changes]
    facts: dict[str, object] = {
        "strategy": result.strategy,
        "arrays": [dict(zip(("name", "shape", "dtype", "role"), row, strict=True)) for row in result.arrays],
        "problems": result.problems,
        "changes": result.changes,
        "files": [str(path) for path in result.edits],
    }
    if result.plan is None:
        sentence = f"{folder}: cannot run privately yet."
    else:
        guarantee = result.plan.mean.guarantee()
        facts |= {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "noise_over_clip": result.plan.noise_over_clip,
        }
        is_private_now = is_written or not result.edits
        sentence = "" if is_private_now else "Not private yet. With the changes: "
        sentence += f"{result.strategy}, {result.plan.layout.size} trained values: {guarantee.headline}."
        notes[:0] = _noise_notes(result)
        unit = guarantee.threat_model.unit
        notes += [f"It assumes that {assumption.text(unit)}." for assumption in guarantee.assumptions]
    rows = [row for row in result.arrays if len(result.arrays) <= 20 or row[3] != "trained"]
    return Result(
        facts,
        sentence,
        rows,
        ("array", "shape", "dtype", "in a private run"),
        notes,
        lines,
        1 if result.problems else 0,
    )


def _noise_notes(result: "AppCheck") -> list[str]:
    """How large the noise is beside what it hides, with a verdict."""
    assert result.plan is not None
    noise = result.plan.noise_over_clip
    notes = [f"Noise in a round's mean update: {noise:.3g} times the clip of an update."]
    if noise > 1:
        notes.append(
            "That is too much for most models to learn. It falls with more clients, fewer trained values and a larger "
            "epsilon. Where few nodes hold many records each, protect records instead of nodes (docs/silos.md)."
        )
    noise_std = sqrt(result.plan.mean.expected_error(0.0))
    deviations, _ = result.plan.layout.extra_noise(noise_std, result.plan.min_survivors)
    notes += [
        f"Noise of {metric.name} in a round: ± {deviation:.2g}, of values from {metric.low:g} to {metric.high:g}."
        for metric, deviation in deviations.items()
    ]
    return notes


@app.command(cls=Command)
def simulate(folder: Path, nodes: int = 10, run_config: Annotated[str, typer.Option("--run-config")] = "") -> Result:
    """Run a private app in Flower's simulation, with nodes that trust the server.

    A SuperLink of its own is started and stopped, whatever else runs on this machine. Ledgers are kept apart from those
    of real federations.

    Examples:

        rqm flower simulate my-app --nodes 50

        rqm flower simulate my-app --run-config 'num-server-rounds=2'

    Args:
        folder: The folder of the app.
        nodes: Number of simulated nodes.
        run_config: Changes of the app's configuration, as flwr run takes them: only of keys that it has.
    """
    from rqm.flower.simulated_federation import simulate as run

    code = run(folder, nodes, run_config)
    return Result({"exit_code": code}, exit_code=code)


@app.command("reset-simulated", cls=Command)
def reset_simulated(federation: str) -> Result:
    """Delete the ledgers of a federation in which only simulated nodes took part.

    Examples:

        rqm flower reset-simulated you.my-app

    Args:
        federation: Its name; by default a federation is named by its app's publisher and name.
    """
    from rqm.flower.federation_folder import reset_simulated as reset

    path = reset(federation)
    return Result({"deleted": str(path)}, lines=[f"{path}: deleted"])
