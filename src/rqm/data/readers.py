"""Readers of the formats in which federated handwriting is passed around.

Every reader returns bytes with ink 255 on background 0, upright, whatever the file's own convention, and names the file
in its errors.
"""

import gzip
import io
import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from scipy.io import loadmat

from rqm.data.clients import Clients, FederatedData

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]
ByWriter = tuple[Images, Labels, list[str], Ids]
"""Pictures, their labels, the writers' names, and the index of each picture's writer among the names."""


def read_npz(path: Path, name: str, ids: str, classes: int) -> FederatedData:
    """Read arrays ``images`` (uint8, n×28×28), ``labels``, ``is_test`` and the clients' ids from a NumPy archive."""
    names = ("images", "labels", "is_test", ids)
    with _reading(path, "a NumPy archive") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in names if name in archive.files}
    if len(arrays) < len(names):
        raise ValueError(f"{path}: lacks the arrays {', '.join(name for name in names if name not in arrays)}")
    images, labels, test, owner = arrays.values()
    alike = {labels.shape, test.shape, owner.shape} == {images.shape[:1]} and labels.dtype.kind in "iu"
    if not alike or images.ndim != 3 or images.dtype != np.uint8 or test.dtype != np.bool_:
        raise ValueError(
            f"{path}: images must be uint8 (n, rows, columns), with n labels (whole numbers), ids and is_test (bool)"
        )
    if test.all():
        raise ValueError(f"{path}: holds no pictures to train on: is_test must be false for some")
    check_labels(path, labels, classes)
    train = Clients.by_id(images[~test], labels[~test], owner[~test])
    return FederatedData(name, train, torch.from_numpy(images[test]), torch.from_numpy(labels[test]).long(), classes)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an array of bytes in the IDX format of MNIST and EMNIST, plain or gzipped.

    EMNIST's pictures are transposed and those of its set ``letters`` are labelled from 1; see ``upright``.
    """
    with _reading(path, "a gzip file") as file:
        raw = gzip.decompress(file.read()) if path.suffix == ".gz" else file.read()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 3:
        raise ValueError(f"{path}: must be an IDX file of unsigned bytes in one to three dimensions")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise ValueError(f"{path}: is truncated: its header alone takes {start} bytes")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(
            f"{path}: holds {len(raw) - start} bytes after its header: shape {shape} takes {np.prod(shape)}"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def upright(images: Images) -> Images:
    """EMNIST's pictures the right way up: its IDX files hold them transposed."""
    return np.ascontiguousarray(images.transpose(0, 2, 1))


def read_leaf(path: Path) -> ByWriter:
    """Read a LEAF file of FEMNIST; its pictures are 784 floats each, from 0 (ink) to 1 (background)."""
    with _reading(path, "a LEAF file") as file:
        content = json.load(file)
        data = ((user, content["user_data"][user]) for user in content["users"])
        return _together(_writer(user, part["x"], part["y"], (784,)) for user, part in data)


def read_tff(path: Path) -> ByWriter:
    """Read an HDF5 file of TensorFlow Federated's EMNIST, such as ``fed_emnist_train.h5``; FedML passes on the same.

    Its group ``examples`` holds a group for each writer, with ``pixels`` (n×28×28 floats from 0, ink, to 1, background)
    and ``label`` (n, or n×1). Writers are in the order of their names.
    """
    try:
        import h5py  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: is read with h5py: pip install 'rqm[data]'") from None
    with _reading(path, "an HDF5 file of TensorFlow Federated"), h5py.File(path) as file:
        data = ((name, part["pixels"][()], part["label"][()]) for name, part in sorted(file["examples"].items()))
        return _together(_writer(name, x, y.reshape(-1), (28, 28)) for name, x, y in data)


def read_parquet(path: Path) -> ByWriter:
    """Read a Parquet shard of Hugging Face's ``flwrlabs/femnist``.

    Its rows have an ``image`` (PNG, 28×28 grey, black on white), a ``writer_id`` and a ``character`` (0..61). Pictures
    are in the order of the rows, writers in the order of their names.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (an extra)
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: is read with pyarrow and Pillow: pip install 'rqm[data]'") from None
    with _reading(path, "a Parquet file of flwrlabs/femnist"), ParquetFile(path) as file:
        table = file.read(columns=["image.bytes", "writer_id", "character"])
        files, writers, labels = (table[name] for name in ("image", "writer_id", "character"))
        if not len(table) or writers.null_count or labels.null_count:
            raise ValueError("it must have rows, each with a writer_id and a character")
        images = np.empty((len(table), 28, 28), dtype=np.uint8)
        for row, content in enumerate(files.to_pylist()):
            with Image.open(io.BytesIO(content["bytes"]), formats=["PNG"]) as picture:
                if picture.size != (28, 28) or picture.mode not in ("L", "1"):
                    raise ValueError(f"the picture in row {row} is {picture.size} {picture.mode}: must be 28×28 grey")
                images[row] = 255 - np.asarray(picture.convert("L"))
        names, owner = np.unique(np.asarray(writers.to_pylist(), dtype=np.str_), return_inverse=True)
        return images, _whole(labels.to_numpy()), names.tolist(), owner


def read_emnist_mat(path: Path) -> dict[str, tuple[Images, Labels, Ids]]:
    """Read EMNIST's official ``.mat`` file: pictures, labels and writers of the parts ``train`` and ``test``.

    Its pictures are 784 bytes each, column by column.
    """
    with _reading(path, "EMNIST's .mat file"):
        dataset = loadmat(path, simplify_cells=True)["dataset"]
        found = {}
        for part in ("train", "test"):
            images = np.asarray(dataset[part]["images"], dtype=np.uint8)
            labels, writers = (
                np.asarray(dataset[part][key], dtype=np.int64).reshape(-1) for key in ("labels", "writers")
            )
            if images.shape != (len(labels), 784) or not 0 < len(labels) == len(writers):
                raise ValueError(f"its part {part} must have n×784 images, n labels and n writers, n ≥ 1")
            found[part] = images.reshape(-1, 28, 28).transpose(0, 2, 1).copy(), labels, writers
    return found


def check_labels(path: Path, labels: npt.NDArray[np.integer], classes: int) -> None:
    """Raise for a label that is not among the classes."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"{path}: holds the label {bad}: must lie in 0..{classes - 1}")


@contextmanager
def _reading(path: Path, what: str) -> Iterator[BinaryIO]:
    """The open file; whatever is raised while it is read becomes one message: readers fail in many ways on damage."""
    with path.open("rb") as file:
        try:
            yield file
        except Exception as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: is damaged or not {what} ({reason})") from None


def _whole(labels: npt.NDArray[np.generic]) -> Labels:
    if labels.dtype.kind not in "iu":
        raise ValueError(f"its labels are of type {labels.dtype}: must be whole numbers")
    return labels.astype(np.int64)


def _writer(name: str, x: npt.ArrayLike, y: npt.ArrayLike, shape: tuple[int, ...]) -> tuple[str, Images, Labels]:
    """One writer's name, pictures and labels, from floats with ink 0 on background 1."""
    pixels, labels = np.asarray(x), np.asarray(y)
    if pixels.shape != (labels.size, *shape) or labels.ndim != 1 or not ((pixels >= 0) & (pixels <= 1)).all():
        size = "×".join(map(str, shape))
        raise ValueError(f"writer {name} must have pictures of {size} numbers from 0 to 1, and as many labels")
    return name, np.rint(255 * (1 - pixels)).astype(np.uint8).reshape(-1, 28, 28), _whole(labels)


def _together(parts: Iterable[tuple[str, Images, Labels]]) -> ByWriter:
    """The pictures of all writers, one writer after another."""
    found = list(parts)
    if not any(len(labels) for _, _, labels in found):
        raise ValueError("it holds no pictures")
    names, images, labels = zip(*found, strict=True)
    owner = np.repeat(np.arange(len(names)), [len(part) for part in labels])
    return np.concatenate(images), np.concatenate(labels), list(names), owner
