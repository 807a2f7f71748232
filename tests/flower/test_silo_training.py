"""Silos on Flower: a record's ε in the log, nothing of a silo but its masked sum, and a node's own policy."""

import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from torch import nn

from rqm.config.account import account_ledger
from rqm.flower import RunFailedError, gathered, private, private_mod
from rqm.flower.messages import request_message
from rqm.ledger import node_policy
from rqm.ledger.node_policy import NodeGuard, Policy, PolicyError
from rqm.secagg import ProtocolError
from rqm.secagg.wire import Kind
from rqm.simulation.models import example_losses
from tests.flower.local import (
    LocalGrid,
    accuracy,
    arrays,
    give_policies,
    plan_folder,
    plan_of,
    settings_of,
    start,
)
from tests.simulation.small import federation, model

CONFIG = {
    "rqm.epsilon": 30.0,
    "rqm.clients": 3,
    "rqm.rounds": 6,
    "rqm.min-survivors": 2,
    "rqm.delta": 1e-6,
    "rqm.mechanism.mechanism": "discrete-gaussian",
    "rqm.mechanism.clip": 4.0,
    "rqm.mechanism.scale": 0.3,
    "rqm.mechanism.steps": 1023,
    "rqm.mechanism.bits": 13,
    "rqm.l2-clip": 16.0,
    "rqm.record-clip": 1.0,
    "rqm.records-per-round": 90,
    "rqm.sampling-rate": 0.4,
}
DATA = federation(clients=24)
SILOS = DATA.train.merge(3)


def app(answer=gathered, net=model, mod=private_mod):
    made = ClientApp(mods=[mod])

    @made.train()
    def train(message, context):
        received = net()
        received.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return answer(message, received, example_losses, *SILOS[context.node_config["partition-id"]])

    return made


def optimizer():
    """The server's step, for which silos' gradients are updates."""
    return FedAvgM(fraction_evaluate=0.0, server_learning_rate=1.0, server_momentum=0.5)


def plan(change=None):
    return plan_of(CONFIG | (change or {}))


def run(tmp_path, client=None, config=CONFIG, lose=lambda *_: False, **options):
    grid = LocalGrid(client or app(), 3, config, lose)
    return *start(grid, config, tmp_path, strategy=optimizer(), **options), grid


def refusals(tmp_path, client, reason):
    """What nodes answer that refuse to train, after which the run fails."""
    grid = LocalGrid(client, 3, CONFIG)
    with pytest.raises(RunFailedError, match="all 3 nodes refuse to train"):
        start(grid, CONFIG | {"rqm.rounds": 1}, tmp_path, strategy=optimizer())
    errors = [reply.error.reason for stage, reply in grid.observed if stage == Kind.MASKED]
    assert len(errors) == 3
    assert all(reason in error for error in errors)


def test_silos_learn_and_the_ledger_tells_what_it_costs_a_record(tmp_path, caplog):
    result, _, _ = run(tmp_path)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA) + 0.2
    outcome, charged = account_ledger(plan_folder(tmp_path))
    assert charged["charges"] == 6
    assert (outcome.threat_model.unit, outcome.release.sampling_rate, outcome.min_honest) == ("record", 0.4, 2)
    assert 0 < outcome.epsilon < 30
    assert "record-level (add-or-remove-one), against the server" in caplog.text
    assert "a record is one example of a silo" in caplog.text
    assert result.train_metrics_clientapp[6]["epsilon"] == outcome.epsilon


def test_a_silo_that_is_lost_is_survived(tmp_path):
    result, _, _ = run(tmp_path, lose=lambda node, stage, round_index: node == 101 and round_index == 2)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA)


def test_what_was_not_clipped_record_by_record_is_not_sent(tmp_path):
    """A gradient of the batch, as of an app that knows nothing of records: a node with a policy sends zero."""

    def of_batch(message, net, every, inputs, labels):
        (1e6 * every(net, inputs, labels).mean()).backward()
        outcome = ArrayRecord({name: p.grad for name, p in net.named_parameters()})
        return Message(RecordDict({"arrays": outcome}), reply_to=message)

    config = CONFIG | {"rqm.rounds": 1}
    grid = LocalGrid(app(of_batch), 3, config)
    with pytest.raises(RunFailedError, match=r"fails on all 3 nodes: .*must return rqm\.flower\.gathered"):
        start(grid, config, tmp_path / "trusting", strategy=optimizer())
    give_policies(grid, tmp_path, POLICY)
    result, _ = start(grid, config, tmp_path / "real", strategy=optimizer())
    shift = max(
        abs(later.numpy() - earlier.numpy()).max()
        for later, earlier in zip(result.arrays.values(), arrays(model()).values(), strict=True)
    )
    assert 0 < shift < 0.3  # noise alone: 2.1 over 90


POLICY = """
epsilon = 1e6
release_epsilon = 1e6
delta = 1e-6
l2_clip = 1.0
clients = 3
honest_clients = 3
trust_server_with_keys = true
max_participations = 10
mechanisms = ["discrete-gaussian"]
unit = "record"
"""


def test_what_does_not_go_with_records_is_refused():
    assert plan().mean.record_clip == 1.0
    assert plan().layout.extras == 0  # failures are not counted
    for change, reason in (
        ({"rqm.failure-share": 0.1}, "metrics, failure_share: must not be given where records of silos are protected"),
        ({"rqm.train-metrics.loss": "[0, 5]"}, "metrics, failure_share: must not be given"),
    ):
        with pytest.raises(ValueError, match=reason):
            plan(change)
    for missing in ("rqm.records-per-round", "rqm.delta"):
        with pytest.raises(ValueError, match=r"rqm\.record-clip: must come with rqm\.records-per-round"):
            settings_of({name: value for name, value in CONFIG.items() if name != missing})
    with pytest.raises(
        ValueError, match=r"rqm\.sampling-rate, rqm\.records-per-round: must come with rqm\.record-clip"
    ):
        settings_of({name: value for name, value in CONFIG.items() if name != "rqm.record-clip"})
    users = {name: value for name, value in CONFIG.items() if "record" not in name and "sampling" not in name}
    content = request_message(100, plan_of(users | {"rqm.epsilon": 1e6})).content
    message = Message(content, dst_node_id=100, message_type="train")
    with pytest.raises(ProtocolError, match=r"rqm\.record-clip: must be given"):
        gathered(message, model(), example_losses, *SILOS[0])
    with pytest.raises(ProtocolError, match="the app must be private, by PrivateClientApp or private_mod"):
        gathered(Message(RecordDict(), dst_node_id=100, message_type="train"), model(), example_losses, *SILOS[0])


LIMITS = {"epsilon": 30.0, "delta": 1e-6, "release_epsilon": 20.0, "l2_clip": 1.0, "clients": 3}
LIMITS |= {"max_participations": 10}


def test_a_policy_for_the_whole_of_a_node_takes_no_part_in_rounds_that_protect_a_record():
    mean = plan().mean
    trusting = {"honest_clients": 3, "trust_server_with_keys": True}
    with pytest.raises(PolicyError, match="unit = record: must be user"):
        Policy(**LIMITS, **trusting).check(mean)
    owner_policy = Policy(**LIMITS, **trusting, unit="record")
    owner_policy.check(mean)
    assert owner_policy.counted(mean).threat_model.unit == "record"
    with pytest.raises(PolicyError, match=r"l2_clip = 1\.0: must be at most 0\.5"):
        Policy(**LIMITS | {"l2_clip": 0.5}, **trusting, unit="record").check(mean)
    with pytest.raises(ValueError, match="unit = 'patient'"):
        Policy(**LIMITS, **trusting, unit="patient")


def test_what_a_silos_next_rounds_cost_is_known_before_they_are_asked_for(tmp_path, monkeypatch):
    """Every message has a process of its own, in which nothing is known but what is on the disk."""
    mean, requests = plan().mean, []
    guard = NodeGuard(Policy(**LIMITS, **RECORD), tmp_path)
    guard.charge(mean, 0)
    cost = node_policy._cost
    monkeypatch.setattr(node_policy, "_cost", lambda *delivered: requests.append(delivered[1]) or cost(*delivered))
    for round_index in range(1, node_policy.SAMPLED_RELEASES_AHEAD):
        guard.charge(mean, round_index)
    assert not requests
    guard.allow(mean, b"one more")
    assert requests == [9, 10]  # participations are allowed


RECORD = {"honest_clients": 3, "trust_server_with_keys": True, "unit": "record"}


def test_whether_records_are_removed_or_replaced_is_the_owners_to_say():
    """A server that counts a record as removed, where its owner counts it as replaced, would state half."""
    everything = {name: value for name, value in CONFIG.items() if name != "rqm.sampling-rate"}
    everything |= {"rqm.epsilon": 1e6}
    means = {
        kind: plan_of(everything | {"rqm.neighboring": kind}).mean for kind in ("add-or-remove-one", "replace-one")
    }
    assert Policy(**LIMITS, **RECORD).neighboring == "add-or-remove-one"
    assert Policy(**LIMITS, **RECORD | {"unit": "user"}).neighboring == "replace-one"
    for counted in means:
        owner_policy = Policy(**LIMITS, **RECORD, neighboring=counted)
        for kind, mean in means.items():
            if kind == counted:
                owner_policy.check(mean)
                continue
            with pytest.raises(PolicyError, match=f"neighboring = {kind}: must be {counted}"):
                owner_policy.check(mean)
    with pytest.raises(ValueError, match="neighboring = 'zero-out': must be add-or-remove-one or replace-one"):
        Policy(**LIMITS, **RECORD, neighboring="zero-out")
    with pytest.raises(ValueError, match="must be replace-one where the unit is a user"):
        Policy(**LIMITS, **RECORD | {"unit": "user"}, neighboring="add-or-remove-one")


@pytest.mark.slow
def test_a_node_that_counted_records_counts_no_users_after_it(tmp_path):
    """Rounds that told little of a record may have told all of what its node holds."""
    silos = plan().mean
    users = {
        "rqm.clients": 3,
        "rqm.rounds": 3,
        "rqm.epsilon": 1e6,
        "rqm.failure-share": 0.0,
        "rqm.mechanism.mechanism": "rounding",
        "rqm.mechanism.levels": 2,
    }
    users |= {"rqm.mechanism.clip": 0.5, "rqm.mechanism.margin": 9.0}
    users = plan_of(users).mean
    wide = LIMITS | {"epsilon": 1e6, "release_epsilon": 1e6}
    record = Policy(**wide, **RECORD)
    user = Policy(**wide, **RECORD | {"unit": "user"})
    first = NodeGuard(record, tmp_path / "first")
    first.charge(silos, 0)
    with pytest.raises(
        PolicyError, match=r"took part in rounds that protect a record \(add-or-remove-one\), and their cost for a user"
    ):
        NodeGuard(user, tmp_path / "first").allow(users, b"more")
    everything = {name: value for name, value in CONFIG.items() if name != "rqm.sampling-rate"}
    replaced = plan_of(everything | {"rqm.epsilon": 1e6, "rqm.neighboring": "replace-one"}).mean
    with pytest.raises(
        PolicyError,
        match="unit = record, neighboring = replace-one: must stay what it was: this node took part in rounds",
    ):
        NodeGuard(Policy(**wide, **RECORD, neighboring="replace-one"), tmp_path / "first").allow(replaced, b"more")
    second = NodeGuard(user, tmp_path / "second")
    second.charge(users, 0)
    alone, pair = (NodeGuard(record, tmp_path / name) for name in ("third", "second"))
    pair.allow(silos, b"a record")  # what is for all that a node holds, is for each of its records
    few = Policy(**wide | {"max_participations": 1}, **RECORD)
    with pytest.raises(PolicyError, match="max_participations = 2: must be at most 1"):
        NodeGuard(few, tmp_path / "second").allow(silos, b"another")
    alone.allow(silos, b"a record")


def frozen_model(*names):
    """A function that makes the model with some parameters frozen."""

    def made():
        net = model()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name not in names)
        return net

    return made


def test_of_a_model_that_does_not_train_what_the_plan_says_nothing_is_sent(tmp_path):
    """A silo must not seem to train while it sends nothing."""
    partly = frozen_model("0.bias")
    refusals(tmp_path / "frozen", app(net=partly), "the model trains 0.weight, 2.weight, 2.bias, …: the plan says")


def test_a_model_that_mixes_records_is_refused_in_one_line(tmp_path):
    class LessMean(nn.Module):
        """Takes the mean of a batch away, as batch normalisation does."""

        def forward(self, x):
            return x - 2 * x.mean(dim=0)

    def mixing(message, net, every, inputs, labels):
        return gathered(message, nn.Sequential(*net, LessMean()), every, inputs, labels)

    refusals(tmp_path, app(mixing), "model: the loss of a record depends on which others")


def test_of_a_frozen_model_the_rest_is_trained(tmp_path):
    partly, config = frozen_model("0.bias"), {**CONFIG, "rqm.stage-timeout": 0.2, "rqm.federation": "frozen-silos"}
    context = Context(1, 0, {}, RecordDict(), config, 0)
    strategy = private(optimizer(), context, model=partly())
    result = strategy.start(LocalGrid(app(net=partly), 3, config), arrays(partly()))
    assert not strategy.run.refusals
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA) + 0.1
    assert (result.arrays["0.bias"].numpy() == arrays(model())["0.bias"].numpy()).all()


def test_an_empty_silo_and_one_of_broken_records_send_as_much_as_any_other(tmp_path, caplog):
    """Nor does anything in their logs say that training failed: it did not."""
    observed = []

    def broken(message, net, every, inputs, labels):
        number = grid.now - 100
        subset = slice(0, 0) if number == 0 else slice(None)
        inputs = torch.full_like(inputs, torch.nan) if number == 1 else inputs
        reply = gathered(message, net, every, inputs[subset], labels[subset])
        (total,) = reply.content["arrays"].values()
        observed.append((number, float(abs(total.numpy()).max())))
        return reply

    config = CONFIG | {"rqm.rounds": 1}
    grid = LocalGrid(app(broken), 3, config)
    result, _ = start(grid, config, tmp_path, strategy=optimizer())
    assert result.train_metrics_clientapp[1]["survivors"] == 3
    assert {number: size > 0 for number, size in observed} == {0: False, 1: False, 2: True}
    masked = [len(reply.content["rqm"]["message"]) for stage, reply in grid.observed if stage == Kind.MASKED]
    assert len(set(masked)) == 1
    assert len(masked) == 3
    assert "training failed" not in caplog.text
