"""`rqm init`: files to start from, which never overwrite another."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from rqm import account
from rqm.ledger.node_policy import NodeGuard, Policy
from tests.commands import rqm

ROOT = Path(__file__).parents[2]


def test_a_policy(tmp_path):
    path = tmp_path / "mine" / "policy.toml"
    assert str(path) in rqm("init", "--policy", tmp_path / "mine").stdout
    assert Policy.from_toml(path).max_participations == 10
    path.write_text("mine")
    again = rqm("init", "--policy", tmp_path / "mine")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert path.read_text() == "mine"
    for args in ((), ("--policy", "--flower"), ("--trust-server", "--flower"), ("--trust-server",)):
        refused = rqm("init", *args, tmp_path / "mine")
        assert (refused.returncode, "--policy" in refused.stderr) == (2, True)
    assert rqm("init", "--policy", "--trust-server", tmp_path).returncode == 0
    assert NodeGuard.of({"rqm-policy": str(tmp_path / "policy.toml")}) is None


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The app, ready to be imported."""
    pytest.importorskip("flwr")
    folder = tmp_path / "mine"
    done = rqm("init", "--flower", folder)
    assert done.returncode == 0, done.stderr
    assert "flwr run" in done.stdout
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "app"]:
        del sys.modules[name]


@pytest.mark.slow
def test_an_app_that_protects_its_users_and_learns(written, tmp_path):
    """All fifty nodes in this process, by the app's own files, with the operating system's randomness."""
    from flwr.common.config import flatten_dict

    from rqm.flower import PrivateStrategy, Settings
    from tests.flower.local import LocalGrid, arrays

    # as Flower reads it
    values = flatten_dict(tomllib.loads((written / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    settings = Settings.from_run_config(values)
    client, task = importlib.import_module("app.client_app"), importlib.import_module("app.task")
    net = task.new_model(values)
    guarantee = account(settings.plan, dim=sum(parameter.numel() for parameter in net.parameters()))
    assert 7.5 < guarantee.epsilon <= 8
    assert (guarantee.certified, guarantee.min_honest) == (True, 40)
    strategy = PrivateStrategy(settings, folder=tmp_path / "ledger")
    result = strategy.start(LocalGrid(client.app, 50, values), arrays(net))
    before = task.evaluate(values, net)
    net.load_state_dict(result.arrays.to_torch_state_dict())
    assert task.evaluate(values, net) > max(0.8, before + 0.1)
    assert 7.5 < result.train_metrics_clientapp[5]["epsilon"] <= 8


def test_an_app_is_never_written_over_another(written):
    (written / "app" / "task.py").write_text("mine")
    again = rqm("init", "--flower", written)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert (written / "app" / "task.py").read_text() == "mine"


def test_the_example_and_the_template_share_their_server():
    """One source: what differs is whom they protect, the model, the data and the numbers."""
    example = ROOT / "examples" / "flower" / "app" / "server_app.py"
    assert example.resolve() == (ROOT / "src/rqm/flower/template/app/server_app.py").resolve()
