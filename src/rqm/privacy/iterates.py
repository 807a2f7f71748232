"""Noise in the iterates: what the noise of all rounds together does to a model, round after round.

A server that steps along noisy means by ``rates`` with ``momentum`` β carries, after round τ, the noise
Σ_t g(τ, t) n_t, where g(τ, t) = Σ_{s = t}^{τ} rate_s β^{s − t}. Noise that is taken back a round later enters with
g(τ, t) − g(τ, t + 1) instead: little where steps are alike.
"""

from functools import lru_cache
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from rqm.privacy.holding import gaussian_paths


class Gain(NamedTuple):
    """Mean squares of the iterates' noise for noise of unit variance in every round: one that stays, one that goes."""

    stays: float
    goes: float

    def noise(self, persistent: float, transient: float) -> float:
        """The root mean square of the iterates' noise, for noise of these deviations in every round."""
        return sqrt(self.stays * persistent**2 + self.goes * transient**2)


@lru_cache(maxsize=64)
def gain(momentum: float, rates: tuple[float, ...]) -> Gain:
    """What noise does to the iterates of a server that steps so.

    >>> gain(0.0, (1.0, 1.0))  # after one round and after two
    Gain(stays=1.5, goes=1.0)
    """
    rounds = len(rates)
    now, before = np.zeros(rounds + 1), np.zeros(rounds + 1)
    stays = goes = 0.0
    for turn, rate in enumerate(rates):
        before *= momentum
        before[turn] = 1.0  # the momentum that noise of each round has by now
        now += rate * before
        stays += float(now @ now)
        goes += float(((now[:-1] - now[1:]) ** 2).sum())
    return Gain(stays / rounds, goes / rounds)


def linear(rounds: int) -> tuple[float, ...]:
    """Rates that fall to zero, evenly."""
    return tuple(1 - turn / rounds for turn in range(rounds))


def best_ratio(separation: int, gains: Gain) -> float:
    """Transient noise over persistent noise with the least noise in the iterates at the same guarantee."""

    def cost(logarithm: float) -> float:
        squared = exp(2 * logarithm)
        return log(gains.stays + gains.goes * squared) + log(gaussian_paths(separation, squared, 1.0))

    return exp(float(minimize_scalar(cost, bounds=(log(1e-2), log(1e4)), method="bounded").x))


def over_independent(separation: int, gains: Gain, persistent: float, transient: float) -> float:
    """The iterates' noise over that of independent Gaussian noise at the same μ."""
    alone = 1 / sqrt(gaussian_paths(separation, transient**2, persistent**2))
    return gains.noise(persistent, transient) / gains.noise(alone, 0.0)
