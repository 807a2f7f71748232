"""This verifier's own ε: the least of three bounds, by Gaussians, Rényi divergences and privacy losses.

docs/verify.md has the proofs. Privacy loss distributions are composed by dp_accounting.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import atanh, expm1, inf, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

from .correlated_bound import fixed_order_epsilon, participation_mu
from .gaussian_bound import (
    SLACK,
    anywhere_mu,
    gaussian_delta,
    gaussian_epsilon,
    release_mu,
    worst_sum,
)
from .integer_pmfs import LONG, TAIL, Array, end_pmfs, missing_from_sum, modular_noise, other_sums
from .ledger_claims import AFFINE, Claims
from .verification_report import Unverifiable

RENYI_ORDERS: tuple[float, ...] = (
    1.25,
    1.5,
    1.75,
    2,
    3,
    3.25,
    3.5,
    3.75,
    4,
    4.5,
    5,
    5.5,
    6,
    6.5,
    7,
    8,
    9,
    10,
    11,
    12,
    14,
)
RENYI_ORDERS += (16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
"""Rényi orders."""
FEW_COORDINATES = 1000
"""Coordinates of all releases up to which privacy losses are composed."""
FFT_ERROR = 1e-13
"""More than the rounding error of δ by Fourier transforms."""
RESERVED, TAIL_PART = 2e-3, 1e-3
"""The parts of δ that are left unused, as an accountant may, and that pay for outcomes far in the tails."""
MAX_EPSILON = 700.0
"""ε beyond which exponentials are no numbers."""


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
    honest = claims.cohorts(max(1, releases))[0][0][1]
    if not releases:
        return PrivacySpent(0.0, 0.0, 0.0, 0, honest)
    is_repeated = max(charges.values()) > 1
    with np.errstate(all="ignore"):
        if claims.unit == "record":
            epsilon, mu, honest = _record_epsilon(claims, releases, is_repeated)
            return PrivacySpent(epsilon, mu, 0.0, releases, honest)
        if claims.honest_fraction is not None and is_repeated:
            raise Unverifiable(
                f"honest_fraction = {claims.honest_fraction}: this verifier has no bound for it and repeated rounds"
            )
        return PrivacySpent(*user_epsilon(claims, releases), releases, honest)


def user_epsilon(claims: Claims, releases: int) -> tuple[float, float | None, float]:
    """ε of a user, its μ, and a lower bound.

    Args:
        claims: What one release is.
        releases: How many of them the user was part of.

    Returns:
        ε; μ if ε is that of one Gaussian; an ε below which no true statement lies.
    """
    delta = (1 - RESERVED) * claims.delta
    failure = TAIL_PART * claims.delta / releases
    if claims.noise is not None:
        mu = participation_mu(claims, claims.cohorts(releases)[0][0][1], failure) * sqrt(releases)
        return gaussian_epsilon(mu, delta)[0], mu, 0.0
    if claims.kind == "gaussian":
        per_distance = sqrt(releases) / claims.mechanism["noise_multiplier"]
        mu = claims.distance * per_distance
        attained_mu = claims.attained * (1 if claims.neighboring == "zero-out" else 2) * per_distance
        return gaussian_epsilon(mu, delta)[0], mu, gaussian_epsilon(attained_mu, claims.delta)[1]
    cohorts, delta_left = claims.cohorts(releases)
    mus = [release_mu(claims, honest, failure) for _, honest in cohorts]
    largest = max(mus)
    total_mu: float | None = None
    if len(mus) == 1 or largest == inf:
        total_mu = largest * sqrt(releases)
        epsilon = gaussian_epsilon(total_mu, delta_left - RESERVED * claims.delta)[0]
    else:
        parts = [(weight, partial(gaussian_delta, mu)) for (weight, _), mu in zip(cohorts, mus, strict=True)]
        largest_loss = gaussian_epsilon(largest, TAIL_PART * claims.delta / releases)[0]
        epsilon = _loss_epsilon(parts, largest_loss, 1, releases, delta_left - RESERVED * claims.delta)
    if claims.kind in AFFINE:
        non_gaussian_epsilon, lower = _affine_epsilon(claims, releases)
    else:
        non_gaussian_epsilon, lower = _additive_epsilon(claims, releases), 0.0
    if non_gaussian_epsilon < epsilon:
        epsilon = non_gaussian_epsilon
        total_mu = None
    if MAX_EPSILON < epsilon < inf and claims.honest_fraction is not None:
        raise Unverifiable(
            f"honest_fraction = {claims.honest_fraction}: this verifier has no tight bound for so large an ε"
        )
    return epsilon, total_mu, min(lower, epsilon)


# -- Rényi divergences ----------------------------------------------------------------------------

Divergence = Callable[[float], float]
"""D_α of a release, by α."""


def _renyi_epsilon(claims: Claims, releases: int, divergence_of: Callable[[int], Divergence]) -> float:
    """ε at the best Rényi order (Canonne, Kamath, Steinke 2020), from D_α of a release with a number of honest clients.

    See docs/verify.md#lemma-8.
    """
    cohorts, delta = claims.cohorts(releases)
    parts = [(log(weight), divergence_of(honest)) for weight, honest in cohorts]

    def bound(alpha: float, parts: Sequence[tuple[float, Divergence]]) -> float:
        """ε at an order, as far as it comes from some of the cohorts."""
        moments = [log_weight + (alpha - 1) * divergence(alpha) for log_weight, divergence in parts]
        total = releases * float(logsumexp(moments)) / (alpha - 1) * SLACK
        if -expm1(-max(0.0, total)) < delta**2:  # then even the total variation is below δ (Bretagnolle and Huber 1979)
            return 0.0
        return total + log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1)

    # Of most orders, one cohort is enough to see that they are not the best.
    likeliest = max(parts, key=lambda part: part[0])
    lower = {alpha: bound(alpha, [likeliest]) for alpha in RENYI_ORDERS}
    smallest = inf
    for alpha in sorted(RENYI_ORDERS, key=lower.__getitem__):
        if lower[alpha] < smallest:
            smallest = min(smallest, bound(alpha, parts))
    return max(0.0, smallest) * SLACK


def _power_remainder(p: float, x: Array) -> Array:
    """((1−x)^p − 1 + p x) / x²: monotone in x < 1, and positive for p < 0 or p > 1."""
    series = p * (p - 1) / 2 * (1 - (p - 2) * x / 3 * (1 - (p - 3) * x / 4))
    is_small = abs(x) * (abs(p) + 3) < 1e-3
    safe = np.where(is_small, 0.5, x)
    curve = np.where(is_small, series, (np.expm1(p * np.log1p(-safe)) + p * safe) / safe**2)
    return np.where(np.isnan(curve), inf, curve)


# -- privacy losses -------------------------------------------------------------------------------

Profile = Callable[[Array], Array]
"""δ at increasing values of ε."""


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
    composed = mixture.self_compose(releases, TAIL_PART * delta)
    return float(composed.get_epsilon_for_delta(delta - FFT_ERROR)) * SLACK


# -- mechanisms whose pmf is affine on the clip ---------------------------------------------------


class AffinePairs(NamedTuple):
    """For each block of the others, the pmfs of the sum with the user's input at −c and at c.

    The pmf at u·c is m(1 + u·r), with |r| ≤ `lean` also for outcomes that were cut off; these have
    probability `missing` at most.
    """

    pmfs: list[tuple[Array, Array]]
    lean: float
    missing: float

    @classmethod
    def of(cls, claims: Claims, honest: int) -> "AffinePairs":
        """The pairs of one trial of a coordinate."""
        low, high, _ = end_pmfs(claims.mechanism)
        pmfs = []
        for others in other_sums(low, high, honest - 1):
            down = np.convolve(low, others)
            up = np.convolve(high, others)
            is_possible = (down > 0) & (up > 0)
            pmfs.append((down[is_possible], up[is_possible]))
        single = low + high > 0
        lean = float((abs(high - low)[single] / (high + low)[single]).max())
        return cls(pmfs, lean, missing_from_sum(honest, TAIL) if honest * len(low) >= LONG else 0.0)

    def profile(self, epsilons: Array) -> Array:
        """δ of one trial of a coordinate, the worst of all blocks and both directions."""
        x = np.exp(epsilons)
        deltas = np.zeros(len(x))
        for pair in self.pmfs:
            for p, q in (pair, pair[::-1]):
                order = np.argsort(q / p)  # the largest losses first
                count_above = np.searchsorted((q / p)[order], 1 / x, side="left")
                mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(pmf[order])]) for pmf in (p, q))
                deltas = np.maximum(deltas, mass_p[count_above] - x * mass_q[count_above])
        return np.asarray(deltas + self.missing + 2e-13)  # more than the rounding errors


def _affine_epsilon(claims: Claims, releases: int) -> tuple[float, float]:
    """By Rényi divergences and, of few coordinates, by privacy losses; and a lower bound."""
    low, high, trials = end_pmfs(claims.mechanism)
    if ((low > 0) != (high > 0)).any():
        return inf, 0.0  # some outcome reveals everything
    epsilon = _renyi_epsilon(claims, releases, partial(_affine_divergence, claims))
    coordinates = claims.sent * releases
    if coordinates <= FEW_COORDINATES and trials * coordinates <= 2**16:
        cohorts, delta = claims.cohorts(releases)
        pairs = [AffinePairs.of(claims, honest) for _, honest in cohorts]
        parts = [(weight, pair.profile) for (weight, _), pair in zip(cohorts, pairs, strict=True)]
        largest = 2 * atanh(pairs[0].lean) * (1 + 1e-9)  # no loss is above log((1 + r) / (1 − r))
        epsilon = min(epsilon, _loss_epsilon(parts, largest, trials * claims.sent, releases, delta))
    if claims.kind == "vqsgd" or claims.zero_distance > 1:  # other clients, or the user, cannot send zeros
        return epsilon, 0.0
    max_honest = claims.clients if claims.honest_fraction is not None else claims.cohorts(releases)[0][0][1]
    return epsilon, _threshold_epsilon(claims, trials * releases, max_honest)


def _affine_divergence(claims: Claims, honest: int) -> Divergence:
    """Of mechanisms whose pmf is affine on the clip, under the L2 bound. See docs/verify.md#lemma-8."""
    count = end_pmfs(claims.mechanism)[2] * claims.sent
    pairs = AffinePairs.of(claims, honest)
    lean = pairs.lean
    # Distances of two inputs, over the largest, between which every outcome is taken at its worst.
    cells = np.array([0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0])
    cases = []  # pmfs F and y such that every pair to look at is F and F(1 − a·y), 0 < a ≤ 1
    for down, up in pairs.pmfs:
        r = (up - down) / (up + down)
        bases = [(up, 2 * r / (1 + r)), (down, -2 * r / (1 - r))]
        if claims.is_zero_out:
            bases = [((down + up) / 2, r), ((down + up) / 2, -r)]
        for pmf, slopes in bases:
            y = np.append(slopes, [2 * lean / (1 + lean), -2 * lean / (1 - lean)])
            weight = np.append(pmf, [pairs.missing] * 2) * y * y
            cases.append((y[weight > 0], weight[weight > 0]))

    def divergence(alpha: float) -> float:
        """From exp((α−1) D_α) − 1 ≤ κ a² of a coordinate, with the largest κ of all cells of distances a."""
        kappa = 0.0
        for y, weight in cases:
            for p in (alpha, 1 - alpha):
                values = _power_remainder(p, cells[:, None] * y)
                kappa = max(kappa, float((np.maximum(values[1:], values[:-1]) @ weight).max()))
        return count / (alpha - 1) * log1p(kappa * claims.squared_length / claims.sent)

    return divergence


def _threshold_epsilon(claims: Claims, sums: int, honest: int) -> float:
    """A lower bound: what a threshold on the sum of everything reveals, by the Berry-Esseen theorem.

    The others send zeros. The user's vector is flat; rotated, its signs differ, so the larger of two variances counts.

    See docs/verify.md#lemma-10.
    """
    low, high, _ = end_pmfs(claims.mechanism)
    outcomes = np.arange(len(low))
    a = 0.99 * claims.attained * sqrt(claims.squared_length / claims.sent)
    inputs = np.array([0, a, -a])[:, None]
    pmfs = ((1 - inputs) * low + (1 + inputs) * high) / 2
    means = pmfs @ outcomes
    at_zero, *variances = ((pmfs * (outcomes - means[:, None]) ** 2).sum(axis=1)).tolist()
    count = float(claims.sent * sums)
    distance = count * (means[1] - means[0 if claims.is_zero_out else 2])
    others_variance = (honest - 1) * at_zero
    wide = sqrt(count * (max(at_zero, *variances) + others_variance))
    narrow = sqrt(count * (min(at_zero, *variances) + others_variance))
    error = 0.56 * (len(low) - 1) / narrow
    parts = np.linspace(0, 1, 21)
    p = ndtr((1 - parts) * distance / wide) - error
    q = ndtr(-parts * distance / wide) + error
    return float(np.log(np.maximum((p - claims.delta) / q, 1)).max())


# -- additive noise -------------------------------------------------------------------------------


def _additive_epsilon(claims: Claims, releases: int) -> float:
    """By Rényi divergences."""
    mechanism = claims.mechanism
    steps = mechanism["steps"]
    if steps == 1 and claims.sent * releases <= FEW_COORDINATES:
        raise Unverifiable("steps = 1: this verifier has no tight bound for so few coordinates")
    if steps << mechanism["bits"] > 2**25:
        raise Unverifiable(f"steps = {steps}, bits = {mechanism['bits']}: takes this verifier too long")
    return _renyi_epsilon(claims, releases, partial(_additive_divergence, claims))


def _additive_divergence(claims: Claims, honest: int) -> Divergence:
    """Of additive noise, shifted by k for inputs k steps apart, and linear in between. See docs/verify.md#lemma-8."""
    mechanism = claims.mechanism
    steps = mechanism["steps"]
    pmf = modular_noise(mechanism, honest)  # symmetric, so both directions reveal as much
    last = steps / 2 if claims.is_zero_out else steps
    shifts = np.arange(round(48 * last) + 1) / 48  # noise is taken at its worst on each part of a step

    def shift_excess(k: int, alpha: float) -> float:
        """exp((α−1) D_α) − 1 of noise and noise that is shifted by k."""
        base = np.roll(pmf, k)
        y = 1 - pmf / base
        weight = base * y * y
        return float(_power_remainder(alpha, y[weight > 0]) @ weight[weight > 0])

    def divergence(alpha: float) -> float:
        excess = np.maximum.accumulate([0.0, *(shift_excess(k, alpha) for k in range(1, steps + 1))])
        values = np.log1p(np.interp(shifts[1:], np.arange(steps + 1), excess)) / (alpha - 1)
        return worst_sum(shifts / last, values, claims.sent, claims.squared_length)

    return divergence


# -- records of silos -----------------------------------------------------------------------------


def _record_epsilon(claims: Claims, releases: int, is_repeated: bool) -> tuple[float, float | None, int]:
    """ε of a record, its μ, and the honest silos whose noise is counted on."""
    honest = claims.cohorts(releases)[0][0][1]
    if claims.noise is not None:  # a silo that drops out is missing in the noise of two rounds
        honest = max(1, honest - claims.dropouts)
    round_mu = anywhere_mu(claims, honest, claims.distance_anywhere)
    if claims.sampling_rate not in (None, 1):
        if is_repeated:
            raise Unverifiable("rounds were repeated: this verifier has no bound for them and sampled records")
        return sampled_record_epsilon(round_mu, claims, releases), None, honest
    mu = round_mu * sqrt(releases)
    epsilon = gaussian_epsilon(mu, claims.delta)[0]
    if claims.noise is not None:
        epsilon, mu = min((epsilon, mu), fixed_order_epsilon(claims, honest, releases))
    return epsilon, mu, honest


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
    composed = losses.self_compose(releases, TAIL_PART * claims.delta)
    return float(composed.get_epsilon_for_delta(claims.delta - FFT_ERROR)) * SLACK
