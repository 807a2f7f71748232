"""`rqm init`: files to start from, which never overwrite another."""

import importlib
import sys
import tomllib
import zipfile
from io import BytesIO

import numpy
import pytest

from rqm.config.account import account_ledger
from rqm.ledger.node_policy import NodeGuard, Policy
from rqm.verify import verify
from tests.commands import rqm

torch = pytest.importorskip("torch")


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
    assert f"rqm flower simulate {folder} --nodes 50" in done.stdout
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "app"]:
        del sys.modules[name]


def config(folder):
    """The app's configuration as Flower reads it."""
    from flwr.common.config import flatten_dict

    return flatten_dict(tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def test_its_policy_allows_its_rounds_and_no_others(written):
    from rqm.flower import Settings

    net = importlib.import_module("app.task").new_model()
    size = sum(parameter.numel() for parameter in net.parameters())
    mean = Settings.from_run_config(config(written)).plan(("weight", "bias"), size).mean
    assert 7.5 < mean.guarantee().epsilon <= 8
    assert mean.participation.min_survivors == 40
    policy, rounds = Policy.from_toml(written / "policy.toml"), mean.participation.rounds
    policy.check(mean)
    assert policy.max_participations == rounds
    assert policy.counted(mean).account({0: 1}).epsilon <= policy.release_epsilon
    assert policy.counted(mean).account({0: rounds}).epsilon <= policy.epsilon
    assert policy.counted(mean).account({0: rounds + 1}).epsilon > policy.epsilon


def test_neither_policies_nor_ledgers_are_packed_into_the_app(written):
    from flwr.cli.build import build_fab_from_disk

    archive = zipfile.ZipFile(BytesIO(build_fab_from_disk(written)))
    names = {name for name in archive.namelist() if not name.startswith(".info")}
    assert names == {"pyproject.toml", *(f"app/{name}.py" for name in ("__init__", "client_app", "server_app", "task"))}


@pytest.mark.slow
def test_an_app_that_protects_its_users_and_learns(written, tmp_path, monkeypatch):
    """All fifty nodes in this process, by the app's own files, with the operating system's randomness."""
    from flwr.app import Context, RecordDict

    from tests.flower.local_grid import LocalGrid

    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    rqm("init", "--policy", "--trust-server", tmp_path / "state")
    client, server = (importlib.import_module(f"app.{name}").app for name in ("client_app", "server_app"))
    values, task = config(written), importlib.import_module("app.task")
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=values, series_id=0)
    server(LocalGrid(client, 50, values), context)
    (model,) = (tmp_path / "state" / "federations" / "you.private-app").glob("*/model.npz")
    net, arrays = task.new_model(), numpy.load(model)
    before = task.accuracy(net)
    net.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays})
    assert task.accuracy(net) > max(0.9, before + 0.3)
    outcome, report = account_ledger(model.parent)[0], verify(model.parent)
    assert (report.status, outcome.min_honest) == ("verified", 40)
    assert 7.5 < outcome.epsilon <= min(8, report.epsilon)


def test_an_app_is_never_written_over_another(written):
    (written / "app" / "task.py").write_text("mine")
    again = rqm("init", "--flower", written)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert (written / "app" / "task.py").read_text() == "mine"
