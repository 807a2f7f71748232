"""Rounds of secure aggregation in the making, as the server keeps them, and what it asks of the nodes next.

A round has five messages of each client. The last two ask nothing of its data, nor do the first two of the round that
follows: so these go together, and a round costs three exchanges. Nothing else of it changes: each round has keys of its
own, and every check of the protocol.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from rqm.flower.large import share
from rqm.flower.records import NEXT, RECORD, Asked, answered
from rqm.plan.protocol import Link
from rqm.secagg import Server
from rqm.secagg.wire import Kind

Lost = Callable[[int, Exception], None]
"""Told of a node that is lost in a round, and why."""


@final
@dataclass
class Round:
    """The secure sum of the ``turn``-th round, under a ``name`` of its own, of ``nodes`` by number (−1 is nobody)."""

    server: Server
    nodes: list[int]
    turn: int
    name: bytes
    dim: int
    link: Link | None = None
    stage: Kind = Kind.KEYS
    inbox: dict[int, bytes] = field(init=False)
    numbers: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Ask everybody for keys."""
        self.numbers = {node: number for number, node in enumerate(self.nodes) if node >= 0}
        self.inbox = dict.fromkeys(self.numbers.values(), b"")

    @property
    def begun(self) -> bool:
        """Whether keys and shares are exchanged, and vectors are due."""
        return self.stage >= Kind.MASKED

    def advance(self) -> None:
        """End the stage, and ask for what comes next."""
        self.inbox = self.server.advance()
        self.stage = Kind(self.stage + 2)

    def asked(self) -> dict[int, ConfigRecord]:
        """What is asked of each node."""
        return {
            self.nodes[number]: Asked(
                stage=int(self.stage), round=self.name, turn=self.turn, dim=self.dim, number=number, message=data
            )
            .at(self.link)
            .record()
            for number, data in self.inbox.items()
        }

    def training(self, given: RecordDict) -> list[Message]:
        """The messages that ask for vectors, with what is ``given`` to those who train."""
        share(given)
        return [
            _message(node, {**(dict(given) if self._trains(node) else {}), RECORD: record})
            for node, record in self.asked().items()
        ]

    def _trains(self, node: int) -> bool:
        return self.numbers[node] < self.server.params.vector_clients

    def take(self, reply: Message, name: str, lost: Lost, *, seeded: bool) -> None:
        """Hand an answer to the server. Whatever a node has sent, it costs nobody but that node its place."""
        node = reply.metadata.src_node_id
        try:
            self.server.receive(answered(reply, name, seeded=seeded), self.numbers[node])
        except Exception as error:  # a reply is bytes that anybody can have made
            lost(node, error)


def exchange(grid: Grid, rounds: Sequence[Round], lost: Lost, *, timeout: float, seeded: bool) -> None:
    """Ask for the messages of some rounds, one message a node for all of them, and hand them to the rounds."""
    asked: dict[int, dict[str, tuple[Round, ConfigRecord]]] = {}
    for one in rounds:
        for node, record in one.asked().items():
            parts = asked.setdefault(node, {})
            parts[NEXT if parts else RECORD] = one, record
    messages = [_message(node, {name: record for name, (_, record) in parts.items()}) for node, parts in asked.items()]
    for reply in grid.send_and_receive(messages, timeout=timeout):
        for name, (one, _) in asked.get(reply.metadata.src_node_id, {}).items():
            one.take(reply, name, lost, seeded=seeded)


def _message(node: int, records: dict[str, Any]) -> Message:
    return Message(RecordDict(records), dst_node_id=node, message_type=MessageType.TRAIN)


def as_one_answer(strategy: Strategy, server_round: int, arrays: ArrayRecord, node: int) -> ArrayRecord | None:
    """What a strategy of Flower's makes of one answer: the mean of all."""
    key = getattr(strategy, "weighted_by_key", "num-examples")
    asked = Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
    answer = Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({key: 1})}), reply_to=asked)
    found, _ = strategy.aggregate_train(server_round, [answer])
    return found
