"""Noise in the iterates: what the noise of all rounds together does to a server's models.

Noise of round t is in the iterate of round τ with the weight g[τ, t] (`factorization.Workload`).
Noise that is canceled one round later enters with g[τ, t] − g[τ, t + 1] instead: little, where
steps are alike.
"""

from functools import lru_cache
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from rqm._util.numeric import find_minimum
from rqm.correlated.factorization import Workload
from rqm.correlated.handover import gaussian_squared_mu


class IterateNoise(NamedTuple):
    """Mean squares of the iterates' noise for noise of unit variance in every round.

    Attributes:
        residual: For noise that is never canceled.
        transient: For noise that is canceled one round later.
        common: The mean product of the two, if both are the same noise.
    """

    residual: float
    transient: float
    common: float

    def rms(self, independent: float, transient: float, residual: float = 0.0, gain: int = 1) -> float:
        """The root mean square of the iterates' noise.

        Args:
            independent: Standard deviation of noise that is never canceled.
            transient: Standard deviation of noise that is canceled one round later.
            residual: Standard deviation of noise that is added `gain` times and then canceled all
                but once.
            gain: See `residual`.

        Returns:
            The root mean square over all iterates.
        """
        more = gain - 1
        of_residual = self.residual + 2 * more * self.common + more**2 * self.transient
        return sqrt(self.residual * independent**2 + self.transient * transient**2 + of_residual * residual**2)

    def over_independent(self, separation: int, independent: float, transient: float) -> float:
        """The root mean square over that of independent Gaussian noise with the same μ per participation.

        Args:
            separation: Rounds from one participation of a user to the next, at least.
            independent: Standard deviation of noise that is never canceled.
            transient: Standard deviation of noise that is canceled one round later.

        Returns:
            The ratio.
        """
        equivalent_std = 1 / sqrt(gaussian_squared_mu(separation, 0.0, transient**2, 1, independent**2))
        return self.rms(independent, transient) / self.rms(equivalent_std, 0.0)

    def best_ratio(self, separation: int) -> float:
        """The ratio of transient to other noise with the least noise in the iterates, at the same
        guarantee.

        Args:
            separation: Rounds from one participation of a user to the next, at least.

        Returns:
            The ratio of the standard deviations.
        """
        cost = lambda logarithm: log(self.over_independent(separation, 1.0, exp(logarithm)))  # noqa: E731
        return exp(find_minimum(cost, log(1e-2), log(1e4), xtol=1e-5))


@lru_cache(maxsize=16)
def iterate_noise(workload: Workload) -> IterateNoise:
    """The effect of noise on the iterates of a server.

    Args:
        workload: How the server sums noise.

    Returns:
        Mean squares for noise of unit variance.

    >>> iterate_noise(Workload(2, momentum=0.0, schedule="constant"))  # after one round and after two
    IterateNoise(residual=1.5, transient=1.0, common=1.0)
    """
    rounds = workload.rounds
    powers = workload.momentum ** np.arange(workload.rounds)
    residual = transient = common = 0.0
    following = np.zeros(0)
    for index in range(rounds - 1, -1, -1):  # one column at a time: of many rounds the matrix is large
        weights = np.cumsum(workload.rates[index:] * powers[: rounds - index])
        change = weights - np.append(0.0, following)
        residual += float(weights @ weights)
        transient += float(change @ change)
        common += float(weights @ change)
        following = weights
    return IterateNoise(residual / rounds, transient / rounds, common / rounds)
