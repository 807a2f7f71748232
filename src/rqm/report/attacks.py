"""Pictures of attacks: what was rebuilt from gradients, and who is told to have taken part.

``python -m rqm.report.attacks FILE.json`` draws what ``rqm audit inversion`` or ``membership`` wrote, beside it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rqm._util.text import text_to_picture


def draw_inversion(found: dict[str, Any], path: Path) -> Path:
    """The pictures, one row each, with what was rebuilt from each kind of message, and the mean scores on top."""
    columns = found["pictures"]
    rows = len(columns["the picture"])
    figure = Figure(figsize=(1.55 * len(columns), 1.3 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, len(columns), squeeze=False)
    for column, (kind, pictures) in enumerate(columns.items()):
        for row, one in enumerate(pictures):
            axes = panels[row, column]
            axes.imshow(text_to_picture(one["picture"]), cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
            if "similarity" in one:
                axes.text(
                    27.5,
                    27,
                    f"{one['similarity']:.2f}",
                    color="#ffd166",
                    fontsize=7,
                    ha="right",
                    bbox={"facecolor": "black", "alpha": 0.75, "pad": 0.8, "linewidth": 0},
                )
        scores = found["kinds"].get(kind)
        panels[0, column].set_title(kind + (f"\n{_score(scores)}" if scores else "\n"), fontsize=8)
    figure.savefig(path, dpi=150)
    return path


def _score(scores: dict[str, Any]) -> str:
    spread = "" if scores["half_width"] is None else f" ± {scores['half_width']:.2f}"
    return f"{scores['similarity']:.2f}{spread}"


def draw_membership(found: dict[str, Any], path: Path) -> Path:
    """True against false positives, both in logarithms: what counts is the corner where few are accused wrongly."""
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, one in found.items():
        points = [(x, y) for x, y in zip(one["false_positives"], one["true_positives"], strict=True) if x > 0 and y > 0]
        said = f"{name}: {100 * one['found']:.1f} % at {100 * one['rate']:g} %, accuracy {100 * one['accuracy']:.0f} %"
        axes.plot(*zip(*points, strict=True), label=said)
    axes.plot([1e-4, 1], [1e-4, 1], color="0.5", ls=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.1))
    axes.set_xlabel("users wrongly said to have taken part")
    axes.set_ylabel("users rightly said to have taken part")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)
    return path


def draw(path: Path) -> Path:
    """Draw what a file holds, beside it."""
    found = json.loads(path.read_text())
    return (draw_inversion if "pictures" in found else draw_membership)(found, path.with_suffix(".png"))


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
