import json

import numpy as np
import pytest
from matplotlib.image import imread

from rqm import RQM, Noiseless, renyi
from rqm.plan.leak import ORDERS, has_leak, leak
from rqm.plan.plan import Transforms
from rqm.report.plots import accuracy_table, final_accuracies, main, plot_curves, plot_tradeoff, save
from tests.plans import make_plan

PLANS = {
    "RQM": make_plan(mechanism=RQM(levels=4), clients=2),
    "plain": make_plan(mechanism=Noiseless(), clients=2),
    "clipped": make_plan(mechanism=RQM(levels=4), clients=2, transforms=Transforms(l2_clip=1.0)),
}
ACCURACIES = {
    "one, ε=3": {"accuracy": [[0.1, 0.5], [0.2, 0.6]]},
    "base, ε=3": {"accuracy": [[0.1, 0.4], [0.2, 0.52]]},
    "one, ε=0.5": {"accuracy": [[0.1, 0.3], [0.2, 0.3]]},
    "no noise": {"accuracy": [[0.9], [0.8]]},
}


def make_curves(names, seeds=2):
    losses = [[2.0, 1.0 + 0.1 * seed] for seed in range(seeds)]
    accuracies = [[0.1, 0.2 + 0.01 * seed] for seed in range(seeds)]
    return {
        name: {
            "round": [1, 2],
            "loss": losses,
            "accuracy": accuracies,
            "plan": PLANS[name].to_dict(),
            "leak": leak(PLANS[name]),
        }
        for name in names
    }


def plotted_lines(figure):
    """The lines of each panel by the label of its vertical axis, without the entries of legends."""
    return {axes.get_ylabel(): [line for line in axes.get_lines() if len(line.get_xdata()) > 1] for axes in figure.axes}


def test_divergences_are_the_certified_and_the_papers():
    lines = plotted_lines(plot_curves(make_curves(["RQM", "plain"])))
    certified, paper = lines["Rényi divergence, per coordinate and round"]
    assert certified.get_xdata().tolist() == ORDERS
    bounds = renyi(PLANS["RQM"].mechanism, ORDERS, 2, distribution="sampled")
    assert certified.get_ydata().tolist() == [bound.upper for bound in bounds]
    assert (paper.get_ydata() <= certified.get_ydata() * (1 + 1e-6)).all()
    assert len(lines) == 4
    assert len(lines["test loss"]) == 2


@pytest.mark.parametrize("name", ["plain", "clipped"])
def test_divergences_are_left_out_where_they_say_nothing(name):
    assert not has_leak(PLANS[name])
    assert len(plotted_lines(plot_curves(make_curves([name])))) == 2


def test_curves_without_saved_divergences_are_plotted():
    curves = make_curves(["RQM", "plain"])
    for entry in curves.values():
        del entry["leak"]
    assert len(plotted_lines(plot_curves(curves))) == 3


def test_final_accuracies_are_grouped_by_mechanism_and_epsilon():
    assert final_accuracies(ACCURACIES)["one"] == {"3": [50, 60], "0.5": [30, 30]}
    assert final_accuracies(ACCURACIES)["no noise"] == {"": [90, 80]}


def test_accuracy_table_compares_seed_by_seed():
    rows = accuracy_table(ACCURACIES, "base").splitlines()
    # differences 10 and 8: mean 9, half-width 12.706 · √2 / √2
    assert "| one | 3 | 2 | 55.00 ± 63.53 % | +9.00 ± 12.71 points |" in rows
    assert "| no noise |  | 2 | 85.00 ± 63.53 % |  |" in rows
    with pytest.raises(ValueError, match="must be one of one, base, no noise"):
        accuracy_table(ACCURACIES, "nobody")


def test_tradeoff_has_a_line_for_each_private_mechanism(tmp_path):
    figure = plot_tradeoff(ACCURACIES)
    means = [line.get_ydata().tolist() for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert means == [[30.0, 55.0], [46.0]]
    image = imread(save(figure, tmp_path / "new" / "tradeoff.png"))
    assert np.unique(image.reshape(-1, image.shape[2]), axis=0).shape[0] > 100


def test_save_rejects_an_unknown_format(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        save(plot_tradeoff(ACCURACIES), tmp_path / "tradeoff.txt")


def test_saved_results_are_drawn_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(make_curves(["RQM"], seeds=1)))
    main("curves", str(path))
    path.write_text(json.dumps(ACCURACIES))
    main("tradeoff", str(path), "base")
    printed = capsys.readouterr().out.splitlines()
    assert {printed[0], printed[-1]} == {str(tmp_path / name) for name in ("result.png", "result-tradeoff.png")}
    assert (tmp_path / "result.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="KIND = 'attacks': must be one of curves, tradeoff, attack"):
        main("attacks", str(path))
