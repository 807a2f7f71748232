"""Silos on Flower: a record's ε in the log, nothing of a silo but its masked sum, and a node's own policy."""

import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from rqm.config.account import account_ledger
from rqm.flower import PrivateStrategy, Settings, gathered, private_mod
from rqm.ledger import node_policy
from rqm.ledger.node_policy import NodeGuard, Policy, PolicyError
from rqm.secagg import ProtocolError
from rqm.secagg.wire import Kind
from rqm.simulation.models import example_losses
from tests.flower.local import LocalGrid, accuracy, arrays, start
from tests.simulation.small import federation, model

CONFIG = {
    "rqm.clients": 3,
    "rqm.rounds": 6,
    "rqm.min-survivors": 2,
    "rqm.delta": 1e-6,
    "rqm.mechanism.mechanism": "discrete-gaussian",
    "rqm.mechanism.clip": 4.0,
    "rqm.mechanism.scale": 0.3,
    "rqm.mechanism.steps": 1023,
    "rqm.mechanism.bits": 13,
    "rqm.transforms.l2-clip": 16.0,
    "rqm.transforms.rotate": True,
    "rqm.records.clip": 1.0,
    "rqm.records.batch": 90,
    "rqm.records.sampling-rate": 0.4,
    "rqm.server.rate": 1.0,
    "rqm.server.momentum": 0.5,
    "rqm.sends": "gradient",
    "rqm.device": "cpu",
}
DATA = federation(clients=24)
SILOS = DATA.train.merge(3)


def app(answer=gathered):
    made = ClientApp(mods=[private_mod])

    @made.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return answer(message, context, net, example_losses, *SILOS[context.node_config["partition-id"]])

    return made


def run(tmp_path, client=None, config=CONFIG, lose=lambda *_: False):
    grid = LocalGrid(client or app(), 3, config, lose)
    return *start(grid, config, tmp_path), grid


def test_silos_learn_and_the_ledger_tells_what_it_costs_a_record(tmp_path, caplog):
    result, _, _ = run(tmp_path)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA) + 0.2
    outcome, charged = account_ledger(tmp_path)
    assert charged["charges"] == 6
    assert (outcome.threat_model.unit, outcome.release.sampling_rate, outcome.min_honest) == ("record", 0.4, 2)
    assert 0 < outcome.epsilon < 30
    assert "for every record against the server" in caplog.text
    assert result.train_metrics_clientapp[6]["epsilon"] == outcome.epsilon


def test_a_silo_that_is_lost_is_survived(tmp_path):
    result, _, _ = run(tmp_path, lose=lambda node, stage, round_index: node == 101 and round_index == 2)
    assert accuracy(result.arrays, DATA) > accuracy(arrays(model()), DATA)


def test_what_was_not_clipped_record_by_record_is_not_sent(tmp_path):
    """A gradient of the batch, as an app would return that knows nothing of records: zero is encoded instead."""

    def of_batch(message, context, net, every, inputs, labels):
        (1e6 * every(net, inputs, labels).mean()).backward()
        outcome = ArrayRecord({name: p.grad for name, p in net.named_parameters()})
        return Message(RecordDict({"arrays": outcome}), reply_to=message)

    result, _, _ = run(tmp_path, app(of_batch), CONFIG | {"rqm.rounds": 1})
    shift = max(
        abs(later.numpy() - earlier.numpy()).max()
        for later, earlier in zip(result.arrays.values(), arrays(model()).values(), strict=True)
    )
    assert shift < 0.3  # noise alone: 2.1 over 90


def test_what_does_not_go_with_records_is_refused():
    assert Settings.from_run_config(CONFIG).plan.records.clip == 1.0
    with pytest.raises(ValueError, match=r"rqm\.sends = 'update': must be 'gradient'"):
        Settings.from_run_config(CONFIG | {"rqm.sends": "update"})
    fixed = {name: value for name, value in CONFIG.items() if name != "rqm.records.sampling-rate"}
    with pytest.raises(ValueError, match=r"rqm\.min-separation = 5: must not be given on Flower with rqm\.records"):
        Settings.from_run_config(
            fixed | {"rqm.min-separation": 5, "rqm.neighboring": "replace-one", "rqm.sampling": "available"}
        )
    users = {name: value for name, value in CONFIG.items() if "records" not in name}
    grid = LocalGrid(app(), 3, users)
    with pytest.raises(ProtocolError, match=r"rqm\.records: must be given"):
        gathered(None, grid.contexts[100], model(), example_losses, *SILOS[0])


LIMITS = {"epsilon": 30.0, "delta": 1e-6, "release_epsilon": 20.0, "l2_clip": 1.0, "clients": 3}
LIMITS |= {"max_participations": 10}


def test_a_policy_for_the_whole_of_a_node_takes_no_part_in_rounds_that_protect_a_record():
    plan = Settings.from_run_config(CONFIG).plan
    trusting = {"honest_clients": 3, "trust_server_with_keys": True}
    with pytest.raises(PolicyError, match="unit = record: must be user"):
        Policy(**LIMITS, **trusting).check(plan.private_mean(51))
    owner_policy = Policy(**LIMITS, **trusting, unit="record")
    owner_policy.check(plan.private_mean(51))
    assert owner_policy.counted(plan.private_mean(51)).threat_model.unit == "record"
    with pytest.raises(PolicyError, match=r"l2_clip = 1\.0: must be at most 0\.5"):
        Policy(**LIMITS | {"l2_clip": 0.5}, **trusting, unit="record").check(plan.private_mean(51))
    with pytest.raises(ValueError, match="unit = 'patient'"):
        Policy(**LIMITS, **trusting, unit="patient")


def test_what_a_silos_next_rounds_cost_is_known_before_they_are_asked_for(tmp_path, monkeypatch):
    """Every message has a process of its own, in which nothing is known but what is on the disk."""
    plan, requests = Settings.from_run_config(CONFIG).plan, []
    guard = NodeGuard(Policy(**LIMITS, **RECORD), tmp_path)
    guard.charge(plan.private_mean(51), 0)
    cost = node_policy._cost
    monkeypatch.setattr(node_policy, "_cost", lambda *delivered: requests.append(delivered[1]) or cost(*delivered))
    for round_index in range(1, node_policy.SAMPLED_RELEASES_AHEAD):
        guard.charge(plan.private_mean(51), round_index)
    assert not requests
    guard.allow(plan.private_mean(51), b"one more")
    assert requests == [9, 10]  # participations are allowed


RECORD = {"honest_clients": 3, "trust_server_with_keys": True, "unit": "record"}


def test_whether_records_are_removed_or_replaced_is_the_owners_to_say():
    """A server that counts a record as removed, where its owner counts it as replaced, would state half."""
    everything = {name: value for name, value in CONFIG.items() if name != "rqm.records.sampling-rate"}
    plans = {
        kind: Settings.from_run_config(everything | {"rqm.neighboring": kind}).plan
        for kind in ("add-or-remove-one", "replace-one")
    }
    assert Policy(**LIMITS, **RECORD).neighboring == "add-or-remove-one"
    assert Policy(**LIMITS, **RECORD | {"unit": "user"}).neighboring == "replace-one"
    for node_ledgers in plans:
        owner_policy = Policy(**LIMITS, **RECORD, neighboring=node_ledgers)
        for kind, plan in plans.items():
            if kind == node_ledgers:
                owner_policy.check(plan.private_mean(51))
                continue
            with pytest.raises(PolicyError, match=f"neighboring = {kind}: must be {node_ledgers}"):
                owner_policy.check(plan.private_mean(51))
    with pytest.raises(ValueError, match="neighboring = 'zero-out': must be add-or-remove-one or replace-one"):
        Policy(**LIMITS, **RECORD, neighboring="zero-out")
    with pytest.raises(ValueError, match="must be replace-one where the unit is a user"):
        Policy(**LIMITS, **RECORD | {"unit": "user"}, neighboring="add-or-remove-one")


@pytest.mark.slow
def test_a_node_that_counted_records_counts_no_users_after_it(tmp_path):
    """Rounds that told little of a record may have told all of what its node holds."""
    silos = Settings.from_run_config(CONFIG).plan
    users = {"rqm.clients": 3, "rqm.mechanism.mechanism": "rounding", "rqm.mechanism.levels": 2}
    users |= {"rqm.mechanism.clip": 0.5, "rqm.mechanism.margin": 9.0, "rqm.transforms.l2-clip": 1.0}
    users = Settings.from_run_config(users).plan
    wide = LIMITS | {"epsilon": 1e6, "release_epsilon": 1e6}
    record = Policy(**wide, **RECORD)
    user = Policy(**wide, **RECORD | {"unit": "user"})
    first = NodeGuard(record, tmp_path / "first")
    first.charge(silos.private_mean(51), 0)
    with pytest.raises(
        PolicyError, match=r"took part in rounds that protect a record \(add-or-remove-one\), and their cost for a user"
    ):
        NodeGuard(user, tmp_path / "first").allow(users.private_mean(51), b"more")
    everything = {name: value for name, value in CONFIG.items() if name != "rqm.records.sampling-rate"}
    replaced = Settings.from_run_config(everything | {"rqm.neighboring": "replace-one"}).plan
    guard = NodeGuard(Policy(**wide, **RECORD, neighboring="replace-one"), tmp_path / "first")
    with pytest.raises(
        PolicyError,
        match="unit = record, neighboring = replace-one: must stay what it was: this node took part in rounds",
    ):
        guard.allow(replaced.private_mean(51), b"more")
    second = NodeGuard(user, tmp_path / "second")
    second.charge(users.private_mean(51), 0)
    alone, pair = (NodeGuard(record, tmp_path / name) for name in ("third", "second"))
    pair.allow(silos.private_mean(51), b"a record")  # what is for all that a node holds, is for each of its records
    few = Policy(**wide | {"max_participations": 1}, **RECORD)
    with pytest.raises(PolicyError, match="max_participations = 2: must be at most 1"):
        NodeGuard(few, tmp_path / "second").allow(silos.private_mean(51), b"another")
    alone.allow(silos.private_mean(51), b"a record")


def test_of_a_model_that_is_not_all_trained_nothing_is_sent_but_a_line_that_says_so(tmp_path):
    """Noise would come on what is frozen, too; and a silo must not seem to train while it sends nothing."""

    def frozen(message, context, net, every, inputs, labels):
        net[0].bias.requires_grad_(False)
        return gathered(message, context, net, every, inputs, labels)

    _, private, _ = run(tmp_path / "frozen", app(frozen), CONFIG | {"rqm.rounds": 1})
    assert len(private.refusals) == 3
    assert all("model: 0.bias: not trained; the server must" in x for x in private.refusals.values())

    def buffered(message, context, net, every, inputs, labels):
        net.register_buffer("scale", torch.ones(2))
        net[0].weight.requires_grad_(False)
        return gathered(message, context, net, every, inputs, labels)

    _, private, _ = run(tmp_path / "buffer", app(buffered), CONFIG | {"rqm.rounds": 1})
    assert all("model: 0.weight, scale: not trained" in x for x in private.refusals.values())


def test_a_model_that_mixes_records_is_refused_in_one_line(tmp_path):
    def mixing(message, context, net, every, inputs, labels):
        return gathered(message, context, nn.Sequential(*net, LessMean()), every, inputs, labels)

    class LessMean(nn.Module):
        """Takes the mean of a batch away, as batch normalisation does."""

        def forward(self, x):
            return x - 2 * x.mean(dim=0)

    _, private, _ = run(tmp_path, app(mixing), CONFIG | {"rqm.rounds": 1})
    assert len(private.refusals) == 3
    assert all("model: the loss of a record depends on which others" in entry for entry in private.refusals.values())


def test_of_a_frozen_model_the_rest_can_be_trained(tmp_path):
    """As the line says."""

    def partly():
        net = model()
        net[0].bias.requires_grad_(False)
        return net

    made = ClientApp(mods=[private_mod])

    @made.train()
    def train(message, context):
        net = partly()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        return gathered(message, context, net, example_losses, *SILOS[context.node_config["partition-id"]])

    start = ArrayRecord({name: p.detach() for name, p in partly().named_parameters() if p.requires_grad})
    private = PrivateStrategy(Settings.from_run_config(CONFIG), folder=tmp_path)
    result = private.start(LocalGrid(made, 3, CONFIG), start)
    assert not private.refusals
    net = partly()
    net.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
    assert accuracy(arrays(net), DATA) > accuracy(arrays(model()), DATA) + 0.1


def test_an_empty_silo_and_one_of_broken_records_send_as_much_as_any_other(tmp_path, caplog):
    """Nor does anything in their logs say that training failed: it did not."""
    observed = []

    def broken(message, context, net, every, inputs, labels):
        number = context.node_config["partition-id"]
        subset = slice(0, 0) if number == 0 else slice(None)
        inputs = torch.full_like(inputs, torch.nan) if number == 1 else inputs
        reply = gathered(message, context, net, every, inputs[subset], labels[subset])
        (total,) = reply.content["arrays"].values()
        observed.append((number, float(abs(total.numpy()).max())))
        return reply

    result, _, grid = run(tmp_path, app(broken), CONFIG | {"rqm.rounds": 1})
    assert result.train_metrics_clientapp[1]["survivors"] == 3
    assert {number: size > 0 for number, size in observed} == {0: False, 1: False, 2: True}
    masked = [len(reply.content["rqm"]["message"]) for stage, reply in grid.observed if stage == Kind.MASKED]
    assert len(set(masked)) == 1
    assert len(masked) == 3
    assert "training failed" not in caplog.text
