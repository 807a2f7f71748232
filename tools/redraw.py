"""Draws a saved result again, next to its file, and prints the table of a trade-off.

python -m tools.redraw curves FILE.json [BASELINE]
python -m tools.redraw tradeoff FILE.json BASELINE
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from rqm._util.checks import one_of
from rqm._util.numeric import mean_and_interval
from rqm.report.plots import Curves, new_figure, plot_curves, save


def final_accuracies(curves: Curves) -> dict[str, dict[str, list[float]]]:
    """Accuracies at the end of training in percent, one for each seed, by mechanism and ε.

    Args:
        curves: The curves of a sweep. Private variants are named `MECHANISM, ε=NUMBER`.

    Returns:
        For each mechanism the accuracies by ε as it is written, which is empty for a variant without ε.
    """
    accuracies: dict[str, dict[str, list[float]]] = {}
    for name, entry in curves.items():
        mechanism, _, epsilon = name.partition(", ε=")
        accuracies.setdefault(mechanism, {})[epsilon] = [100 * values[-1] for values in entry["accuracy"]]
    return accuracies


def plot_tradeoff(curves: Curves) -> Figure:
    """Plot accuracy at the end of training against ε, with 95 % confidence intervals over seeds."""
    accuracies = final_accuracies(curves)
    figure, axes = new_figure("a user's ε for the whole run", "test accuracy, %")
    epsilons = sorted({epsilon for by_epsilon in accuracies.values() for epsilon in by_epsilon if epsilon}, key=float)
    for index, (name, by_epsilon) in enumerate(accuracies.items()):
        if "" in by_epsilon:
            mean, half_width = mean_and_interval(by_epsilon[""])
            axes.axhline(mean, color="0.4", ls="--", lw=1, label=name)
            axes.axhspan(mean - half_width, mean + half_width, color="0.4", alpha=0.12, lw=0)
            continue
        tried = [epsilon for epsilon in epsilons if epsilon in by_epsilon]
        offset = 0.06 * (index - len(accuracies) / 2)  # so that intervals do not overlap
        positions = [epsilons.index(epsilon) + offset for epsilon in tried]
        means, half_widths = zip(*(mean_and_interval(by_epsilon[epsilon]) for epsilon in tried), strict=True)
        axes.errorbar(positions, means, half_widths, marker="o", ms=4, lw=1, capsize=3, label=name)
    axes.set_xticks(range(len(epsilons)), epsilons)
    axes.set_xlim(-0.5, len(epsilons) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False)
    return figure


def accuracy_table(curves: Curves, baseline: str) -> str:
    """A Markdown table of the accuracies at the end of training.

    Args:
        curves: The curves of a sweep.
        baseline: The mechanism that others are compared with at the same ε and seed.

    Returns:
        A row for each variant: mean and 95 % interval of its accuracy and of the difference from the baseline.

    Raises:
        ValueError: If no variant is named after the baseline.
    """
    accuracies = final_accuracies(curves)
    one_of("baseline", baseline, accuracies)
    rows = [f"| | ε | seeds | test accuracy | minus {baseline}, same seed |", "|---|---|---|---|---|"]
    for name, by_epsilon in accuracies.items():
        for epsilon, values in by_epsilon.items():
            mean, half_width = mean_and_interval(values)
            difference = ""
            seed_pairs = list(zip(values, accuracies[baseline].get(epsilon, []), strict=False))
            if name != baseline and len(seed_pairs) > 1:
                gap, gap_half_width = mean_and_interval([value - reference for value, reference in seed_pairs])
                difference = f"{gap:+.2f} ± {gap_half_width:.2f} points"
            accuracy = f"{mean:.2f} ± {half_width:.2f} %"
            rows.append(f"| {name} | {epsilon} | {len(values)} | {accuracy} | {difference} |")
    return "\n".join(rows)


def main(kind: str, file: str, *baseline: str) -> None:
    """Draw a saved result.

    Args:
        kind: "curves" or "tradeoff".
        file: The `curves.json` of a sweep.
        baseline: The variant to compare with; required for a trade-off.
    """
    one_of("KIND", kind, ("curves", "tradeoff"))
    path = Path(file)
    curves = json.loads(path.read_text())
    if kind == "curves":
        print(save(plot_curves(curves, *baseline), path.with_suffix(".png")))
    else:
        print(accuracy_table(curves, *baseline))
        print(save(plot_tradeoff(curves), path.with_name(f"{path.stem}-tradeoff.png")))


if __name__ == "__main__":
    main(*sys.argv[1:])
