"""Training curves of several variants with confidence bands over seeds, and what each leaks.

``python -m rqm.report.curves CURVES.json [BASELINE]`` draws the file that a sweep leaves in its folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rqm._util.numeric import mean_and_interval
from rqm.registry import mechanism_from_dict


def draw(curves: dict[str, dict[str, Any]], path: Path, base: str | None = None) -> Path:
    """Draw the curves of ``sweep.save_curves`` into ``path``."""
    picture(curves, base).savefig(path, dpi=150)
    return path


def picture(curves: dict[str, dict[str, Any]], base: str | None = None) -> Figure:
    """The panels of a sweep's curves.

    Loss and accuracy; with several seeds, how far each variant is from ``base`` (else the first that sends floats,
    else the first), seed by seed: that can tell variants apart which the spread over seeds hides; and, where it was
    saved, what a coordinate of each leaks.
    """
    leaks = {name: entry["leak"] for name, entry in curves.items() if entry.get("leak")}
    seeds = min(len(entry["accuracy"]) for entry in curves.values())
    compared = seeds > 1 and len(curves) > 1
    count = 2 + bool(leaks) + compared
    rows, columns = (2, 2) if count == 4 else (1, count)
    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    panels = iter(figure.subplots(rows, columns).flat)
    styles = _styles(list(curves))
    for key in ("loss", "accuracy"):
        axes = _axes(next(panels), "round", f"test {key}")
        for name, entry in curves.items():
            _band(axes, entry["round"], entry[key], styles[name], name)
    handles, labels = axes.get_legend_handles_labels()
    if compared:
        base = base or _baseline(curves)
        axes = _axes(next(panels), "round", f"accuracy minus {base}, points")
        for name, entry in curves.items():
            if name != base:
                gap = np.array(entry["accuracy"])[:seeds] - np.array(curves[base]["accuracy"])[:seeds]
                _band(axes, entry["round"], 100 * gap, styles[name], name)
        axes.axhline(0, color="0.3", lw=0.8)
    if leaks:
        axes = _axes(next(panels), "order α", "Rényi divergence, per coordinate and round")
        for name, leak in leaks.items():
            axes.plot(leak["orders"], leak["certified"], color=styles[name][0], marker="o", ms=3)
            axes.plot(leak["orders"], leak["paper"], color=styles[name][0], ls="--", lw=1)
        axes.plot([], [], color="0.3", label="certified worst case")
        axes.plot([], [], color="0.3", ls="--", label="the paper's: others balanced at ±c")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=8)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * columns + 1), frameon=False)
    note = "one seed" if seeds == 1 else f"mean and 95 % interval over {seeds} seeds"
    figure.suptitle(note, fontsize=9, x=0.99, ha="right")
    return figure


def _axes(axes: Axes, x: str, y: str) -> Axes:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _styles(names: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and line of each variant: ``NAME, ε=...`` shares its colour with the others of that name."""
    families = list(dict.fromkeys(name.partition(", ε=")[0] for name in names))
    budgets = list(dict.fromkeys(name.partition(", ε=")[2] for name in names if ", ε=" in name))
    lines = {budget: (":", "--", "-", "-.")[number % 4] for number, budget in enumerate(budgets)}
    return {
        name: (f"C{families.index(family) % 10}", lines.get(budget, "-"))
        for name in names
        for family, _, budget in [name.partition(", ε=")]
    }


def _band(axes: Axes, rounds: list[int], values: Any, style: tuple[str, str], name: str) -> None:
    mean, half = mean_and_interval(values)
    colour, line = style
    axes.plot(rounds, mean, label=name, color=colour, ls=line, lw=1.4)
    if np.isfinite(half).all():
        axes.fill_between(rounds, mean - half, mean + half, alpha=0.15, color=colour, lw=0)


def _baseline(curves: dict[str, dict[str, Any]]) -> str:
    """The first that sends floats, else the first."""
    plans = {name: mechanism_from_dict(entry["plan"]["mechanism"]) for name, entry in curves.items()}
    return next((name for name, mech in plans.items() if not mech.has_integer_messages), next(iter(curves)))


if __name__ == "__main__":
    _source = Path(sys.argv[1])
    print(draw(json.loads(_source.read_text()), _source.with_suffix(".png"), *sys.argv[2:]))
