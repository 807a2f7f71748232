"""``rqm train`` and ``rqm experiments`` as a user types them."""

import json

import numpy as np
import pytest

from tests.commands import rqm

QUICK = ("--set", "rounds=3", "--set", "clients=3", "--set", "model=linear", "--set", "evaluate_every=3")


def test_a_run_its_files_and_its_end(tmp_path):
    folder = tmp_path / "deep" / "run"
    result = rqm("train", "glyphs", *QUICK, "--out", str(folder))
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "8 times less than float32" in result.stdout
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert {"seconds", "bits_up", "clients_loss_not_released"} <= rounds[0].keys()
    assert "accuracy" not in rounds[0]
    assert rounds[2]["accuracy"] == json.loads((folder / "summary.json").read_text())["accuracy"]
    assert json.loads((folder / "plan.json").read_text())["clients"] == 3
    again = rqm("train", "glyphs", *QUICK, "--out", str(folder))
    assert again.returncode == 1
    assert "--resume" in again.stderr
    assert rqm("train", "--resume", str(folder)).returncode == 0


def test_the_resolved_plan_is_printed():
    plan = json.loads(rqm("train", "glyphs", "--set", "mechanism.keep=0.5", "--print-config").stdout)
    assert plan["mechanism"]["keep"] == 0.5
    assert plan["server"]["optimizer"] == "momentum"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("glyphs", "--set", "ronds=3"), "did you mean rounds?"),
        (("glyphs", "--set", "mechanism.keap=3"), "did you mean mechanism.keep?"),
        (("glyphs", "--set", "server.rate=-1"), "--set server.rate=-1: must be a positive finite number"),
        (("nope",), "must be a TOML file or a name (rqm experiments lists all)"),
        (("glyphs",), "--out"),
        ((), "EXPERIMENT"),
    ],
)
def test_a_bad_plan_is_one_line(args, words):
    result = rqm("train", *args)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_missing_data_say_where_they_come_from(tmp_path):
    result = rqm("train", "mnist-writers", "--data", str(tmp_path), "--out", str(tmp_path / "run"))
    assert result.returncode == 1
    assert "QMNIST" in result.stderr
    assert str(tmp_path) in result.stderr
    assert not (tmp_path / "run").exists()


def test_data_in_a_folder_are_found(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, size=(200, 28, 28), dtype=np.uint8),
        "labels": rng.integers(0, 10, size=200).astype(np.uint8),
        "writers": np.repeat(np.arange(20), 10),
        "is_test": np.arange(200) >= 150,
    }
    np.savez(tmp_path / "mnist-writers.npz", **arrays)
    result = rqm("train", "mnist-writers", *QUICK, "--data", str(tmp_path), "--out", str(tmp_path / "run"))
    assert result.returncode == 0, result.stderr


def test_the_experiments_are_listed():
    listed = rqm("experiments").stdout
    assert "glyphs" in listed
    assert "mnist-writers" in listed


def test_a_budget_a_ledger_and_its_account(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
data = "glyphs"
model = "linear"
clients = 20
rounds = 4
transforms = { l2_clip = 0.5, rotate = true }
mechanism = { mechanism = "rounding", clip = 0.0078125, levels = 2, margin = 150.0 }
"""
    )
    folder = tmp_path / "run"
    done = rqm("train", str(plan), "--budget-epsilon", "1.2", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    none = rqm("train", str(plan), "--budget-epsilon", "0.001", "--out", str(tmp_path / "none"))
    assert none.returncode == 2
    assert "--budget-epsilon 0.001: must be at least 0." in none.stderr
    assert not (tmp_path / "none").exists()
    assert "the budget is spent" in done.stdout
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 < summary["rounds"] < 4
    assert summary["epsilon"] <= 1.2
    told = json.loads(rqm("account", str(folder), "--json").stdout)
    assert told["epsilon"] == pytest.approx(summary["epsilon"])
    assert told["head_hash"] == summary["ledger_head"]
    wrong = rqm("train", "--resume", str(folder), "--expect-head", "0" * 64)
    assert wrong.returncode == 2
    assert "not the latest copy" in wrong.stderr
    bare = rqm("train", "glyphs", *QUICK, "--budget-epsilon", "9", "--out", str(tmp_path / "other"))
    assert bare.returncode == 2
    assert "--budget-epsilon 9: must be at least " in bare.stderr  # without an L2 clip a round costs all
