"""Federated data of more users than memory holds: files in a folder, memory-mapped when they are read.

A folder holds the examples of all users one after another (`inputs.bin`, `labels.bin`), where each
user begins (`offsets.bin`), a test set (`test_inputs.bin`, `test_labels.bin`), and `about.json`: the
name, the number of classes, and the type and shape of each file. Only the users of a round are read,
and pages that were read are released again, so that memory does not grow with the rounds.
"""

import mmap
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import shown
from rqm._util.files import read_json, write_json
from rqm.data.federated_data import Clients, FederatedData, Tensors, class_count, example_tensors

MAX_RESIDENT_BYTES = 2**26
"""About how much of the files stays in memory before it is released (docs/scale.md)."""


def save_to_disk(
    folder: str | Path, users: Iterable[tuple[Any, Any]], test: tuple[Any, Any] | None = None, *, name: str = "own"
) -> Path:
    """Write federated data to a new folder, one user at a time.

    Args:
        folder: Folder to create. It must not exist.
        users: One data set (inputs, labels) per user. Inputs are bytes (pixels), floats or whole
            numbers, with examples of one shape. Labels are whole numbers or floats.
        test: Data set on which the model is evaluated.
        name: Name of the data set.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder exists.
        ValueError: If there are no users, or their examples differ in type or shape.

    >>> from tempfile import mkdtemp
    >>> users = ((np.zeros((2, 3), "f"), [user % 2, 1]) for user in range(1000))
    >>> data = load_from_disk(save_to_disk(Path(mkdtemp()) / "data", users))
    >>> len(data.train), data.classes
    (1000, 2)
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    empty: Tensors | None = None
    offsets = [0]
    classes = 0
    with (folder / "inputs.bin").open("wb") as inputs_file, (folder / "labels.bin").open("wb") as labels_file:
        for index, user in enumerate(users):
            inputs, labels = example_tensors(f"users[{index}]", user, empty, allow_bytes=True)
            empty = empty or (inputs[:0], labels[:0])
            inputs_file.write(inputs.numpy().tobytes())
            labels_file.write(labels.numpy().tobytes())
            offsets.append(offsets[-1] + len(labels))
            classes = max(classes, class_count(labels))
    if empty is None:
        raise ValueError("users: there are none; must be at least one")
    test_inputs, test_labels = empty if test is None else example_tensors("test", test, empty, allow_bytes=True)
    arrays = {"offsets": np.array(offsets), "test_inputs": test_inputs.numpy(), "test_labels": test_labels.numpy()}
    description: dict[str, Any] = {"name": name, "classes": max(classes, class_count(test_labels))}
    for array, values in arrays.items():
        (folder / f"{array}.bin").write_bytes(values.tobytes())
        description[array] = [str(values.dtype), *values.shape]
    for array in ("inputs", "labels"):
        dtype, _, *example_shape = description[f"test_{array}"]
        description[array] = [dtype, offsets[-1], *example_shape]
    write_json(folder / "about.json", description)
    return folder


def load_from_disk(folder: str | Path) -> FederatedData:
    """Map the data that `save_to_disk` wrote. Only the offsets are read at once.

    Raises:
        ValueError: If the folder does not hold such data.
    """
    folder = Path(folder)
    try:
        description = read_json(folder / "about.json", "what rqm.data.memory_mapped.save_to_disk wrote")
        names = ("inputs", "labels", "offsets", "test_inputs", "test_labels")
        inputs, labels, offsets, *test = (_map(folder / f"{name}.bin", description[name]) for name in names)
        name = str(description["name"])
        classes = int(description["classes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{folder}: must be a folder that rqm.data.memory_mapped.save_to_disk wrote ({error})"
        ) from None
    offsets = np.array(offsets)
    example_bytes = inputs[:1].nbytes + labels[:1].nbytes
    resident_bytes = 0

    def release_pages(client: int) -> None:
        """Give the pages that were read back to the system once they are many."""
        nonlocal resident_bytes
        read_ahead = 2**17  # the system maps at most this much more than a client's inputs and labels
        resident_bytes += int(offsets[client + 1] - offsets[client]) * example_bytes + read_ahead
        if resident_bytes > MAX_RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            resident_bytes = 0
            for array in (inputs, labels, *test):
                if isinstance(array.base, mmap.mmap):
                    array.base.madvise(mmap.MADV_DONTNEED)

    train = Clients(torch.from_numpy(inputs), torch.from_numpy(labels), offsets, release_pages)
    return FederatedData(name, train, torch.from_numpy(test[0]), torch.from_numpy(test[1]), classes)


def _map(path: Path, dtype_and_shape: list[Any]) -> npt.NDArray[Any]:
    """Map a file of numbers. What is written to the array is not written to the file."""
    dtype = dtype_and_shape[0]
    shape = tuple(int(size) for size in dtype_and_shape[1:])
    dtypes = ("uint8", "float32", "int64")
    if dtype not in dtypes:
        raise ValueError(f"{path.name} is of {shown(dtype_and_shape)}: must be {', '.join(dtypes)}, and a shape")
    size = path.stat().st_size
    expected_size = np.dtype(dtype).itemsize * prod(shape)
    if size != expected_size:
        raise ValueError(f"{path.name} has {size} bytes: must have {expected_size}, for {dtype} of shape {shape}")
    return np.memmap(path, dtype, "c", shape=shape) if size else np.empty(shape, dtype)
