# mypy: ignore-errors
# ruff: noqa
"""`Work` with the interface of `ClientUpdates`, until it has a module of its own."""

from collections.abc import Sequence
from typing import Any

import torch

from rqm.core.base import BaseMean
from rqm.data.federated_data import Clients, FederatedData
from rqm.plan.plan import Plan
from rqm.randomness import SecureRandom, SeededRandom
from rqm.training import evaluation
from rqm.training.clock import Clock
from rqm.training.observer import Observer
from rqm.training.quantile import Quantile
from rqm.training.streams import RECORDS
from rqm.training import work as _work
from rqm.training.work import Work, images, losses
from rqm.training.workers import Worker

ALL = slice(None)
FlatModel = Worker
Loss = _work.Loss


def cross_entropy(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def example_losses(model, inputs, labels, loss=cross_entropy):
    return losses(model, inputs, labels) if loss is cross_entropy else loss(model(images(inputs)), labels)


class _Method:
    """The state of a local method."""

    def __init__(self, method: Any) -> None:
        self.method, self.is_client_state = method, method.own

    @property
    def state(self) -> torch.Tensor | None:
        return self.method.state


class ClientUpdates:
    """Computes the vectors that clients send, before they are encoded."""

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
        self.plan, self.model, self.clock, self.is_secure = plan, model, clock, is_secure
        self.work = Work(plan, clients, model, observer, loss, mean)
        if plan.adapt is not None and mean.max_length is not None:
            self.work.quantile = Quantile(plan.adapt, mean.max_length, model.values.device)
        self.method = None if self.work.method is None else _Method(self.work.method)

    @property
    def adaptive_clip(self) -> Any:
        return self.work.quantile

    @property
    def group_size(self) -> int:
        return self.work.group

    @property
    def can_be_distributed(self) -> bool:
        is_stateless = self.method is None or not self.method.is_client_state
        has_common_state = (
            self.work.observer.plants or self.plan.dropout or any(True for _ in self.model.model.buffers())
        )
        return self.work.per_record is None and is_stateless and not has_common_state

    def begin_round(self, round_index: int) -> None:
        self.work.begin(round_index)

    def encode(self, client_ids: Sequence[int], round_index: int, messages: Any, part: slice = ALL) -> torch.Tensor:
        work, clients = self.work, list(client_ids)
        found = torch.zeros(len(clients), device=work.device)
        if work.per_record is not None:
            for position, silo in enumerate(clients):
                messages.add([position], self._records(silo, round_index))
            return found[:0]  # nobody computes them for all records
        if work.workers is not None and not work.observer.plants:
            self._share_out(work.workers, clients, round_index, messages, found, part)
            return found
        for positions in work.groups(clients)[part]:
            with self.clock.timed("gradients"):
                rows, own = work.rows([clients[position] for position in positions], round_index)
            with self.clock.timed("clip, rotate, encode"):
                found[positions] = own.masked_fill(~messages.add(positions, rows), torch.nan)
        return found

    def vector(self, client_id: int, round_index: int) -> tuple[Any, torch.Tensor]:
        if self.work.per_record is not None:
            return self._records(client_id, round_index), self.model.values.new_zeros(0)
        loss = self.work.one(self.work.worker, client_id, round_index)
        return self.work.message(self.work.worker), loss[None]

    def apply(self, mean: torch.Tensor, round_index: int) -> torch.Tensor:
        return self.work.take(mean, round_index)

    def _records(self, silo: int, round_index: int) -> list[Any]:
        source = SecureRandom() if self.is_secure else SeededRandom(self.plan.seed, RECORDS, round_index, silo)
        with self.clock.timed("gradients"):
            return [self.work.records(silo, round_index, source.words)]

    def _share_out(self, workers, chosen, turn, messages, losses, share):
        """Let workers do the clients of a round. Integers may be added up in any order, floats in that of groups."""
        exact, together = messages.is_exact, self.work.together
        sums: dict[Worker, Any] = {}
        groups = ([[place] for place in range(len(chosen))] if together is None else together.groups(chosen))[share]
        for _ in workers.map(
            lambda _, places: self.work.clients.prepare_clients(chosen[place] for place in places), groups
        ):
            pass  # data that are made lazily, before anything is timed

        def add(sum_, places, rows, among=1):
            with self.clock.timed("clip, rotate, encode", among):
                return sum_.add(places, rows)

        def work(worker, places):
            with self.clock.timed("gradients", workers.count):
                rows, own = self._rows(worker, [chosen[place] for place in places], turn)
            losses[places] = own
            if not exact:
                return rows.clone()
            if worker not in sums:
                sums[worker] = messages.fork()
            return add(sums[worker], places, rows, workers.count)

        some = len(groups) if exact else 4 * workers.count  # of floats, few are to be held at once
        for start in range(0, len(groups), some):
            part = groups[start : start + some]
            for places, found in zip(part, workers.map(work, part), strict=True):
                finite = found if exact else add(messages, places, found)
                losses[places] = losses[places].masked_fill(~finite, torch.nan)
        for one in sums.values():
            messages.merge(one)

    def _rows(self, worker, some, turn):
        if len(some) > 1:
            return self.work.many(worker, some, turn)
        loss = self.work.one(worker, some[0], turn)
        return self.work.message(worker), loss[None]


def client_updates_for(*arguments: Any, **options: Any) -> ClientUpdates:
    """The client updates that a private mean needs."""
    return ClientUpdates(*arguments, **options)


def evaluate(updates: ClientUpdates, data: FederatedData) -> tuple[float | None, float | None]:
    return evaluation.evaluate(updates.work, data)
