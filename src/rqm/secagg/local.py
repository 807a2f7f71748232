"""All parties of a round in one process: for simulation, tests and benchmarks."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm.secagg.client import Client
from rqm.secagg.errors import ProtocolError, Spoiled
from rqm.secagg.protocol import Params, new_round
from rqm.secagg.server import Server
from rqm.secagg.wire import STAGES, Kind

_NOTHING = np.empty(0, dtype=np.int64)


@final
@dataclass
class Cost:
    """Bytes and seconds of a round: of all clients together, and of the server; and who has broken the protocol."""

    bytes_up: int = 0
    bytes_down: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    by_kind: dict[str, int] = field(default_factory=dict)
    liars: dict[int, str] = field(default_factory=dict)


def aggregate(
    params: Params,
    values: Callable[[int], npt.ArrayLike],
    lost: Mapping[int, Kind] | None = None,
    clients: Iterable[int] | None = None,
    hears: Callable[[int, Kind, bytes], object] = lambda client, stage, message: None,
    **options: Any,
) -> tuple[npt.NDArray[np.int64], list[int], Cost]:
    """Carry out a round; return the sum, the clients in it, and what it cost.

    ``values`` gives a client's integers when it needs them. A client in ``lost`` falls silent before it sends its
    message of that stage. Clients who refuse to go on are lost too, and so are those whose messages are refused. If
    some have spoilt the round, another is carried out without them. ``hears`` is told every message that is sent, and
    may return another to be sent instead.

    >>> params = Params(clients=4, count=3, levels=16, round=b"1", threshold=2)
    >>> total, survivors, _ = aggregate(params, lambda u: [u, 1, 15], lost={3: Kind.MASKED})
    >>> total.tolist(), survivors
    ([3, 3, 45], [0, 1, 2])
    """
    who, cost = list(range(params.clients) if clients is None else clients), Cost()
    while True:
        try:
            total, survivors = _attempt(params, values, dict(lost or {}), who, hears, cost, options)
        except Spoiled as error:
            who = [u for u in who if u not in error.liars]
            params = replace(params, round=new_round())
        else:
            return total, survivors, cost


def _attempt(
    params: Params,
    values: Callable[[int], npt.ArrayLike],
    lost: dict[int, Kind],
    who: list[int],
    hears: Callable[[int, Kind, bytes], object],
    cost: Cost,
    options: dict[str, Any],
) -> tuple[npt.NDArray[np.int64], list[int]]:
    parties = {u: Client(params, u, **options.get("client", lambda _: {})(u)) for u in who}
    server = Server(params, **options.get("server", {}))
    inbox: dict[int, bytes] = dict.fromkeys(parties, b"")
    for stage in STAGES:
        for u, data in inbox.items():
            if lost.get(u) == stage:
                continue
            given = np.asarray(values(u)) if stage == Kind.MASKED else _NOTHING
            start = perf_counter()
            try:
                message = parties[u].answer(stage, data, partial(np.asarray, given))
            except ProtocolError:
                continue
            other = hears(u, stage, message)
            message = other if isinstance(other, bytes) else message
            middle = perf_counter()
            with suppress(ProtocolError):
                server.receive(message, u)
            cost.client_seconds += middle - start
            cost.server_seconds += perf_counter() - middle
            cost.bytes_up += len(message)
            cost.by_kind[stage.name] = cost.by_kind.get(stage.name, 0) + len(message)
        start = perf_counter()
        try:
            if stage == Kind.REVEAL:
                total = server.finish()
            else:
                inbox = server.advance()
                cost.bytes_down += sum(map(len, inbox.values()))
        finally:
            cost.liars |= server.liars
            cost.server_seconds += perf_counter() - start
    return total, server.survivors
