"""Flower's records of arrays as one flat vector, and back."""

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord


def to_vector(record: ArrayRecord) -> torch.Tensor:
    """All floating-point arrays of a record, one after the other, in float32: a copy."""
    arrays = [array.numpy() for array in record.values()]
    trained = [array.reshape(-1) for array in arrays if _is_trained(array)]
    if not trained:
        raise ValueError("the record holds no floating-point array: there is nothing to train")
    return torch.from_numpy(np.concatenate(trained).astype(np.float32, copy=False))


def from_vector(vector: torch.Tensor, template: ArrayRecord) -> ArrayRecord:
    """A record whose floating-point arrays are the chunks of a vector.

    Args:
        vector: A vector of the length of `to_vector(template)`.
        template: Gives the names, shapes and dtypes, and the other arrays, which are not trained.

    Returns:
        The record.
    """
    values, start, arrays = vector.numpy(), 0, {}
    for name, array in template.items():
        chunk = array.numpy()
        if _is_trained(chunk):
            end = start + chunk.size
            chunk, start = values[start:end].astype(chunk.dtype, copy=False).reshape(chunk.shape), end
        arrays[name] = Array(np.ascontiguousarray(chunk))
    return ArrayRecord(arrays)


def _is_trained(array: Any) -> bool:
    return bool(array.dtype.kind == "f")
