"""Ledgers, plans, checkpoints and Flower settings of version 0.1.0 go on, and none of them pays less than it must."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rqm import Plan, account
from rqm.data import load
from rqm.plan.account import account_ledger
from rqm.privacy.ledger import LEDGER, Ledger, LedgerError, read
from rqm.training import checkpoint, run
from rqm.training.trainer import Trainer
from tests.commands import rqm

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1.0"


@pytest.fixture
def old(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What those runs were trained on: noise."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, size=(200, 28, 28), dtype=np.uint8),
        "labels": rng.integers(0, 10, size=200).astype(np.uint8),
        "writers": np.repeat(np.arange(20), 10),
        "is_test": np.arange(200) >= 150,
    }
    np.savez(place / "mnist-writers.npz", **arrays)
    return place


def test_a_ledger_is_accounted_for_with_the_dimension_that_it_charged(old):
    """11,000,000 parameters on Flower: version 0.1.0's own account said 3.9, its guard 13.1."""
    said = json.loads((old / "flower-11000000" / "said.json").read_text())
    found, charged = account_ledger(old / "flower-11000000")
    assert 0.9 * said["epsilon"] < found.epsilon <= said["epsilon"]  # by a tighter bound
    assert (found.dim, found.delta, found.honest) == (2**24, said["delta"], 900)
    assert charged["charges"] == 3
    told = json.loads(rqm("account", old / "flower-11000000" / LEDGER, "--json").stdout)
    assert told["epsilon"] == found.epsilon


def test_a_finished_run_says_what_it_said(old, data):
    summary = json.loads((old / "finished" / run.SUMMARY).read_text())
    found, _ = account_ledger(old / "finished")
    assert 0.8 * summary["epsilon"] < found.epsilon <= summary["epsilon"]  # by a tighter bound
    assert found.delta == summary["delta"] == 1 / 50
    again = rqm("train", "--resume", old / "finished", "--data", data)
    assert again.returncode == 0, again.stderr
    after = json.loads((old / "finished" / run.SUMMARY).read_text())
    for key in ("rounds", "epsilon", "delta", "ledger_head", "parameters", "bits_up"):
        assert after[key] == (found.epsilon if key == "epsilon" else summary[key])


def test_an_interrupted_run_goes_on_under_its_own_ledger(old, data):
    """Stopped after round 3, its checkpoint is that of round 2: round 3 is done, and paid for, again."""
    before = read(old / "private" / LEDGER)
    assert before[1] == {0: 1, 1: 1, 2: 1}
    done = rqm("train", "--resume", old / "private", "--data", data)
    assert done.returncode == 0, done.stderr
    about, spent, _ = read(old / "private" / LEDGER)
    assert about == before[0]
    assert spent == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
    summary = json.loads((old / "private" / run.SUMMARY).read_text())
    assert summary["delta"] == 1 / 50  # as the ledger says, not today's default
    assert summary["epsilon"] == account_ledger(old / "private")[0].epsilon
    assert summary["epsilon"] > account(Plan.of_run(old / "private"), 1 / 50).epsilon  # for round 3, twice
    wrong = rqm("train", "--resume", old / "private", "--data", data, "--delta", "1e-9")
    assert "belongs to another plan" in wrong.stderr


def test_a_run_without_a_ledger_pays_for_all_that_it_may_have_released(old, data):
    """Version 0.1.0 kept none without an L2 clip: three rounds are on record, a fourth may have been in the works."""
    bare = rqm("account", old / "plain")
    assert bare.returncode == 2
    assert "kept no ledger" in bare.stderr
    done = rqm("train", "--resume", old / "plain", "--data", data)
    assert done.returncode == 0, done.stderr
    assert read(old / "plain" / LEDGER)[1] == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}


def test_a_checkpoint_is_what_it_was(old, data):
    plan = Plan.of_run(old / "private")
    trainer = Trainer(plan, load("mnist-writers", data))
    size, head = checkpoint.restore(trainer, old / "private")
    assert (trainer.done, size) == (2, 430)
    with Ledger(old / "private" / LEDGER, read(old / "private" / LEDGER)[0]) as ledger:
        assert head in ledger
    assert float(trainer.values.norm()) > 0
    with pytest.raises(ValueError, match="another plan"):
        checkpoint.restore(Trainer(replace(plan, seed=1), load("mnist-writers", data)), old / "private")


def test_the_ledger_of_a_changed_plan_is_refused(old, data):
    for change in ({"clients": 5}, {"participations": 2}, {"honest": 3}, {"survivors": 3}):
        with pytest.raises((LedgerError, ValueError), match="another plan"):
            run.carry_out(replace(Plan.of_run(old / "private"), **change), load("mnist-writers", data), old / "private")


def test_settings_of_flower_are_read():
    pytest.importorskip("flwr")
    from rqm.flower import Settings
    from rqm.secagg import security

    settings = Settings.from_run_config(json.loads((OLD / "flower-settings.json").read_text()))
    assert (settings.plan.delta, settings.plan.budget_epsilon, settings.plan.survivors) == (1e-6, 8.0, 900)
    assert settings.sends == "update"
    derived = security(1000, 900, 0)  # what the file says of it was chosen for a graph that the server drew
    assert (settings.params(3, b"1").degree, settings.params(3, b"1").threshold) == derived[:2]
    about, _, _ = read(OLD / "flower-11000000" / LEDGER)
    from rqm.plan.account import charged_mean

    assert charged_mean(about).promises() == settings.plan.private_mean(11_000_000).promises()
