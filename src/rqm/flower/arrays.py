"""Flower's records of arrays as one flat vector, and back."""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def to_vector(record: ArrayRecord) -> torch.Tensor:
    """All floating-point arrays of a record, one after the other, in float32: a copy."""
    return torch.from_numpy(np.concatenate(_trained_arrays(record)).astype(np.float32, copy=False))


def vector_length(record: ArrayRecord) -> int:
    """The length of `to_vector`."""
    return sum(len(array) for array in _trained_arrays(record))


def from_vector(vector: torch.Tensor, template: ArrayRecord) -> ArrayRecord:
    """A record whose floating-point arrays are the chunks of a vector.

    Args:
        vector: A vector of the length of `to_vector(template)`.
        template: Gives the names, shapes and dtypes, and the other arrays, which are not trained.

    Returns:
        The record.
    """
    values, start, arrays = vector.numpy(), 0, {}
    for name, array in ((name, _view(array)) for name, array in template.items()):
        chunk = array
        if _is_trained(array):
            chunk = values[start : start + array.size].astype(array.dtype, copy=False).reshape(array.shape)
            start += array.size
        arrays[name] = Array(np.ascontiguousarray(chunk))
    return ArrayRecord(arrays)


def _trained_arrays(record: ArrayRecord) -> list[Any]:
    arrays = [array.reshape(-1) for array in map(_view, record.values()) if _is_trained(array)]
    if not arrays:
        raise ValueError("the record holds no floating-point array: there is nothing to train")
    return arrays


def _view(array: Array) -> Any:
    """`array.numpy()` without a copy, read-only, because models are large."""
    file = BytesIO(array.data)
    read = _HEADER_READERS.get(np.lib.format.read_magic(file)) if array.stype == "numpy.ndarray" else None
    shape, is_fortran, dtype = read(file) if read is not None else ((), False, np.dtype(object))
    if dtype.hasobject:
        return np.asarray(array.numpy())  # or says what is wrong with it
    values = np.frombuffer(array.data, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=file.tell())
    return values.reshape(shape, order="F" if is_fortran else "C")


def _is_trained(array: Any) -> bool:
    return bool(array.dtype.kind == "f")
