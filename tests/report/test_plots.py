import pytest

from rqm import RQM, Noiseless, renyi
from rqm.config.coordinate_divergences import has_coordinate_divergences, leak
from rqm.config.plan import Transforms
from rqm.report.plots import plot_curves, save
from tests.plans import make_plan

ORDERS = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
PLANS = {
    "RQM": make_plan(mechanism=RQM(levels=4), clients=2),
    "plain": make_plan(mechanism=Noiseless(), clients=2),
    "clipped": make_plan(mechanism=RQM(levels=4), clients=2, transforms=Transforms(l2_clip=1.0)),
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
    assert not has_coordinate_divergences(PLANS[name])
    assert len(plotted_lines(plot_curves(make_curves([name])))) == 2


def test_curves_without_saved_divergences_are_plotted():
    curves = make_curves(["RQM", "plain"])
    for entry in curves.values():
        del entry["leak"]
    assert len(plotted_lines(plot_curves(curves))) == 3


def test_save_creates_the_folder_and_rejects_an_unknown_format(tmp_path):
    figure = plot_curves(make_curves(["RQM"], seeds=1))
    assert save(figure, tmp_path / "new" / "curves.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"must end in \.png"):
        save(figure, tmp_path / "curves.txt")
