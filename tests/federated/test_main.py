"""Training where there is nothing but torch, NumPy and SciPy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
from rqm.federated.__main__ import main
code = main(sys.argv[1:])
assert not [name for name in FORBIDDEN if name in sys.modules]
sys.exit(code)
"""
PLAN = """
data = "mnist-writers"
model = "linear"
clients = 4
rounds = 3
evaluate_every = 3
device = "cpu"
seeds = 2
[[variants]]
name = "RQM"
mechanism = { mechanism = "rqm", clip = 0.01 }
[[variants]]
name = "PBM"
mechanism = { mechanism = "pbm", clip = 0.01 }
"""


@pytest.fixture
def place(tmp_path):
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


def bare(place, *args):
    environment = {**os.environ, "RQM_DATA": str(place)}
    command = [sys.executable, "-c", BLOCK, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_bare_machine_trains_and_goes_on(place):
    out = place / "run"
    done = bare(place, place / "plan.toml", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stderr
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
    assert bare(place, place / "plan.toml", "--out", out).returncode == 0
    other = bare(place, place / "plan.toml", "--out", out, "--set", "rounds=5")
    assert other.returncode == 2
    assert "another plan" in other.stderr


def test_a_bare_machine_sweeps(place):
    done = bare(place, place / "plan.toml", "--sweep", "--out", place / "all")
    assert done.returncode == 0, done.stderr
    curves = json.loads(Path(done.stdout.strip()).read_text())
    assert list(curves) == ["RQM", "PBM"]
    assert np.shape(curves["PBM"]["accuracy"]) == (2, 1)
    assert curves["PBM"]["plan"]["mechanism"]["mechanism"] == "pbm"


def test_errors_are_one_line(place):
    done = bare(place, place / "plan.toml", "--out", place / "run", "--set", "ronds=3")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "did you mean rounds?" in done.stderr
