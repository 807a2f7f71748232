"""Between Flower's records of arrays and one flat vector."""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""By version of NumPy's format: what reads the beginning."""


def flat(record: ArrayRecord) -> torch.Tensor:
    """All floating-point arrays of a record, one after the other, in float32: a copy."""
    return torch.from_numpy(np.concatenate(_parts(record)).astype(np.float32, copy=False))


def size(record: ArrayRecord) -> int:
    """How many values ``flat`` has."""
    return sum(len(part) for part in _parts(record))


def unflat(values: torch.Tensor, like: ArrayRecord) -> ArrayRecord:
    """The record ``like``, its floating-point arrays replaced by the parts of a vector."""
    vector, start, out = values.numpy(), 0, {}
    for name, array in _arrays(like).items():
        if _counts(array):
            part = vector[start : start + array.size].astype(array.dtype, copy=False).reshape(array.shape)
            start += array.size
        else:
            part = array  # counters and the like are not trained
        out[name] = Array(np.ascontiguousarray(part))
    return ArrayRecord(out)


def _parts(record: ArrayRecord) -> list[Any]:
    parts = [array.reshape(-1) for array in _arrays(record).values() if _counts(array)]
    if not parts:
        raise ValueError("the record holds no floating-point array: there is nothing to train")
    return parts


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    return {name: _view(array) for name, array in record.items()}


def _view(array: Array) -> Any:
    """What ``array.numpy()`` returns, not to be written to: in the place where it lies, for models are large."""
    file = BytesIO(array.data)
    read = HEADERS.get(np.lib.format.read_magic(file)) if array.stype == "numpy.ndarray" else None
    shape, fortran, kind = read(file) if read is not None else ((), False, np.dtype(object))
    if kind.hasobject:
        return np.asarray(array.numpy())  # or says what is wrong with it
    values = np.frombuffer(array.data, kind, count=int(np.prod(shape, dtype=np.int64)), offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def _counts(array: Any) -> bool:
    return bool(array.dtype.kind == "f")
