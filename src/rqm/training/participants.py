"""Who takes part in a round, and who is still there at its end."""

from functools import cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from rqm.plan.plan import Plan
from rqm.training.streams import LOSSES, SAMPLING, generator


def sampled(plan: Plan, users: int, turn: int) -> list[int]:
    """The clients of a round without a cap on participations, in their order."""
    return list(generator(plan.seed, SAMPLING, turn).choice(users, plan.participation.clients, replace=False).tolist())


def in_order(plan: Plan) -> bool:
    """Whether users take turns in a fixed order: correlated noise, and a minimum separation, need that.

    The separation of records is that of a silo's batches, whatever the order of the silos.
    """
    who = plan.participation
    is_separated = plan.records is None and who.min_separation > 1
    return who.sampling == "fixed-order" or plan.noise is not None or is_separated


class Before(NamedTuple):
    """Clients of the round before who were ``staying`` at its end: some are ``there`` with a second message.

    The others' noise is found again through the shares of those, and subtracted; that of a silo stays in.
    """

    staying: list[int]
    there: list[int]

    @property
    def lost(self) -> list[int]:
        """Those who are gone since."""
        return [client for client in self.staying if client not in set(self.there)]


NOBODY = Before([], [])


@final
class Participants:
    """The users of a run; ``taken`` counts the rounds that each has taken part in, where that is capped."""

    def __init__(self, plan: Plan, users: int) -> None:
        self.plan, self.taken = plan, np.zeros(users, dtype=np.int64)
        self.discarded: list[bool] = []

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """All users in the fixed order in which they take part, one round's clients after the other's, round and round.

        So everybody takes part as often as everybody else, but for one time, and at least ⌊users / clients⌋ rounds
        apart.
        """
        found: NDArray[np.int64] = generator(self.plan.seed, SAMPLING).permutation(len(self.taken))
        return found

    def choose(self, turn: int) -> list[int]:
        """The clients of a round, without replacement, among those who have not used up their participations."""
        if in_order(self.plan):
            places = (turn * self.plan.participation.clients + np.arange(self.plan.participation.clients)) % len(
                self.order
            )
            return list(self.order[places].tolist())
        most = self.plan.participation.max_participations
        if most is None:
            return sampled(self.plan, len(self.taken), turn)
        free = np.flatnonzero(self.taken < most)
        rng = generator(self.plan.seed, SAMPLING, turn)
        chosen = free[rng.choice(len(free), self.plan.participation.clients, replace=False)]
        self.taken[chosen] += 1
        return list(chosen.tolist())

    def survive(self, chosen: list[int], turn: int) -> list[int]:
        """The clients of a round who are still there at its end."""
        if not self.plan.lost:
            return chosen
        gone = generator(self.plan.seed, LOSSES, turn).random(len(chosen)) < self.plan.lost
        return [client for client, lost in zip(chosen, gone, strict=True) if not lost]

    def before(self, turn: int) -> Before:
        """Those of the round before who take their noise back in this one: nobody, if that round was discarded."""
        if self.plan.noise is None or not turn or self._discarded(turn - 1):
            return NOBODY
        staying = self.survive(self.choose(turn - 1), turn - 1)
        if self.plan.records is not None:  # a silo that is away takes nothing back, and begins anew
            now = set(self.survive(self.choose(turn), turn))
            return Before(staying, [silo for silo in staying if silo in now])
        gone = generator(self.plan.seed, LOSSES, turn, 2).random(len(staying)) < self.plan.lost
        return Before(staying, [client for client, away in zip(staying, gone, strict=True) if not away])

    def enough(self, staying: list[int], before: Before) -> bool:
        """Whether both messages have come from as many as the plan counts on."""
        least = self.plan.participation.min_survivors or 1
        if self.plan.records is not None:
            return len(staying) >= least
        return len(staying) >= least and (not before.staying or len(before.there) >= least)

    def _discarded(self, turn: int) -> bool:
        for now in range(len(self.discarded), turn + 1):
            self.discarded.append(not self.enough(self.survive(self.choose(now), now), self.before(now)))
        return self.discarded[turn]

    def skip(self, turns: range) -> None:
        """Be where a run is after these rounds: who took part follows from the seed."""
        if self.plan.participation.max_participations is not None and not in_order(self.plan):
            for turn in turns:
                self.choose(turn)
