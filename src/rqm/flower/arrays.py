"""Which of a model's arrays are trained, and those arrays as one flat vector, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from rqm.flower.vector_layout import FloatVector


@final
@dataclass(frozen=True)
class TrainedArrays:
    """The arrays that clients train and send, by name; all others stay as the server has them.

    Attributes:
        names: The names, in the order of the model.
        tied: Names of arrays that share their values with a trained one, with the name of that one.
    """

    names: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, record: ArrayRecord, model: Any = None, trainable: Sequence[str] | None = None, *, buffers: bool = False
    ) -> "TrainedArrays":
        """Find out which arrays of a model are trained.

        Args:
            record: The model's arrays.
            model: A PyTorch module; its parameters with `requires_grad` are trained.
            trainable: The names of the trained arrays, instead of `model`.
            buffers: Whether the floating-point buffers of `model` are averaged, too.

        Returns:
            The trained arrays. Without `model` and `trainable`, all arrays.

        Raises:
            ValueError: If a name is missing, an array is not of floats, or buffers are among the arrays and
                neither `model` nor `trainable` is given.
        """
        tied: list[tuple[str, str]] = []
        if model is not None and trainable is not None:
            raise ValueError("model, trainable: must not both be given")
        if model is not None:
            names, tied = _names_of(model, buffers)
        elif trainable is not None:
            names = list(trainable)
        else:
            names = list(record)
            # The ends of the names of batch normalization's buffers in PyTorch.
            not_trained = ("running_mean", "running_var", "num_batches_tracked")
            unclear = [name for name in names if name.endswith(not_trained) or record[name].numpy().dtype.kind != "f"]
            if unclear:
                raise ValueError(
                    f"{unclear[0]}: is no trained array of floats: give model=net, or trainable=[…] with the names of "
                    "the arrays that are trained; the others then stay as the server has them"
                )
        for name in names:
            if name not in record:
                raise ValueError(f"{name}: is trained, but not among the arrays: {', '.join(list(record)[:5])}, …")
            if record[name].numpy().dtype.kind != "f":
                raise ValueError(f"{name}: has dtype {record[name].numpy().dtype}: must be floats to be trained")
        if not names:
            raise ValueError("the model has no array that is trained")
        return cls(tuple(names), tuple(pair for pair in tied if pair[0] in record))

    def size(self, record: Mapping[str, Array]) -> int:
        """The number of trained values in a record."""
        return sum(record[name].numpy().size for name in self.names)

    def read(self, record: Mapping[str, Array], like: Mapping[str, Array] | None = None) -> FloatVector:
        """The trained arrays of a record, one after the other, in float64.

        Args:
            record: The arrays.
            like: Other arrays that must have the same shapes.

        Returns:
            The vector.

        Raises:
            ValueError: If an array is missing, has another shape, or is not of floats.
        """
        chunks = []
        for name in self.names:
            if name not in record:
                raise ValueError(f"{name}: is missing among the arrays")
            values = record[name].numpy()
            if like is not None and values.shape != like[name].numpy().shape:
                raise ValueError(f"{name}: has shape {values.shape}: must be {like[name].numpy().shape}")
            if values.dtype.kind != "f":
                raise ValueError(f"{name}: has dtype {values.dtype}: must be floats")
            chunks.append(values.reshape(-1).astype(np.float64))
        return np.concatenate(chunks)

    def moved(self, record: ArrayRecord, update: FloatVector) -> ArrayRecord:
        """A record whose trained arrays have moved by an update; dtypes and all other arrays are those of `record`."""
        arrays, start = dict(record.items()), 0
        for name in self.names:
            values = record[name].numpy()
            chunk = update[start : start + values.size].reshape(values.shape)
            arrays[name] = _array_like(values, values.astype(np.float64) + chunk)
            start += values.size
        return ArrayRecord(self._with_ties(arrays))

    def restored(self, record: ArrayRecord, original: ArrayRecord) -> ArrayRecord:
        """A record with the dtypes of another one, and with its arrays that are not trained, bit for bit."""
        arrays = dict(original.items())
        for name in self.names:
            arrays[name] = _array_like(original[name].numpy(), record[name].numpy())
        return ArrayRecord(self._with_ties(arrays))

    def _with_ties(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return arrays | {name: arrays[trained] for name, trained in self.tied}


def _array_like(original: NDArray[Any], values: NDArray[Any]) -> Array:
    """The values with the dtype and shape of other ones; NumPy's `ascontiguousarray` gives a scalar a dimension."""
    return Array(np.ascontiguousarray(values, dtype=original.dtype).reshape(original.shape))


def _names_of(model: Any, buffers: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """The names of a module's trained parameters, and of those that share their values with one of them."""
    names: list[str] = []
    tied: list[tuple[str, str]] = []
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            continue
        if id(parameter) in first_names:
            tied.append((name, first_names[id(parameter)]))
        else:
            first_names[id(parameter)] = name
            names.append(name)
    if buffers:
        names += [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]
    return names, tied
