"""This verifier's own ε: the least of three bounds, by Gaussians, Rényi divergences and privacy losses.

docs/verify.md has the proofs.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from math import atanh, ceil, expm1, inf, log, log1p, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from .correlated_bound import fixed_order_epsilon, participation_mu
from .gaussian_bound import (
    SLACK,
    anywhere_mu,
    best_price,
    gaussian_delta,
    gaussian_epsilon,
    release_mu,
)
from .integer_pmfs import LONG, TAIL, Array, end_pmfs, missing_from_sum, modular_noise, other_sums
from .ledger_claims import AFFINE, Claims
from .report import Unverifiable

ORDERS: tuple[float, ...] = (1.25, 1.5, 1.75, 2, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8, 9, 10, 11, 12, 14)
ORDERS += (16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
DISTANCES = np.array([0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0])[:, None]
"""Distances of two inputs, over the largest, between which every outcome is taken at its worst."""
STEP_PARTS = 64
"""Parts of a step, on each of which additive noise is taken at its worst."""
MAX_SHIFTS = 2**25
"""Outcomes times steps beyond which additive noise takes too long."""
MAX_LOSSES = 2**23
"""Losses beyond which they are not composed."""
FEW_COORDINATES, LOSS_POINTS = 1000, 1000
"""Coordinates times releases up to which privacy losses are composed; points of a loss on either side of zero."""
PROFILE_POINTS = 2000
"""Values of ε at which the δ of a mixture of cohorts is computed."""
LOSS_ERROR = 2e-13
"""More than the rounding error of a coordinate's δ."""
NEARLY_GAUSSIAN = 1.03
"""Within this factor of a Gaussian of the same variance (in μ), other bounds are not computed."""
RESERVED, TAIL_PART = 2e-3, 1e-3
"""The parts of δ that are left unused, as an accountant may, and that pay for outcomes far in the tails."""
MAX_EPSILON = 700.0
"""ε beyond which exponentials are no numbers."""
LOST_GAUSSIAN, LOST_PROBABILITY = 9.5, 1e-14
"""Standard deviations beyond which a Gaussian outcome is charged to δ, and more than its probability."""
MAX_SAMPLED_MU = 15
"""μ of a round of sampled records beyond which there are too many losses to compose."""


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
    honest = claims.min_honest(max(1, releases))[0]
    if not releases:
        return PrivacySpent(0.0, 0.0, 0.0, 0, honest)
    with np.errstate(all="ignore"):
        if claims.unit == "record":
            epsilon, mu, honest = _record_epsilon(claims, charges, releases)
            return PrivacySpent(epsilon, mu, 0.0, releases, honest)
        if claims.honest_fraction is not None and max(charges.values()) > 1:
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
    if claims.noise is not None:
        honest, failure = claims.min_honest(releases)[0], TAIL_PART * claims.delta / releases
        mu = participation_mu(claims, honest, failure) * sqrt(releases)
        return gaussian_epsilon(mu, delta)[0], mu, 0.0
    if claims.kind == "gaussian":
        multiplier, reached = claims.mechanism["noise_multiplier"], 1.0 if claims.neighboring == "zero-out" else 2.0
        mu, attained_mu = (factor / multiplier * sqrt(releases) for factor in (claims.distance, reached))
        return gaussian_epsilon(mu, delta)[0], mu, gaussian_epsilon(attained_mu * claims.attained, claims.delta)[1]
    epsilon, total_mu, largest = _by_gaussian(claims, releases)
    others, lower = (_affine_epsilons if claims.kind in AFFINE else _additive_epsilons)(claims, releases, largest)
    if min(others, default=inf) < epsilon:
        epsilon, total_mu = min(others), None
    if MAX_EPSILON < epsilon < inf and claims.honest_fraction is not None:
        raise Unverifiable(
            f"honest_fraction = {claims.honest_fraction}: this verifier has no tight bound for so large an ε"
        )
    return epsilon, total_mu, min(lower, epsilon)


def _by_gaussian(claims: Claims, releases: int) -> tuple[float, float | None, float]:
    """ε by μ of a release, for each number of honest clients that it may hold; μ, and the largest of one release.

    See docs/verify.md#lemma-1.
    """
    cohorts, delta = claims.cohorts(releases)
    mus = [release_mu(claims, honest, TAIL_PART * claims.delta / releases) for _, honest in cohorts]
    delta, mu = delta - RESERVED * claims.delta, max(mus) * sqrt(releases)
    if len(mus) == 1 or mu == inf:
        return gaussian_epsilon(mu, delta)[0], mu, max(mus)

    def profile(epsilon: Array) -> Array:
        return _mixed([weight * gaussian_delta(mu, epsilon) for (weight, _), mu in zip(cohorts, mus, strict=True)])

    epsilon = composed_epsilon(profile, releases, delta)
    return epsilon, None, max(mus) if epsilon < inf else inf


def _mixed(parts: list[Array]) -> Array:
    return np.asarray(np.sum(parts, axis=0))


def _renyi_epsilon(divergence: Callable[[float], float], releases: int, delta: float) -> float:
    """ε of Rényi divergences, at the best order that a search finds (Canonne, Kamath, Steinke 2020)."""

    @cache
    def at(index: int) -> float:
        alpha = ORDERS[index]
        total = releases * divergence(alpha) * SLACK
        if not total < inf:
            return inf
        if -expm1(-total) < delta**2:  # then even the total variation is below δ (Bretagnolle and Huber 1979)
            return 0.0
        return max(0.0, total + log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1))

    low, high = 0, len(ORDERS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
    return at(low) * SLACK


def _excess_curve(p: float, x: Array) -> Array:
    """((1−x)^p − 1 + p x) / x²: monotone in x < 1, and positive for p < 0 or p > 1."""
    near = p * (p - 1) / 2 * (1 - (p - 2) * x / 3 * (1 - (p - 3) * x / 4))
    is_small = abs(x) * (abs(p) + 3) < 1e-3
    safe = np.where(is_small, 0.5, x)
    curve = np.where(is_small, near, (np.expm1(p * np.log1p(-safe)) + p * safe) / safe**2)
    return np.nan_to_num(curve, nan=inf, posinf=inf)


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
        (low, high, _), pmfs = end_pmfs(claims.mechanism), []
        for others in other_sums(low, high, honest - 1):
            down, up = np.convolve(low, others), np.convolve(high, others)
            is_possible = (down > 0) & (up > 0)
            pmfs.append((down[is_possible], up[is_possible]))
        single = low + high > 0
        lean = float((abs(high - low)[single] / (high + low)[single]).max())
        return cls(pmfs, lean, missing_from_sum(honest, TAIL) if honest * len(low) >= LONG else 0.0)


def _affine_epsilons(claims: Claims, releases: int, largest_mu: float) -> tuple[list[float], float]:
    """Other bounds, unless μ is near to that of a Gaussian of the same variance; and a lower bound."""
    low, high, trials = end_pmfs(claims.mechanism)
    if ((low > 0) != (high > 0)).any():
        return [], 0.0  # some outcome reveals everything
    fewest, epsilons = claims.cohorts(releases)[0][0][1], []
    middle, outcomes = (low + high) / 2, np.arange(len(low))
    variance = float(middle @ (outcomes - middle @ outcomes) ** 2)
    squares = claims.squared_distance * trials
    normal_mu = float((high - low) @ outcomes) / 2 * sqrt(squares / (fewest * variance))
    if largest_mu > NEARLY_GAUSSIAN * normal_mu:
        epsilons.append(_affine_renyi_epsilon(claims, releases))
        if claims.sent * releases <= FEW_COORDINATES:
            epsilons.append(_coordinate_loss_epsilon(claims, releases))
    if claims.kind == "vqsgd" or claims.zero_distance > 1:  # other clients, or the user, cannot send zeros
        return epsilons, 0.0
    most = claims.clients if claims.honest_fraction is not None else claims.min_honest(releases)[0]
    return epsilons, _threshold_epsilon(claims, trials * releases, most)


def _affine_renyi_epsilon(claims: Claims, releases: int) -> float:
    """By Rényi divergences under the L2 bound, with the fewest honest clients that a release may hold.

    See docs/verify.md#lemma-8.
    """
    (honest, delta), trials = claims.min_honest(releases), end_pmfs(claims.mechanism)[2]
    pairs, d = AffinePairs.of(claims, honest), claims.sent
    cases, lean = [], pairs.lean  # pmfs F and y such that every pair to look at is F and F(1 − a·y), 0 < a ≤ 1
    for down, up in pairs.pmfs:
        r = (up - down) / (up + down)
        bases = [(up, 2 * r / (1 + r)), (down, -2 * r / (1 - r))]
        if claims.is_zero_out:
            bases = [((down + up) / 2, r), ((down + up) / 2, -r)]
        missing = [2 * lean / (1 + lean), -2 * lean / (1 - lean)]
        cases += [(np.append(pmf, [pairs.missing] * 2), np.append(y, missing)) for pmf, y in bases]

    def divergence(alpha: float) -> float:
        """With κ such that exp((α−1) D_α) − 1 ≤ κ a² for all pairs; and its value at a = 1."""
        kappa = farthest = 0.0
        for pmf, y in cases:
            weight = pmf * y * y
            is_possible = weight > 0
            for p in (alpha, 1 - alpha):
                values = _excess_curve(p, DISTANCES * y[is_possible])
                worst = np.maximum(values[1:], values[:-1]) @ weight[is_possible]
                kappa = max(kappa, *worst.tolist())
                farthest = max(farthest, float(values[-1] @ weight[is_possible]))
        if not kappa < inf:
            return inf
        return float(trials * d / (alpha - 1) * min(log1p(kappa * claims.squared_length / d), log1p(farthest)))

    return _renyi_epsilon(divergence, releases, delta)


def _threshold_epsilon(claims: Claims, sums: int, honest: int) -> float:
    """A lower bound: what a threshold on the sum of everything reveals, by the Berry-Esseen theorem.

    The others send zeros. The user's vector is flat; rotated, its signs differ, so the larger of two variances counts.

    See docs/verify.md#lemma-10.
    """
    low, high, _ = end_pmfs(claims.mechanism)
    d, outcomes = claims.sent, np.arange(len(low))
    a = 0.99 * claims.attained * sqrt(claims.squared_length / d)

    def moments(u: float) -> tuple[float, float]:
        pmf = ((1 - u) * low + (1 + u) * high) / 2
        mean = float(pmf @ outcomes)
        return mean, float(pmf @ (outcomes - mean) ** 2)

    (middle, at_zero), (top, above), (bottom, below) = moments(0), moments(a), moments(-a)
    count, best = float(d * sums), 0.0
    distance = count * (top - (middle if claims.is_zero_out else bottom))
    wide, narrow = (sqrt(count * (choose(at_zero, above, below) + (honest - 1) * at_zero)) for choose in (max, min))
    error = 0.56 * (len(low) - 1) / narrow
    for part in np.linspace(0, 1, 21).tolist():
        p, q = float(ndtr((1 - part) * distance / wide)) - error, float(ndtr(-part * distance / wide)) + error
        best = max(best, log((p - claims.delta) / q)) if p > claims.delta else best
    return best


# -- additive noise -------------------------------------------------------------------------------


def _additive_epsilons(claims: Claims, releases: int, largest_mu: float) -> tuple[list[float], float]:
    """By Rényi divergences: noise is shifted by k for inputs k steps apart; the L2 bound by a price on squares.

    See docs/verify.md#lemma-8.
    """
    mechanism, d = claims.mechanism, claims.sent
    steps, (honest, delta) = mechanism["steps"], claims.min_honest(releases)
    if steps == 1 and d * releases <= FEW_COORDINATES:
        raise Unverifiable("steps = 1: this verifier has no tight bound for so few coordinates")
    if steps << mechanism["bits"] > MAX_SHIFTS:
        raise Unverifiable(f"steps = {steps}, bits = {mechanism['bits']}: takes this verifier too long")
    pmf = modular_noise(mechanism, honest)  # symmetric, so both directions reveal as much
    squares = float(claims.squared_distance * (steps / 2) ** 2 / d)
    ends = np.arange(1, round(STEP_PARTS * (steps / 2 if claims.is_zero_out else steps)) + 1) / STEP_PARTS
    starts = (ends - 1 / STEP_PARTS) ** 2

    def shift_excess(k: int, alpha: float) -> float:
        """exp((α−1) D_α) − 1 of noise and noise that is shifted by k."""
        base = np.roll(pmf, k)
        y = 1 - pmf / base
        weight = base * y * y
        return float(_excess_curve(alpha, y[weight > 0]) @ weight[weight > 0])

    def divergence(alpha: float) -> float:
        shifted = [shift_excess(k, alpha) for k in range(1, steps + 1)]
        excess = np.interp(ends, np.arange(steps + 1), np.maximum.accumulate([0.0, *shifted]))
        values = np.log1p(excess) / (alpha - 1)
        if not values[-1] < inf:
            return inf

        def bound(price: float) -> float:
            return price * squares + float((values - price * starts).max())

        farthest = float(values[-1])
        return d * min(best_price(bound, farthest / max(float(starts[-1]), 1e-12)), farthest)

    return [_renyi_epsilon(divergence, releases, delta)], 0.0


# -- privacy losses -------------------------------------------------------------------------------


class Losses(NamedTuple):
    """The pmf of privacy losses at multiples of `gap` from `start` on; `missing` is the probability of all others."""

    pmf: Array
    start: int
    gap: float
    missing: float

    @classmethod
    def of_profile(cls, more: Array, gap: float) -> "Losses":
        """The losses of a pair with this δ at ε = 0, `gap`, … in both directions.

        Straight lines in e^ε between these points are above the profile. At x = e^ε below 1,
        δ(x) − (1 − x) is that at 1/x, times x.
        """
        half = len(more) - 1
        x = np.exp(gap * np.arange(half + 1))
        x, more = np.concatenate([1 / x[:0:-1], x]), np.concatenate([(more / x)[:0:-1], more])
        q = np.diff(np.concatenate([[0.0], np.diff(more) / np.diff(x), [0.0]]))
        q[half] += 1
        return cls(np.maximum(q, 0) * x, -half, gap, float(more[-1]))

    def delta(self, epsilon: Array) -> Array:
        """δ at values of ε from 0 to `MAX_EPSILON`, rounded up."""
        losses = self.gap * (self.start + np.arange(len(self.pmf)))
        above, paid = (np.append(np.cumsum(p[::-1])[::-1], 0.0) for p in (self.pmf, self.pmf * np.exp(-losses)))
        first = np.searchsorted(losses, epsilon, side="right")
        return np.asarray(np.maximum(above[first] - np.exp(epsilon) * paid[first], 0) + self.missing)

    def composed(self, count: int, cut: float) -> "Losses":
        """The sum of so many independent losses, except for `cut` at either end, by Chernoff's bound."""
        indices = self.start + np.arange(len(self.pmf))
        losses, farthest, ends = self.gap * indices, int(abs(indices).max()), []
        for sign in (1, -1):
            tilts = (2.0 ** np.arange(-14, 12) / (self.gap * farthest)).tolist()
            end = min((count * np.log(self.pmf @ np.exp(sign * t * losses)) - log(cut)) / t for t in tilts)
            ends.append(sign * min(count * farthest, ceil(end / self.gap)))
        top, bottom = ends
        size = 1 << (top - bottom + 1).bit_length()
        if size > MAX_LOSSES:
            return Losses(np.ones(1), 0, self.gap, inf)
        wrapped = np.bincount(indices % size, self.pmf, size)
        total = np.maximum(np.fft.irfft(np.fft.rfft(wrapped) ** count, size), 0)
        missing = count * self.missing * (1 + 1e-9) + 2 * cut + size * 1e-18
        return Losses(np.roll(total, -bottom)[: top - bottom + 1], bottom, self.gap, missing)

    def epsilon(self, delta: float) -> float:
        """The smallest multiple of `gap` at which δ is enough."""
        values = self.gap * np.arange(max(0, self.start), self.start + len(self.pmf), dtype=np.float64)
        values = values[values <= MAX_EPSILON]
        enough = np.flatnonzero(self.delta(values) <= delta)
        return float(values[enough[0]]) * SLACK if len(enough) else inf


def composed_epsilon(profile: Callable[[Array], Array], count: int, delta: float) -> float:
    """ε of so many releases of which δ is known as a function of ε.

    Args:
        profile: δ of one release at some values of ε.
        count: How many releases.
        delta: δ of all of them.

    Returns:
        ε, infinite if none up to `MAX_EPSILON` is enough.
    """
    grid = np.geomspace(2.0**-20, MAX_EPSILON, 301)
    enough = np.flatnonzero(profile(grid) <= (delta if count == 1 else TAIL_PART * delta / count))
    if not len(enough):
        return inf
    last = int(enough[0])
    if count == 1:
        grid = np.linspace(grid[last - 1] if last else 0.0, grid[last], 1001)
        return float(grid[np.flatnonzero(profile(grid) <= delta)[0]]) * SLACK
    gap = float(grid[last]) / PROFILE_POINTS
    deltas = profile(gap * np.arange(PROFILE_POINTS + 1, dtype=np.float64))
    losses = Losses.of_profile(np.maximum.accumulate(deltas[::-1])[::-1], gap)
    return losses.composed(count, TAIL_PART * delta).epsilon(delta)


def _coordinate_loss_epsilon(claims: Claims, releases: int) -> float:
    """By the losses of single coordinates, for every number of honest clients that a release may hold.

    See docs/verify.md#lemma-9.
    """
    trials, (cohorts, delta) = end_pmfs(claims.mechanism)[2], claims.cohorts(releases)
    count, cut = trials * claims.sent, RESERVED * delta
    single = [(weight, _coordinate_losses(AffinePairs.of(claims, honest))) for weight, honest in cohorts]
    if len(single) == 1:
        return single[0][1].composed(count * releases, cut).epsilon(delta)
    release = [(weight, losses.composed(count, cut / releases)) for weight, losses in single]
    return composed_epsilon(
        lambda epsilon: _mixed([weight * losses.delta(epsilon) for weight, losses in release]), releases, delta
    )


def _coordinate_losses(pairs: AffinePairs) -> Losses:
    """The losses of one coordinate, the worst of all blocks and both directions."""
    gap = 2 * atanh(pairs.lean) * (1 + 1e-9) / LOSS_POINTS  # no loss is above log((1 + r) / (1 − r))
    x, more = np.exp(gap * np.arange(LOSS_POINTS + 1)), np.zeros(LOSS_POINTS + 1)
    for pair in pairs.pmfs:
        for p, q in (pair, pair[::-1]):
            order = np.argsort(q / p)  # the largest losses first
            count_above = np.searchsorted((q / p)[order], 1 / x, side="left")
            mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(pmf[order])]) for pmf in (p, q))
            more = np.maximum(more, mass_p[count_above] - x * mass_q[count_above])
    return Losses.of_profile(more + pairs.missing + LOSS_ERROR, gap)


# -- records of silos -----------------------------------------------------------------------------


def _record_epsilon(claims: Claims, charges: Counter[int], releases: int) -> tuple[float, float | None, int]:
    """ε of a record, its μ, and the honest silos whose noise is counted on."""
    honest = claims.min_honest(releases)[0]
    if claims.noise is not None:  # a silo that drops out is missing in the noise of two rounds
        honest = max(1, honest - claims.dropouts)
    mu = anywhere_mu(claims, honest, claims.distance_anywhere) * sqrt(releases)
    if claims.sampling_rate not in (None, 1):
        if max(charges.values()) > 1:
            raise Unverifiable("rounds were repeated: this verifier has no bound for them and sampled records")
        return sampled_record_epsilon(mu / sqrt(releases), claims, releases), None, honest
    epsilon = gaussian_epsilon(mu, claims.delta)[0]
    if claims.noise is not None:
        by_order = fixed_order_epsilon(claims, honest, releases)
        epsilon, mu = min((epsilon, mu), by_order)
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
    if not mu < MAX_SAMPLED_MU:
        raise Unverifiable(f"μ = {mu:.4g} of a round: this verifier composes losses of μ below {MAX_SAMPLED_MU}")
    gap = min(1e-3, max(2e-5, 0.04 / releases))
    with np.errstate(all="ignore"):
        both = [_sampled_losses(mu, float(claims.sampling_rate or 1), gap, is_added) for is_added in (True, False)]
        return max(losses.composed(releases, TAIL_PART * claims.delta).epsilon(claims.delta) for losses in both)


def _sampled_losses(mu: float, rate: float, gap: float, is_added: bool) -> Losses:
    """Losses, rounded up: of a mixture of N(0, 1) and N(μ, 1) over the former, or of the former over the mixture."""
    sign = 1 if is_added else -1
    high = log(1 - rate + rate * np.exp(mu * (mu + LOST_GAUSSIAN) - mu * mu / 2))
    bottom, top = sorted((sign * log(1 - rate), sign * high))
    start, stop = int(np.floor(bottom / gap)), int(np.ceil(top / gap))
    ends = gap * np.arange(start, stop + 1)
    inside = (np.exp(sign * ends) - 1 + rate) / rate
    x = np.where(inside > 0, (np.log(np.maximum(inside, 1e-300)) + mu * mu / 2) / mu, -np.inf)
    below = (1 - rate) * ndtr(x) + rate * ndtr(x - mu) if is_added else 1 - ndtr(x)
    pmf = np.maximum(np.diff(np.concatenate([[0.0], below])), 0)
    return Losses(pmf * (1 + 1e-12), start, gap, LOST_PROBABILITY)
