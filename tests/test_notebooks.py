"""The notebooks run, and print what they show."""

import json

import pytest

from tools import notebooks

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def test_there_are_three_and_each_keeps_what_it_prints():
    assert len(PATHS) == 3
    for path in PATHS:
        cells = json.loads(path.read_text())["cells"]
        assert cells[0]["cell_type"] == "markdown"
        assert len([cell for cell in cells if cell.get("outputs")]) >= 4
        pictures = [one for cell in cells for one in cell.get("outputs", []) if "image/png" in one.get("data", {})]
        assert all(len(one["data"]["text/alt"][0]) > 20 for one in pictures)  # told to those who do not see them


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_notebook_prints_what_it_shows(path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    assert notebooks.texts(notebooks.run(path)) == notebooks.texts(json.loads(path.read_text()))


def test_a_cells_last_line_is_its_value_unless_it_ends_with_a_semicolon():
    from types import ModuleType

    module = ModuleType("one")
    assert notebooks.carry_out("x = 3\nx + 1", module) == ("", 4)
    assert notebooks.carry_out("print('a')\nx;", module) == ("a\n", None)
    assert notebooks.carry_out("y = 1", module) == ("", None)
