"""ε against error, one line a mechanism."""

from pathlib import Path

from matplotlib.figure import Figure


def draw(lines: dict[str, list[list[float]]], path: Path, title: str = "") -> Path:
    """Draw what ``rqm.advice.adviser.pareto`` found."""
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
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("certified ε")
    axes.set_ylabel("worst-case mean squared error of a coordinate, clip²")
    axes.grid(alpha=0.3, which="both", lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(title, fontsize=9, loc="right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
