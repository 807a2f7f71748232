"""A run that charges its ledger: stops at its budget, never under-counts, refuses old copies."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rqm import StochasticRounding, account
from rqm.cli import app
from rqm.config.plan import Plan, ServerStep, Transforms
from rqm.config.run_files import CHECKPOINT
from rqm.ledger.ledger import LEDGER, read
from rqm.ledger.signing import LedgerError
from rqm.simulation import run_folder
from rqm.simulation.loop import RunState
from tests.plans import change_plan, make_plan
from tests.simulation import test_run_folder

DELTA = 1e-5


def pictures():
    """The small federation, said to be the data that the plan names."""
    return replace(test_run_folder.pictures(), name="mnist-writers", classes=10)


PLAN = make_plan(
    data="mnist-writers",
    model="linear",
    clients=4,
    rounds=6,
    evaluate_every=3,
    checkpoint_every=2,
    device="cpu",
    max_participations=3,
    transforms=Transforms(l2_clip=0.5, rotate=True),
    mechanism=StochasticRounding(clip=0.02, levels=2, margin=60.0),
    server=ServerStep(rate=0.1),
)


def train(plan, folder, watch=lambda record: None, **options):
    return run_folder.carry_out(plan, pictures(), folder, watch, **options)


def test_a_run_spends_what_its_plan_says(tmp_path):
    summary = train(PLAN, tmp_path / "run")
    assert summary["epsilon"] == pytest.approx(account(PLAN, DELTA).epsilon)
    assert not summary["budget_spent"]
    ledger = read(tmp_path / "run" / LEDGER)
    assert ledger.charges == dict.fromkeys(range(6), 1)
    assert ledger.head == summary["ledger_head"]
    assert ledger.subject["mean"]["dim"] == 7850
    assert ledger.subject["mean"] == PLAN.private_mean().to_dict()


def test_the_charge_comes_before_the_step(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "rqm.simulation.server_optimizer.ServerOptimizer.step", lambda self, *_: seen.append(len(read(ledger).charges))
    )
    ledger = tmp_path / "run" / LEDGER
    train(PLAN, tmp_path / "run")
    assert seen == [1, 2, 3, 4, 5, 6]


def test_the_budget_ends_a_run_before_it_is_passed(tmp_path):
    epsilons = [
        account(change_plan(PLAN, rounds=max(count, 2), max_participations=count), DELTA).epsilon for count in (1, 2, 3)
    ]
    assert epsilons[0] < epsilons[1] < epsilons[2]
    budget = (epsilons[1] + epsilons[2]) / 2
    plan = change_plan(PLAN, clients=12)  # everybody, every round: three rounds would be three participations
    with pytest.raises(ValueError, match="max_participations = 3"):
        train(plan, tmp_path / "impossible")
    plan = change_plan(PLAN, max_participations=None)
    summary = train(replace(plan, budget_epsilon=budget), tmp_path / "run")
    assert summary["budget_spent"]
    assert summary["rounds"] == 2
    assert summary["epsilon"] <= budget
    assert 0 <= summary["accuracy"] <= 1
    again = run_folder.carry_out(Plan.of_run(tmp_path / "run"), pictures(), tmp_path / "run", resume=True)
    assert again["rounds"] == 2  # the budget was saved with the plan
    assert train(plan, tmp_path / "run")["rounds"] == 6  # without a budget it goes on


def test_old_copies_are_refused(tmp_path):
    folder = tmp_path / "run"

    class StopError(Exception):
        pass

    def stop_at(round_number):
        def watch(record):
            if record.round == round_number:
                raise StopError

        return watch

    with pytest.raises(StopError):
        train(PLAN, folder, stop_at(3))
    old = {name: (folder / name).read_bytes() for name in (LEDGER, CHECKPOINT, run_folder.METRICS)}
    with pytest.raises(StopError):
        train(PLAN, folder, stop_at(5))
    _, charges, head, _ = read(folder / LEDGER)
    assert charges == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}  # round 3 was done again, and charged again

    shutil.copytree(folder, tmp_path / "ledger put back")
    (tmp_path / "ledger put back" / LEDGER).write_bytes(old[LEDGER])
    with pytest.raises(LedgerError, match="an older copy"):
        train(PLAN, tmp_path / "ledger put back")
    shutil.copytree(folder, tmp_path / "checkpoint put back")
    (tmp_path / "checkpoint put back" / CHECKPOINT).write_bytes(old[CHECKPOINT])
    summary = train(PLAN, tmp_path / "checkpoint put back")  # goes on, and pays for every round again
    assert read(tmp_path / "checkpoint put back" / LEDGER).charges[2] == 3
    assert summary["epsilon"] > account(PLAN, DELTA).epsilon
    shutil.copytree(folder, tmp_path / "both put back")
    for name, data in old.items():
        (tmp_path / "both put back" / name).write_bytes(data)
    with pytest.raises(LedgerError, match="not the latest copy"):
        train(PLAN, tmp_path / "both put back", expect_head=head)
    shutil.copytree(folder, tmp_path / "no ledger")
    (tmp_path / "no ledger" / LEDGER).unlink()
    with pytest.raises(LedgerError, match="is gone"):
        train(PLAN, tmp_path / "no ledger")


CHILD = """
import sys
from pathlib import Path
from tests.ledger.test_budget_guard import PLAN, train
train(PLAN, Path(sys.argv[1]))
"""


def test_killed_runs_pay_for_all_that_they_released(tmp_path):
    folder, rng = tmp_path / "run", np.random.default_rng(3)
    released = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)])
        while not (folder / LEDGER).exists() and child.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        child.kill()
        child.wait()
        lines = (folder / run_folder.METRICS).read_bytes().count(b"\n") if (folder / run_folder.METRICS).exists() else 0
        released = max(released, lines)
        charged = max(0, (folder / LEDGER).read_bytes().count(b"\n") - 1)  # killed before its first line, it is empty
        assert charged >= released
    subprocess.run([sys.executable, "-c", CHILD, str(folder)], check=True)
    assert set(read(folder / LEDGER).charges) == set(range(6))


def test_a_round_with_too_few_survivors_is_discarded_and_charged(tmp_path):
    plan = change_plan(PLAN, client_dropout=0.4, min_survivors=3, rounds=6)
    folder = tmp_path / "run"
    summary = train(plan, folder)
    rounds = [json.loads(line) for line in (folder / run_folder.METRICS).read_text().splitlines()]
    kept = [line["survivors"] >= 3 for line in rounds]
    assert True in kept
    assert False in kept
    assert [line.get("discarded", False) for line in rounds] == [not k for k in kept]
    assert sum(read(folder / LEDGER).charges.values()) == 6
    assert [line["bits_up"] for line in rounds] == [line["survivors"] * 8192 for line in rounds]
    guarantee = account(plan, DELTA)
    assert guarantee.min_honest == 3
    assert summary["epsilon"] == pytest.approx(guarantee.epsilon)
    assert guarantee.epsilon > account(change_plan(plan, client_dropout=0.0, min_survivors=None), DELTA).epsilon
    assert account(plan, DELTA, honest_clients=3).min_honest == 2  # the client that dropped out may have been honest
    assert account(change_plan(plan, min_survivors=None), DELTA).min_honest == 1
    printed = CliRunner().invoke(app, ["account", str(folder), "--json"])
    assert json.loads(printed.stdout)["epsilon"] == pytest.approx(summary["epsilon"])


def test_another_model_than_was_accounted_for_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 2355 parameters: 7850 are accounted for"):
        run_folder.carry_out(PLAN, replace(pictures(), classes=3), tmp_path / "run")
    run_folder.carry_out(
        PLAN, test_run_folder.pictures(), tmp_path / "run"
    )  # data of another name, and so of a size of their own
    assert read(tmp_path / "run" / LEDGER).subject["mean"]["dim"] == Plan.of_run(tmp_path / "run").dim == 2355


def test_a_discarded_round_leaves_the_model_alone():
    plan = change_plan(PLAN, client_dropout=0.95, min_survivors=4)
    trainer = RunState(plan, pictures())
    before = trainer.values.clone()
    record = trainer.step()
    assert record.discarded
    assert (trainer.values == before).all()
    assert trainer.rounds_done == 1
