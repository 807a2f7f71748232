"""Messages and saved states as bytes.

A message has a header (version, kind, digest of the round's parameters, client) and a body of
fields: bytes of a known size, or a list of clients with the same number of bytes for each. All
numbers are little-endian. Lists are sorted by client, and each client occurs once.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from hashlib import sha256
from itertools import pairwise
from operator import index
from typing import Any, get_type_hints

import numpy as np

from rqm.secagg.errors import ProtocolError

MAGIC, VERSION = b"rqm-agg", 3
HEADER = struct.Struct("<7sBB32sI")
"""Magic, version, kind, digest of the parameters, client."""

Entries = dict[int, bytes]
"""Bytes for each client, by its number."""
NO_ENTRIES: Entries = {}
"""For messages without an optional list."""
Field = bytes | memoryview | Iterable[int]
"""A part of a body: bytes, a list of clients, or entries."""


class Kind(IntEnum):
    """The kind of a message: odd ones come from a client, even ones from the server."""

    KEYS = 1
    PARTIES = 2
    SHARES = 3
    INBOX = 4
    MASKED = 5
    SURVIVORS = 6
    ACKS = 7
    PROOF = 8
    REVEAL = 9


STAGES = tuple(Kind)[::2]
"""The messages of a client, in their order."""


# -- writing --------------------------------------------------------------------------------------


number = struct.Struct("<I").pack
"""A number of 32 bits."""


def encode(field: Field) -> bytes | memoryview:
    """One field of a body."""
    if isinstance(field, bytes | memoryview):
        return field
    entries = field if isinstance(field, dict) else dict.fromkeys(field, b"")
    return number(len(entries)) + b"".join(number(client) + data for client, data in sorted(entries.items()))


def pack_set(chosen: Iterable[int], clients: int) -> bytes:
    """A set of clients, one bit for each of all, the lowest first."""
    bits = np.zeros(clients, dtype=bool)
    bits[list(chosen)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def frame(kind: Kind, digest: bytes, client: int, *fields: Field) -> bytes:
    """A message.

    Args:
        kind: What it is.
        digest: The digest of the round's parameters.
        client: The client that sends or receives it.
        fields: Its body.

    Returns:
        The message.
    """
    return b"".join((HEADER.pack(MAGIC, VERSION, kind, digest, client), *map(encode, fields)))


# -- reading --------------------------------------------------------------------------------------


def header(data: bytes) -> tuple[int, bytes, int]:
    """The kind, digest and client of a message."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProtocolError(f"a message of type {type(data).__name__}: must be bytes")
    if len(data) < HEADER.size:
        raise ProtocolError(f"a message of {len(data)} bytes: must have at least {HEADER.size}")
    magic, version, kind, digest, client = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("not a message of this protocol")
    if version != VERSION:
        raise ProtocolError(f"version {version} of the protocol: this is version {VERSION}")
    return kind, digest, client


def unframe(data: bytes, kind: Kind, digest: bytes, client: int | None = None) -> memoryview:
    """The body of a message, if it is the one that is due.

    Args:
        data: The message.
        kind: The kind that it must have.
        digest: The digest of the round's parameters.
        client: The client that it must name; None: any.

    Returns:
        The body.

    Raises:
        ProtocolError: If it is another message.
    """
    actual_kind, actual_digest, actual_client = header(data)
    if actual_kind != kind:
        raise ProtocolError(
            f"a message of kind {actual_kind}: must be of kind {kind:d}, {kind.name} (sent twice or too early)"
        )
    if actual_digest != digest:
        raise ProtocolError("a message of another round, or of one with other parameters")
    if client not in (None, actual_client):
        raise ProtocolError(f"a message for client {actual_client}: this is client {client}")
    return memoryview(data)[HEADER.size :]


def read_bytes(body: memoryview, size: int) -> tuple[bytes, memoryview]:
    """The first `size` bytes, and the remaining body."""
    if len(body) < size:
        raise ProtocolError(f"a message is cut short: must have {size} bytes here, not {len(body)}")
    return bytes(body[:size]), body[size:]


def read_entries(body: memoryview, size: int, clients: int) -> tuple[Entries, memoryview]:
    """A list of clients with some bytes for each.

    Args:
        body: A body that begins with it.
        size: How many bytes there are for each client.
        clients: Client ids must be below this.

    Returns:
        The bytes of each client, and the remaining body.
    """
    count, body = read_bytes(body, 4)
    data, body = read_bytes(body, int.from_bytes(count, "little") * (4 + size))
    entries = list(struct.iter_unpack(f"<I{size}s", data))
    for (client, _), (following, _) in pairwise(entries):
        if following <= client:
            raise ProtocolError(f"client {following} is listed after {client}: ids must ascend, each once")
    if entries and entries[-1][0] >= clients:
        raise ProtocolError(f"client {entries[-1][0]} is listed: must be below {clients}")
    return dict(entries), body


def unpack_set(data: bytes, clients: int) -> set[int]:
    """Undo `pack_set`; refuse clients that are not below `clients`."""
    chosen = np.flatnonzero(np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")).tolist()
    if chosen and chosen[-1] >= clients:
        raise ProtocolError(f"a set with client {chosen[-1]}: must be below {clients}")
    return set(chosen)


# -- saved states ---------------------------------------------------------------------------------

_READERS: dict[Any, Callable[[Any], Any]] = {
    int: index,
    str: str,
    bytes: bytes.fromhex,
    set[int]: lambda value: {int(client) for client in value},
    Entries: lambda value: {int(client): bytes.fromhex(data) for client, data in value.items()},
}


@cache
def state_types(owner: type) -> dict[str, Any]:
    """The names and types of the values in a state, from the annotations of its class."""
    return get_type_hints(owner)


def dump_state(state: Mapping[str, Any]) -> bytes:
    """A state as JSON after a checksum; it is as secret as the values in it."""
    text = json.dumps(state, default=lambda value: value.hex() if isinstance(value, bytes) else sorted(value)).encode()
    return sha256(text).digest() + text


def load_state(data: bytes, owner: type, subject: str) -> dict[str, Any]:
    """Undo `dump_state`.

    Args:
        data: The saved state.
        owner: The class with the state; see `state_types`.
        subject: What it should be, for the error.

    Returns:
        The values by name.

    Raises:
        ProtocolError: If it is something else, or damaged.
    """
    checksum, text = data[:32], data[32:]
    try:
        if sha256(text).digest() != checksum:
            raise ValueError("the checksum does not fit")
        values = json.loads(text)
        return {name: _READERS[kind](values[name]) for name, kind in state_types(owner).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not {subject}, or damaged ({error})") from None
