"""The example, four silos: ε ≤ 8 a record, it learns, a killed silo is survived, and all ledgers are verified."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib

import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord
from flwr.common.config import flatten_dict
from flwr.serverapp.strategy import FedAvgM

from rqm.config.account import account_ledger
from rqm.flower import PrivateClientApp, PrivateStrategy, Settings, gathered
from rqm.ledger.node_policy import Policy
from rqm.verify import verify
from tests.commands import rqm
from tests.flower.local_grid import LocalGrid
from tests.flower.users import EXAMPLE


def task():
    """The example's model and data."""
    spec = importlib.util.spec_from_file_location("silos_task", EXAMPLE / "app" / "task.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def config():
    return flatten_dict(tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def test_its_policy_allows_its_rounds_and_no_others():
    mean, policy = (
        Settings.from_run_config(config()).plan(("weight",), 48_670).mean,
        Policy.from_toml(EXAMPLE / "policy.toml"),
    )
    rounds = mean.participation.rounds
    policy.check(mean)
    assert (policy.unit, policy.neighboring, policy.max_participations) == ("record", "add-or-remove-one", rounds)
    assert 7.5 < policy.counted(mean).account(dict.fromkeys(range(rounds), 1)).epsilon <= policy.epsilon == 8


@pytest.mark.slow  # half a minute
def test_it_learns_at_an_epsilon_of_eight_and_its_ledger_is_verified(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path))
    rqm("init", "--policy", "--trust-server", tmp_path)
    task_module, values, app = task(), config(), PrivateClientApp()
    silos = [task_module.local_data(values["writers"], number) for number in range(4)]

    @app.train()
    def train(message, context):
        net = task_module.new_model()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return gathered(message, net, task_module.losses, *silos[context.node_config["partition-id"]], alone=True)

    optimizer = FedAvgM(fraction_evaluate=0.0, server_learning_rate=8.0, server_momentum=0.7)
    private = PrivateStrategy(optimizer, Settings.from_run_config(values), federation="silos")
    net = task_module.new_model()
    earlier = task_module.accuracy(net)
    result = private.start(LocalGrid(app, 4, values), ArrayRecord(net.state_dict()))
    net.load_state_dict(result.arrays.to_torch_state_dict())
    assert task_module.accuracy(net) > earlier + 0.15  # of 62 classes
    (path,) = tmp_path.glob("federations/silos/*/ledger.jsonl")
    outcome, charged = account_ledger(path)
    assert charged["charges"] == 5
    assert (outcome.threat_model.unit, outcome.min_honest) == ("record", 3)
    assert 7 < outcome.epsilon <= 8
    report = verify(path)
    assert (report.status, report.unit) == ("verified", "record")
    assert report.epsilon == pytest.approx(outcome.epsilon, rel=0.02)  # by another bound


@pytest.mark.slow  # some minutes, mostly of waiting
def test_live_silos_learn_and_a_killed_one_is_survived(tmp_path):
    """A SuperLink and four SuperNodes with TLS, keys, and policies that allow ε ≤ 8 a record."""
    state, kept_folder = tmp_path / "state", tmp_path / "kept"
    command = [sys.executable, EXAMPLE / "federation.py", "--state", state, "--keep", kept_folder, "--kill", "2"]
    done = subprocess.run([*map(str, command), "--limit", "1500"], capture_output=True, text=True, check=False)
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, output[-3000:] + done.stderr[-6000:]
    assert output.count("killing the SuperNode") == 1
    assert "'survivors': 3" in output
    accuracies = [float(outcome) for outcome in re.findall(r"'accuracy': '([\d.e+-]+)'", output)]
    assert accuracies[0] < 0.05  # chance: one of 62
    assert accuracies[-1] > 0.15
    assert "5 of 5 charged rounds were released" in output
    assert "record-level (add-or-remove-one), against the server and other silos" in output
    (ledger,) = state.glob("federations/rqm.rqm-flower-example/*/ledger.jsonl")
    charged = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    assert [entry["round"] for entry in charged] == [0, 1, 2, 3, 4]
    node_ledgers = sorted(kept_folder.glob("home-*/node/*/ledger.jsonl"))
    assert len(node_ledgers) == 4
    for path, limit in zip(
        [ledger, *node_ledgers], [8.0, 8.0, 8.0, 8.0, 6.0], strict=True
    ):  # the last was killed in its second
        outcome, report = account_ledger(path), verify(path)
        assert (report.status, report.unit) == ("verified", "record")
        assert report.epsilon == pytest.approx(outcome[0].epsilon, rel=0.02)
        assert outcome[0].epsilon <= limit
