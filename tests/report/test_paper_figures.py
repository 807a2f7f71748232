import csv

import numpy as np
import pytest

from rqm import PBM, RQM
from rqm.report import paper_figures
from rqm.report.paper_figures import PAPER_FIGURES, PAPER_SETTINGS, save_csv
from rqm.report.plots import save


def draw(name, folder, report_step=lambda: None):
    """The path of a figure's picture, and its numbers as they are read back."""
    rows = PAPER_FIGURES[name].compute(report_step)
    with save_csv(rows, folder / f"{name}.csv").open() as file:
        return save(PAPER_FIGURES[name].plot(rows), folder / f"{name}.png"), list(csv.DictReader(file))


def test_every_figure_of_the_paper_has_a_name():
    assert set(PAPER_FIGURES) == {
        "subsampling",
        "laws",
        *(f"{kind}-theta{theta}" for kind in ("renyi", "tradeoff") for theta in ("15", "25", "35")),
    }
    assert PAPER_SETTINGS["15"] == (0.15, ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23)))
    assert PAPER_SETTINGS["35"] == (0.35, ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37)))


def test_figure_1_has_the_pmfs_and_one_draw_of_the_kept_levels(tmp_path):
    picture, rows = draw("laws", tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_allclose([float(row["rqm"]) for row in rows], RQM().pmf(1.0))
    np.testing.assert_allclose([float(row["pbm"]) for row in rows], PBM().pmf(1.0))
    _, rows = draw("subsampling", tmp_path)
    assert [int(row["level"]) for row in rows if row["kept"] == "True"] == [0, 3, 4, 7, 9, 10, 14, 15]
    assert sum(float(row["probability_given_kept"]) for row in rows) == pytest.approx(1)


def test_divergence_figures_have_paper_attained_and_certified_values(tmp_path, monkeypatch):
    """Runs all of the drawing code with fewer points."""
    monkeypatch.setattr(paper_figures, "PLOTTED_CLIENTS", (1, 3, 6))
    monkeypatch.setattr(paper_figures, "FIGURE_ORDERS", (2, 8, 1000))
    monkeypatch.setattr(paper_figures, "PAPER_CLIENTS", 4)
    steps = []
    _, rows = draw("renyi-theta25", tmp_path, lambda: steps.append(1))
    assert len(steps) == PAPER_FIGURES["renyi-theta25"].steps - 2 * (12 - 3)
    assert {row["clients"] for row in rows} == {"1", "3", "4", "6"}
    assert len(rows) == 2 * (3 + 3 + 3)
    for row in rows:
        paper, attained, upper = (float(row[key]) for key in ("paper_random", "attained", "certified"))
        assert paper <= attained * (1 + 1e-9) <= upper * (1 + 2e-9)
        assert row["per"] == "coordinate and round"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER_FIGURES)
def test_every_figure_in_full(name, tmp_path):
    picture, rows = draw(name, tmp_path)
    assert picture.stat().st_size > 10_000
    assert len(rows) >= 16
