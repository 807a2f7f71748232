"""Readers of the formats in which federated handwriting is passed around.

Every reader returns bytes with ink 255 on background 0, upright, whatever the file's own convention, and names the file
in its errors.
"""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt
import torch

from rqm._util.checks import LONGEST, shown
from rqm.data.clients import Clients, FederatedData
from rqm.data.limits import TooLarge, check_unpacked
from rqm.data.matlab import read_mat

PIECE = 2**20
"""Bytes that are unpacked at a time."""
ROWS = 2**12
"""Pictures that are converted at a time."""
AS_OBJECTS = 8
"""A text of numbers takes so many times its size when it is parsed."""

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]
ByWriter = tuple[Images, Labels, list[str], Ids]
"""Pictures, their labels, the writers' names, and the index of each picture's writer among the names."""


def read_npz(path: Path, name: str, ids: str, classes: int) -> FederatedData:
    """Read arrays ``images`` (uint8, n×28×28), ``labels``, ``is_test`` and the clients' ids from a NumPy archive."""
    names = ("images", "labels", "is_test", ids)
    with _reading(path, "a NumPy archive") as file, zipfile.ZipFile(file) as archive:
        there = [name for name in names if f"{name}.npy" in archive.namelist()]
        check_unpacked(path, sum(archive.getinfo(f"{name}.npy").file_size for name in there))
        arrays = {name: _npy(archive, f"{name}.npy") for name in there}
    if len(arrays) < len(names):
        raise ValueError(f"{path}: lacks the arrays {', '.join(name for name in names if name not in arrays)}")
    images, labels, test, owner = arrays.values()
    alike = {labels.shape, test.shape, owner.shape} == {images.shape[:1]} and labels.dtype.kind in "iu"
    if not alike or images.ndim != 3 or images.dtype != np.uint8 or test.dtype != np.bool_:
        raise ValueError(
            f"{path}: images must be uint8 (n, rows, columns), with n labels (whole numbers), ids and is_test (bool)"
        )
    if owner.dtype.kind not in "iuUS":
        raise ValueError(f"{path}: {ids} are of type {owner.dtype}: must be whole numbers or names")
    if test.all():
        raise ValueError(f"{path}: holds no pictures to train on: is_test must be false for some")
    check_labels(path, labels, classes)
    labels = labels.astype(np.int64)
    train = Clients.by_id(images[~test], labels[~test], owner[~test])
    return FederatedData(name, train, torch.from_numpy(images[test]), torch.from_numpy(labels[test]), classes)


def _npy(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """One array of an archive, whose header and directory must agree on its size before room is made for it."""
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed by method {info.compress_type}: must be stored or deflated")
    with archive.open(info) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name} is of version {version}: must be 1.0 or 2.0")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject or not dtype.itemsize:
            raise ValueError(f"{name} is of type {dtype}: must be numbers or texts")
        size, found = prod(shape) * dtype.itemsize, info.file_size - file.tell()
        if size != found or min(shape, default=0) < 0:
            raise ValueError(f"{name} holds {found} bytes: shape {shape} of {dtype} takes {size}")
        array = _filled(file, size).view(dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _filled(file: Any, size: int) -> npt.NDArray[np.uint8]:
    """The next ``size`` bytes of a file, which must be its last: no more than these and one more are unpacked."""
    out = np.empty(size, dtype=np.uint8)
    done = 0
    while done < size and (piece := file.read(min(PIECE, size - done))):
        out[done : done + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        done += len(piece)
    more = file.read(1) if done == size else b""
    if done < size or more:
        raise ValueError(f"it holds {'more than' if more else 'only'} {done} bytes after its header, which says {size}")
    return out


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an array of bytes in the IDX format of MNIST and EMNIST, plain or gzipped.

    EMNIST's pictures are transposed and those of its set ``letters`` are labelled from 1; see ``upright``.
    """
    packed = path.suffix == ".gz"
    with _reading(path, "a gzip file" if packed else "an IDX file") as file:
        raw: Any = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
        magic = raw.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 3:
            raise ValueError("it must be an IDX file of unsigned bytes in one to three dimensions")
        header = raw.read(4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise ValueError(f"it is truncated: its header alone takes {4 + 4 * magic[3]} bytes")
        shape = struct.unpack(f">{magic[3]}I", header)
        check_unpacked(path, prod(shape))
        return _filled(raw, prod(shape)).reshape(shape)


def upright(images: Images) -> Images:
    """EMNIST's pictures the right way up: its IDX files hold them transposed."""
    return np.ascontiguousarray(images.transpose(0, 2, 1))


def read_leaf(path: Path) -> ByWriter:
    """Read a LEAF file of FEMNIST; its pictures are 784 floats each, from 0 (ink) to 1 (background)."""
    with _reading(path, "a LEAF file") as file:
        check_unpacked(path, AS_OBJECTS * path.stat().st_size, "takes about")
        content = json.load(file)
        data = ((user, content["user_data"][user]) for user in content["users"])
        return _together(_writer(user, np.asarray(part["x"]), np.asarray(part["y"]), (784,)) for user, part in data)


def read_tff(path: Path) -> ByWriter:
    """Read an HDF5 file of TensorFlow Federated's EMNIST, such as ``fed_emnist_train.h5``; FedML passes on the same.

    Its group ``examples`` holds a group for each writer, with ``pixels`` (n×28×28 floats from 0, ink, to 1, background)
    and ``label`` (n, or n×1). Writers are in the order of their names.
    """
    try:
        import h5py  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: is read with h5py: pip install 'rqm[data]'") from None

    def inside(group: Any, name: str) -> Any:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink | None):
            raise ValueError(f"{name} is a link: must be in the file itself")
        return group[name]

    def array(part: Any, name: str) -> Any:
        found = inside(part, name)
        if found.dtype.kind not in "fiu" or found.is_virtual or found.external:
            raise ValueError(f"{name} is of type {found.dtype}: must be numbers, in the file itself")
        return found

    with _reading(path, "an HDF5 file of TensorFlow Federated"), h5py.File(path) as file:
        examples = inside(file, "examples")
        parts = ((name, inside(examples, name)) for name in sorted(examples))
        data = [(name, array(part, "pixels"), array(part, "label")) for name, part in parts]
        both = (one for _, *arrays in data for one in arrays)
        check_unpacked(path, sum(one.dtype.itemsize * max(prod(one.shape), prod(one.chunks or ())) for one in both))
        return _together(_writer(name, x, y[()].reshape(-1), (28, 28)) for name, x, y in data)


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
    columns = ["image.bytes", "writer_id", "character"]
    with _reading(path, "a Parquet file of flwrlabs/femnist"), ParquetFile(path) as file:
        about = file.metadata
        sizes = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        check_unpacked(path, max(0, *sizes, sum(sizes), 784 * about.num_rows))
        images: list[Images] = []
        labels: list[Labels] = []
        writers: list[str] = []
        for batch in file.iter_batches(batch_size=64, columns=columns):
            if batch["writer_id"].null_count or batch["character"].null_count:
                raise ValueError("it must have rows, each with a writer_id and a character")
            contents = enumerate(batch["image"].to_pylist(), start=len(images))
            images += [_picture(Image.open, one["bytes"], row) for row, one in contents]
            labels.append(_whole(batch["character"].to_numpy(zero_copy_only=False)))
            writers += [_named(str(one)) for one in batch["writer_id"].to_pylist()]
        if not images:
            raise ValueError("it must have rows, each with a writer_id and a character")
        names, owner = np.unique(np.asarray(writers, dtype=np.str_), return_inverse=True)
        return np.stack(images), np.concatenate(labels), names.tolist(), owner


def _picture(opener: Any, content: bytes, row: int) -> Images:
    """A PNG file of 28×28 grey pixels, black on white; larger ones are refused before they are unpacked."""
    with opener(io.BytesIO(content), formats=["PNG"]) as picture:
        if picture.size != (28, 28) or picture.mode not in ("L", "1"):
            raise ValueError(f"the picture in row {row} is {picture.size} {picture.mode}: must be 28×28 grey")
        return 255 - np.asarray(picture.convert("L"))


def read_emnist_mat(path: Path) -> dict[str, tuple[Images, Labels, Ids]]:
    """Read EMNIST's official ``.mat`` file: pictures, labels and writers of the parts ``train`` and ``test``.

    Its pictures are 784 bytes each, column by column.
    """
    with _reading(path, "EMNIST's .mat file") as file:
        dataset = read_mat(path, file)["dataset"]
        found = {}
        for part in ("train", "test"):
            images = dataset[part]["images"]
            labels, writers = (_whole(_integers(dataset[part][key].reshape(-1))) for key in ("labels", "writers"))
            if images.shape != (len(labels), 784) or images.dtype != np.uint8 or not 0 < len(labels) == len(writers):
                raise ValueError(f"its part {part} must have n×784 images (bytes), n labels and n writers, n ≥ 1")
            pictures = images.T.reshape(28, 28, -1).transpose(2, 1, 0)
            found[part] = np.ascontiguousarray(pictures), labels, writers
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
        except TooLarge:
            raise
        except Exception as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: is damaged or not {what} ({reason})") from None


def _whole(labels: npt.NDArray[np.generic]) -> Labels:
    if labels.dtype.kind not in "iu":
        raise ValueError(f"its labels are of type {labels.dtype}: must be whole numbers")
    return labels.astype(np.int64)


def _integers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """MATLAB's own numbers are floats: as whole ones, if they are."""
    if values.dtype.kind == "f" and (np.abs(values) < 2**53).all() and (values == np.rint(values)).all():
        return values.astype(np.int64)
    return values


def _named(name: str) -> str:
    """A writer's name: arrays of names take as much room for each as for the longest."""
    if len(name) > LONGEST:
        raise ValueError(f"writer {shown(name)}: a name must have at most {LONGEST} characters")
    return name


def _writer(name: str, pixels: Any, labels: npt.NDArray[Any], shape: tuple[int, ...]) -> tuple[str, Images, Labels]:
    """One writer's name, pictures and labels, from an array (or one in a file) with ink 0 on background 1."""
    size = "×".join(map(str, shape))
    wrong = ValueError(f"writer {_named(name)} must have pictures of {size} numbers from 0 to 1, and as many labels")
    if pixels.shape != (labels.size, *shape) or labels.ndim != 1:
        raise wrong
    images = np.empty((labels.size, 28, 28), dtype=np.uint8)
    for start in range(0, labels.size, ROWS):
        some = pixels[start : start + ROWS]
        if not ((some >= 0) & (some <= 1)).all():
            raise wrong
        images[start : start + ROWS] = np.rint(255 * (1 - some)).reshape(-1, 28, 28)
    return name, images, _whole(labels)


def _together(parts: Iterable[tuple[str, Images, Labels]]) -> ByWriter:
    """The pictures of all writers, one writer after another."""
    found = list(parts)
    if not any(len(labels) for _, _, labels in found):
        raise ValueError("it holds no pictures")
    names, images, labels = zip(*found, strict=True)
    owner = np.repeat(np.arange(len(names)), [len(part) for part in labels])
    return np.concatenate(images), np.concatenate(labels), list(names), owner
