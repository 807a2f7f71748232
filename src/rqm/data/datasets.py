"""Data sets by name: generated, or read from files in a given folder, in `$RQM_DATA` or in the user's cache."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch

from rqm._util.files import cache_folder
from rqm.config.model_sizes import CLASSES
from rqm.data.federated_data import Clients, FederatedData, by_class, dirichlet
from rqm.data.readers import (
    DataFileError,
    Examples,
    Images,
    Labels,
    check_labels,
    concatenate,
    read_emnist_mat,
    read_idx,
    read_leaf,
    read_npz,
    read_parquet,
    read_tff,
)

Paths = Sequence[Path]
Split = tuple[Examples, tuple[Images, Labels]]
"""Examples to train on, and the pictures and labels of the test set."""


@final
@dataclass(frozen=True)
class Layout:
    """Files in which a data set is distributed.

    Attributes:
        files: A pattern for each file, or group of files.
        origin: Who distributes them.
        read: Reads the data set, from the number of classes and the paths of each group.
    """

    files: tuple[str, ...]
    origin: str
    read: Callable[..., Split]

    def find(self, folder: Path) -> list[list[Path]] | None:
        """The paths of each group, or None if one is missing."""
        groups = [sorted(folder.glob(pattern)) for pattern in self.files]
        return groups if all(groups) else None

    def __str__(self) -> str:
        return f"{' with '.join(self.files)} ({self.origin})"


# -- layouts --------------------------------------------------------------------------------------


def _read_single(read: Callable[[Path], tuple[Examples, Examples]], classes: int, paths: Paths) -> Split:
    """Read a file that holds both the examples to train on and the test set."""
    train, test = read(paths[0])
    check_labels(paths[0], np.concatenate([train.labels, test.labels]), classes)
    return train, test[:2]


def _read_shards(clients: int, classes: int, paths: Paths) -> Split:
    """Read an archive, and give each client two shards of sorted labels instead of a writer."""
    train, test = _read_single(read_npz, classes, paths)
    order = np.argsort(train.writers, kind="stable")
    labels = train.labels[order]
    return Examples(train.images[order], labels, by_class(labels, clients, 2, seed=0)), test


def _read_files(read: Callable[[Path], Examples], classes: int, paths: Paths) -> Examples:
    """Read several files; a writer may have examples in each."""
    parts = []
    for path in paths:
        examples = read(path)
        check_labels(path, examples.labels, classes)
        parts.append(examples)
    return concatenate(parts)


def _read_split(read: Callable[[Path], Examples], classes: int, train_paths: Paths, test_paths: Paths) -> Split:
    """Read separate files to train on and to test."""
    test = _read_files(read, classes, test_paths)
    return _read_files(read, classes, train_paths), test[:2]


def _hold_out_tenth(classes: int, paths: Paths) -> Split:
    """Read files without a test set, and hold out the last tenth, rounded up, of each writer's pictures."""
    examples = _read_files(read_parquet, classes, paths)
    order = np.argsort(examples.writers, kind="stable")
    ends = np.cumsum(np.unique(examples.writers, return_counts=True)[1])
    is_test = np.zeros(len(order), dtype=np.bool_)
    for indices in np.split(order, ends[:-1]):
        is_test[indices[len(indices) * 9 // 10 :]] = True
    if is_test.all():
        raise DataFileError(f"{paths[0]}: holds no pictures to train on: some writer must have more than one")
    return examples.select(~is_test), examples.select(is_test)[:2]


def _read_idx_files(clients: int, classes: int, *paths: Paths, is_transposed: bool = False) -> Split:
    """Read pictures without writers, and divide them among synthetic clients."""
    train_images, train_labels, test_images, test_labels = (group[0] for group in paths)
    images, labels = _read_idx_pair(train_images, train_labels, classes, is_transposed)
    test = _read_idx_pair(test_images, test_labels, classes, is_transposed)
    if len(labels) < clients:
        raise DataFileError(f"{train_images}: holds {len(labels)} pictures: must be at least {clients}, one per client")
    return Examples(images, labels, dirichlet(labels, clients, concentration=1.0, seed=0)), test


def _read_idx_pair(images_path: Path, labels_path: Path, classes: int, is_transposed: bool) -> tuple[Images, Labels]:
    """Read a file of pictures and one of their labels."""
    images = read_idx(images_path)
    labels = read_idx(labels_path)
    if images.shape != (labels.size, 28, 28) or labels.ndim != 1:
        raise DataFileError(
            f"{images_path}: has shape {images.shape}: must be (n, 28, 28), with n labels in {labels_path.name}, whose "
            f"shape is {labels.shape}"
        )
    check_labels(labels_path, labels, classes)
    return np.ascontiguousarray(images.swapaxes(1, 2)) if is_transposed else images, labels.astype(np.int64)


def _idx_patterns(*prefixes: str) -> tuple[str, ...]:
    """The files of pictures and labels, plain or gzipped."""
    return tuple(f"{prefix}-{content}-ubyte*" for prefix in prefixes for content in ("images-idx3", "labels-idx1"))


SOURCES: dict[str, tuple[Layout, ...]] = {
    "femnist": (
        Layout(
            ("fed_emnist_train.h5", "fed_emnist_test.h5"),
            "TensorFlow Federated's fed_emnist.tar.bz2",
            partial(_read_split, read_tff),
        ),
        Layout(
            ("femnist/train/*.json", "femnist/test/*.json"),
            "made by the scripts in LEAF's repository, Caldas et al. 2018",
            partial(_read_split, read_leaf),
        ),
        *(
            Layout((f"{folder}/train-*.parquet",), "flwrlabs/femnist on Hugging Face", _hold_out_tenth)
            for folder in ("femnist", "femnist/data")
        ),
    ),
    "emnist-byclass": (
        *(
            Layout(
                (file,),
                "the Matlab format on NIST's EMNIST page, Cohen et al. 2017",
                partial(_read_single, read_emnist_mat),
            )
            for file in ("matlab/emnist-byclass.mat", "emnist-byclass.mat")
        ),
        Layout(
            _idx_patterns("emnist-byclass-train", "emnist-byclass-test"),
            "the binary format on the same page, without writers",
            partial(_read_idx_files, 3400, is_transposed=True),
        ),
    ),
    "mnist": (Layout(_idx_patterns("train", "t10k"), "LeCun's MNIST", partial(_read_idx_files, 1000)),),
    "mnist-writers": (
        Layout(
            ("mnist-writers.npz",),
            "MNIST with the true NIST writer of each digit, QMNIST, Yadav and Bottou 2019: arrays images (uint8, "
            "28×28), labels, writers and is_test",
            partial(_read_single, read_npz),
        ),
    ),
    "mnist-shards": (
        Layout(
            ("mnist-writers.npz",),
            "the same file as of mnist-writers, divided among 100 synthetic clients of two labels each",
            partial(_read_shards, 100),
        ),
    ),
    "emnist-byclass-test": (
        Layout(
            ("emnist-byclass-test.npz",),
            "the test part of EMNIST ByClass, Cohen et al. 2017, divided among synthetic clients: arrays images "
            "(uint8, 28×28), labels, pseudo_writers and is_test",
            partial(_read_single, partial(read_npz, id_array="pseudo_writers")),
        ),
    ),
}
"""The layouts of data sets that users download, in the order of preference."""


# -- loading --------------------------------------------------------------------------------------


def load(name: str, folder: Path | None = None) -> FederatedData:
    """Load a data set by name.

    Clients are the writers that the files name, in the order of their names. IDX files name none:
    `mnist` is divided among 1,000 synthetic clients and `emnist-byclass` among 3,400, by `dirichlet`
    with concentration 1 and seed 0. Test sets are those of the files. Hugging Face's `femnist` has
    none: the last tenth of each writer's pictures, rounded up, is held out, and a writer of one
    picture is no client.

    Args:
        name: "glyphs", which is generated and needs no file, or a key of `SOURCES`.
        folder: Folder to search before `$RQM_DATA` and the user's cache.

    Raises:
        ValueError: If the name is unknown, or a file is damaged or holds something else.
        FileNotFoundError: If no folder holds the files. The message says where to get them.
    """
    if name == "glyphs":
        from rqm.data.glyphs import glyphs  # noqa: PLC0415 (draws with matplotlib)

        return glyphs()
    if name not in SOURCES:
        raise ValueError(f"data = {name}: must be among glyphs, {', '.join(SOURCES)}")
    folders = search_folders(folder)
    classes = CLASSES[name]
    for searched in folders:
        for layout in SOURCES[name]:
            if paths := layout.find(searched):
                train, test = layout.read(classes, *paths)
                inputs, labels = map(torch.from_numpy, test)
                return FederatedData(name, Clients.group_by_id(*train), inputs, labels, classes)
    raise FileNotFoundError(
        f"data = {name}: not found in {', '.join(map(str, folders))}. It may be given as "
        f"{'; or as '.join(map(str, SOURCES[name]))}. Name its folder with --data DIR or $RQM_DATA."
    )


def search_folders(folder: Path | None = None) -> list[Path]:
    """The folders that are searched for data sets, in this order."""
    folders = [folder, os.environ.get("RQM_DATA"), cache_folder()]
    return [Path(path) for path in folders if path]
