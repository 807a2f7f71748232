"""What the server asks of one client. Apart from the rest, since a node's process starts without torch."""

from dataclasses import dataclass
from typing import final

from rqm.config.round_parameters import Link
from rqm.secagg.wire import Kind


@final
@dataclass(frozen=True)
class Request:
    """What the server asks of one client.

    Attributes:
        stage: The message that is asked for, one of `rqm.secagg.wire.STAGES`.
        round_name: The name of the secure sum; each attempt at a round has its own.
        round_index: The round of the run, from 0.
        dim: Parameters of the model.
        client: The client's number in the secure sum.
        message: The message of the protocol's server.
        link: The position in the chain of rounds, with correlated noise.
    """

    stage: Kind
    round_name: bytes
    round_index: int
    dim: int
    client: int
    message: bytes
    link: Link | None = None
