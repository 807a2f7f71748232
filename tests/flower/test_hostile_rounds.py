"""What a server could try with several rounds at once, by the door that it uses; and what liars could with two."""

import copy
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("flwr")
from rqm.flower import PrivateStrategy, Settings, client_mod, private_mod
from rqm.flower.messages import ANSWER_KEY, NEXT_RECORD, RECORD, REFUSAL_KEY, request_message
from rqm.flower.request import Request
from rqm.ledger.ledger import LEDGER, read
from rqm.plan.policy import EPSILONS, LEDGERS, TEMPLATE, NodeGuard, Policy
from rqm.secagg import ProtocolError, Server, wire
from rqm.secagg import client as protocol
from rqm.secagg.masking import sealed_bytes
from rqm.secagg.wire import STAGES, Kind
from tests.flower.local import LocalGrid, arrays, gradient_app
from tests.flower.test_attacks import CONFIG, HEADER, answering, body_of, survivors
from tests.secagg.test_malicious_clients import other_secret
from tests.training.small import federation, model

NODES, DIM = 6, sum(value.numel() for value in model().parameters())
SETTINGS = Settings.from_run_config(CONFIG)
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
    mean = policy.counted(SETTINGS.plan.private_mean(DIM)).with_values(delta=policy.delta)
    return json.dumps({mean.fingerprint[:32]: list(range(1, 13))})


class Enemy:
    """A server that asks its nodes what it likes, and notes what leaves them. Each has a policy and a ledger."""

    def __init__(self, folder, limits=LIMITS):
        self.grid, self.folder = LocalGrid(gradient_app(private_mod), NODES, CONFIG), folder
        self.left = []  # client, round, stage
        for node, context in self.grid.contexts.items():
            home = folder / str(node)
            (home / LEDGERS).mkdir(parents=True)
            (home / "policy.toml").write_text(limits)
            (home / LEDGERS / EPSILONS).write_text(costs(Policy.from_toml(home / "policy.toml")))
            context.node_config["rqm-policy"] = str(home / "policy.toml")

    def state(self, number):
        return self.grid.contexts[100 + number].state

    def crash(self, number, before):
        """What a node has answered has left it; then it was killed, and knows no more than before."""
        self.grid.contexts[100 + number].state = before

    def charges(self, number):
        return sum(read(path).charges.total() for path in self.folder.glob(f"{100 + number}/{LEDGERS}/*/{LEDGER}"))

    def ask(self, number, *asked):
        """What a client answers, to one message, to each of the things asked; a reason where it refuses."""
        names = (RECORD, NEXT_RECORD)[: len(asked)]
        content = {"arrays": arrays(model())} if asked[0].stage == Kind.MASKED else {}
        reply = self.grid.app(request_message(100 + number, asked, content), self.grid.contexts[100 + number])
        if reply.has_error():
            return [reply.error.reason]
        records = [reply.content.config_records[name] for name in names]
        self.left += [
            (number, one.round_name, one.stage)
            for one, record in zip(asked, records, strict=True)
            if REFUSAL_KEY not in record
        ]
        assert self.charges(number) >= self.vectors(number)  # on the disk before anything leaves
        assert len(self.state(number).config_records["rqm"]) <= 2
        return [record.get(ANSWER_KEY) or record[REFUSAL_KEY] for record in records]

    def vectors(self, number):
        return sum((who, stage) == (number, Kind.MASKED) for who, _, stage in self.left)


class Played:
    """A round in which all take part, as an honest server plays it: what is due, and what has come."""

    def __init__(self, name, turn=0):
        self.name, self.turn, self.params = name, turn, SETTINGS.params(DIM, name)
        self.server, self.stage, self.inbox = Server(self.params), Kind.KEYS, dict.fromkeys(range(NODES), b"")
        self.heard = set()

    def asked(self, number):
        return Request(self.stage, self.name, self.turn, DIM, number, self.inbox[number])

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
                self.hear(number, *enemy.ask(number, self.asked(number)))
            self.advance()
        return self

    def story(self, number, lost):
        """What is asked of a client by a server that tells it of another sum, in which one is lost."""
        everybody, tags, _ = self.params.read(self.inbox[number], Kind.SURVIVORS, number)
        tags.pop(lost, None)
        survivors = wire.unpack_set(everybody, NODES) - {lost}
        told = wire.pack_set(survivors, NODES) + wire.encode(tags) + wire.encode([lost])
        return replace(self.asked(number), message=wire.frame(Kind.SURVIVORS, self.params.digest, number, told))


# -- one round twice, others in between -----------------------------------------------------------


def at_once(enemy, number, first, again):
    return enemy.ask(number, first, again)[1]


def beside_the_next(enemy, number, first, again):
    enemy.ask(number, first, Played(b"next").asked(number))
    return enemy.ask(number, again, Played(b"next but one").asked(number))[0]


def after_two_more_have_begun(enemy, number, first, again):
    enemy.ask(number, first)
    enemy.ask(number, Played(b"next").asked(number))
    enemy.ask(number, Played(b"next but one").asked(number))
    return enemy.ask(number, again)[0]


def after_a_kill(enemy, number, first, again):
    before = copy.deepcopy(enemy.state(number))
    enemy.ask(number, first)
    enemy.crash(number, before)
    enemy.ask(number, Played(b"next").asked(number))
    return enemy.ask(number, again)[0]


TWICE = [(how, stage) for how in (at_once, beside_the_next) for stage in (Kind.SHARES, Kind.ACKS, Kind.REVEAL)]
TWICE += [(how, stage) for how in (after_two_more_have_begun, after_a_kill) for stage in STAGES[1:]]  # a vector, too


@pytest.mark.parametrize(("how", "stage"), TWICE, ids=lambda one: getattr(one, "name", "") or one.__name__)
def test_a_round_is_answered_once_whatever_began_meanwhile(how, stage, tmp_path):
    """Another vector under the same masks, another sum to acknowledge or to reveal: whenever it is asked for."""
    enemy = Enemy(tmp_path)
    played = Played(b"this").play(enemy, stage)
    for number in range(NODES - 1):
        first = played.asked(number)
        again = played.story(number, NODES - 1) if stage == Kind.ACKS else first
        said = how(enemy, number, first, again)
        assert "answers nothing twice" in said or "in no round, or was lost in it" in said
    assert Counter(enemy.left).most_common(1)[0][1] == 1
    assert {(u, stage) for u, name, stage in enemy.left if name == b"this"} >= {(u, stage) for u in range(NODES - 1)}


def test_rounds_that_are_begun_at_once_are_paid_one_by_one(tmp_path):
    """When both began there was budget for either: the first vector takes it."""
    enemy = Enemy(tmp_path, LIMITS.replace("max_participations = 12", "max_participations = 1"))
    one, other = Played(b"one").play(enemy, Kind.MASKED), Played(b"other", 1).play(enemy, Kind.MASKED)
    for number in range(NODES):
        assert isinstance(enemy.ask(number, one.asked(number))[0], bytes)
        assert "max_participations = 2: must be at most 1" in enemy.ask(number, other.asked(number))[0]
        assert (enemy.vectors(number), enemy.charges(number)) == (1, 1)


def test_a_name_given_again_beside_the_end_of_its_round_ends_nothing(tmp_path):
    enemy = Enemy(tmp_path)
    played = Played(b"this").play(enemy, Kind.ACKS)
    for number in range(NODES):
        answered, refused = enemy.ask(number, played.asked(number), Played(b"this").asked(number))
        assert "a round that it has begun before" in refused
        played.hear(number, answered)
    played.advance()
    for number in range(NODES):
        answered, refused = enemy.ask(number, played.asked(number), Played(b"this").asked(number))
        assert "a round that it has begun before" in refused
        played.hear(number, answered)
    assert played.server.finish().max() > 0


# -- anything at any time -------------------------------------------------------------------------


def besieged(enemy, chance, steps):
    """Ask for what is due and for what was asked before, of rounds that overlap, alone and in pairs, and kill nodes.

    Returns how many sums came out.
    """
    rounds, pool, sums = [], {number: [] for number in range(NODES)}, 0
    for turn in range(steps):
        if len(rounds) < 2:
            rounds.append(Played(str(turn).encode(), turn))
        number = chance.randrange(NODES)
        due = [one.asked(number) for one in rounds if number in one.inbox.keys() - one.heard]
        pool[number] += due
        pool[number] += [
            one.story(number, 5 - number) for one in rounds if one.stage == Kind.ACKS and number in one.inbox
        ]
        some = due if due and chance.random() < 0.97 else [chance.choice(pool[number]), *due]
        alone = some[0].stage == Kind.MASKED or chance.random() < 0.2
        some = some[:1] if alone else [one for one in some if one.stage != Kind.MASKED][:2]
        before = copy.deepcopy(enemy.state(number))
        for asked, body in zip(some, enemy.ask(number, *some), strict=False):
            for one in rounds:
                if (one.name, one.stage) == (asked.round_name, asked.stage):
                    one.heard.add(number)  # whatever it says
                    with suppress(ProtocolError):
                        one.server.receive(body, number)
        if chance.random() < 0.03:
            enemy.crash(number, before)
            enemy.ask(number, *some)
        for one in list(rounds):
            if one.heard >= one.inbox.keys():
                try:
                    if one.stage == Kind.REVEAL:
                        sums += one.server.finish().max() > 0
                        rounds.remove(one)
                    else:
                        one.advance()
                except ProtocolError:
                    rounds.remove(one)
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
    """Nodes who are there when the first round is sampled, the second, and ever after; some of them lie."""

    def __init__(self, config, there, wrong=(), silent=lambda node, stage, turn: False, tamper=lambda *_: None):
        super().__init__(self.answer, 12, config, silent)
        self.real, self.there, self.looked, self.tamper = gradient_app(private_mod, federation()), there, 0, tamper
        self.wrong, self.now = wrong, 0

    def answer(self, message, context):
        self.now = context.node_id
        return self.real(message, context)

    def get_node_ids(self):
        self.looked += 1
        return list(self.there[min(self.looked, len(self.there)) - 1])

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        asked = {m.metadata.dst_node_id: m.content.config_records["rqm"] for m in messages}
        replies = super().send_and_receive(messages)
        return [self.tamper(r, r.metadata.src_node_id, asked[r.metadata.src_node_id]) or r for r in replies]

    def deal(self, split):
        """How secrets are shared: the wrong ones deal shares of another, and will be proved to have."""
        return lambda *given: other_secret(split, *given) if self.now in self.wrong else split(*given)


def trained(grid, config, folder, monkeypatch):
    monkeypatch.setattr(protocol.sharing, "split", grid.deal(protocol.sharing.split))
    private = PrivateStrategy(Settings.from_run_config(config), folder=folder, stage_timeout=0.2)
    return private.start(grid, arrays(model())), private, read(folder / LEDGER).charges


def test_a_round_that_is_spoilt_twice_costs_the_next_one_nothing(tmp_path, monkeypatch):
    """The second time before its end: nodes would forget the next round, which was prepared beside the first time."""
    seen = []

    def tamper(reply, node, asked):
        if node != 101 or asked["stage"] != Kind.SHARES:
            return None
        seen.append(asked["round"])
        body = bytearray(body_of(reply))
        for start in range(HEADER + 32 + 4, len(body), 4 + sealed_bytes(2)):
            body[start + 4 + sealed_bytes(2) - 1] ^= len(seen) == 2  # what nobody can open, in the second attempt
        return answering(reply, bytes(body))

    grid = Coming(CONFIG, [range(100, 106), range(102, 108)], wrong={100}, tamper=tamper)
    result, private, spent = trained(grid, CONFIG, tmp_path, monkeypatch)
    assert survivors(result) == [4, 6]
    assert spent == {0: 3, 1: 1}
    assert list(private.blamed) == [100]


ALL = {**CONFIG, "rqm.min-survivors": 6}


def test_who_is_proved_a_liar_costs_the_next_round_nothing(tmp_path, monkeypatch):
    """Without him too few of those are left whom it was prepared with; others are there."""
    there = [range(100, 106), [100, *range(106, 111)], range(106, 112)]
    result, _, spent = trained(Coming(ALL, there, wrong={100}), ALL, tmp_path, monkeypatch)
    assert survivors(result) == [0, 6]
    assert spent == {0: 1, 1: 1}


@pytest.mark.parametrize(("at", "change"), [(Kind.KEYS, {"rqm.min-survivors": 6}), (Kind.SHARES, {"rqm.threshold": 5})])
def test_a_round_that_could_not_be_prepared_is_nobodys_participation(at, change, tmp_path, monkeypatch):
    """One is silent, once: too few are left for the sum, or for anybody's threshold, and nobody is asked to train."""
    config, silent = {**CONFIG, **change, "rqm.max-participations": 1}, []

    def lost(node, stage, turn):
        if (turn, stage) == (1, at) and not silent:
            silent.append(node)
            return True
        return False

    grid = Coming(config, [range(100, 112)], silent=lost)
    result, _, spent = trained(grid, config, tmp_path, monkeypatch)
    assert survivors(result) == [6, 6]
    assert spent == {0: 1, 1: 1}
    told = json.loads((tmp_path / "participants.json").read_text())
    assert told == {str(node): 1 for node in range(100, 112)}
    assert sum(stage == Kind.MASKED for stage, _ in grid.seen) == 12
