"""One's own data as federated data: a list of data sets, one a user, or arrays with the users' ids."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from rqm.data.clients import Clients, FederatedData

OWN = "own"
"""The name of data that do not come with the package."""
PAIR = "(inputs, labels), arrays or tensors, or a torch data set of such pairs"


def federated(data: Any, users: Any = None, test: Any = None) -> FederatedData:
    """Federated data from what a user has at hand.

    ``data`` is a ``FederatedData``; a list with one data set a user, each of them (inputs, labels) or a torch data set;
    or (inputs, labels) of everybody, with ``users``: the id of each example's owner. ``test`` is one more data set.

    >>> found = federated([(np.ones((3, 2)), [0, 1, 1]), (np.zeros((1, 2)), [0])])
    >>> found.train.sizes.tolist(), found.classes
    ([3, 1], 2)
    """
    if isinstance(data, FederatedData):
        if users is not None or test is not None:
            raise ValueError("users, test: must not be given beside a rqm.FederatedData, which holds both")
        return data
    if users is not None:
        train = _by_user(data, users)
    elif isinstance(data, Sequence) and not isinstance(data, tuple) and len(data):
        train = _joined([_pair(f"data[{number}]", one) for number, one in enumerate(data)])
    else:
        raise TypeError(
            f"data is a {type(data).__name__}: must be a list of one data set a user, each {PAIR}; or (inputs, labels) "
            "of all, with users=, the id of each example's owner"
        )
    inputs, labels = train.inputs, train.labels
    if test is not None:
        held, said = _pair("test", test)
        _alike("test", (held, said), (inputs, labels))
    else:
        held, said = inputs[:0], labels[:0]
    classes = 0 if labels.is_floating_point() else int(labels.max()) + 1
    return FederatedData(OWN, train, held, said, classes)


def _by_user(data: Any, users: Any) -> Clients:
    """All examples, each with the id of its owner, as clients in the order of their ids."""
    inputs, labels = _pair("data", data)
    ids = np.asarray(users)
    if ids.shape != (len(labels),):
        raise ValueError(f"users: has shape {ids.shape}: must be one id for each of the {len(labels)} examples")
    order = np.argsort(ids, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.unique(ids, return_counts=True)[1])])
    return Clients(inputs[order], labels[order], offsets)


def _joined(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Clients:
    for number, (one, other) in enumerate(pairwise(pairs), start=1):
        _alike(f"data[{number}]", other, one)
    sizes = [len(labels) for _, labels in pairs]
    if 0 in sizes:
        raise ValueError(f"data[{sizes.index(0)}]: has no examples; every user must have at least one")
    inputs, labels = (torch.cat([pair[part] for pair in pairs]) for part in (0, 1))
    return Clients(inputs, labels, np.concatenate([[0], np.cumsum(sizes)]))


def _alike(name: str, one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> None:
    """Refuse examples that are of another shape or kind than those before."""
    for part, mine, theirs in zip(("inputs", "labels"), one, other, strict=True):
        if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
            raise ValueError(
                f"{name}: its {part} are of shape {tuple(mine.shape[1:])} and {mine.dtype}: must be "
                f"{tuple(theirs.shape[1:])} and {theirs.dtype}, as the others'"
            )


def _pair(name: str, data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and labels of a data set, as tensors."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        inputs, labels = _tensor(f"{name}[0]", data[0]), _tensor(f"{name}[1]", data[1])
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (str, bytes, np.ndarray)):
        pairs = [data[index] for index in range(len(data))]
        if not pairs:
            raise ValueError(f"{name}: has no examples; every user must have at least one")
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise TypeError(f"{name}: must be {PAIR}")
        inputs, labels = (
            _tensor(f"{name}[{part}]", torch.stack([torch.as_tensor(np.asarray(pair[part])) for pair in pairs]))
            for part in (0, 1)
        )
    else:
        raise TypeError(f"{name} is a {type(data).__name__}: must be {PAIR}")
    if not inputs.ndim or not labels.ndim or len(inputs) != len(labels):
        shapes = f"{tuple(inputs.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"{name}: inputs and labels have shapes {shapes}: must be as many")
    return inputs, labels


def _tensor(name: str, values: Any) -> torch.Tensor:
    """Floats of 32 bits, or whole numbers of 64."""
    try:
        found = values.detach().cpu() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: must be numbers in an array ({error})") from None
    if found.dtype == torch.uint8:
        raise TypeError(f"{name}: is of bytes; must be floats (bytes / 255, say), or whole numbers of 64 bits")
    if found.is_complex():
        raise TypeError(f"{name}: is of {found.dtype}: must be real numbers")
    return found.float() if found.is_floating_point() else found.long()
