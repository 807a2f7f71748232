"""Less noise by order of the server: a node that has a policy sends no key, and counts for itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from rqm.flower import Settings, client_encoding, seeded_mod
from rqm.flower.messages import request_message
from rqm.flower.run_settings import Request
from rqm.ledger.node_policy import TEMPLATE
from rqm.randomness import SeededRandom
from rqm.secagg import Client, Identity, Roster, Server, new_round
from rqm.secagg.wire import STAGES, Kind
from rqm.verify import verify
from tests.flower.local import arrays, give_policies, start, survivors
from tests.flower.test_attacks import CONFIG, Tampered
from tests.simulation.small import model


@pytest.fixture
def policy(tmp_path):
    """A policy that allows what ``CONFIG`` asks for, and no more."""
    text = TEMPLATE.replace("clients = 20", "clients = 6").replace("honest_fraction = 0.8", "honest_clients = 6")
    text = text.replace("roster =", "trust_server_with_keys = true  # roster =")
    (tmp_path / "policy.toml").write_text(text.replace("release_epsilon = 2.0", "release_epsilon = 2.4"))
    return {"rqm-policy": str(tmp_path / "policy.toml")}


def held_to(policy, config, folder, others=(), change=None, **options):
    grid = Tampered(lambda *_: None, config)
    if policy:
        path = Path(policy["rqm-policy"])
        give_policies(grid, path.parent, path.read_text())
    for node in others:
        grid.contexts[node].run_config |= change
    return *start(grid, config, folder, **options), grid


ASKED_FOR = {
    "clients = 2: must be at least 6": {"rqm.clients": 2, "rqm.min-survivors": 2, "rqm.threshold": 0},
    "ε for a release": {
        "rqm.mechanism.margin": 0.0,
        "rqm.mechanism.levels": 2**14,
        "rqm.mechanism.mechanism": "rounding",
    },
    "l2_clip = 8.0: must be at most 1.0": {"rqm.transforms.l2-clip": 8.0},
}


@pytest.mark.parametrize("reason", ASKED_FOR)
def test_a_server_that_orders_less_noise_gets_no_key(policy, reason, tmp_path):
    _, private, grid = held_to(policy, {**CONFIG, **ASKED_FOR[reason]}, tmp_path / "run")
    assert {stage for stage, _ in grid.requests} == {Kind.KEYS}
    assert not any(reply.has_content() for _, reply in grid.observed)
    assert len(private.refusals) == len({message.metadata.dst_node_id for _, message in grid.requests})
    assert all(reason in output for output in private.refusals.values())


def test_a_node_without_a_policy_takes_part_in_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    _, private, grid = held_to({}, CONFIG, tmp_path / "run", key=tmp_path / "key")
    assert not any(reply.has_content() for _, reply in grid.observed)
    assert all("this node has no policy" in output for output in private.refusals.values())


@pytest.mark.parametrize("text", [None, "owner's limits", "trust_server = true\n"])
def test_a_seeded_client_refuses_unless_its_policy_trusts_the_server(text, policy, tmp_path, monkeypatch):
    """Its messages are not private, and no ledger counts them."""
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    path = Path(policy["rqm-policy"])
    if text and text.startswith("trust"):
        path.write_text(text)
    grid = Tampered(lambda *_: None, CONFIG, seeded_mod)
    for context in grid.contexts.values():
        context.node_config |= policy if text else {}
    result, private = start(grid, CONFIG, tmp_path / "run", seeded=True, key=tmp_path / "key")
    if text and text.startswith("trust"):
        assert survivors(result) == [6, 6]
        return
    assert not any(reply.has_content() for _, reply in grid.observed)
    expected = "must be trust_server = true" if text else "this node has no policy"
    assert private.refusals
    assert all(expected in refusal for refusal in private.refusals.values())


def test_a_client_encodes_with_secure_randomness_only(monkeypatch):
    settings = Settings.from_run_config(CONFIG)
    update, mean = torch.zeros(20), settings.mean(20)
    encoder = client_encoding.SecureEncoder(mean, 0)
    assert len(encoder.encode(update, None)) == mean.coordinates
    monkeypatch.setattr(client_encoding, "SecureRandom", lambda: SeededRandom(1))
    with pytest.raises(TypeError, match="SecureRandom"):
        encoder.encode(update, None)


# -- keys by grace of the server ------------------------------------------------------------------


class Anybody:
    """What a server makes of a roster that plays the others itself."""

    def __init__(self, roster):
        self.hash, self.keys = roster.hash, roster.keys | {Identity(bytes([u]) * 32).public for u in range(6)}


def recovered(policy, tmp_path, roster=None):
    """A server that plays five of six clients: the sixth one's levels from "a sum of 6", or what it says."""
    settings, grid, round_ = Settings.from_run_config(CONFIG), Tampered(lambda *_: None), new_round()
    grid.contexts[100].node_config |= policy
    dim = sum(value.numel() for value in model().parameters())
    params = settings.params(dim, round_, roster.hash if roster else b"")
    fake = Anybody(roster) if roster else None
    others = {u: Client(params, u, fake and Identity(bytes([u]) * 32), fake) for u in range(1, 6)}
    server, nothing = Server(params, fake), np.zeros(params.count, int)
    inbox = dict.fromkeys(range(6), b"")
    for stage in STAGES:
        request = Request(stage, round_, 0, dim, 0, inbox[0])
        reply = grid.app(request_message(100, [request], {"arrays": arrays(model())}), grid.contexts[100])
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
    quieter = {"rqm.mechanism.margin": CONFIG["rqm.mechanism.margin"] * 1.01}
    for others, left in (((), [6, 6]), ((104, 105), [4, 4])):
        result, *_ = held_to(policy, CONFIG, tmp_path / str(len(others)), others, quieter)
        assert survivors(result) == left


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
    assert survivors(start(grid, CONFIG, tmp_path / "run", roster=tmp_path / "roster.txt")[0]) == [6, 6]
    assert all(verify(path).charges == 2 for path in tmp_path.glob("1*/node/*/ledger.jsonl"))
    assert len(list(tmp_path.glob("1*/node/*/ledger.jsonl"))) == 6
    assert survivors(start(grid, CONFIG, tmp_path / "other")[0]) == [0, 0]
