"""Federated data: the examples of all clients in one tensor, with the offsets where each client begins."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import real, whole

IntArray = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Clients:
    """Ragged clients: client i holds the examples offsets[i] … offsets[i+1] − 1.

    ``prepare``, if given, is called with a client's number before its examples are read: data that are made lazily
    come into being there. With ``rows`` example i stands in that row of the two tensors: clients may share examples.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    offsets: IntArray
    prepare: Callable[[int], None] | None = None
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        """Check that the three parts fit together."""
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs and {len(self.labels)} labels: must be as many")
        count = len(self.labels) if self.rows is None else len(self.rows)
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets: must rise from 0 to {count}, one more than there are clients")
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """Examples of each client."""
        return np.diff(self.offsets)

    def sizes_of(self, chosen: list[int]) -> IntArray:
        """Examples of some clients, without a look at the others."""
        some = np.asarray(chosen, dtype=np.int64)
        return np.asarray(self.offsets[some + 1] - self.offsets[some])

    def take(self, index: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and labels of some examples, by their places among all clients', which have come into being."""
        rows = torch.from_numpy(index if self.rows is None else self.rows[index]).to(self.inputs.device)
        return self.inputs[rows], self.labels[rows]

    def __getitem__(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and labels of one client, without a copy unless clients share examples."""
        if not 0 <= client < len(self):
            raise IndexError(f"client = {client}: must lie in 0..{len(self) - 1}")
        self.make([client])
        part: Any = slice(self.offsets[client], self.offsets[client + 1])
        if self.rows is not None:
            part = torch.from_numpy(self.rows[part]).to(self.inputs.device)
        return self.inputs[part], self.labels[part]

    def make(self, chosen: Iterable[int]) -> None:
        """Let the data of some clients come into being."""
        if self.prepare is not None:
            for client in chosen:
                self.prepare(int(client))

    def to(self, device: torch.device | str) -> Self:
        """The same clients on a device, all of them made."""
        self.make(range(len(self)))
        return type(self)(self.inputs.to(device), self.labels.to(device), self.offsets, rows=self.rows)

    def redrawn(self, population: int, examples: int, seed: int) -> Self:
        """A larger population: each new user takes ``examples`` at random, repeats allowed, from one of these clients.

        >>> clients = Clients.by_id(np.arange(6.0), [0, 1, 0, 1, 0, 1], ids=[1, 1, 1, 2, 2, 2])
        >>> len(clients.redrawn(1000, examples=2, seed=0)), clients.redrawn(5, 2, 0).sizes.tolist()
        (1000, [2, 2, 2, 2, 2])
        """
        if self.rows is not None:
            raise ValueError("clients that share examples already cannot be re-drawn")
        rng, held = np.random.default_rng([seed, population]), np.flatnonzero(self.sizes)
        owners = held[np.arange(population) % len(held)]
        owner, make = owners[:, None], self.prepare
        rows = self.offsets[owner] + (rng.random((population, examples)) * self.sizes[owner]).astype(np.int64)
        prepare = None if make is None else lambda user: make(int(owners[user]))  # whose pictures these are
        offsets = examples * np.arange(population + 1)
        return type(self)(self.inputs, self.labels, offsets, prepare, rows=rows.reshape(-1))

    def merged(self, silos: int) -> Self:
        """The same examples in fewer hands: neighbouring clients put together to so many silos, about as many each.

        >>> Clients.by_id(np.arange(6.0), [0, 1, 0, 1, 0, 1], ids=[1, 1, 1, 2, 2, 3]).merged(2).sizes.tolist()
        [5, 1]
        """
        ends = np.linspace(0, len(self), whole("silos", silos, 1, len(self)) + 1).round().astype(int)
        make = self.prepare

        def prepare(silo: int) -> None:
            for client in range(ends[silo], ends[silo + 1]):
                make(client)  # type: ignore[misc]

        offsets = self.offsets[ends]
        return type(self)(self.inputs, self.labels, offsets, None if make is None else prepare, self.rows)

    @classmethod
    def by_id(cls, inputs: Any, labels: Any, ids: npt.ArrayLike) -> Self:
        """Group examples by the id of their writer; clients are in the order of their ids, examples as they came.

        >>> clients = Clients.by_id(np.arange(5.0), [0, 1, 0, 1, 0], ids=[7, 3, 7, 7, 3])
        >>> clients.sizes.tolist(), clients[0][0].tolist()
        ([2, 3], [1.0, 4.0])
        """
        ids = np.asarray(ids)
        if ids.ndim != 1 or not len(ids):
            raise ValueError(f"ids have shape {ids.shape}: must be one for each example, at least one")
        order = np.argsort(ids, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.unique(ids, return_counts=True)[1])])
        return cls(_tensor(inputs)[order], _tensor(labels).long()[order], offsets)


def _tensor(values: Any) -> torch.Tensor:
    return values if isinstance(values, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(values))


@final
@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training clients and a held-out test set."""

    name: str
    train: Clients
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    classes: int

    def to(self, device: torch.device | str) -> Self:
        """Everything on a device."""
        test = self.test_inputs.to(device), self.test_labels.to(device)
        return type(self)(self.name, self.train.to(device), *test, self.classes)


def dirichlet(labels: npt.ArrayLike, clients: int, concentration: float, seed: int) -> IntArray:
    """Assign examples to clients whose class mixes are Dirichlet (Hsu, Qi and Brown 2019); return an id each.

    A small ``concentration`` gives each client few classes, a large one the mix of the whole.
    """
    labels = np.asarray(labels)
    clients = whole("clients", clients, 1, len(labels))
    concentration = real("concentration", concentration, "a positive finite number", 0, np.inf)
    rng = np.random.default_rng(whole("seed", seed, 0))
    ids = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        where = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, concentration))
        ends = np.floor(np.cumsum(shares)[:-1] * len(where)).astype(int)
        for client, part in enumerate(np.split(where, ends)):
            ids[part] = client
    return _none_empty(ids, clients)


def by_class(labels: npt.ArrayLike, clients: int, classes_each: int, seed: int) -> IntArray:
    """Assign examples to clients of a few classes each (McMahan et al. 2017: sort by label, deal out shards)."""
    labels = np.asarray(labels)
    shards = whole("clients", clients, 1) * whole("classes_each", classes_each, 1)
    if shards > len(labels):
        raise ValueError(f"clients × classes_each = {shards}: must be at most {len(labels)}, the number of examples")
    rng = np.random.default_rng(whole("seed", seed, 0))
    order = np.argsort(labels, kind="stable")
    ids = np.empty(len(labels), dtype=np.int64)
    owner = rng.permutation(np.arange(shards) % clients)
    for shard, part in enumerate(np.array_split(order, shards)):
        ids[part] = owner[shard]
    return ids


def _none_empty(ids: IntArray, clients: int) -> IntArray:
    """Give every client without examples one of the largest client's."""
    counts = np.bincount(ids, minlength=clients)
    for client in np.flatnonzero(counts == 0):
        giver = int(np.argmax(counts))
        ids[np.flatnonzero(ids == giver)[0]] = client
        counts[giver] -= 1
        counts[client] += 1
    return ids
