"""The example of four silos: ε ≤ 8 a record, it learns, a killed silo is survived, and its ledger is verified."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp

from rqm.flower import PrivateStrategy, Settings, gathered, private_mod
from rqm.plan.account import account_ledger
from rqm.verify import verify
from tests.flower.local import LocalGrid

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "silos"


def task():
    """The example's model and data."""
    spec = importlib.util.spec_from_file_location("silos_task", EXAMPLE / "app" / "task.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def config():
    def flat(table, prefix=""):
        for key, value in table.items():
            yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]

    return dict(flat(tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]))


@pytest.mark.slow  # half a minute
def test_it_learns_at_an_epsilon_of_eight_and_its_ledger_is_verified(tmp_path):
    own, values = task(), config()
    silos = [own.silo(values, number) for number in range(4)]
    app = ClientApp(mods=[private_mod])

    @app.train()
    def train(message, context):
        net = own.new_model(values)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return gathered(message, context, net, own.losses, *silos[int(context.node_config["partition-id"])])

    private = PrivateStrategy(Settings.from_run_config(values), folder=tmp_path)
    start = own.new_model(values)
    result = private.start(LocalGrid(app, 4, values), ArrayRecord(start.state_dict()))
    before = own.evaluate(values, start)
    start.load_state_dict(result.arrays.to_torch_state_dict())
    assert own.evaluate(values, start) > before + 0.15  # of 62 classes
    found, charged = account_ledger(tmp_path)
    assert charged["charges"] == 5
    assert (found.unit, found.honest) == ("record", 3)
    assert 7 < found.epsilon <= 8
    report = verify(tmp_path)
    assert (report.status, report.unit) == ("verified", "record")
    assert report.epsilon == pytest.approx(found.epsilon, rel=0.02)  # by another bound


@pytest.mark.slow  # five minutes, mostly of waiting
def test_a_killed_silo_is_survived(tmp_path):
    """Live: a SuperLink and four SuperNodes with TLS, keys, and policies that allow ε ≤ 8 a record."""
    command = [sys.executable, ROOT / "examples" / "flower" / "federation.py", "--app", EXAMPLE, "--nodes", "4"]
    command += [
        "--policy",
        EXAMPLE / "policy.toml",
        "--ledger",
        tmp_path,
        "--kill",
        "2",
        "--limit",
        "560",
        "--set",
        "rqm.rounds=3",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    said = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, said[-3000:] + done.stderr[-6000:]
    assert said.count("killing the SuperNode") == 1
    assert "'survivors': 3" in said
    accuracies = [float(found) for found in re.findall(r"'accuracy': '([\d.e+-]+)'", said)]
    assert accuracies[-1] > accuracies[0] + 0.1
    assert "for every record against the server" in said
    charged = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [entry["round"] for entry in charged] == [0, 1, 2]
    assert account_ledger(tmp_path)[0].epsilon <= 8
    assert verify(tmp_path).status == "verified"
