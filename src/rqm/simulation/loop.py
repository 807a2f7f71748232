"""The training loop: Algorithm 1 of the paper, round after round."""

import copy
import ctypes
import re
import warnings
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isfinite
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rqm._util.text import many
from rqm.config.model_sizes import OWN, parameters
from rqm.config.plan import Plan
from rqm.data.federated_data import FederatedData
from rqm.ledger.budget_guard import Guard
from rqm.simulation.client_updates import UPDATE_CLASSES
from rqm.simulation.models import MODELS, Loss, trained_parameters
from rqm.simulation.secure_sum import SECURE_SUMS, Revealed
from rqm.simulation.server_optimizer import ServerOptimizer
from rqm.simulation.streams import LOSSES, SAMPLING, START, torch_seed


@final
@dataclass(frozen=True)
class Outcome:
    """What is known of a round.

    Attributes:
        round: The number of the round, from 1.
        seconds: Seconds that it took.
        bits_up: Bits that its survivors sent before secure aggregation.
        survivors: Clients that were still there at its end.
        clients_loss: The mean of the clients' losses. It is known in simulations only and is not released: no ε
            accounts for it.
        loss: The loss on the test set, in rounds that are evaluated.
        accuracy: The accuracy on the test set, in rounds that are evaluated.
        discarded: True if too few clients survived, so that the model did not change.
        secagg_bytes_up: Bytes that all clients sent in the real protocol.
        parts: Seconds of each part of the round; on a GPU, of launching it.
        epsilon: ε of a user so far, where it is known within seconds.
    """

    round: int
    seconds: float
    bits_up: int
    survivors: int
    clients_loss: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    discarded: bool | None = None
    secagg_bytes_up: int | None = None
    parts: dict[str, float] | None = None
    epsilon: float | None = None


def run_round(state: "RunState", round_index: int) -> Outcome:
    """Carry out one round of distributed DP-SGD.

    Args:
        state: The run. Its model, and all else that the next round depends on, are changed.
        round_index: The round, from 0.

    Returns:
        What is known of the round.
    """
    start = perf_counter()
    cohort = state.cohorts.draw(round_index)
    state.guard.charge(round_index)  # on disk before any vector is computed
    revealed = state.secure_sum.reveal(state.updates, cohort) if cohort.is_large_enough else None
    if revealed is None:
        state.secure_sum.chain.restart()  # the round stays charged, and its noise is never canceled
        return state.outcome(cohort, None, start)
    survivors = len(cohort.survivors)
    mean = state.mean.decode(revealed.total, survivors, round_index=round_index, check=False)
    mean = state.updates.apply(mean, round_index, survivors)
    state.observer.learns(round_index, mean)
    state.optimizer.step(mean.to(state.values), round_index)
    return state.outcome(cohort, revealed, start)


class Observer:
    """Plants nothing and sees nothing. Audits override what they need.

    Attributes:
        plants: Whether `sends` is called. Clients are then computed one after the other.
    """

    plants = False

    def sends(self, client: int, round_index: int) -> Tensor | None:
        """The vector that an audit plants in place of a client's.

        Args:
            client: The client.
            round_index: The round, from 0.

        Returns:
            The vector; None if the client sends its own.
        """
        return None

    def learns(self, round_index: int, mean: Tensor) -> None:
        """Called with the decoded mean of a round, which is all that the server learns.

        Args:
            round_index: The round, from 0. Discarded rounds have no mean.
            mean: The mean.
        """


@final
class RunState:
    """A run between two rounds: the model, and everything that its next round depends on.

    Args:
        plan: The plan. `state.plan` also has the size of the model.
        data: The users' data and the test set.
        model: A model; None: the plan's. It is copied.
        observer: What an audit plants in the run and sees of it.
        loss: What clients minimize, from outputs and labels; None: the cross-entropy.
        is_secure: Whether messages are encoded with secure randomness; else all noise follows from the plan's seed.

    Raises:
        ValueError: If the plan cannot be carried out on these data.
    """

    def __init__(
        self,
        plan: Plan,
        data: FederatedData,
        model: nn.Module | None = None,
        *,
        observer: Observer | None = None,
        loss: Loss | None = None,
        is_secure: bool = False,
    ) -> None:
        check_data(plan, data, model)
        self.device, self.observer = pick_device(plan.device), observer or Observer()
        if self.device.type == "cpu":
            _keep_freed_memory()
        self.users_behind = len(data.train)
        data = _redistributed(plan, data)
        self.data = data.to(self.device) if self.device.type != "cpu" else data
        self.model = _plan_model(plan, data) if model is None else copy.deepcopy(model)
        self.model.to(self.device)
        size = sum(parameter.numel() for parameter in trained_parameters(self.model))
        is_known = model is None and data.name == plan.data and parameters(plan.model, plan.data) is not None
        if plan.dim is None and not is_known:
            plan = replace(plan, dim=size, model=plan.model if model is None else OWN, data=data.name)
        self.plan, self.mean = plan, plan.private_mean()
        if self.mean.dim != plan.width(size):
            raise ValueError(f"the model has {size} parameters: {self.mean.dim} are accounted for")
        _ = self.mean.max_length  # raises if there is no room for the L2 clip
        self.updates = UPDATE_CLASSES[type(self.mean)](
            self.mean, plan, self.data, self.model, observer=self.observer, loss=loss, is_secure=is_secure
        )
        self.values = self.updates.values
        self.cohorts = CohortSampler(plan, len(data.train))
        self.secure_sum = SECURE_SUMS[plan.secagg](
            plan, self.mean, self.device, is_secure=is_secure, clients_at_once=self.updates.clients_at_once
        )
        self.optimizer = ServerOptimizer(plan.server, plan.participation.rounds, self.values)
        self.guard, self.rounds_done = Guard(self.mean), 0

    def charge_to(self, guard: Guard) -> None:
        """Charge all further rounds to a guard; without one, charges are only counted in memory.

        Raises:
            ValueError: If the guard accounts for another private mean.
        """
        if guard.mean != self.mean:
            raise ValueError("the guard accounts for another private mean than the one that is sent")
        self.guard = guard

    def step(self) -> Outcome:
        """Carry out the next round."""
        return run_round(self, self.rounds_done)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What the server remembers from round to round, by its name in checkpoints."""
        return {"values": self.values, "moments": self.optimizer.moments, **self.updates.server_state}

    @cached_property
    def bits_up(self) -> int:
        """Bits that all clients of a round send before secure aggregation."""
        participation, coordinates = self.plan.participation, self.mean.coordinates
        if self.mean.has_integer_messages and self.mean.has_second_message:
            return participation.clients * coordinates * 2 * (self.mean.modulus.bit_length() - 1)
        return participation.clients * self.plan.mechanism.message_bits(coordinates)

    def evaluate(self) -> tuple[float | None, float | None]:
        """Loss and accuracy on the test set, if there is one."""
        return self.updates.evaluate(self.data)

    def outcome(self, cohort: "Cohort", revealed: Revealed | None, start: float) -> Outcome:
        """Count a round as done, and evaluate the model if it is due.

        Args:
            cohort: The clients of the round.
            revealed: What was revealed; None if the round is discarded.
            start: The time at which the round began.

        Returns:
            What is known of the round.
        """
        self.rounds_done = cohort.round_index + 1
        seconds, facts = dict[str, float](), dict[str, Any]()
        if revealed is None:
            facts["discarded"] = True
        else:
            seconds = {**revealed.seconds, "server": perf_counter() - revealed.time}
            facts = {"clients_loss": self._clients_loss(revealed), "secagg_bytes_up": revealed.bytes_up}
        if self.rounds_done % self.plan.evaluate_every == 0 or self.rounds_done == self.plan.participation.rounds:
            evaluation_start = perf_counter()
            facts["loss"], facts["accuracy"] = self.evaluate()
            seconds["evaluation"] = perf_counter() - evaluation_start
        return Outcome(
            round=self.rounds_done,
            seconds=perf_counter() - start,
            bits_up=self.bits_up * len(cohort.survivors) // self.plan.participation.clients,
            survivors=len(cohort.survivors),
            parts={name: round(value, 6) for name, value in seconds.items()},
            **facts,
        )

    def _clients_loss(self, revealed: Revealed) -> float | None:
        """The mean of the losses that are finite, with a warning if some are not."""
        losses = revealed.losses.tolist()  # waits for the GPU, once in a round
        finite = [loss for loss in losses if isfinite(loss)]
        if len(finite) < len(losses):
            warnings.warn(
                f"round {self.rounds_done}: {many(len(losses) - len(finite), 'client')} had gradients that are not "
                "finite and sent an encoding of zero (known to them alone, and to this simulation)",
                stacklevel=4,
            )
        return float(np.mean(finite)) if finite else None


# -- who takes part -------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Cohort:
    """The clients of a round.

    Attributes:
        round_index: The round, from 0.
        clients: All clients of the round, in their order.
        survivors: Those that are still there at its end.
        settling: With correlated noise, clients of the previous round whose noise this sum cancels.
        unsettled: Indices of those of `settling` that drop out before their second message. The others' shares recover
            their noise.
        is_large_enough: Whether the sum has at least the accounted number of messages of each kind.
    """

    round_index: int
    clients: list[int]
    survivors: list[int]
    settling: list[int]
    unsettled: list[int]
    is_large_enough: bool


@final
class CohortSampler:
    """Draws the cohorts of a run. They follow from the plan's seed, in any order of rounds.

    Args:
        plan: The plan of the run.
        users: Number of users; of silos, where clients are silos.

    Attributes:
        is_fixed_order: Whether users take turns in a fixed order, as correlated noise and a minimum separation need.
    """

    def __init__(self, plan: Plan, users: int) -> None:
        self.plan, self.users, participation = plan, users, plan.participation
        # The separation of records is that of a silo's batches, whatever the order of the silos.
        is_separated = plan.protected.takes_turns and participation.min_separation > 1
        self.is_fixed_order = participation.sampling == "fixed-order" or plan.noise is not None or is_separated
        self.has_second_message = plan.any_mean.has_second_message
        self._latest: Cohort | None = None
        self._participations = np.zeros(users, dtype=np.int64)
        self._counted_rounds = 0  # whose participations are counted, where the plan limits them

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """All users in the order in which they take turns.

        Each takes part as often as any other, give or take one round, and no sooner than after ⌊users / clients⌋
        rounds.
        """
        return np.asarray(np.random.default_rng([self.plan.seed, SAMPLING]).permutation(self.users))

    def clients(self, round_index: int) -> list[int]:
        """The clients of a round, in their order, drawn without replacement.

        Args:
            round_index: The round, from 0.

        Returns:
            The clients; none of them has more participations than the plan allows.
        """
        participation, count = self.plan.participation, self.plan.participation.clients
        if self.is_fixed_order:
            return list(self.order[(round_index * count + np.arange(count)) % self.users].tolist())
        if participation.max_participations is None:
            return self._sample(round_index, np.arange(self.users))
        if round_index < self._counted_rounds:
            self._participations[:], self._counted_rounds = 0, 0
        while True:
            available = np.flatnonzero(self._participations < participation.max_participations)
            clients = self._sample(self._counted_rounds, available)
            self._participations[clients] += 1
            self._counted_rounds += 1
            if self._counted_rounds > round_index:
                return clients

    def _sample(self, round_index: int, users: NDArray[np.int64]) -> list[int]:
        generator = np.random.default_rng([self.plan.seed, SAMPLING, round_index])
        return list(users[generator.choice(len(users), self.plan.participation.clients, replace=False)].tolist())

    def draw(self, round_index: int) -> Cohort:
        """The cohort of a round.

        With correlated noise it depends on the previous cohorts, which are drawn as well.

        Args:
            round_index: The round, from 0.

        Returns:
            The cohort.
        """
        if self.plan.noise is None:
            return self._cohort(round_index, None)
        latest = self._latest
        if latest is None or latest.round_index > round_index:
            latest = self._cohort(0, None)
        while latest.round_index < round_index:
            latest = self._cohort(latest.round_index + 1, latest)
        self._latest = latest
        return latest

    def _cohort(self, round_index: int, previous: Cohort | None) -> Cohort:
        clients = self.clients(round_index)
        survivors = [clients[index] for index in np.flatnonzero(self._stays(len(clients), round_index))]
        settling = previous.survivors if previous is not None and previous.is_large_enough else []
        unsettled: list[int] = []
        if self.has_second_message:
            unsettled = np.flatnonzero(~self._stays(len(settling), round_index, 2)).tolist()
        else:  # a silo settles in its next message, and never without one
            settling = [silo for silo in settling if silo in set(survivors)]
        counts = [len(survivors)]
        if settling and self.has_second_message:
            counts.append(len(settling) - len(unsettled))
        is_large_enough = min(counts) >= (self.plan.participation.min_survivors or 1)
        return Cohort(round_index, clients, survivors, settling, unsettled, is_large_enough)

    def _stays(self, count: int, *path: int) -> NDArray[np.bool_]:
        """Which clients do not drop out, by a stream of the plan's seed."""
        if not self.plan.client_dropout:
            return np.ones(count, dtype=np.bool_)
        draws = np.random.default_rng([self.plan.seed, LOSSES, *path]).random(count)
        return np.asarray(draws >= self.plan.client_dropout)


# -- what a run begins with -----------------------------------------------------------------------


def check_data(plan: Plan, data: FederatedData, model: nn.Module | None = None) -> None:
    """Refuse a plan that cannot be carried out on data, before anything is made or written.

    Args:
        plan: The plan.
        data: The data.
        model: A model; None: the plan's.

    Raises:
        ValueError: If there are too few users, or the model or the device does not exist.
    """
    participation = plan.participation
    users = plan.protected.clients_of(participation.population or len(data.train))
    if participation.population is None and users > len(data.train):
        raise ValueError(f"records.silos = {users}: must be at most {len(data.train)}, users of {data.name}")
    clients, rounds = participation.clients, participation.rounds
    limit = participation.max_participations or rounds
    if clients > users:
        raise ValueError(f"clients = {clients}: must be at most {users}, all that {data.name} has")
    if clients * rounds > limit * users:
        raise ValueError(
            f"max_participations = {limit}: {rounds} rounds of {clients} clients are more than the {limit * users} "
            f"turns that {users} users have"
        )
    if plan.protected.takes_turns and CohortSampler(plan, users).is_fixed_order:
        separation = users // clients
        if participation.window > max(separation, 1) and rounds * clients > users:
            raise ValueError(
                f"min_separation = {participation.window}: must be at most {separation}, after which {clients} of "
                f"{users} users a round return"
            )
    if model is None and plan.model not in MODELS:
        raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}")
    if model is None and plan.dropout and plan.model != "paper-cnn":
        raise ValueError(f"dropout = {plan.dropout}: must be 0 for the model {plan.model}")
    pick_device(plan.device)


def pick_device(name: str) -> torch.device:
    """The device that a plan names; "auto" is the GPU if there is one.

    Raises:
        ValueError: If there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
        raise ValueError(f"device = {name}: must be auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device = {name}: torch finds no GPU here")
    return torch.device(name)


def _redistributed(plan: Plan, data: FederatedData) -> FederatedData:
    """The data of an assumed population, or of silos of several users each."""
    if plan.participation.population is not None:
        data = replace(data, train=data.train.resample(plan.participation.population, plan.examples, plan.seed))
    return replace(data, train=plan.protected.merged(data.train))


def _plan_model(plan: Plan, data: FederatedData) -> nn.Module:
    """The model that a plan names, with weights from its seed."""
    torch.manual_seed(torch_seed(plan.seed, START))
    return MODELS[plan.model](data.classes, **({"dropout": plan.dropout} if plan.dropout else {}))


@cache
def _keep_freed_memory() -> None:
    """Let this process keep up to 1 GB that it has freed (glibc only).

    Otherwise every large tensor is taken from the system anew, page by page: a third of the time of a round.
    """
    trim_threshold, mmap_threshold, arena_limit = -1, -3, -8  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter in (mmap_threshold, trim_threshold):
        mallopt(parameter, 2**30)
    mallopt(arena_limit, 1)  # those of other threads keep nothing
