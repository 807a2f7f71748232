"""Large bytes in Flower's messages, which a simulation engine pickles for every client: no more copies than it takes.

Flower's engine hands each message to Ray, which pickles it into memory that the worker shares. Plain bytes are copied
into the pickle, the pickle is copied when it is complete, and copied again into that memory; the model, which is sent
to all, so often for every client. Here bytes are handed over as they lie (PEP 574), and the model once for all clients
(``share``). They arrive as plain bytes.
"""

import sys
from functools import lru_cache
from pickle import PickleBuffer
from typing import Any, SupportsIndex, final

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

LEAST = 2**16
"""Bytes for which that is worth something."""


@final
class Large(bytes):
    """Bytes that are pickled in their place, where the pickler has room for such; for all others, bytes.

    >>> import pickle
    >>> places = []
    >>> data = pickle.dumps(Large(1000), protocol=5, buffer_callback=places.append)
    >>> len(data) < 100, pickle.loads(data, buffers=places) == bytes(1000)
    (True, True)
    """

    shared: Any = None
    """Where Ray has them, and as which of the arrays there."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as plain bytes."""
        return bytes, (PickleBuffer(self) if protocol.__index__() >= 5 else bytes(self),)


def large(data: bytes) -> bytes:
    """The same bytes; if they are many, such as are pickled in their place."""
    return data if len(data) < LEAST or isinstance(data, Large) else Large(data)


def of_large(record: ArrayRecord) -> ArrayRecord:
    """The same arrays, of such bytes."""
    return ArrayRecord({name: Array(one.dtype, one.shape, one.stype, large(one.data)) for name, one in record.items()})


def share(content: RecordDict) -> None:
    """Where this process drives Ray's workers, put the large arrays into their memory, once for all who are sent them.

    They stay there for as long as they are here.
    """
    ray = _ray()
    if ray is None:
        return
    ray.util.register_serializer(Large, serializer=_put, deserializer=_got)
    for record in content.array_records.values():
        parts = [one.data for one in record.values() if isinstance(one.data, Large)]
        place = ray.put([np.frombuffer(one, dtype=np.uint8) for one in parts]) if parts else None
        for number, one in enumerate(parts):
            one.shared = place, number


def _ray() -> Any:
    """Ray, if this process uses it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _put(data: Large) -> Any:
    """What is pickled in place of the bytes: where Ray has them, or if it has not, they themselves."""
    return PickleBuffer(data) if data.shared is None or _ray() is None else data.shared


def _got(found: Any) -> bytes:
    """The bytes again."""
    return _fetched(found[0])[found[1]] if isinstance(found, tuple) else bytes(found)


@lru_cache(maxsize=1)
def _fetched(place: Any) -> list[bytes]:
    """The arrays that Ray has; the last ones are kept for the clients that this process is next."""
    ray = _ray()
    assert ray is not None
    return [one.tobytes() for one in ray.get(place)]
