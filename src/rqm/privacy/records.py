"""A record's privacy: what many releases tell of one record of a silo, each a Gaussian mechanism by its certificate.

A silo sends the sum of its records' vectors, each within the record's clip: one record more or less moves it by no
more than that, wherever it lies (``docs/proofs/silos.md``). If the silo draws each round's records by coins of its own,
which nobody else sees, most rounds tell nothing of a record: privacy loss distributions account for that.
"""

from collections.abc import Mapping
from functools import lru_cache, reduce
from math import exp, inf, log, sqrt
from typing import Any

from rqm._util.solve import zero
from rqm.privacy.gaussian import gaussian_epsilon
from rqm.privacy.profiles import TRANSFORMS

FINE, ROUGH = 30_000, 4_000
"""Into so many parts the range of a release's privacy loss is cut; and where a search asks."""


def record_epsilon(
    mu: float, rate: float | None, profile: Mapping[int, int], delta: float, *, quick: bool = False
) -> float:
    """ε of one record over rounds released so often (``profile``: how many rounds once, twice, …), each μ-GDP.

    Without a ``rate`` the record is in all of them. With one it is in each round's sample with that chance, and a round
    that was released again may have taken the same sample or another: it is charged for both.

    >>> round(record_epsilon(1.0, None, {1: 1}, 1e-5), 4), round(record_epsilon(1.0, 0.01, {1: 100}, 1e-5), 2)
    (4.3772, 0.72)
    """
    if not mu < inf:
        return inf
    if rate is None or rate == 1:
        return gaussian_epsilon(mu * sqrt(sum(times * rounds for times, rounds in profile.items())), delta)
    left = delta - TRANSFORMS * (1 + sum(profile.values()) / 100)
    if left <= 0:
        return inf
    return _sampled(mu, rate, tuple(sorted(profile.items())), left, quick)


def sampled_noise(epsilon: float, rate: float, profile: Mapping[int, int], delta: float, most: float) -> float:
    """The noise multiplier with which a trusted server's Gaussian reaches ε on sampled records; at most ``most``.

    Searched for on the rough grid, for a target that makes up for what that one loses.
    """

    def least(target: float) -> float:
        def missed(logarithm: float) -> float:
            return log(max(record_epsilon(exp(-logarithm), rate, profile, delta, quick=True), 1e-9) / target)

        low = high = log(most)
        while missed(low) <= 0:
            low, high = low - 0.7, low
        return exp(high if low == high else zero(missed, low, high, xtol=1e-5))

    rough = least(epsilon)
    lost = record_epsilon(1 / rough, rate, profile, delta, quick=True) / record_epsilon(1 / rough, rate, profile, delta)
    return least(epsilon * lost)


@lru_cache(maxsize=256)
def _sampled(mu: float, rate: float, profile: tuple[tuple[int, int], ...], delta: float, quick: bool) -> float:
    largest = mu * sqrt(profile[-1][0])
    gap = largest * (largest / 2 + 10) / (ROUGH if quick else FINE)  # all of the loss, but for what is hardly ever seen
    parts = []
    for times, rounds in profile:
        parts.append(_loss(mu, rate, gap).self_compose(times * rounds))
        if times > 1:  # as one release on a sample that stays the same
            parts.append(_loss(mu * sqrt(times), rate, gap).self_compose(rounds))
    return float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def _loss(mu: float, rate: float, gap: float) -> Any:
    """The loss of a Gaussian pair that is sampled, a record added or removed (Zhu, Dong and Wang 2022)."""
    from dp_accounting import NeighboringRelation  # noqa: PLC0415 (takes a second)
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    return pld.from_gaussian_mechanism(
        standard_deviation=1 / mu,
        sampling_prob=rate,
        value_discretization_interval=gap,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
