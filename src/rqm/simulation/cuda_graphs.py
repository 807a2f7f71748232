"""The gradients of many clients at once on a GPU: one recorded pass over all their examples.

All clients of a round share the model, so everything but the gradients of the weights is one large batch, without
padding to the largest client. A Triton kernel adds up the gradients of the weights over the examples of each client, in
a fixed order. The whole pass is recorded as a CUDA graph once for each size and replayed, so a round takes a handful of
launches.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from rqm.data.federated_data import Clients, IntArray, Tensors
from rqm.simulation.layer_gradients import GROUP_LIMITS, ExampleLosses, record_layers
from rqm.simulation.models import FlatModel

Layout = dict[str, Tensor]
"""Where the examples of each client are; see `CudaGradients.layout`."""


class CapturedGraph(NamedTuple):
    """A recorded pass, the layout that it reads, and the losses that it writes."""

    graph: Any
    layout: Layout
    losses: Tensor


@final
class CudaGradients:
    """Groups of clients on a GPU, whose gradients are computed by replaying CUDA graphs.

    All parameters of the model must belong to dense layers and plain convolutions.

    Args:
        model: The model that is trained, with parameters in float32.
        clients: The clients' examples, on the GPU.
        losses: Gives the loss of each example.
    """

    def __init__(self, model: FlatModel, clients: Clients, losses: ExampleLosses) -> None:
        self.model, self.clients, self.losses = model, clients, losses
        max_examples, max_floats = GROUP_LIMITS["cuda"]
        mean_size = max(1.0, float(clients.sizes.mean()))
        self.max_clients = max(1, min(int(max_examples / mean_size), max_floats // len(model.values)))
        self.recordings: dict[tuple[int, int, int], CapturedGraph] = {}
        self.rows = model.values.new_empty((0, len(model.values)))

    def split(self, client_ids: Sequence[int]) -> list[list[int]]:
        """The positions of all clients, in the groups that are computed in one pass."""
        positions = list(range(len(client_ids)))
        return [positions[start : start + self.max_clients] for start in range(0, len(positions), self.max_clients)]

    def gradients(self, model: FlatModel, client_ids: Sequence[int]) -> Tensors:
        """Compute the gradients of a group.

        Args:
            model: The model.
            client_ids: The clients of the group.

        Returns:
            The gradient of each client's mean loss, one row each, which are valid until the next call; and the losses.
        """
        layout, count = self.layout(client_ids), len(client_ids)
        if len(self.rows) < count:
            self.rows, self.recordings = model.values.new_empty((count, len(model.values))), {}
        key = count, len(layout["examples"]), len(layout["first"])
        if key not in self.recordings:
            if len(self.recordings) >= 64:  # each holds the memory of its inputs
                self.recordings.clear()
            self.recordings[key] = self._record({name: tensor.cuda() for name, tensor in layout.items()}, count)
        recording = self.recordings[key]
        for name, tensor in layout.items():
            recording.layout[name].copy_(tensor.pin_memory(), non_blocking=True)
        recording.graph.replay()
        return self.rows[:count], recording.losses

    def layout(self, client_ids: Sequence[int]) -> Layout:
        """Where the examples of each client are.

        Returns:
            `examples` and `weights`: all examples, one client after another, and the weight of each in its client's
            mean; those at the end only fill the shape. `start` and `size`: the first example of each client, and how
            many it has. `first` and `count`: the same for each run of examples, `runs`: how many each client has.
        """
        run_length = 8  # examples over which the kernel adds up the gradients of a convolution in one place, at most
        sizes = self.clients.sizes_of(client_ids)
        begin, total = np.cumsum(sizes) - sizes, int(sizes.sum())
        client, offset = _enumerate(sizes)
        indices = self.clients.offsets[client_ids][client] + offset
        examples = np.zeros(_round_up(total, 256), dtype=np.int64)
        examples[:total] = indices if self.clients.rows is None else self.clients.rows[indices]
        weights = np.zeros(len(examples), dtype=np.float32)
        weights[:total] = 1 / sizes[client]
        runs = -(-sizes // run_length)
        client, run = _enumerate(runs)
        offset = run_length * run
        first, count = np.zeros((2, _round_up(len(run), 128)), dtype=np.int32)
        first[: len(run)] = begin[client] + offset
        count[: len(run)] = np.minimum(sizes[client] - offset, run_length)
        layout = {"examples": examples, "weights": weights, "first": first, "count": count, "runs": runs}
        layout |= {"start": begin.astype(np.int32), "size": sizes.astype(np.int32), "sizes": sizes}
        return {name: torch.from_numpy(array) for name, array in layout.items()}

    def compute(self, layout: Layout, rows: Tensor) -> Tensor:
        """Run forward and backward once, as it is recorded.

        Args:
            layout: Where the examples are, on the device of the model.
            rows: Receives the gradient of each client.

        Returns:
            The clients' mean losses.
        """
        from rqm.kernels import cuda_layers  # noqa: PLC0415 (needs Triton)

        inputs, labels = (tensor[layout["examples"]] for tensor in (self.clients.inputs, self.clients.labels))
        losses, uses = record_layers(self.model.model, self.losses, inputs, labels, layout["weights"])
        for use in uses:
            target = rows[:, use.columns]
            sums = torch.empty_like(target) if use.is_repeated else target
            layer_use = use.layer, use.inputs, use.errors
            if isinstance(use.layer, nn.Linear):
                cuda_layers.gradients(*layer_use, layout["start"], layout["size"], sums)
            else:
                run_sums = rows.new_empty((len(layout["first"]), target.shape[1]))
                cuda_layers.gradients(*layer_use, layout["first"], layout["count"], run_sums)
                sums = _sum_segments(run_sums, layout["runs"])
            if use.is_repeated:
                target += sums
            elif sums is not target:
                target.copy_(sums)
        return _sum_segments(losses, layout["sizes"])

    def _record(self, layout: Layout, count: int) -> CapturedGraph:
        """Record a pass. Torch's switch for convolutions (TF32 unless forbidden) then holds for all products in it."""
        rows, switch = self.rows[:count], torch.backends.cuda.matmul
        allows_tf32, switch.allow_tf32 = switch.allow_tf32, torch.backends.cudnn.allow_tf32
        try:
            for _ in range(2):
                self.compute(layout, rows)  # what torch and its libraries create once must not be recorded
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self.recordings.values())).graph.pool() if self.recordings else None
            torch._C._cuda_clearCublasWorkspaces()
            with torch.cuda.graph(graph, pool=pool):
                losses = self.compute(layout, rows)
            torch._C._cuda_clearCublasWorkspaces()  # or it keeps the recording's memory
        finally:
            switch.allow_tf32 = allows_tf32
        return CapturedGraph(graph, layout, losses)


def has_kernel(values: Tensor) -> bool:
    """Whether the Triton kernel can compute the gradients of a model with such parameters."""
    return values.is_cuda and values.dtype == torch.float32 and find_spec("triton") is not None


def _sum_segments(values: Tensor, lengths: Tensor) -> Tensor:
    """Add up the rows of each client, in a fixed order: always the same bits."""
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def _enumerate(counts: IntArray) -> tuple[IntArray, IntArray]:
    """For all items of some clients, one client after another: the client, and the item's number in it."""
    client = np.repeat(np.arange(len(counts)), counts)
    return client, np.arange(len(client)) - (np.cumsum(counts) - counts)[client]


def _round_up(count: int, step: int) -> int:
    """The next multiple of a step. A recording serves all rounds whose counts round up to the same multiples."""
    return -(-count // step) * step
