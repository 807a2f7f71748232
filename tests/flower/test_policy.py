"""Less noise by order of the server: a node that has a policy sends no key, and counts for itself."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord

from rqm.flower import RunFailedError, client_training
from rqm.flower.messages import PLAN_KEY, PLAN_RECORD, request_message
from rqm.flower.shared_plan import Request
from rqm.ledger.node_policy import TEMPLATE, Policy
from rqm.randomness import SeededRandom
from rqm.secagg import Client, Identity, Roster, Server, new_round
from rqm.secagg.wire import STAGES, Kind
from rqm.verify import verify
from tests.flower.local import arrays, give_policies, plan_of, private_strategy, start, survivors
from tests.flower.test_attacks import CONFIG, Tampered
from tests.simulation.small import model


@pytest.fixture
def policy(tmp_path):
    """A policy that allows what ``CONFIG`` asks for, and no more."""
    text = TEMPLATE.replace("clients = 20", "clients = 6").replace("honest_fraction = 0.8", "honest_clients = 6")
    text = text.replace("roster =", "trust_server_with_keys = true  # roster =")
    (tmp_path / "policy.toml").write_text(text.replace("release_epsilon = 2.0", "release_epsilon = 2.4"))
    return {"rqm-policy": str(tmp_path / "policy.toml")}


class Deceived(Tampered):
    """A grid whose server sends some nodes another plan."""

    def __init__(self, config, others=(), plan=None):
        super().__init__(lambda *_: None, config)
        self.others, self.plan = others, plan

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            if message.metadata.dst_node_id in self.others:
                message.content[PLAN_RECORD] = ConfigRecord({PLAN_KEY: self.plan.to_json()})
        return super().send_and_receive(messages)


def held_to(policy, config, others=(), plan=None):
    """A grid of nodes that all have a policy."""
    grid = Deceived(config, others, plan)
    if policy:
        path = Path(policy["rqm-policy"])
        give_policies(grid, path.parent, path.read_text())
    return grid


ASKED_FOR = {
    "clients = 2: must be at least 6": {"rqm.clients": 2, "rqm.min-survivors": 2, "rqm.threshold": 0},
    "at this node's δ = 1e-05: must be at most 2.4": {"rqm.mechanism.margin": 3.0},
    "l2_clip = 8.0: must be at most 1.0": {"rqm.l2-clip": 8.0},
}


@pytest.mark.parametrize("reason", ASKED_FOR)
def test_a_server_that_orders_less_noise_gets_no_key(policy, reason, tmp_path):
    config = {**CONFIG, **ASKED_FOR[reason]}
    grid, private = held_to(policy, config), private_strategy(config, tmp_path / "run")
    with pytest.raises(RunFailedError, match=r"0 nodes of 6 .*: it says .*Nothing was charged") as error:
        private.start(grid, arrays(model()))
    assert not grid.requests  # the run ends with the check
    assert reason in str(error.value)
    assert len(private.run.refusals) == len(grid.checks) == 6
    assert not any(reply.has_content() for reply in grid.checks)
    assert not private.run.guard.charges
    for node in grid.contexts:  # nor does a node rely on it
        request = request_message(node, private.run.plan, [Request(Kind.KEYS, b"round", 0, 0, b"")])
        assert reason in grid.app(request, grid.contexts[node]).error.reason


def test_the_refusal_of_an_epsilon_names_the_nodes_delta(policy, tmp_path):
    """The app's δ may be another one, and then ε is another one, too."""
    path = Path(policy["rqm-policy"])
    mean = Policy.from_toml(path).counted(plan_of(CONFIG).mean)
    allowed = mean.with_values(delta=1e-7).account({0: 1}).epsilon
    text = path.read_text().replace("release_epsilon = 2.4", f"release_epsilon = {allowed}")
    path.write_text(text)
    assert survivors(start(held_to(policy, CONFIG), CONFIG, tmp_path / "run")[0]) == [6, 6]
    path.write_text(text.replace("delta = 1e-5", "delta = 1e-9"))
    with pytest.raises(RunFailedError, match=r"release_epsilon = .* at this node's δ = 1e-09: must be at most"):
        start(held_to(policy, CONFIG), CONFIG, tmp_path / "other")


def test_a_node_without_a_policy_takes_part_in_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    grid, private = held_to({}, CONFIG), private_strategy(CONFIG, tmp_path / "run")
    with pytest.raises(RunFailedError, match="6 nodes: it says 'rqm: this node has no policy"):
        private.start(grid, arrays(model()))
    assert not any(reply.has_content() for reply in grid.checks)
    request = request_message(100, private.run.plan, [Request(Kind.KEYS, b"round", 0, 0, b"")])
    assert "this node has no policy" in grid.app(request, grid.contexts[100]).error.reason


@pytest.mark.parametrize("key", ["rqm-policy", "rqm.policy", "rqm.trust-server", "rqm.trust_server"])
def test_a_policy_in_the_runs_configuration_is_refused(key, policy, tmp_path):
    """The server writes that: it could name a policy of its own, that trusts it with everything."""
    trusting = tmp_path / "trusting.toml"
    trusting.write_text("trust_server = true\n")
    grid, strategy = held_to(policy, CONFIG), private_strategy(CONFIG, tmp_path / "run")
    for context in grid.contexts.values():
        context.run_config[key] = str(trusting)
    with pytest.raises(RunFailedError, match=f"{key}: must not be in the run's configuration, which the server writes"):
        strategy.start(grid, arrays(model()))
    request = request_message(100, strategy.run.plan, [Request(Kind.KEYS, b"round", 0, 0, b"")])
    assert "must not be in the run's configuration" in grid.app(request, grid.contexts[100]).error.reason


def test_a_policy_in_a_message_is_not_read(policy, tmp_path):
    """Whatever the server sends beside the plan."""

    class Naming(Deceived):
        def deliver(self, message):
            config = {"rqm-policy": "trusting.toml", "trust_server": True, "rqm.trust-server": True}
            message.content["config"] = ConfigRecord(config)
            return super().deliver(message)

    config = {**CONFIG, "rqm.mechanism.margin": 3.0}
    grid = Naming(config)
    give_policies(grid, tmp_path, Path(policy["rqm-policy"]).read_text())
    with pytest.raises(RunFailedError, match="release_epsilon"):
        start(grid, config, tmp_path / "run")


def test_a_client_encodes_with_secure_randomness_only(monkeypatch):
    mean = plan_of(CONFIG).mean
    encoder = client_training.SecureEncoder(mean, 0)
    assert len(encoder.encode(np.zeros(mean.dim, np.float32), None)) == mean.coordinates
    monkeypatch.setattr(client_training, "SecureRandom", lambda: SeededRandom(1))
    with pytest.raises(TypeError, match="SecureRandom"):
        encoder.encode(np.zeros(mean.dim, np.float32), None)


# -- keys by grace of the server ------------------------------------------------------------------


class Anybody:
    """What a server makes of a roster that plays the others itself."""

    def __init__(self, roster):
        self.hash, self.keys = roster.hash, roster.keys | {Identity(bytes([u]) * 32).public for u in range(6)}


def recovered(policy, tmp_path, roster=None):
    """A server that plays five of six clients: the sixth one's levels from "a sum of 6", or what it says."""
    plan, grid, round_ = plan_of(CONFIG), Tampered(lambda *_: None), new_round()
    grid.contexts[100].node_config |= policy
    params = plan.params(round_, roster.hash if roster else b"")
    fake = Anybody(roster) if roster else None
    others = {u: Client(params, u, fake and Identity(bytes([u]) * 32), fake) for u in range(1, 6)}
    server, nothing = Server(params, fake), np.zeros(params.count, int)
    inbox = dict.fromkeys(range(6), b"")
    for stage in STAGES:
        request = Request(stage, round_, 0, 0, inbox[0])
        reply = grid.app(request_message(100, plan, [request], {"arrays": arrays(model())}), grid.contexts[100])
        if reply.has_error():
            return reply.error.reason
        server.receive(reply.content.config_records["rqm"]["message"], 0)
        for u, client in others.items():
            server.receive(client.answer(stage, inbox[u], lambda: nothing), u)
        if stage == Kind.REVEAL:
            return server.finish()
        inbox = server.advance()
    return None


def test_others_who_are_ordered_less_noise_are_in_no_sum(policy, tmp_path):
    """All would be allowed it, and the levels are as many: but ε counts on others who encode by the same plan."""
    quieter = plan_of({**CONFIG, "rqm.mechanism.margin": CONFIG["rqm.mechanism.margin"] * 1.01})
    for others, left in (((), [6, 6]), ((104, 105), [4, 4])):
        folder = tmp_path / str(len(others))
        assert survivors(start(held_to(policy, CONFIG, others, quieter), CONFIG, folder)[0]) == left


def test_a_server_that_plays_the_others(policy, tmp_path):
    """Without a roster, which the policy must allow, it reads a client's levels; with one it gets no vector."""
    path = Path(policy["rqm-policy"])
    trusting = path.read_text()
    levels = recovered(policy, tmp_path)
    assert 0 < levels.max() - levels.min() < 16  # of one client alone, each of its own
    roster = tmp_path / "roster.txt"
    keys = [Identity.new(tmp_path / "identity.key").public] + [bytes([u]) * 32 for u in range(5)]
    roster.write_text("".join(f"{key.hex()}  # one of us\n" for key in keys))
    path.write_text(trusting.replace("trust_server_with_keys = true  # ", ""))
    assert "client 1 is not in the roster" in recovered(policy, tmp_path, Roster.read(roster))


def test_a_signed_federation(policy, tmp_path):
    text = Path(policy["rqm-policy"]).read_text().replace("trust_server_with_keys = true  # ", "")
    text = text.replace('"roster.txt"', '"../roster.txt"')
    grid = Tampered(lambda *_: None)
    give_policies(grid, tmp_path, text)
    keys = [Identity.new(tmp_path / str(node) / "identity.key").public.hex() for node in grid.contexts]
    (tmp_path / "roster.txt").write_text("\n".join(keys))
    assert survivors(start(grid, CONFIG, tmp_path / "run", roster=Roster.read(tmp_path / "roster.txt"))[0]) == [6, 6]
    assert all(verify(path).charges == 2 for path in tmp_path.glob("1*/node/*/ledger.jsonl"))
    assert len(list(tmp_path.glob("1*/node/*/ledger.jsonl"))) == 6
    with pytest.raises(RunFailedError, match="its roster differs from the server's"):  # without it nobody is known
        start(grid, CONFIG, tmp_path / "other")
