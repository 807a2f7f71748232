import numpy as np
import pytest
from matplotlib.image import imread

from rqm.report.tradeoff import draw, finals, table

CURVES = {
    "one, ε=3": {"accuracy": [[0.1, 0.5], [0.2, 0.6]]},
    "base, ε=3": {"accuracy": [[0.1, 0.4], [0.2, 0.52]]},
    "one, ε=0.5": {"accuracy": [[0.1, 0.3], [0.2, 0.3]]},
    "no noise": {"accuracy": [[0.9], [0.8]]},
}


def test_ends_are_grouped_by_mechanism_and_epsilon():
    assert finals(CURVES)["one"] == {3.0: [50, 60], 0.5: [30, 30]}
    assert finals(CURVES)["no noise"] == {None: [90, 80]}


def test_differences_are_taken_seed_by_seed():
    lines = table(CURVES, "base").splitlines()
    # differences 10 and 8: mean 9, half-width 12.706 · √2 / √2
    assert "| one | 3 | 2 | 55.00 ± 63.53 % | +9.00 ± 12.71 points |" in lines
    assert "| no noise |  | 2 | 85.00 ± 63.53 % |  |" in lines
    with pytest.raises(ValueError, match="must be among one, base, no noise"):
        table(CURVES, "nobody")


def test_the_picture_shows_something(tmp_path):
    picture = imread(draw(CURVES, tmp_path / "out.png"))
    assert picture.shape[1] > 900
    assert np.unique(picture.reshape(-1, picture.shape[2]), axis=0).shape[0] > 100
