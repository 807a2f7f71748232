"""`make demo`: what it runs, what it writes, and (slow) how accurate it is."""

import json
import re
from pathlib import Path

import pytest

from rqm.config.account import account_ledger
from rqm.config.experiments import find
from rqm.config.sweep import Sweep
from tests.commands import rqm

ROOT = Path(__file__).parents[2]
KEYS = {
    *("epsilon", "delta", "accuracy", "accuracy_noise_free", "bits_per_coordinate", "wire_bits_per_parameter"),
    "sentence",
}
TINY = ("rounds=2", "min_separation=2", "clients=6", "population=12", "evaluate_every=2")


def run_demo(folder, *settings):
    changes = [argument for setting in settings for argument in ("--set", setting)]
    done = rqm("train", "demo", "--sweep", *changes, "--out", folder)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text()), done.stdout


def test_the_makefile_runs_it():
    text = (ROOT / "Makefile").read_text()
    assert all(command in text for command in ("rqm train demo --sweep --out out/demo", "rqm train glyphs --sweep"))


def test_what_it_runs_is_private():
    """Certified, for the shipped plan; the variant without noise differs in nothing else."""
    variants = Sweep.from_toml(find("demo")).variants
    private, free = variants["private"], variants["noise-free"]
    guarantee = private.private_mean().guarantee()
    assert 7.9 < guarantee.epsilon <= 8
    assert (guarantee.certified, guarantee.delta, guarantee.bits_per_coordinate) == (True, 1e-5, 1)
    assert (guarantee.threat_model.adversary, guarantee.threat_model.neighboring) == ("server", "replace-one")
    assert not free.mechanism.adds_noise
    assert (free.server, free.transforms.l2_clip) == (private.server, private.transforms.l2_clip)


def test_a_small_demo_writes_its_summary(tmp_path):
    summary, printed = run_demo(tmp_path / "demo", *TINY)
    assert summary.keys() >= KEYS
    private = tmp_path / "demo" / "private" / "seed-0"
    assert summary["epsilon"] == account_ledger(private)[0].epsilon
    assert summary["accuracy"] == json.loads((private / "summary.json").read_text())["accuracy"]
    free = tmp_path / "demo" / "noise-free" / "seed-0" / "summary.json"
    assert summary["accuracy_noise_free"] == json.loads(free.read_text())["accuracy"]
    parts = ("training data of the assumed 12 users are resampled from 3,400", "(anyone can repeat the noise of seed 0")
    assert all(part in summary["sentence"] for part in parts)
    assert summary["sentence"] in printed
    assert re.search(r"report: .*report\.html", printed)
    assert (tmp_path / "demo" / "report.html").exists()
    assert summary["seconds"] > 0


@pytest.mark.slow  # two minutes on two idle cores
def test_the_whole_demo(tmp_path):
    summary, _ = run_demo(tmp_path / "demo")
    assert 7.9 < summary["epsilon"] <= 8
    assert summary["accuracy_noise_free"] >= 0.7
    assert summary["accuracy"] >= summary["accuracy_noise_free"] - 0.05
    assert "21,600" in summary["sentence"]
