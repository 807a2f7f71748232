"""``rqm init``: a file to start from, never over another."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from rqm import account
from rqm.plan.policy import NodeGuard, Policy
from tests.commands import rqm

ROOT = Path(__file__).parents[2]


def test_a_policy_to_start_from(tmp_path):
    path = tmp_path / "mine" / "policy.toml"
    assert str(path) in rqm("init", "--policy", tmp_path / "mine").stdout
    assert Policy.from_toml(path).max_participations == 10
    path.write_text("mine")
    again = rqm("init", "--policy", tmp_path / "mine")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert path.read_text() == "mine"
    for args in ((), ("--policy", "--flower"), ("--trust-server", "--flower"), ("--trust-server",)):
        nothing = rqm("init", *args, tmp_path / "mine")
        assert (nothing.returncode, "--policy" in nothing.stderr) == (2, True)


def test_a_policy_that_trusts_the_server(tmp_path):
    assert rqm("init", "--policy", "--trust-server", tmp_path).returncode == 0
    assert NodeGuard.of({"rqm-policy": str(tmp_path / "policy.toml")}) is None


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The app as it is written, ready to be imported."""
    pytest.importorskip("flwr")
    folder = tmp_path / "mine"
    done = rqm("init", "--flower", folder)
    assert done.returncode == 0, done.stderr
    assert "flwr run" in done.stdout
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "app"]:
        del sys.modules[name]


def config(folder):
    from flwr.common.config import flatten_dict  # as Flower reads it

    return flatten_dict(tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


@pytest.mark.slow
def test_an_app_that_protects_its_users_and_learns(written, tmp_path):
    """All fifty nodes in this process, by the app's own files, with the operating system's randomness."""
    from rqm.flower import PrivateStrategy, Settings
    from tests.flower.local import LocalGrid, arrays

    values = config(written)
    settings = Settings.from_run_config(values)
    client, task = importlib.import_module("app.client"), importlib.import_module("app.task")
    net = task.new_model(values)
    found = account(settings.plan, dim=sum(p.numel() for p in net.parameters()))
    assert 7.5 < found.epsilon <= 8
    assert found.certified
    assert found.min_honest == 40
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
    example = ROOT / "examples" / "flower" / "app" / "server.py"
    assert example.resolve() == (ROOT / "src/rqm/flower/template/app/server.py").resolve()
