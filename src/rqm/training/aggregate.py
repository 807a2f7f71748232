"""The sum of a round's messages: as an ideal aggregator would reveal it, or by the true protocol."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from rqm.encoding.private_mean import PrivateMean
from rqm.plan.plan import Plan, SecAgg
from rqm.plan.protocol import protocol
from rqm.randomness import SeededRandom
from rqm.training.clock import Clock
from rqm.training.streams import LOSSES, NOISE, generator, number
from rqm.training.work import Work
from rqm.training.workers import Worker, Workers


@final
@dataclass(frozen=True)
class Collected:
    """The ``total`` of all messages, as it is revealed; and of the simulation alone, not released: clients' ``losses``.

    A loss is NaN where the client's gradient was not finite. ``bytes_up`` are what clients sent in the true protocol.
    """

    total: torch.Tensor
    losses: torch.Tensor
    bytes_up: int | None = None


class Aggregator(ABC):
    """Lets clients work, encodes what they send, and reveals nothing but the sum."""

    def __init__(self, plan: Plan, mean: PrivateMean, work: Work, clock: Clock) -> None:
        self.plan, self.mean, self.work, self.clock = plan, mean, work, clock
        self.memory = mean.memory(lambda turn: number(plan.seed, NOISE, turn))

    @abstractmethod
    def collect(self, chosen: list[int], staying: list[int], turn: int) -> Collected | None:
        """The sum over those of the ``chosen`` who are ``staying``; None if they are too few."""

    def _nothing(self) -> torch.Tensor:
        kind = torch.int32 if self.mean.integers else torch.float64
        return torch.zeros(self.mean.coordinates, dtype=kind, device=self.work.device)

    def _add(self, rows: torch.Tensor, total: torch.Tensor, turn: int, place: int, among: int = 1) -> torch.Tensor:
        """Encode and add; return which rows were finite."""
        with self.clock.timed("clip, rotate, encode", among):
            source = SeededRandom(self.plan.seed, NOISE, turn, place)
            finite: torch.Tensor = self.mean.add(rows, total, source, round=turn)
        return finite


@final
class Ideal(Aggregator):
    """Adds up in the clear, and forgets the parts."""

    def collect(self, chosen: list[int], staying: list[int], turn: int) -> Collected | None:
        """The sum of the encoded gradients, as a secure aggregator reveals it."""
        if len(staying) < (self.plan.survivors or 1):
            return None
        total, losses = self._nothing(), torch.empty(len(staying), device=self.work.device)
        self.work.begin(turn)
        if self.work.workers is not None and not self.work.observer.plants:
            self._share_out(self.work.workers, staying, turn, total, losses)
        else:
            for place in range(0, len(staying), self.work.group):
                part = slice(place, place + self.work.group)
                with self.clock.timed("gradients"):
                    rows, losses[part] = self.work.rows(staying[part], turn)
                losses[part].masked_fill_(~self._add(rows, total, turn, place), torch.nan)
        seed = number(self.plan.seed, NOISE, turn)
        return Collected(self.mean.revealed(total, len(staying), seed, self.memory, round=turn), losses)

    def _share_out(
        self, workers: Workers, chosen: list[int], turn: int, total: torch.Tensor, losses: torch.Tensor
    ) -> None:
        """Let workers do the clients of a round. Integers may be added up in any order, floats are in the clients'."""
        exact = self.mean.integers
        sums: dict[Worker, torch.Tensor] = {}
        self.work.clients.make(chosen)

        def work(worker: Worker, place: int) -> Any:
            with self.clock.timed("gradients", workers.count):
                losses[place] = self.work.one(worker, chosen[place], turn)
            if not exact:
                return worker.gradient.clone()
            mine = sums.setdefault(worker, torch.zeros_like(total))
            return self._add(worker.gradient[None], mine, turn, place, workers.count)

        some = len(chosen) if exact else 4 * workers.count  # of floats, few are to be held at once
        for start in range(0, len(chosen), some):
            places = range(start, min(start + some, len(chosen)))
            for place, found in zip(places, workers.map(work, places), strict=True):
                finite = found if exact else self._add(found[None], total, turn, place)
                losses[place] = losses[place] if finite[0] else torch.nan
        for one in sums.values():
            total += one


@final
class Secure(Aggregator):
    """The true protocol, all parties in this process: no client's levels leave it unmasked."""

    def collect(self, chosen: list[int], staying: list[int], turn: int) -> Collected | None:
        """The same sum. Clients who are lost fall silent before they send their masked vector, at some stage."""
        from rqm.secagg import Aborted, new_round  # noqa: PLC0415 (a bare GPU machine has no ciphers)
        from rqm.secagg.local import aggregate  # noqa: PLC0415
        from rqm.secagg.wire import STAGES  # noqa: PLC0415

        losses = torch.empty(len(staying), device=self.work.device)
        places = {client: place for place, client in enumerate(staying)}
        self.work.begin(turn)

        def levels(party: int) -> Any:
            place, found = places[chosen[party]], self._nothing()
            with self.clock.timed("gradients"):
                losses[place] = self.work.one(self.work.worker, chosen[party], turn)
            if not self._add(self.work.worker.gradient[None], found, turn, place)[0]:
                losses[place] = torch.nan
            return np.asarray(found.cpu())

        lost = [party for party, client in enumerate(chosen) if client not in places]
        stages = generator(self.plan.seed, LOSSES, turn, 1).integers(0, 3, size=len(lost))
        silent = {party: STAGES[stage] for party, stage in zip(lost, stages, strict=True)}
        try:
            params = protocol(self.plan, self.mean.coordinates, new_round())
            total, survivors, cost = aggregate(params, levels, silent)
        except Aborted:
            return None
        assert survivors == [party for party in range(self.plan.clients) if party not in silent]
        return Collected(torch.from_numpy(total.astype(np.int32)).to(self.work.device), losses, cost.bytes_up)


AGGREGATORS: dict[SecAgg, type[Aggregator]] = {"ideal": Ideal, "real": Secure}
"""By their name in a plan."""
