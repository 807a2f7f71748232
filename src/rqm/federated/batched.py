"""The gradients of many clients at once, for the GPU: one pass over all their examples.

All clients of a round share the model, so everything but the gradients of the weights is one large batch, without
padding to the largest client. The gradients of the weights are formed from what each layer saw: for every chunk of
examples by a matrix product, then summed over the chunks of a client in a fixed order. On the GPU the whole pass is
recorded once for each size and replayed: a round costs a handful of launches.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from rqm.federated.clients import Clients

CHUNKS = 8, 32
"""Examples of one client that are multiplied together, at least and at most: clients are padded to a multiple."""
SIZE_STEP = 512
"""A recording serves all rounds whose number of examples is the same after rounding up to a multiple of this."""
MAX_RECORDINGS = 64
EXAMPLES = 10_240
"""Examples that are handled at once, about: half a megabyte each for the paper's model."""
FLOATS = 2**30
"""Gradients that are held at once."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@final
class Batched:
    """The gradients of a model whose parameters all belong to dense layers and plain convolutions.

    Whether that suffices for a given model is not taken on trust: see ``agrees``.
    """

    def __init__(self, model: nn.Module, values: torch.Tensor, clients: Clients, loss: Loss) -> None:
        self.model, self.values, self.clients, self.loss = model, values, clients, loss
        self.layers = _layers(model)
        mean = max(1.0, float(clients.sizes.mean()))
        self.chunk = int(np.clip(2 ** int(np.log2(mean / 4 + 1)), *CHUNKS))
        self.group = max(1, min(int(EXAMPLES / mean), FLOATS // len(values)))
        self.recordings: dict[tuple[int, int], Any] = {}
        self.out = values.new_empty((0, len(values)))

    def gradients(self, chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient (a row each, valid until the next call) and the loss of every chosen client."""
        index, weight, lengths = self._layout(chosen)
        if len(self.out) < len(chosen):
            self.out, self.recordings = self.values.new_empty((len(chosen), len(self.values))), {}
        out = self.out[: len(chosen)]
        inputs = [torch.from_numpy(array) for array in (index, weight, lengths)]
        if not self.values.is_cuda:
            return out, self._pass(inputs, out)
        key = len(chosen), len(index)
        if key not in self.recordings:
            if len(self.recordings) >= MAX_RECORDINGS:
                self.recordings.clear()
            self.recordings[key] = self._record([part.to(self.values.device) for part in inputs], out)
        graph, places, losses = self.recordings[key]
        for place, part in zip(places, inputs, strict=True):
            place.copy_(part.pin_memory(), non_blocking=True)
        graph.replay()
        return out, losses

    def agrees(self) -> bool:
        """Whether two clients' gradients are those of plain backward passes: the model may mix or share anything."""
        if not self.layers:
            return False
        chosen = np.flatnonzero(self.clients.sizes)[:2].tolist()
        training, parameters = self.model.training, [p for p in self.model.parameters() if p.requires_grad]
        self.model.eval()  # dropout would differ
        try:
            batched, _ = self.gradients(chosen)
            for row, client in zip(batched, chosen, strict=True):
                parts = torch.autograd.grad(self.loss(*self.clients[client]).mean(), parameters, allow_unused=True)
                if any(part is None for part in parts):
                    return False
                plain = torch.cat([part.reshape(-1) for part in parts])
                if not (row - plain).norm() <= 1e-2 * plain.norm():
                    return False
        finally:
            self.model.train(training)
            self.recordings.clear()
        return True

    def _layout(self, chosen: list[int]) -> tuple[Any, Any, Any]:
        """Which examples stand where, what each weighs in its client's mean, and the chunks of each client."""
        starts, sizes = self.clients.offsets[chosen], self.clients.sizes[chosen]
        lengths = -(-sizes // self.chunk)
        chunks = int(lengths.sum())
        slots = -(-chunks * self.chunk // SIZE_STEP) * SIZE_STEP
        place = np.arange(chunks * self.chunk) - self.chunk * np.repeat(
            np.cumsum(lengths) - lengths, lengths * self.chunk
        )
        owner = np.repeat(np.arange(len(chosen)), lengths * self.chunk)
        index, weight = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.float32)
        real = place < sizes[owner]
        index[: len(place)] = starts[owner] + np.where(real, place, 0)  # padding repeats the client's first example
        weight[: len(place)] = real / sizes[owner]
        return index, weight, lengths

    def _pass(self, places: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """Forward, backward, and the gradients of the weights into ``out``; returns the clients' losses."""
        index, weight, lengths = places
        seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def note(number: int) -> Callable[..., None]:
            return lambda _module, inputs, output: seen.append((number, inputs[0].detach(), output))

        hooks: list[RemovableHandle] = [
            layer.register_forward_hook(note(number)) for number, (layer, _) in enumerate(self.layers)
        ]
        try:
            losses = self.loss(self.clients.inputs[index], self.clients.labels[index]) * weight
        finally:
            for hook in hooks:
                hook.remove()
        errors = torch.autograd.grad(losses.sum(), [output for _, _, output in seen])
        written: set[int] = set()
        for (number, given, _), error in zip(seen, errors, strict=True):
            layer, start = self.layers[number]
            make = _conv if isinstance(layer, nn.Conv2d) else _dense
            for part in make(layer, given, error, self.chunk):
                place = out[:, start : start + part.shape[1]]
                total = _segments(part, lengths)
                place.copy_(total) if start not in written else place.add_(total)  # a layer may be used twice
                written.add(start)
                start += part.shape[1]
        return _segments(losses.detach().view(-1, self.chunk).sum(1), lengths)

    def _record(self, places: list[torch.Tensor], out: torch.Tensor) -> Any:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._pass(places, out)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.recordings.values()))[0].pool() if self.recordings else None
        with torch.cuda.graph(graph, pool=pool):
            losses = self._pass(places, out)
        return graph, places, losses


def _layers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Every layer with parameters, and where they begin in the flat vector; empty if one is of another kind."""
    found, start = [], 0
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if not own:
            continue
        plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d and layer.groups == 1 and not isinstance(layer.padding, str)
            and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
        )  # fmt: skip
        if not plain or not all(p.requires_grad for p in own):
            return []
        found.append((layer, start))
        start += sum(p.numel() for p in own)
    return found


def _segments(part: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sum the rows of each client, in order: always the same bits."""
    return torch.segment_reduce(part, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def _dense(layer: Any, given: torch.Tensor, error: torch.Tensor, chunk: int) -> list[torch.Tensor]:
    given, error = (part.reshape(len(part) // chunk, -1, part.shape[-1]) for part in (given, error))
    weight = torch.bmm(error.transpose(1, 2), given).flatten(1)
    return [weight] if layer.bias is None else [weight, error.sum(1)]


def _conv(layer: Any, given: torch.Tensor, error: torch.Tensor, chunk: int) -> list[torch.Tensor]:
    (rows, columns), (down, right), (top, left) = layer.kernel_size, layer.stride, layer.padding
    given = functional.pad(given, (left, left, top, top)).unfold(2, rows, down).unfold(3, columns, right)
    patches = given.permute(0, 1, 4, 5, 2, 3).reshape(len(given), -1, given.shape[2] * given.shape[3])
    error = error.flatten(2)
    weight = torch.bmm(error, patches.transpose(1, 2)).flatten(1)
    parts = [weight] if layer.bias is None else [weight, error.sum(2)]
    return [part.view(-1, chunk, part.shape[1]).sum(1) for part in parts]
