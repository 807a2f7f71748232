"""Who takes part in a round, and who drops out."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from rqm.config.plan import Plan
from rqm.simulation.streams import LOSSES, SAMPLING, numpy_generator


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
        return np.asarray(numpy_generator(self.plan.seed, SAMPLING).permutation(self.users))

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
        generator = numpy_generator(self.plan.seed, SAMPLING, round_index)
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
        if self._latest is None or self._latest.round_index > round_index:
            self._latest = self._cohort(0, None)
        while self._latest.round_index < round_index:
            self._latest = self._cohort(self._latest.round_index + 1, self._latest)
        return self._latest

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
        if not self.plan.lost:
            return np.ones(count, dtype=np.bool_)
        return np.asarray(numpy_generator(self.plan.seed, LOSSES, *path).random(count) >= self.plan.lost)
