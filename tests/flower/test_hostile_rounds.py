"""What a server could try with several rounds at once, by the door that it uses; and what liars could with two."""

import copy
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("flwr")
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from rqm.flower import client_mod, private_mod
from rqm.flower.messages import ANSWER_KEY, NEXT_RECORD, RECORD, REFUSAL_KEY, request_message
from rqm.flower.shared_plan import Request
from rqm.ledger.ledger import LEDGER, read
from rqm.ledger.node_policy import EPSILONS, LEDGERS, TEMPLATE, NodeGuard, Policy
from rqm.secagg import ProtocolError, Server, wire
from rqm.secagg import client as protocol
from rqm.secagg.masking import sealed_bytes
from rqm.secagg.wire import STAGES, Kind
from tests.flower.local import (
    LocalGrid,
    arrays,
    give_policies,
    gradient_app,
    plan_folder,
    plan_of,
    start,
    survivors,
)
from tests.flower.test_attacks import CONFIG, HEADER, answering, body_of
from tests.secagg.test_malicious_clients import other_secret
from tests.simulation.small import federation, model

NODES, PLAN = 6, plan_of(CONFIG)
LIMITS = (
    TEMPLATE.replace("epsilon = 8.0", "epsilon = 1e6")
    .replace("release_epsilon = 2.0", "release_epsilon = 1e6")
    .replace("clients = 20", f"clients = {NODES}")
    .replace("honest_fraction = 0.8", f"honest_clients = {NODES}")
    .replace("roster =", "trust_server_with_keys = true  # roster =")
    .replace("max_participations = 10", "max_participations = 12")
)


def costs(policy):
    """What a node knows of ε before it works it out: n releases cost n, which is not what is tested here."""
    mean = policy.counted(PLAN.mean).with_values(delta=policy.delta)
    return json.dumps({mean.fingerprint[:32]: list(range(1, 13))})


class Enemy:
    """A server that asks its nodes what it likes, and notes what leaves them. Each has a policy and a ledger."""

    def __init__(self, folder, limits=LIMITS):
        self.grid, self.folder = LocalGrid(gradient_app(private_mod), NODES, CONFIG), folder
        self.left = []  # client, round, stage
        give_policies(self.grid, folder, limits)
        for path in folder.glob("*/policy.toml"):
            (path.parent / LEDGERS).mkdir()
            (path.parent / LEDGERS / EPSILONS).write_text(costs(Policy.from_toml(path)))

    def state(self, number):
        return self.grid.contexts[100 + number].state

    def crash(self, number, earlier):
        """What a node has answered has left it; then it was killed, and knows no more than before."""
        self.grid.contexts[100 + number].state = earlier

    def charges(self, number):
        return sum(read(path).charges.total() for path in self.folder.glob(f"{100 + number}/{LEDGERS}/*/{LEDGER}"))

    def ask(self, number, *requests):
        """What a client answers, to one message, to each of the things asked; a reason where it refuses."""
        names = (RECORD, NEXT_RECORD)[: len(requests)]
        content = {"arrays": arrays(model())} if requests[0].stage == Kind.MASKED else {}
        reply = self.grid.app(request_message(100 + number, PLAN, requests, content), self.grid.contexts[100 + number])
        if reply.has_error():
            return [reply.error.reason]
        records = [reply.content.config_records[name] for name in names]
        self.left += [
            (number, entry.round_name, entry.stage)
            for entry, record in zip(requests, records, strict=True)
            if REFUSAL_KEY not in record
        ]
        assert self.charges(number) >= self.vectors(number)  # on the disk before anything leaves
        assert len(self.state(number).config_records["rqm"]) <= 2
        return [record.get(ANSWER_KEY) or record[REFUSAL_KEY] for record in records]

    def vectors(self, number):
        return sum((client, stage) == (number, Kind.MASKED) for client, _, stage in self.left)


class Played:
    """A round in which all take part, as an honest server plays it: what is due, and what has come."""

    def __init__(self, name, round_index=0):
        self.name, self.round_index, self.params = name, round_index, PLAN.params(name)
        self.server, self.stage, self.inbox = Server(self.params), Kind.KEYS, dict.fromkeys(range(NODES), b"")
        self.heard = set()

    def requests(self, number):
        return Request(self.stage, self.name, self.round_index, number, self.inbox[number])

    def hear(self, number, body):
        self.server.receive(body, number)
        self.heard.add(number)

    def advance(self):
        self.inbox, self.heard = self.server.advance(), set()
        self.stage = Kind(self.stage + 2)

    def play(self, enemy, until):
        """Go on as one should, until a stage is due, for which nobody has been asked yet."""
        while self.stage < until:
            for number in self.inbox:
                self.hear(number, *enemy.ask(number, self.requests(number)))
            self.advance()
        return self

    def story(self, number, missing):
        """What is asked of a client by a server that tells it of another sum, in which one is lost."""
        everybody, tags, _ = self.params.read(self.inbox[number], Kind.SURVIVORS, number)
        tags.pop(missing, None)
        survivors = wire.unpack_set(everybody, NODES) - {missing}
        fields = wire.pack_set(survivors, NODES) + wire.encode(tags) + wire.encode([missing])
        return replace(self.requests(number), message=wire.frame(Kind.SURVIVORS, self.params.digest, number, fields))


# -- one round twice, others in between -----------------------------------------------------------


def at_once(enemy, number, first, again):
    return enemy.ask(number, first, again)[1]


def beside_the_next(enemy, number, first, again):
    enemy.ask(number, first, Played(b"next").requests(number))
    return enemy.ask(number, again, Played(b"next but one").requests(number))[0]


def after_two_more_have_begun(enemy, number, first, again):
    enemy.ask(number, first)
    enemy.ask(number, Played(b"next").requests(number))
    enemy.ask(number, Played(b"next but one").requests(number))
    return enemy.ask(number, again)[0]


def after_a_kill(enemy, number, first, again):
    earlier = copy.deepcopy(enemy.state(number))
    enemy.ask(number, first)
    enemy.crash(number, earlier)
    enemy.ask(number, Played(b"next").requests(number))
    return enemy.ask(number, again)[0]


TWICE = [(how, stage) for how in (at_once, beside_the_next) for stage in (Kind.SHARES, Kind.ACKS, Kind.REVEAL)]
TWICE += [(how, stage) for how in (after_two_more_have_begun, after_a_kill) for stage in STAGES[1:]]  # a vector, too


@pytest.mark.parametrize(("how", "stage"), TWICE, ids=lambda entry: getattr(entry, "name", "") or entry.__name__)
def test_a_round_is_answered_once_whatever_began_meanwhile(how, stage, tmp_path):
    """Another vector under the same masks, another sum to acknowledge or to reveal: whenever it is asked for."""
    enemy = Enemy(tmp_path)
    played = Played(b"this").play(enemy, stage)
    for number in range(NODES - 1):
        first = played.requests(number)
        again = played.story(number, NODES - 1) if stage == Kind.ACKS else first
        output = how(enemy, number, first, again)
        assert "answers nothing twice" in output or "in no round, or was lost in it" in output
    assert Counter(enemy.left).most_common(1)[0][1] == 1
    assert {(u, stage) for u, name, stage in enemy.left if name == b"this"} >= {(u, stage) for u in range(NODES - 1)}


def test_rounds_that_are_begun_at_once_are_paid_one_by_one(tmp_path):
    """When both began there was budget for either: the first vector takes it."""
    enemy = Enemy(tmp_path, LIMITS.replace("max_participations = 12", "max_participations = 1"))
    entry, another = Played(b"one").play(enemy, Kind.MASKED), Played(b"other", 1).play(enemy, Kind.MASKED)
    for number in range(NODES):
        assert isinstance(enemy.ask(number, entry.requests(number))[0], bytes)
        assert "max_participations = 2: must be at most 1" in enemy.ask(number, another.requests(number))[0]
        assert (enemy.vectors(number), enemy.charges(number)) == (1, 1)


def test_a_name_given_again_beside_the_end_of_its_round_ends_nothing(tmp_path):
    enemy = Enemy(tmp_path)
    played = Played(b"this").play(enemy, Kind.ACKS)
    for stage in (Kind.ACKS, Kind.REVEAL):
        for number in range(NODES):
            answered, refused = enemy.ask(number, played.requests(number), Played(b"this").requests(number))
            assert "a round that it has begun before" in refused
            played.hear(number, answered)
        if stage == Kind.ACKS:
            played.advance()
    assert played.server.finish().max() > 0


# -- anything at any time -------------------------------------------------------------------------


def besieged(enemy, chance, steps):
    """Ask for what is due and for what was asked before, of rounds that overlap, alone and in pairs, and kill nodes.

    Returns how many sums came out.
    """
    rounds, pool, sums = [], {number: [] for number in range(NODES)}, 0
    for round_index in range(steps):
        if len(rounds) < 2:
            rounds.append(Played(str(round_index).encode(), round_index))
        number = chance.randrange(NODES)
        due = [entry.requests(number) for entry in rounds if number in entry.inbox.keys() - entry.heard]
        pool[number] += due
        pool[number] += [
            entry.story(number, 5 - number) for entry in rounds if entry.stage == Kind.ACKS and number in entry.inbox
        ]
        subset = due if due and chance.random() < 0.97 else [chance.choice(pool[number]), *due]
        alone = subset[0].stage == Kind.MASKED or chance.random() < 0.2
        subset = subset[:1] if alone else [entry for entry in subset if entry.stage != Kind.MASKED][:2]
        earlier = copy.deepcopy(enemy.state(number))
        for requests, body in zip(subset, enemy.ask(number, *subset), strict=False):
            for entry in rounds:
                if (entry.name, entry.stage) == (requests.round_name, requests.stage):
                    entry.heard.add(number)  # whatever it says
                    with suppress(ProtocolError):
                        entry.server.receive(body, number)
        if chance.random() < 0.03:
            enemy.crash(number, earlier)
            enemy.ask(number, *subset)
        for entry in list(rounds):
            if entry.heard >= entry.inbox.keys():
                try:
                    if entry.stage == Kind.REVEAL:
                        sums += entry.server.finish().max() > 0
                        rounds.remove(entry)
                    else:
                        entry.advance()
                except ProtocolError:
                    rounds.remove(entry)
    return sums


@pytest.mark.parametrize("careless", [None, "marks", "names"])
def test_nobody_answers_twice_or_unpaid_whatever_is_asked_when(careless, tmp_path, monkeypatch):
    """A node without marks on its disk, or that begins rounds by any name, is found out."""
    if careless == "marks":
        monkeypatch.setattr(client_mod, "mark_answered", lambda *_: None)
    if careless == "names":
        monkeypatch.setattr(NodeGuard, "begin", lambda *_: None)
    enemy = Enemy(tmp_path)
    sums, answers = besieged(enemy, Random(1), 150), Counter(enemy.left)
    assert (max(answers.values()) > 1) == (careless is not None)
    if careless is None:
        assert sums  # some come to their end
        assert {stage for _, _, stage in answers} == set(STAGES)


# -- what happens to one round costs the other nothing --------------------------------------------


class Coming(LocalGrid):
    """Nodes who are there for the check, when the first round is sampled, the second, and ever after; some lie."""

    def __init__(
        self, config, present, wrong=(), silent=lambda node, stage, round_index: False, tamper=lambda *_: None
    ):
        super().__init__(gradient_app(private_mod, federation()), 12, config, silent)
        self.present, self.looked, self.tamper, self.wrong = present, 0, tamper, wrong

    def get_node_ids(self):
        self.looked += 1
        return list(self.present[min(self.looked, len(self.present)) - 1])

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        requests = {m.metadata.dst_node_id: m.content.config_records["rqm"] for m in messages}
        replies = super().send_and_receive(messages)
        return [self.tamper(r, r.metadata.src_node_id, requests[r.metadata.src_node_id]) or r for r in replies]

    def deal(self, split):
        """How secrets are shared: the wrong ones deal shares of another, and will be proved to have."""
        return lambda *delivered: other_secret(split, *delivered) if self.now in self.wrong else split(*delivered)


class Unaware(FedAvg):
    """A strategy that does not look which nodes are there."""

    def configure_train(self, server_round, record, config, grid):
        return [Message(RecordDict({"arrays": record}), dst_node_id=1, message_type="train")]


def trained(grid, config, folder, monkeypatch):
    monkeypatch.setattr(protocol.sharing, "split", grid.deal(protocol.sharing.split))
    return *start(grid, config, folder, strategy=Unaware(fraction_evaluate=0.0)), read(
        plan_folder(folder) / LEDGER
    ).charges


def test_a_round_that_is_corrupted_twice_costs_the_next_one_nothing(tmp_path, monkeypatch):
    """The second time before its end: nodes would forget the next round, which was prepared beside the first time."""
    observed = []

    def tamper(reply, node, requests):
        if node != 101 or requests["stage"] != Kind.SHARES:
            return None
        observed.append(requests["round"])
        body = bytearray(body_of(reply))
        for position in range(HEADER + 32 + 4, len(body), 4 + sealed_bytes(2)):
            # In the second attempt no neighbor can open it.
            body[position + 4 + sealed_bytes(2) - 1] ^= len(observed) == 2
        return answering(reply, bytes(body))

    grid = Coming(CONFIG, [range(100, 106), range(100, 106), range(102, 108)], wrong={100}, tamper=tamper)
    result, private, spent = trained(grid, CONFIG, tmp_path, monkeypatch)
    assert survivors(result) == [4, 6]
    assert spent == {0: 3, 1: 1}
    assert list(private.run.machine.node_state.blamed) == [100]


ALL = {**CONFIG, "rqm.min-survivors": 6}


def test_a_node_that_is_proved_malicious_costs_the_next_round_nothing(tmp_path, monkeypatch):
    """Without him too few of those are left whom it was prepared with; others are there."""
    present = [range(100, 106), range(100, 106), [100, *range(106, 111)], range(106, 112)]
    result, _, spent = trained(Coming(ALL, present, wrong={100}), ALL, tmp_path, monkeypatch)
    assert survivors(result) == [0, 6]
    assert spent == {0: 1, 1: 1}


@pytest.mark.parametrize(("at", "change"), [(Kind.KEYS, {"rqm.min-survivors": 6}), (Kind.SHARES, {"rqm.threshold": 5})])
def test_a_round_that_could_not_be_prepared_is_nobodys_participation(at, change, tmp_path, monkeypatch):
    """One is silent, once: too few are left for the sum, or for anybody's threshold, and nobody is asked to train."""
    config, silent = {**CONFIG, **change, "rqm.max-participations": 1}, []

    def missing(node, stage, round_index):
        if (round_index, stage) == (1, at) and not silent:
            silent.append(node)
            return True
        return False

    grid = Coming(config, [range(100, 112)], silent=missing)
    result, _, spent = trained(grid, config, tmp_path, monkeypatch)
    assert survivors(result) == [6, 6]
    assert spent == {0: 1, 1: 1}
    fields = json.loads((plan_folder(tmp_path) / "participants.json").read_text())
    assert fields == {str(node): 1 for node in range(100, 112)}
    assert sum(stage == Kind.MASKED for stage, _ in grid.observed) == 12
