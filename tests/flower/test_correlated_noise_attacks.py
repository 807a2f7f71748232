"""What a server could try with noise that cancels: but for the last, each of these once worked."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest

pytest.importorskip("flwr")
from rqm.config.round_parameters import Link
from rqm.flower import RunFailedError, client_mod, private_run
from rqm.flower.client_mod import SETTLEMENT_RECORD
from rqm.flower.messages import request_message
from rqm.flower.round_machine import RoundMachine, State
from rqm.flower.shared_plan import Request
from rqm.ledger.node_policy import NodeGuard, Policy, PolicyError
from rqm.secagg import Aborted, Server, new_round
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind
from tests.flower.local import arrays, plan_of, private_strategy, settings_of
from tests.flower.test_correlated_noise import CONFIG, Watched, errors
from tests.simulation.small import model


class Renumbering(RoundMachine):
    """A server that begins a new chain for each round, with the same nodes, and in the second one calls them by the
    numbers of clients that only settle."""

    def _draw_nodes(self, eligible):
        self.chain.restart()
        return sorted(self.available_nodes())

    def requests(self):
        requests = super().requests()
        if self.round_index == 1 and self.state == State.VECTORS:
            return {
                node: [replace(entry, client=entry.client + 4) for entry in requests]
                for node, requests in requests.items()
            }
        return requests

    def _finish(self, secure_sum):
        self.sums = [*getattr(self, "sums", []), secure_sum.server.finish()]
        super()._finish(secure_sum)


def test_a_client_that_was_asked_for_a_vector_does_not_settle_instead(tmp_path, monkeypatch):
    """It would do so in any sum: all clients of a sum together would publish their noise, and pay nothing."""
    monkeypatch.setattr(private_run, "RoundMachine", Renumbering)
    config = {**CONFIG, "rqm.rounds": 2, "rqm.min-separation": 1}
    grid, settlements = Watched(config, nodes=4), {}

    def away(fields):
        if fields["round_index"] == 1 and not settlements:
            settlements.update({node: settlement_of(context.state) for node, context in grid.contexts.items()})
        return False

    grid.away = away
    server = private_strategy(config, tmp_path)
    with pytest.raises(RunFailedError, match=r"all 4 nodes refuse to train: .* must be 0, this client's number"):
        server.start(grid, arrays(model()))
    sums, mean = server.run.machine.sums, server.run.plan.mean
    added = sum(noise_state(mean, entry.noise_secret).added for entry in settlements.values())
    coins = (sums[0] - added) % mean.modulus
    assert coins.max() <= 4  # what the attacker would know
    assert not any(((total + added) % mean.modulus == 0).all() for total in sums[1:])
    assert {f"rqm: client = {4 + u}: must be {u}, this client's number" for u in range(4)} == errors(grid)


def noise_state(mean, secret):
    return mean.noise.begin(secret, mean.coordinates)


def settlement_of(state):
    return ClientSettlement.load(state.config_records[SETTLEMENT_RECORD]["settlement"])


def guard_of(tmp_path):
    limits = {"epsilon": 1e5, "delta": 1e-4, "release_epsilon": 1e5, "l2_clip": 1.0, "clients": 4}
    policy = Policy(**limits, max_participations=2, honest_clients=4, trust_server_with_keys=True)
    return NodeGuard(policy, tmp_path)


def test_a_shorter_run_does_not_bring_a_node_back_sooner_into_the_same_chain(tmp_path):
    config = {**CONFIG, "rqm.max-participations": 1, "rqm.min-separation": 1, "rqm.rounds": 6}
    long, short = (plan_of({**config, "rqm.rounds": rounds}) for rounds in (6, 2))
    guard = guard_of(tmp_path)
    guard.charge(long.mean, 0, b"chain")
    with pytest.raises(PolicyError, match="must be 6 rounds later"):
        guard.charge(short.mean, 2, b"chain")


def test_a_settlement_is_sent_whatever_the_noise_is():
    """With two coordinates and little noise both are often zero: a client that failed then would reveal that."""
    mean = settings_of({**CONFIG, "rqm.noise": 0.5, "rqm.epsilon": 1e6}).plan(("w",), 2).mean
    states = [noise_state(mean, bytes([u]) * 32) for u in range(20)]
    settlements = [mean.settle(state) for state in states]
    assert any(not settlement.any() for settlement in settlements)
    for state, settlement in zip(states, settlements, strict=True):
        assert not ((state.canceled + settlement) % mean.modulus).any()


class Following:
    """A round of some nodes, in a chain; each remembers in it what it knew when the round began, whatever comes."""

    def __init__(self, grid, nodes, link, settlement=None, missing=None):
        self.grid, self.nodes, self.link, self.missing, self.name = grid, nodes, link, missing, new_round()
        self.plan = plan_of(CONFIG)
        self.server = Server(self.plan.params(self.name, b"", link), previous=settlement)
        self.states = {node: copy.deepcopy(grid.contexts[node].state) for node in nodes}
        self.inbox, self.output = dict.fromkeys(range(len(nodes)), b""), set()

    def step(self, stage):
        for number, message in self.inbox.items():
            node = self.nodes[number]
            if stage >= Kind.MASKED and node == self.missing:
                continue
            request = Request(stage, self.name, self.link.round_index, number, message, self.link)
            requests = request_message(node, self.plan, [request], {"arrays": arrays(model())})
            self.grid.contexts[node].state = self.states[node]
            reply = self.grid.app(requests, self.grid.contexts[node])
            if reply.has_error():
                self.output.add(reply.error.reason)
            else:
                self.server.receive(reply.content.config_records["rqm"]["message"], number)
        self.inbox = {} if stage == Kind.REVEAL else self.server.advance()


@pytest.mark.parametrize("marked", [True, False])
def test_two_rounds_at_once_that_follow_one_sum_do_not_both_take_its_noise_back(marked, monkeypatch):
    """In each another client is lost, whose secret the others give: without marks, of nodes whose states were copied,
    the server would learn two secrets; and in the end all."""
    if not marked:
        monkeypatch.setattr(client_mod, "mark_answered", lambda *_: None)
    grid, first, others = Watched(CONFIG, nodes=8), range(100, 104), range(104, 108)
    sum_ = Following(grid, first, Link(b"chain", 0))
    for stage in STAGES:
        sum_.step(stage)
    settlement = sum_.server.settlement()
    for node in first:
        grid.contexts[node].state = sum_.states[node]
    secrets = [settlement_of(sum_.states[node]).noise_secret for node in first]
    link = Link(b"chain", 1, 4, settlement.name)
    entry, another = (Following(grid, [*others, *first], link, settlement, missing) for missing in (103, 100))
    for stage in STAGES[:2]:
        entry.step(stage)
        another.step(stage)
    for stage in STAGES[2:]:
        entry.step(stage)
    assert entry.server.recovered_secrets() == {3: secrets[3]}
    with (
        pytest.raises(Aborted, match="5 clients are left after MASKED: must be at least 6") if marked else nullcontext()
    ):
        for stage in STAGES[2:]:
            another.step(stage)
    if marked:
        assert another.output == {"rqm: this client has answered that stage already, and answers nothing twice"}
    else:
        assert another.server.recovered_secrets() == {0: secrets[0]}
