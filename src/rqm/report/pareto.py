"""Plots of the adviser: error against ε, and error against bits."""

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from rqm.advice.candidates import Candidate


def draw(lines: dict[str, list[list[float]]], path: Path, title: str = "") -> Path:
    """Draw the error of each mechanism against ε.

    Args:
        lines: Pairs of ε and error by name, as `rqm.advice.adviser.pareto` returns them.
        path: The file.
        title: A title.

    Returns:
        The file.
    """
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        trusted = "trusted" in name
        epsilons, errors = zip(*sorted(points), strict=True)
        axes.plot(
            epsilons,
            errors,
            label=name,
            marker="o",
            ms=3.5,
            lw=1.4,
            color="0.45" if trusted else f"C{number % 10}",
            ls="--" if trusted else "-",
        )
    axes.set_title(title, fontsize=9, loc="right")
    return _saved(figure, path, "certified ε", "worst-case mean squared error of a coordinate, clip²")


def draw_front(candidates: "list[Candidate]", path: Path) -> Path:
    """Draw the least error for each number of bits per parameter, and its mechanism.

    Args:
        candidates: What `rqm.advice.adviser.front` returned.
        path: The file.

    Returns:
        The file.
    """
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    bits = [candidate.wire_bits_per_parameter or 0.0 for candidate in candidates]
    errors = [candidate.mse for candidate in candidates]
    axes.step(bits, errors, where="post", color="0.6", lw=1.2)
    points: dict[str, list[tuple[float, float]]] = {}
    for candidate, x, y in zip(candidates, bits, errors, strict=True):
        points.setdefault(candidate.mechanism.label, []).append((x, y))
    for number, (label, pairs) in enumerate(points.items()):
        axes.plot(*zip(*pairs, strict=True), "o", ms=4.5, color=f"C{number % 10}", label=label)
    return _saved(
        figure, path, "bits per parameter of a masked vector", "mean squared error of a value of the mean, clip²"
    )


def _saved(figure: Figure, path: Path, across: str, up: str) -> Path:
    """Save a figure with one pair of logarithmic axes."""
    (axes,) = figure.axes
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3, which="both", lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in kinds:
        raise ValueError(f"plot = {path}: must end in .png, .pdf or .svg, or in .{', .'.join(kinds)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
