"""The paper's privacy figures. Every curve of the paper comes with the attained and certified worst case."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rqm.channel import Channel
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.privacy.worst_case import Bound, renyi

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Step = Callable[[], None]
Rows = list[dict[str, Any]]

CLIENTS = (1, 2, 3, 5, 8, 12, 16, 20, 25, 30, 40, 50)
ORDERS = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 300, 1000)
SEED = 0
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd")

# PBM's θ, and the paper's (Δ/c, q) for RQM beside it: the first of each also stands in the figures of D_α.
PAPER = {
    "25": (0.25, ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33))),
    "15": (0.15, ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23))),
    "35": (0.35, ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37))),
}


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn by name."""

    shows: str
    steps: int
    paint: Callable[[Step], "tuple[Canvas, Rows]"]


def draw(name: str, folder: Path, step: Step = lambda: None) -> list[Path]:
    """Draw a figure into ``folder``; return the PNG and the CSV beside it."""
    canvas, rows = FIGURES[name].paint(step)
    folder.mkdir(parents=True, exist_ok=True)
    png, table = folder / f"{name}.png", folder / f"{name}.csv"
    canvas.savefig(png, dpi=150)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return [png, table]


def _canvas(columns: int = 1, width: float = 6.0, height: float = 4.2) -> "tuple[Canvas, list[Axes]]":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (an extra)
        from matplotlib.figure import Figure as MatplotlibFigure  # noqa: PLC0415
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'rqm[report]'") from None
    canvas = MatplotlibFigure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = [canvas.add_subplot(1, columns, k + 1) for k in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return canvas, axes


def _label(mech: Channel) -> str:
    if isinstance(mech, RQM):
        margin = "" if mech.margin == 1 else f"{mech.margin:g}"
        return f"RQM Δ={margin}c, q={mech.keep:g}"
    assert isinstance(mech, PBM)
    return f"PBM θ={mech.theta:g}"


# -- figure 1: how RQM works ----------------------------------------------------------------------

KEPT = (0, 3, 4, 7, 9, 10, 14, 15)  # the paper's example


def _subsampling(step: Step) -> "tuple[Canvas, Rows]":
    """Fig. 1a: one draw of the kept levels, and the two that x = c may be rounded to."""
    mech = RQM(clip=1.5)
    canvas, (ax,) = _canvas(width=9.0, height=2.8)
    values, x = mech.grid.values, mech.clip
    below = max(i for i in KEPT if values[i] <= x)
    above = min(i for i in KEPT if values[i] > x)
    up = (x - values[below]) / (values[above] - values[below])
    rows: Rows = []
    for i, value in enumerate(values):
        kept = i in KEPT
        bracket = i in (below, above)
        colour = COLOURS[0] if bracket else "black" if kept else "0.6"
        ax.plot([value] * 2, [0, 1], color=colour, lw=2.2 if bracket else 1.4, ls="-" if kept else ":")
        ax.text(value, -0.09, str(i), ha="center", va="top", color=colour)
        chance = up if i == above else 1 - up if i == below else 0.0
        rows.append({"level": i, "value": value, "kept": kept, "probability_given_kept": chance})
    ax.plot([x], [0.5], "o", color=COLOURS[1], ms=9, zorder=3)
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text(x + 0.06, 0.4, "x = c", color=COLOURS[1], va="top", bbox=plain)
    for target, chance in ((below, 1 - up), (above, up)):
        arrow = {"arrowstyle": "->", "color": COLOURS[0], "connectionstyle": "arc3,rad=-0.25"}
        ax.annotate("", (values[target], 1.0), (x, 0.55), arrowprops=arrow)
        ax.text(values[target], 1.04, f"{chance:.3f}", ha="center", color=COLOURS[0])
    ax.axvspan(-mech.clip, mech.clip, color=COLOURS[1], alpha=0.07, lw=0)
    ax.set_ylim(-0.3, 1.25)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(visible=False)
    ax.set_xlabel("value (shaded: the input range [-c, c]; solid: kept levels; dotted: dropped)")
    ax.set_title("RQM keeps some levels at random, then rounds x between its kept neighbours", fontsize=11)
    step()
    return canvas, rows


def _laws(step: Step) -> "tuple[Canvas, Rows]":
    """Fig. 1b: the law of the output at x = c under both mechanisms."""
    canvas, (ax,) = _canvas()
    rows: Rows = [{"level": z} for z in range(16)]
    for k, mech in enumerate((RQM(clip=1.5), PBM(clip=1.5))):
        law = mech.pmf(mech.clip)
        ax.bar(np.arange(16) + 0.4 * (k - 0.5), law, width=0.4, color=COLOURS[k], label=_label(mech))
        for row, p in zip(rows, law, strict=True):
            row[mech.kind] = p
    ax.set_xlabel("output level z")
    ax.set_ylabel("probability of z at x = c")
    ax.legend(frameon=False)
    step()
    return canvas, rows


# -- figures 2 and 3: Rényi divergence ------------------------------------------------------------


def _mechanisms(theta: str, variants: int) -> list[Channel]:
    pbm, pairs = PAPER[theta]
    chosen: list[Channel] = [RQM(clip=1.5, margin=margin, keep=keep) for margin, keep in pairs[:variants]]
    return [*chosen, PBM(clip=1.5, theta=pbm)]


@cache
def _worst(mech: Channel, orders: tuple[float, ...], clients: int) -> list[Bound]:
    """Worst cases are dear, and some curves stand in two figures."""
    return renyi(mech, orders, clients)


def _curve(ax: "Axes", mech: Channel, colour: str, bounds: list[Bound], paper: list[Bound], over: str) -> Rows:
    """Plot the paper's curve, and the worst case as a band from attained to certified; return its rows."""
    at = [getattr(b, over) for b in bounds]
    upper = [b.upper for b in bounds]
    label = _label(mech) + (f", n={bounds[0].clients}" if over == "alpha" else "")
    ax.plot([getattr(b, over) for b in paper], [b.lower for b in paper], color=colour, lw=1.2, ls="--")
    ax.plot(at, upper, color=colour, lw=1.6, marker="o", ms=3, label=label)
    ax.fill_between(at, [b.lower for b in bounds], upper, color=colour, alpha=0.35, lw=0)
    return [
        {
            "mechanism": _label(mech),
            "alpha": b.alpha,
            "clients": b.clients,
            "paper_random": renyi(mech, b.alpha, b.clients, "random", seed=SEED).lower,
            "paper_balanced": renyi(mech, b.alpha, b.clients, "balanced").lower,
            "attained": b.lower,
            "certified": b.upper,
            "per": "coordinate and round",
        }
        for b in bounds
    ]


def _against_clients(ax: "Axes", mech: Channel, colour: str, step: Step) -> Rows:
    bounds = []
    for n in CLIENTS:
        bounds += _worst(mech, (2,), n)
        step()
    paper = [renyi(mech, 2, n, "random", seed=SEED) for n in range(1, max(CLIENTS) + 1)]
    return _curve(ax, mech, colour, bounds, paper, "clients")


def _against_orders(ax: "Axes", mech: Channel, colour: str, clients: int, step: Step) -> Rows:
    bounds = _worst(mech, ORDERS, clients)
    step()
    paper = renyi(mech, np.geomspace(1.1, 1000, 60).tolist(), clients, "random", seed=SEED)
    return _curve(ax, mech, colour, bounds, paper, "alpha")


def _finish(ax: "Axes", x: str, order: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(f"Rényi divergence {order}, per coordinate")
    ax.set_yscale("log")
    ax.plot([], [], color="0.3", lw=1.2, ls="--", label="paper: others random at ±c")
    ax.plot([], [], color="0.3", lw=1.6, marker="o", ms=3, label="certified worst case (band: down to attained)")
    ax.legend(frameon=False, fontsize=8)


def _renyi(theta: str) -> Callable[[Step], "tuple[Canvas, Rows]"]:
    def paint(step: Step) -> "tuple[Canvas, Rows]":
        canvas, (left, right) = _canvas(columns=2)
        rows: Rows = []
        for k, mech in enumerate(_mechanisms(theta, 1)):
            rows += _against_clients(left, mech, COLOURS[k], step)
            rows += _against_orders(right, mech, COLOURS[k], 40, step)
            rows += _against_orders(right, mech, COLOURS[k + 2], 1, step)
        _finish(left, "clients n", "$D_2$")
        _finish(right, "order α", r"$D_\alpha$")
        right.set_xscale("log")
        canvas.suptitle("What one coordinate leaks in one round: the paper's curves and the worst case", fontsize=11)
        return canvas, rows

    return paint


def _tradeoff(theta: str) -> Callable[[Step], "tuple[Canvas, Rows]"]:
    def paint(step: Step) -> "tuple[Canvas, Rows]":
        canvas, (ax,) = _canvas(width=7.0, height=4.8)
        rows: Rows = []
        for mech, colour in zip(_mechanisms(theta, 3), COLOURS, strict=True):
            rows += _against_orders(ax, mech, colour, 40, step)
        _finish(ax, "order α", r"$D_\alpha$")
        ax.set_xscale("log")
        ax.set_title("What one coordinate leaks in one round among 40 clients", fontsize=11)
        return canvas, rows

    return paint


FIGURES = {
    "subsampling": Figure("Fig. 1a: keeping levels at random, then rounding", 1, _subsampling),
    "laws": Figure("Fig. 1b: the law of the output under RQM and PBM", 1, _laws),
    "renyi-theta25": Figure("Fig. 2: D₂ against n, D_α against α, θ = 0.25", 28, _renyi("25")),
    "renyi-theta15": Figure("appendix: the same, θ = 0.15", 28, _renyi("15")),
    "renyi-theta35": Figure("appendix: the same, θ = 0.35", 28, _renyi("35")),
    "tradeoff-theta25": Figure("Fig. 3, right: D_α of three RQMs and PBM, θ = 0.25", 4, _tradeoff("25")),
    "tradeoff-theta15": Figure("appendix: the same, θ = 0.15", 4, _tradeoff("15")),
    "tradeoff-theta35": Figure("appendix: the same, θ = 0.35", 4, _tradeoff("35")),
}
