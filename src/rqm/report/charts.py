"""SVG charts of a page, in the page's colors."""

import io
import re
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rqm.report.plots import new_figure, plot_band
from rqm.report.run_folder_reader import RunFolder


def svg(figure: Figure, label: str) -> str:
    """Render a figure with its legend as an SVG element in the colors of the page.

    Args:
        figure: A figure with one set of axes, in matplotlib's default colors.
        label: Describes the chart for screen readers.

    Returns:
        HTML. Matplotlib's colors are replaced by variables of style.css, so that the chart follows the page's theme.
    """
    text = io.StringIO()
    if len(figure.axes[0].get_legend_handles_labels()[0]) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rqm"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    element = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    element = re.sub(r'<g id="[^"]*">', "<g>", element[element.index("<svg") :])  # other charts have the same ids
    element = re.sub(r"font-family: [^;\"]*;", "", element)
    colors = {to_hex(f"C{index}"): f"var(--s{index})" for index in range(8)}
    for color, variable in (colors | {"#000000": "var(--soft)", "#b0b0b0": "var(--line)"}).items():
        element = element.replace(color, variable)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _new_chart(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    with rc_context({"font.size": 8, "axes.labelsize": 9}):
        return new_figure(x_label, y_label, 4.6, 2.9)


def learning_chart(groups: dict[str, list[RunFolder]], key: str) -> str | None:
    """Plot the "loss" or the "accuracy" on the test set by round.

    Args:
        groups: Runs that differ only in their seed, by name.
        key: The metric.

    Returns:
        A line with a 95 % confidence interval for each group; None if no run was evaluated twice.
    """
    figure, axes = _new_chart("round", key)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for index, (name, runs) in enumerate(groups.items()):
        evaluations = [run.evaluations(key) for run in runs]
        count = min(len(rounds) for rounds, _ in evaluations)
        if count > 1:
            values = [values[:count] for _, values in evaluations]
            plot_band(axes, evaluations[0][0][:count], values, label=name, color=f"C{index % 8}")
    return svg(figure, f"{key} on the test set by round") if axes.lines else None


def trade_off_chart(curve: list[list[float]]) -> str:
    """Plot the largest true positive rate of any membership attack against its false positive rate."""
    figure, axes = _new_chart("false positive rate", "true positive rate")
    axes.plot(*curve, label="upper bound for any attack")
    axes.plot([0, 1], [0, 1], label="guessing")
    return svg(figure, "upper bound on the true positive rate of membership attacks by false positive rate")


def pmf_chart(outcomes: list[float], pmfs: dict[str, Any]) -> str:
    """Plot the pmfs of a mechanism's decoded output side by side.

    Args:
        outcomes: Decoded outputs in clips, evenly spaced.
        pmfs: Probabilities of the outputs for each input, by the label of the input.

    Returns:
        The chart.
    """
    figure, axes = _new_chart("decoded output, in clips", "probability")
    width = 0.8 * (outcomes[1] - outcomes[0]) / len(pmfs)
    for index, (label, probabilities) in enumerate(pmfs.items()):
        offset = (index - (len(pmfs) - 1) / 2) * width
        axes.bar(np.array(outcomes) + offset, probabilities, width, label=label)
    return svg(figure, "probability of each decoded output")
