"""Between Flower's records of arrays and one flat vector."""

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord


def flat(record: ArrayRecord) -> torch.Tensor:
    """All floating-point arrays of a record, one after the other, in float32."""
    parts = [array.reshape(-1) for array in _arrays(record).values() if _counts(array)]
    if not parts:
        raise ValueError("the record holds no floating-point array: there is nothing to train")
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def unflat(values: torch.Tensor, like: ArrayRecord) -> ArrayRecord:
    """The record ``like``, its floating-point arrays replaced by the parts of a vector."""
    vector, start, out = values.numpy(), 0, {}
    for name, array in _arrays(like).items():
        if _counts(array):
            part = vector[start : start + array.size].astype(array.dtype).reshape(array.shape)
            start += array.size
        else:
            part = array  # counters and the like are not trained
        out[name] = Array(np.ascontiguousarray(part))
    return ArrayRecord(out)


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def _counts(array: Any) -> bool:
    return bool(array.dtype.kind == "f")
