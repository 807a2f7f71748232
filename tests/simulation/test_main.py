"""Training on a machine with only torch, NumPy and SciPy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rqm.ledger.ledger import LEDGER, read
from tests.commands import process, rqm

BLOCK = """
import sys
FORBIDDEN = ("numba", "llvmlite", "cryptography", "dp_accounting", "typer", "click", "rich", "matplotlib", "h5py",
             "safetensors", "pydantic", "pyarrow", "PIL", "flwr")

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Block())
import importlib.util
found = importlib.util.find_spec
def find_spec(name, *rest):
    return None if name.partition(".")[0] in FORBIDDEN else found(name, *rest)
importlib.util.find_spec = find_spec
from rqm.simulation.__main__ import main
code = main(sys.argv[1:])
assert not [name for name in FORBIDDEN if name in sys.modules]
sys.exit(code)
"""
SMALL = """
data = "mnist-writers"
model = "linear"
clients = 4
rounds = 3
evaluate_every = 3
device = "cpu"
"""
PLAN = (
    SMALL
    + """\
seeds = 2
[[variants]]
name = "RQM"
mechanism = { mechanism = "rqm", clip = 0.01 }
[[variants]]
name = "PBM"
mechanism = { mechanism = "pbm", clip = 0.01 }
[[variants]]
name = "few coordinates"
mechanism = { mechanism = "discrete-gaussian", clip = 0.1, steps = 5, bits = 10 }
transforms = { l2_clip = 1.0, rotate = true, coordinates = 500 }
"""
)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "mnist-writers.npz",
        images=rng.integers(0, 256, size=(200, 28, 28), dtype=np.uint8),
        labels=rng.integers(0, 10, size=200).astype(np.uint8),
        writers=np.repeat(np.arange(20), 10),
        is_test=np.arange(200) >= 150,
    )
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def bare(folder, *args):
    environment = {**os.environ, "RQM_DATA": str(folder)}
    command = [sys.executable, "-c", BLOCK, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_bare_machine_trains_and_resumes(folder):
    out = folder / "run"
    done = bare(folder, folder / "plan.toml", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stderr
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
    assert bare(folder, folder / "plan.toml", "--out", out).returncode == 0
    changed = bare(folder, folder / "plan.toml", "--out", out, "--set", "rounds=5")
    assert changed.returncode == 2
    assert "another plan" in changed.stderr


def test_a_bare_machine_sweeps(folder):
    done = bare(folder, folder / "plan.toml", "--sweep", "--out", folder / "all")
    assert done.returncode == 0, done.stderr
    curves = json.loads(Path(done.stdout.strip()).read_text())
    assert list(curves) == ["RQM", "PBM", "few coordinates"]
    assert curves["few coordinates"]["plan"]["transforms"]["coordinates"] == 500
    assert np.shape(curves["PBM"]["accuracy"]) == (2, 1)
    assert curves["PBM"]["plan"]["mechanism"]["mechanism"] == "pbm"


PRIVATE = (
    SMALL
    + """\
transforms = { l2_clip = 0.5, rotate = true }
mechanism = { mechanism = "rounding", clip = 0.02, levels = 2, margin = 60.0 }
"""
)


def test_a_bare_machine_charges_and_reads_epsilon_from_a_certificate(folder):
    plan = folder / "private.toml"
    plan.write_text(PRIVATE)
    silent = bare(folder, plan, "--out", folder / "silent")
    assert silent.returncode == 0, silent.stderr
    assert " ε " not in silent.stderr  # there is no accountant
    assert sum(read(folder / "silent" / LEDGER)[1].values()) == 3
    assert "epsilon" not in json.loads((folder / "silent" / "summary.json").read_text())
    planned = json.loads(rqm("account", plan, "--save", folder / "certificate.json", "--json").stdout)
    certified = bare(folder, plan, "--certificate", folder / "certificate.json", "--out", folder / "told")
    assert certified.returncode == 0, certified.stderr
    assert f" ε {planned['epsilon']:.4g}" in certified.stderr
    assert json.loads((folder / "told" / "summary.json").read_text())["epsilon"] == planned["epsilon"]
    for name in ("silent", "told"):  # here, where there is an accountant
        assert json.loads(rqm("account", folder / name, "--json").stdout)["epsilon"] == planned["epsilon"]


@pytest.mark.slow
def test_a_bare_machine_keeps_a_budget_by_a_certificate(folder):
    plan = folder / "private.toml"
    plan.write_text(PRIVATE)
    rqm("account", plan, "--save", folder / "certificate.json", "--json")
    epsilons = json.loads((folder / "certificate.json").read_text())["certificates"][0]["epsilons"]
    budget = f"budget_epsilon={1.01 * epsilons[1]}"
    stopped = bare(
        folder, plan, "--set", budget, "--certificate", folder / "certificate.json", "--out", folder / "stopped"
    )
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads((folder / "stopped" / "summary.json").read_text())["rounds"] == 2
    nobody = bare(folder, plan, "--set", budget, "--out", folder / "nobody")
    assert nobody.returncode == 2
    assert "give a certificate" in nobody.stderr
    changed = bare(
        folder, plan, "--set", "clients=5", "--certificate", folder / "certificate.json", "--out", folder / "other"
    )
    assert changed.returncode == 2
    assert "is for another plan" in changed.stderr
    assert not (folder / "nobody").exists()
    assert not (folder / "other").exists()


NO_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Block())
from rqm.cli import main
main()
"""


def test_accounting_needs_no_torch(folder):
    (folder / "private.toml").write_text(PRIVATE)
    code = NO_TORCH
    for args in (("account", "private.toml", "--json"), ("account", "user-level-server", "--set", "rounds=2")):
        done = process("-c", code, *args, cwd=folder)
        assert done.returncode == 0, done.stderr
    assert json.loads(process("-c", code, "account", "private.toml", "--json", cwd=folder).stdout)["dim"] == 8192


def test_errors_are_one_line(folder):
    done = bare(folder, folder / "plan.toml", "--out", folder / "run", "--set", "ronds=3")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "did you mean rounds?" in done.stderr
