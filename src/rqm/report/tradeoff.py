"""Accuracy at the end of training against a user's ε, for variants that are named ``MECHANISM, ε=NUMBER``.

``python -m rqm.report.tradeoff CURVES.json BASELINE`` draws the file that a sweep leaves in its folder, and prints a
table with the differences from the baseline, seed by seed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rqm._util.numeric import mean_and_interval

Finals = dict[str, dict[float | None, list[float]]]


def finals(curves: dict[str, dict[str, Any]]) -> Finals:
    """Accuracies at the end, in percent, one for each seed; by mechanism and ε (None for those without)."""
    found: Finals = {}
    for name, entry in curves.items():
        match = re.fullmatch(r"(.*), ε=([\d.]+)", name)
        mechanism, epsilon = (match[1], float(match[2])) if match else (name, None)
        found.setdefault(mechanism, {})[epsilon] = [100 * row[-1] for row in entry["accuracy"]]
    return found


def draw(curves: dict[str, dict[str, Any]], path: Path) -> Path:
    """Draw accuracy against ε, with 95 % confidence intervals over seeds."""
    found = finals(curves)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    epsilons = sorted({e for entry in found.values() for e in entry if e is not None})
    private = [name for name, entry in found.items() if None not in entry]
    for number, (name, entry) in enumerate(found.items()):
        colour = f"C{number}"
        if None in entry:
            mean, half = mean_and_interval(entry[None])
            axes.axhline(mean, color="0.4", ls="--", lw=1, label=name)
            axes.axhspan(mean - half, mean + half, color="0.4", alpha=0.12, lw=0)
            continue
        shift = 0.06 * (private.index(name) - (len(private) - 1) / 2)
        known = [e for e in epsilons if e in entry]
        means, halves = zip(*(mean_and_interval(entry[e]) for e in known), strict=True)
        places = [epsilons.index(e) + shift for e in known]
        axes.errorbar(places, means, halves, color=colour, marker="o", ms=4, lw=1, capsize=3, label=name)
    axes.set_xlim(-0.5, len(epsilons) - 0.5)
    axes.set_xticks(range(len(epsilons)), [f"{e:g}" for e in epsilons])
    axes.set_xlabel("a user's ε for the whole run")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3, axis="y")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path


def table(curves: dict[str, dict[str, Any]], baseline: str) -> str:
    """Mean and 95 % interval of every variant, and of its difference from the baseline at the same ε and seed."""
    found = finals(curves)
    if baseline not in found:
        raise ValueError(f"baseline = {baseline}: must be among {', '.join(found)}")
    lines = [f"| | ε | seeds | test accuracy | minus {baseline}, same seed |", "|---|---|---|---|---|"]
    for name, entry in found.items():
        for epsilon, values in sorted(entry.items(), key=lambda item: item[0] or 0.0):
            mean, half = mean_and_interval(values)
            cell, base = "", found[baseline].get(epsilon, [])
            both = [a - b for a, b in zip(values, base, strict=False)]
            if name != baseline and len(both) > 1:
                gap, width = mean_and_interval(both)
                cell = f"{gap:+.2f} ± {width:.2f} points"
            budget = "" if epsilon is None else f"{epsilon:g}"
            lines.append(f"| {name} | {budget} | {len(values)} | {mean:.2f} ± {half:.2f} % | {cell} |")
    return "\n".join(lines)


if __name__ == "__main__":
    _source = Path(sys.argv[1])
    _curves = json.loads(_source.read_text())
    print(table(_curves, sys.argv[2]))
    print(draw(_curves, _source.with_name(_source.stem + "-tradeoff.png")))
