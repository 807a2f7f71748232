import json
from pathlib import Path

import pytest

from rqm import Noiseless
from tests.plans import make_plan
from tools.redraw import accuracy_table, final_accuracies, main, plot_tradeoff

ACCURACIES = {
    "one, ε=3": {"accuracy": [[0.1, 0.5], [0.2, 0.6]]},
    "base, ε=3": {"accuracy": [[0.1, 0.4], [0.2, 0.52]]},
    "one, ε=0.5": {"accuracy": [[0.1, 0.3], [0.2, 0.3]]},
    "no noise": {"accuracy": [[0.9], [0.8]]},
}


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


def test_tradeoff_has_a_line_for_each_private_mechanism():
    figure = plot_tradeoff(ACCURACIES)
    means = [line.get_ydata().tolist() for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert means == [[30.0, 55.0], [46.0]]


def test_saved_results_are_drawn_next_to_their_file(tmp_path, capsys):
    plan = make_plan(mechanism=Noiseless(), clients=2).to_dict()
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"plain": {"round": [1, 2], "loss": [[2, 1]], "accuracy": [[0.1, 0.2]], "plan": plan}}))
    main("curves", str(path))
    path.write_text(json.dumps(ACCURACIES))
    main("tradeoff", str(path), "base")
    printed = capsys.readouterr().out.splitlines()
    assert [printed[0], printed[-1]] == [str(tmp_path / name) for name in ("result.png", "result-tradeoff.png")]
    assert all(Path(line).stat().st_size > 10_000 for line in (printed[0], printed[-1]))
    with pytest.raises(ValueError, match="KIND = 'curve': must be one of curves, tradeoff"):
        main("curve", str(path))
