"""``rqm bench``: how many times faster than a peer, measured in the same run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm.cli import names
from rqm.cli.words import listing, say

if TYPE_CHECKING:
    from benchmarks import Result

ROOT = Path(__file__).parents[3]
"""Of a clone: benchmarks and their peers come with the source, not with the package."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="Which benchmark; none prints their names.", autocompletion=names.benchmarks),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the JSON file and the bar chart.")] = Path("out/bench"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, write nothing.")] = False,
) -> None:
    """Run a benchmark and print its ratio to each peer.

    Examples:

        rqm bench encode

        rqm bench divergence --json
    """
    listed = known()
    if name is None:
        if as_json:
            typer.echo(json.dumps({"benchmarks": listed}))
            return
        say("Each measures us and our peers in turns, in the same run: rqm bench NAME.")
        listing(listed)
        return
    from benchmarks import run
    from rqm.cli.waits import waiting

    with waiting(f"measuring {name}, all contenders in turns", quiet=as_json, key=f"bench {name}"):
        result = run(name)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    _show(result)
    for path in result.save(out):
        typer.echo(str(path))


def known() -> dict[str, str]:
    """What each benchmark measures, where they are."""
    if not (ROOT / "benchmarks" / "__init__.py").exists():
        raise ValueError("benchmarks come with the source; run it in a clone of the repository (make setup)")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks import BENCHMARKS

    return dict(BENCHMARKS)


def _sentence(result: "Result") -> str:
    """How we compare, in one sentence."""
    if not result.peers:
        return f"{result.name}: no peer was measured."
    nearest = min(result.peers, key=result.ratios.__getitem__)
    ratio = result.ratios[nearest]
    beside = f"{nearest}, the nearest peer" if len(result.peers) > 1 else nearest
    faster = f"{ratio:.3g} times as fast as" if ratio >= 1 else f"{1 / ratio:.3g} times slower than"
    return f"{result.ours} is {faster} {beside}, in this run."


def _show(result: "Result") -> None:
    from rich.console import Console
    from rich.table import Table

    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    table = Table(title=f"{result.name}: {result.machine}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column(result.unit, justify="right")
    table.add_column(f"{result.ours} is", justify="right")
    for name in sorted(result.entries, key=result.shown, reverse=True):
        faster = f"{number(result.ratios[name])} × faster" if name in result.ratios else ""
        table.add_row(name, number(result.shown(name)), faster)
    console = Console()
    say(_sentence(result), bold=True)
    console.print(table)
    for what, check in result.checks.items():
        word = "reached" if check["measured"] >= check["wanted"] else "NOT reached"
        console.print(f"{what}: {check['measured']:.3g} (aim {check['wanted']:.3g}, {word})", highlight=False)
    for note in result.notes:
        console.print(f"[dim]{note}[/dim]")
