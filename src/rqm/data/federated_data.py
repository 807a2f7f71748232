"""Federated data: the examples of all clients in one tensor, with the offsets where each client begins."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import real, whole

IntArray = npt.NDArray[np.int64]
Tensors = tuple[torch.Tensor, torch.Tensor]


@final
@dataclass(frozen=True, eq=False)
class Clients:
    """Clients with different numbers of examples; client i holds examples offsets[i] to offsets[i + 1] - 1.

    Attributes:
        inputs: Inputs of all examples.
        labels: Labels of all examples.
        offsets: Where each client's examples begin, and the total at the end.
        prepare: Called with a client's index before its examples are read. It may generate them.
        rows: The row of `inputs` and `labels` that holds each example. Clients may share rows. None
            if example i is row i.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    offsets: IntArray
    prepare: Callable[[int], None] | None = None
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        """Validate that inputs, labels and offsets fit together."""
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs and {len(self.labels)} labels: must be equally many")
        count = len(self.labels) if self.rows is None else len(self.rows)
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets: must rise from 0 to {count}, with one entry more than there are clients")
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """Number of examples of each client."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Sequence[int]) -> IntArray:
        """Number of examples of some clients, in time that does not depend on the number of all clients."""
        indices = np.asarray(clients, dtype=np.int64)
        return self.offsets[indices + 1] - self.offsets[indices]

    def prepare_clients(self, clients: Iterable[int] | IntArray) -> None:
        """Call `prepare` for some clients. Needed before `gather`; indexing prepares the client."""
        if self.prepare is not None:
            for client in clients:
                self.prepare(int(client))

    def gather(self, examples: IntArray) -> Tensors:
        """Return the inputs and labels of examples of any clients, which must have been prepared.

        Args:
            examples: Indices among the examples of all clients.
        """
        indices = torch.from_numpy(examples if self.rows is None else self.rows[examples]).to(self.inputs.device)
        return self.inputs[indices], self.labels[indices]

    def __getitem__(self, client: int) -> Tensors:
        """Return the inputs and labels of one client, as a view unless clients share examples."""
        if not 0 <= client < len(self):
            raise IndexError(f"client = {client}: must lie in 0..{len(self) - 1}")
        self.prepare_clients([client])
        start = self.offsets[client]
        end = self.offsets[client + 1]
        if self.rows is not None:
            return self.gather(np.arange(start, end))
        return self.inputs[start:end], self.labels[start:end]

    def to(self, device: torch.device | str) -> Self:
        """Return the same clients on a device, all of them prepared."""
        self.prepare_clients(range(len(self)))
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), prepare=None)

    def resample(self, population: int, examples: int, seed: int) -> Self:
        """Return a larger population, whose users draw examples with replacement from one client each.

        Args:
            population: Number of users.
            examples: Examples of each user.
            seed: Seed of the draws.

        Raises:
            ValueError: If clients share examples already.

        >>> clients = Clients.group_by_id(np.arange(6.0), [0, 1, 0, 1, 0, 1], ids=[1, 1, 1, 2, 2, 2])
        >>> len(clients.resample(1000, examples=2, seed=0)), clients.resample(5, 2, 0).sizes.tolist()
        (1000, [2, 2, 2, 2, 2])
        """
        if self.rows is not None:
            raise ValueError("clients that share examples cannot be resampled")
        rng = np.random.default_rng([seed, population])
        owners = np.resize(np.flatnonzero(self.sizes), population)
        picks = (rng.random((population, examples)) * self.sizes[owners, None]).astype(np.int64)
        rows = self.offsets[owners, None] + picks
        prepare = None if self.prepare is None else lambda user: self.prepare_clients(owners[user : user + 1])
        return replace(self, offsets=examples * np.arange(population + 1), prepare=prepare, rows=rows.reshape(-1))

    def merge(self, silos: int) -> Self:
        """Return the same examples in fewer silos, each of which joins about equally many consecutive clients.

        >>> Clients.group_by_id(np.arange(6.0), [0, 1, 0, 1, 0, 1], ids=[1, 1, 1, 2, 2, 3]).merge(2).sizes.tolist()
        [5, 1]
        """
        ends = np.linspace(0, len(self), whole("silos", silos, 1, len(self)) + 1).round().astype(int)
        prepare = None if self.prepare is None else lambda silo: self.prepare_clients(range(ends[silo], ends[silo + 1]))
        return replace(self, offsets=self.offsets[ends], prepare=prepare)

    @classmethod
    def group_by_id(cls, inputs: Any, labels: Any, ids: npt.ArrayLike) -> Self:
        """Group examples by the id of their owner. Clients are in the order of their ids.

        Args:
            inputs: Array or tensor with one row per example; floats are converted to 32 bits.
            labels: Array or tensor of the labels.
            ids: Number or name of each example's owner.

        Raises:
            ValueError: If there is not one id for each example.

        >>> clients = Clients.group_by_id(np.arange(5.0), [0, 1, 0, 1, 0], ids=[7, 3, 7, 7, 3])
        >>> clients.sizes.tolist(), clients[0][0].tolist()
        ([2, 3], [1.0, 4.0])
        """
        inputs, labels = example_tensors("examples", (inputs, labels), allow_bytes=True)
        ids = np.asarray(ids)
        if not len(labels) or ids.shape != (len(labels),):
            raise ValueError(
                f"ids of users have shape {ids.shape}: must be one id for each of the {len(labels)} examples, ≥ 1"
            )
        order = np.argsort(ids, kind="stable")
        sizes = np.unique(ids, return_counts=True)[1]
        return cls(inputs[order], labels[order], _offsets(sizes))


@final
@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training clients and a test set of the server.

    Attributes:
        name: Name of the data set, as plans and reports call it.
        train: Training clients.
        test_inputs: Inputs of the test set; empty if there is none.
        test_labels: Labels of the test set.
        classes: Number of classes; 0 for a regression.
    """

    name: str
    train: Clients
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    classes: int

    def to(self, device: torch.device | str) -> Self:
        """Return the same data on a device."""
        test_inputs = self.test_inputs.to(device)
        test_labels = self.test_labels.to(device)
        return replace(self, train=self.train.to(device), test_inputs=test_inputs, test_labels=test_labels)


# -- data in memory -------------------------------------------------------------------------------


def as_federated_data(data: Any, users: Any = None, test: Any = None) -> FederatedData:
    """Convert data in memory to federated data.

    Args:
        data: A `FederatedData`, which is returned as it is; a list with one data set per user; or
            one data set with the examples of all users. A data set is a pair (inputs, labels) or a
            torch data set of such pairs.
        users: The id of each example's owner, if `data` holds the examples of all users.
        test: Data set on which the model is evaluated.

    Returns:
        Data named "own". Floats are converted to 32 bits, whole numbers to 64 bits.

    Raises:
        TypeError: If the data are of another type, or hold bytes or complex numbers.
        ValueError: If shapes or types of the examples differ, or a user has none.

    >>> data = as_federated_data([(np.ones((3, 2)), [0, 1, 1]), (np.zeros((1, 2)), [0])])
    >>> data.train.sizes.tolist(), data.classes
    ([3, 1], 2)
    """
    if isinstance(data, FederatedData):
        if users is not None or test is not None:
            raise ValueError("users, test: must not be given with a rqm.FederatedData, which holds both")
        return data
    if users is not None:
        train = Clients.group_by_id(*example_tensors("data", data), users)
    elif isinstance(data, Sequence) and not isinstance(data, tuple) and len(data):
        train = _join(data)
    else:
        raise TypeError(
            f"data is a {type(data).__name__}: must be a list with one data set per user, each (inputs, labels), "
            "arrays or tensors, or a torch data set of such pairs; or (inputs, labels) of all users, with users=, the "
            "id of each example's owner"
        )
    test_inputs = train.inputs[:0]
    test_labels = train.labels[:0]
    if test is not None:
        test_inputs, test_labels = example_tensors("test", test, (train.inputs, train.labels))
    return FederatedData("own", train, test_inputs, test_labels, class_count(train.labels))


def example_tensors(name: str, data: Any, expected: Tensors | None = None, *, allow_bytes: bool = False) -> Tensors:
    """Convert a data set to tensors of inputs and labels.

    Args:
        name: What error messages call the data set.
        data: A pair (inputs, labels), or a torch data set of such pairs.
        expected: Inputs and labels with the types and the shape of an example that are required.
        allow_bytes: Whether inputs may be bytes, which models take for pixels.

    Returns:
        Inputs and labels: floats of 32 bits, whole numbers of 64 bits, or inputs of bytes.

    Raises:
        TypeError: If the data are not numbers, or are bytes and these are not allowed.
        ValueError: If there are not equally many inputs and labels, or they differ from those expected.
    """
    inputs, labels = (_tensor(f"{name}[{index}]", column) for index, column in enumerate(_columns(name, data)))
    if inputs.dtype == torch.uint8 and not allow_bytes:
        raise TypeError(f"{name}[0]: is of bytes; must be floats (such as bytes / 255), or whole numbers of 64 bits")
    if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
        inputs = inputs.long()
    if not labels.is_floating_point():
        labels = labels.long()
    if not inputs.ndim or not labels.ndim or len(inputs) != len(labels):
        shapes = f"{tuple(inputs.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"{name}: inputs and labels have shapes {shapes}: must be equally many")
    for column, tensor, example in zip(("inputs", "labels"), (inputs, labels), expected or (), strict=False):
        if tensor.shape[1:] != example.shape[1:] or tensor.dtype != example.dtype:
            raise ValueError(
                f"{name}: its {column} are of shape {tuple(tensor.shape[1:])} and {tensor.dtype}: must be "
                f"{tuple(example.shape[1:])} and {example.dtype}, as in the data sets that precede it"
            )
    return inputs, labels


def class_count(labels: torch.Tensor) -> int:
    """Number of classes 0, 1, … that reach up to the largest label; 0 for a regression."""
    return 0 if labels.is_floating_point() or not len(labels) else int(labels.max()) + 1


def _columns(name: str, data: Any) -> Sequence[Any]:
    """The inputs and the labels of a data set."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data
    is_indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    examples = [data[index] for index in range(len(data))] if is_indexable else [data]
    if not examples:
        raise ValueError(f"{name}: has no examples; every user must have at least one")
    if not all(isinstance(example, (tuple, list)) and len(example) == 2 for example in examples):
        raise TypeError(
            f"{name} is a {type(data).__name__}: must be (inputs, labels), arrays or tensors, or a torch data set of "
            "such pairs"
        )
    return [[np.asarray(example[column]) for example in examples] for column in (0, 1)]


def _tensor(name: str, values: Any) -> torch.Tensor:
    """A tensor of real numbers, floats of 32 bits."""
    try:
        is_tensor = isinstance(values, torch.Tensor)
        tensor = values.detach().cpu() if is_tensor else torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: must be numbers in an array ({error})") from None
    if tensor.is_complex():
        raise TypeError(f"{name}: is of {tensor.dtype}: must be real numbers")
    return tensor.float() if tensor.is_floating_point() else tensor


def _join(users: Sequence[Any]) -> Clients:
    """Clients from one data set per user."""
    data_sets: list[Tensors] = []
    for index, user in enumerate(users):
        data_sets.append(example_tensors(f"data[{index}]", user, data_sets[0] if data_sets else None))
        if not len(data_sets[-1][1]):
            raise ValueError(f"data[{index}]: has no examples; every user must have at least one")
    inputs, labels = (torch.cat(column) for column in zip(*data_sets, strict=True))
    return Clients(inputs, labels, _offsets([len(labels) for _, labels in data_sets]))


def _offsets(sizes: npt.ArrayLike) -> IntArray:
    """Where each client begins, and the total at the end."""
    return np.concatenate([[0], np.cumsum(sizes)])


# -- partitions -----------------------------------------------------------------------------------


def dirichlet(labels: npt.ArrayLike, clients: int, concentration: float, seed: int) -> IntArray:
    """Assign examples to clients whose class proportions are Dirichlet distributed (Hsu, Qi and Brown 2019).

    Args:
        labels: Class of each example.
        clients: Number of clients; each gets at least one example.
        concentration: Parameter of the distribution. A small one gives each client few classes, a
            large one the proportions of the whole.
        seed: Seed of the assignment.

    Returns:
        The client of each example.
    """
    labels = np.asarray(labels)
    clients = whole("clients", clients, 1, len(labels))
    concentration = real("concentration", concentration, "a positive finite number", 0, np.inf)
    rng = np.random.default_rng(whole("seed", seed, 0))
    ids = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        examples = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.full(clients, concentration))
        ends = np.floor(np.cumsum(proportions)[:-1] * len(examples)).astype(int)
        for client, chunk in enumerate(np.split(examples, ends)):
            ids[chunk] = client
    counts = np.bincount(ids, minlength=clients)
    for empty in np.flatnonzero(counts == 0):  # gets an example of the largest client
        largest = int(np.argmax(counts))
        ids[np.flatnonzero(ids == largest)[0]] = empty
        counts[largest] -= 1
        counts[empty] += 1
    return ids


def by_class(labels: npt.ArrayLike, clients: int, classes_per_client: int, seed: int) -> IntArray:
    """Assign examples to clients of few classes: shards of sorted labels, dealt at random (McMahan et al. 2017).

    Args:
        labels: Class of each example.
        clients: Number of clients.
        classes_per_client: Number of shards that each client gets.
        seed: Seed of the assignment.

    Returns:
        The client of each example.
    """
    labels = np.asarray(labels)
    shards = whole("clients", clients, 1) * whole("classes_per_client", classes_per_client, 1)
    if shards > len(labels):
        raise ValueError(
            f"clients × classes_per_client = {shards}: must be at most {len(labels)}, the number of examples"
        )
    rng = np.random.default_rng(whole("seed", seed, 0))
    order = np.argsort(labels, kind="stable")
    ids = np.empty(len(labels), dtype=np.int64)
    owners = rng.permutation(np.arange(shards) % clients)
    for shard, examples in enumerate(np.array_split(order, shards)):
        ids[examples] = owners[shard]
    return ids
