"""Readers of the formats in which federated handwriting is passed around."""

import zipfile
from pathlib import Path

import numpy as np
import torch

from rqm.federated.clients import Clients, FederatedData


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
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"{path}: holds the label {labels.max()}: must lie in 0..{classes - 1}")
    train = Clients.by_id(images[~test], labels[~test], owner[~test])
    return FederatedData(name, train, torch.from_numpy(images[test]), torch.from_numpy(labels[test]).long(), classes)
