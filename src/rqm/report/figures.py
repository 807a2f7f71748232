"""The paper's privacy figures, drawn from their numbers (`rqm.report.paper`), which stand beside them as CSV."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd")
NAMES = {"rqm": "RQM", "pbm": "PBM"}


def save(rows: Rows, path: Path) -> Path:
    """Write the numbers of a figure as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def draw(table: Path) -> Path:
    """Draw the numbers that a CSV file holds, beside it."""
    with table.open(newline="") as file:
        rows = [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]
    painters = {"subsampling": _subsampling, "laws": _laws, "renyi": _renyi, "tradeoff": _tradeoff}
    kind = table.stem.partition("-")[0]
    if kind not in painters:
        raise ValueError(f"{table}: must be named after a figure ({', '.join(painters)})")
    png = table.with_suffix(".png")
    painters[kind](rows).savefig(png, dpi=150)
    return png


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def _canvas(columns: int = 1, width: float = 6.0, height: float = 4.2) -> "tuple[Canvas, list[Axes]]":
    canvas = Canvas(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = [canvas.add_subplot(1, columns, k + 1) for k in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return canvas, axes


def _subsampling(rows: Rows) -> Canvas:
    """Fig. 1a: one draw of the kept levels, and the two that x = c may be rounded to."""
    canvas, (ax,) = _canvas(width=9.0, height=2.8)
    x = rows[0]["clip"]
    for row in rows:
        value, chance = row["value"], row["probability_given_kept"]
        colour = COLOURS[0] if chance else "black" if row["kept"] else "0.6"
        ax.plot([value] * 2, [0, 1], color=colour, lw=2.2 if chance else 1.4, ls="-" if row["kept"] else ":")
        ax.text(value, -0.09, f"{row['level']:g}", ha="center", va="top", color=colour)
        if chance:
            arrow = {"arrowstyle": "->", "color": COLOURS[0], "connectionstyle": "arc3,rad=-0.25"}
            ax.annotate("", (value, 1.0), (x, 0.55), arrowprops=arrow)
            ax.text(value, 1.04, f"{chance:.3f}", ha="center", color=COLOURS[0])
    ax.plot([x], [0.5], "o", color=COLOURS[1], ms=9, zorder=3)
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text(x + 0.06, 0.4, "x = c", color=COLOURS[1], va="top", bbox=plain)
    ax.axvspan(-x, x, color=COLOURS[1], alpha=0.07, lw=0)
    ax.set_ylim(-0.3, 1.25)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(visible=False)
    ax.set_xlabel("value (shaded: the input range [-c, c]; solid: kept levels; dotted: dropped)")
    ax.set_title("RQM keeps some levels at random, then rounds x between its kept neighbours", fontsize=11)
    return canvas


def _laws(rows: Rows) -> Canvas:
    """Fig. 1b: the law of the output at x = c under both mechanisms."""
    canvas, (ax,) = _canvas()
    for k, (kind, name) in enumerate(NAMES.items()):
        law = [row[kind] for row in rows]
        ax.bar(np.arange(len(law)) + 0.4 * (k - 0.5), law, width=0.4, color=COLOURS[k], label=name)
    ax.set_xlabel("output level z")
    ax.set_ylabel("probability of z at x = c")
    ax.legend(frameon=False)
    return canvas


def _curve(ax: "Axes", rows: Rows, over: str, colour: str, label: str) -> None:
    """The paper's curve, and the worst case as a band from attained to certified."""
    rows = sorted(rows, key=lambda row: float(row[over]))
    ax.plot([row[over] for row in rows], [row["paper_random"] for row in rows], color=colour, lw=1.2, ls="--")
    known = [row for row in rows if row["certified"] != ""]
    at, low, high = ([row[key] for row in known] for key in (over, "attained", "certified"))
    ax.plot(at, high, color=colour, lw=1.6, marker="o", ms=3, label=label)
    ax.fill_between(at, low, high, color=colour, alpha=0.35, lw=0)


def _orders(ax: "Axes", rows: Rows, *, by_clients: bool) -> None:
    """D_α against α, a curve for each mechanism and number of clients."""
    rows = [row for row in rows if row["over"] == "alpha"]
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    counts = sorted({row["clients"] for row in rows}, reverse=True)
    for number, name in enumerate(names):
        for place, count in enumerate(counts):
            some = [row for row in rows if row["mechanism"] == name and row["clients"] == count]
            colour = COLOURS[number + (2 * place if by_clients else 0)]
            _curve(ax, some, "alpha", colour, f"{name}, n={count:g}")
    ax.set_xscale("log")
    _finish(ax, "order α", r"$D_\alpha$")


def _finish(ax: "Axes", x: str, order: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(f"Rényi divergence {order}, per coordinate")
    ax.set_yscale("log")
    ax.plot([], [], color="0.3", lw=1.2, ls="--", label="paper: others random at ±c")
    ax.plot([], [], color="0.3", lw=1.6, marker="o", ms=3, label="certified worst case (band: down to attained)")
    ax.legend(frameon=False, fontsize=8)


def _renyi(rows: Rows) -> Canvas:
    """Fig. 2: D₂ against n, D_α against α."""
    canvas, (left, right) = _canvas(columns=2)
    over_clients = [row for row in rows if row["over"] == "clients"]
    for number, name in enumerate(dict.fromkeys(row["mechanism"] for row in over_clients)):
        some = [row for row in over_clients if row["mechanism"] == name]
        _curve(left, some, "clients", COLOURS[number], name)
    _finish(left, "clients n", "$D_2$")
    _orders(right, rows, by_clients=True)
    canvas.suptitle("What one coordinate leaks in one round: the paper's curves and the worst case", fontsize=11)
    return canvas


def _tradeoff(rows: Rows) -> Canvas:
    """Fig. 3, right: D_α of three RQMs and PBM."""
    canvas, (ax,) = _canvas(width=7.0, height=4.8)
    _orders(ax, rows, by_clients=False)
    ax.set_title("What one coordinate leaks in one round among 40 clients", fontsize=11)
    return canvas
