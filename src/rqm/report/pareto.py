"""Plots of the adviser's candidates: error against ε, and error against bits."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from rqm.advice.candidates import Candidate


def draw(candidates: "Sequence[Candidate]", path: Path, title: str = "") -> Path:
    """Draw the error of each mechanism against ε.

    Args:
        candidates: Candidates at several ε, from `rqm.advice.adviser.sweep`.
        path: The file.
        title: A title.

    Returns:
        The file.
    """
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(candidate.name for candidate in candidates)):
        line = sorted((entry for entry in candidates if entry.name == name), key=lambda entry: entry.epsilon)
        axes.plot(
            [candidate.epsilon for candidate in line],
            [candidate.mse for candidate in line],
            label=name,
            marker="o",
            ms=3.5,
            lw=1.4,
            color="0.45" if line[0].trusted_server else f"C{number % 10}",
            ls="--" if line[0].trusted_server else "-",
        )
    axes.set_title(title, fontsize=9, loc="right")
    return _save(figure, path, "certified ε", "worst-case mean squared error of a coordinate, clip²")


def front(candidates: "Sequence[Candidate]") -> "list[Candidate]":
    """The candidates with less error than all that have no more bits per parameter, fewest bits first."""
    best: list[Candidate] = []
    private = [candidate for candidate in candidates if not candidate.trusted_server]
    for candidate in sorted(private, key=lambda entry: (entry.wire_bits_per_parameter or 0.0, entry.mse)):
        if not best or candidate.mse < best[-1].mse:
            best.append(candidate)
    return best


def draw_front(candidates: "Sequence[Candidate]", path: Path) -> Path:
    """Draw the least error for each number of bits per parameter, and its mechanism.

    Args:
        candidates: Candidates with several limits of bits, from `rqm.advice.adviser.sweep`.
        path: The file.

    Returns:
        The file.
    """
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    best = front(candidates)
    points = [(candidate.wire_bits_per_parameter or 0.0, candidate.mse) for candidate in best]
    axes.step(*zip(*points, strict=True), where="post", color="0.6", lw=1.2)
    for number, label in enumerate(dict.fromkeys(candidate.mechanism.label for candidate in best)):
        pairs = [point for point, candidate in zip(points, best, strict=True) if candidate.mechanism.label == label]
        axes.plot(*zip(*pairs, strict=True), "o", ms=4.5, color=f"C{number % 10}", label=label)
    return _save(
        figure, path, "bits per parameter of a masked vector", "mean squared error of a value of the mean, clip²"
    )


def _save(figure: Figure, path: Path, x_label: str, y_label: str) -> Path:
    """Save a figure with one pair of logarithmic axes."""
    (axes,) = figure.axes
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3, which="both", lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise ValueError(f"plot = {path}: must end in .png, .pdf or .svg, or in .{', .'.join(formats)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
