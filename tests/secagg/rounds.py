"""A round of secure aggregation that tests stop at a stage and tamper with."""

import numpy as np

from rqm.secagg import Client, Identity, Params, ProtocolError, Roster, Server, wire
from rqm.secagg.wire import STAGES, Kind

PARAMS = Params(clients=5, count=3, levels=16, round=b"one", threshold=3)
VALUES = np.array([1, 2, 3])
IDENTITIES = [Identity(bytes([u + 1]) * 32) for u in range(24)]
HEADER = wire.HEADER.size


def roster_of(clients):
    """A roster of the first identities."""
    return Roster.of(identity.public for identity in IDENTITIES[:clients])


class Round:
    """A round up to a stage: `inbox` holds what the clients get next, `refused` why some gave up.

    All clients send the same values, or each a row.
    """

    def __init__(self, until=Kind.KEYS, params=PARAMS, dropouts=(), *, clients=None, server=None, values=VALUES):
        self.params, self.refused = params, {}
        self.values = values if np.ndim(values) == 2 else [values] * params.clients
        self.clients = clients or {u: Client(params, u) for u in range(params.clients)}
        self.server, self.inbox = server or Server(params), dict.fromkeys(self.clients, b"")
        for stage in STAGES[: STAGES.index(until)]:
            self.step(stage, {u for u in self.clients if stage == Kind.MASKED and u in dropouts})

    def step(self, stage, dropouts=(), altered=None):
        """Carry out a stage; `altered` messages take the place of the server's."""
        for u, message in self.answers(stage, altered).items():
            if u not in dropouts:
                self.server.receive(message, u)
        if stage != Kind.REVEAL:
            self.inbox = self.server.advance()

    def answers(self, stage, altered=None):
        """What clients answer, but for those who refuse."""
        answers = {}
        for u, data in (self.inbox | (altered or {})).items():
            try:
                answers[u] = self.clients[u].answer(stage, data, lambda u=u: self.values[u])
            except ProtocolError as error:
                self.refused[u] = str(error)
        return answers

    def fields(self, kind, to=0):
        """The fields of what the server sends to a client."""
        return self.params.read(self.inbox[to], kind, to)

    def frame(self, kind, *fields, to=0):
        """A message that the server could send."""
        return wire.frame(kind, self.params.digest, to, *fields)

    def send(self, kind, *fields, to=0):
        """What a client answers to other fields, as they are read from its message."""
        stage = Kind(kind + 1)
        answer = self.clients[to].answer(stage, self.frame(kind, *fields, to=to), lambda: self.values[to])
        return self.params.read(answer, stage, to)
