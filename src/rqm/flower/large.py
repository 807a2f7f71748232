"""Large bytes in Flower's messages, which a simulation engine pickles for every client: in one copy instead of three.

Flower's engine hands each message to Ray, which pickles it into memory that the worker shares. Plain bytes are copied
into the pickle, the pickle is copied when it is complete, and copied again into that memory; the model, sent to all,
so often for every client. These are handed over as they lie (PEP 574), and arrive as plain bytes.
"""

from pickle import PickleBuffer
from typing import Any, SupportsIndex, final

from flwr.app import Array, ArrayRecord

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

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as plain bytes."""
        return bytes, (PickleBuffer(self) if protocol.__index__() >= 5 else bytes(self),)


def large(data: bytes) -> bytes:
    """The same bytes; if they are many, such as are pickled in their place."""
    return data if len(data) < LEAST or isinstance(data, Large) else Large(data)


def of_large(record: ArrayRecord) -> ArrayRecord:
    """The same arrays, of such bytes."""
    return ArrayRecord({name: Array(one.dtype, one.shape, one.stype, large(one.data)) for name, one in record.items()})
