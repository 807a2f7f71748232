"""The figures: what they draw is what was computed."""

import csv

import numpy as np
import pytest

from rqm import PBM, RQM
from rqm.report import paper
from rqm.report.figures import draw, save
from rqm.report.paper import FIGURES, PAPER


def made(name, folder, step=lambda: None):
    """The picture of a figure, and its numbers."""
    table = save(FIGURES[name].numbers(step), folder / f"{name}.csv")
    return draw(table), table


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_figure_of_the_paper_has_a_name():
    assert set(FIGURES) == {
        "subsampling",
        "laws",
        *(f"{kind}-theta{theta}" for kind in ("renyi", "tradeoff") for theta in ("15", "25", "35")),
    }
    assert PAPER["15"] == (0.15, ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23)))
    assert PAPER["35"] == (0.35, ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37)))


def test_simple_figures_write_png_and_csv(tmp_path):
    png, table = made("laws", tmp_path)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = read(table)
    np.testing.assert_allclose([float(r["rqm"]) for r in rows], RQM().pmf(1.0))
    np.testing.assert_allclose([float(r["pbm"]) for r in rows], PBM().pmf(1.0))
    rows = read(made("subsampling", tmp_path)[1])
    assert [int(r["level"]) for r in rows if r["kept"] == "True"] == [0, 3, 4, 7, 9, 10, 14, 15]
    assert sum(float(r["probability_given_kept"]) for r in rows) == pytest.approx(1)


def test_divergence_figures_carry_paper_attained_and_certified(tmp_path, monkeypatch):
    """The full drawing code on fewer points, so that it runs with every change."""
    monkeypatch.setattr(paper, "CLIENTS", (1, 3, 6))
    monkeypatch.setattr(paper, "ORDERS", (2, 8, 1000))
    monkeypatch.setattr(paper, "MANY", 4)
    steps = []
    rows = read(made("renyi-theta25", tmp_path, lambda: steps.append(1))[1])
    assert len(steps) == FIGURES["renyi-theta25"].steps - 2 * (12 - 3)
    known = [row for row in rows if row["certified"]]
    assert {r["clients"] for r in known} == {"1", "3", "4", "6"}
    assert len(known) == 2 * (3 + 3 + 3)
    for row in known:
        random_inputs, attained, certified = (float(row[k]) for k in ("paper_random", "attained", "certified"))
        assert random_inputs <= attained * (1 + 1e-9) <= certified * (1 + 2e-9)
        assert row["per"] == "coordinate and round"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_in_full(name, tmp_path):
    png, table = made(name, tmp_path)
    assert png.stat().st_size > 10_000
    assert len(read(table)) >= 16
