"""Data sets by name: looked for in a folder that is given, in ``$RQM_DATA``, and in the user's cache."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from rqm.data.clients import Clients, FederatedData, by_class, dirichlet
from rqm.data.readers import (
    ByWriter,
    Images,
    Labels,
    check_labels,
    read_emnist_mat,
    read_idx,
    read_leaf,
    read_npz,
    read_parquet,
    read_tff,
    upright,
)

Part = tuple[Images, Labels, npt.NDArray[Any]]
"""Pictures, their labels and their writers."""


@final
@dataclass(frozen=True)
class Layout:
    """Files in which a set is passed around, where they come from, and how they are read.

    Each entry of ``files`` holds patterns, of which the first that matches is taken. ``read`` is given the set's name,
    its number of classes and the paths for each entry.
    """

    files: tuple[tuple[str, ...], ...]
    origin: str
    read: Callable[..., FederatedData]

    def find(self, folder: Path) -> list[list[Path]] | None:
        """The paths for each entry, or nothing where one is missing."""
        found = [next(filter(None, (sorted(folder.glob(p)) for p in patterns)), []) for patterns in self.files]
        return found if all(found) else None

    def __str__(self) -> str:
        parts = (" or ".join(patterns).replace(f" or {patterns[0]}.gz", "[.gz]") for patterns in self.files)
        return f"{' with '.join(parts)} ({self.origin})"


@final
@dataclass(frozen=True)
class Source:
    """A set that users bring: its number of classes, and its layouts in the order in which they are looked for."""

    classes: int
    layouts: tuple[Layout, ...]


def _federated(name: str, classes: int, train: Part, images: Images, labels: Labels) -> FederatedData:
    """Training clients by writer, and a test set of pictures and labels."""
    return FederatedData(name, Clients.by_id(*train), torch.from_numpy(images), torch.from_numpy(labels), classes)


def _pool(read: Callable[[Path], ByWriter], paths: Sequence[Path], classes: int) -> Part:
    """The pictures of several files; a writer may have some in each."""
    parts = []
    for path in paths:
        images, labels, names, owner = read(path)
        check_labels(path, labels, classes)
        parts.append((images, labels, np.asarray(names)[owner]))
    images, labels, writers = (np.concatenate(part) for part in zip(*parts, strict=True))
    return images, labels, writers


def _archive(ids: str, name: str, classes: int, paths: Sequence[Path]) -> FederatedData:
    return read_npz(paths[0], name, ids, classes)


def _shards(clients: int, name: str, classes: int, paths: Sequence[Path]) -> FederatedData:
    """The same pictures without their writers: dealt out by label, two shards a client."""
    found = read_npz(paths[0], name, "writers", classes)
    owner = by_class(found.train.labels.numpy(), clients, 2, seed=0)
    return replace(found, train=Clients.by_id(found.train.inputs, found.train.labels, owner))


def _split(
    read: Callable[[Path], ByWriter], name: str, classes: int, train: Sequence[Path], test: Sequence[Path]
) -> FederatedData:
    images, labels, _ = _pool(read, test, classes)
    return _federated(name, classes, _pool(read, train, classes), images, labels)


def _unsplit(name: str, classes: int, paths: Sequence[Path]) -> FederatedData:
    """Hold out the last tenth, rounded up, of each writer's pictures."""
    images, labels, writers = _pool(read_parquet, paths, classes)
    order, sizes = np.argsort(writers, kind="stable"), np.unique(writers, return_counts=True)[1]
    ends = np.repeat(np.cumsum(sizes), sizes)
    test = np.empty(len(writers), dtype=np.bool_)
    test[order] = ends - np.arange(len(writers)) <= np.repeat(-(-sizes // 10), sizes)
    if test.all():
        raise ValueError(f"{paths[0]}: holds no pictures to train on: some writer must have more than one")
    return _federated(name, classes, (images[~test], labels[~test], writers[~test]), images[test], labels[test])


def _matlab(name: str, classes: int, paths: Sequence[Path]) -> FederatedData:
    parts = read_emnist_mat(paths[0])
    for _, labels, _ in parts.values():
        check_labels(paths[0], labels, classes)
    images, labels, _ = parts["test"]
    return _federated(name, classes, parts["train"], images, labels)


def _dealt(clients: int, name: str, classes: int, *paths: Sequence[Path], transposed: bool = False) -> FederatedData:
    """Deal out pictures without writers to synthetic clients."""
    parts = []
    for (of_images, *_), (of_labels, *_) in (paths[:2], paths[2:]):
        images, labels = read_idx(of_images), read_idx(of_labels)
        if images.shape != (labels.size, 28, 28) or labels.ndim != 1:
            raise ValueError(
                f"{of_images}: has shape {images.shape}: must be (n, 28, 28), with n labels in {of_labels.name}, whose "
                f"shape is {labels.shape}"
            )
        check_labels(of_labels, labels, classes)
        parts.append((upright(images) if transposed else images, labels.astype(np.int64)))
    train, test = parts
    if len(train[1]) < clients:
        raise ValueError(f"{paths[0][0]}: holds {len(train[1])} pictures: must be at least {clients}, one a client")
    return _federated(name, classes, (*train, dirichlet(train[1], clients, concentration=1.0, seed=0)), *test)


def _idx(*parts: str) -> tuple[tuple[str, ...], ...]:
    stems = [f"{part}-{kind}-ubyte" for part in parts for kind in ("images-idx3", "labels-idx1")]
    return tuple((stem, f"{stem}.gz") for stem in stems)


SOURCES = {
    "femnist": Source(
        62,
        (
            Layout(
                (("fed_emnist_train.h5",), ("fed_emnist_test.h5",)),
                "TensorFlow Federated's fed_emnist.tar.bz2",
                partial(_split, read_tff),
            ),
            Layout(
                (("femnist/train/*.json",), ("femnist/test/*.json",)),
                "made by the scripts in LEAF's repository, Caldas et al. 2018",
                partial(_split, read_leaf),
            ),
            Layout(
                (("femnist/train-*.parquet", "femnist/data/train-*.parquet"),),
                "flwrlabs/femnist on Hugging Face",
                _unsplit,
            ),
        ),
    ),
    "emnist-byclass": Source(
        62,
        (
            Layout(
                (("matlab/emnist-byclass.mat", "emnist-byclass.mat"),),
                "the Matlab format on NIST's EMNIST page, Cohen et al. 2017",
                _matlab,
            ),
            Layout(
                _idx("emnist-byclass-train", "emnist-byclass-test"),
                "the binary format on the same page, without writers",
                partial(_dealt, 3400, transposed=True),
            ),
        ),
    ),
    "mnist": Source(10, (Layout(_idx("train", "t10k"), "LeCun's MNIST", partial(_dealt, 1000)),)),
    "mnist-writers": Source(
        10,
        (
            Layout(
                (("mnist-writers.npz",),),
                "MNIST with the true NIST writer of each digit, QMNIST, Yadav and Bottou 2019: arrays images (uint8, "
                "28×28), labels, writers and is_test",
                partial(_archive, "writers"),
            ),
        ),
    ),
    "mnist-shards": Source(
        10,
        (
            Layout(
                (("mnist-writers.npz",),),
                "the same file, dealt out to 100 synthetic clients of two labels each",
                partial(_shards, 100),
            ),
        ),
    ),
    "emnist-byclass-test": Source(
        62,
        (
            Layout(
                (("emnist-byclass-test.npz",),),
                "the test part of EMNIST ByClass, Cohen et al. 2017, dealt out to synthetic clients: arrays images "
                "(uint8, 28×28), labels, pseudo_writers and is_test",
                partial(_archive, "pseudo_writers"),
            ),
        ),
    ),
}


def folders(given: Path | None = None) -> list[Path]:
    """Where data are looked for, in this order."""
    places = [given] if given else []
    if os.environ.get("RQM_DATA"):
        places.append(Path(os.environ["RQM_DATA"]))
    return [*places, cache()]


def cache() -> Path:
    """The user's cache of data sets."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rqm"


def load(name: str, folder: Path | None = None) -> FederatedData:
    """Load a data set by its name; ``glyphs`` is generated and needs no file.

    Clients are the writers that the files name, in the order of their names. IDX files name none: those of ``mnist``
    are dealt out to 1,000 synthetic clients and those of ``emnist-byclass`` to 3,400, by ``dirichlet`` with
    concentration 1 and seed 0. Test sets are those of the files. Hugging Face's ``femnist`` has none: the last tenth of
    each writer's pictures, rounded up, is held out, and a writer of one picture is no client.
    """
    if name == "glyphs":
        from rqm.data.glyphs import glyphs  # noqa: PLC0415 (draws with matplotlib)

        return glyphs()
    if name not in SOURCES:
        raise ValueError(f"data = {name}: must be among glyphs, {', '.join(SOURCES)}")
    source = SOURCES[name]
    for place in folders(folder):
        for layout in source.layouts:
            if paths := layout.find(place):
                return layout.read(name, source.classes, *paths)
    raise FileNotFoundError(
        f"data = {name}: not found in {', '.join(map(str, folders(folder)))}. It may be given as "
        f"{'; or as '.join(map(str, source.layouts))}. Name its folder with --data DIR or $RQM_DATA."
    )
