"""Noise in the iterates: what the noise of all rounds together does to a server's models, if part of it is taken back.

Noise of round t is in the iterate of round τ with the weight g[τ, t] (``factorization.Workload``). Noise that is taken
back a round later enters with g[τ, t] − g[τ, t + 1] instead: little, where steps are alike.
"""

from functools import lru_cache
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from rqm.privacy.factorization import Workload
from rqm.privacy.holding import gaussian_paths


class Gain(NamedTuple):
    """Mean squares of the iterates' noise for noise of unit variance in every round: one that stays, one that goes.

    ``common`` is the mean of their product, if both are one noise.
    """

    stays: float
    goes: float
    common: float

    def noise(self, persistent: float, transient: float, left: float = 0.0, times: int = 1) -> float:
        """The root mean square of the iterates' noise, for noise of these deviations in every round.

        Besides, noise of the deviation ``left`` stays that was ``times`` as large at first.
        """
        more = times - 1
        of_left = self.stays + 2 * more * self.common + more**2 * self.goes
        return sqrt(self.stays * persistent**2 + self.goes * transient**2 + of_left * left**2)

    def over_independent(self, separation: int, persistent: float, transient: float) -> float:
        """The same over that of independent Gaussian noise which tells as much of a participation."""
        alone = 1 / sqrt(gaussian_paths(separation, transient**2, persistent**2))
        return self.noise(persistent, transient) / self.noise(alone, 0.0)

    def best_ratio(self, separation: int) -> float:
        """Transient noise over persistent noise with the least noise in the iterates, at the same guarantee."""
        from scipy.optimize import minimize_scalar  # noqa: PLC0415

        def cost(logarithm: float) -> float:
            return log(self.over_independent(separation, 1.0, exp(logarithm)))

        return exp(float(minimize_scalar(cost, bounds=(log(1e-2), log(1e4)), method="bounded").x))


@lru_cache(maxsize=16)
def gain(workload: Workload) -> Gain:
    """What noise does to the iterates of a server that steps so.

    >>> gain(Workload(2, momentum=0.0, schedule="constant"))  # after one round and after two
    Gain(stays=1.5, goes=1.0, common=1.0)
    """
    rounds, powers = workload.rounds, workload.momentum ** np.arange(workload.rounds)
    stays = goes = common = 0.0
    after = np.zeros(0)  # of the round that follows
    for turn in range(rounds - 1, -1, -1):  # one column at a time: of many rounds the matrix is large
        weights = np.cumsum(workload.rates[turn:] * powers[: rounds - turn])
        change = weights - np.append(0.0, after)
        stays += float(weights @ weights)
        goes += float(change @ change)
        common += float(weights @ change)
        after = weights
    return Gain(stays / rounds, goes / rounds, common / rounds)
