"""What clients compute: the vectors that they send, before they are encoded.

`client_updates_for` chooses the class for a private mean. `UserUpdates` chooses in one place (`groups`, `threads`)
whether clients are computed one after another, which is the reference, or in groups and on several threads.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain, islice
from queue import LifoQueue
from typing import Any, Protocol, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from rqm._util.threads import usable_cores
from rqm.config.plan import Plan
from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.data.federated_data import FederatedData, Tensors
from rqm.randomness import SecureRandom, SeededRandom
from rqm.simulation.adaptive_clip import AdaptiveClip
from rqm.simulation.client_groups import ClientGroups, ClientStack, GroupedGradients, SingleClient
from rqm.simulation.cuda_graphs import CudaGradients, has_kernel
from rqm.simulation.evaluation import evaluate
from rqm.simulation.local_methods import METHODS, LocalMethod
from rqm.simulation.models import MODELS, FlatModel, Loss, cross_entropy, example_losses
from rqm.simulation.observer import Observer
from rqm.simulation.record_gradients import RecordGradients, record_hashes, records_of_round
from rqm.simulation.streams import DROPOUT, LOCAL, RECORDS, numpy_generator, torch_seed

ALL = slice(None)
MAX_COPIED_FLOATS = 2**28
"""Numbers in the copies of a model that threads hold, with their gradients: a gigabyte."""

Rows = Tensor | Sequence[RecordSum]
"""What some clients send, as `add_messages` of a private mean takes it."""


class MessageSum(Protocol):
    """Encodes vectors and adds up the messages."""

    @property
    def is_exact(self) -> bool:
        """Whether messages are integers, so that the order of additions does not matter."""

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

    def merge(self, fork: Self) -> None:
        """Add a sum that `fork` returned."""


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

    def __init__(self, model: FlatModel, count: int, *, shares_values: bool = True) -> None:
        self.model, self.count = model, count
        self._copies: LifoQueue[FlatModel] = LifoQueue()  # a thread gets the copy in its cache
        if count > 1:
            values = model.values if shares_values else None
            for _ in range(count):
                self._copies.put(FlatModel(copy.deepcopy(model.model), values))
            self._pool = ThreadPoolExecutor(count, "rqm-client", torch.set_num_threads, (1,))

    def map(self, work: Callable[[FlatModel, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
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

    def _run(self, work: Callable[[FlatModel, Any], Any], item: Any) -> Any:
        model = self._copies.get()
        try:
            return work(model, item)
        finally:
            self._copies.put(model)


class ClientUpdates(ABC):
    """Computes the vectors that clients send, before they are encoded.

    Args:
        mean: The private mean that encodes the vectors.
        plan: The plan of the run.
        data: The clients' examples, on the device of the model.
        model: The model that is trained.
        observer: What an audit plants.
        loss: What clients minimize the mean of; None: the cross-entropy.
        is_secure: Whether records are drawn by the operating system; if not, by the plan's seed.

    Attributes:
        values: The parameters of the model, in one vector.
        method: The local steps; None: clients send gradients.
        adaptive_clip: The clip that moves; None: a fixed one.
        groups: What computes several clients in one pass; None: one client after another.
    """

    method: LocalMethod | None = None
    adaptive_clip: AdaptiveClip | None = None
    groups: GroupedGradients | None = None

    def __init__(
        self,
        mean: BaseMean,
        plan: Plan,
        data: FederatedData,
        model: nn.Module,
        *,
        observer: Observer,
        loss: Loss | None = None,
        is_secure: bool = False,
    ) -> None:
        self.plan, self.clients, self.model, self.observer = plan, data.train, FlatModel(model), observer
        self.values, self.loss, self.is_secure = self.model.values, loss or cross_entropy, is_secure
        self.losses = partial(example_losses, loss=self.loss)
        if plan.client.work in METHODS:
            self.method = METHODS[plan.client.work](plan, len(self.clients), self.values)
        if plan.adapt is not None and mean.max_length is not None:
            self.adaptive_clip = AdaptiveClip(plan.adapt, mean.max_length, self.values.device)

    @abstractmethod
    def compute(self, model: FlatModel, client_ids: list[int], round_index: int) -> tuple[Rows, Tensor]:
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
        return ModelThreads(self.model, 1)

    @property
    def clients_at_once(self) -> int:
        """Clients whose noise may be drawn together: those of a group on a GPU."""
        return self.groups.max_clients if isinstance(self.groups, CudaGradients) else 1

    @property
    def server_state(self) -> dict[str, Tensor]:
        """What the server remembers besides the model and its optimizer, by its name in checkpoints."""
        state: dict[str, Tensor] = {}
        if self.adaptive_clip is not None:
            state["clip"] = self.adaptive_clip.state
        if self.method is not None and self.method.state is not None and not self.method.is_client_state:
            state["state"] = self.method.state
        return state

    @property
    def client_state(self) -> Tensor | None:
        """What clients remember, one row each."""
        return self.method.state if self.method is not None and self.method.is_client_state else None

    def begin_round(self, round_index: int) -> None:
        """Begin a round, before any vector is computed."""
        if self.method is not None:
            self.method.begin_round()
        if self.plan.dropout:
            torch.manual_seed(torch_seed(self.plan.seed, DROPOUT, round_index))

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
        losses = self.values.new_zeros(len(client_ids))
        groups = [[i] for i in range(len(client_ids))] if self.groups is None else self.groups.split(client_ids)
        groups, count = groups[part], self.threads.count
        sums: dict[FlatModel, MessageSum] = {}

        def compute(model: FlatModel, group: list[int]) -> Any:
            rows, losses[group] = self.compute(model, [client_ids[i] for i in group], round_index)
            return rows

        def add(total: MessageSum, group: list[int], rows: Rows) -> None:
            losses[group] = losses[group].masked_fill(~total.add(group, rows), torch.nan)

        def compute_and_add(model: FlatModel, group: list[int]) -> None:
            if model not in sums:
                sums[model] = messages.fork()
            add(sums[model], group, compute(model, group))

        if messages.is_exact:
            for _ in self.threads.map(compute_and_add, groups):
                pass
            for total in sums.values():
                messages.merge(total)
            return losses
        copied = compute if count == 1 else lambda model, group: compute(model, group).clone()
        for start in range(0, len(groups), 4 * count):  # floats are added in order, and few rows wait for that
            window = groups[start : start + 4 * count]
            for group, rows in zip(window, self.threads.map(copied, window), strict=True):
                add(messages, group, rows)
        return losses

    def vector(self, client_id: int, round_index: int) -> tuple[Rows, Tensor]:
        """Compute the vector of one client.

        Args:
            client_id: The client.
            round_index: The round, from 0.

        Returns:
            What it sends as one row, and its loss as `encode` returns it.
        """
        return self.compute(self.model, [client_id], round_index)

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

    def evaluate(self, data: FederatedData) -> tuple[float | None, float | None]:
        """Loss and accuracy on the test set; see `rqm.simulation.evaluation.evaluate`."""
        threads = self.threads if self.method is None else ModelThreads(self.model, 1)  # others have other parameters
        return evaluate(threads.map, data, self.loss)


@final
class UserUpdates(ClientUpdates):
    """Vectors of users: the gradient of all their examples (Algorithm 1 of the paper), or changes by local steps."""

    @cached_property
    def groups(self) -> GroupedGradients | None:  # type: ignore[override]
        """What computes several clients in one pass; None: one client after another, which is the reference."""
        groups: GroupedGradients | None = None
        if self.values.is_cuda and self.method is None:
            is_recordable = self.loss is cross_entropy and not self.observer.plants  # a user's loss may not be
            if has_kernel(self.values) and is_recordable:
                groups = CudaGradients(self.model, self.clients, self.losses)
        elif self._is_stateless:
            groups = ClientGroups(self.clients, self.losses, len(self.values), is_local=self.method is not None)
        return groups if groups is not None and groups.agrees(self.model) else None

    @cached_property
    def threads(self) -> ModelThreads:
        """One thread for each core, if memory allows."""
        count = min(usable_cores(), MAX_COPIED_FLOATS // (2 * len(self.values)))
        if count < 1 or self.values.is_cuda or not self._is_stateless:
            count = 1
        return ModelThreads(self.model, count, shares_values=self.method is None)

    @cached_property
    def _is_stateless(self) -> bool:
        """Whether the order of clients does not matter: no buffers, and no draws from torch's generator."""
        if self.plan.dropout or self.observer.plants or any(True for _ in self.model.model.buffers()):
            return False
        generator_state = torch.get_rng_state()
        for client_id in np.flatnonzero(self.clients.sizes)[:1]:
            SingleClient(self.model, self.losses, *self.clients[client_id]).compute_gradient()
        is_unchanged = torch.equal(generator_state, torch.get_rng_state())
        torch.set_rng_state(generator_state)
        return is_unchanged

    def compute(self, model: FlatModel, client_ids: list[int], round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`."""
        planted = self.observer.sends(client_ids[0], round_index) if self.observer.plants else None
        if planted is not None:
            count = 1 if self.method is None else self.method.vectors
            rows = torch.cat([planted, planted.new_zeros((count - 1) * len(planted))])[None]
            losses = planted.new_zeros(1)
        elif self.method is not None:
            rows, losses = self._local_steps(self.method, model, client_ids, round_index)
        elif self.groups is not None and (len(client_ids) > 1 or self.values.is_cuda):
            rows, losses = self.groups.gradients(model, client_ids)
        else:
            client = SingleClient(model, self.losses, *self.clients[client_ids[0]])
            client.compute_gradient()
            rows, losses = client.gradient, client.losses[0]
        return rows if self.adaptive_clip is None else self.adaptive_clip.messages(rows), losses

    def _local_steps(self, method: LocalMethod, model: FlatModel, client_ids: list[int], round_index: int) -> Tensors:
        """Take local steps. Clients send the change of the model over the learning rate."""
        start = self.values.clone()
        models: SingleClient | ClientStack
        if len(client_ids) == 1:
            models = SingleClient(model, self.losses, *self.clients[client_ids[0]])
        else:
            models = ClientStack(self.clients, self.losses, model, client_ids)
        models.values.copy_(start)
        orders = [self._batches(models.size, round_index, client_id) for client_id in client_ids]
        batches = map(torch.stack, zip(*orders, strict=True))
        rows = torch.cat(method.steps(models, client_ids, batches), dim=1)
        model.values.copy_(start)
        return rows, torch.stack(models.losses).mean(0)

    def _batches(self, size: int, round_index: int, client_id: int) -> Iterator[Tensor]:
        """The examples of a client's steps: those of `epochs`, or `steps` batches."""
        client, rng = self.plan.client, numpy_generator(self.plan.seed, LOCAL, round_index, client_id)
        epochs = client.epochs if client.steps is None else client.steps
        orders = (torch.from_numpy(rng.permutation(size)).to(self.values.device) for _ in range(epochs))
        batches = chain.from_iterable(torch.split(order, client.batch) for order in orders)
        return islice(batches, client.steps)


@final
class SiloUpdates(ClientUpdates):
    """Vectors of silos: the sum of the clipped gradients of those records that take part in the round.

    Args:
        mean: The private mean, which clips records.
        *arguments: See `ClientUpdates`.
        **options: See `ClientUpdates`.

    Attributes:
        silos: Silos that were computed in this round.
    """

    silos: int = 0

    def __init__(self, mean: BaseMean, *arguments: Any, **options: Any) -> None:
        super().__init__(mean, *arguments, **options)
        assert isinstance(mean, PrivateRecordMean)
        if self.observer.plants:
            raise ValueError("records: audits cannot plant gradients in silos; the plan must be one of users")
        is_separable = self.loss is cross_entropy and self.plan.model in MODELS
        examples = self.clients[int(self.clients.sizes.argmax())]
        self.gradients = RecordGradients(self.model.model, self.losses, mean, examples, is_separable=is_separable)
        self.hashes: dict[int, Any] = {}

    def begin_round(self, round_index: int) -> None:
        """See `ClientUpdates`."""
        super().begin_round(round_index)
        self.silos = 0

    def encode(self, client_ids: Sequence[int], round_index: int, messages: MessageSum, part: slice = ALL) -> Tensor:
        """See `ClientUpdates`. Losses are not computed."""
        return super().encode(client_ids, round_index, messages, part)[:0]

    def vector(self, client_id: int, round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`. The loss is not computed."""
        rows, losses = super().vector(client_id, round_index)
        return rows, losses[:0]

    def compute(self, model: FlatModel, client_ids: list[int], round_index: int) -> tuple[Rows, Tensor]:
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
        self.silos += 1
        return [total], self.values.new_zeros(1)

    def apply(self, mean: Tensor, round_index: int) -> Tensor:
        """See `ClientUpdates`. The sum over all records is divided by a public number of them."""
        assert self.plan.records is not None
        return mean * (self.silos / self.plan.records.batch)


UPDATE_CLASSES: dict[type[BaseMean], type[ClientUpdates]] = {PrivateMean: UserUpdates, PrivateRecordMean: SiloUpdates}
"""What clients compute, by the class of the private mean."""


def client_updates_for(mean: BaseMean, *arguments: Any, **options: Any) -> ClientUpdates:
    """The client updates that a private mean needs.

    Args:
        mean: The private mean.
        *arguments: See `ClientUpdates`.
        **options: See `ClientUpdates`.
    """
    return UPDATE_CLASSES[type(mean)](mean, *arguments, **options)
