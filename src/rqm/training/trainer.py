"""A run in progress, round after round: Algorithm 1 of the paper, on the CPU or on the GPU."""

import copy
import ctypes
import warnings
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from typing import final

import numpy as np
import torch
from torch import nn

from rqm._util.words import many
from rqm.data.federated_data import FederatedData
from rqm.plan.guard import Guard
from rqm.plan.plan import Plan
from rqm.plan.sizes import OWN, parameters
from rqm.training.aggregate import AGGREGATORS, Collected
from rqm.training.client_updates import client_updates_for
from rqm.training.clock import Clock
from rqm.training.models import MODELS, Loss
from rqm.training.observer import Observer
from rqm.training.participants import Participants, in_order
from rqm.training.server import Optimiser
from rqm.training.streams import START, number


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
    if plan.records is not None and (plan.records.silos or 1) > len(data.train):
        raise ValueError(
            f"records.silos = {plan.records.silos}: must be at most {len(data.train)}, users of {data.name}"
        )
    users = len(data.train) if plan.participation.population is None else plan.participation.population
    users = users if plan.records is None else plan.records.silos or users
    if plan.participation.clients > users:
        raise ValueError(f"clients = {plan.participation.clients}: must be at most {users}, all that {data.name} has")
    who = plan.participation
    turns = (who.max_participations or who.rounds) * users
    if who.clients * who.rounds > turns:
        raise ValueError(
            f"max_participations = {who.max_participations}: {who.rounds} rounds of {who.clients} clients are more "
            f"than the {turns} turns that {users} users have"
        )
    if in_order(plan) and plan.records is None:
        _validate_order(plan, users)
    if model is None and plan.model not in MODELS:
        raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}")
    if model is None and plan.dropout and plan.model != "paper-cnn":
        raise ValueError(f"dropout = {plan.dropout}: must be 0 for the model {plan.model}")
    pick_device(plan.device)


def _validate_order(plan: Plan, users: int) -> None:
    """Refuse turns that come around sooner, or more often, than the plan counts on."""
    who = plan.participation
    gap, most = users // who.clients, -(-who.rounds * who.clients // users)
    if who.window > max(gap, 1) and most > 1:
        raise ValueError(
            f"min_separation = {who.window}: must be at most {gap}, after which {who.clients} of {users} users a round "
            "return"
        )
    if who.max_participations is not None and most > who.max_participations:
        raise ValueError(f"max_participations = {who.max_participations}: must be at least {most}, as users take turns")


@final
class Trainer:
    """A run in progress: who takes part, what clients do, the sum, the server's step; and the number of rounds done.

    ``plan`` is the plan with the size of the model, ``mean`` what clients send and what that promises. ``guard``
    charges for every round: only in memory, until ``charge_to`` names one with a ledger. An audit is an ``observer``.
    With a ``loss`` clients minimise that. The noise follows from the plan's seed, unless it is ``secure``.
    """

    def __init__(
        self,
        plan: Plan,
        data: FederatedData,
        model: nn.Module | None = None,
        *,
        observer: Observer | None = None,
        loss: Loss | None = None,
        secure: bool = False,
    ) -> None:
        validate(plan, data, model)
        self.behind = len(data.train)  # users who really are there, however many are declared
        if plan.participation.population is not None:
            data = replace(data, train=data.train.resample(plan.participation.population, plan.examples, plan.seed))
        if plan.records is not None and plan.records.silos is not None:
            data = replace(data, train=data.train.merge(plan.records.silos))
        self.device, own = pick_device(plan.device), model is not None
        self.data = data.to(self.device) if self.device.type != "cpu" else data
        if self.device.type == "cpu":
            keep_memory()
        if model is None:
            torch.manual_seed(number(plan.seed, START))
            model = MODELS[plan.model](data.classes, **({"dropout": plan.dropout} if plan.dropout else {}))
        self.model = copy.deepcopy(model).to(self.device)
        size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if plan.dim is None and (own or data.name != plan.data or parameters(plan.model, plan.data) is None):
            plan = replace(plan, dim=size, model=OWN if own else plan.model, data=data.name)
        self.plan, self.mean = plan, plan.private_mean()
        if self.mean.dim != plan.width(size):
            raise ValueError(f"the model has {size} parameters: {self.mean.dim} are accounted for")
        _ = self.mean.max_length  # or says that there is no room for the L2 clip
        self.guard, self.observer, self.clock, self.done = Guard(self.mean), observer or Observer(), Clock(), 0
        self.participants = Participants(plan, len(data.train))
        self.updates = client_updates_for(
            self.mean, plan, self.data, self.model, observer=self.observer, loss=loss, is_secure=secure
        )
        self.values = self.updates.values
        self.aggregator = AGGREGATORS[plan.secagg](plan, self.mean, self.updates, self.clock, secure=secure)
        self.server = Optimiser(plan.server, plan.participation.rounds, self.values)

    def charge_to(self, guard: Guard) -> None:
        """Charge every round from now on to this guard, which must account for what is sent here."""
        if guard.mean != self.mean:
            raise ValueError("the guard accounts for another private mean than the one that is sent")
        self.guard = guard

    def skip_to(self, done: int) -> None:
        """Be where a run is after ``done`` rounds, but for the model: who took part follows from the seed."""
        self.participants.skip(range(self.done, done))
        self.done = done

    @property
    def moments(self) -> torch.Tensor:
        """What the server's optimiser remembers."""
        return self.server.moments

    @property
    def clip(self) -> torch.Tensor | None:
        """The logarithm of a clip that moves."""
        return self.updates.server_state.get("clip")

    @property
    def state(self) -> torch.Tensor | None:
        """What a method's server remembers besides."""
        return self.updates.server_state.get("state")

    @property
    def corrections(self) -> torch.Tensor | None:
        """What its clients remember, a row each: theirs alone."""
        return self.updates.client_state

    @property
    def secret(self) -> torch.Tensor | None:
        """Transient noise that the next round takes back, where nobody can draw it again."""
        held = self.aggregator.held
        return held[1] if self.aggregator.secure and held is not None and held[0] == self.done - 1 else None

    def recall(self, noise: torch.Tensor) -> None:
        """Have the transient noise of the last round again."""
        self.aggregator.held = self.done - 1, noise.to(self.device)

    @property
    def coordinates(self) -> int:
        """Coordinates that a client sends: those of the model, perhaps padded."""
        return self.mean.coordinates

    @property
    def bits_up(self) -> int:
        """Bits that all clients of a round send before secure aggregation."""
        if self.mean.has_integer_messages and self.mean.has_second_message:  # both messages of a participation
            return self.plan.participation.clients * self.coordinates * 2 * (self.mean.modulus.bit_length() - 1)
        return self.plan.participation.clients * self.plan.mechanism.message_bits(self.coordinates)

    def step(self) -> Record:
        """Carry out one round."""
        self.clock.start()
        turn = self.done
        chosen = self.participants.choose(turn)
        staying = self.participants.survive(chosen, turn)
        self.guard.charge(turn)  # before anything is asked for, and if nothing comes of it
        before = self.participants.before(turn)
        found = None
        if self.participants.enough(staying, before):
            found = self.aggregator.collect(chosen, staying, turn, before)
        if found is not None:
            with self.clock.timed("server"):
                mean = self.mean.decode(found.total, len(staying), round_index=turn, check=False)
                mean = self.updates.apply(mean, turn)
                self.observer.learns(turn, mean)
                self.server.move(mean.to(self.values), turn)
        self.done += 1
        return self._record(found, len(staying))

    def _record(self, found: Collected | None, survivors: int) -> Record:
        """What there is to tell about the round that was just done."""
        loss = accuracy = None
        if self.done % self.plan.evaluate_every == 0 or self.done == self.plan.participation.rounds:
            with self.clock.timed("evaluation"):
                loss, accuracy = self.evaluate()
        own = [] if found is None else found.losses.tolist()  # the only wait for the GPU in a round
        seen = [value for value in own if isfinite(value)]
        if len(seen) < len(own):
            warnings.warn(
                f"round {self.done}: {many(len(own) - len(seen), 'client')} had gradients that are not finite and sent "
                "an encoding of zero (known to them alone, and to this simulation)",
                stacklevel=3,
            )
        return Record(
            round=self.done,
            seconds=self.clock.seconds,
            bits_up=self.bits_up * survivors // self.plan.participation.clients,
            survivors=survivors,
            clients_loss=float(np.mean(seen)) if seen else None,
            loss=loss,
            accuracy=accuracy,
            discarded=True if found is None else None,
            secagg_bytes_up=None if found is None else found.bytes_up,
            parts={part: round(value, 6) for part, value in self.clock.parts.items()},
        )

    def evaluate(self) -> tuple[float | None, float | None]:
        """Loss and accuracy on the test set, if there is one."""
        return self.updates.evaluate(self.data)


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


def pick_device(name: str) -> torch.device:
    """The device that a plan names; ``auto`` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {name}: must be auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {name}: torch finds no GPU here")
    return device
