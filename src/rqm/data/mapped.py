"""Data of more users than memory holds: written to a folder user by user, and read where a round touches them.

A folder holds the examples of all users one after the other (``inputs.bin``, ``labels.bin``), where each user begins
(``offsets.bin``), a test set, and ``about.json``: the name, the number of classes, and of every file its type and
shape. The files are mapped: what no round asks for is never read, and what was read is given back after a while, so
that a run holds about as much of them after a thousand rounds as after one.
"""

import json
import mmap
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import shown
from rqm._util.files import read_json, write_json
from rqm.data.clients import Clients, FederatedData

ABOUT = "about.json"
KINDS = ("uint8", "float32", "int64")
"""Types of inputs and labels; offsets are of the last."""
PARTS = ("inputs", "labels", "offsets", "test_inputs", "test_labels")

HELD = 2**26
"""Bytes of the files that are in memory before they are given back, about."""
AROUND = 2**17
"""Bytes that the system maps beside what a client's inputs and labels are read from, at most."""

Array = npt.NDArray[Any]


def write(
    folder: str | Path, users: Iterable[tuple[Any, Any]], test: tuple[Any, Any] | None = None, *, name: str = "own"
) -> Path:
    """Write one data set (inputs, labels) a user into a new folder, as they come; only the offsets are held.

    Inputs are bytes (pictures), float32 or int64, all of one shape; labels are whole numbers or float32.

    >>> from tempfile import mkdtemp
    >>> place = write(Path(mkdtemp()) / "data", ((np.zeros((2, 3), "f"), [user % 2, 1]) for user in range(1000)))
    >>> len(mapped(place).train), mapped(place).classes
    (1000, 2)
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    sizes, like, classes = [0], list[Array](), 0
    with (folder / "inputs.bin").open("wb") as inputs, (folder / "labels.bin").open("wb") as labels:
        for number, user in enumerate(users):
            pair = _pair(f"users[{number}]", user, like)
            like = like or [part[:0] for part in pair]
            for file, part in zip((inputs, labels), pair, strict=True):
                file.write(np.ascontiguousarray(part).data)
            sizes.append(len(pair[1]))
            classes = max(classes, _classes(pair[1]))
    if not like:
        raise ValueError("users: there are none; must be at least one")
    held = _pair("test", test, like) if test is not None else like
    offsets = np.cumsum(sizes, dtype=np.int64)
    for name_of, values in zip(PARTS[2:], (offsets, *held), strict=True):
        (folder / f"{name_of}.bin").write_bytes(np.ascontiguousarray(values).tobytes())
    total = int(offsets[-1])
    shapes = [(total, *like[0].shape[1:]), (total, *like[1].shape[1:]), offsets.shape, *(part.shape for part in held)]
    kinds = [like[0].dtype, like[1].dtype, offsets.dtype, like[0].dtype, like[1].dtype]
    about = {one: [str(kind), *shape] for one, kind, shape in zip(PARTS, kinds, shapes, strict=True)}
    write_json(folder / ABOUT, {"name": name, "classes": max(classes, _classes(held[1])), **about})
    return folder


def mapped(folder: str | Path) -> FederatedData:
    """The data in a folder that ``write`` has written; nothing but the offsets is read before it is needed."""
    folder = Path(folder)
    try:
        about = read_json(folder / ABOUT, "what rqm.data.mapped.write has written")
        maps: list[mmap.mmap] = []
        inputs, labels, offsets, *test = (_map(folder / f"{part}.bin", about[part], maps) for part in PARTS)
        name, classes = str(about["name"]), int(about["classes"])
    except (KeyError, TypeError, ValueError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder}: must be a folder that rqm.data.mapped.write has written ({error})") from None
    offsets = offsets.copy()  # in memory, as the only part
    prepare = _giving_back(maps, offsets, sum(part[:1].nbytes for part in (inputs, labels)))
    train = Clients(torch.from_numpy(inputs), torch.from_numpy(labels), offsets, prepare)
    return FederatedData(name, train, torch.from_numpy(test[0]), torch.from_numpy(test[1]), classes)


def _giving_back(maps: list[mmap.mmap], offsets: Array, each: int) -> Callable[[int], None]:
    """What is called before a client is read: when enough were, their pages are given back to the system.

    Whoever still looks at some of them reads them again, from its cache or from the disk.
    """
    read = 0

    def prepare(client: int) -> None:
        nonlocal read
        read += int(offsets[client + 1] - offsets[client]) * each + AROUND
        if read > HELD and hasattr(mmap, "MADV_DONTNEED"):
            read = 0
            for one in maps:
                one.madvise(mmap.MADV_DONTNEED)

    return prepare


def _map(path: Path, said: list[Any], maps: list[mmap.mmap]) -> Array:
    """A file of numbers of a kind and shape, private to this process: what is written to it is on no disk, and lost."""
    kind, shape = said[0], tuple(int(size) for size in said[1:])
    if kind not in KINDS or any(size < 0 for size in shape):
        raise ValueError(f"{path.name} is said to be of {shown(said)}: must be {', '.join(KINDS)}, and a shape")
    held, needed = path.stat().st_size, np.dtype(kind).itemsize * prod(shape)
    if held != needed:
        raise ValueError(f"{path.name} has {held} bytes: must have {needed}, for {kind} of shape {shape}")
    if not needed:
        return np.empty(shape, dtype=kind)
    with path.open("rb") as file:
        maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return np.frombuffer(maps[-1], dtype=kind).reshape(shape)


def _pair(name: str, given: tuple[Any, Any], like: list[Array]) -> list[Array]:
    """Inputs and labels as arrays of the kinds that are written, and like those before."""
    pair = [np.asarray(part) for part in given]
    pair = [part.astype(_kind(part), copy=False) for part in pair]
    if pair[0].ndim < 1 or pair[1].ndim < 1 or len(pair[0]) != len(pair[1]):
        raise ValueError(f"{name}: inputs and labels have shapes {pair[0].shape} and {pair[1].shape}: must be as many")
    for part, before in zip(pair, like, strict=False):
        if part.shape[1:] != before.shape[1:] or part.dtype != before.dtype:
            raise ValueError(
                f"{name}: is of shape {part.shape[1:]} and {part.dtype}: must be of {before.shape[1:]} and "
                f"{before.dtype}, as those before"
            )
    return pair


def _kind(part: Array) -> str:
    if part.dtype == np.uint8 or part.dtype.kind == "f":
        return "uint8" if part.dtype == np.uint8 else "float32"
    if part.dtype.kind not in "iu":
        raise TypeError(f"{part.dtype}: must be numbers")
    return "int64"


def _classes(labels: Array) -> int:
    return int(labels.max()) + 1 if labels.dtype == np.int64 and labels.size else 0
