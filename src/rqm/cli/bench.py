"""`rqm bench`: how many times faster rqm is than a peer, measured in the same run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm.cli import completion
from rqm.cli.formatting import Result
from rqm.cli.progress import progress

if TYPE_CHECKING:
    import benchmarks

ROOT = Path(__file__).parents[3]
"""The folder of a clone. The benchmarks come with the source, not with the installed package."""


def command(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(autocompletion=completion.benchmarks)] = None,
    out: Path = Path("out/bench"),
) -> Result:
    """Run a benchmark and print its ratio to each peer. With --json no file is written.

    Examples:

        rqm bench encode

        rqm bench divergence --json

    Args:
        name: The benchmark; without one, all are listed.
        out: Folder for the JSON file and the bar chart.
    """
    subjects = list_benchmarks()
    if name is None:
        sentence = "Each benchmark measures rqm and its peers in turns, in the same run: rqm bench NAME."
        return Result({"benchmarks": subjects}, sentence, list(subjects.items()))
    from benchmarks import run

    with progress(f"measuring {name}"):
        result = run(name)
    return _result(result, [] if ctx.params["as_json"] else result.save(out))


def list_benchmarks() -> dict[str, str]:
    """What each benchmark measures, by name."""
    if not (ROOT / "benchmarks" / "__init__.py").exists():
        raise ValueError("benchmarks come with the source; run it in a clone of the repository (make setup)")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks import BENCHMARKS

    return dict(BENCHMARKS)


def _result(measured: "benchmarks.Result", files: list[Path]) -> Result:
    """How rqm compares with the peers."""
    rows = []
    for name in sorted(measured.entries, key=measured.shown, reverse=True):
        ratio = f"{_number(measured.ratios[name])} × faster" if name in measured.ratios else ""
        rows.append((name, _number(measured.shown(name)), ratio))
    notes = [f"machine: {measured.machine}"]
    for ratio, check in measured.checks.items():
        notes.append(f"{ratio}: {check['measured']:.3g} (aim {check['wanted']:.3g})")
    notes += measured.notes
    heads = ("", measured.unit, f"{measured.ours} is")
    return Result(measured.to_dict(), _sentence(measured), rows, heads, notes, [str(file) for file in files])


def _sentence(measured: "benchmarks.Result") -> str:
    """How rqm compares with the fastest peer."""
    if not measured.peers:
        return f"{measured.name}: no peer was measured."
    nearest = min(measured.peers, key=measured.ratios.__getitem__)
    return f"{measured.ours} is {measured.ratios[nearest]:.3g} times as fast as {nearest}, the fastest peer."


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
