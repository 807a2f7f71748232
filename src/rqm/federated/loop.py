"""The loop: Algorithm 1 of the paper, round after round, on the CPU or on the GPU."""

import copy
import ctypes
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rqm.channel import Channel
from rqm.federated.batched import Batched
from rqm.federated.clients import FederatedData, IntArray
from rqm.federated.models import MODELS
from rqm.federated.steps import Steps
from rqm.federated.workers import Worker, Workers, workers_for
from rqm.plan.guard import Guard
from rqm.plan.plan import Plan
from rqm.plan.sizes import parameters
from rqm.randomness import SeededRandom

if TYPE_CHECKING:
    from rqm.privacy.guarantee import Guarantee

SAMPLING, NOISE, START, LOCAL, DROPOUT, LOSSES = 0, 1, 2, 3, 4, 6
"""The streams of a run's seed: who takes part, the mechanism, the initial model, the order of local steps,
dropout, who is lost. (5 is the public rotation's.)"""
TEST_BATCH = 2000


@final
@dataclass(frozen=True)
class Record:
    """One round. ``loss`` and ``accuracy`` are the server's, on the test set, where it evaluated.

    ``clients_loss`` is the mean of the clients' own losses. It is known in simulation only and is not released:
    publishing it would leak what no ε accounts for. A round with too few ``survivors`` is ``discarded``: the model
    stays as it was. ``secagg_bytes_up`` are all bytes that clients sent in the true protocol. ``parts`` are the seconds
    of each part of the round; on a GPU, those of launching it. ``epsilon`` is what a user has spent so far, where that
    is known at once.
    """

    round: int
    seconds: float
    bits_up: int
    survivors: int
    clients_loss: float | None
    loss: float | None = None
    accuracy: float | None = None
    discarded: bool | None = None
    secagg_bytes_up: int | None = None
    parts: dict[str, float] | None = None
    epsilon: float | None = None


def validate(plan: Plan, data: FederatedData, model: nn.Module | None = None) -> None:
    """Refuse a plan that cannot be carried out on these data, before anything is made or written."""
    users = len(data.train) if plan.population is None else plan.population
    if plan.clients > users:
        raise ValueError(f"clients = {plan.clients}: must be at most {users}, all that {data.name} has")
    places = (plan.participations or plan.rounds) * users
    if plan.clients * plan.rounds > places:
        raise ValueError(
            f"participations = {plan.participations}: {plan.rounds} rounds of {plan.clients} clients are more than "
            f"the {places} turns that {users} users have"
        )
    if model is None and plan.model not in MODELS:
        raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}")
    if model is None and plan.dropout and plan.model != "paper-cnn":
        raise ValueError(f"dropout = {plan.dropout}: must be 0 for the model {plan.model}")
    pick_device(plan.device)


@final
class Trainer:
    """A run in progress: the model, the optimiser's state and the number of rounds done.

    ``plan`` is the plan with the size of the model, ``mean`` what clients send and what that promises, ``guard``
    charges for every round: only in memory, unless somebody gives it one with a ledger.
    """

    def __init__(self, plan: Plan, data: FederatedData, model: nn.Module | None = None) -> None:
        validate(plan, data, model)
        if plan.population is not None:
            data = replace(data, train=data.train.redrawn(plan.population, plan.examples, plan.seed))
        self.plan, own = plan, model is not None
        self.device = pick_device(plan.device)
        self.data = data.to(self.device) if self.device.type != "cpu" else data
        if self.device.type == "cpu":
            keep_memory()
        if model is None:
            torch.manual_seed(self._number(START))
            model = MODELS[plan.model](data.classes, **({"dropout": plan.dropout} if plan.dropout else {}))
        self.model = copy.deepcopy(model).to(self.device)
        self.worker = Worker(self.model)
        self.values, self.gradient = self.worker.values, self.worker.gradient
        if plan.dim is None and (own or data.name != plan.data or parameters(plan.model, plan.data) is None):
            self.plan = plan = replace(plan, dim=len(self.values))
        self.mean = plan.private_mean()
        if self.mean.dim != len(self.values):
            raise ValueError(f"the model has {len(self.values)} parameters: {self.mean.dim} are accounted for")
        self.mean.length  # or says that there is no room for the L2 clip  # noqa: B018
        self.guard = Guard(self.mean)
        self.batched: Batched | None = None
        if self.device.type == "cuda" and plan.client.work == "gradient":
            batched = Batched(self.model, self.values, self.data.train, losses)
            self.batched = batched if batched.agrees() else None
        self.steps = Steps(plan.server, plan.rounds, self.values)
        self.taken = np.zeros(len(data.train), dtype=np.int64)  # rounds that each user has taken part in
        self.seen: Callable[[int, torch.Tensor], object] = lambda turn, mean: None  # what the server learns
        self.planted: Callable[[int], torch.Tensor | None] | None = None  # what a canary sends, for an audit
        self.parts: defaultdict[str, float] = defaultdict(float)  # seconds of this round
        self.done = 0
        self._counting = Lock()

    @cached_property
    def workers(self) -> Workers | None:
        """Threads that share the work on a CPU, where the model allows it."""
        if self.device.type != "cpu" or self.plan.dropout:
            return None
        some = next(iter(np.flatnonzero(self.data.train.sizes).tolist()), None)
        if some is None:
            return None
        return workers_for(
            self.worker, lambda: losses(self.model, *self.data.train[some]).sum().backward(),  # type: ignore[no-untyped-call]
            shared=self.plan.client.work == "gradient",
        )  # fmt: skip

    @contextmanager
    def _timed(self, part: str, among: int = 1) -> Iterator[None]:
        """Count the seconds of a part of the round, of which ``among`` workers do something at once."""
        start = perf_counter()
        yield
        with self._counting:
            self.parts[part] += (perf_counter() - start) / among

    def skip_to(self, done: int) -> None:
        """Be where a run is after ``done`` rounds, but for the model: who took part follows from the seed."""
        if self.plan.participations is not None:
            for turn in range(self.done, done):
                self._choose(turn)
        self.done = done

    def _choose(self, turn: int) -> list[int]:
        """The clients of a round, without replacement, among those who have not used up their participations."""
        most = self.plan.participations
        if most is None:
            return sampled(self.plan, len(self.taken), turn)
        rng, free = np.random.default_rng([self.plan.seed, SAMPLING, turn]), np.flatnonzero(self.taken < most)
        chosen = free[rng.choice(len(free), self.plan.clients, replace=False)]
        self.taken[chosen] += 1
        return list(chosen.tolist())

    def _survive(self, chosen: list[int], turn: int) -> list[int]:
        """The clients of a round who are still there at its end."""
        if not self.plan.lost:
            return chosen
        gone = np.random.default_rng([self.plan.seed, LOSSES, turn]).random(len(chosen)) < self.plan.lost
        return [client for client, lost in zip(chosen, gone, strict=True) if not lost]

    @property
    def moments(self) -> torch.Tensor:
        """What the server's optimiser remembers."""
        return self.steps.moments

    @property
    def coordinates(self) -> int:
        """Coordinates that a client sends: those of the model, perhaps padded."""
        return self.mean.coordinates

    def _stream(self, *path: int) -> SeededRandom:
        return SeededRandom(self.plan.seed, *path)

    def _number(self, *path: int) -> int:
        """A seed for torch's own generator."""
        return int(self._stream(*path).words(1)[0] >> np.uint64(1))

    @property
    def bits_up(self) -> int:
        """Bits that all clients of a round send before secure aggregation."""
        return self.plan.clients * self.coordinates * self.plan.mechanism.bits

    def step(self) -> Record:
        """Carry out one round."""
        start, turn = perf_counter(), self.done
        self.parts.clear()
        chosen = self._choose(turn)
        staying = self._survive(chosen, turn)
        enough = len(staying) >= (self.plan.survivors or 1)
        total, own, sent = None, torch.empty(0), None
        if self.plan.secagg == "real":
            total, own, sent = self._collect_securely(chosen, staying, turn)
        elif enough:
            total, own = self._collect(staying, turn)
        self.guard.charge(turn)  # before anything is done with the sum, and if nothing is
        if total is not None:
            with self._timed("server"):
                self._move(total, len(staying), turn)
        self.done += 1
        loss = accuracy = None
        if self.done % self.plan.evaluate_every == 0 or self.done == self.plan.rounds:
            with self._timed("evaluation"):
                loss, accuracy = self.evaluate()
        found = own.tolist()  # the only wait for the GPU in a round
        broken = sum(not isfinite(value) for value in found)
        if broken:
            warnings.warn(
                f"round {self.done}: {broken} clients had gradients that are not finite and sent an encoding of zero "
                "(known to them alone, and to this simulation)",
                stacklevel=2,
            )
        seen = [value for value in found if isfinite(value)]
        mean_loss = float(np.mean(seen)) if seen else None
        bits, seconds = self.bits_up * len(staying) // self.plan.clients, perf_counter() - start
        discarded = None if total is not None else True
        parts = {part: round(value, 6) for part, value in self.parts.items()}
        return Record(self.done, seconds, bits, len(staying), mean_loss, loss, accuracy, discarded, sent, parts)

    def _move(self, total: torch.Tensor, count: int, turn: int) -> None:
        """Decode the sum, and step along the mean."""
        mean = self.mean.decode(total, count, round=turn, check=False)
        self.seen(turn, mean)
        self.steps.move(mean.to(self.values), turn)

    # -- the clients --------------------------------------------------------------------------

    def _collect(self, chosen: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the encoded gradients, as a secure aggregator reveals it, and the clients' own losses.

        A loss is NaN where the client's gradient was not finite.
        """
        kind = torch.int32 if isinstance(self.plan.mechanism, Channel) else torch.float64
        total = torch.zeros(self.coordinates, dtype=kind, device=self.device)
        own = torch.empty(len(chosen), device=self.device)
        if self.plan.dropout:
            torch.manual_seed(self._number(DROPOUT, turn))
        if self.workers is not None and self.planted is None:
            self._share_out(self.workers, chosen, turn, total, own)
        else:
            group = 1 if self.batched is None else self.batched.group
            for place in range(0, len(chosen), group):
                part = slice(place, place + group)
                with self._timed("gradients"):
                    gradients, own[part] = self._some(chosen[part], turn)
                own[part].masked_fill_(~self._add(gradients, total, turn, place), torch.nan)
        return self.mean.revealed(total, len(chosen), self._number(NOISE, turn)), own

    def _some(self, clients: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What some clients send, a row each, and their losses."""
        if self.batched is None:
            (client,) = clients
            return self.gradient[None], self._one(self.worker, client, turn)
        gradients, own = self.batched.gradients(clients)
        for row, client in enumerate(clients if self.planted else ()):
            if self.planted and (canary := self.planted(client)) is not None:
                gradients[row] = canary
        return gradients, own

    def _add(self, gradients: torch.Tensor, total: torch.Tensor, turn: int, place: int, among: int = 1) -> torch.Tensor:
        """Encode and add; return which gradients were finite."""
        with self._timed("clip, rotate, encode", among):
            finite: torch.Tensor = self.mean.add(gradients, total, self._stream(NOISE, turn, place), round=turn)
        return finite

    def _share_out(
        self, workers: Workers, chosen: list[int], turn: int, total: torch.Tensor, own: torch.Tensor
    ) -> None:
        """Let workers do the clients of a round. Integers may be added up in any order, floats are in the clients'."""
        exact = not total.is_floating_point()
        sums: dict[Worker, torch.Tensor] = {}
        self.data.train.make(chosen)

        def work(worker: Worker, place: int) -> Any:
            with self._timed("gradients", workers.count):
                own[place] = self._one(worker, chosen[place], turn)
            if not exact:
                return worker.gradient.clone()
            mine = sums.setdefault(worker, torch.zeros_like(total))
            return self._add(worker.gradient[None], mine, turn, place, workers.count)

        some = len(chosen) if exact else 4 * workers.count  # of floats, few are to be held at once
        for start in range(0, len(chosen), some):
            places = range(start, min(start + some, len(chosen)))
            for place, found in zip(places, workers.map(work, places), strict=True):
                finite = found if exact else self._add(found[None], total, turn, place)
                own[place] = own[place] if finite[0] else torch.nan
        for one in sums.values():
            total += one

    def _collect_securely(
        self, chosen: list[int], staying: list[int], turn: int
    ) -> tuple[torch.Tensor | None, torch.Tensor, int | None]:
        """The same sum by the true protocol: no client's levels leave it unmasked. None if too few were left."""
        from rqm.federated.secure import secure_sum  # noqa: PLC0415 (a bare GPU machine has no ciphers)

        own = torch.empty(len(staying), device=self.device)
        places = {client: place for place, client in enumerate(staying)}
        if self.plan.dropout:
            torch.manual_seed(self._number(DROPOUT, turn))

        def levels(number: int) -> IntArray:
            place = places[chosen[number]]
            with self._timed("gradients"):
                own[place] = self._one(self.worker, chosen[number], turn)
            found = torch.zeros(self.coordinates, dtype=torch.int32, device=self.device)
            if not self._add(self.gradient[None], found, turn, place)[0]:
                own[place] = torch.nan
            return np.asarray(found.cpu())

        lost = [number for number, client in enumerate(chosen) if client not in places]
        rng = np.random.default_rng([self.plan.seed, LOSSES, turn, 1])
        result = secure_sum(self.plan, self.coordinates, levels, lost, rng)
        if result is None:
            return None, torch.empty(0), None
        total, sent = result
        return torch.from_numpy(total.astype(np.int32)).to(self.device), own, sent

    def _one(self, worker: Worker, client: int, turn: int) -> torch.Tensor:
        """Write what one client sends into the worker's gradient; return its loss."""
        if self.planted and (canary := self.planted(client)) is not None:
            worker.gradient.copy_(canary)
            return torch.zeros((), device=self.device)
        inputs, labels = self.data.train[client]
        if self.plan.client.work == "gradient":
            worker.gradient.zero_()
            loss = losses(worker.model, inputs, labels).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        return self._local(worker, inputs, labels, np.random.default_rng([self.plan.seed, LOCAL, turn, client]))

    def _local(
        self, worker: Worker, inputs: torch.Tensor, labels: torch.Tensor, rng: np.random.Generator
    ) -> torch.Tensor:
        """Local steps of plain SGD (FedAvg, FedPAQ); what is sent is the change over the rate."""
        work, before = self.plan.client, self.values if worker is not self.worker else self.values.clone()
        worker.values.copy_(before)
        seen: list[torch.Tensor] = []
        for _ in range(work.epochs):
            order = torch.from_numpy(rng.permutation(len(labels))).to(self.device)
            for batch in torch.split(order, work.batch):
                worker.gradient.zero_()
                loss = losses(worker.model, inputs[batch], labels[batch]).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                worker.values.sub_(worker.gradient, alpha=work.rate)
                seen.append(loss.detach())
        torch.sub(before, worker.values, out=worker.gradient).div_(work.rate)
        worker.values.copy_(before)
        return torch.stack(seen).mean()

    # -- the server ---------------------------------------------------------------------------

    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy on the test set."""
        inputs, labels = self.data.test_inputs, self.data.test_labels
        batches = list(zip(torch.split(inputs, TEST_BATCH), torch.split(labels, TEST_BATCH), strict=True))

        @torch.no_grad()  # of this thread
        def test(worker: Worker, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            worker.model.eval()
            scores = worker.model(images(batch[0]))
            loss = functional.cross_entropy(scores, batch[1], reduction="sum")
            hits = (scores.argmax(1) == batch[1]).sum()
            worker.model.train()
            return torch.stack([loss, hits.to(loss)]).double()

        if self.workers is None or self.plan.client.work != "gradient":  # else their parameters are their own
            parts = [test(self.worker, batch) for batch in batches]
        else:
            parts = list(self.workers.map(test, batches))
        loss, accuracy = (torch.stack(parts).sum(dim=0) / len(labels)).tolist()
        return loss, accuracy


def sampled(plan: Plan, users: int, turn: int) -> list[int]:
    """The clients of a round without a cap on participations, in their order."""
    rng = np.random.default_rng([plan.seed, SAMPLING, turn])
    return list(rng.choice(users, plan.clients, replace=False).tolist())


def images(x: torch.Tensor) -> torch.Tensor:
    """Pictures of bytes as floats in [0, 1] with a channel; everything else as it is."""
    return x.float().div_(255).unsqueeze(-3) if x.dtype == torch.uint8 else x


@cache
def keep_memory() -> None:
    """Let this process keep up to 1 GB that it has freed (glibc only).

    Otherwise every large tensor is taken from the system anew, page by page: a third of the time of a round.
    """
    trim_threshold, mmap_threshold, most_arenas = -1, -3, -8  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter in (mmap_threshold, trim_threshold):
        mallopt(parameter, 2**30)
    mallopt(most_arenas, 1)  # those of other threads keep nothing


def losses(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every example."""
    return functional.cross_entropy(model(images(inputs)), labels, reduction="none")


def pick_device(name: str) -> torch.device:
    """The device that a plan names; ``auto`` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device = {name}: must be auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {name}: torch finds no GPU here")
    return device


@final
class Simulation(Iterator[Record]):
    """A run without a command line: iterate for a record a round. The ``model`` is being trained meanwhile.

    Every round is charged to a ``ledger``, in the folder that was given, or in one that lasts as long as this object;
    ``rqm account`` reads it.
    """

    def __init__(
        self, plan: Plan, model: nn.Module | None = None, data: FederatedData | None = None, folder: Path | None = None
    ) -> None:
        if data is None:
            from rqm.datasets import load  # noqa: PLC0415 (some sets need more than torch)

            data = load(plan.data)
        self._trainer = Trainer(plan, data, model)
        if folder is None:
            self._temporary = TemporaryDirectory(prefix="rqm-")
            folder = Path(self._temporary.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.plan, self.mean = folder, self._trainer.plan, self._trainer.mean
        self.guard = Guard(self.mean, folder, plan=self.plan, budget=plan.budget_epsilon)
        if self.guard.spent:
            self.guard.close()
            raise ValueError(f"folder = {folder}: its ledger has charges already; a simulation begins a new one")
        self._trainer.guard = self.guard

    def __next__(self) -> Record:
        done = self._trainer.done
        if done >= self.plan.rounds or not self.guard.allows(done):
            self.guard.close()
            raise StopIteration
        return self._trainer.step()

    @property
    def model(self) -> nn.Module:
        """The model as it is now."""
        return self._trainer.model

    @property
    def ledger(self) -> Path | None:
        """Where the charges are written; None if there is no noise, and so nothing to charge."""
        return None if self.guard.ledger is None else self.guard.ledger.path

    @property
    def guarantee(self) -> "Guarantee":
        """What the rounds that were carried out guarantee to every user."""
        return self.mean.guarantee_of(self.guard.spent)


def simulate(
    plan: Plan,
    model: nn.Module | None = None,
    data: FederatedData | None = None,
    *,
    folder: Path | str | None = None,
    clients: FederatedData | None = None,
) -> Simulation:
    """Train as the plan says, with the plan's model and data or with the given; yields a record a round.

    The ledger is kept in ``folder``. ``clients`` is the old name of ``data``. Randomness is seeded: not private.
    """
    return Simulation(plan, model, clients if data is None else data, None if folder is None else Path(folder))
