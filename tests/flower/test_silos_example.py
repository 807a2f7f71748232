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
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict

from rqm.config.account import account_ledger
from rqm.flower import PrivateStrategy, Settings, gathered, private_mod
from rqm.ledger.node_policy import Policy
from rqm.verify import verify
from tests.flower.local import LocalGrid
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
    plan, policy = Settings.from_run_config(config()).plan, Policy.from_toml(EXAMPLE / "policy.toml")
    mean, rounds = plan.private_mean(48_670), plan.participation.rounds
    policy.check(plan, mean)
    assert (policy.unit, policy.neighboring, policy.max_participations) == ("record", "add-or-remove-one", rounds)
    assert policy.counted(mean).account(dict.fromkeys(range(rounds), 1)).epsilon <= policy.epsilon == 8


@pytest.mark.slow  # half a minute
def test_it_learns_at_an_epsilon_of_eight_and_its_ledger_is_verified(tmp_path):
    task_module, values = task(), config()
    silos = [task_module.local_data(values, number) for number in range(4)]
    app = ClientApp(mods=[private_mod])

    @app.train()
    def train(message, context):
        net = task_module.new_model(values)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return gathered(
            message, context, net, task_module.losses, *silos[int(context.node_config["partition-id"])], alone=True
        )

    private = PrivateStrategy(Settings.from_run_config(values), folder=tmp_path)
    start = task_module.new_model(values)
    result = private.start(LocalGrid(app, 4, values), ArrayRecord(start.state_dict()))
    earlier = task_module.evaluate(values, start)
    start.load_state_dict(result.arrays.to_torch_state_dict())
    assert task_module.evaluate(values, start) > earlier + 0.15  # of 62 classes
    outcome, charged = account_ledger(tmp_path)
    assert charged["charges"] == 5
    assert (outcome.threat_model.unit, outcome.min_honest) == ("record", 3)
    assert 7 < outcome.epsilon <= 8
    report = verify(tmp_path)
    assert (report.status, report.unit) == ("verified", "record")
    assert report.epsilon == pytest.approx(outcome.epsilon, rel=0.02)  # by another bound


@pytest.mark.slow  # some minutes, mostly of waiting
def test_live_silos_learn_and_a_killed_one_is_survived(tmp_path):
    """A SuperLink and four SuperNodes with TLS, keys, and policies that allow ε ≤ 8 a record."""
    ledger, kept_folder = tmp_path / "ledger", tmp_path / "kept"
    command = [sys.executable, EXAMPLE / "federation.py", "--ledger", ledger, "--keep", kept_folder, "--kill", "2"]
    done = subprocess.run([*map(str, command), "--limit", "1500"], capture_output=True, text=True, check=False)
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, output[-3000:] + done.stderr[-6000:]
    assert output.count("killing the SuperNode") == 1
    assert "'survivors': 3" in output
    accuracies = [float(outcome) for outcome in re.findall(r"'accuracy': '([\d.e+-]+)'", output)]
    assert accuracies[0] < 0.05  # chance: one of 62
    assert accuracies[-1] > 0.15
    fields = re.findall(r"\(ε = ([\d.]+), δ = 1e-06\) for every record against the server, certified, after", output)
    assert len(fields) == 5
    assert 7 < float(fields[-1]) <= 8
    charged = [json.loads(line) for line in (ledger / "ledger.jsonl").read_text().splitlines()[1:]]
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
