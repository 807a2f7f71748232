"""Privacy profiles and Rényi curves of releases on random samples.

A profile bounds both directions: of a pair of neighbors either may be the truth.
"""

from collections.abc import Sequence
from math import expm1, log
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from rqm._util.checks import FloatArray, real
from rqm.bounds import RdpCurve, ReleaseProfile


def sampled_without_replacement(profile: ReleaseProfile, rate: float) -> ReleaseProfile:
    """The profile of a release on a uniform sample of the users, against an adversary who does not
    know the sample.

    By advanced joint convexity (Balle, Barthe and Gaboardi 2018): let a sample hold the user with
    probability q. Whether it does or not, the releases differ by a vector that is replaced, so
    δ(log(1 + q(e^ε − 1))) ≤ q δ₁(ε).

    See docs/proofs/participation.md#lemma-2.

    Args:
        profile: The profile for replacing one user's vector, where the user takes part.
        rate: q, the probability that a user takes part.

    Returns:
        The amplified profile.
    """
    rate = real("rate", rate, "above 0 and at most 1", 0, 1, closed="]")
    if rate == 1:
        return profile
    return ReleaseProfile(lambda eps: rate * profile.delta(eps + np.log(-np.expm1(-eps) / rate + np.exp(-eps))))


def mixed(parts: Sequence[tuple[float, ReleaseProfile]]) -> ReleaseProfile:
    """The profile of one of several releases, by a random choice that the adversary learns and that
    no data change.

    See docs/proofs/participation.md#lemma-4.

    Args:
        parts: Probabilities and profiles.

    Returns:
        The mean of the profiles.
    """

    def delta(eps: FloatArray) -> FloatArray:
        return np.minimum(sum((weight * profile.delta(eps) for weight, profile in parts), start=np.zeros_like(eps)), 1)

    return parts[0][1] if len(parts) == 1 else ReleaseProfile(delta)


def poisson_sampled_gaussian(mu: float, rate: float) -> ReleaseProfile:
    """The profile of a μ-GDP release on a Poisson sample, one record added or removed (Zhu, Dong and
    Wang 2022).

    The adversary does not know the sample.

    See docs/proofs/participation.md#lemma-10.

    Args:
        mu: μ of the release where the record is in the sample.
        rate: The probability that a record is in the sample.

    Returns:
        The profile; its losses come from dp_accounting.
    """

    def delta(eps: FloatArray) -> FloatArray:
        """The larger of both directions, N(0, 1) against its mixture with N(μ, 1)."""
        eps = np.minimum(eps, 700)  # e^ε must be finite, and δ falls as ε grows
        # Removed: the mixture is e^ε times likelier above x. Added: N(0, 1) is e^ε times likelier below y.
        x = np.log((np.expm1(eps) + rate) / rate) / mu + mu / 2
        removed = ((1 - rate) * ndtr(-x) + rate * ndtr(mu - x)) * (1 + 1e-14) - np.exp(eps + log_ndtr(-x))
        inside = (np.exp(-eps) - (1 - rate)) / rate
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.log(inside) / mu + mu / 2
            added = ndtr(y) * (1 + 1e-14) - np.exp(eps) * ((1 - rate) * ndtr(y) + rate * ndtr(y - mu))
        return np.clip(np.maximum(removed, np.where(inside > 0, added, 0.0)), 0, 1)

    def loss(interval: float) -> Any:
        from dp_accounting import NeighboringRelation  # noqa: PLC0415 (takes a second)
        from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

        return pld.from_gaussian_mechanism(
            standard_deviation=1 / mu,
            sampling_prob=rate,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )

    return ReleaseProfile(delta, loss)


def renyi_without_replacement(curve: RdpCurve, rate: float) -> RdpCurve:
    """The Rényi curve of a release on a uniform sample of the users, against an adversary who does
    not know the sample.

    Wang, Balle and Kasiviswanathan (2019), Theorem 9, without a bound on ε(∞).

    See docs/proofs/participation.md#lemma-3.

    Args:
        curve: For *replacing* one user's vector, at all whole orders from 2 on: a sample with the
            user is compared with one that holds another user instead.
        rate: The probability that a user takes part.

    Returns:
        The amplified curve at the same orders.
    """
    if curve.orders != tuple(map(float, range(2, len(curve.orders) + 2))):
        raise ValueError("orders: must be all whole numbers from 2 on")
    orders = np.array(curve.orders)
    values = curve.values
    first = float(values[0])
    log_expm1 = first + log(-expm1(-first)) if first > 0 else -np.inf
    second = min(log(4) + log_expm1, log(2) + first)
    terms = np.concatenate([[second], log(2) + (orders[1:] - 1) * values[1:]]) + orders * log(rate)
    amplified = np.empty(len(orders))
    for k, alpha in enumerate(orders):
        j = orders[: k + 1]
        choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
        amplified[k] = logsumexp(np.append(choose + terms[: k + 1], 0.0)) / (alpha - 1)
    return RdpCurve(curve.orders, np.minimum(amplified, values))  # not to sample at all never reveals less
