"""Privacy profiles, δ as a function of ε ≥ 0: of a release, of one that is sampled or mixed, and of many together.

A profile here bounds both directions: of a pair of neighbours either may be the truth. Such profiles compose, as the
privacy loss distributions of pairs that dominate (Zhu, Dong and Wang 2022).
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.privacy.gaussian import gaussian_deltas
from rqm.privacy.setting import checked_delta

Profile = Callable[[FloatArray], FloatArray]

CELLS = 2**13
"""Values of ε at which a profile is looked at; in between it is bounded (Doroshenko et al. 2022)."""
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


def composed_epsilon(one: Profile, releases: int, delta: float, cells: int = CELLS) -> float:
    """ε of so many releases, each chosen after seeing the ones before."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 (takes a second)
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415

    releases, delta = whole("releases", releases, 1), checked_delta(delta)
    last = _last(one, REST * delta / releases)
    gap, half = last / (cells // 2), cells // 2
    grid: FloatArray = np.arange(half + 1, dtype=np.float64) * gap
    above = np.minimum.accumulate(one(grid))
    below = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * above[:0:-1]  # the same tests, the other way round
    loss = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -half, half, np.concatenate([below, above]))
    together = PrivacyLossDistribution(loss).self_compose(releases, tail_mass_truncation=REST * delta)
    return float(together.get_epsilon_for_delta(delta))


def _last(one: Profile, rest: float) -> float:
    """An ε beyond which no more than that is left."""
    last = 1e-9
    while float(one(np.array([last]))[0]) > rest:
        last *= 1.25
        if last > 1e6:
            raise ValueError("profile: is never small; some outcome tells all")
    return last
