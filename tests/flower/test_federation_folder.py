"""What a server keeps of a federation: runs compose, side by side, and a spent budget ends one before it begins."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
import torch
from torch import nn

from rqm._util.files import state_folder
from rqm.bounds import compose, epsilon
from rqm.config.account import account_ledger
from rqm.flower import BudgetSpentError, private_mod
from rqm.flower.federation_folder import FEDERATIONS, PLAN_FILE, FederationFolder, app_name, reset_simulated
from rqm.flower.shared_plan import SharedPlan
from rqm.ledger.ledger import LEDGER, read
from tests.flower.local import (
    LocalGrid,
    arrays,
    federation_of,
    give_policies,
    plan_folder,
    plan_folders,
    private_strategy,
    start,
    survivors,
    training_app,
)
from tests.flower.test_attacks import Stopped
from tests.flower.test_private_run import LIMITS
from tests.simulation.small import federation, model

NODES = 8
CONFIG = {"rqm.epsilon": 100.0, "rqm.clients": NODES, "rqm.min-survivors": 6, "num-server-rounds": 2}
DATA = federation(clients=NODES)


def larger():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 3))


def run(folder, change=None, net=model, **options):
    config = {**CONFIG, **(change or {})}
    grid = LocalGrid(training_app(private_mod, DATA, net=net), NODES, config)
    result, private = start(grid, config, folder, net=net(), **options)
    return result, private, grid


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state of its own, of a machine whose nodes trust the server."""
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    state_folder().joinpath("policy.toml").write_text("trust_server = true\n")
    return tmp_path / "state"


def test_a_second_run_of_the_same_settings_is_refused_before_its_first_round(tmp_path):
    """It once continued silently to ε = 12.25; and with the budget spent an app overwrote its model with nothing."""
    run(tmp_path)
    saved = (plan_folder(tmp_path) / "model.npz").read_bytes()
    grid = LocalGrid(training_app(private_mod, DATA), NODES, CONFIG)
    private = private_strategy(CONFIG, tmp_path)
    with pytest.raises(
        BudgetSpentError, match=r"has spent its budget: ε = .* of 100 after 2 rounds\. Raise rqm\.epsilon"
    ):
        private.start(grid, arrays(model()))
    assert not grid.checks
    assert not grid.observed
    assert read(plan_folder(tmp_path) / LEDGER).charges.total() == 2
    assert (plan_folder(tmp_path) / "model.npz").read_bytes() == saved


def test_a_changed_model_has_a_plan_of_its_own_and_composes(tmp_path):
    """The same users are protected: what is spent on one model is not there for the other."""
    run(tmp_path)
    _, second, _ = run(tmp_path, {"rqm.epsilon": 200.0}, net=larger)
    folders = plan_folders(tmp_path)
    assert len(folders) == 2
    bounds = []
    for folder in folders:
        charges = read(folder / LEDGER).charges
        assert charges.total() == 2
        plan = SharedPlan.from_json(json.dumps(json.loads((folder / PLAN_FILE).read_text())["plan"]))
        bounds.append((plan.mean.account(charges).bound, 1))
    together = epsilon(compose(bounds), 1e-5)
    assert 150 < together <= 200
    assert second.run.guard.epsilon() == pytest.approx(together)
    assert second.run.guard.epsilon() > 1.3 * account_ledger(second.run._folder.run)[0].epsilon


def test_what_a_run_leaves_of_epsilon_is_all_that_another_model_gets(tmp_path):
    _, first, _ = run(tmp_path)
    with pytest.raises(BudgetSpentError, match=r"earlier runs leave .* of it, too little for a run"):
        run(tmp_path, net=larger)
    _, second, _ = run(tmp_path, {"rqm.epsilon": 130.0}, net=larger)
    assert first.run.guard.epsilon() < second.run.guard.epsilon() <= 130.0
    noises = [strategy.run.plan.mean.expected_error(0.0) ** 0.5 for strategy in (first, second)]
    assert noises[1] > 1.2 * noises[0]
    with pytest.raises(BudgetSpentError, match=r"earlier runs have spent .* of it: raise rqm\.epsilon"):
        run(tmp_path, {"rqm.epsilon": 60.0}, net=larger)


def test_more_epsilon_lets_a_spent_federation_go_on(tmp_path, caplog):
    run(tmp_path)
    result, second, _ = run(tmp_path, {"rqm.epsilon": 160.0})
    assert survivors(result) == [NODES, NODES]
    assert second.run.guard.epsilon() <= 160.0
    assert "earlier runs of this federation have spent ε = " in caplog.text
    assert "together with earlier runs of this federation: ε = " in caplog.text


def test_two_federations_are_side_by_side(tmp_path):
    _, first, _ = run(tmp_path / "one")
    _, second, _ = run(tmp_path / "other")
    assert first.run._folder.run != second.run._folder.run
    assert first.run.guard.epsilon() == second.run.guard.epsilon()  # neither counts the other's
    assert len(plan_folders(tmp_path / "one")) == len(plan_folders(tmp_path / "other")) == 1


def test_one_run_of_a_federation_at_a_time(tmp_path):
    folder = FederationFolder(federation_of(tmp_path))
    with pytest.raises(RuntimeError, match="another run of this federation is in progress; wait for its end"):
        run(tmp_path)
    folder.close()
    run(tmp_path)


def test_an_interrupted_run_continues_with_its_plan_and_ledger(tmp_path, caplog):
    """After a kill the same plan is read, not derived again, whatever the mechanism's search would find now."""
    config = {"num-server-rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, config, strategy=Stopped(1))
    text = (plan_folder(tmp_path) / PLAN_FILE).read_text()
    result, private, _ = run(tmp_path, config)
    assert "continues with the plan in" in caplog.text
    assert (plan_folder(tmp_path) / PLAN_FILE).read_text() == text
    assert read(plan_folder(tmp_path) / LEDGER).charges == {0: 1, 1: 1, 2: 1}
    assert survivors(result) == [NODES, NODES, 0]
    assert private.run.guard.epsilon() <= 100.0


def test_a_damaged_plan_is_named(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, strategy=Stopped(1))
    path = plan_folder(tmp_path) / PLAN_FILE
    for text in ("{", '{"plan": {}}', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="is damaged, or of another version of rqm: restore it"):
            run(tmp_path)


def test_the_model_is_saved_after_each_round_with_all_of_its_arrays(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, strategy=Stopped(1))
    first = dict(np.load(plan_folder(tmp_path) / "model.npz"))
    result, _, _ = run(tmp_path)
    saved = np.load(plan_folder(tmp_path) / "model.npz")
    assert set(saved) == set(first) == set(model().state_dict())
    for name, array in result.arrays.items():
        assert (saved[name] == array.numpy()).all()
        assert saved[name].dtype == array.numpy().dtype
    assert any((first[name] != saved[name]).any() for name in first)


def test_state_is_at_an_absolute_path_whatever_the_working_directory(tmp_path, monkeypatch):
    """It was relative to that of the SuperLink, and so in another app's folder."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    _, private, _ = run(tmp_path)
    assert private.run._folder.run.is_absolute()
    assert list(other.iterdir()) == []
    assert private.run._folder.run.is_relative_to(Path(os.environ["RQM_STATE"]).resolve())


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 101, "a\0b", "../x"])
def test_a_name_that_is_no_folders_is_refused(name):
    with pytest.raises(ValueError, match=r"rqm\.federation"):
        FederationFolder(name)


def test_the_name_of_an_app_is_its_publisher_and_its_own(tmp_path):
    app = tmp_path / "app" / "package"
    app.mkdir(parents=True)
    code = compile(
        "from rqm.flower.federation_folder import app_name\nname = app_name(1)", app / "server_app.py", "exec"
    )
    values = {}
    exec(code, values)
    assert values["name"] == ""
    (app / "pyproject.toml").write_text("[project]\nname = 'inner'\n")  # not of a Flower app
    (app.parent / "pyproject.toml").write_text(
        "[project]\nname = 'mine'\nversion = '1'\n[tool.flwr.app]\npublisher = 'me'\n"
    )
    exec(code, values)
    assert values["name"] == "me.mine"
    assert app_name(1) != "me.mine"


def test_the_state_of_simulated_nodes_can_be_reset_and_no_other(tmp_path, state):
    run(tmp_path)
    name = federation_of(tmp_path)
    assert reset_simulated(name) == state / FEDERATIONS / name
    run(tmp_path)  # as if it were the first
    with pytest.raises(ValueError, match=f"there is no such federation; known are {name}"):
        reset_simulated("other")
    for bad in ("", "..", "../federations", "."):
        with pytest.raises(ValueError, match="no such federation"):
            reset_simulated(bad)
    config = {**CONFIG, "rqm.federation": "x"}
    grid = LocalGrid(training_app(private_mod, DATA), NODES, config)
    give_policies(grid, tmp_path / "nodes", LIMITS)
    start(grid, config, tmp_path / "real")
    with pytest.raises(ValueError, match="nodes took part that were not simulated: their ledger must be kept"):
        reset_simulated(federation_of(tmp_path / "real"))
    assert plan_folder(tmp_path / "real").exists()


def test_one_node_with_a_policy_makes_a_federation_real(tmp_path):
    """Also after rounds of simulated nodes alone."""
    config = {**CONFIG, "num-server-rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, config, strategy=Stopped(1))
    grid = LocalGrid(training_app(private_mod, DATA), NODES, config)
    (tmp_path / "policy.toml").write_text(LIMITS)
    grid.contexts[103].node_config["rqm-policy"] = str(tmp_path / "policy.toml")
    start(grid, config, tmp_path)
    with pytest.raises(ValueError, match="must be kept"):
        reset_simulated(federation_of(tmp_path))
