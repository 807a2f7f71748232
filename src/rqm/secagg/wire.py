"""Messages as bytes: a version, a kind, the round they belong to, a party, and a body whose length is checked.

All numbers are little-endian. Lists of clients are sorted by id, each id once.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum

from rqm.secagg.errors import ProtocolError

MAGIC, VERSION = b"rqm-agg", 3
DIGEST = 32
HEADER = struct.Struct(f"<{len(MAGIC)}sBB{DIGEST}sI")
_NUMBER = struct.Struct("<I")


class Kind(IntEnum):
    """What a message is; odd ones come from a client, even ones from the server."""

    KEYS = 1
    PARTIES = 2
    SHARES = 3
    INBOX = 4
    MASKED = 5
    SURVIVORS = 6
    ACKS = 7
    PROOF = 8
    REVEAL = 9


STAGES = (Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.ACKS, Kind.REVEAL)
"""What clients are asked for, in this order."""


def frame(kind: Kind, digest: bytes, party: int, *body: bytes | memoryview) -> bytes:
    """A message; ``party`` is the client who sends it or is to get it."""
    return b"".join((HEADER.pack(MAGIC, VERSION, kind, digest, party), *body))


def sender(data: bytes) -> tuple[int, int]:
    """The kind and the party that a message claims."""
    _, _, kind, _, party = _header(data)
    return kind, party


def _header(data: bytes) -> tuple[bytes, int, int, bytes, int]:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProtocolError(f"a message of type {type(data).__name__}: must be bytes")
    if len(data) < HEADER.size:
        raise ProtocolError(f"a message of {len(data)} bytes: must have at least {HEADER.size}")
    magic, version, kind, digest, party = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("not a message of this protocol")
    if version != VERSION:
        raise ProtocolError(f"version {version} of the protocol: this is version {VERSION}")
    return magic, version, kind, digest, party


def unframe(data: bytes, kind: Kind, digest: bytes, party: int | None = None) -> memoryview:
    """The body of a message of that kind, round and party."""
    _, _, found, round_, who = _header(data)
    if found != kind:
        known = Kind(found).name if found in list(Kind) else f"kind {found}"
        raise ProtocolError(f"a message {known} where {kind.name} is due (sent twice, or out of turn)")
    if round_ != digest:
        raise ProtocolError("a message of another round, or of one with other parameters")
    if party is not None and who != party:
        raise ProtocolError(f"a message for client {who}: this is client {party}")
    return memoryview(data)[HEADER.size :]


def number(value: int) -> bytes:
    """A number of 32 bits."""
    return _NUMBER.pack(value)


def read_number(body: memoryview) -> tuple[int, memoryview]:
    """A number and what comes after it."""
    if len(body) < _NUMBER.size:
        raise ProtocolError("a message is cut short")
    return _NUMBER.unpack_from(body)[0], body[_NUMBER.size :]


def entries(items: Iterable[tuple[int, bytes]]) -> bytes:
    """A list of clients with something about each, after its length."""
    found = list(items)
    return number(len(found)) + b"".join(number(client) + data for client, data in found)


def read_entries(body: memoryview, size: int, clients: int) -> tuple[dict[int, memoryview], memoryview]:
    """A list of ids below ``clients``, each with ``size`` bytes; and what comes after it."""
    count, body = read_number(body)
    step = _NUMBER.size + size
    if len(body) < count * step:
        raise ProtocolError(f"a message is cut short: {count} entries take {count * step} bytes, not {len(body)}")
    found: dict[int, memoryview] = {}
    last = -1
    for place in range(count):
        part = body[place * step : (place + 1) * step]
        client = _NUMBER.unpack_from(part)[0]
        if client <= last:
            raise ProtocolError(f"client {client} is listed after {last}: ids must ascend, each once")
        if client >= clients:
            raise ProtocolError(f"client {client} is listed: there are {clients}")
        found[client], last = part[_NUMBER.size :], client
    return found, body[count * step :]


def clients(some: Iterable[int]) -> bytes:
    """A list of clients alone."""
    return entries((client, b"") for client in some)


def read_clients(body: memoryview, clients: int) -> tuple[set[int], memoryview]:
    """A list of clients alone, and what comes after it."""
    found, rest = read_entries(body, 0, clients)
    return set(found), rest


def set_size(clients: int) -> int:
    """Bytes of a set of clients: a bit each."""
    return -(-clients // 8)


def pack_set(chosen: Iterable[int], clients: int) -> bytes:
    """A set of clients, a bit each, the lowest first."""
    return sum(1 << client for client in chosen).to_bytes(set_size(clients), "little")


def read_set(body: memoryview, clients: int) -> tuple[set[int], memoryview]:
    """A set of clients, and what comes after it."""
    size = set_size(clients)
    if len(body) < size:
        raise ProtocolError("a message is cut short")
    bits = int.from_bytes(body[:size], "little")
    if bits >> clients:
        raise ProtocolError(f"a set of clients with more than {clients}")
    return {place for place, bit in enumerate(bin(bits)[:1:-1]) if bit == "1"}, body[size:]


def end(body: memoryview) -> None:
    """Refuse bytes that are left over."""
    if len(body):
        raise ProtocolError(f"a message has {len(body)} bytes too many")
