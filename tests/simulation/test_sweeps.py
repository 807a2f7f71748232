"""Sweeps: variants and seeds, time slices, and confidence intervals."""

import json

import numpy as np
import pytest

from rqm import RQM, Noiseless, account
from rqm._util.numeric import mean_and_interval
from rqm.config.sweep import Sweep
from rqm.ledger.ledger import LEDGER
from rqm.report.plots import plot_curves, save
from rqm.simulation import run_folder, sweeps
from tests.commands import rqm
from tests.plans import change_plan
from tests.simulation.test_run_folder import pictures

TOML = """
data = "blobs"
model = "linear"
clients = 4
rounds = 4
evaluate_every = 2
device = "cpu"
seeds = 2
[server]
rate = 0.1
[[variants]]
name = "RQM Δ=c"
mechanism = { mechanism = "rqm", clip = 0.5 }
[[variants]]
name = "plain"
mechanism = { mechanism = "noiseless", clip = 0.5 }
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    return path


def test_variants_and_settings(experiment):
    sweep = Sweep.from_toml(experiment, ["seeds=3", "rounds=7", "server.rate=0.2"])
    assert sweep.seeds == 3
    assert [plan.mechanism for plan in sweep.variants.values()] == [RQM(clip=0.5), Noiseless(clip=0.5)]
    assert {(plan.participation.rounds, plan.server.rate) for plan in sweep.variants.values()} == {(7, 0.2)}
    experiment.write_text('[[variants]]\nname = "a"\nmechanism = { mechanism = "rqm", clip = 0.5 }\n')
    only = Sweep.from_toml(experiment, ["mechanism.keep=0.3"])
    assert only.variants["a"].mechanism == RQM(clip=0.5, keep=0.3)


def test_a_sweep_in_time_slices_has_the_same_curves(experiment, tmp_path):
    plans = Sweep.from_toml(experiment)
    assert sweeps.carry_out_sweep(plans, lambda _: pictures(), tmp_path / "one")
    slices = 0
    while not sweeps.carry_out_sweep(
        plans, lambda _: pictures(), tmp_path / "many", minutes=1e-9 if slices % 2 else 1e-3
    ):
        slices += 1
        assert slices < 200
    whole, sliced = (json.loads(sweeps.save_curves(plans, tmp_path / name).read_text()) for name in ("one", "many"))
    assert whole == sliced
    assert list(whole) == ["RQM Δ=c", "plain"]
    assert np.shape(whole["plain"]["accuracy"]) == (2, 2)
    assert whole["plain"]["round"] == [2, 4]
    assert (tmp_path / "one" / "rqm-c" / "seed-1" / run_folder.SUMMARY).exists()
    assert save(plot_curves(whole), tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_private_runs_of_a_sweep_have_ledgers(experiment, tmp_path):
    plans = Sweep.from_toml(experiment)
    sweeps.carry_out_sweep(plans, lambda _: pictures(), tmp_path / "out")
    printed = json.loads(rqm("account", tmp_path / "out", "--json").stdout)
    assert [run["name"] for run in printed["runs"]] == ["rqm-c/seed-0", "rqm-c/seed-1"]
    expected = account(change_plan(plans.variants["RQM Δ=c"], dim=2355)).epsilon
    assert {run["epsilon"] for run in printed["runs"]} == {expected}
    assert {run["charges"] for run in printed["runs"]} == {4}
    assert not (tmp_path / "out" / "plain" / "seed-0" / LEDGER).exists()
    assert "no noise, no privacy" in rqm("account", tmp_path / "out" / "plain" / "seed-0").stdout


def test_a_summary_needs_no_population(experiment, tmp_path):
    mechanism = '{ mechanism = "rounding", clip = 0.5, levels = 2, margin = 20.0 }'
    experiment.write_text(
        f'data = "blobs"\nmodel = "linear"\nclients = 4\nrounds = 1\nmechanism = {mechanism}\n'
        "transforms = { l2_clip = 0.5, rotate = true }\n"
    )
    plans, out = Sweep.from_toml(experiment), tmp_path / "out"
    assert json.loads(sweeps.save_curves(plans, out).read_text()) == {}  # before the first run is finished
    assert sweeps.carry_out_sweep(plans, lambda _: pictures(), out)
    summary = sweeps.save_summary(plans, out)
    assert summary["users"] is None
    assert "resampled" not in summary["sentence"]


def test_all_variants_are_validated_before_the_first_begins(experiment, tmp_path):
    experiment.write_text(TOML + "clients = 50\n")
    with pytest.raises(ValueError, match="plain: clients = 50: must be at most 12"):
        sweeps.carry_out_sweep(Sweep.from_toml(experiment), lambda _: pictures(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_intervals_are_those_of_students_t():
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302652729911275 / 3**0.5)
    assert np.isnan(mean_and_interval([[1.0, 2.0]])[1]).all()


def test_wrong_variants_are_refused(experiment):
    experiment.write_text("[[variants]]\nrounds = 3\n")
    with pytest.raises(ValueError, match="no name"):
        Sweep.from_toml(experiment)
    experiment.write_text('[[variants]]\nname = "a"\nround = 3\n')
    with pytest.raises(ValueError, match=r"did you mean variants\.rounds"):
        Sweep.from_toml(experiment)
