"""Curves of a sweep: what is drawn is what was saved."""

import pytest

from rqm import RQM, Noiseless, renyi
from rqm.plan.leak import ORDERS, has_leak, leak
from rqm.plan.plan import Transforms
from rqm.report.curves import draw, picture
from tests.plans import make_plan

PLANS = {
    "RQM": make_plan(mechanism=RQM(levels=4), clients=2),
    "plain": make_plan(mechanism=Noiseless(), clients=2),
    "clipped": make_plan(mechanism=RQM(levels=4), clients=2, transforms=Transforms(l2_clip=1.0)),
}


def curves(names, seeds=2):
    values = [[2.0, 1.0 + 0.1 * seed] for seed in range(seeds)]
    return {
        name: {
            "round": [1, 2],
            "loss": values,
            "accuracy": [[0.1, 0.2 + 0.01 * seed] for seed in range(seeds)],
            "plan": PLANS[name].to_dict(),
            "leak": leak(PLANS[name]),
        }
        for name in names
    }


def panels(figure):
    """The lines of each panel, by the name of its vertical axis; those without points are entries of the legend."""
    return {axes.get_ylabel(): [line for line in axes.get_lines() if len(line.get_xdata()) > 1] for axes in figure.axes}


def test_the_panel_of_leaks_has_two_lines_for_each_mechanism():
    """What is certified, and what the paper plots: for plans without an L2 budget, of which nothing more is known."""
    found = panels(picture(curves(["RQM", "plain"])))
    certified, paper = found["Rényi divergence, per coordinate and round"]
    assert certified.get_xdata().tolist() == ORDERS
    assert certified.get_ydata().tolist() == [
        bound.upper for bound in renyi(PLANS["RQM"].mechanism, ORDERS, 2, distribution="sampled")
    ]
    assert (paper.get_ydata() <= certified.get_ydata() * (1 + 1e-6)).all()
    assert len(found) == 4
    assert len(found["test loss"]) == 2


@pytest.mark.parametrize("name", ["plain", "clipped"])
def test_there_is_no_such_panel_where_it_would_say_nothing(name):
    assert not has_leak(PLANS[name])
    assert len(panels(picture(curves([name])))) == 2


def test_it_is_written(tmp_path):
    assert draw(curves(["RQM"], seeds=1), tmp_path / "curves.png").stat().st_size > 10_000


def test_curves_of_older_files_are_drawn_without_it():
    old = curves(["RQM", "plain"])
    for entry in old.values():
        del entry["leak"]
    assert len(panels(picture(old))) == 3
