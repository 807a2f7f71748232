"""Many small clients at once: one pass over all their examples, and one row for what each of them sends.

A pass over the few examples of one client takes as long as its operations need to start. Where all clients share the
model, everything but the gradients of the weights is one batch without padding. After local steps every client has
weights of its own: clients of one size then take their steps together, a dense layer is a batched matrix product, and a
convolution has one group for each client.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rqm.data.federated_data import Clients, IntArray, Tensors
from rqm.simulation.layer_gradients import TOLERANCE, ExampleLosses, by_client, plain_layers, record_layers, write_rows
from rqm.simulation.models import FlatModel

EXAMPLES_AT_ONCE = {"cpu": 128, "cuda": 10_240}
"""Examples in a pass, about, by device. On a GPU they take half a megabyte each with the paper's model."""
FLOATS_AT_ONCE = {"cpu": 2**23, "cuda": 2**30}
"""Numbers in the rows of a pass, at most."""
MIN_CLIENTS = 8
"""Fewer clients in a pass are not worth the reordering."""


class GroupedGradients(ABC):
    """Computes the gradients of several clients in one pass.

    All parameters of the model must belong to dense layers and plain convolutions; `agrees` checks whether that
    suffices.

    Args:
        clients: The clients' examples.
        losses: Gives the loss of each example.
    """

    def __init__(self, clients: Clients, losses: ExampleLosses) -> None:
        self.clients, self.losses = clients, losses

    @abstractmethod
    def split(self, client_ids: Sequence[int]) -> list[list[int]]:
        """The positions of all clients, in the groups that are computed in one pass."""

    @abstractmethod
    def gradients(self, model: FlatModel, client_ids: Sequence[int]) -> Tensors:
        """Compute the gradients of a group.

        Args:
            model: The model.
            client_ids: The clients of the group.

        Returns:
            The gradient of each client's mean loss, one row each, and the mean losses.
        """

    @property
    def trial_clients(self) -> list[int]:
        """A small group on which `agrees` tries the gradients."""
        pair: list[int] = np.flatnonzero(self.clients.sizes)[:2].tolist()
        return pair

    def agrees(self, model: FlatModel) -> bool:
        """Whether a group gives the gradients of single clients: a model may mix examples, or share weights."""
        module, is_training = model.model, model.model.training
        allows_tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False  # it can move a maximum
        module.eval()  # dropout would differ
        try:
            rows, _ = self.gradients(model, self.trial_clients)
            for row, client_id in zip(rows, self.trial_clients, strict=True):
                single = SingleClient(model, self.losses, *self.clients[client_id])
                single.compute_gradient()
                if not (row - model.gradient).norm() <= TOLERANCE * model.gradient.norm():
                    return False
        except (RuntimeError, ValueError, IndexError):  # a model or a loss that groups are not for
            return False
        finally:
            torch.backends.cudnn.allow_tf32 = allows_tf32
            module.train(is_training)
        return True


@final
class ClientGroups(GroupedGradients):
    """Groups of small clients. What a client sends does not depend on the number of threads.

    Args:
        clients: The clients' examples.
        losses: Gives the loss of each example.
        dim: Number of parameters.
        is_local: Whether clients take local steps, which only clients of one size can take together.
    """

    def __init__(self, clients: Clients, losses: ExampleLosses, dim: int, *, is_local: bool) -> None:
        super().__init__(clients, losses)
        self.dim, self.is_local = dim, is_local
        device = clients.inputs.device.type
        self.max_clients = FLOATS_AT_ONCE[device] // dim // (4 if is_local else 1)
        self.max_examples = EXAMPLES_AT_ONCE[device]

    def split(self, client_ids: Sequence[int]) -> list[list[int]]:
        """See `GroupedGradients`: clients of similar size, or of one size for local steps."""
        sizes = self.clients.sizes_of(client_ids)
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

    def agrees(self, model: FlatModel) -> bool:
        """Whether groups save time, and give the gradients of single clients."""
        median = float(np.median(self.clients.sizes))
        is_faster = self.max_clients >= MIN_CLIENTS and MIN_CLIENTS * median <= self.max_examples
        return is_faster and super().agrees(model)

    @property
    def trial_clients(self) -> list[int]:
        """See `GroupedGradients`. For local steps one client twice, since both must be of one size."""
        pair = super().trial_clients
        return pair[:1] * 2 if self.is_local else pair

    def gradients(self, model: FlatModel, client_ids: Sequence[int]) -> Tensors:
        """See `GroupedGradients`. Clients of one size follow one another."""
        if self.is_local:
            stack = ClientStack(self.clients, self.losses, model, client_ids)
            stack.compute_gradient(torch.arange(stack.size, device=stack.values.device).repeat(stack.count, 1))
            return stack.gradient, stack.losses[0]
        self.clients.prepare_clients(client_ids)
        runs = list(runs_of_one_size(self.clients, client_ids))
        inputs, labels = self.clients.gather(np.concatenate([examples.reshape(-1) for _, examples in runs]))
        weights = np.concatenate([np.full(examples.size, 1 / len(examples)) for _, examples in runs])
        losses, uses = record_layers(model.model, self.losses, inputs, labels, torch.from_numpy(weights))
        rows = losses.new_empty((len(client_ids), self.dim))
        means: list[Tensor] = []
        start = 0
        for clients, examples in runs:
            span = slice(start, start + examples.size)
            for use in uses:
                write_rows(use, span, rows[clients, use.columns])
            means.append(losses[span].view(examples.shape).sum(0))
            start = span.stop
        return rows, torch.cat(means)


def runs_of_one_size(clients: Clients, client_ids: Sequence[int]) -> Iterator[tuple[slice, IntArray]]:
    """Clients of one size that follow one another.

    Args:
        clients: The clients' examples.
        client_ids: Some of the clients.

    Yields:
        Which of them these are, and their examples: one column for each client.
    """
    start = 0
    for size, run in groupby(clients.sizes_of(client_ids).tolist()):
        end = start + len(list(run))
        yield slice(start, end), np.arange(size)[:, None] + clients.offsets[client_ids[start:end]]
        start = end


@final
class SingleClient:
    """A single client, one row of everything: the reference for all that is computed in groups."""

    def __init__(self, model: FlatModel, losses: ExampleLosses, inputs: Tensor, labels: Tensor) -> None:
        self.model, self.example_losses, self.inputs, self.labels = model.model, losses, inputs, labels
        self.values, self.gradient, self.size = model.values[None], model.gradient[None], len(labels)
        self.losses: list[Tensor] = []

    def compute_gradient(self, batch: Tensor | None = None) -> None:
        """Compute the gradient of the mean loss on a batch, one row of indices; None: all examples."""
        inputs, labels = self.inputs, self.labels
        if batch is not None:
            inputs, labels = inputs[batch[0]], labels[batch[0]]
        self.gradient.zero_()
        loss = self.example_losses(self.model, inputs, labels).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(loss.detach()[None])


@final
class ClientStack:
    """Clients of one size that take local steps together, with one row for each of them.

    Attributes:
        values: The parameters of each client.
        gradient: What `compute_gradient` computed last.
        losses: The clients' mean losses, for each call.
        size: Examples of each client.
    """

    def __init__(self, clients: Clients, losses: ExampleLosses, model: FlatModel, client_ids: Sequence[int]) -> None:
        self.model, self.example_losses, self.layers = model.model, losses, plain_layers(model.model)
        clients.prepare_clients(client_ids)
        ((_, examples),) = runs_of_one_size(clients, client_ids)
        self.size, self.count = examples.shape
        inputs, labels = clients.gather(examples.reshape(-1))
        self.inputs, self.labels = (
            tensor.view(self.size, self.count, *tensor.shape[1:]) for tensor in (inputs, labels)
        )
        self.values = model.values.repeat(self.count, 1)
        self.gradient = torch.empty_like(self.values)
        self.losses: list[Tensor] = []

    def compute_gradient(self, batch: Tensor) -> None:
        """Compute every client's gradient at its own values, on a batch: for each client the indices of examples."""
        client = torch.arange(self.count, device=batch.device)
        inputs, labels = (tensor[batch.T, client].flatten(0, 1) for tensor in (self.inputs, self.labels))
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
                start, weights = columns.start, list[Tensor]()
                for parameter in layer.parameters(recurse=False):
                    end = start + parameter.numel()
                    stacked = self.values[:, start:end].view(self.count, *parameter.shape)
                    weights.append(stacked.detach().requires_grad_())
                    start = end
                layer.forward = partial(_stacked_forward, layer, weights)
                leaves += weights
            yield leaves
        finally:
            for layer in self.layers:
                layer.__dict__.pop("forward", None)


def _stacked_forward(layer: Any, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Apply a layer with weights of its own for each client."""
    weight, bias = weights[0], weights[1] if len(weights) > 1 else None
    count, size = len(weight), len(inputs) // len(weight)
    if isinstance(layer, nn.Linear):
        rows = by_client(inputs, count)
        product = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        outputs = product.view(count, size, -1, layer.out_features).transpose(0, 1)
        return outputs.reshape(*inputs.shape[:-1], layer.out_features)
    outputs = functional.conv2d(
        inputs.reshape(size, -1, *inputs.shape[2:]),
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        layer.stride,
        layer.padding,
        layer.dilation,
        count,
    )
    return outputs.view(len(inputs), -1, *outputs.shape[2:])
