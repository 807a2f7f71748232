"""The gradients of many clients at once, for the GPU: one pass over all their examples.

All clients of a round share the model, so everything but the gradients of the weights is one large batch, without
padding to the largest client. The gradients of the weights are formed from what each layer saw: for every chunk of
examples by a matrix product, then summed over the chunks of a client in a fixed order; where Triton is, by its kernel,
which reads what a layer saw in place. On the GPU the whole pass is recorded once for each size and replayed: a round
costs a handful of launches.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from rqm.data.federated_data import Clients

CHUNKS = 8, 32
"""Examples of one client that are multiplied together, at least and at most: the last
chunk of a client is padded."""
RUN = 8
"""Examples of one client for which Triton's kernel sums up the gradients of a convolution in one place."""
SIZE_STEP, CHUNK_STEP = 256, 32
"""A recording serves all rounds whose numbers of examples and of chunks round up to the same multiples."""
MAX_RECORDINGS = 64
EXAMPLES = 10_240
"""Examples that are handled at once, about: half a megabyte each for the paper's model."""
FLOATS = 2**30
"""Gradients that are held at once."""

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def as_plain(
    model: nn.Module, loss: Loss, clients: Clients, chosen: list[int], rows: Callable[[], torch.Tensor]
) -> bool:
    """Whether the rows are the chosen clients' gradients by plain backward passes."""
    training, parameters = model.training, [p for p in model.parameters() if p.requires_grad]
    rough, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False  # or maxima may be elsewhere
    model.eval()  # dropout would differ
    try:
        for row, client in zip(rows(), chosen, strict=True):
            parts = torch.autograd.grad(loss(model, *clients[client]).mean(), parameters, allow_unused=True)
            if any(part is None for part in parts):
                return False
            plain = torch.cat([part.reshape(-1) for part in parts])
            if not (row - plain).norm() <= 1e-3 * plain.norm():
                return False
    finally:
        torch.backends.cudnn.allow_tf32 = rough
        model.train(training)
    return True


@final
class Batched:
    """The gradients of a model whose parameters all belong to dense layers and plain convolutions.

    Whether that suffices for a given model is not taken on trust: see ``agrees``.
    """

    def __init__(self, model: nn.Module, values: torch.Tensor, clients: Clients, loss: Loss) -> None:
        self.model, self.values, self.clients, self.loss = model, values, clients, loss
        self.layers = plain_layers(model)
        mean = max(1.0, float(clients.sizes.mean()))
        self.chunk = int(np.clip(2 ** int(np.log2(mean / 4 + 1)), *CHUNKS))
        self.whole = bool(clients.sizes.min() > 0) and int(clients.sizes.max()) <= CHUNKS[1]
        if self.whole:  # every client is one chunk
            self.chunk = 1 << (int(clients.sizes.max()) - 1).bit_length()
        self.group = max(1, min(int(EXAMPLES / mean), FLOATS // len(values)))
        self.fused = values.is_cuda and values.dtype == torch.float32 and find_spec("triton") is not None
        self.recordings: dict[tuple[int, int, int], Any] = {}
        self.out = values.new_empty((0, len(values)))

    def gradients(self, chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient (a row each, valid until the next call) and the loss of every chosen client."""
        layout = {name: torch.from_numpy(array) for name, array in self._layout(chosen).items()}
        if len(self.out) < len(chosen):
            self.out, self.recordings = self.values.new_empty((len(chosen), len(self.values))), {}
        out = self.out[: len(chosen)]
        if not self.values.is_cuda:
            return out, self._pass(layout, out)
        key = len(chosen), len(layout["index"]), len(layout["first" if self.fused else "slots"])
        if key not in self.recordings:
            if len(self.recordings) >= MAX_RECORDINGS:
                self.recordings.clear()
            self.recordings[key] = self._record({name: part.cuda() for name, part in layout.items()}, out)
        graph, places, losses = self.recordings[key]
        for name, part in layout.items():
            places[name].copy_(part.pin_memory(), non_blocking=True)
        graph.replay()
        return out, losses

    def agrees(self) -> bool:
        """Whether two clients' gradients are those of plain backward passes: the model may mix or share anything."""
        if not self.layers:
            return False
        chosen = np.flatnonzero(self.clients.sizes)[:2].tolist()
        try:
            return as_plain(self.model, self.loss, self.clients, chosen, lambda: self.gradients(chosen)[0])
        finally:
            self.recordings.clear()

    def _layout(self, chosen: list[int]) -> dict[str, Any]:
        """Where everything stands.

        ``index`` and ``weight``: the examples of all clients one after the other, and what each weighs in its client's
        mean; ``sizes``: examples of each client. What comes after the last client only fills the shape and belongs to
        nobody.
        """
        starts, sizes = self.clients.offsets[chosen], self.clients.sizes_of(chosen)
        before = np.cumsum(sizes) - sizes
        owner = np.repeat(np.arange(len(chosen)), sizes)
        index = np.zeros(_round_up(len(owner), SIZE_STEP), dtype=np.int64)
        weight = np.zeros(len(index), dtype=np.float32)
        index[: len(owner)] = starts[owner] + np.arange(len(owner)) - before[owner]
        if self.clients.rows is not None:
            index[: len(owner)] = self.clients.rows[index[: len(owner)]]
        weight[: len(owner)] = 1 / sizes[owner]
        found = {"index": index, "weight": weight, "sizes": sizes}
        return found | (self._runs(before, sizes) if self.fused else self._slots(before, sizes))

    def _runs(self, before: Any, sizes: Any) -> dict[str, Any]:
        """Where Triton's kernel finds the examples of each client, and those of its ``chunks``, at most RUN each."""
        chunks = -(-sizes // RUN)
        owner = np.repeat(np.arange(len(sizes)), chunks)
        place = RUN * (np.arange(len(owner)) - (np.cumsum(chunks) - chunks)[owner])
        first, count = (np.zeros(_round_up(len(owner), 4 * CHUNK_STEP), dtype=np.int32) for _ in range(2))
        first[: len(owner)] = before[owner] + place
        count[: len(owner)] = np.minimum(sizes[owner] - place, RUN)
        whole = {"start": before.astype(np.int32), "number": sizes.astype(np.int32)}
        return {"first": first, "count": count, "chunks": chunks, **whole}

    def _slots(self, before: Any, sizes: Any) -> dict[str, Any]:
        """``slots`` and ``mask``: the same examples in chunks, where the last of a client repeats its first example.

        It has no weight there; ``chunks`` of each client.
        """
        chunks = -(-sizes // self.chunk)
        owner = np.repeat(np.arange(len(sizes)), chunks * self.chunk)
        place = np.arange(len(owner)) - (self.chunk * (np.cumsum(chunks) - chunks))[owner]
        slots = np.zeros(_round_up(len(owner), CHUNK_STEP * self.chunk), dtype=np.int64)
        mask = np.zeros((len(slots), 1), dtype=np.float32)
        real = place < sizes[owner]
        slots[: len(owner)] = before[owner] + np.where(real, place, 0)
        mask[: len(owner), 0] = real
        return {"slots": slots, "mask": mask, "chunks": chunks}

    def _pass(self, at: dict[str, torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """Forward, backward, and the gradients of the weights into ``out``; returns the clients' losses."""
        seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def note(number: int) -> Callable[..., None]:
            return lambda _module, inputs, output: seen.append((number, inputs[0].detach(), output))

        hooks: list[RemovableHandle] = [
            layer.register_forward_hook(note(number)) for number, (layer, _) in enumerate(self.layers)
        ]
        try:
            losses = (
                self.loss(self.model, self.clients.inputs[at["index"]], self.clients.labels[at["index"]]) * at["weight"]
            )
        finally:
            for hook in hooks:
                hook.remove()
        errors = torch.autograd.grad(losses.sum(), [output for _, _, output in seen])
        written: set[int] = set()
        for (number, given, _), error in zip(seen, errors, strict=True):
            layer, start = self.layers[number]
            if self.fused:
                self._fused(layer, given, error, at, out[:, start:], again=number in written)
                written.add(number)
                continue
            parts = _conv(layer, given, error, at) if isinstance(layer, nn.Conv2d) else self._dense(given, error, at)
            for part in parts if layer.bias is not None else parts[:1]:
                place = out[:, start : start + part.shape[1]]
                place.copy_(part) if start not in written else place.add_(part)  # a layer may be used twice
                written.add(start)
                start += part.shape[1]
        return _segments(losses.detach(), at["sizes"])

    def _fused(
        self,
        layer: Any,
        given: torch.Tensor,
        error: torch.Tensor,
        at: dict[str, torch.Tensor],
        out: torch.Tensor,
        *,
        again: bool,
    ) -> None:
        """The same by Triton's kernel; ``again``: the layer was used before, and the gradients are added."""
        from rqm.kernels import cuda_layers  # noqa: PLC0415 (needs Triton)

        place = out[:, : sum(p.numel() for p in layer.parameters())]
        if isinstance(layer, nn.Linear):
            found = torch.empty_like(place) if again else place
            cuda_layers.gradients(layer, given, error, at["start"], at["number"], found)
        else:
            parts = out.new_empty((len(at["first"]), place.shape[1]))
            cuda_layers.gradients(layer, given, error, at["first"], at["count"], parts)
            found = _segments(parts, at["chunks"])
        if again:
            place.add_(found)
        elif found is not place:
            place.copy_(found)

    def _dense(self, given: torch.Tensor, error: torch.Tensor, at: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        given, error = (part.reshape(len(part), -1, part.shape[-1]) for part in (given, error))  # sequences too
        bias = _segments(error.sum(1), at["sizes"])
        count, width = len(at["slots"]) // self.chunk, self.chunk * given.shape[1]
        given = given[at["slots"]].reshape(count, width, -1)
        error = (error[at["slots"]] * at["mask"][:, :, None]).reshape(count, width, -1)
        if self.whole:
            error, given = error[: len(bias)], given[: len(bias)]
        product = torch.bmm(error.transpose(1, 2), given).flatten(1)
        return [product if self.whole else _segments(product, at["chunks"]), bias]

    def _record(self, places: dict[str, torch.Tensor], out: torch.Tensor) -> Any:
        """Record a pass. Torch's switch for convolutions (TF32 unless forbidden) then holds for all products in it."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
        try:
            return self._record_as_set(places, out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _record_as_set(self, places: dict[str, torch.Tensor], out: torch.Tensor) -> Any:
        for _ in range(2):
            self._pass(places, out)  # what is made once, by torch and its libraries, must not be part of the recording
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.recordings.values()))[0].pool() if self.recordings else None
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(graph, pool=pool):
            losses = self._pass(places, out)
        torch._C._cuda_clearCublasWorkspaces()  # or it keeps the recording's memory
        return graph, places, losses


def plain_layers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Every layer with parameters, and where they begin in the flat vector; empty if one is of another kind."""
    found, start = [], 0
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if not own:
            continue
        plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d
            and layer.groups == 1
            and not isinstance(layer.padding, str)
            and layer.padding_mode == "zeros"
            and layer.dilation == (1, 1)
        )
        if not plain or not all(p.requires_grad for p in own):
            return []
        found.append((layer, start))
        start += sum(p.numel() for p in own)
    return found


def _segments(part: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sum the rows of each client, in order: always the same bits."""
    return torch.segment_reduce(part, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def _conv(layer: Any, given: torch.Tensor, error: torch.Tensor, at: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [_segments(part, at["sizes"]) for part in conv_gradients(layer, given, error)]


def conv_gradients(layer: Any, given: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a convolution's weight and bias, a row for every example."""
    (rows, columns), (down, right), (top, left) = layer.kernel_size, layer.stride, layer.padding
    given = functional.pad(given, (left, left, top, top)).unfold(2, rows, down).unfold(3, columns, right)
    patches = given.permute(0, 1, 4, 5, 2, 3).reshape(len(given), -1, given.shape[2] * given.shape[3])
    error = error.flatten(2)
    return torch.bmm(error, patches.transpose(1, 2)).flatten(1), error.sum(2)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
