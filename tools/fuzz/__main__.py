"""Give everything that reads what others wrote a million bad inputs: ``python -m tools.fuzz --count 1000000``.

Each target runs in processes of its own, two at a time. A finding is whatever is raised that is not an error of the
library's, an input that takes too long, too much memory, or a process that dies. It is printed with the words that
repeat it, and the command ends with 1.
"""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tools.fuzz.runner import MODULES, Tally, planned, run, targets


def shown(tallies: dict[tuple[str, str], Tally], seconds: float) -> Table:
    """What came of it, target by target."""
    table = Table("target", "inputs", "refused", "a second", "peak", box=None, padding=(0, 2, 0, 0))
    for (_, name), one in tallies.items():
        rate, share = one.done / max(one.seconds, 1e-9), one.refused / max(one.done, 1)
        table.add_row(name, f"{one.done:,}", f"{share:.1%}", f"{rate:,.0f}", f"{one.peak} MB")
    done = sum(one.done for one in tallies.values())
    table.add_row("all", f"{done:,}", "", f"{done / seconds:,.0f}", f"{max(one.peak for one in tallies.values())} MB")
    return table


def main(arguments: list[str] | None = None) -> int:
    """Attack, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop, done or not")
    parser.add_argument("--target", help="one target alone")
    parser.add_argument("--only", type=int, help="one input of that target, in this process")
    given = parser.parse_args(arguments)
    if given.only is not None:
        return repeat(given.target, given.seed, given.only)
    start, tallies = time.monotonic(), planned(given.count, given.target)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=sum(one.wanted for one in tallies.values()))

        def progress(done: int, name: str, findings: int) -> None:
            bar.update(task, advance=done, description=f"{name}, {findings} findings")

        run(tallies, given.seed, start + 60 * given.minutes, progress)
    findings = [text for one in tallies.values() for text in one.findings]
    for text in findings:
        print(text + "\n")
    Console().print(shown(tallies, time.monotonic() - start))
    print(f"{len(findings)} findings, seed {given.seed}, {(time.monotonic() - start) / 60:.1f} minutes")
    return 1 if findings else 0


def repeat(name: str, seed: int, number: int) -> int:
    """One input again, with all that it raises."""
    from tools.fuzz.target import attack  # noqa: PLC0415

    for module in MODULES:
        for kind in targets(module):
            if kind.name == name:
                with tempfile.TemporaryDirectory() as folder:
                    _, error = attack(kind(Path(folder)), seed, number)
                if error is not None:
                    traceback.print_exception(error)
                print("nothing is wrong" if error is None else "a finding")
                return 0 if error is None else 1
    raise SystemExit(f"--target {name}: is none of the targets")


if __name__ == "__main__":
    sys.exit(main())
