"""``python -m tools.few CURVES.json …`` draws accuracy against bits a parameter, and prints a table of each file.

The files are what sweeps of ``few-coordinates`` and ``few-coordinates-3400`` leave; the first variant, which sends all
coordinates, is what the others are compared with, seed by seed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rqm._util.numeric import mean_and_interval
from rqm.config.plan import Plan

Curves = dict[str, dict[str, Any]]


def bits_of(entry: dict[str, Any]) -> float:
    """Bits a parameter of a variant's masked vectors."""
    mean = Plan.from_dict(entry["plan"]).private_mean()
    return (mean.wire_bits or 32) * mean.coordinates / mean.dim


def table(curves: Curves) -> str:
    """Mean and 95 % interval of every variant, and of its difference from the first, seed by seed."""
    finals = {name: [100 * row[-1] for row in entry["accuracy"]] for name, entry in curves.items()}
    first = next(iter(finals.values()))
    lines = [
        "| | bits a parameter | seeds | test accuracy | minus all coordinates, same seed |",
        "|---|---|---|---|---|",
    ]
    for name, values in finals.items():
        (mean, half), both = mean_and_interval(values), [a - b for a, b in zip(values, first, strict=False)]
        gap, width = mean_and_interval(both)
        cell = "" if values is first else f"{gap:+.2f} ± {width:.2f} points"
        what = name.split(", 0.")[0].split(", 1")[0].split(", 7")[0]
        lines.append(f"| {what} | {bits_of(curves[name]):.3g} | {len(values)} | {mean:.2f} ± {half:.2f} % | {cell} |")
    return "\n".join(lines)


def draw(found: dict[str, Curves], path: Path) -> Path:
    """Accuracy at the end against bits a parameter, a line a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, curves) in enumerate(found.items()):
        bits = [bits_of(entry) for entry in curves.values()]
        ends = [mean_and_interval([100 * row[-1] for row in entry["accuracy"]]) for entry in curves.values()]
        means, halves = zip(*ends, strict=True)
        axes.errorbar(bits, means, halves, color=f"C{number}", marker="o", ms=4, lw=1, capsize=3, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("bits a parameter of a masked vector")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    _found = {Path(_name).stem: json.loads(Path(_name).read_text()) for _name in sys.argv[1:]}
    for _curves in _found.values():
        print(table(_curves) + "\n")
    print(draw(_found, Path(sys.argv[1]).with_name("few-coordinates.png")))
