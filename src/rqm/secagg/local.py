"""All parties of a round in one process: for simulation, tests and benchmarks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm.secagg.client import Client
from rqm.secagg.errors import ProtocolError
from rqm.secagg.protocol import Params
from rqm.secagg.server import Server
from rqm.secagg.wire import Kind

_NOTHING = np.empty(0, dtype=np.int64)
STAGES = (Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.ACKS, Kind.REVEAL)


@final
@dataclass
class Cost:
    """Bytes and seconds of a round: of all clients together, and of the server."""

    bytes_up: int = 0
    bytes_down: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    by_kind: dict[str, int] = field(default_factory=dict)


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
    message of that stage. Clients who refuse to go on are lost too. ``hears`` is told every message that is sent.

    >>> params = Params(clients=4, count=3, levels=16, round=b"1", threshold=2)
    >>> total, survivors, _ = aggregate(params, lambda u: [u, 1, 15], lost={3: Kind.MASKED})
    >>> total.tolist(), survivors
    ([3, 3, 45], [0, 1, 2])
    """
    lost, cost = dict(lost or {}), Cost()
    who = range(params.clients) if clients is None else clients
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
                message = parties[u].answer(stage, data, lambda given=given: given)  # type: ignore[misc]
            except ProtocolError:
                continue
            hears(u, stage, message)
            middle = perf_counter()
            server.receive(message, u)
            cost.client_seconds += middle - start
            cost.server_seconds += perf_counter() - middle
            cost.bytes_up += len(message)
            cost.by_kind[stage.name] = cost.by_kind.get(stage.name, 0) + len(message)
        start = perf_counter()
        if stage == Kind.REVEAL:
            total = server.finish()
        else:
            inbox = server.advance()
            cost.bytes_down += sum(map(len, inbox.values()))
        cost.server_seconds += perf_counter() - start
    return total, server.survivors, cost
