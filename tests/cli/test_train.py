"""`rqm train` as a user types it."""

import json

import numpy as np
import pytest

from tests.cli.test_cases import PLAN
from tests.commands import rqm, rqm_json

SMALL = ("--set", "rounds=3", "--set", "clients=3", "--set", "model=linear", "--set", "evaluate_every=3")


def test_a_run_and_its_files(tmp_path):
    folder = tmp_path / "deep" / "run"
    done = rqm("train", "glyphs", *SMALL, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert all(part in done.stdout for part in ("accuracy", "8 times less than float32"))
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert {"seconds", "bits_up", "clients_loss_not_released"} <= rounds[0].keys()
    assert "accuracy" not in rounds[0]
    assert rounds[2]["accuracy"] == json.loads((folder / "summary.json").read_text())["accuracy"]
    assert json.loads((folder / "plan.json").read_text())["clients"] == 3
    again = rqm("train", "glyphs", *SMALL, "--out", folder)
    assert (again.returncode, "--resume" in again.stderr) == (1, True)
    assert rqm("train", "--resume", folder).returncode == 0


def test_data_are_read_from_a_folder_and_missing_data_name_their_source(tmp_path):
    command = ("train", "mnist-writers", *SMALL, "--data", tmp_path, "--out", tmp_path / "run")
    missing = rqm(*command)
    assert (missing.returncode, "QMNIST" in missing.stderr, str(tmp_path) in missing.stderr) == (1, True, True)
    assert not (tmp_path / "run").exists()
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, size=(200, 28, 28), dtype=np.uint8),
        "labels": rng.integers(0, 10, size=200).astype(np.uint8),
        "writers": np.repeat(np.arange(20), 10),
        "is_test": np.arange(200) >= 150,
    }
    np.savez(tmp_path / "mnist-writers.npz", **arrays)
    done = rqm(*command)
    assert done.returncode == 0, done.stderr


def test_a_budget_a_ledger_and_its_account(tmp_path):
    plan, folder = tmp_path / "plan.toml", tmp_path / "run"
    plan.write_text(PLAN)
    done = rqm("train", plan, "--budget-epsilon", "1.2", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "-DP for every user against the server" in done.stderr + done.stdout
    assert "the budget is spent" in done.stdout
    summary, account = json.loads((folder / "summary.json").read_text()), rqm_json("account", folder)
    assert 0 < summary["rounds"] < 4
    assert summary["epsilon"] <= 1.2
    assert account["epsilon"] == pytest.approx(summary["epsilon"])
    assert account["head_hash"] == summary["ledger_head"]
    wrong = rqm("train", "--resume", folder, "--expect-head", "0" * 64)
    assert (wrong.returncode, "not the latest copy" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("epsilon", "experiment"), [("0.001", "plan.toml"), ("9", "glyphs")])
def test_a_budget_for_less_than_one_round(epsilon, experiment, tmp_path):
    """Without an L2 clip, as in glyphs, one round costs more than any budget."""
    (tmp_path / "plan.toml").write_text(PLAN)
    done = rqm("train", experiment, "--budget-epsilon", epsilon, "--out", "none", folder=tmp_path)
    assert done.returncode == 2
    assert f"--budget-epsilon {epsilon}: must be at least " in done.stderr
    assert not (tmp_path / "none").exists()
