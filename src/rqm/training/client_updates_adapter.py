# mypy: ignore-errors
# ruff: noqa
"""`Work` with the interface of client updates, until they have a module of their own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rqm.core.base import BaseMean
from rqm.data.federated_data import FederatedData
from rqm.plan.plan import Plan
from rqm.randomness import SecureRandom, SeededRandom
from rqm.training.evaluation import evaluate
from rqm.training.observer import Observer
from rqm.training.quantile import Quantile
from rqm.training.secure_sum import MessageSum
from rqm.training.streams import RECORDS
from rqm.training import work as _work
from rqm.training.work import Work, images, losses
from rqm.training.workers import Worker, Workers

ALL = slice(None)
Loss = _work.Loss


def cross_entropy(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def example_losses(model, inputs, labels, loss=cross_entropy):
    return losses(model, inputs, labels) if loss is cross_entropy else loss(model(images(inputs)), labels)


class ClientUpdates:
    """Computes the vectors that clients send, before they are encoded."""

    def __init__(self, mean, plan, data, model, observer, loss, *, is_secure):
        worker = Worker(model)
        self.plan, self.is_secure, self.values = plan, is_secure, worker.values
        self.work = Work(plan, data.train, worker, observer, loss, mean)
        if plan.adapt is not None and mean.max_length is not None:
            self.work.quantile = Quantile(plan.adapt, mean.max_length, worker.values.device)
        self.survivors = 0

    @property
    def clients_at_once(self) -> int:
        return self.work.group

    @property
    def server_state(self) -> dict[str, torch.Tensor]:
        """What the server remembers besides the model and its moments, by the name in checkpoints."""
        work, state = self.work, {}
        if work.quantile is not None:
            state["clip"] = work.quantile.state
        if work.method is not None and not work.method.own and work.method.state is not None:
            state["state"] = work.method.state
        return state

    @property
    def client_state(self) -> torch.Tensor | None:
        """What clients remember, a row each."""
        return self.work.method.state if self.work.method is not None and self.work.method.own else None

    def begin_round(self, round_index: int) -> None:
        self.survivors = 0
        self.work.begin(round_index)

    def encode(
        self, client_ids: Sequence[int], round_index: int, messages: MessageSum, part: slice = ALL
    ) -> torch.Tensor:
        work, clients = self.work, list(client_ids)
        self.survivors = len(clients)
        losses = torch.zeros(len(clients), device=work.device)
        if work.per_record is not None:
            for position, silo in enumerate(clients):
                messages.add([position], self._records(silo, round_index))
            return losses[:0]  # nobody computes them for all records
        if work.workers is not None and not work.observer.plants:
            self._share_out(work.workers, clients, round_index, messages, losses, part)
            return losses
        for positions in work.groups(clients)[part]:
            rows, own = work.rows([clients[position] for position in positions], round_index)
            losses[positions] = own.masked_fill(~messages.add(positions, rows), torch.nan)
        return losses

    def vector(self, client_id: int, round_index: int) -> tuple[Any, torch.Tensor]:
        self.survivors += 1
        if self.work.per_record is not None:
            return self._records(client_id, round_index), self.values.new_zeros(0)
        loss = self.work.one(self.work.worker, client_id, round_index)
        return self.work.message(self.work.worker), loss[None]

    def apply(self, mean: torch.Tensor, round_index: int) -> torch.Tensor:
        if self.plan.records is not None:  # the sum over all records, over a public number of them
            mean = mean * (self.survivors / self.plan.records.batch)
        return self.work.take(mean, round_index)

    def evaluate(self, data: FederatedData) -> tuple[float | None, float | None]:
        return evaluate(self.work, data)

    def _records(self, silo: int, round_index: int) -> list[Any]:
        source = SecureRandom() if self.is_secure else SeededRandom(self.plan.seed, RECORDS, round_index, silo)
        return [self.work.records(silo, round_index, source.words)]

    def _share_out(
        self,
        workers: Workers,
        chosen: list[int],
        turn: int,
        messages: MessageSum,
        losses: torch.Tensor,
        share: slice,
    ) -> None:
        """Let workers do the clients of a round. Integers may be added up in any order, floats are in that of groups."""
        exact, together = messages.is_exact, self.work.together
        sums: dict[Worker, MessageSum] = {}
        groups = ([[place] for place in range(len(chosen))] if together is None else together.groups(chosen))[share]
        for _ in workers.map(
            lambda _, places: self.work.clients.prepare_clients(chosen[place] for place in places), groups
        ):
            pass  # data that are made lazily, before anything is timed

        def work(worker: Worker, places: list[int]) -> Any:
            rows, own = self._rows(worker, [chosen[place] for place in places], turn)
            losses[places] = own
            if not exact:
                return rows.clone()
            if worker not in sums:
                sums[worker] = messages.fork()
            return sums[worker].add(places, rows)

        some = len(groups) if exact else 4 * workers.count  # of floats, few are to be held at once
        for start in range(0, len(groups), some):
            part = groups[start : start + some]
            for places, found in zip(part, workers.map(work, part), strict=True):
                finite = found if exact else messages.add(places, found)
                losses[places] = losses[places].masked_fill(~finite, torch.nan)
        for one in sums.values():
            messages.merge(one)

    def _rows(self, worker: Worker, some: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        if len(some) > 1:
            return self.work.many(worker, some, turn)
        loss = self.work.one(worker, some[0], turn)
        return self.work.message(worker), loss[None]


def client_updates_for(
    mean: BaseMean,
    plan: Plan,
    data: FederatedData,
    model: nn.Module,
    *,
    observer: Observer,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    is_secure: bool,
) -> ClientUpdates:
    """The client updates of a run."""
    return ClientUpdates(mean, plan, data, model, observer, loss, is_secure=is_secure)
