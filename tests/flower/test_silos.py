"""Silos on Flower: a record's ε in the log, nothing of a silo but its masked sum, and a node's own policy."""

import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from rqm.flower import PrivateStrategy, Settings, gathered, private_mod
from rqm.plan.account import account_ledger
from rqm.plan.policy import Policy, PolicyError
from rqm.training.work import losses
from tests.flower.local import LocalGrid, accuracy, arrays
from tests.training.small import federation, model

CONFIG = {
    "rqm.clients": 3,
    "rqm.rounds": 6,
    "rqm.survivors": 2,
    "rqm.delta": 1e-6,
    "rqm.mechanism.mechanism": "discrete-gaussian",
    "rqm.mechanism.clip": 4.0,
    "rqm.mechanism.scale": 0.3,
    "rqm.mechanism.steps": 1023,
    "rqm.mechanism.bits": 13,
    "rqm.transforms.l2_clip": 16.0,
    "rqm.transforms.rotate": True,
    "rqm.records.clip": 1.0,
    "rqm.records.batch": 90,
    "rqm.records.rate": 0.4,
    "rqm.server.rate": 1.0,
    "rqm.server.momentum": 0.5,
    "rqm.sends": "gradient",
    "rqm.device": "cpu",
}
DATA = federation(clients=24)
SILOS = DATA.train.merged(3)


def app(answer=gathered):
    made = ClientApp(mods=[private_mod])

    @made.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return answer(message, context, net, losses, *SILOS[context.node_config["partition-id"]])

    return made


def run(tmp_path, client=None, config=CONFIG, lose=lambda *_: False):
    grid = LocalGrid(client or app(), 3, config, lose)
    private = PrivateStrategy(Settings.from_run_config(config), folder=tmp_path)
    return private.start(grid, arrays(model())), private, grid


def test_silos_learn_and_the_ledger_tells_what_it_costs_a_record(tmp_path, caplog):
    result, _, _ = run(tmp_path)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA) + 0.2
    found, charged = account_ledger(tmp_path)
    assert charged["charges"] == 6
    assert (found.unit, found.record_rate, found.honest) == ("record", 0.4, 2)
    assert 0 < found.epsilon < 30
    assert "for every record against the server" in caplog.text
    assert result.train_metrics_clientapp[6]["epsilon"] == found.epsilon


def test_a_silo_that_is_lost_is_survived(tmp_path):
    result, _, _ = run(tmp_path, lose=lambda node, stage, turn: node == 101 and turn == 2)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA)


def test_what_was_not_clipped_record_by_record_is_not_sent(tmp_path):
    """A gradient of the batch, as an app would return that knows nothing of records: zero is encoded instead."""

    def of_batch(message, context, net, each, inputs, labels):
        (1e6 * each(net, inputs, labels).mean()).backward()
        found = ArrayRecord({name: p.grad for name, p in net.named_parameters()})
        return Message(RecordDict({"arrays": found}), reply_to=message)

    result, _, _ = run(tmp_path, app(of_batch), CONFIG | {"rqm.rounds": 1})
    moved = max(
        abs(after.numpy() - before.numpy()).max()
        for after, before in zip(result.arrays.values(), arrays(model()).values(), strict=True)
    )
    assert moved < 0.3  # noise alone: 2.1 over 90


def test_what_does_not_go_with_records_is_refused():
    assert Settings.from_run_config(CONFIG).plan.records.clip == 1.0
    with pytest.raises(ValueError, match=r"rqm\.sends = 'update': must be 'gradient'"):
        Settings.from_run_config(CONFIG | {"rqm.sends": "update"})
    fixed = {name: value for name, value in CONFIG.items() if name != "rqm.records.rate"}
    with pytest.raises(ValueError, match=r"rqm\.records\.batches = 5"):
        Settings.from_run_config(fixed | {"rqm.records.batches": 5, "rqm.records.neighbours": "replace"})
    users = {name: value for name, value in CONFIG.items() if "records" not in name}
    grid = LocalGrid(app(), 3, users)
    with pytest.raises(ValueError, match=r"rqm\.records: must be given"):
        gathered(None, grid.contexts[100], model(), losses, *SILOS[0])


LIMITS = {"epsilon": 30.0, "delta": 1e-6, "release_epsilon": 20.0, "l2_clip": 1.0, "clients": 3, "participations": 10}


def test_a_policy_for_the_whole_of_a_node_takes_no_part_in_rounds_that_protect_a_record():
    plan = Settings.from_run_config(CONFIG).plan
    trusting = {"honest": 3, "trust_server_with_keys": True}
    with pytest.raises(PolicyError, match="unit = record: must be user"):
        Policy(**LIMITS, **trusting).check(plan, plan.private_mean(51))
    mine = Policy(**LIMITS, **trusting, unit="record")
    mine.check(plan, plan.private_mean(51))
    assert mine.counted(plan.private_mean(51)).unit == "record"
    with pytest.raises(PolicyError, match=r"l2_clip = 1\.0: must be at most 0\.5"):
        Policy(**LIMITS | {"l2_clip": 0.5}, **trusting, unit="record").check(plan, plan.private_mean(51))
    with pytest.raises(ValueError, match="unit = 'patient'"):
        Policy(**LIMITS, **trusting, unit="patient")


def test_a_silo_counts_its_own_rounds(tmp_path):
    from rqm.plan.policy import NodeGuard

    plan = Settings.from_run_config(CONFIG).plan
    policy = Policy(**LIMITS | {"participations": 2}, honest=3, trust_server_with_keys=True, unit="record")
    guard = NodeGuard(policy, tmp_path)
    for turn in range(2):
        guard.allow(plan, 51, bytes([turn]))
        guard.charge(plan, 51, turn)
    with pytest.raises(PolicyError, match="participations = 3: must be at most 2"):
        guard.allow(plan, 51, b"again")
