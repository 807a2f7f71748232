"""What the two sides ask and answer, read from Flower's records: every value checked, whatever the other side sent."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self, final

from flwr.app import ConfigRecord, Message

from rqm._util.checks import shown
from rqm.flower.large import large
from rqm.plan.protocol import Link
from rqm.secagg import ProtocolError
from rqm.secagg.wire import STAGES

RECORD = "rqm"
"""The record of a message that belongs to the protocol, and of a node's state."""
NEXT = "rqm-next"
"""The record beside it that belongs to another round, the one that follows."""
REFUSED = "refused"
"""In place of an answer, beside another: why there is none."""
SEEDED = "seeded"
"""Beside an answer that rests on seeded words, and is not private."""
MOST = {"stage": max(STAGES), "turn": 2**31 - 1, "dim": 2**31, "number": 2**31 - 1, "second": 2**31 - 1}
LATER = {"chain": b"", "second": 0, "follows": b""}
"""What is asked only where noise is taken back, and else is not there."""


class RefusalError(ProtocolError):
    """A node has said that it does not take part, and why."""


@final
@dataclass(frozen=True)
class Asked:
    """What the server asks of one client: its message of a ``stage`` of the ``round``, which is the run's ``turn``-th.

    ``number`` is the client's among those of the round, ``dim`` the size of the model, ``message`` the protocol's.
    Where noise is taken back, ``chain``, ``second`` and ``follows`` say in which chain of rounds, and after which sum.
    """

    stage: int
    round: bytes
    turn: int
    dim: int
    number: int
    message: bytes
    chain: bytes = b""
    second: int = 0
    follows: bytes = b""

    def record(self) -> ConfigRecord:
        """The same as Flower sends it."""
        values = asdict(self)
        return ConfigRecord({name: value for name, value in values.items() if LATER.get(name) != value})

    def at(self, link: Link | None) -> Self:
        """The same in a chain of rounds."""
        return self if link is None else replace(self, chain=link.chain, second=link.second, follows=link.follows)

    @property
    def link(self) -> Link | None:
        """The round's place in a chain, if it has one."""
        return Link(self.chain, self.turn, self.second, self.follows) if self.chain else None

    @classmethod
    def of(cls, msg: Message, record: str = RECORD) -> Self:
        """What a record of a message asks; ProtocolError if it is not one of a private round."""
        told = dict(msg.content.config_records[record])
        values: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            value = told.get(name, LATER.get(name))
            most = MOST.get(name)
            good = isinstance(value, bytes) if most is None else type(value) is int and 0 <= value <= most
            if not good:
                allowed = "bytes" if most is None else f"a whole number from 0 to {most}"
                raise ProtocolError(f"{name} = {str(value)[:40]}: must be {allowed}")
            values[name] = value
        if len(values["chain"]) > 255 or len(values["follows"]) not in ((32,) if values["second"] else (0,)):
            raise ProtocolError(f"second = {values['second']}: must come with the name of the sum that it follows")
        if values["stage"] not in STAGES or not values["dim"] or not 1 <= len(values["round"]) <= 255:
            raise ProtocolError(f"stage {values['stage']}, dim {values['dim']}: not what a client can be asked for")
        return cls(**values)


def answer(body: bytes, *, seeded: bool) -> ConfigRecord:
    """A client's answer."""
    return ConfigRecord({"message": large(body), **({SEEDED: True} if seeded else {})})


def answered(reply: Message, name: str = RECORD, *, seeded: bool) -> bytes:
    """The protocol's message in a client's answer; ProtocolError if there is none, or not of the kind that is asked."""
    if reply.has_error():
        raise RefusalError(f"it says {shown(str(reply.error.reason))}")
    record = reply.content.config_records.get(name)
    if record is not None and REFUSED in record:
        raise RefusalError(f"it says {shown(str(record[REFUSED]))}")
    body = None if record is None else record.get("message")
    if not isinstance(body, bytes):
        raise ProtocolError(f"an answer of type {type(body).__name__}: must be bytes")
    if bool(record and record.get(SEEDED)) != seeded:
        kinds = ("seeded words, which are not private", "the operating system's words")
        raise ProtocolError(f"an answer that rests on {kinds[seeded]}: must rest on {kinds[not seeded]}")
    return body
