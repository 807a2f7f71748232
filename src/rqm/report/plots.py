"""Plots of results: training curves, error against ε or bits, and attacks.

Every function returns a matplotlib figure, and `save` writes it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rqm._util.numeric import mean_and_interval
from rqm._util.text import text_to_picture
from rqm.registry import mechanism_from_dict

if TYPE_CHECKING:
    from rqm.advice.candidates import Candidate

Curves = dict[str, dict[str, Any]]
"""The `curves.json` of a sweep: for each variant its rounds, and for each seed a list of losses and accuracies."""


def style_axes(axes: Axes, x_label: str, y_label: str) -> Axes:
    """Label axes and draw a faint grid instead of a frame.

    Args:
        axes: The axes to change.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.

    Returns:
        The same axes.
    """
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def new_figure(x_label: str, y_label: str, width: float = 6.4, height: float = 4.4) -> tuple[Figure, Axes]:
    """Create a figure with one set of axes.

    Args:
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        width: Width of the figure in inches.
        height: Height of the figure in inches.

    Returns:
        The figure and its axes.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, style_axes(figure.subplots(), x_label, y_label)


def plot_band(axes: Axes, x: Any, runs: Any, **line_style: Any) -> None:
    """Plot the mean of several runs with its 95 % confidence interval as a band.

    Args:
        axes: Where to plot.
        x: Positions, one for each column of `runs`.
        runs: An array with a row for each run. A single run has no band.
        line_style: Options of `Axes.plot`.
    """
    mean, half_width = mean_and_interval(runs)
    (line,) = axes.plot(x, mean, lw=1.4, **line_style)
    if np.isfinite(half_width).all():
        axes.fill_between(x, mean - half_width, mean + half_width, alpha=0.15, color=line.get_color(), lw=0)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure to a file.

    Args:
        figure: The figure.
        path: The file; its suffix selects the format.

    Returns:
        The file.

    Raises:
        ValueError: If matplotlib cannot write this format.
    """
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise ValueError(f"plot = {path}: must end in .png, .pdf or .svg, or in .{', .'.join(formats)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


# -- training curves ------------------------------------------------------------------------------


def plot_curves(curves: Curves, baseline: str | None = None) -> Figure:
    """Plot the loss and the accuracy of a sweep's variants by round.

    With several seeds a third panel shows the difference in accuracy from the baseline, seed by seed, because
    the spread over seeds can hide a difference between variants. Another panel shows the Rényi divergences of
    one coordinate if the file has them.

    Args:
        curves: The curves of a sweep.
        baseline: A variant; default the first that sends floats, otherwise the first.

    Returns:
        The figure.
    """
    divergences = {name: entry["leak"] for name, entry in curves.items() if entry.get("leak")}
    seeds = min(len(entry["accuracy"]) for entry in curves.values())
    has_differences = seeds > 1 and len(curves) > 1
    panel_count = 2 + bool(divergences) + has_differences
    rows, columns = (2, 2) if panel_count == 4 else (1, panel_count)
    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    panels = iter(figure.subplots(rows, columns).flat)
    styles = _line_styles(list(curves))
    for key in ("loss", "accuracy"):
        axes = style_axes(next(panels), "round", f"test {key}")
        for name, entry in curves.items():
            plot_band(axes, entry["round"], entry[key], label=name, **styles[name])
    handles, labels = axes.get_legend_handles_labels()
    if has_differences:
        _plot_differences(next(panels), curves, baseline or _default_baseline(curves), seeds, styles)
    if divergences:
        _plot_divergences(next(panels), divergences, styles)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * columns + 1), frameon=False)
    note = "one seed" if seeds == 1 else f"mean and 95 % interval over {seeds} seeds"
    figure.suptitle(note, fontsize=9, x=0.99, ha="right")
    return figure


def _plot_differences(axes: Axes, curves: Curves, baseline: str, seeds: int, styles: dict[str, Any]) -> None:
    style_axes(axes, "round", f"accuracy minus {baseline}, points")
    reference = np.array(curves[baseline]["accuracy"])[:seeds]
    for name, entry in curves.items():
        if name != baseline:
            differences = 100 * (np.array(entry["accuracy"])[:seeds] - reference)
            plot_band(axes, entry["round"], differences, **styles[name])
    axes.axhline(0, color="0.3", lw=0.8)


def _plot_divergences(axes: Axes, divergences: Curves, styles: dict[str, Any]) -> None:
    style_axes(axes, "order α", "Rényi divergence, per coordinate and round")
    for name, entry in divergences.items():
        color = styles[name]["color"]
        axes.plot(entry["orders"], entry["certified"], color=color, marker="o", ms=3)
        axes.plot(entry["orders"], entry["paper"], color=color, ls="--", lw=1)
    axes.plot([], [], color="0.3", label="certified worst case")
    axes.plot([], [], color="0.3", ls="--", label="the paper's: others balanced at ±c")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def _line_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """The color and dashes of each variant. Variants `NAME, ε=…` of the same name share a color."""
    colors, dashes = dict[str, str](), dict[str, str]()
    styles = {}
    for name in names:
        family, _, epsilon = name.partition(", ε=")
        color = colors.setdefault(family, f"C{len(colors) % 10}")
        styles[name] = {"color": color, "ls": dashes.setdefault(epsilon, ("-", "--", ":", "-.")[len(dashes) % 4])}
    return styles


def _default_baseline(curves: Curves) -> str:
    for name, entry in curves.items():
        if not mechanism_from_dict(entry["plan"]["mechanism"]).has_integer_messages:
            return name
    return next(iter(curves))


# -- error against ε or bits ----------------------------------------------------------------------


def plot_error_by_epsilon(candidates: "Sequence[Candidate]", title: str = "") -> Figure:
    """Plot error against ε with a line for each mechanism.

    Args:
        candidates: Candidates at several ε, from `rqm.advice.adviser.sweep`.
        title: The setting.

    Returns:
        The figure.
    """
    figure, axes = new_figure("certified ε", "worst-case mean squared error of a coordinate, clip²")
    for name in dict.fromkeys(candidate.name for candidate in candidates):
        points = sorted((entry for entry in candidates if entry.name == name), key=lambda entry: entry.epsilon)
        epsilons, errors = [point.epsilon for point in points], [point.mse for point in points]
        (line,) = axes.plot(epsilons, errors, label=name, marker="o", ms=3.5, lw=1.4)
        if points[0].trusted_server:
            line.set(color="0.45", ls="--")
    axes.set_title(title, fontsize=9, loc="right")
    _use_logarithms(axes)
    return figure


def pareto_front(candidates: "Sequence[Candidate]") -> "list[Candidate]":
    """The candidates with less error than all that need no more bits per parameter, ordered by bits."""
    front: list[Candidate] = []
    private = [candidate for candidate in candidates if not candidate.trusted_server]
    for candidate in sorted(private, key=lambda entry: (entry.wire_bits_per_parameter or 0.0, entry.mse)):
        if not front or candidate.mse < front[-1].mse:
            front.append(candidate)
    return front


def plot_error_by_bits(candidates: "Sequence[Candidate]") -> Figure:
    """Plot the least error that fits into a number of bits per parameter, and the mechanism that reaches it.

    Args:
        candidates: Candidates with several limits of bits, from `rqm.advice.adviser.sweep`.

    Returns:
        The figure.
    """
    figure, axes = new_figure(
        "bits per parameter of a masked vector", "mean squared error of a value of the mean, clip²"
    )
    front = pareto_front(candidates)
    bits = np.array([candidate.wire_bits_per_parameter or 0.0 for candidate in front])
    errors = np.array([candidate.mse for candidate in front])
    labels = np.array([candidate.mechanism.label for candidate in front])
    axes.step(bits, errors, where="post", color="0.6", lw=1.2)
    for label in dict.fromkeys(labels):
        axes.plot(bits[labels == label], errors[labels == label], "o", ms=4.5, label=label)
    _use_logarithms(axes)
    return figure


def _use_logarithms(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both", lw=0.5)
    axes.legend(frameon=False, fontsize=8)


# -- attacks --------------------------------------------------------------------------------------


def plot_inversion(result: dict[str, Any]) -> Figure:
    """Plot pictures next to what gradient inversion reconstructs from each kind of message."""
    columns = result["pictures"]
    rows = len(columns["the picture"])
    figure = Figure(figsize=(1.55 * len(columns), 1.3 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, len(columns), squeeze=False)
    for column, (kind, pictures) in enumerate(columns.items()):
        for axes, picture in zip(panels[:, column], pictures, strict=True):
            axes.imshow(text_to_picture(picture["picture"]), cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
            if "similarity" in picture:
                axes.text(27, 27, f"{picture['similarity']:.2f}", fontsize=7, ha="right", backgroundcolor="w")
        scores, title = result["kinds"].get(kind), f"{kind}\n"
        if scores:
            half_width = scores["half_width"]
            title += f"{scores['similarity']:.2f}" + ("" if half_width is None else f" ± {half_width:.2f}")
        panels[0, column].set_title(title, fontsize=8)
    return figure


def plot_membership(result: dict[str, Any]) -> Figure:
    """Plot the ROC curves of membership inference on logarithmic axes, which show low false positive rates."""
    figure, axes = new_figure("false positive rate", "true positive rate", 5.2)
    for name, attack in result.items():
        rates = zip(attack["false_positives"], attack["true_positives"], strict=True)
        label = f"{name}: TPR {attack['found']:.1%} at FPR {attack['rate']:.1%}, accuracy {attack['accuracy']:.0%}"
        axes.plot(*zip(*(point for point in rates if min(point) > 0), strict=True), label=label)
    axes.plot([1e-4, 1], [1e-4, 1], color="0.5", ls=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.1))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def draw_attack(path: Path) -> Path:
    """Draw the result of an attack next to its JSON file; return the picture's path."""
    result = json.loads(path.read_text())
    figure = plot_inversion(result) if "pictures" in result else plot_membership(result)
    return save(figure, path.with_suffix(".png"))
