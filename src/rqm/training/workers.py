"""Many clients at once on the cores of a CPU: a thread for each core, which works alone.

Torch's own threads split up every operation and wait for each other at its end. That is no faster where operations are
small, and on a busy machine, where one of them is kept waiting, many times slower.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, final

import torch
from torch import nn

from rqm._util.threads import usable_cores
from rqm.training.models import flatten

MOST_FLOATS = 2**28
"""Gradients that all workers hold together."""


@final
class Worker:
    """A model, the flat vector of its parameters, a gradient of its own, and ``others`` that are sent with it."""

    def __init__(self, model: nn.Module, values: torch.Tensor | None = None) -> None:
        self.model = model
        self.values, self.gradient = flatten(model, values)
        self.others: list[torch.Tensor] = []


@final
class Workers:
    """Threads that each have a copy of a model: with the same parameters, or if they change them, parameters too."""

    def __init__(self, first: Worker, count: int, *, shared: bool) -> None:
        self.count = count
        self._here = threading.local()
        copies: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(count):
            copies.put(Worker(copy.deepcopy(first.model), first.values if shared else None))

        def begin() -> None:
            torch.set_num_threads(1)
            self._here.worker = copies.get()

        self._pool = ThreadPoolExecutor(count, thread_name_prefix="rqm-client", initializer=begin)

    def map(self, work: Callable[[Worker, Any], Any], things: Iterable[Any]) -> Iterator[Any]:
        """What ``work`` makes of each thing, in their order."""
        return self._pool.map(lambda thing: work(self._here.worker, thing), things)


def workers_for(first: Worker, trial: Callable[[], object], *, shared: bool, least: int = 2) -> Workers | None:
    """As many workers as there are cores and memory; None if the model must see one client after the other.

    That is so if it keeps a state besides its parameters, or if a ``trial`` shows that it draws from torch's generator;
    and where there would be fewer than the ``least`` that are of use.
    """
    count = min(usable_cores(), MOST_FLOATS // (2 * len(first.values)))
    if count < least or any(True for _ in first.model.buffers()):
        return None
    before = torch.get_rng_state()
    trial()
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        return None
    return Workers(first, count, shared=shared)
