"""What clients do: a full local gradient (the paper's Algorithm 1), or local steps."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rqm.core.base import BaseMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.data.federated_data import Clients
from rqm.plan.plan import Plan
from rqm.training.batched import Batched
from rqm.training.methods import METHODS
from rqm.training.models import MODELS
from rqm.training.observer import Observer
from rqm.training.quantile import Quantile
from rqm.training.records import PerRecord, own_words, taken
from rqm.training.streams import DROPOUT, LOCAL, generator, number
from rqm.training.together import Steps, Together
from rqm.training.workers import Worker, Workers, workers_for


def images(x: torch.Tensor) -> torch.Tensor:
    """Pictures of bytes as floats in [0, 1] with a channel; everything else as it is."""
    return x.float().div_(255).unsqueeze(-3) if x.dtype == torch.uint8 else x


def losses(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every example."""
    return functional.cross_entropy(model(images(inputs)), labels, reduction="none")


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From a model's outputs and the labels: one number, or one for every example."""


@final
class Work:
    """The clients' part of a run. ``worker`` holds the model that is trained, ``workers`` have copies.

    A ``loss`` of one's own is given outputs and labels; its mean is what a client minimises.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Clients,
        worker: Worker,
        observer: Observer,
        loss: Loss | None = None,
        mean: BaseMean | None = None,
    ) -> None:
        self.plan, self.clients, self.worker, self.observer, self.own = plan, clients, worker, observer, loss
        self.device = worker.values.device
        self.quantile: Quantile | None = None
        made = METHODS.get(plan.client.work)
        self.method = None if made is None else made(plan, len(clients), worker.values)
        self.batched: Batched | None = None
        self.orders: dict[int, Any] = {}
        self.per_record = self._per_record(mean) if isinstance(mean, PrivateRecordMean) else None
        if self.per_record is not None:
            return
        if self.device.type == "cuda" and plan.client.work == "gradient" and loss is None:
            batched = Batched(worker.model, worker.values, clients, losses)
            self.batched = batched if batched.agrees() else None

    def _per_record(self, mean: PrivateRecordMean) -> PerRecord:
        """How the gradients of records are found: models and losses of ours treat every record alone."""
        if self.observer.plants:
            raise ValueError("records: audits do not plant gradients in silos; must be a plan of users")
        inputs, labels = self.clients[int(self.clients.sizes.argmax())]

        def each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return losses(model, x, y) if self.own is None else self.own(model(images(x)), y)

        alone = self.own is None and self.plan.model in MODELS
        return PerRecord(self.worker.model, each, mean, (inputs, labels), alone=alone)

    def records(self, silo: int, turn: int, coins: Callable[[int], Any]) -> RecordSum:
        """What a silo's records of a round come to: those that are ``taken``, clipped, and summed."""
        assert self.plan.records is not None
        assert self.per_record is not None
        inputs, labels = self.clients[silo]
        own = None
        batches = self.plan.participation.min_separation
        if self.plan.threat_model.neighboring == "add-or-remove-one" and batches > 1:
            if silo not in self.orders:
                self.orders[silo] = own_words(inputs, labels)
            own = self.orders[silo]
        drawn = taken(self.plan.records.sampling_rate, batches, len(labels), turn, coins, own)
        some = torch.from_numpy(np.flatnonzero(drawn)).to(self.device)
        return self.per_record.gather(inputs[some], labels[some], int(coins(1)[0]) >> 1)

    @cached_property
    def workers(self) -> Workers | None:
        """Threads that share the work on a CPU, where the model allows it."""
        if self.device.type != "cpu" or self.plan.dropout or self.per_record is not None:
            return None
        some = next(iter(np.flatnonzero(self.clients.sizes).tolist()), None)
        if some is None:
            return None

        def trial() -> None:
            self.loss(self.worker.model, *self.clients[some]).backward()  # type: ignore[no-untyped-call]

        shared = self.plan.client.work == "gradient"
        return workers_for(self.worker, trial, shared=shared, least=2 if self.together is None else 1)

    @cached_property
    def together(self) -> Together | None:
        """Small clients at once, where that is worth it and the model allows it; on a GPU, those with local steps."""
        if self.batched is not None or (self.device.type != "cpu" and self.plan.client.work == "gradient"):
            return None
        if self.plan.dropout or self.per_record is not None or self.observer.plants:
            return None

        def each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return losses(model, x, y) if self.own is None else self.own(model(images(x)), y)

        found = Together(self.clients, each, len(self.worker.values), local=self.plan.client.work != "gradient")
        return found if found.worth() and found.agrees(self.worker) else None

    def many(self, worker: Worker, some: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What some small clients send, a row each, and their losses."""
        assert self.together is not None
        if self.plan.client.work == "gradient":
            rows, own = self.together.gradients(worker, some)
        else:
            assert self.method is not None
            steps = Steps(self.together, worker, some)
            steps.values.copy_(self.worker.values)  # a worker's own may be another client's
            orders = [self._batches(steps.size, generator(self.plan.seed, LOCAL, turn, client)) for client in some]
            batches = (torch.stack(one) for one in zip(*orders, strict=True))
            rows = torch.cat(self.method.steps(steps, tuple(some), batches, steps.gradient_of), dim=1)
            own = torch.stack(steps.seen).mean(0)
        return rows if self.quantile is None else self.quantile.message(rows), own

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of some examples."""
        if self.own is None:
            return losses(model, inputs, labels).mean()
        return self.own(model(images(inputs)), labels).mean()

    @property
    def group(self) -> int:
        """Clients that are done at once, at most, where none has local steps."""
        return 1 if self.batched is None else self.batched.group

    def groups(self, chosen: list[int]) -> list[list[int]]:
        """The places of all chosen clients in groups that are done at once by ``rows``."""
        if self.device.type == "cuda" and self.together is not None:
            return self.together.groups(chosen)
        places = list(range(len(chosen)))
        return [places[start : start + self.group] for start in range(0, len(chosen), self.group)]

    def begin(self, turn: int) -> None:
        """Begin a round."""
        if self.method is not None:
            self.method.begin()
        if self.plan.dropout:
            torch.manual_seed(number(self.plan.seed, DROPOUT, turn))

    def rows(self, some: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a group of clients send, a row each, and their losses."""
        if self.batched is None and len(some) > 1:
            return self.many(self.worker, some, turn)
        if self.batched is None:
            (client,) = some
            loss = self.one(self.worker, client, turn)
            return self.message(self.worker), loss[None]
        gradients, own = self.batched.gradients(some)
        if self.observer.plants:
            for row, client in enumerate(some):
                planted = self.observer.sends(client, turn)
                if planted is not None:
                    gradients[row] = planted
        return gradients if self.quantile is None else self.quantile.message(gradients), own

    def message(self, worker: Worker) -> torch.Tensor:
        """What the client sends whose vectors a worker holds, as one row."""
        row = torch.cat([worker.gradient, *worker.others])[None] if worker.others else worker.gradient[None]
        return row if self.quantile is None else self.quantile.message(row)

    def take(self, mean: torch.Tensor, turn: int) -> torch.Tensor:
        """What the server steps along, from the mean of what was sent."""
        bound = self.plan.transforms.l2_clip if self.quantile is None else self.quantile.clip  # before it moves
        mean = mean if self.quantile is None else self.quantile.take(mean)
        return mean if self.method is None else self.method.take(mean, turn, bound)

    def one(self, worker: Worker, client: int, turn: int) -> torch.Tensor:
        """Write what one client sends into the worker's gradient; return its loss."""
        planted = self.observer.sends(client, turn) if self.observer.plants else None
        if planted is not None:
            worker.gradient.copy_(planted)
            worker.others = [torch.zeros_like(planted)] if self.plan.client.work == "fedaq" else []
            return torch.zeros((), device=self.device)
        inputs, labels = self.clients[client]
        if self.plan.client.work == "gradient":
            worker.gradient.zero_()
            loss = self.loss(worker.model, inputs, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        return self._local(worker, client, inputs, labels, generator(self.plan.seed, LOCAL, turn, client))

    def _local(
        self, worker: Worker, client: int, inputs: torch.Tensor, labels: torch.Tensor, rng: np.random.Generator
    ) -> torch.Tensor:
        """Local steps; what is sent are changes over the rate."""
        assert self.method is not None
        before = self.worker.values if worker is not self.worker else self.worker.values.clone()
        worker.values.copy_(before)
        seen: list[torch.Tensor] = []

        def gradient(batch: torch.Tensor) -> None:
            worker.gradient.zero_()
            loss = self.loss(worker.model, inputs[batch], labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            seen.append(loss.detach())

        sent, *others = self.method.steps(worker, client, self._batches(len(labels), rng), gradient)
        worker.gradient.copy_(sent)
        worker.others = others
        worker.values.copy_(before)
        return torch.stack(seen).mean()

    def _batches(self, count: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """The examples of a client's steps: all of them for so many epochs, or so many batches."""
        work, left = self.plan.client, self.plan.client.steps
        for _ in range(work.epochs if left is None else left):
            for batch in torch.split(torch.from_numpy(rng.permutation(count)).to(self.device), work.batch):
                if left == 0:
                    return
                yield batch
                left = None if left is None else left - 1
