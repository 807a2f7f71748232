"""Many small clients at once: one pass over all their examples, and a row of what each of them sends.

With a few examples each, a client's pass takes as long as it takes to start its operations. Where all clients share the
model, everything but the gradients of the weights is one batch, without padding; those are formed layer by layer, for
clients of one size together: of dense layers by a batched product, of convolutions by the backward pass of a grouped
one. Local steps, after which every client has weights of its own, are taken by clients of one size in step: a dense
layer is a batched product, a convolution a grouped one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rqm.data.federated_data import Clients
from rqm.training.batched import Loss, as_plain, plain_layers
from rqm.training.workers import Worker

EXAMPLES = {"cpu": 128, "cuda": 10_240}
"""Examples that a worker handles at once, about."""
FLOATS = {"cpu": 2**23, "cuda": 2**30}
"""Gradients that a worker holds at once."""
FEWEST = 8
"""Clients that are worth handling together."""


@final
class Together:
    """What many clients send, for a model whose parameters all belong to dense layers and plain convolutions.

    Whether that suffices for a given model is not taken on trust: see ``agrees``. What a client sends does not depend
    on how many workers there are.
    """

    def __init__(self, clients: Clients, loss: Loss, dim: int, *, local: bool) -> None:
        self.clients, self.loss, self.dim, self.local = clients, loss, dim, local
        device = clients.inputs.device.type
        self.most, self.examples = FLOATS[device] // dim // (4 if local else 1), EXAMPLES[device]

    def groups(self, chosen: list[int]) -> list[list[int]]:
        """The places of all chosen clients in groups to be handled together, by size; local steps: of one size."""
        sizes = self.clients.sizes_of(chosen)
        found: list[list[int]] = []
        examples = 0
        for place in np.argsort(sizes, kind="stable").tolist():
            size = int(sizes[place])
            last = found[-1] if found else []
            fits = 0 < len(last) < self.most and examples > 0 and examples + size <= self.examples
            if fits and (not self.local or sizes[last[0]] == size):
                last.append(place)
                examples += size
            else:
                found.append([place])
                examples = size
        return found

    def worth(self) -> bool:
        """Whether there is anything to be gained: several clients of the middle size fit."""
        return self.most >= FEWEST and FEWEST * float(np.median(self.clients.sizes)) <= self.examples

    def agrees(self, worker: Worker) -> bool:
        """Whether two clients' gradients are those of plain backward passes: the model may mix or share anything."""
        if not plain_layers(worker.model):
            return False
        chosen = np.flatnonzero(self.clients.sizes > 0)[:2].tolist()
        if self.local:
            chosen = chosen[:1] * 2  # the same client twice: local steps are taken by those of one size

        def rows() -> torch.Tensor:
            if not self.local:
                return self.gradients(worker, chosen)[0]
            steps = Steps(self, worker, chosen)
            steps.gradient_of(torch.arange(steps.size, device=steps.values.device).repeat(2, 1))
            return steps.gradient

        try:
            return as_plain(worker.model, self.loss, self.clients, chosen, rows)
        except (RuntimeError, ValueError, IndexError):  # a model or a loss that this is not for
            return False

    def gradients(self, worker: Worker, some: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient, a row each, and the loss of some clients."""
        self.clients.prepare_clients(some)
        runs = list(self._runs(some))
        index = np.concatenate([run.examples for run in runs])
        inputs, labels = self.clients.gather(index.reshape(-1))
        seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def note(number: int) -> Callable[..., None]:
            return lambda _module, given, output: seen.append((number, given[0].detach(), output))

        layers = plain_layers(worker.model)
        hooks = [layer.register_forward_hook(note(number)) for number, (layer, _) in enumerate(layers)]
        try:
            losses = self.loss(worker.model, inputs, labels)
        finally:
            for hook in hooks:
                hook.remove()
        if losses.shape != labels.shape[:1]:
            raise ValueError("loss: must give one number for every example")
        shares = np.repeat([1 / run.size for run in runs], [run.size * run.clients for run in runs])
        losses = losses * torch.from_numpy(shares).to(losses)
        errors = torch.autograd.grad(losses.sum(), [output for *_, output in seen])
        rows, written = errors[0].new_empty((len(some), self.dim)), set[int]()
        for (number, given, _), error in zip(seen, errors, strict=True):
            if len(given) != len(labels):
                raise ValueError("a layer that sees other rows than examples")
            layer, start = layers[number]
            for run in runs:
                _weights(layer, given[run.part], error[run.part], rows[run.rows], start, again=number in written)
            written.add(number)
        return rows, torch.cat([losses[run.part].detach().view(run.size, -1).sum(0) for run in runs])

    def _runs(self, some: list[int]) -> Iterator["_Run"]:
        """Clients of one size that follow one another."""
        row = example = 0
        for size, run in groupby(self.clients.sizes_of(some).tolist()):
            count = len(list(run))
            first = self.clients.offsets[some[row : row + count]]
            examples = (np.arange(size)[:, None] + first).reshape(-1)
            yield _Run(slice(row, row + count), slice(example, example + len(examples)), count, size, examples)
            row, example = row + count, example + len(examples)


class _Run(NamedTuple):
    """Clients of one size: their rows, and their examples; the first of every client, then the second, and so on."""

    rows: slice
    part: slice
    clients: int
    size: int
    examples: Any


def _weights(
    layer: Any, given: torch.Tensor, error: torch.Tensor, rows: torch.Tensor, start: int, *, again: bool
) -> None:
    """Write the gradients of a layer's weight and bias into its place in the rows of clients of one size.

    ``again``: the layer was used before, and they are added.
    """
    count, end = len(rows), start + layer.weight.numel()
    place, bias = rows[:, start:end], rows[:, end : end + (0 if layer.bias is None else len(layer.bias))]
    if isinstance(layer, nn.Linear):
        error, given = (_by_client(part, count) for part in (error, given))
        place = place.view(count, *layer.weight.shape)
        if again:
            place.baddbmm_(error.mT, given)
        else:
            torch.bmm(error.mT, given, out=place)
        found = error.sum(1)
    else:
        weight = _grouped(layer, given, error, count)
        place.copy_(weight) if not again else place.add_(weight)
        found = error.view(len(error) // count, count, layer.out_channels, -1).sum((0, 3))
    if layer.bias is not None:
        bias.copy_(found) if not again else bias.add_(found)


def _by_client(part: torch.Tensor, count: int) -> torch.Tensor:
    """What a dense layer saw, for every client the rows of its examples; those of sequences, too."""
    size, width = len(part) // count, part.shape[-1]
    return part.reshape(size, count, -1, width).transpose(0, 1).reshape(count, -1, width)


def _grouped(layer: Any, given: torch.Tensor, error: torch.Tensor, count: int) -> torch.Tensor:
    """The gradients of a convolution's weight, a row for each client: one of as many groups, walked backward."""
    size = len(given) // count
    found = torch.ops.aten.convolution_backward(
        error.reshape(size, -1, *error.shape[2:]),
        given.reshape(size, -1, *given.shape[2:]),
        layer.weight.new_empty((count * layer.out_channels, *layer.weight.shape[1:])),
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        count,
        [False, True, False],
    )[1]
    return torch.as_tensor(found).view(count, -1)


@final
class Steps:
    """Clients of one size that take local steps together: ``values`` and ``gradient`` have a row for each.

    A method takes it for a worker.
    """

    def __init__(self, together: Together, worker: Worker, some: list[int]) -> None:
        self.loss, self.model = together.loss, worker.model
        self.layers, self.others = plain_layers(worker.model), list[torch.Tensor]()
        together.clients.prepare_clients(some)
        (run,) = together._runs(some)
        inputs, labels = together.clients.gather(run.examples)
        self.count, self.size = run.clients, run.size
        self.inputs, self.labels = (part.view(self.size, self.count, *part.shape[1:]) for part in (inputs, labels))
        self.values = worker.values.repeat(self.count, 1)
        self.gradient = torch.empty_like(self.values)
        self.seen: list[torch.Tensor] = []

    def gradient_of(self, batch: torch.Tensor) -> None:
        """Write every client's gradient on a batch of its examples, at its own values."""
        who = torch.arange(self.count, device=batch.device)
        inputs, labels = (part[batch.T, who].flatten(0, 1) for part in (self.inputs, self.labels))
        with self._own_weights() as leaves:
            losses = self.loss(self.model, inputs, labels)
        if losses.shape != labels.shape[:1]:
            raise ValueError("loss: must give one number for every example")
        mean = losses.view(-1, self.count).mean(0)
        start = 0
        for found in torch.autograd.grad(mean.sum(), leaves):
            part = found.reshape(self.count, -1)
            self.gradient[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        self.seen.append(mean.detach())

    @contextmanager
    def _own_weights(self) -> Iterator[list[torch.Tensor]]:
        """Let every layer use each client's own weights, which are what gradients are asked for."""
        leaves: list[torch.Tensor] = []
        try:
            for layer, start in self.layers:
                ends = accumulate((p.numel() for p in layer.parameters(recurse=False)), initial=start)
                own = [
                    self.values[:, a:b].view(self.count, *parameter.shape).detach().requires_grad_()
                    for parameter, (a, b) in zip(layer.parameters(recurse=False), pairwise(ends), strict=True)
                ]
                leaves += own
                forward = _dense if isinstance(layer, nn.Linear) else partial(_convolution, layer)
                layer.forward = partial(forward, self.count, *own)
            yield leaves
        finally:
            for layer, _ in self.layers:
                layer.__dict__.pop("forward", None)


def _dense(count: int, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    *bias, x = rest
    rows = _by_client(x, count)
    found = torch.baddbmm(bias[0][:, None], rows, weight.mT) if bias else torch.bmm(rows, weight.mT)
    size = len(x) // count
    return found.view(count, size, -1, found.shape[-1]).transpose(0, 1).reshape(*x.shape[:-1], found.shape[-1])


def _convolution(layer: Any, count: int, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    *bias, x = rest
    found = functional.conv2d(
        x.reshape(len(x) // count, -1, *x.shape[2:]),
        weight.flatten(0, 1),
        bias[0].flatten() if bias else None,
        layer.stride,
        layer.padding,
        layer.dilation,
        count,
    )
    return found.view(len(x), -1, *found.shape[2:])
