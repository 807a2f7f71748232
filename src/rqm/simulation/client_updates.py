"""What clients compute: the vectors that they send, before they are encoded.

`UserUpdates` chooses in one place (`groups`, `threads`) whether clients are computed one after another, which is the
reference, or in groups and on several threads. A pass over the few examples of one client takes as long as its
operations need to start. Where all clients share the model, everything but the gradients of the weights is one batch
without padding. After local steps every client has weights of its own: clients of one size then take their steps
together, a dense layer is a batched matrix product, and a convolution has one group for each client.
"""

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rqm._util.threads import usable_cores
from rqm.config.plan import Plan
from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.data.federated_data import Clients, FederatedData, Tensors
from rqm.randomness import SecureRandom, SeededRandom
from rqm.simulation.adaptive_clip import AdaptiveClip
from rqm.simulation.cuda_graphs import CudaGradients, has_kernel
from rqm.simulation.evaluation import evaluate
from rqm.simulation.layer_gradients import (
    GROUP_LIMITS,
    TOLERANCE,
    ExampleLosses,
    by_client,
    plain_layers,
    record_layers,
    write_rows,
)
from rqm.simulation.local_methods import METHODS, LocalMethod
from rqm.simulation.models import MODELS, FlatModel, Loss, cross_entropy, example_losses
from rqm.simulation.record_gradients import RecordGradients, record_hashes, records_of_round
from rqm.simulation.streams import DROPOUT, LOCAL, RECORDS, torch_seed

if TYPE_CHECKING:
    from rqm.simulation.loop import Observer
    from rqm.simulation.secure_sum import MessageSum

Rows = Tensor | Sequence[RecordSum]
"""What some clients send, as `add_messages` of a private mean takes it."""


# -- the gradients of one client, or of a group -----------------------------------------------------


@final
class SingleClient:
    """A single client, one row of everything: the reference for all that is computed in groups."""

    def __init__(self, model: FlatModel, losses: ExampleLosses, inputs: Tensor, labels: Tensor) -> None:
        self.model, self.example_losses, self.examples = model.model, losses, (inputs, labels)
        self.values, self.gradient, self.size = model.values[None], model.gradient[None], len(labels)
        self.losses: list[Tensor] = []

    def compute_gradient(self, batch: Tensor | None = None) -> None:
        """Compute the gradient of the mean loss on a batch, one row of indices; None: all examples."""
        inputs, labels = self.examples if batch is None else (tensor[batch[0]] for tensor in self.examples)
        self.gradient.zero_()
        loss = self.example_losses(self.model, inputs, labels).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(loss.detach()[None])


@final
class ClientStack:
    """Clients of one size that take local steps together, with one row for each of them.

    Args:
        model: The model with which all of them begin.
        losses: Gives the loss of each example.
        inputs: Inputs of their examples: the first of each client, then the second of each, and so on.
        labels: Labels of their examples.
        count: Number of clients.

    Attributes:
        values: The parameters of each client.
        gradient: What `compute_gradient` computed last.
        losses: The clients' mean losses, for each call.
        size: Examples of each client.
    """

    def __init__(self, model: FlatModel, losses: ExampleLosses, inputs: Tensor, labels: Tensor, count: int) -> None:
        self.model, self.example_losses, self.layers = model.model, losses, plain_layers(model.model)
        self.examples = [tensor.view(-1, count, *tensor.shape[1:]) for tensor in (inputs, labels)]
        self.count, self.size = count, len(labels) // count
        self.values = model.values.repeat(count, 1)
        self.gradient = torch.empty_like(self.values)
        self.losses: list[Tensor] = []

    def compute_gradient(self, batch: Tensor) -> None:
        """Compute every client's gradient at its own values, on a batch: for each client the indices of examples."""
        client = torch.arange(self.count, device=batch.device)
        inputs, labels = (tensor[batch.T, client].flatten(0, 1) for tensor in self.examples)
        with self._own_weights() as weights:
            losses = self.example_losses(self.model, inputs, labels)
        if losses.shape != labels.shape[:1]:
            raise ValueError(f"loss: has shape {tuple(losses.shape)}; must give one number for every example")
        means = losses.view(-1, self.count).mean(0)
        gradients = torch.autograd.grad(means.sum(), weights)
        torch.cat([gradient.reshape(self.count, -1) for gradient in gradients], dim=1, out=self.gradient)
        self.losses.append(means.detach())

    @contextmanager
    def _own_weights(self) -> Iterator[list[Tensor]]:
        """Let every layer use the weights of each client; yields the weights, in the order of the flat vector."""
        leaves: list[Tensor] = []
        try:
            for layer, columns in self.layers.items():
                shapes = [parameter.shape for parameter in layer.parameters(recurse=False)]
                slices = torch.split(self.values[:, columns], [shape.numel() for shape in shapes], dim=1)
                weights = [
                    values.view(self.count, *shape).detach().requires_grad_()
                    for values, shape in zip(slices, shapes, strict=True)
                ]
                layer.forward = partial(_stacked_forward, layer, *weights)
                leaves += weights
            yield leaves
        finally:
            for layer in self.layers:
                layer.__dict__.pop("forward", None)


def _stacked_forward(layer: Any, weight: Tensor, *arguments: Tensor) -> Tensor:
    """Apply a layer with weights of its own for each client: a weight, perhaps a bias, and the inputs."""
    *bias, inputs = arguments
    count, size = len(weight), len(inputs) // len(weight)
    if isinstance(layer, nn.Linear):
        rows = by_client(inputs, count)
        product = torch.baddbmm(bias[0][:, None], rows, weight.mT) if bias else torch.bmm(rows, weight.mT)
        outputs = product.view(count, size, -1, layer.out_features).transpose(0, 1)
        return outputs.reshape(*inputs.shape[:-1], layer.out_features)
    outputs = functional.conv2d(
        inputs.reshape(size, -1, *inputs.shape[2:]),
        weight.flatten(0, 1),
        bias[0].flatten() if bias else None,
        layer.stride,
        layer.padding,
        groups=count,
    )
    return outputs.view(len(inputs), -1, *outputs.shape[2:])


@final
class ClientGroups:
    """Groups of small clients, each computed in one pass. What a client sends does not depend on the number of threads.

    All parameters of the model must belong to dense layers and plain convolutions.

    Args:
        clients: The clients' examples.
        losses: Gives the loss of each example.
        dim: Number of parameters.
        is_local: Whether clients take local steps, which only clients of one size can take together.
    """

    def __init__(self, clients: Clients, losses: ExampleLosses, dim: int, *, is_local: bool) -> None:
        self.clients, self.losses, self.dim, self.is_local = clients, losses, dim, is_local
        self.sizes = clients.sizes
        self.max_examples, max_floats = GROUP_LIMITS[clients.inputs.device.type]
        self.max_clients = max_floats // dim // (4 if is_local else 1)

    @property
    def saves_time(self) -> bool:
        """Whether usual groups have eight clients. Fewer are not worth the reordering."""
        return self.max_clients >= 8 and 8 * float(np.median(self.sizes)) <= self.max_examples

    def split(self, client_ids: Sequence[int]) -> list[list[int]]:
        """The positions of all clients, in groups: of clients of similar size, or of one size for local steps."""
        sizes = self.sizes[client_ids]
        groups: list[list[int]] = []
        examples = 0
        for position in np.argsort(sizes, kind="stable").tolist():
            size = int(sizes[position])
            group = groups[-1] if groups else []
            fits = 0 < len(group) < self.max_clients and 0 < examples <= self.max_examples - size
            if fits and (not self.is_local or sizes[group[0]] == size):
                group.append(position)
                examples += size
            else:
                groups.append([position])
                examples = size
        return groups

    def gradients(self, model: FlatModel, client_ids: Sequence[int]) -> Tensors:
        """Compute the gradients of a group that shares the model.

        Args:
            model: The model.
            client_ids: The clients of the group. Clients of one size follow one another.

        Returns:
            The gradient of each client's mean loss, one row each, and the mean losses.
        """
        self.clients.prepare_clients(client_ids)
        runs = np.split(np.asarray(client_ids), np.flatnonzero(np.diff(self.sizes[client_ids])) + 1)  # of one size each
        examples = [np.arange(self.sizes[run[0]])[:, None] + self.clients.offsets[run] for run in runs]
        inputs, labels = self.clients.gather(np.concatenate([indices.reshape(-1) for indices in examples]))
        weights = np.concatenate([np.full(indices.size, 1 / len(indices)) for indices in examples])
        losses, uses = record_layers(model.model, self.losses, inputs, labels, torch.from_numpy(weights))
        rows = losses.new_empty((len(client_ids), self.dim))
        means: list[Tensor] = []
        row = start = 0
        for indices in examples:
            span, end = slice(start, start + indices.size), row + indices.shape[1]
            for use in uses:
                write_rows(use, span, rows[row:end, use.columns])
            means.append(losses[span].view(indices.shape).sum(0))
            row, start = end, span.stop
        return rows, torch.cat(means)

    def stack(self, model: FlatModel, client_ids: Sequence[int]) -> ClientStack:
        """Clients that take local steps together, each with as many examples as the smallest of them has.

        Args:
            model: The model with which all of them begin.
            client_ids: The clients.
        """
        self.clients.prepare_clients(client_ids)
        examples = np.arange(self.sizes[client_ids].min())[:, None] + self.clients.offsets[client_ids]
        return ClientStack(model, self.losses, *self.clients.gather(examples.reshape(-1)), len(client_ids))


# -- what clients send ------------------------------------------------------------------------------


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
        if count > 1:
            values = model.values if shares_values else None
            self._copies = [FlatModel(copy.deepcopy(model.model), values) for _ in range(count)]
            self._pool = ThreadPoolExecutor(count, "rqm-client", torch.set_num_threads, (1,))

    def map(self, work: Callable[[FlatModel, Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Apply `work` to a model and each item.

        Args:
            work: The function. No two calls use one model at the same time.
            items: The items.

        Returns:
            The results in the order of the items.
        """
        if self.count == 1:
            return map(partial(work, self.model), items)
        results: list[Any] = [None] * len(items)
        remaining = iter(enumerate(items))  # a free thread takes the next one

        def run(model: FlatModel) -> None:
            for index, item in remaining:
                results[index] = work(model, item)

        list(self._pool.map(run, self._copies))  # waits, and raises what was raised
        return results


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
        has_losses: Whether the clients' losses are computed.
    """

    method: LocalMethod | None = None
    adaptive_clip: AdaptiveClip | None = None
    groups: ClientGroups | CudaGradients | None = None
    has_losses = True

    def __init__(
        self,
        mean: BaseMean,
        plan: Plan,
        data: FederatedData,
        model: nn.Module,
        *,
        observer: "Observer",
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
        clip = None if self.adaptive_clip is None else self.adaptive_clip.state
        states = {"clip": clip, "state": None if self.method is None else self.method.server_state}
        return {name: state for name, state in states.items() if state is not None}

    @property
    def client_state(self) -> Tensor | None:
        """What clients remember, one row each."""
        return None if self.method is None else self.method.client_state

    def begin_round(self, round_index: int) -> None:
        """Begin a round, before any vector is computed."""
        if self.method is not None:
            self.method.begin_round()
        if self.plan.dropout:
            torch.manual_seed(torch_seed(self.plan.seed, DROPOUT, round_index))

    def encode(
        self, client_ids: Sequence[int], round_index: int, messages: "MessageSum", chunk: slice | None = None
    ) -> Tensor:
        """Compute the vectors of these clients, and add their messages.

        Args:
            client_ids: The survivors of the round.
            round_index: The round, from 0.
            messages: Encodes the vectors and adds up the messages.
            chunk: Which groups of clients are computed here, where other processes compute the others; None: all.

        Returns:
            The loss of each client: NaN where its vector was not finite, 0 where it was not computed here. Empty if
            losses are not computed at all.
        """
        losses = self.values.new_zeros(len(client_ids))
        groups = [[i] for i in range(len(client_ids))] if self.groups is None else self.groups.split(client_ids)
        groups, count = groups[chunk or slice(None)], self.threads.count
        sums: dict[FlatModel, MessageSum] = defaultdict(messages.fork)

        def compute(model: FlatModel, group: list[int]) -> Any:
            rows, losses[group] = self.compute(model, [client_ids[i] for i in group], round_index)
            return rows

        def add(total: "MessageSum", group: list[int], rows: Rows) -> None:
            losses[group] = losses[group].masked_fill(~total.add(group, rows), torch.nan)

        if messages.is_exact:
            for _ in self.threads.map(lambda model, group: add(sums[model], group, compute(model, group)), groups):
                pass
            for total in sums.values():
                messages.merge(total)
        else:  # floats are added in order, and few rows wait for that
            copied = compute if count == 1 else lambda model, group: compute(model, group).clone()
            for start in range(0, len(groups), 4 * count):
                window = groups[start : start + 4 * count]
                for group, rows in zip(window, self.threads.map(copied, window), strict=True):
                    add(messages, group, rows)
        return losses if self.has_losses else losses[:0]

    def apply(self, mean: Tensor, round_index: int, survivors: int) -> Tensor:
        """Update the adaptive clip and the state of the local method.

        Args:
            mean: The decoded mean of what was sent.
            round_index: The round, from 0.
            survivors: Number of clients in the mean.

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
    def groups(self) -> ClientGroups | CudaGradients | None:  # type: ignore[override]
        """What computes several clients in one pass; None: one client after another, which is the reference."""
        if self.values.is_cuda and self.method is None:
            if not has_kernel(self.values) or self.loss is not cross_entropy or self.observer.plants:
                return None  # a user's loss may be one that cannot be recorded
            arguments = self.model, self.clients, self.losses
            return CudaGradients(*arguments) if self._agrees(CudaGradients(*arguments)) else None
        groups = ClientGroups(self.clients, self.losses, len(self.values), is_local=self.method is not None)
        return groups if self._is_stateless and groups.saves_time and self._agrees(groups) else None

    def _agrees(self, groups: ClientGroups | CudaGradients) -> bool:
        """Whether a group gives the gradients of single clients: a model may mix examples, or share weights."""
        module, is_training = self.model.model, self.model.model.training
        allows_tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False  # it can move a maximum
        module.eval()  # dropout would differ
        client_ids, batch = np.flatnonzero(self.clients.sizes)[:2].tolist(), None
        try:
            if isinstance(groups, ClientGroups) and groups.is_local:
                stack = groups.stack(self.model, client_ids)
                batch = torch.arange(stack.size, device=self.values.device).repeat(len(client_ids), 1)
                stack.compute_gradient(batch)
                rows = stack.gradient
            else:
                rows, _ = groups.gradients(self.model, client_ids)
            for row, client_id in zip(rows, client_ids, strict=True):
                client = self._single(self.model, client_id)
                client.compute_gradient(batch)
                if not (row - client.gradient).norm() <= TOLERANCE * client.gradient.norm():
                    return False
        except (RuntimeError, ValueError, IndexError):  # a model or a loss that groups are not for
            return False
        finally:
            torch.backends.cudnn.allow_tf32 = allows_tf32
            module.train(is_training)
        return True

    @cached_property
    def threads(self) -> ModelThreads:
        """One thread for each core, if memory allows."""
        count = min(usable_cores(), 2**28 // (2 * len(self.values)))  # a gigabyte, with the gradients
        if count < 1 or self.values.is_cuda or not self._is_stateless:
            count = 1
        return ModelThreads(self.model, count, shares_values=self.method is None)

    @cached_property
    def _is_stateless(self) -> bool:
        """Whether the order of clients does not matter: no buffers, and no draws from torch's generator."""
        if self.plan.dropout or self.observer.plants or any(True for _ in self.model.model.buffers()):
            return False
        with torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            for client_id in np.flatnonzero(self.clients.sizes)[:1]:
                self._single(self.model, client_id).compute_gradient()
            return torch.equal(state, torch.get_rng_state())

    def _single(self, model: FlatModel, client_id: int) -> SingleClient:
        return SingleClient(model, self.losses, *self.clients[client_id])

    def compute(self, model: FlatModel, client_ids: list[int], round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`."""
        planted = self.observer.sends(client_ids[0], round_index) if self.observer.plants else None
        if planted is not None:
            count = 1 if self.method is None else self.method.vectors
            rows = functional.pad(planted, (0, (count - 1) * len(planted)))[None]
            losses = planted.new_zeros(1)
        elif self.method is not None:
            rows, losses = self._local_steps(self.method, model, client_ids, round_index)
        elif self.groups is not None and (len(client_ids) > 1 or self.values.is_cuda):
            rows, losses = self.groups.gradients(model, client_ids)
        else:
            client = self._single(model, client_ids[0])
            client.compute_gradient()
            rows, losses = client.gradient, client.losses[0]
        return rows if self.adaptive_clip is None else self.adaptive_clip.messages(rows), losses

    def _local_steps(self, method: LocalMethod, model: FlatModel, client_ids: list[int], round_index: int) -> Tensors:
        """Take local steps. Clients send the change of the model over the learning rate."""
        start = self.values.clone()
        models: SingleClient | ClientStack
        if len(client_ids) == 1:
            models = self._single(model, client_ids[0])
        else:
            assert isinstance(self.groups, ClientGroups)
            models = self.groups.stack(model, client_ids)
        models.values.copy_(start)
        orders = [self._batches(models.size, round_index, client_id) for client_id in client_ids]
        batches = map(torch.stack, zip(*orders, strict=True))
        rows = torch.cat(method.steps(models, client_ids, batches), dim=1)
        model.values.copy_(start)
        return rows, torch.stack(models.losses).mean(0)

    def _batches(self, size: int, round_index: int, client_id: int) -> Iterator[Tensor]:
        """The examples of a client's steps: those of `epochs`, or `steps` batches."""
        client, rng = self.plan.client, np.random.default_rng([self.plan.seed, LOCAL, round_index, client_id])
        epochs = client.epochs if client.steps is None else client.steps
        orders = (torch.from_numpy(rng.permutation(size)).to(self.values.device) for _ in range(epochs))
        return islice((batch for order in orders for batch in torch.split(order, client.batch)), client.steps)


@final
class SiloUpdates(ClientUpdates):
    """Vectors of silos: the sum of the clipped gradients of those records that take part in the round.

    Args:
        mean: The private mean, which clips records.
        *arguments: See `ClientUpdates`.
        **options: See `ClientUpdates`.
    """

    has_losses = False

    def __init__(self, mean: BaseMean, *arguments: Any, **options: Any) -> None:
        super().__init__(mean, *arguments, **options)
        assert isinstance(mean, PrivateRecordMean)
        if self.observer.plants:
            raise ValueError("records: audits cannot plant gradients in silos; the plan must be one of users")
        is_separable = self.loss is cross_entropy and self.plan.model in MODELS
        examples = self.clients[int(self.clients.sizes.argmax())]
        self.gradients = RecordGradients(self.model.model, self.losses, mean, examples, is_separable=is_separable)
        self.hashes = cache(lambda silo: record_hashes(*self.clients[silo]))

    def compute(self, model: FlatModel, client_ids: list[int], round_index: int) -> tuple[Rows, Tensor]:
        """See `ClientUpdates`."""
        assert self.plan.records is not None
        (silo,) = client_ids
        inputs, labels = self.clients[silo]
        batches = self.plan.participation.min_separation
        has_hashes = self.plan.threat_model.neighboring == "add-or-remove-one" and batches > 1
        hashes = self.hashes(silo) if has_hashes else None
        source = SecureRandom() if self.is_secure else SeededRandom(self.plan.seed, RECORDS, round_index, silo)
        rate = self.plan.records.sampling_rate
        is_drawn = records_of_round(rate, batches, len(labels), round_index, source.words, hashes)
        records = torch.from_numpy(np.flatnonzero(is_drawn)).to(labels.device)
        total = self.gradients.clipped_sum(inputs[records], labels[records], int(source.words(1)[0]) >> 1)
        return [total], self.values.new_zeros(1)

    def apply(self, mean: Tensor, round_index: int, survivors: int) -> Tensor:
        """See `ClientUpdates`. The sum over all records is divided by a public number of them."""
        assert self.plan.records is not None
        return mean * (survivors / self.plan.records.batch)


UPDATE_CLASSES: dict[type[BaseMean], type[ClientUpdates]] = {PrivateMean: UserUpdates, PrivateRecordMean: SiloUpdates}
"""What clients compute, by the class of the private mean."""
