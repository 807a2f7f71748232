"""Neighbours that clients draw: exact sums whoever is lost, and none for a server that parts them from each other."""

from random import Random

import numpy as np
import pytest

from rqm.secagg import Client, Identity, Params, ProtocolError, Roster, Server, security, wire
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind

N, LEFT = 24, 20
PARAMS = Params(clients=N, count=4, levels=16, round=b"sparse", degree=8, threshold=5, minimum=LEFT)


def values(u):
    return np.array([u % 16, 15, 0, 7 * u % 16])


def expected(survivors):
    return sum(values(u) for u in survivors)


class Bent:
    """A round in which the server may say something else, to each client, than it should."""

    def __init__(self, params=PARAMS, clients=None):
        self.params = params
        self.clients = clients or [Client(params, u) for u in range(params.clients)]
        self.server, self.inbox = Server(params), dict.fromkeys(range(params.clients), b"")
        self.refused = {}

    def stage(self, kind, bent=None):
        """What clients answer to what they are told."""
        answers = {}
        for u, data in self.inbox.items():
            told = (bent or {}).get(u, data)
            try:
                answers[u] = self.clients[u].answer(kind, told, lambda u=u: values(u))
            except ProtocolError as error:
                self.refused[u] = str(error)
        return answers

    def until(self, kind):
        for stage in STAGES:
            if stage == kind:
                return self
            for answer in self.stage(stage).values():
                self.server.receive(answer)
            self.inbox = self.server.advance()
        return self

    def framed(self, kind, to, *body):
        return wire.frame(kind, self.params.digest, to, *body)

    def body(self, kind, to):
        return bytes(wire.unframe(self.inbox[to], kind, self.params.digest))


@pytest.mark.parametrize("signed", [False, True], ids=["keys for the occasion", "a roster"])
def test_exact_sums_whoever_is_lost(signed):
    identities = [Identity(bytes([u + 1]) * 32) for u in range(N)]
    roster = Roster.of(one.public for one in identities) if signed else None
    params = Params(N, 4, 16, b"lost", 10, 6, LEFT, roster=roster.hash if roster else b"")
    for seed in range(6):
        chance = Random(seed)
        lost = {u: chance.choice(STAGES) for u in chance.sample(range(N), seed % 5)}
        options = {"client": lambda u: {"identity": identities[u], "roster": roster}, "server": {"roster": roster}}
        total, survivors, _ = aggregate(params, values, lost, **(options if signed else {}))
        assert survivors == [u for u in range(N) if lost.get(u) not in (Kind.KEYS, Kind.SHARES, Kind.MASKED)]
        assert (total == expected(survivors)).all()


def test_saved_and_loaded_after_every_message():
    server, inbox = Server(PARAMS), dict.fromkeys(range(N), b"")
    saved = {u: Client(PARAMS, u).save() for u in range(N)}
    for stage in STAGES:
        for u, data in inbox.items():
            client = Client.load(PARAMS, saved[u])
            server.receive(client.answer(stage, data, lambda u=u: values(u)), u)
            saved[u] = client.save()
        inbox = server.advance() if stage != Kind.REVEAL else {}
    assert (server.finish() == expected(range(N))).all()


def test_neighbours_are_drawn_anew_by_each():
    bent = Bent().until(Kind.SHARES)
    drew = {}
    for u, answer in bent.stage(Kind.SHARES).items():
        body = wire.unframe(answer, Kind.SHARES, PARAMS.digest)
        drew[u] = frozenset(wire.read_entries(body[32:], 124, N)[0])
    assert all(len(some) == 8 and u not in some for u, some in drew.items())
    assert len(set(drew.values())) > N - 3


def test_nobody_else_signs_in_a_clients_place():
    bent = Bent().until(Kind.SHARES)
    found = wire.read_entries(memoryview(bent.body(Kind.PARTIES, 0)), PARAMS.keys_size, N)[0]
    listed = {u: bytes(part) for u, part in found.items()}
    keys = listed[3][:64]
    listed[3] = keys + Identity(b"x" * 32).sign(b"rqm keys" + PARAMS.digest + wire.number(3) + keys)
    told = {3: bent.framed(Kind.PARTIES, 3, wire.entries(listed.items()))}
    assert 3 not in bent.stage(Kind.SHARES, told)
    assert "with other keys than its own" in bent.refused[3]


def test_a_clique_is_not_served():
    """The server hands on the shares within a clique only, and says that the others are gone."""
    bent = Bent().until(Kind.MASKED)
    clique, told = set(range(9)), {}
    for u in clique:
        dealt, _ = wire.read_entries(memoryview(bent.body(Kind.INBOX, u)), 124, N)
        near = {v: bytes(part) for v, part in dealt.items() if v in clique}
        there = [v for v in sorted(clique) if v in bent.clients[u]._drawn and v not in near]
        told[u] = bent.framed(Kind.INBOX, u, wire.entries(near.items()), wire.clients(there))
    answers = bent.stage(Kind.MASKED, told)
    masked = clique & answers.keys()  # they have drawn enough from it, by chance
    assert all("neighbours have shared their secrets: must be at least 5" in bent.refused[u] for u in clique - masked)
    assert len(masked) < 9


def test_different_stories_about_who_takes_part():
    """Half is told of another client in somebody's place: no share of one half can be opened by the other."""
    bent = Bent().until(Kind.SHARES)
    stranger = wire.unframe(Client(PARAMS, 5).keys(), Kind.KEYS, PARAMS.digest)
    found = wire.read_entries(memoryview(bent.body(Kind.PARTIES, 0)), PARAMS.keys_size, N)[0]
    other = wire.entries((u, bytes(stranger if u == 5 else part)) for u, part in found.items())
    told = {u: bent.framed(Kind.PARTIES, u, other) for u in range(12, N)}
    for answer in bent.stage(Kind.SHARES, told).values():
        bent.server.receive(answer)
    bent.inbox = bent.server.advance()
    for answer in bent.stage(Kind.MASKED).values():
        bent.server.receive(answer)
    assert not any(share for u in range(12) for v, share in bent.clients[u]._held.items() if v >= 12)
    answers = bent.stage(Kind.ACKS, {u: survivors_message(bent, u, set(range(N))) for u in range(N)})
    assert len(bent.refused) > 4  # too many tags of the others do not fit
    nothing_is_revealed(bent, [(answers, range(12)), (answers, range(12, N))])


def nothing_is_revealed(bent, groups):
    """Whatever signatures are shown to those who have signed one sum."""
    for answers, some in groups:
        proof = wire.entries((u, answers[u][wire.HEADER.size :][:64]) for u in range(N) if u in answers)
        for u in some:
            with pytest.raises(ProtocolError, match=r"\d+ clients were told of this sum: must be at least 20|says not"):
                bent.clients[u].reveal(bent.framed(Kind.PROOF, u, proof))


def survivors_message(bent, u, everybody):
    """What the server says to a client of a sum of its choice, with the tags that were made."""
    known = bent.server._linked[u]
    tags = bent.server._tags
    alive = wire.entries((v, bytes(tags[v][u] if v in tags else 16)) for v in known if v in everybody)
    lost = wire.clients(v for v in known if v not in everybody)
    return bent.framed(Kind.SURVIVORS, u, wire.pack_set(everybody, N), alive, lost)


def test_two_sums_are_told():
    """Of which each has too few who signed: two have more clients in common than may be corrupt."""
    bent = Bent().until(Kind.ACKS)
    one, other = set(range(N)), set(range(N - 4))
    told = {u: survivors_message(bent, u, one if u >= 10 else other) for u in range(N)}
    answers = bent.stage(Kind.ACKS, told)
    nothing_is_revealed(bent, [(answers, range(10, N))])
    assert {u for u in answers if u < 10}  # some went along
    shorter = {u: answer for u, answer in answers.items() if u < N - 4}
    nothing_is_revealed(bent, [(shorter, range(10))])


def test_signatures_that_are_borrowed_or_forged():
    bent = Bent().until(Kind.REVEAL)
    found = wire.read_entries(memoryview(bent.body(Kind.PROOF, 0)), 64, N)[0]
    assert len(found) == N
    some = {u: bytes(found[u if u < LEFT - 1 else 0]) for u in found}
    with pytest.raises(ProtocolError, match=r"19 clients were told of this sum: must be at least 20 .5 acknowledg"):
        bent.clients[0].reveal(bent.framed(Kind.PROOF, 0, wire.entries(some.items())))


def test_clients_who_take_no_part_are_in_no_sum():
    """A sum cannot be made larger by those who have not sent keys."""
    params = Params(clients=6, count=4, levels=16, round=b"few", threshold=3, minimum=5)
    bent = Bent(params)
    for u, answer in bent.stage(Kind.KEYS).items():
        if u < 5:
            bent.server.receive(answer)
    bent.inbox = bent.server.advance()
    for kind in (Kind.SHARES, Kind.MASKED):
        for answer in bent.stage(kind).values():
            bent.server.receive(answer)
        bent.inbox = bent.server.advance()
    alive = wire.entries((v, bytes(bent.server._tags[v][0])) for v in (1, 2, 3))
    said = wire.frame(Kind.SURVIVORS, params.digest, 0, wire.pack_set({0, 1, 2, 3, 5}, 6), alive, wire.clients([4]))
    with pytest.raises(ProtocolError, match="set of all clients in the sum does not fit"):
        bent.clients[0].acknowledge(said)


@pytest.mark.slow
def test_three_hundred_clients_with_the_derived_numbers():
    degree, threshold, minimum = security(300, 285, 15)
    params, chance = Params(300, 4, 16, b"three hundred", degree, threshold, minimum), Random(0)
    for _ in range(3):
        lost = {u: chance.choice(STAGES) for u in chance.sample(range(300), 300 - minimum)}
        total, survivors, _ = aggregate(params, values, lost)
        assert len(survivors) >= minimum
        assert (total == expected(survivors)).all()
