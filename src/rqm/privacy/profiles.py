"""Privacy profiles, δ as a function of ε ≥ 0: of a release, of one that is sampled or mixed, and of many together.

A profile here bounds both directions: of a pair of neighbours either may be the truth. Such profiles compose, as the
privacy loss distributions of pairs that dominate (Zhu, Dong and Wang 2022).
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import ceil, inf, isfinite
from typing import Any

import numpy as np

from rqm._util.checks import FloatArray, real
from rqm._util.solve import zero
from rqm.privacy.gaussian import gaussian_deltas
from rqm.privacy.setting import checked_delta

Profile = Callable[[FloatArray], FloatArray]

CELLS = 2**13
"""Values of ε at which a profile is looked at; in between it is bounded (Doroshenko et al. 2022)."""
FARTHEST = 1e6
"""A loss beyond this is not looked for."""
TRANSFORMS = 1e-13
"""More than the error of δ by Fourier transforms, for a hundred releases."""
REST = 1e-4
"""The part of δ that pays for losses beyond the last value of ε, and as much again for those cut off in composing."""


def gaussian(mu: float) -> Profile:
    """Of telling N(0, 1) from N(μ, 1), rounded up."""

    return partial(gaussian_deltas, mu)


def sampled(one: Profile, rate: float) -> Profile:
    """Of a release on users drawn without replacement, each with that rate, by who does not know whom.

    ``one`` is for replacing a user's vector by another. By advanced joint convexity (Balle, Barthe and Gaboardi 2018):
    let a sample hold the user with probability q. Given that it does or does not, the releases differ by a vector that
    is replaced, so δ(log(1 + q(e^ε − 1))) ≤ q δ₁(ε).
    """
    rate = real("rate", rate, "above 0 and at most 1", 0, 1, closed="]")

    def profile(epsilon: FloatArray) -> FloatArray:
        return rate * one(epsilon + np.log(-np.expm1(-epsilon) / rate + np.exp(-epsilon)))

    return one if rate == 1 else profile


def mixed(parts: Sequence[tuple[float, Profile]]) -> Profile:
    """Of one of several releases, by a choice that the adversary is told and that does not depend on data."""

    def profile(epsilon: FloatArray) -> FloatArray:
        return np.minimum(sum((weight * one(epsilon) for weight, one in parts), start=np.zeros_like(epsilon)), 1)

    return profile


def epsilon_of(one: Profile, delta: float) -> float:
    """The smallest ε at which δ is enough; itself enough."""
    delta, high = checked_delta(delta), 1.0

    def excess(epsilon: float) -> float:
        return float(one(np.array([epsilon]))[0]) - delta

    if excess(0.0) <= 0:
        return 0.0
    while excess(high) > 0:
        high *= 2
        if high > FARTHEST:
            return inf
    found = zero(excess, 0, high, xtol=1e-12)
    return found * (1 + 1e-10) + 1e-11


def composed_epsilon(parts: Sequence[tuple[Profile, int]], delta: float, cells: int = CELLS) -> float:
    """ε of so many releases of each kind, each chosen after seeing the ones before; infinite if none is enough."""
    delta = checked_delta(delta)
    count = sum(releases for _, releases in parts)
    if count == 1:
        return epsilon_of(parts[0][0], delta)
    delta -= TRANSFORMS * (1 + count / 100)
    if delta <= 0:
        return inf
    ends = [_last(one, REST * delta / count) for one, _ in parts]
    if not isfinite(max(ends)):
        return inf
    gap = max(ends) / (cells // 2)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            losses = [
                _loss(one, gap, ceil(end / gap)).self_compose(releases, REST * delta)
                for (one, releases), end in zip(parts, ends, strict=True)
            ]
            together = reduce(lambda a, b: a.compose(b, REST * delta), losses)
            return float(together.get_epsilon_for_delta(delta))
    except FloatingPointError:  # what overflows on the way is no bound
        return inf


def _loss(one: Profile, gap: float, half: int) -> Any:
    """The privacy loss distribution of a profile, at multiples of ``gap`` up to so many."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 (takes a second)
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415

    grid: FloatArray = np.arange(half + 1, dtype=np.float64) * gap
    above = one(grid)
    below = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * above[:0:-1]  # the same tests, the other way round
    deltas = np.nan_to_num(np.concatenate([below, above]), nan=1.0)
    falling = np.maximum.accumulate(deltas[::-1])[::-1]  # but for rounding errors they do
    return PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -half, half, np.minimum(falling, 1))
    )


def _last(one: Profile, rest: float) -> float:
    """An ε beyond which no more than that is left; infinite if there is none."""
    last = 1e-9
    while float(one(np.array([last]))[0]) > rest:
        last *= 1.25
        if last > FARTHEST:
            return inf
    return last
