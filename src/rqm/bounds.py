"""Privacy statements that hold for every pair of neighbors, and their composition.

A `Bound` is a claim about two neighboring inputs, the probability of the outcomes that the claim
leaves out, and the assumptions under which it holds. `compose` adds up bounds, `epsilon` turns
one into ε at a given δ. Nothing else in the package subtracts from δ or states a guarantee: every
text about a guarantee is rendered from the assumptions here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from math import ceil, exp, expm1, inf, isfinite, isnan, log, log1p, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from rqm._util.checks import FloatArray, real, whole
from rqm._util.numeric import find_root

Neighboring = Literal["replace-one", "zero-out", "add-or-remove-one"]
Adversary = Literal["server", "outsider"]
Unit = Literal["user", "record"]

PLD_GRID_SIZE = 2**13
"""Values of ε at which a privacy profile is evaluated; in between it is bounded (Doroshenko et al.
2022)."""
MAX_FINITE_EPSILON = 1e6
"""A larger ε, or privacy loss, counts as infinite."""


# -- assumptions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumption(ABC):
    """A condition under which a bound holds. Subclasses are the only place where guarantees are put
    into words, and are printed in the order of their definitions."""

    @abstractmethod
    def text(self, unit: Unit) -> str:
        """The condition as a sentence.

        Args:
            unit: What is protected, a user or a record.

        Returns:
            The sentence, without a full stop.
        """

    def to_dict(self) -> dict[str, Any]:
        """The name of the assumption and its values, ready for JSON."""
        return {"assumption": type(self).__name__} | {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(frozen=True)
class SecureSum(Assumption):
    """The adversary sees only sums over a round's clients."""

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return "secure aggregation reveals only the sum of each round"


@dataclass(frozen=True)
class TrustedServer(Assumption):
    """The server sees every vector and adds the noise."""

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return "the server is trusted: it sees every vector, adds the noise and keeps it secret"


@dataclass(frozen=True)
class HonestClients(Assumption):
    """At least `honest` clients of every round follow the protocol, the protected one included."""

    honest: int
    clients: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        member, owner = {"user": ("client", "device"), "record": ("silo", "silo")}[unit]
        if self.honest == 1:
            return f"the {unit}'s own {owner} is honest"
        if self.honest == self.clients:
            return f"all {self.clients:,} {member}s of every round are honest"
        return f"at least {self.honest:,} of the {self.clients:,} {member}s of every round are honest"


@dataclass(frozen=True)
class HonestFraction(Assumption):
    """A fraction of the population follows the protocol."""

    fraction: float
    population: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        amount = "all" if self.fraction == 1 else f"{self.fraction:.10g} of the"
        return f"{amount} {self.population:,} users are honest"


@dataclass(frozen=True)
class MinSurvivors(Assumption):
    """Rounds that end with fewer clients are discarded; those who drop out may all have been honest."""

    survivors: int
    clients: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return (
            f"rounds that end with fewer than {self.survivors:,} of {self.clients:,} clients are discarded, and "
            "whether a client drops out does not depend on its data"
        )


@dataclass(frozen=True)
class UniformSampling(Assumption):
    """Each round's clients are a uniform sample without replacement."""

    clients: int
    population: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return (
            f"each round's {self.clients:,} clients are drawn uniformly at random from {self.population:,} users, "
            "independently of earlier rounds"
        )


@dataclass(frozen=True)
class SecretParticipation(Assumption):
    """The adversary does not know who takes part."""

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return "the adversary never learns who takes part in a round"


@dataclass(frozen=True)
class MaxParticipations(Assumption):
    """A user or record takes part in at most `participations` of the rounds."""

    participations: int
    rounds: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        if self.rounds == 1:
            return "there is one round"
        limit = "all" if self.participations >= self.rounds else f"at most {self.participations:,}"
        return f"a {unit} takes part in {limit} of the {self.rounds:,} rounds"


@dataclass(frozen=True)
class MinSeparation(Assumption):
    """Two participations of a user or record are at least `separation` rounds apart."""

    separation: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return f"two participations of a {unit} are at least {self.separation:,} rounds apart"


@dataclass(frozen=True)
class FixedOrder(Assumption):
    """Which rounds a record is in follows from the record alone."""

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return "the rounds of a record follow from the record alone (a fixed order of batches)"


@dataclass(frozen=True)
class HonestAfterParticipation(Assumption):
    """The minimum of honest clients holds in every round of a window, and noise is settled as the
    protocol says."""

    rounds: int

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        clients, settlement = {
            "user": ("clients", "delivers both of its messages"),
            "record": ("silos", "cancels its noise in its next message"),
        }[unit]
        return (
            f"the number of honest {clients} holds in each of the {self.rounds:,} rounds from a participation on, and "
            f"each {settlement}"
        )


@dataclass(frozen=True)
class PoissonSampling(Assumption):
    """Each silo includes each record of a round independently with the same probability, and keeps
    its sample secret."""

    rate: float

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        sampler = {"user": "the server", "record": "its silo"}[unit]
        return (
            f"each {unit} is included in a round independently with probability {self.rate:.10g} "
            f"(Poisson sampling), and only {sampler} knows the sample"
        )


@dataclass(frozen=True)
class NothingElseReleased(Assumption):
    """Nothing but the rounds' sums is computed from the protected data and released."""

    def text(self, unit: Unit) -> str:
        """The condition as a sentence."""
        return (
            "nothing else is computed from the protected data and released: the clip, the learning rate and all other "
            "parameters are chosen without it, or from what was released"
        )


# -- claims ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GdpMu:
    """μ-GDP: neighbors are no easier to tell apart than N(0, 1) and N(μ, 1) (Dong, Roth and Su
    2022)."""

    mu: float


@dataclass(frozen=True)
class PureEpsilon:
    """Pure ε-differential privacy (δ = 0)."""

    epsilon: float


@dataclass(frozen=True, eq=False)
class RdpCurve:
    """Rényi DP: D_α ≤ `values[i]` at α = `orders[i]`, in both directions."""

    orders: tuple[float, ...]
    values: FloatArray


@dataclass(frozen=True, eq=False)
class ReleaseProfile:
    """δ as a function of ε for one release.

    Attributes:
        delta: δ at some ε ≥ 0, in both directions: of a pair of neighbors either may be the
            truth.
        loss: The privacy loss distribution of a dominating pair, discretized at a given interval;
            None: it is made from `delta`.
    """

    delta: Callable[[FloatArray], FloatArray]
    loss: Callable[[float], Any] | None = None


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """Releases that are given by their privacy profiles, with how often each occurs. They compose by
    their losses."""

    parts: tuple[tuple[ReleaseProfile, int], ...]


Claim = GdpMu | PureEpsilon | RdpCurve | PrivacyProfile


@dataclass(frozen=True, eq=False)
class Bound:
    """A sound statement about every pair of neighbors.

    See docs/proofs/composition.md#definition-1.

    Attributes:
        claim: What holds.
        failure: Probability of the outcomes that the claim leaves out.
        assumptions: The conditions under which it holds.
    """

    claim: Claim
    failure: float = 0.0
    assumptions: frozenset[Assumption] = frozenset()

    def assuming(self, *assumptions: Assumption) -> "Bound":
        """The same bound under further assumptions."""
        return Bound(self.claim, self.failure, self.assumptions | frozenset(assumptions))


def gaussian(noise_multiplier: float) -> Bound:
    """The bound of a Gaussian mechanism.

    Args:
        noise_multiplier: The standard deviation of the noise over the L2 sensitivity.

    Returns:
        1/noise_multiplier-GDP.
    """
    return Bound(GdpMu(1 / real("noise_multiplier", noise_multiplier, "a positive finite number", 0, inf)))


def laplace(scale: float) -> Bound:
    """The bound of a Laplace mechanism.

    Args:
        scale: The scale of the noise over the L1 sensitivity.

    Returns:
        The privacy profile, δ(ε) = 1 − exp((ε − 1/scale)/2).
    """
    pure = 1 / real("scale", scale, "a positive finite number", 0, inf)
    return Bound(PrivacyProfile(((ReleaseProfile(lambda eps: np.maximum(-np.expm1((eps - pure) / 2), 0)), 1),)))


def epsilon_of_gaussian(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """ε of a Gaussian mechanism, exactly.

    Args:
        noise_multiplier: The standard deviation of the noise over the L2 sensitivity.
        delta: δ, above 0 and below 1.
        releases: How often it is used on the same data.

    Returns:
        ε.

    >>> round(epsilon_of_gaussian(5.0, 1e-5, 100), 4)
    9.9973
    """
    return epsilon(compose([(gaussian(noise_multiplier), whole("releases", releases, 1))]), delta)


def epsilon_of_laplace(scale: float, delta: float, releases: int = 1) -> float:
    """ε of a Laplace mechanism.

    Args:
        scale: The scale of the noise over the L1 sensitivity.
        delta: δ, above 0 and below 1.
        releases: How often it is used on the same data.

    Returns:
        ε, which is exact for one release and slightly rounded up for several.

    >>> round(epsilon_of_laplace(2.0, 1e-3), 4), round(epsilon_of_laplace(2.0, 1e-5, 10), 2)
    (0.498, 4.99)
    """
    return epsilon(compose([(laplace(scale), whole("releases", releases, 1))]), delta)


# -- composition ----------------------------------------------------------------------------------


def compose(parts: Sequence[tuple[Bound, int]]) -> Bound:
    """The bound of several releases, each chosen after seeing the ones before (adaptive
    composition).

    See docs/proofs/composition.md#theorem-3.

    Args:
        parts: Bounds, and how often each occurs.

    Returns:
        One bound. Failure probabilities add up, assumptions are joined. Claims of one kind compose
        to that kind; Rényi curves among other claims, or at other orders, by the privacy profiles
        that they imply.
    """
    failure = sum(count * bound.failure for bound, count in parts)
    assumptions = frozenset[Assumption]().union(*(bound.assumptions for bound, _ in parts))
    claims = [(bound.claim, count) for bound, count in parts]
    gdp = [(claim, count) for claim, count in claims if isinstance(claim, GdpMu)]
    if len(gdp) == len(claims):
        return Bound(GdpMu(sqrt(sum(count * claim.mu**2 for claim, count in gdp))), failure, assumptions)
    pure = [(claim, count) for claim, count in claims if isinstance(claim, PureEpsilon)]
    if len(pure) == len(claims):
        return Bound(PureEpsilon(sum(count * claim.epsilon for claim, count in pure)), failure, assumptions)
    totals: dict[tuple[float, ...], FloatArray] = {}
    for claim, count in claims:
        if isinstance(claim, RdpCurve):
            totals[claim.orders] = totals.get(claim.orders, np.zeros(len(claim.orders))) + count * claim.values
    curves = [RdpCurve(orders, values) for orders, values in totals.items()]
    others = [(claim, count) for claim, count in claims if not isinstance(claim, RdpCurve)]
    if len(curves) == 1 and not others:
        return Bound(curves[0], failure, assumptions)
    profiles = tuple(
        (profile, count * repetitions)
        for claim, count in [*others, *((curve, 1) for curve in curves)]
        for profile, repetitions in profile_claim(claim).parts
    )
    return Bound(PrivacyProfile(profiles), failure, assumptions)


def profile_claim(claim: Claim) -> PrivacyProfile:
    """What a claim implies, as privacy profiles."""
    return claim if isinstance(claim, PrivacyProfile) else PrivacyProfile(((profile_of(claim), 1),))


def profile_of(claim: Claim) -> ReleaseProfile:
    """δ as a function of ε that a claim implies, for everything that it covers.

    See docs/proofs/composition.md#lemma-4.

    Args:
        claim: Any claim.

    Returns:
        A profile; of several releases, that of their composition.
    """
    if isinstance(claim, GdpMu):
        return ReleaseProfile(lambda eps: gaussian_deltas(claim.mu, eps))
    if isinstance(claim, PureEpsilon):
        top = min(claim.epsilon, 700.0)  # exp of more is no float; randomized response dominates pure mechanisms
        minimum = float(claim.epsilon > top)  # nothing is known
        return ReleaseProfile(
            lambda eps: np.maximum(minimum, (exp(top) - np.exp(np.minimum(eps, top))) / (1 + exp(top)))
        )
    if isinstance(claim, RdpCurve):
        orders = [(alpha, value) for alpha, value in zip(claim.orders, claim.values.tolist(), strict=True) if alpha > 1]

        def by_renyi(eps: FloatArray) -> FloatArray:
            logs = [(alpha - 1) * (value - eps + log1p(-1 / alpha)) - log(alpha) for alpha, value in orders]
            return np.asarray(np.minimum(np.exp(np.minimum(np.min(logs, axis=0), 0)), 1))

        return ReleaseProfile(by_renyi)
    if len(claim.parts) == 1 and claim.parts[0][1] == 1:
        return claim.parts[0][0]
    # A grid for a larger δ is coarser and just as sound; for a small one rounding errors may be too large.
    composed = next((loss for delta in (1e-9, 1e-7, 1e-5) if (loss := loss_distribution(claim, delta))), None)
    if composed is None:  # nothing is known
        return ReleaseProfile(np.ones_like)
    error = _fft_error(sum(count for _, count in claim.parts))
    return ReleaseProfile(
        lambda eps: np.minimum([composed.get_delta_for_epsilon(float(eps_value)) + error for eps_value in eps], 1.0)
    )


def _fft_error(releases: int) -> float:
    """An upper bound on the error of δ of composed releases."""
    return 1e-13 * (1 + releases / 100)  # above what was seen for a hundred releases


def profile_at(eps: float, delta: float) -> PrivacyProfile:
    """The claim of (ε, δ)-DP at a single pair of ε and δ.

    Args:
        eps: ε.
        delta: δ.

    Returns:
        A profile that says nothing below ε, and no more than δ from there on.
    """
    return PrivacyProfile(((ReleaseProfile(lambda threshold: np.where(threshold >= eps, delta, 1.0)), 1),))


def epsilon(bound: Bound, delta: float) -> float:
    """ε of a bound at δ. This is the only place that subtracts from δ.

    See docs/proofs/composition.md#lemma-2.

    Args:
        bound: Any bound.
        delta: δ, above 0 and below 1.

    Returns:
        The smallest ε that follows from the claim, rounded up; infinite if δ is not larger than
        the bound's failure.
    """
    delta = real("delta", delta, "above 0 and below 1", 0, 1)
    claim = bound.claim
    if isinstance(claim, PureEpsilon):
        return claim.epsilon if bound.failure < delta else inf
    left = delta - bound.failure
    releases = sum(count for _, count in claim.parts) if isinstance(claim, PrivacyProfile) else 1
    if releases > 1:
        left -= _fft_error(releases)
    if left <= 0:
        return inf
    if isinstance(claim, GdpMu):
        return gaussian_epsilon(claim.mu, left) if isfinite(claim.mu) else inf
    if isinstance(claim, RdpCurve):
        return max(0.0, min(renyi_epsilons(claim, left)))
    if releases == 1:
        return _profile_epsilon(claim.parts[0][0].delta, left)
    composed = loss_distribution(claim, left)
    composed_epsilon = inf if composed is None else float(composed.get_epsilon_for_delta(left))
    return inf if isnan(composed_epsilon) else composed_epsilon


class EpsilonResult(NamedTuple):
    """ε at δ, the bound that gave it, its kind ("gaussian", "pld", "rdp" or "pure") and its Rényi
    order."""

    epsilon: float
    bound: Bound
    accountant: str
    order: float | None = None

    @classmethod
    def of(cls, bound: Bound, delta: float, accountant: str) -> "EpsilonResult":
        """ε of a bound at δ.

        Args:
            bound: The bound.
            delta: δ.
            accountant: The kind of the bound.

        Returns:
            The result; its order is None for bounds other than Rényi curves, or if δ is not larger than the bound's
            failure.
        """
        order = None
        if isinstance(bound.claim, RdpCurve) and bound.failure < delta:
            by_order = renyi_epsilons(bound.claim, delta - bound.failure)
            order = bound.claim.orders[by_order.index(min(by_order))]
        epsilon_at_delta = epsilon(bound, delta)
        return cls(inf if isnan(epsilon_at_delta) else epsilon_at_delta, bound, accountant, order)


def renyi_epsilons(curve: RdpCurve, delta: float) -> list[float]:
    """ε at δ by each order of a curve (Canonne, Kamath and Steinke 2020, Proposition 12).

    See docs/proofs/composition.md#lemma-4.

    Args:
        curve: The Rényi divergences.
        delta: δ that is left for the conversion.

    Returns:
        One ε for each order.
    """

    def convert(alpha: float, divergence: float) -> float:
        if delta**2 + expm1(-divergence) > 0:  # by the KL divergence δ is at most √(1 − exp(−KL))
            return 0.0
        if alpha <= 1.01 or alpha == inf:
            return divergence if alpha == inf else inf
        return divergence + log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1)

    return [convert(alpha, value) for alpha, value in zip(curve.orders, curve.values.tolist(), strict=True)]


def _profile_epsilon(delta_at: Callable[[FloatArray], FloatArray], delta: float) -> float:
    """The smallest ε at which δ is enough; itself enough."""

    def excess(eps: float) -> float:  # never zero: the smallest ε is where the sign changes
        return float(delta_at(np.array([eps]))[0]) - delta or -delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > MAX_FINITE_EPSILON:
            return inf
    return find_root(excess, 0, high, xtol=1e-12) * (1 + 1e-10) + 1e-11


def loss_distribution(claim: PrivacyProfile, delta: float) -> Any:
    """The privacy loss distribution of all releases of a claim, rounded up on a grid that suits δ.

    See docs/proofs/composition.md#lemma-6.

    Args:
        claim: Releases by their privacy profiles.
        delta: The δ at which ε is needed. A 10⁻⁴ part of it may lie beyond the grid, and as much
            may be cut off in composing; both count as infinite losses.

    Returns:
        A `PrivacyLossDistribution` of dp_accounting, or None if the losses are too large for one.
    """
    count = sum(count_of_part for _, count_of_part in claim.parts)
    truncated = 1e-4 * delta
    ends = [_last_loss(profile.delta, truncated / count) for profile, _ in claim.parts]
    if not isfinite(max(ends)):
        return None
    interval = max(ends) / (PLD_GRID_SIZE // 2)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            losses = [
                (
                    profile.loss(interval)
                    if profile.loss
                    else _loss_of_profile(profile.delta, interval, ceil(end / interval))
                ).self_compose(count_of_part, truncated)
                for (profile, count_of_part), end in zip(claim.parts, ends, strict=True)
            ]
            return reduce(lambda first, second: first.compose(second, truncated), losses)
    except FloatingPointError:  # what overflows on the way is no bound
        return None


def from_pld(loss: Any) -> Bound:
    """The bound of a privacy loss distribution of dp_accounting, so that it composes with others.

    See docs/proofs/composition.md#lemma-10.

    Args:
        loss: A pessimistic `PrivacyLossDistribution`.

    Returns:
        A privacy profile. Infinite losses that both directions share are the bound's failure
        probability.

    Raises:
        TypeError: If it is not a privacy loss distribution.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415 (takes a second)

    if not isinstance(loss, PrivacyLossDistribution):
        raise TypeError(f"loss is a {type(loss).__name__}: must be a PrivacyLossDistribution of dp_accounting")
    pmfs = loss._pmf_remove, loss._pmf_add
    failure = float(min(pmf._infinity_mass for pmf in pmfs))

    def of_direction(pmf: Any, eps: FloatArray) -> FloatArray:
        deltas = pmf.get_delta_for_epsilon(eps if len(eps) > 1 else float(eps[0]))  # of many in one pass, if ascending
        return np.asarray(np.clip(deltas - failure * np.exp(np.minimum(eps, 0)), 0, 1))

    def delta(eps: FloatArray) -> FloatArray:
        return np.maximum(*(of_direction(pmf, eps) for pmf in pmfs))

    def discretized(interval: float) -> Any:
        half = ceil(_last_loss(delta, _fft_error(0)) / interval)
        grid = np.arange(-half, half + 1, dtype=np.float64) * interval
        return PrivacyLossDistribution(*(_pmf_of_deltas(of_direction(pmf, grid), interval) for pmf in pmfs))

    return Bound(PrivacyProfile(((ReleaseProfile(delta, discretized), 1),)), failure)


def _loss_of_profile(delta_at: Callable[[FloatArray], FloatArray], interval: float, half: int) -> Any:
    """The privacy loss distribution of a profile, at multiples of an interval up to `half` of them.

    See docs/proofs/composition.md#lemma-5.
    """
    grid: FloatArray = np.arange(half + 1, dtype=np.float64) * interval
    above = delta_at(grid)
    below = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * above[:0:-1]  # the same tests, in the other direction
    return symmetric_loss(np.concatenate([below, above]), interval)


def symmetric_loss(deltas: FloatArray, interval: float) -> Any:
    """The privacy loss distribution that dominates both directions of a pair, rounded up on a grid.

    Args:
        deltas: δ at every ε of the grid, which is symmetric around 0; the larger of both directions.
        interval: The distance of neighboring values of ε.

    Returns:
        A `PrivacyLossDistribution` of dp_accounting.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415 (takes a second)

    return PrivacyLossDistribution(_pmf_of_deltas(deltas, interval))


def _pmf_of_deltas(deltas: FloatArray, interval: float) -> Any:
    """The pmf of losses on a symmetric grid, of a pair with these δ, rounded up."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 (takes a second)

    half = len(deltas) // 2
    falling = np.maximum.accumulate(np.nan_to_num(deltas, nan=1.0)[::-1])[::-1]  # rounding errors aside it falls anyway
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -half, half, np.minimum(falling, 1))


def _last_loss(delta_at: Callable[[FloatArray], FloatArray], remaining: float) -> float:
    """An ε beyond which δ is at most `remaining`; infinite if there is none."""
    last = 1e-9
    while float(delta_at(np.array([last]))[0]) > remaining:
        last *= 1.25
        if last > MAX_FINITE_EPSILON:
            return inf
    return last


# -- Gaussian DP ----------------------------------------------------------------------------------


def gaussian_deltas(mu: float, eps: FloatArray) -> FloatArray:
    """δ of telling N(0, 1) from N(μ, 1) at some ε, exact (Balle and Wang 2018).

    The first of two terms is rounded up, which makes the result an upper bound at ε = 0. Far out it
    may be too small by a relative error below 10⁻¹¹ of a term, which `_profile_epsilon` covers.

    See docs/proofs/composition.md#lemma-4.

    Args:
        mu: μ.
        eps: Values of ε.

    Returns:
        One δ for each ε.
    """
    if not mu:
        return np.zeros_like(eps)
    likely = ndtr(mu / 2 - eps / mu) * (1 + 1e-14)
    return np.asarray(np.clip(likely - np.exp(eps + log_ndtr(-mu / 2 - eps / mu)), 0, 1))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε at which μ-GDP implies (ε, δ)-DP, rounded up.

    Args:
        mu: μ.
        delta: δ, above 0 and below 1.

    Returns:
        ε.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    return _profile_epsilon(lambda eps: gaussian_deltas(mu, eps), real("delta", delta, "above 0 and below 1", 0, 1))


def gaussian_mu(eps: float, delta: float) -> float:
    """The largest μ for which μ-GDP implies (ε, δ)-DP, rounded down.

    Args:
        eps: ε.
        delta: δ, above 0 and below 1.

    Returns:
        μ.
    """
    eps = real("epsilon", eps, "a positive finite number", 0, inf)
    delta = real("delta", delta, "above 0 and below 1", 0, 1)
    at = np.array([eps])
    high = 1.0
    while gaussian_deltas(high, at)[0] <= delta:
        high *= 2
    return find_root(lambda mu: float(gaussian_deltas(mu, at)[0]) - delta, 1e-9, high, xtol=1e-13) * (1 - 1e-10)


def smallest_mu(bound: Bound, size: int = 400) -> float | None:
    """The smallest μ for which a bound implies μ-GDP (Gomez et al. 2025), except for its failure
    probability and, of a privacy profile, 10⁻¹².

    See docs/proofs/composition.md#lemma-7.

    Args:
        bound: Any bound.
        size: How many ε are compared.

    Returns:
        μ, rounded up; None if the claim implies no finite μ (such as Rényi curves, which say nothing at ε = 0).
    """
    if isinstance(bound.claim, GdpMu):
        return bound.claim.mu if isfinite(bound.claim.mu) else None
    if isinstance(bound.claim, RdpCurve) or bound.claim == PureEpsilon(inf):
        return None
    delta_at = profile_of(bound.claim).delta
    last = _last_loss(delta_at, 1e-12)
    if not isfinite(last):
        return None
    grid = np.linspace(0, last, size)
    deltas = delta_at(grid)
    high = 1.0
    while (gaussian_deltas(high, grid[1:]) < deltas[:-1]).any():
        high *= 1.5
        if high > 1e4:
            return None
    low = 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if (gaussian_deltas(middle, grid[1:]) < deltas[:-1]).any() else (low, middle)
    return high
