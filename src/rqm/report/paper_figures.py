"""The paper's privacy figures: their numbers, with attained and certified worst cases, and their drawing."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rqm.certify.renyi import renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.report.plots import new_figure, style_axes

Rows = list[dict[str, Any]]

PAPER_SETTINGS = {
    "25": (0.25, ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33))),
    "15": (0.15, ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23))),
    "35": (0.35, ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37))),
}
"""θ of PBM and (Δ/c, q) of the three RQMs that the paper compares it with (Youn et al. 2023, Sec. 6 and appendix)."""
PAPER_KEPT_LEVELS = (0, 3, 4, 7, 9, 10, 14, 15)
"""The example of Fig. 1a."""
PAPER_CLIENTS = 40
"""Clients of a round in the figures of D_α."""
PLOTTED_CLIENTS = (1, 2, 3, 5, 8, 12, 16, 20, 25, 30, 40, 50)
FIGURE_ORDERS = (1.1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 300, 1000)


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        description: What it shows.
        steps: How often `compute` reports progress.
        compute: Returns the numbers as rows of plain values. Calls its argument after each step.
        plot: Draws these rows.
    """

    description: str
    steps: int
    compute: Callable[[Callable[[], None]], Rows]
    plot: Callable[[Rows], Figure]


def save_csv(rows: Rows, path: Path) -> Path:
    """Write the numbers of a figure as CSV.

    Args:
        rows: Rows with the same keys, which become the header.
        path: The file. Its folder is created.

    Returns:
        The file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# -- figure 1: how RQM works ----------------------------------------------------------------------


def _subsampling_rows(report_step: Callable[[], None]) -> Rows:
    """One draw of the kept levels, and the probabilities of the two that x = c can be rounded to."""
    mechanism = RQM(clip=1.5)
    x, values = mechanism.clip, mechanism.grid.values.tolist()
    lower = max(level for level in PAPER_KEPT_LEVELS if values[level] <= x)
    upper = min(level for level in PAPER_KEPT_LEVELS if values[level] > x)
    probability_up = (x - values[lower]) / (values[upper] - values[lower])
    rows = []
    for level, value in enumerate(values):
        probability = {lower: 1 - probability_up, upper: probability_up}.get(level, 0.0)
        is_kept = level in PAPER_KEPT_LEVELS
        rows.append({"level": level, "value": value, "kept": is_kept, "probability_given_kept": probability, "clip": x})
    report_step()
    return rows


def _plot_subsampling(rows: Rows) -> Figure:
    label = "value (shaded: input range [-c, c]; solid: kept levels; dotted: dropped; dot: x = c)"
    figure, axes = new_figure(label, "", 9.0, 2.8)
    x = rows[0]["clip"]
    for row in rows:
        value, probability = row["value"], row["probability_given_kept"]
        color = "C3" if probability else "black" if row["kept"] else "0.6"
        axes.axvline(value, color=color, lw=2 if row["kept"] else 1.4, ls="-" if row["kept"] else ":")
        text = f"{row['level']}\n{probability:.3f}" if probability else f"{row['level']}"
        axes.text(value, 1.0, text, ha="center", va="bottom", color=color)
    axes.plot([x], [0.5], "o", color="C0", ms=9, zorder=3)
    axes.axvspan(-x, x, color="C0", alpha=0.07, lw=0)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    axes.set_title("RQM keeps some levels at random, then rounds x to one of the kept neighbors", fontsize=11, pad=30)
    return figure


def _pmf_rows(report_step: Callable[[], None]) -> Rows:
    """The pmf of the output at x = c."""
    pmfs = {mechanism.kind: mechanism.pmf(mechanism.clip).tolist() for mechanism in (RQM(clip=1.5), PBM(clip=1.5))}
    report_step()
    return [{"level": level, "rqm": pmfs["rqm"][level], "pbm": pmfs["pbm"][level]} for level in range(16)]


def _plot_pmfs(rows: Rows) -> Figure:
    figure, axes = new_figure("output level z", "probability of z at x = c", 6.0, 4.2)
    for kind, offset in (("rqm", -0.2), ("pbm", 0.2)):
        levels = [row["level"] + offset for row in rows]
        axes.bar(levels, [row[kind] for row in rows], width=0.4, label=kind.upper())
    axes.legend(frameon=False)
    return figure


# -- figures 2 and 3: Rényi divergence ------------------------------------------------------------


def _paper_mechanisms(theta: str, rqm_count: int) -> list[DiscreteMechanism]:
    pbm_theta, rqm_settings = PAPER_SETTINGS[theta]
    rqms = [RQM(clip=1.5, margin=margin, keep=keep) for margin, keep in rqm_settings[:rqm_count]]
    return [*rqms, PBM(clip=1.5, theta=pbm_theta)]


def _divergence_rows(mechanism: DiscreteMechanism, axis: str, orders: Sequence[float], clients: int) -> Rows:
    """Points of a curve over "clients" or "alpha": the paper's values, and the attained and certified worst case."""
    random = renyi(mechanism, orders, clients, "random", seed=0)
    balanced = renyi(mechanism, orders, clients, "balanced")
    return [
        {
            "over": axis,
            "mechanism": mechanism.label,
            "alpha": worst.alpha,
            "clients": clients,
            "paper_random": random_bound.lower,
            "paper_balanced": balanced_bound.lower,
            "attained": worst.lower,
            "certified": worst.upper,
            "per": "coordinate and round",
        }
        for random_bound, balanced_bound, worst in zip(random, balanced, renyi(mechanism, orders, clients), strict=True)
    ]


def _renyi_rows(theta: str, report_step: Callable[[], None]) -> Rows:
    """D₂ against the number of clients, and D_α for many clients and for one."""
    rows: Rows = []
    for mechanism in _paper_mechanisms(theta, 1):
        for clients in PLOTTED_CLIENTS:
            rows += _divergence_rows(mechanism, "clients", [2], clients)
            report_step()
        for clients in (PAPER_CLIENTS, 1):
            rows += _divergence_rows(mechanism, "alpha", FIGURE_ORDERS, clients)
            report_step()
    return rows


def _tradeoff_rows(theta: str, report_step: Callable[[], None]) -> Rows:
    """D_α of all mechanisms."""
    rows: Rows = []
    for mechanism in _paper_mechanisms(theta, 3):
        rows += _divergence_rows(mechanism, "alpha", FIGURE_ORDERS, PAPER_CLIENTS)
        report_step()
    return rows


def _plot_divergences(axes: Axes, rows: Rows, axis: str) -> None:
    """Plot the paper's curves, and the worst case as a band from attained to certified."""
    curves: dict[str, Rows] = {}
    for row in rows:
        name = row["mechanism"] if axis == "clients" else f"{row['mechanism']}, n={row['clients']}"
        if row["over"] == axis:
            curves.setdefault(name, []).append(row)
    keys = (axis, "paper_random", "attained", "certified")
    for name, points in curves.items():
        x, paper, attained, certified = ([row[key] for row in points] for key in keys)
        (line,) = axes.plot(x, certified, lw=1.6, marker="o", ms=3, label=name)
        axes.fill_between(x, attained, certified, color=line.get_color(), alpha=0.35, lw=0)
        axes.plot(x, paper, color=line.get_color(), lw=1.2, ls="--")
    axes.plot([], [], color="0.3", lw=1.2, ls="--", label="paper: others random at ±c")
    axes.plot([], [], color="0.3", lw=1.6, marker="o", ms=3, label="certified worst case (band: down to attained)")
    axes.set_xscale("log" if axis == "alpha" else "linear")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def _plot_renyi(rows: Rows) -> Figure:
    figure = Figure(figsize=(12.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _plot_divergences(style_axes(left, "clients n", "Rényi divergence $D_2$, per coordinate"), rows, "clients")
    _plot_divergences(style_axes(right, "order α", r"Rényi divergence $D_\alpha$, per coordinate"), rows, "alpha")
    figure.suptitle("Privacy loss of one coordinate in one round: the paper's curves and the worst case", fontsize=11)
    return figure


def _plot_tradeoff(rows: Rows) -> Figure:
    figure, axes = new_figure("order α", r"Rényi divergence $D_\alpha$, per coordinate", 7.0, 4.8)
    _plot_divergences(axes, rows, "alpha")
    axes.set_title(f"Privacy loss of one coordinate in one round of {rows[0]['clients']} clients", fontsize=11)
    return figure


PAPER_FIGURES = {
    "subsampling": PaperFigure(
        "Fig. 1a: keeping levels at random, then rounding", 1, _subsampling_rows, _plot_subsampling
    ),
    "laws": PaperFigure("Fig. 1b: pmf of the output of RQM and PBM", 1, _pmf_rows, _plot_pmfs),
}
for _theta in PAPER_SETTINGS:
    PAPER_FIGURES[f"renyi-theta{_theta}"] = PaperFigure(
        f"{'Fig. 2' if _theta == '25' else 'appendix'}: D₂ against n, D_α against α, θ = 0.{_theta}",
        2 * (len(PLOTTED_CLIENTS) + 2),
        partial(_renyi_rows, _theta),
        _plot_renyi,
    )
for _theta in PAPER_SETTINGS:
    PAPER_FIGURES[f"tradeoff-theta{_theta}"] = PaperFigure(
        f"{'Fig. 3, right' if _theta == '25' else 'appendix'}: D_α of three RQMs and PBM, θ = 0.{_theta}",
        4,
        partial(_tradeoff_rows, _theta),
        _plot_tradeoff,
    )
