"""Training curves of several variants: accuracy and loss against rounds, with confidence bands over seeds."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rqm.federated.sweep import mean_and_interval


def draw(curves: dict[str, dict[str, Any]], path: Path) -> Path:
    """Draw the curves of ``sweep.curves`` into ``path``."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, key in zip(panels, ("accuracy", "loss"), strict=True):
        for name, entry in curves.items():
            mean, half = mean_and_interval(entry[key])
            (drawn,) = axes.plot(entry["round"], mean, label=name)
            if np.isfinite(half).all():
                axes.fill_between(entry["round"], mean - half, mean + half, alpha=0.2, color=drawn.get_color(), lw=0)
        axes.set_xlabel("round")
        axes.set_ylabel(f"test {key}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="lower right")
    seeds = {len(entry["accuracy"]) for entry in curves.values()}
    note = "one seed" if seeds == {1} else f"mean and 95 % interval over {min(seeds)} to {max(seeds)} seeds"
    figure.suptitle(note, fontsize=9, x=0.99, ha="right")
    figure.savefig(path, dpi=150)
    return path
