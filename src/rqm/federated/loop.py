"""The loop: Algorithm 1 of the paper, round after round, on the CPU or on the GPU."""

import copy
import ctypes
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from time import perf_counter
from typing import final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rqm.channel import Channel
from rqm.federated.batched import Batched
from rqm.federated.clients import FederatedData, IntArray
from rqm.federated.models import MODELS, flatten
from rqm.federated.plan import Plan
from rqm.federated.steps import Steps
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.randomness import SeededRandom
from rqm.transforms import Rotation, l2_clip, over_budget, silence

SAMPLING, NOISE, START, LOCAL, DROPOUT, ROTATION, LOSSES = range(7)
"""The streams of a run's seed: who takes part, the mechanism, the initial model, the order of local steps,
dropout, the public rotation, who is lost."""
TEST_BATCH = 2000


@final
@dataclass(frozen=True)
class Record:
    """One round. ``loss`` and ``accuracy`` are the server's, on the test set, where it evaluated.

    ``clients_loss`` is the mean of the clients' own losses. It is known in simulation only and is not released:
    publishing it would leak what no ε accounts for. A round with too few ``survivors`` is ``discarded``: the model
    stays as it was. ``secagg_bytes_up`` are all bytes that clients sent in the true protocol. ``parts`` are the seconds
    of each part of the round; on a GPU, those of launching it.
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


@final
class Trainer:
    """A run in progress: the model, the optimiser's state and the number of rounds done."""

    def __init__(self, plan: Plan, data: FederatedData, model: nn.Module | None = None) -> None:
        if plan.population is not None:
            data = replace(data, train=data.train.redrawn(plan.population, plan.examples, plan.seed))
        if plan.clients > len(data.train):
            raise ValueError(f"clients = {plan.clients}: must be at most {len(data.train)}, all that {data.name} has")
        places = (plan.participations or plan.rounds) * len(data.train)
        if plan.clients * plan.rounds > places:
            raise ValueError(
                f"participations = {plan.participations}: {plan.rounds} rounds of {plan.clients} clients are more than "
                f"the {places} turns that {len(data.train)} users have"
            )
        self.plan = plan
        self.device = pick_device(plan.device)
        self.data = data.to(self.device) if self.device.type != "cpu" else data
        if self.device.type == "cpu":
            keep_memory()
        if model is None:
            if plan.model not in MODELS:
                raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}")
            if plan.dropout and plan.model != "paper-cnn":
                raise ValueError(f"dropout = {plan.dropout}: must be 0 for the model {plan.model}")
            torch.manual_seed(self._number(START))
            model = MODELS[plan.model](data.classes, **({"dropout": plan.dropout} if plan.dropout else {}))
        self.model = copy.deepcopy(model).to(self.device)
        self.values, self.gradient = flatten(self.model)
        self.batched: Batched | None = None
        if self.device.type == "cuda" and plan.client.work == "gradient":
            batched = Batched(self.model, self.values, self.data.train, losses)
            self.batched = batched if batched.agrees() else None
        self.steps = Steps(plan.server, plan.rounds, self.values)
        self.taken = np.zeros(len(data.train), dtype=np.int64)  # rounds that each user has taken part in
        self.charge: Callable[[int], object] = lambda turn: None
        self.seen: Callable[[int, torch.Tensor], object] = lambda turn, mean: None  # what the server learns
        self.planted: Callable[[int], torch.Tensor | None] = lambda client: None  # what a canary sends, for an audit
        self.parts: defaultdict[str, float] = defaultdict(float)  # seconds of this round
        self.done = 0

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.parts[part] += perf_counter() - start

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

    def _rotation(self, turn: int) -> Rotation | None:
        """The public rotation of a round."""
        return Rotation(len(self.values), self._number(ROTATION, turn)) if self.plan.transforms.rotate else None

    @property
    def moments(self) -> torch.Tensor:
        """What the server's optimiser remembers."""
        return self.steps.moments

    @property
    def coordinates(self) -> int:
        """Coordinates that a client sends: those of the model, perhaps padded."""
        return self.plan.transforms.sent(len(self.values))

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
        self.charge(turn)  # before anything is done with the sum, and if nothing is
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
        """Decode the sum, undo the rotation, and step."""
        mean = self.plan.mechanism.decode(total, count, check=False)
        rotation = self._rotation(turn)
        if rotation is not None:
            mean = rotation.inverse(mean.to(self.values)[None])[0]
        self.seen(turn, mean)
        self.steps.move(mean.to(self.values), turn)

    # -- the clients --------------------------------------------------------------------------

    def _collect(self, chosen: list[int], turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the encoded gradients, as a secure aggregator reveals it, and the clients' own losses.

        A loss is NaN where the client's gradient was not finite.
        """
        mechanism, count = self.plan.mechanism, len(chosen)
        kind = torch.int32 if isinstance(mechanism, Channel) else torch.float64
        total = torch.zeros(self.coordinates, dtype=kind, device=self.device)
        own = torch.empty(count, device=self.device)
        if self.plan.dropout:
            torch.manual_seed(self._number(DROPOUT, turn))
        group = 1 if self.batched is None else self.batched.group
        for place in range(0, count, group):
            part = slice(place, place + group)
            with self._timed("gradients"):
                if self.batched is None:
                    own[part] = self._one(chosen[place], turn)
                    gradients = self.gradient[None]
                else:
                    gradients, own[part] = self.batched.gradients(chosen[part])
                    for row, client in enumerate(chosen[part]):
                        if (canary := self.planted(client)) is not None:
                            gradients[row] = canary
            with self._timed("clip, rotate, encode"):
                own[part].masked_fill_(~self._add(gradients, total, turn, place), torch.nan)
        if isinstance(mechanism, Channel):
            total.bitwise_and_(2 ** mechanism.sum_bits(count) - 1)
        elif isinstance(mechanism, Gaussian):
            assert self.plan.transforms.l2_clip is not None
            rng = torch.Generator(self.device).manual_seed(self._number(NOISE, turn))
            scale = mechanism.on_sum(count) * self.plan.transforms.l2_clip
            total += scale * torch.randn(len(total), generator=rng, device=self.device, dtype=torch.float64)
        return total, own

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
                own[place] = self._one(chosen[number], turn)
            with self._timed("clip, rotate, encode"):
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

    def _add(self, gradients: torch.Tensor, total: torch.Tensor, turn: int, place: int) -> torch.Tensor:
        """Encode and add; return which gradients were finite. The others send an encoding of zero: n tells nothing."""
        mechanism, bound = self.plan.mechanism, self.plan.transforms.l2_clip
        rotation = self._rotation(turn)
        if rotation is None:
            finite = l2_clip(gradients, bound)
        else:
            gradients, finite = rotation.clip_and_forward(gradients, bound)
        if isinstance(mechanism, Channel):
            if bound is not None:
                silence(gradients, over_budget(mechanism, gradients, bound))
            rng = self._stream(NOISE, turn, place)
            mechanism.encode_sum(gradients, rng, out=total, check=False, threads=1)  # torch's own threads stay warm
        elif isinstance(mechanism, Noiseless):
            total += gradients.clamp(-mechanism.clip, mechanism.clip).sum(dim=0, dtype=torch.float64)
        else:
            total += gradients.sum(dim=0, dtype=torch.float64)
        return finite

    def _one(self, client: int, turn: int) -> torch.Tensor:
        """Write what one client sends into ``self.gradient``; return its loss."""
        if (canary := self.planted(client)) is not None:
            self.gradient.copy_(canary)
            return torch.zeros((), device=self.device)
        inputs, labels = self.data.train[client]
        if self.plan.client.work == "gradient":
            self.gradient.zero_()
            loss = losses(self.model, inputs, labels).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        return self._local(inputs, labels, np.random.default_rng([self.plan.seed, LOCAL, turn, client]))

    def _local(self, inputs: torch.Tensor, labels: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Local steps of plain SGD (FedAvg, FedPAQ); what is sent is the change over the rate."""
        work, before = self.plan.client, self.values.clone()
        seen: list[torch.Tensor] = []
        for _ in range(work.epochs):
            order = torch.from_numpy(rng.permutation(len(labels))).to(self.device)
            for batch in torch.split(order, work.batch):
                self.gradient.zero_()
                loss = losses(self.model, inputs[batch], labels[batch]).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                self.values.sub_(self.gradient, alpha=work.rate)
                seen.append(loss.detach())
        torch.sub(before, self.values, out=self.gradient).div_(work.rate)
        self.values.copy_(before)
        return torch.stack(seen).mean()

    # -- the server ---------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy on the test set."""
        inputs, labels = self.data.test_inputs, self.data.test_labels
        found = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.model.eval()
        for x, y in zip(torch.split(inputs, TEST_BATCH), torch.split(labels, TEST_BATCH), strict=True):
            scores = self.model(images(x))
            found[0] += functional.cross_entropy(scores, y, reduction="sum")
            found[1] += (scores.argmax(1) == y).sum()
        self.model.train()
        loss, accuracy = (found / len(labels)).tolist()
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
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter in (mmap_threshold, trim_threshold):
        mallopt(parameter, 2**30)


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


def simulate(plan: Plan, model: nn.Module | None = None, clients: FederatedData | None = None) -> Iterator[Record]:
    """Train as the plan says, with the plan's model and data or with the given; yields a record a round."""
    if clients is None:
        from rqm.datasets import load  # noqa: PLC0415 (some sets need more than torch)

        clients = load(plan.data)
    trainer = Trainer(plan, clients, model)
    while trainer.done < plan.rounds:
        yield trainer.step()
