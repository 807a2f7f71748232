"""Readers of the formats in which federated handwriting is passed around.

Every reader returns bytes with ink 255 on background 0, upright, whatever the file's own convention, and names the file
in its errors.
"""

import gzip
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.io import loadmat

from rqm.federated.clients import Clients, FederatedData

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]


def read_npz(path: Path, name: str, ids: str, classes: int) -> FederatedData:
    """Read arrays ``images`` (uint8, n×28×28), ``labels``, ``is_test`` and the clients' ids from a NumPy archive."""
    names = ("images", "labels", "is_test", ids)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names if name in archive.files}
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: is damaged or not a NumPy archive ({error})") from None
    if len(arrays) < len(names):
        raise ValueError(f"{path}: lacks the arrays {', '.join(name for name in names if name not in arrays)}")
    images, labels, test, owner = arrays.values()
    sizes = {len(images), len(labels), len(test), len(owner)}
    if len(sizes) != 1 or images.ndim != 3 or images.dtype != np.uint8 or test.dtype != np.bool_:
        raise ValueError(f"{path}: images must be uint8 (n, rows, columns), with n labels, ids and is_test (bool)")
    _check_labels(path, labels, classes)
    train = Clients.by_id(images[~test], labels[~test], owner[~test])
    return FederatedData(name, train, torch.from_numpy(images[test]), torch.from_numpy(labels[test]).long(), classes)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an array of bytes in the IDX format of MNIST and EMNIST, plain or gzipped.

    EMNIST's pictures are transposed and those of its set ``letters`` are labelled from 1; see ``upright``.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise ValueError(f"{path}: is damaged ({error})") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != 8:
        raise ValueError(f"{path}: must be an IDX file of unsigned bytes")
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


def read_leaf(path: Path) -> tuple[Images, Labels, list[str], Ids]:
    """Read a LEAF file (FEMNIST): pictures, labels, the writers' names and the index of each picture's writer.

    LEAF holds 784 floats from 0 (ink) to 1 (background).
    """
    try:
        content = json.loads(path.read_text())
        users, data = content["users"], content["user_data"]
        parts = [(np.asarray(data[user]["x"], dtype=np.float64), np.asarray(data[user]["y"])) for user in users]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged or not a LEAF file ({type(error).__name__}: {error})") from None
    for user, (x, y) in zip(users, parts, strict=True):
        if x.ndim != 2 or x.shape[1] != 784 or len(x) != len(y) or not ((x >= 0) & (x <= 1)).all():
            raise ValueError(f"{path}: user {user} must have pictures of 784 numbers from 0 to 1, and as many labels")
    if not parts:
        raise ValueError(f"{path}: has no users")
    pixels = np.concatenate([x for x, _ in parts])
    images = np.rint(255 * (1 - pixels)).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.concatenate([y for _, y in parts]).astype(np.int64)
    return images, labels, list(users), np.repeat(np.arange(len(users)), [len(y) for _, y in parts])


def read_emnist_mat(path: Path) -> dict[str, tuple[Images, Labels, Ids]]:
    """Read EMNIST's official ``.mat`` file: pictures, labels and writers of the parts ``train`` and ``test``.

    Its pictures are 784 bytes each, column by column.
    """
    try:
        dataset = loadmat(path, simplify_cells=True)["dataset"]
        found = {}
        for part in ("train", "test"):
            images = np.asarray(dataset[part]["images"], dtype=np.uint8)
            labels, writers = (
                np.asarray(dataset[part][key], dtype=np.int64).reshape(-1) for key in ("labels", "writers")
            )
            if images.ndim != 2 or images.shape[1] != 784 or not len(images) == len(labels) == len(writers):
                raise ValueError(f"its part {part} must have n×784 images, n labels and n writers")
            found[part] = images.reshape(-1, 28, 28).transpose(0, 2, 1).copy(), labels, writers
    except Exception as error:  # scipy's reader fails in many ways on damaged files
        raise ValueError(f"{path}: is damaged or not EMNIST's .mat file ({type(error).__name__}: {error})") from None
    return found


def _check_labels(path: Path, labels: npt.NDArray[np.integer], classes: int) -> None:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"{path}: holds the label {bad}: must lie in 0..{classes - 1}")
