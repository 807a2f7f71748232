"""A bar chart of a benchmark: one bar for each contender, on a logarithmic scale where they lie far apart."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks import Result

OURS, PEER = "#1b6ca8", "#b8bec6"


def draw(result: Result, path: Path) -> Path:
    """Draw the rates of all contenders into ``path``, ours in blue, the fastest on top."""
    names = sorted(result.entries, key=lambda name: result.entries[name].rate)
    rates = [result.shown(name) for name in names]
    others = {*result.peers, *(name for name in names if name.startswith(("copy", "plain", "pfl", "Flower")))}
    figure = Figure(figsize=(9, 0.8 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, rates, color=[PEER if name in others else OURS for name in names])
    for row, rate in enumerate(rates):
        axes.annotate(f" {rate:,.0f}" if rate >= 100 else f" {rate:.2g}", (rate, row), va="center", fontsize=9)
    if max(rates) > 20 * min(rates):
        axes.set_xscale("log")
        axes.set_xlim(min(rates) / 2, max(rates) * 4)
    else:
        axes.set_xlim(0, max(rates) * 1.15)
    axes.set_xlabel(result.unit)
    axes.set_title(f"rqm bench {result.name}: {result.machine}", fontsize=9, loc="right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path
