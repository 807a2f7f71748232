"""What a server could try with noise that cancels: but for the last, each of these once worked."""

import copy
from contextlib import nullcontext

import pytest

pytest.importorskip("flwr")
from flwr.app import Message, RecordDict

from rqm.flower import Settings
from rqm.flower import mod as of_node
from rqm.flower import strategy as of_server
from rqm.flower.encoding import noise, taken_back
from rqm.flower.mod import HELD
from rqm.flower.records import Asked
from rqm.plan.policy import NodeGuard, Policy, PolicyError
from rqm.plan.protocol import Link
from rqm.secagg import Aborted, Server, new_round
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind
from tests.flower.local import arrays
from tests.flower.test_correlated_noise import CONFIG, Watched, errors
from tests.training.small import model


class Renumbers(of_server.PrivateStrategy):
    """A server that asks the same nodes for a vector again, in a chain of its own, and when it comes to that calls them
    by numbers of the second kind."""

    def _sample(self, free):
        self._chain.begin()
        return sorted(self._grid.get_node_ids())

    def _begin(self, ready):
        messages = super()._begin(ready)
        for message in messages if self._turn == 1 else ():
            message.content.config_records["rqm"]["number"] += 4
        return messages

    def _decoded(self, now):
        self.sums = [*getattr(self, "sums", []), now.server.finish()]
        return super()._decoded(now)


def test_a_client_that_was_asked_for_a_vector_does_not_send_noise_of_before_instead(tmp_path):
    """It would go into any sum, once: all members of a sum together would publish its noise, and pay nothing."""
    config = {**CONFIG, "rqm.rounds": 2, "rqm.min-separation": 1}
    grid, held = Watched(config, nodes=4), {}

    def away(told):
        if told["turn"] == 1 and not held:
            for node, context in grid.contexts.items():
                held[node] = ClientSettlement.load(context.state.config_records[HELD]["held"])
        return False

    grid.away = away
    server = Renumbers(Settings.from_run_config(config), folder=tmp_path / "run", stage_timeout=0.2)
    server.start(grid, arrays(model()))
    mean = Settings.from_run_config(config).plan.private_mean(len(server.sums[0]))
    hidden = sum(noise(mean, one.noise_secret)[0] for one in held.values())
    coins = (server.sums[0] - hidden) % mean.modulus
    assert coins.max() <= 4  # the enemy would know it
    assert not any(((one + hidden) % mean.modulus == 0).all() for one in server.sums[1:])
    assert {f"rqm: number = {4 + u}: must be {u}, this client's in the round" for u in range(4)} == errors(grid)


def guard_of(tmp_path):
    limits = {"epsilon": 1e5, "delta": 1e-4, "release_epsilon": 1e5, "l2_clip": 1.0, "clients": 4}
    policy = Policy(**limits, max_participations=2, honest_clients=4, trust_server_with_keys=True)
    return NodeGuard(policy, tmp_path)


def test_a_shorter_run_does_not_bring_a_node_back_sooner_into_the_same_chain(tmp_path):
    config = {**CONFIG, "rqm.max-participations": 1, "rqm.min-separation": 1, "rqm.rounds": 6}
    long, short = (Settings.from_run_config({**config, "rqm.rounds": rounds}) for rounds in (6, 2))
    link = Link(b"chain", 2, 4, bytes(32))
    assert long.params(10, b"round", b"", link).digest == short.params(10, b"round", b"", link).digest
    guard = guard_of(tmp_path)
    guard.charge(long.plan, 10, 0, b"chain")
    with pytest.raises(PolicyError, match="must be 6 rounds later"):
        guard.charge(short.plan, 10, 2, b"chain")


def test_a_second_message_is_sent_whatever_the_noise_is():
    """Of two coordinates and little noise both are often zero: a client that failed for that would tell."""
    settings = Settings.from_run_config({**CONFIG, "rqm.noise": 0.5})
    mean, asked = settings.plan.private_mean(2), Asked(stage=5, round=b"r", turn=0, dim=2, number=4, message=b"")
    sent = [(secret, taken_back(asked, settings, secret)) for secret in (bytes([u]) * 32 for u in range(20))]
    assert any(not second.any() for _, second in sent)
    assert all(not ((noise(mean, secret)[1] + second) % mean.modulus).any() for secret, second in sent)


class Following:
    """A round of some nodes, in a chain; each remembers in it what it knew when the round began, whatever comes."""

    def __init__(self, grid, nodes, link, owed=None, lost=None):
        self.grid, self.nodes, self.link, self.lost, self.name = grid, nodes, link, lost, new_round()
        self.settings, self.dim = Settings.from_run_config(CONFIG), sum(one.numel() for one in model().parameters())
        self.server = Server(self.settings.params(self.dim, self.name, b"", link), previous=owed)
        self.states = {node: copy.deepcopy(grid.contexts[node].state) for node in nodes}
        self.inbox, self.said = dict.fromkeys(range(len(nodes)), b""), set()

    def step(self, stage):
        for number, message in self.inbox.items():
            node = self.nodes[number]
            if stage >= Kind.MASKED and node == self.lost:
                continue
            values = {"turn": self.link.turn, "dim": self.dim, "number": number, "message": message}
            asked = Asked(stage=int(stage), round=self.name, **values).at(self.link)
            content = RecordDict({"rqm": asked.record(), "arrays": arrays(model())})
            self.grid.contexts[node].state = self.states[node]
            reply = self.grid.app(Message(content, dst_node_id=node, message_type="train"), self.grid.contexts[node])
            if reply.has_error():
                self.said.add(reply.error.reason)
            else:
                self.server.receive(reply.content.config_records["rqm"]["message"], number)
        self.inbox = {} if stage == Kind.REVEAL else self.server.advance()


@pytest.mark.parametrize("marked", [True, False])
def test_two_rounds_at_once_that_follow_one_sum_do_not_both_take_its_noise_back(marked, monkeypatch):
    """In each another client is lost, whose secret the others give: without marks, of nodes whose states were copied,
    the server would learn two secrets; and in the end all."""
    if not marked:
        monkeypatch.setattr(of_node, "spend", lambda *_: None)
    grid, first, others = Watched(CONFIG, nodes=8), range(100, 104), range(104, 108)
    sum_ = Following(grid, first, Link(b"chain", 0))
    for stage in STAGES:
        sum_.step(stage)
    owed = sum_.server.settlement()
    for node in first:
        grid.contexts[node].state = sum_.states[node]
    secrets = [ClientSettlement.load(sum_.states[node].config_records[HELD]["held"]).noise_secret for node in first]
    link = Link(b"chain", 1, 4, owed.name)
    one, other = (Following(grid, [*others, *first], link, owed, lost) for lost in (103, 100))
    for stage in STAGES[:2]:
        one.step(stage)
        other.step(stage)
    for stage in STAGES[2:]:
        one.step(stage)
    assert one.server.recovered_secrets() == {3: secrets[3]}
    with (
        pytest.raises(Aborted, match="5 clients are left after MASKED: must be at least 6") if marked else nullcontext()
    ):
        for stage in STAGES[2:]:
            other.step(stage)
    if marked:
        assert other.said == {"rqm: this client has answered that stage already, and answers nothing twice"}
    else:
        assert other.server.recovered_secrets() == {0: secrets[0]}
