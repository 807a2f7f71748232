"""This verifier's own ε: the least of three bounds, by Gaussians, Rényi divergences and privacy losses.

docs/verify.md has the proofs. Privacy loss distributions are composed by dp_accounting.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import expm1, inf, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from .additive_bound import AdditiveRelease
from .affine_bound import AffineRelease, threshold_epsilon
from .correlated_bound import fixed_order_epsilon, participation_mu
from .gaussian_bound import SLACK, gaussian_delta, gaussian_epsilon
from .integer_pmfs import Array
from .ledger_claims import Claims
from .verification_report import Unverifiable

FEW_COORDINATES = 1000
"""Coordinates of all releases up to which privacy losses are composed."""
MAX_EPSILON = 700.0
"""ε beyond which exponentials are no numbers."""
TAIL_PART = 1e-3
"""The part of δ that pays for outcomes far in the tails."""


class PrivacySpent(NamedTuple):
    """What was spent by all charges.

    Attributes:
        epsilon: ε by this verifier's own bound.
        mu: μ, where ε is that of one Gaussian; else None.
        lower: No smaller ε can be true.
        releases: The releases that one user, or record, was part of.
        honest: The least number of honest clients whose noise is counted on.
    """

    epsilon: float
    mu: float | None
    lower: float
    releases: int
    honest: int


def privacy_spent(claims: Claims, charges: Counter[int]) -> PrivacySpent:
    """ε of all charges.

    Args:
        claims: What one release is, and who takes part.
        charges: How often each round was charged.

    Returns:
        ε by this verifier's own bound, and what it rests on.

    Raises:
        Unverifiable: If there is no bound.
    """
    if claims.adversary == "outsider":
        raise Unverifiable("adversary = 'outsider': this verifier has no bound for it")
    releases = sum(count for _, count in charges.most_common(claims.limit(charges)))
    if not releases:
        return PrivacySpent(0.0, 0.0, 0.0, 0, claims.cohorts(1)[0][0][1])
    is_repeated = max(charges.values()) > 1
    with np.errstate(all="ignore"):
        return (_record_spent if claims.unit == "record" else _user_spent)(claims, releases, is_repeated)


# -- users ----------------------------------------------------------------------------------------


def release_of(claims: Claims, honest: int) -> AffineRelease | AdditiveRelease:
    """The bounds of one release with independent noise, beside a number of honest clients."""
    return (AdditiveRelease if claims.is_additive else AffineRelease)(claims, honest)


def _user_spent(claims: Claims, releases: int, is_repeated: bool) -> PrivacySpent:
    """What was spent of a user."""
    cohorts, delta = claims.cohorts(releases)
    failure = TAIL_PART * claims.delta / releases
    gaussian_delta_left = delta - 2e-3 * claims.delta  # a part is left unused, as an accountant may
    honest = cohorts[0][1]
    is_fraction = claims.honest_fraction is not None
    if is_fraction and is_repeated:
        raise Unverifiable(
            f"honest_fraction = {claims.honest_fraction}: this verifier has no bound for it and repeated rounds"
        )
    if claims.noise is not None:
        mu = participation_mu(claims, honest, failure) * sqrt(releases)
        return PrivacySpent(gaussian_epsilon(mu, gaussian_delta_left)[0], mu, 0.0, releases, honest)
    if claims.kind == "gaussian":
        mu = sqrt(releases) / claims.mechanism["noise_multiplier"]  # of a distance of one L2 bound
        lower = gaussian_epsilon(mu * claims.attained * (1 if claims.neighboring == "zero-out" else 2), claims.delta)[1]
        mu *= claims.distance
        return PrivacySpent(gaussian_epsilon(mu, gaussian_delta_left)[0], mu, lower, releases, honest)
    if claims.mechanism.get("steps") == 1 and claims.sent * releases <= FEW_COORDINATES:
        raise Unverifiable("steps = 1: this verifier has no tight bound for so few coordinates")
    parts = [(weight, release_of(claims, number)) for weight, number in cohorts]
    mus = [(weight, release.mu(failure)) for weight, release in parts]
    epsilon, total_mu = min(
        _gaussian_mixture_epsilon(mus, releases, gaussian_delta_left),
        (_renyi_epsilon(parts, releases, delta), None),
        (_few_coordinates_epsilon(claims, parts, releases, delta), None),
        key=lambda bound: bound[0],
    )
    if MAX_EPSILON < epsilon < inf and is_fraction:
        raise Unverifiable(
            f"honest_fraction = {claims.honest_fraction}: this verifier has no tight bound for so large an ε"
        )
    lower = 0.0
    if not (claims.is_additive or claims.kind == "vqsgd" or claims.zero_distance > 1):  # then all can send zeros
        lower = threshold_epsilon(claims, releases, claims.clients if is_fraction else honest)
    return PrivacySpent(epsilon, total_mu, min(lower, epsilon), releases, honest)


Parts = Sequence[tuple[float, AffineRelease | AdditiveRelease]]
"""The probability of each number of honest clients, and the release beside them."""


def _renyi_epsilon(parts: Parts, releases: int, delta: float) -> float:
    """ε at the best Rényi order (Canonne, Kamath, Steinke 2020). See docs/verify.md#lemma-8."""
    orders = [1.25, 1.5, 1.75, 2, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8, 9, 10, 11, 12, 14]
    orders += [16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512]  # none between 2 and 3
    smallest = inf
    for alpha in orders:
        moments = [log(weight) + (alpha - 1) * release.divergence(alpha) for weight, release in parts]
        total = releases * float(logsumexp(moments)) / (alpha - 1) * SLACK
        if -expm1(-max(0.0, total)) < delta**2:  # then even the total variation is below δ (Bretagnolle and Huber 1979)
            return 0.0
        smallest = min(smallest, total + log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1))
    return max(0.0, smallest) * SLACK


def _gaussian_mixture_epsilon(
    mus: Sequence[tuple[float, float]], releases: int, delta: float
) -> tuple[float, float | None]:
    """ε of releases that have each μ with some probability, which is shown; and the total μ if there is one."""
    largest = max(mu for _, mu in mus)
    total = largest * sqrt(releases)
    if len(mus) == 1 or largest == inf:
        return gaussian_epsilon(total, delta)[0], total
    profiles = [(weight, partial(gaussian_delta, mu)) for weight, mu in mus]
    return _loss_epsilon(profiles, gaussian_epsilon(largest, TAIL_PART * delta / releases)[0], 1, releases, delta), None


# -- privacy losses -------------------------------------------------------------------------------

Profile = Callable[[Array], Array]
"""δ at increasing values of ε."""


def _few_coordinates_epsilon(claims: Claims, parts: Parts, releases: int, delta: float) -> float:
    """ε by the privacy losses of all coordinates. See docs/verify.md#lemma-9."""
    affine = [(weight, release) for weight, release in parts if isinstance(release, AffineRelease)]
    if not affine or claims.sent * releases > FEW_COORDINATES or affine[0][1].count * releases > 2**16:
        return inf
    largest = max(release.largest_loss for _, release in affine)
    profiles = [(weight, release.profile) for weight, release in affine]
    return _loss_epsilon(profiles, largest, affine[0][1].count, releases, delta)


def _loss_epsilon(
    parts: Sequence[tuple[float, Profile]], largest: float, count: int, releases: int, delta: float
) -> float:
    """ε of releases of `count` outcomes. Each profile applies to a release with some probability, which is shown.

    Losses are multiples of a gap up to the largest. See docs/verify.md#lemma-9.
    """
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 (takes a second)

    if not largest < MAX_EPSILON:
        return inf
    points = 1000  # on either side of zero
    epsilons = np.linspace(0, largest, points + 1)
    mixture: Any = None
    total = 0.0
    for weight, profile in parts:
        deltas = profile(epsilons)
        # Where e^ε is below 1, δ is that of the other direction.
        below = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * deltas[:0:-1]
        all_deltas = np.clip(np.concatenate([below, deltas]), 0, 1)
        all_deltas = np.maximum.accumulate(all_deltas[::-1])[::-1]
        losses = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(largest / points, -points, points, all_deltas)
        losses = losses.self_compose(count, TAIL_PART * delta / releases).to_dense_pmf()
        total += weight
        mixture = losses if mixture is None else losses.compute_mixture(mixture, weight / total)
    return _composed_epsilon(mixture, releases, delta)


def _composed_epsilon(losses: Any, releases: int, delta: float) -> float:
    """ε of releases with these privacy losses, of dp_accounting."""
    composed = losses.self_compose(releases, TAIL_PART * delta)
    fft_error = 1e-13  # more than the rounding error of δ by Fourier transforms
    return float(composed.get_epsilon_for_delta(delta - fft_error)) * SLACK


# -- records of silos -----------------------------------------------------------------------------


def _record_spent(claims: Claims, releases: int, is_repeated: bool) -> PrivacySpent:
    """What was spent of a record."""
    honest = claims.cohorts(releases)[0][0][1]
    if claims.noise is not None:  # a silo that drops out is missing in the noise of two rounds
        honest = max(1, honest - claims.dropouts)
    round_mu = AdditiveRelease(claims, honest).anywhere_mu()
    if claims.sampling_rate not in (None, 1):
        if is_repeated:
            raise Unverifiable("rounds were repeated: this verifier has no bound for them and sampled records")
        return PrivacySpent(sampled_record_epsilon(round_mu, claims, releases), None, 0.0, releases, honest)
    mu = round_mu * sqrt(releases)
    epsilon = gaussian_epsilon(mu, claims.delta)[0]
    if claims.noise is not None:
        epsilon, mu = min((epsilon, mu), fixed_order_epsilon(claims, honest, releases))
    return PrivacySpent(epsilon, mu, 0.0, releases, honest)


def sampled_record_epsilon(mu: float, claims: Claims, releases: int) -> float:
    """ε of rounds that include a record with some probability: added or removed, whichever is worse.

    See docs/verify.md#lemma-7.

    Args:
        mu: μ of a round that includes it.
        claims: What one release is.
        releases: How many rounds.

    Returns:
        ε.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415 (takes a second)

    if not mu < 15:  # else there are too many losses
        raise Unverifiable(f"μ = {mu:.4g} of a round: this verifier composes losses of μ below 15")
    losses = pld.from_gaussian_mechanism(
        standard_deviation=1 / mu,
        sampling_prob=claims.sampling_rate,
        value_discretization_interval=1e-4 * (1 + mu**2),
    )
    return _composed_epsilon(losses, releases, claims.delta)
