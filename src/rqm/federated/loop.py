"""The loop: Algorithm 1 of the paper, round after round, on the CPU or on the GPU."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import final

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from rqm.channel import Channel
from rqm.federated.clients import FederatedData
from rqm.federated.models import MODELS, flatten, unflatten
from rqm.federated.plan import Plan
from rqm.randomness import SeededRandom

SAMPLING, NOISE, START, LOCAL = range(4)
"""The streams of a run's seed: who takes part, the mechanism, the initial model, the order of local steps."""
TEST_BATCH = 2000
GPU_FLOATS = 2**30
"""Gradients that are held at once on the GPU."""
GPU_GROUPS = 2
"""Clients of like size are batched together, in so many groups a round: less padding."""


@final
@dataclass(frozen=True)
class Record:
    """One round. ``loss`` and ``accuracy`` are the server's, on the test set, where it evaluated.

    ``clients_loss`` is the mean of the clients' own losses. It is known in simulation only and is not released:
    publishing it would leak what no ε accounts for.
    """

    round: int
    seconds: float
    bits_up: int
    clients_loss: float
    loss: float | None = None
    accuracy: float | None = None


@final
class Trainer:
    """A run in progress: the model, the optimiser's state and the number of rounds done."""

    def __init__(self, plan: Plan, data: FederatedData, model: nn.Module | None = None) -> None:
        if plan.clients > len(data.train):
            raise ValueError(f"clients = {plan.clients}: must be at most {len(data.train)}, all that {data.name} has")
        self.plan = plan
        self.device = pick_device(plan.device)
        self.data = data.to(self.device) if self.device.type != "cpu" else data
        if model is None:
            if plan.model not in MODELS:
                raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}")
            torch.manual_seed(int(self._stream(START).words(1)[0] >> np.uint64(1)))
            model = MODELS[plan.model](data.classes)
        self.model = copy.deepcopy(model).to(self.device)
        self.values, self.gradient = flatten(self.model)
        self.moments = torch.zeros((2 if plan.server.optimizer == "adam" else 1, len(self.values)), device=self.device)
        self.done = 0

    def _stream(self, *path: int) -> SeededRandom:
        return SeededRandom(self.plan.seed, *path)

    @property
    def bits_up(self) -> int:
        """Bits that all clients of a round send before secure aggregation."""
        return self.plan.clients * len(self.values) * self.plan.mechanism.bits

    def step(self) -> Record:
        """Carry out one round."""
        start, turn = perf_counter(), self.done
        generator = np.random.default_rng([self.plan.seed, SAMPLING, turn])
        chosen = generator.choice(len(self.data.train), self.plan.clients, replace=False)
        total, losses = self._collect(chosen.tolist(), turn)
        mean = self.plan.mechanism.decode(total, self.plan.clients)
        self._move(mean.to(self.values), turn)
        self.done += 1
        loss = accuracy = None
        if self.done % self.plan.evaluate_every == 0 or self.done == self.plan.rounds:
            loss, accuracy = self.evaluate()
        return Record(self.done, perf_counter() - start, self.bits_up, float(np.mean(losses)), loss, accuracy)

    # -- the clients --------------------------------------------------------------------------

    def _collect(self, chosen: list[int], turn: int) -> tuple[torch.Tensor, list[float]]:
        """The sum of the encoded gradients, as a secure aggregator reveals it, and the clients' own losses."""
        kind = torch.int32 if isinstance(self.plan.mechanism, Channel) else torch.float64
        total, losses = torch.zeros(len(self.values), dtype=kind, device=self.device), []
        if self.device.type == "cpu" or self.plan.client.work == "local":
            for place, client in enumerate(chosen):
                losses.append(self._one(client, turn))
                self._add(self.gradient[None], total, turn, place)
        else:
            size = max(1, min(-(-len(chosen) // GPU_GROUPS), GPU_FLOATS // len(self.values)))
            chosen = sorted(chosen, key=self.data.train.sizes.__getitem__)
            for place in range(0, len(chosen), size):
                gradients, batch_losses = self._many(chosen[place : place + size])
                losses += batch_losses
                self._add(gradients, total, turn, place)
        return total, losses

    def _add(self, gradients: torch.Tensor, total: torch.Tensor, turn: int, place: int) -> None:
        """Encode and add. A client whose gradient is not finite sends an encoding of zero: n tells nothing."""
        gradients.masked_fill_(~torch.isfinite(gradients).all(dim=1, keepdim=True), 0.0)
        mechanism = self.plan.mechanism
        if isinstance(mechanism, Channel):
            mechanism.encode_sum(gradients, self._stream(NOISE, turn, place), out=total)
        else:
            total += gradients.clamp(-mechanism.clip, mechanism.clip).sum(dim=0, dtype=torch.float64)

    def _one(self, client: int, turn: int) -> float:
        """Write what one client sends into ``self.gradient``; return its loss."""
        inputs, labels = self.data.train[client]
        if self.plan.client.work == "gradient":
            self.gradient.zero_()
            loss = functional.cross_entropy(self.model(images(inputs)), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        return self._local(inputs, labels, np.random.default_rng([self.plan.seed, LOCAL, turn, client]))

    def _local(self, inputs: torch.Tensor, labels: torch.Tensor, rng: np.random.Generator) -> float:
        """Local steps of plain SGD (FedAvg, FedPAQ); what is sent is the change over the rate."""
        work, before, losses = self.plan.client, self.values.clone(), []
        for _ in range(work.epochs):
            order = torch.from_numpy(rng.permutation(len(labels))).to(self.device)
            for batch in torch.split(order, work.batch):
                self.gradient.zero_()
                loss = functional.cross_entropy(self.model(images(inputs[batch])), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                self.values.sub_(self.gradient, alpha=work.rate)
                losses.append(float(loss.detach()))
        torch.sub(before, self.values, out=self.gradient).div_(work.rate)
        self.values.copy_(before)
        return float(np.mean(losses))

    def _many(self, chosen: list[int]) -> tuple[torch.Tensor, list[float]]:
        """The gradients of several clients at once: padded to the largest of them, the padding weighing nothing."""
        parts = [self.data.train[client] for client in chosen]
        longest = max(len(labels) for _, labels in parts)
        first = parts[0][0]
        inputs = torch.zeros((len(parts), longest, *first.shape[1:]), dtype=first.dtype, device=self.device)
        labels = torch.zeros((len(parts), longest), dtype=torch.int64, device=self.device)
        weights = torch.zeros((len(parts), longest), device=self.device)
        for row, (x, y) in enumerate(parts):
            inputs[row, : len(y)], labels[row, : len(y)], weights[row, : len(y)] = x, y, 1 / len(y)

        def loss(values: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            scores = functional_call(self.model, unflatten(self.model, values), (images(x),))
            return (functional.cross_entropy(scores, y, reduction="none") * weight).sum()

        gradients, losses = vmap(grad_and_value(loss), (None, 0, 0, 0))(self.values, inputs, labels, weights)
        return gradients, losses.tolist()

    # -- the server ---------------------------------------------------------------------------

    def _move(self, mean: torch.Tensor, turn: int) -> None:
        """One step of the server's optimiser along the mean gradient."""
        server, rate = self.plan.server, self.plan.server.rate_at(turn, self.plan.rounds)
        if server.optimizer == "adam":
            first, second = self.moments[0], self.moments[1]
            first.lerp_(mean, 1 - server.momentum)
            second.lerp_(mean.square(), 0.001)
            scale = (1 - 0.999 ** (turn + 1)) ** 0.5 / (1 - server.momentum ** (turn + 1))
            self.values.sub_(first / (second.sqrt() + 1e-8), alpha=rate * scale)
            return
        if server.optimizer == "momentum":
            mean = self.moments[0].mul_(server.momentum).add_(mean)
        self.values.sub_(mean, alpha=rate)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy on the test set."""
        loss = right = 0.0
        inputs, labels = self.data.test_inputs, self.data.test_labels
        for x, y in zip(torch.split(inputs, TEST_BATCH), torch.split(labels, TEST_BATCH), strict=True):
            scores = self.model(images(x))
            loss += float(functional.cross_entropy(scores, y, reduction="sum"))
            right += float((scores.argmax(1) == y).sum())
        return loss / len(labels), right / len(labels)


def images(x: torch.Tensor) -> torch.Tensor:
    """Pictures of bytes as floats in [0, 1] with a channel; everything else as it is."""
    return x.float().div_(255).unsqueeze(-3) if x.dtype == torch.uint8 else x


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
