"""What clients compute: the vectors that they send, before they are encoded.

`client_updates_for` chooses the class for a private mean. `UserUpdates` has the plain path, one client after another,
which is the reference, and chooses in one place whether clients are computed in groups or on several threads.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Protocol, Self, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rqm._util.threads import usable_cores
from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.data.federated_data import Clients
from rqm.plan.plan import Plan
from rqm.randomness import SecureRandom, SeededRandom
from rqm.training.adaptive_clip import AdaptiveClip
from rqm.training.client_groups import ClientGroups, ClientStack, GroupedGradients, SingleClient
from rqm.training.clock import Clock
from rqm.training.cuda_graphs import CudaGradients
from rqm.training.layer_gradients import has_kernel
from rqm.training.local_methods import METHODS, LocalMethod
from rqm.training.models import MODELS, FlatModel
from rqm.training.observer import Observer
from rqm.training.record_gradients import RecordGradients, record_hashes, records_of_round
from rqm.training.streams import DROPOUT, LOCAL, RECORDS, generator, number

ALL = slice(None)
MAX_COPIED_FLOATS = 2**28
"""Numbers in the copies of a model that threads hold, with their gradients: a gigabyte."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Rows = Tensor | Sequence[RecordSum]
"""What some clients send, as `add_messages` of a private mean takes it."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""From a model's outputs and the labels to one number, or to the loss of each example."""


class MessageSum(Protocol):
    """Encodes vectors and adds up the messages."""

    def add(self, positions: Sequence[int], rows: Rows) -> Tensor:
        """Add the messages of some clients.

        Args:
            positions: Their indices among the round's survivors, which seed the simulated randomness.
            rows: What they send.

        Returns:
            Which rows were finite.
        """

    def fork(self) -> Self:
        """An empty sum, for another thread."""

    def merge(self, other: Self) -> None:
        """Add another sum."""


def to_floats(inputs: Tensor) -> Tensor:
    """Pixels of bytes as floats in [0, 1] with a channel; other inputs as they are."""
    return inputs.float().div_(255).unsqueeze(-3) if inputs.dtype == torch.uint8 else inputs


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def example_losses(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """The loss of each example, or what else `loss` returns.

    Args:
        model: The model.
        inputs: Inputs of the examples; bytes are pixels.
        labels: Labels of the examples.
        loss: Compares outputs and labels.
    """
    return loss(model(to_floats(inputs)), labels)


@final
class ModelThreads:
    """A thread for each core, with a copy of the model.

    Threads of torch split up each operation and wait for each other at its end. That is no faster where operations are
    small, and many times slower on a busy machine.

    Args:
        model: The model that is trained.
        count: Number of threads. With 1 everything runs in the calling thread, on the model itself.
        shares_values: Whether the copies see the parameters of `model`. They must not if clients change them.
    """

    def __init__(self, model: FlatModel, count: int, *, shares_values: bool) -> None:
        self.model, self.count = model, count
        self._copies: SimpleQueue[FlatModel] = SimpleQueue()
        if count > 1:
            for _ in range(count):
                values = model.values if shares_values else None
                self._copies.put(FlatModel(copy.deepcopy(model.model), values))
            self._pool = ThreadPoolExecutor(count, "rqm-client", torch.set_num_threads, (1,))

    def map(self, work: Callable[[FlatModel, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply `work` to a model and each item.

        Args:
            work: The function. No two calls use one model at the same time.
            items: The items.

        Returns:
            The results in the order of the items.
        """
        if self.count == 1:
            return map(partial(work, self.model), items)
        return self._pool.map(partial(self._run, work), items)

    def _run(self, work: Callable[[FlatModel, Item], Result], item: Item) -> Result:
        model = self._copies.get()
        try:
            return work(model, item)
        finally:
            self._copies.put(model)


class ClientUpdates(ABC):
    """Computes the vectors that clients send, before they are encoded.

    Args:
        mean: States how the vectors are encoded.
        plan: The plan of the run.
        clients: The clients' examples, on the device of the model.
        model: The model that is trained.
        observer: What an audit plants.
        clock: Measures the time of computing and of encoding.
        loss: What clients minimize the mean of; None: the cross-entropy.
        is_secure: Whether records are drawn by the operating system; if not, by the plan's seed.

    Attributes:
        method: The local steps; None: clients send gradients.
        adaptive_clip: The clip that moves; None: a fixed one.
        groups: What computes several clients in one pass; None: one client after another.
        can_be_distributed: Whether several processes may compute the clients of a round.
        has_losses: Whether losses are computed at all.
    """

    method: LocalMethod | None = None
    adaptive_clip: AdaptiveClip | None = None
    groups: GroupedGradients | None = None
    can_be_distributed: bool = False
    has_losses: bool = True

    def __init__(
        self,
        mean: BaseMean,
        plan: Plan,
        clients: Clients,
        model: FlatModel,
        *,
        observer: Observer,
        clock: Clock,
        loss: Loss | None = None,
        is_secure: bool = False,
    ) -> None:
        self.plan, self.clients, self.model, self.observer, self.clock = plan, clients, model, observer, clock
        self.loss, self.is_secure = loss or cross_entropy, is_secure
        self.losses = partial(example_losses, loss=self.loss)
        self.prepare(mean)

    @abstractmethod
    def prepare(self, mean: BaseMean) -> None:
        """Set up what depends on the class."""

    @abstractmethod
    def compute(self, model: FlatModel, client_ids: Sequence[int], round_index: int) -> tuple[Rows, Tensor]:
        """Compute the vectors of some clients.

        Args:
            model: The model, or a thread's copy of it.
            client_ids: The clients: one, or a group.
            round_index: The round, from 0.

        Returns:
            What they send, one row each, and their losses.
        """

    @cached_property
    def threads(self) -> ModelThreads:
        """Threads with copies of the model."""
        return ModelThreads(self.model, 1, shares_values=True)

    @property
    def group_size(self) -> int:
        """Clients whose noise may be drawn together: those of a group on a GPU."""
        return self.groups.max_clients if isinstance(self.groups, CudaGradients) else 1

    def begin_round(self, round_index: int) -> None:  # noqa: B027 (silos have nothing to begin)
        """Begin a round, before any vector is computed."""

    def encode(self, client_ids: Sequence[int], round_index: int, messages: MessageSum, part: slice = ALL) -> Tensor:
        """Compute the vectors of these clients, and add their messages.

        Args:
            client_ids: The survivors of the round.
            round_index: The round, from 0.
            messages: Encodes the vectors and adds up the messages.
            part: Which groups of clients are computed here. Other processes compute the others.

        Returns:
            The loss of each client: NaN where its vector was not finite, 0 where it was not computed here. Empty if
            losses are not computed at all.
        """
        losses = self.model.values.new_zeros(len(client_ids))
        groups = [[i] for i in range(len(client_ids))] if self.groups is None else self.groups.split(client_ids)
        count, groups = self.threads.count, groups[part]

        def encode_group(model: FlatModel, group: list[int]) -> tuple[MessageSum, Tensor]:
            with self.clock.timed("gradients", count):
                rows, group_losses = self.compute(model, [client_ids[i] for i in group], round_index)
            total = messages.fork()
            with self.clock.timed("clip, rotate, encode", count):
                is_finite = total.add(group, rows)
            return total, group_losses.masked_fill(~is_finite, torch.nan)

        window = 16 * count  # bounds the sums that wait for their turn: sums of floats depend on the order
        for start in range(0, len(groups), window):
            chunk = groups[start : start + window]
            for group, (total, group_losses) in zip(chunk, self.threads.map(encode_group, chunk), strict=True):
                messages.merge(total)
                losses[group] = group_losses
        return losses if self.has_losses else losses[:0]

    def vector(self, client_id: int, round_index: int) -> tuple[Rows, Tensor]:
        """Compute the vector of one client.

        Args:
            client_id: The client.
            round_index: The round, from 0.

        Returns:
            What it sends as one row, and its loss as `encode` returns it.
        """
        rows, losses = self.compute(self.model, [client_id], round_index)
        return rows, losses if self.has_losses else losses[:0]

    def apply(self, mean: Tensor, round_index: int) -> Tensor:
        """Update the adaptive clip and the state of the local method.

        Args:
            mean: The decoded mean of what was sent.
            round_index: The round, from 0.

        Returns:
            What the server's optimizer steps along.
        """
        clip = self.plan.transforms.l2_clip
        if self.adaptive_clip is not None:
            clip = self.adaptive_clip.clip  # before it moves
            mean = self.adaptive_clip.update(mean)
        return mean if self.method is None else self.method.apply(mean, round_index, clip)


@final
class UserUpdates(ClientUpdates):
    """Vectors of users: the gradient of all their examples (Algorithm 1 of the paper), or changes by local steps."""

    def prepare(self, mean: BaseMean) -> None:
        """Set up the local method and the adaptive clip."""
        if self.plan.client.work in METHODS:
            self.method = METHODS[self.plan.client.work](self.plan, len(self.clients), self.model.values)
        if self.plan.adapt is not None and mean.max_length is not None:
            self.adaptive_clip = AdaptiveClip(self.plan.adapt, mean.max_length, self.model.values.device)

    @cached_property
    def groups(self) -> GroupedGradients | None:  # type: ignore[override]
        """What computes several clients in one pass; None: one client after another, which is the reference."""
        values = self.model.values
        groups: GroupedGradients | None = None
        if values.is_cuda and self.method is None:
            # A loss of the user's may not be recordable.
            if has_kernel(values) and self.loss is cross_entropy and not self.observer.plants:
                groups = CudaGradients(self.model, self.clients, self.losses)
        elif self._is_stateless:
            groups = ClientGroups(self.clients, self.losses, len(values), is_local=self.method is not None)
        return groups if groups is not None and groups.agrees(self.model) else None

    @cached_property
    def threads(self) -> ModelThreads:
        """As many threads as there are cores and memory."""
        count = min(usable_cores(), MAX_COPIED_FLOATS // (2 * len(self.model.values)))
        if count < 1 or self.model.values.is_cuda or not self._is_stateless:
            count = 1
        return ModelThreads(self.model, count, shares_values=self.method is None)

    @property
    def can_be_distributed(self) -> bool:  # type: ignore[override]
        """Whether several processes may compute the clients of a round: clients must not have a state."""
        return self._is_stateless and (self.method is None or not self.method.is_client_state)

    @cached_property
    def _is_stateless(self) -> bool:
        """Whether the order of clients does not matter: no buffers, and no draws from torch's generator."""
        if self.plan.dropout or self.observer.plants or any(True for _ in self.model.model.buffers()):
            return False
        generator_state = torch.get_rng_state()
        for client_id in np.flatnonzero(self.clients.sizes)[:1]:
            self.losses(self.model.model, *self.clients[client_id]).mean().backward()  # type: ignore[no-untyped-call]
        is_unchanged = torch.equal(generator_state, torch.get_rng_state())
        torch.set_rng_state(generator_state)
        return is_unchanged

    def begin_round(self, round_index: int) -> None:
        """See `ClientUpdates`."""
        if self.method is not None:
            self.method.begin_round()
        if self.plan.dropout:
            torch.manual_seed(number(self.plan.seed, DROPOUT, round_index))

    def compute(self, model: FlatModel, client_ids: Sequence[int], round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`."""
        planted = self.observer.sends(client_ids[0], round_index) if self.observer.plants else None
        if planted is not None:
            second = [] if self.method is None else [torch.zeros_like(planted)] * (self.method.vectors - 1)
            rows, losses = torch.cat([planted, *second])[None], planted.new_zeros(1)
        elif self.method is not None:
            rows, losses = self._local_steps(self.method, model, client_ids, round_index)
        elif self.groups is not None and (len(client_ids) > 1 or model.values.is_cuda):
            rows, losses = self.groups.gradients(model, client_ids)
        else:
            models = SingleClient(model, self.losses, *self.clients[client_ids[0]])
            models.compute_gradient()
            rows, losses = models.gradient, models.losses[0]
        return rows if self.adaptive_clip is None else self.adaptive_clip.messages(rows), losses

    def _local_steps(
        self, method: LocalMethod, model: FlatModel, client_ids: Sequence[int], round_index: int
    ) -> tuple[Tensor, Tensor]:
        """Local steps; what is sent are changes over the rate."""
        start = self.model.values.clone()
        if len(client_ids) > 1:
            assert isinstance(self.groups, ClientGroups)
            models: SingleClient | ClientStack = ClientStack(self.groups, model, client_ids)
        else:
            models = SingleClient(model, self.losses, *self.clients[client_ids[0]])
        models.values.copy_(start)
        generators = [generator(self.plan.seed, LOCAL, round_index, client_id) for client_id in client_ids]
        batches = map(torch.stack, zip(*(self._batches(models.size, rng) for rng in generators), strict=True))
        rows = torch.cat(method.steps(models, client_ids, batches), dim=1)
        model.values.copy_(start)
        return rows, torch.stack(models.losses).mean(0)

    def _batches(self, count: int, rng: np.random.Generator) -> Iterator[Tensor]:
        """The examples of a client's steps: those of `epochs`, or `steps` batches."""
        client = self.plan.client
        epochs = client.epochs if client.steps is None else client.steps
        orders = (torch.from_numpy(rng.permutation(count)).to(self.model.values.device) for _ in range(epochs))
        batches = chain.from_iterable(torch.split(order, client.batch) for order in orders)
        return islice(batches, client.steps)


@final
class SiloUpdates(ClientUpdates):
    """Vectors of silos: the sum of the clipped gradients of those records that take part in the round."""

    has_losses = False

    def prepare(self, mean: BaseMean) -> None:
        """Set up the gradients of records."""
        assert isinstance(mean, PrivateRecordMean)
        if self.observer.plants:
            raise ValueError("records: audits cannot plant gradients in silos; the plan must be one of users")
        is_separable = self.loss is cross_entropy and self.plan.model in MODELS
        examples = self.clients[int(self.clients.sizes.argmax())]
        self.gradients = RecordGradients(self.model.model, self.losses, mean, examples, is_separable=is_separable)
        self.hashes: dict[int, Any] = {}

    def compute(self, model: FlatModel, client_ids: Sequence[int], round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`."""
        assert self.plan.records is not None
        (silo,) = client_ids
        inputs, labels = self.clients[silo]
        batches, hashes = self.plan.participation.min_separation, None
        if self.plan.threat_model.neighboring == "add-or-remove-one" and batches > 1:
            if silo not in self.hashes:
                self.hashes[silo] = record_hashes(inputs, labels)
            hashes = self.hashes[silo]
        source = SecureRandom() if self.is_secure else SeededRandom(self.plan.seed, RECORDS, round_index, silo)
        rate = self.plan.records.sampling_rate
        is_drawn = records_of_round(rate, batches, len(labels), round_index, source.words, hashes)
        records = torch.from_numpy(np.flatnonzero(is_drawn)).to(labels.device)
        total = self.gradients.clipped_sum(inputs[records], labels[records], int(source.words(1)[0]) >> 1)
        return [total], model.values.new_zeros(1)


CLASSES: dict[type[BaseMean], type[ClientUpdates]] = {PrivateMean: UserUpdates, PrivateRecordMean: SiloUpdates}
"""What clients compute, by the class of the private mean."""


def client_updates_for(mean: BaseMean, *arguments: Any, **options: Any) -> ClientUpdates:
    """The client updates that a private mean needs.

    Args:
        mean: The private mean.
        *arguments: See `ClientUpdates`.
        **options: See `ClientUpdates`.
    """
    return CLASSES[type(mean)](mean, *arguments, **options)
