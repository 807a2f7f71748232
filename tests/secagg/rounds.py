"""A round of secure aggregation that is stopped at a stage, for tests that tamper with it."""

import numpy as np

from rqm.secagg import Client, Params, Server, wire
from rqm.secagg.wire import Kind

PARAMS = Params(clients=5, count=3, levels=16, round=b"one", threshold=3)
VALUES = np.array([1, 2, 3])
STEPS = {
    Kind.PARTIES: lambda client, data: client.share(data),
    Kind.INBOX: lambda client, data: client.mask(data, VALUES),
    Kind.SURVIVORS: lambda client, data: client.acknowledge(data),
    Kind.PROOF: lambda client, data: client.reveal(data),
}


class Round:
    """A round up to a stage: ``inbox`` holds what the server then sends."""

    def __init__(self, until, params=PARAMS, lost=(), **options):
        self.params = params
        self.clients = [Client(params, u, **options) for u in range(params.clients)]
        self.server = Server(params)
        for client in self.clients:
            self.server.receive(client.keys())
        self.inbox, kind = self.server.advance(), Kind.PARTIES
        while kind != until:
            for u, data in self.inbox.items():
                if not (kind == Kind.INBOX and u in lost):
                    self.server.receive(STEPS[kind](self.clients[u], data))
            self.inbox, kind = self.server.advance(), Kind(kind + 2)

    def send(self, kind, *body, to=0):
        return STEPS[kind](self.clients[to], wire.frame(kind, self.params.digest, to, *body))
