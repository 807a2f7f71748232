"""All parties of a round in one process: for simulation, tests and benchmarks."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import final

import numpy as np
import numpy.typing as npt

from rqm.secagg.client import Client
from rqm.secagg.errors import CorruptedRound, ProtocolError
from rqm.secagg.parameters import Params, new_round
from rqm.secagg.roster import Identity, Roster
from rqm.secagg.server import Server
from rqm.secagg.wire import STAGES, Kind


@final
@dataclass
class Cost:
    """Bytes and seconds of a round.

    Attributes:
        bytes_up: Bytes that all clients send.
        bytes_down: Bytes that the server sends.
        client_seconds: Time of all clients together.
        server_seconds: Time of the server.
        by_kind: Bytes that clients send, by the name of the stage.
        blamed: A reason for each client that has broken the protocol.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    by_kind: Counter[str] = field(default_factory=Counter)
    blamed: dict[int, str] = field(default_factory=dict)


def aggregate(
    params: Params,
    values: Callable[[int], npt.ArrayLike],
    dropouts: Mapping[int, Kind] = MappingProxyType({}),
    *,
    intercept: Callable[[int, Kind, bytes], bytes | None] = lambda client, stage, message: None,
    identities: Sequence[Identity] | None = None,
    roster: Roster | None = None,
) -> tuple[npt.NDArray[np.int64], list[int], Cost]:
    """Carry out a round.

    Clients that refuse to go on drop out, and so do those whose messages are refused. A corrupted
    round is repeated without the blamed clients.

    Args:
        params: The parameters of the round.
        values: Returns a client's integers, when it needs them.
        dropouts: The stage before which a client drops out.
        intercept: Called with each message of a client; may return another to be sent instead.
        identities: The identity of each client, in rounds with a roster.
        roster: The roster, in such rounds.

    Returns:
        The sum, the clients in it, and what the round cost.

    Raises:
        Aborted: If too few clients are left.

    >>> params = Params(clients=4, count=3, levels=16, round=b"1", threshold=2)
    >>> total, survivors, _ = aggregate(params, lambda client: [client, 1, 15], dropouts={3: Kind.MASKED})
    >>> total.tolist(), survivors
    ([3, 3, 45], [0, 1, 2])
    """
    clients, cost = list(range(params.clients)), Cost()
    while True:
        parties = {u: Client(params, u, None if identities is None else identities[u], roster) for u in clients}
        server, inbox = Server(params, roster), dict.fromkeys(clients, b"")
        try:
            for stage in STAGES:
                for client, data in inbox.items():
                    if dropouts.get(client) == stage:
                        continue
                    vector = np.asarray(values(client) if stage == Kind.MASKED else ())
                    start = perf_counter()
                    try:
                        message = parties[client].answer(stage, data, partial(np.asarray, vector))
                    except ProtocolError:
                        continue
                    cost.client_seconds += perf_counter() - start
                    message = intercept(client, stage, message) or message
                    cost.bytes_up += len(message)
                    cost.by_kind[stage.name] += len(message)
                    start = perf_counter()
                    with suppress(ProtocolError):
                        server.receive(message, client)
                    cost.server_seconds += perf_counter() - start
                start = perf_counter()
                if stage != Kind.REVEAL:
                    inbox = server.advance()
                    cost.bytes_down += sum(map(len, inbox.values()))
                    cost.server_seconds += perf_counter() - start
            total = server.finish()
            cost.server_seconds += perf_counter() - start
            return total, server.survivors, cost
        except CorruptedRound as error:
            clients = [client for client in clients if client not in error.blamed]
            params = replace(params, round=new_round())
        finally:
            cost.blamed |= server.blamed
