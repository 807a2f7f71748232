"""Messages of secure aggregation: to the server, to a client, and a client's saved state, at every stage."""

import json
from random import Random

from rqm.secagg import Client, Params, ProtocolError, Server
from rqm.secagg.wire import HEADER, STAGES, Kind
from tools.fuzz.mutate import changed, damaged, text_of
from tools.fuzz.target import Target

PARAMS = Params(clients=5, count=8, levels=16, round=b"fuzz", threshold=3)
VALUES = [[(3 * u + i) % 16 for i in range(PARAMS.count)] for u in range(PARAMS.clients)]


class Round:
    """A round that went well: what everybody sent, and the first client as it was saved before each stage."""

    def __init__(self) -> None:
        clients = [Client(PARAMS, u) for u in range(PARAMS.clients)]
        server, inbox = Server(PARAMS), dict.fromkeys(range(PARAMS.clients), b"")
        self.sent: list[list[bytes]] = []
        self.told: list[bytes] = []
        self.saved: list[bytes] = []
        for stage in STAGES:
            self.saved.append(clients[0].save())
            self.told.append(inbox[0])
            self.sent.append(
                [one.answer(stage, inbox[u], lambda u=u: VALUES[u]) for u, one in enumerate(clients)]  # type: ignore[misc]
            )
            for u, message in enumerate(self.sent[-1]):
                server.receive(message, u)
            inbox = server.advance() if stage != Kind.REVEAL else {}
        self.total = server.finish().tolist()


def mutant(data: bytes, others: list[bytes], rng: Random) -> bytes:
    """A message with damage: anywhere, or behind the header so that it is looked at; or another message."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(others)
    start = HEADER.size if kind < 0.7 else 0
    return data[:start] + damaged(data[start:], rng, rng.choice(others))


class ToServer(Target):
    """What a client sends. A message that is refused changes nothing: the round still ends with the right sum."""

    name = "secagg, server"
    part = 2
    allowed = (ProtocolError,)

    def prepare(self) -> None:
        """A round that went well, and a server at each stage of it."""
        self.round = Round()
        self.all = [message for stage in self.round.sent for message in stage]
        self.servers = [self._at(stage) for stage in range(len(STAGES))]

    def _at(self, stage: int) -> Server:
        """A server that waits for the first client's message of a stage."""
        server = Server(PARAMS)
        for number in range(stage + 1):
            for u, message in enumerate(self.round.sent[number]):
                if number < stage or u:
                    server.receive(message, u)
            if number < stage:
                server.advance()
        return server

    def _go_on(self, server: Server, stage: int) -> list[int]:
        for number in range(stage, len(STAGES) - 1):
            server.advance()
            for u, message in enumerate(self.round.sent[number + 1]):
                server.receive(message, u)
        total: list[int] = server.finish().tolist()
        return total

    def attack(self, rng: Random) -> None:
        """A bad message instead of the first client's."""
        stage = rng.randrange(len(STAGES))
        server, good = self.servers[stage], self.round.sent[stage][0]
        bad = mutant(good, self.all, rng)
        try:
            server.receive(bad, rng.choice((0, 0, 0, None)))
        except ProtocolError:
            if rng.random() < 0.005:  # nothing has changed
                self.servers[stage] = self._at(stage)
                server.receive(good, 0)
                if self._go_on(server, stage) != self.round.total:
                    raise AssertionError("a message that was refused has changed the sum") from None
            raise
        self.servers[stage] = self._at(stage)
        self._go_on(server, stage)


class ToClient(Target):
    """What the server sends."""

    name = "secagg, client"
    part = 2
    allowed = (ProtocolError,)

    def prepare(self) -> None:
        """A round that went well."""
        self.round = Round()

    def attack(self, rng: Random) -> None:
        """A bad message to the first client, as it was saved before the stage."""
        stage = rng.randrange(1, len(STAGES))
        client = Client.load(PARAMS, self.round.saved[stage])
        client.answer(STAGES[stage], mutant(self.round.told[stage], self.round.told[1:], rng), lambda: VALUES[0])


class Saved(ToClient):
    """A client's saved state."""

    name = "secagg, saved client"
    part = 1

    def attack(self, rng: Random) -> None:
        """A bad state, and a good message."""
        stage = rng.randrange(len(STAGES))
        good = self.round.saved[stage]
        bad = good[:32] + text_of(changed(json.loads(good[32:]), rng)) if rng.random() < 0.7 else damaged(good, rng)
        client = Client.load(PARAMS, bad)
        client.answer(STAGES[stage], self.round.told[stage], lambda: VALUES[0])
        client.save()


TARGETS = (ToServer, ToClient, Saved)
