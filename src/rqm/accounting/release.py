"""One release, and the bounds that are known for it and for many like it: the registry of bounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.accounting.participation import COHORT_FAILURE, HonestCohort, Participation, ThreatModel
from rqm.accounting.profiles import mixed, renyi_without_replacement, sampled_without_replacement
from rqm.bounds import (
    Assumption,
    Bound,
    EpsilonResult,
    GdpMu,
    Neighboring,
    PrivacyProfile,
    PureEpsilon,
    RdpCurve,
    ReleaseProfile,
    Unit,
    compose,
    epsilon,
    profile_at,
    profile_of,
    renyi_epsilons,
)
from rqm.certify.affine_rdp import affine_rdp
from rqm.certify.gaussian_dp import affine_gdp, affine_gdp_anywhere
from rqm.certify.kinks import coordinate_epsilon, interior_gdp
from rqm.certify.privacy_loss import coordinates_profile
from rqm.certify.renyi import renyi, worst_inputs
from rqm.certify.shifts import shift_range, shifted_gdp, shifted_gdp_anywhere, shifted_rdp
from rqm.correlated.scheme import Exposure, NoiseScheme
from rqm.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from rqm.accounting.accountant import Question

RDP_ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 3.0, 3.25, 3.5, 3.75, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0),
    *(16.0, 18.0, 20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0),
)
"""Rényi orders of releases that are not sampled; between 2 and 3 the bound of a vector does not
hold."""
KINDS = {GdpMu: "gaussian", PureEpsilon: "pure", RdpCurve: "rdp", PrivacyProfile: "pld"}
"""The kinds of bounds, as `EpsilonResult.accountant` names them."""


@dataclass(frozen=True)
class Release:
    """What one round reveals about a user: the sum of the clients' vectors, encoded by a mechanism.

    Attributes:
        mechanism: How each client encodes its vector.
        dim: Coordinates that a client sends.
        l2_clip: L2 bound of a client's vector.
        noise: Correlated noise, in steps of the mechanism's levels, or in L2 clips where a
            trusted server adds it; None: noise is independent.
        zero_distance: L2 distance of a user's vector from what a user with a zero update sends,
            over `l2_clip`; at least 1. It is above 1 where a zero update still sends something,
            which does not go with correlated noise
            (docs/proofs/participation.md#lemma-13).
    """

    unit: ClassVar[Unit] = "user"
    tail_fraction: ClassVar[float] = 1e-3
    """The part of δ that pays for the tails that Gaussian certificates leave out."""
    max_zero_distance: ClassVar[float] = 2.0
    """The largest `zero_distance` that the bounds cover."""
    record_clip: ClassVar[float | None] = None
    sampling_rate: ClassVar[float | None] = None

    mechanism: Mechanism
    dim: int
    l2_clip: float
    noise: NoiseScheme | None = None
    zero_distance: float = 1.0

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.adds_noise:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        largest = self.max_zero_distance if self.noise is None else 1.0
        real("zero_distance", self.zero_distance, f"from 1 to {largest:g}", 1, largest, closed="[]")

    def check(self, participation: Participation, threat_model: ThreatModel) -> None:
        """Refuse a participation or a threat model for which no bound is known.

        Args:
            participation: Who takes part.
            threat_model: What is assumed about the adversary.

        Raises:
            ValueError: If they do not go with this release.
        """
        if threat_model.unit != self.unit:
            raise ValueError(f"unit = {threat_model.unit!r}: must be {self.unit!r} for a {type(self).__name__}")
        threat_model.check_mechanism(self.mechanism, self.noise, participation)

    @property
    def privacy_unit_clip(self) -> float:
        """The L2 bound of what one unit of privacy contributes."""
        return self.l2_clip

    @property
    def is_sampled(self) -> bool:
        """Whether clients sample their records."""
        return self.sampling_rate not in (None, 1)

    def scaled(self, mechanism: Mechanism) -> "Release":
        """One coordinate of a release with a clip of one and independent noise.

        Args:
            mechanism: How the coordinate is encoded.

        Returns:
            The release.
        """
        return Release(mechanism, 1, 1.0)

    def assumptions(self, participation: Participation) -> Iterator[Assumption]:
        """Conditions of this kind of release alone.

        Args:
            participation: Who takes part.

        Yields:
            The assumptions.
        """
        yield from ()

    @property
    def has_interior_levels(self) -> bool:
        """Whether levels lie inside the clip, so that certificates take seconds."""
        return self.mechanism.has_integer_messages and not self.mechanism.discrete.uses_l2_norm

    def reduced(self) -> "Release":
        """The same as far as neighbors differ: of a vector that is sent as a whole, only some
        integers can differ.

        See docs/proofs/affine.md#lemma-12.
        """
        mechanism, dim, l2_clip = self.mechanism.reduce_to_worst_case(self.dim, self.l2_clip)
        return self if mechanism is self.mechanism else replace(self, mechanism=mechanism, dim=dim, l2_clip=l2_clip)

    def sensitivity(self, neighboring: Neighboring) -> float:
        """The largest L2 distance of neighboring vectors.

        See docs/proofs/participation.md#lemma-8.

        Args:
            neighboring: The neighboring relation.

        Returns:
            The distance, in the units of the clips.
        """
        if neighboring == "replace-one":
            return 2 * self.privacy_unit_clip
        return self.privacy_unit_clip * self.zero_distance

    # -- Gaussian DP --------------------------------------------------------------------------

    def noise_multiplier(self, clients: int) -> float:
        """Standard deviation of the noise of a sum over the clip of a user (or record).

        Args:
            clients: Number of clients.

        Returns:
            The ratio, for inputs of zero.
        """
        mechanism = self.mechanism
        if mechanism.gaussian_multiplier is not None:
            return mechanism.sum_noise_std(clients)
        if mechanism.vector_mechanism is not None:
            return sqrt(clients * mechanism.vector_mechanism.variance(self.dim))
        variance = float(mechanism.discrete.variance(0.0))
        if self.noise is not None:
            variance += self.noise.residual_variance * mechanism.discrete.grid.step**2
        return sqrt(clients * variance) / self.privacy_unit_clip

    def mu(self, neighboring: Neighboring, honest: int, failure: float) -> float:
        """Certified μ of one release, with independent noise.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients.
            failure: Probability of the outcomes that μ leaves out.

        Returns:
            μ, infinite if none is known.
        """
        if self.mechanism.gaussian_multiplier is not None:
            return self.estimated_mu(neighboring, honest)
        if neighboring == "zero-out" and self.zero_distance > 1:  # no more than if the vector were replaced
            replaced = _mu(self, "replace-one", honest, failure)
            return min(replaced, mu_anywhere(self, self.sensitivity(neighboring), honest, failure))
        return _mu(self, neighboring, honest, failure)

    def correlated_bound(
        self, neighboring: Neighboring, honest: int, window: int, failure: float, count: int = 1
    ) -> Bound:
        """What all participations together reveal, with correlated noise.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients, in each round of the window.
            window: Rounds from a participation to the next.
            failure: Probability of the outcomes of all participations that the bound may leave out.
            count: Number of participations.

        Returns:
            The bound.
        """
        if self.mechanism.gaussian_multiplier is not None:
            return compose([(Bound(GdpMu(self.estimated_mu(neighboring, honest, window))), count)])
        assert self.noise is not None
        exposure = Exposure(
            self.unit, honest, window, self.dim, self.sensitivity(neighboring), failure, count, neighboring
        )
        return self.noise.bound(self.mechanism, exposure)

    def estimated_mu(self, neighboring: Neighboring, honest: int, window: int = 1) -> float:
        """μ of one participation if all noise were Gaussian with the variance at zero; exact for Gaussian
        mechanisms, else no bound.

        See docs/proofs/correlated.md#lemma-12.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients.
            window: With correlated noise, rounds from a participation to the next.

        Returns:
            μ.
        """
        distance = self.sensitivity(neighboring)
        if self.mechanism.gaussian_multiplier is not None:  # noise in units of the clip
            unit, std = self.privacy_unit_clip, self.mechanism.gaussian_multiplier
        else:
            channel = self.mechanism.discrete
            variance = (
                float(channel.variance(0.0)) if channel.additive is None else channel.additive.variance_without_floor
            )
            distance *= self._attainable_fraction / sqrt(honest)
            unit, std = channel.grid.step, sqrt(variance) / channel.grid.step
        return distance / unit * (1 / std if self.noise is None else self.noise.estimated_mu(window, std))

    @property
    def _attainable_fraction(self) -> float:
        """The part of the sensitivity that the clip of each coordinate allows."""
        return min(1.0, self.mechanism.discrete.clip * sqrt(self.dim) / self.l2_clip)

    # -- other bounds -------------------------------------------------------------------------

    def per_coordinate(self, neighboring: Neighboring, honest: int) -> float | None:
        """Certified D₂ of one coordinate at its worst.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients.

        Returns:
            The divergence; None where it does not say how private a round is.
        """
        if not self.mechanism.has_integer_messages or self.noise is not None:
            return None
        channel = self.reduced().mechanism.discrete
        is_vector = self.mechanism.vector_mechanism is not None
        relation: Neighboring = "replace-one" if is_vector else neighboring
        return float(Release(channel, 1, channel.clip).rdp((2.0,), relation, honest).values[0])

    def rdp(self, orders: Sequence[float], neighboring: Neighboring, honest: int) -> RdpCurve:
        """Certified Rényi divergences, of the integers that are sampled.

        Args:
            orders: Rényi orders.
            neighboring: The neighboring relation.
            honest: Number of honest clients.

        Returns:
            The curve.
        """
        orders = tuple(map(float, orders))
        if self.mechanism.gaussian_multiplier is not None:
            mu = self.estimated_mu(neighboring, honest)
            return RdpCurve(orders, np.array(orders) * mu**2 / 2)
        return RdpCurve(orders, _rdp(self, orders, "replace-one" if self.zero_distance > 1 else neighboring, honest))

    def profile(self, honest: int, count: int) -> ReleaseProfile | None:
        """The privacy profile of a few releases with replaced vectors, by the losses of their
        coordinates.

        See docs/proofs/composition.md#lemma-9.

        Args:
            honest: Number of honest clients.
            count: How many releases of the same vector are composed.

        Returns:
            The profile; None if the coordinates are too many, or none is known.
        """
        mechanism = self.mechanism
        if not mechanism.has_integer_messages or self.dim * count > 1000:  # composing more takes seconds
            return None
        channel = mechanism.discrete
        if channel.additive is None and not channel.is_affine:
            return None
        if self.dim > (8 if channel.additive is None else 2) * (self.l2_clip / channel.clip) ** 2:
            return None  # all coordinates at their worst are far beyond the L2 bound
        return coordinates_profile(channel, honest=honest, coordinates=self.dim * count, distribution="sampled")

    # -- ε of all releases ------------------------------------------------------------------------

    def results(self, question: "Question") -> Iterator[EpsilonResult]:
        """ε by all bounds that may give the smallest, the likeliest first.

        Args:
            question: Who takes part, the adversary, and δ.

        Yields:
            Results, of which each holds.
        """
        if self.noise is None:
            yield from self.independent_results(question)
            return
        # See docs/proofs/correlated.md#theorem-8.
        honest, count = self.settling_clients(question), question.releases
        bound = self.correlated_bound(question.neighboring, honest, question.window, question.failure * count, count)
        correlated = EpsilonResult.of(bound, question.delta, "gaussian")
        yield correlated
        independent = replace(self, noise=None)  # as if the adversary knew the transient noise
        estimate = GdpMu(sqrt(count) * independent.estimated_mu(question.neighboring, question.honest))
        if correlated.epsilon > epsilon(Bound(estimate), question.delta):
            yield from independent.independent_results(question)

    def settling_clients(self, question: "Question") -> int:
        """Honest clients of a round whose noise is also canceled in the next one."""
        return question.honest

    def independent_results(self, question: "Question") -> Iterator[EpsilonResult]:
        """The same with independent noise.

        Args:
            question: Who takes part, the adversary, and δ.

        Yields:
            Results, of which each holds.
        """
        if question.is_server and question.accountant is None:
            own = self.mechanism.own_bound(self.dim, self.l2_clip, question.neighboring, question.honest)
            if own is not None:
                bound = replace(own, failure=own.failure + question.left_out)
                yield EpsilonResult.of(compose([(bound, question.releases)]), question.delta, KINDS[type(own.claim)])
        if self.has_interior_levels:
            yield from self._interior_results(question)
        elif question.accountant is None:
            gaussian = self._by_gaussian(question)
            yield gaussian
            mu, estimate = (
                self.mu(question.neighboring, question.honest, question.failure),
                self.estimated_mu(question.neighboring, question.honest),
            )
            # Otherwise noise is so near to Gaussian that no other bound can be much better.
            if gaussian.epsilon == inf or self.dim == 1 or mu > 1.01 * estimate:
                yield self._by_profile(question)
                yield self._by_renyi(question)
                yield from self._by_pure(question)
        else:
            by_accountant = {"gaussian": self._by_gaussian, "pld": self._by_profile, "rdp": self._by_renyi}
            yield by_accountant[question.accountant](question)

    def _by_gaussian(self, question: "Question") -> EpsilonResult:
        """By certified μ of one release."""
        mus = {
            cohort.honest: self.mu(question.neighboring, cohort.honest, question.failure) for cohort in question.cohorts
        }
        if max(mus.values()) == inf:
            bound = Bound(PureEpsilon(inf))
        elif len(question.cohorts) == 1 and question.cohorts[0].rate == 1:
            claim = GdpMu(mus[question.honest])
            bound = compose([(Bound(claim, question.left_out + question.failure), question.releases)])
        else:
            bound = _mixed(
                question,
                lambda cohort, count: profile_of(GdpMu(mus[cohort.honest] * sqrt(count))),
                question.failure,
            )
        return EpsilonResult.of(bound, question.delta, "gaussian")

    def _by_profile(self, question: "Question") -> EpsilonResult:
        """By the privacy losses of single coordinates, where they are few."""
        is_random = len(question.cohorts) > 1

        def profile(cohort: HonestCohort, count: int) -> ReleaseProfile | None:
            if is_random:
                mu = self.mu(question.neighboring, cohort.honest, question.failure)
                if mu <= 1.01 * self.estimated_mu(question.neighboring, cohort.honest):
                    return profile_of(GdpMu(mu * sqrt(count)))
            return self.profile(cohort.honest, count)

        if question.is_server and not is_random:
            together = profile(question.cohorts[0], question.releases)
            claim = PureEpsilon(inf) if together is None else PrivacyProfile(((together, 1),))
            bound = Bound(claim, question.left_out * question.releases)
        else:
            bound = _mixed(question, profile, question.failure if is_random else 0.0)
        return EpsilonResult.of(bound, question.delta, "pld")

    def _by_renyi(self, question: "Question", orders: Sequence[float] = RDP_ORDERS) -> EpsilonResult:
        """By Rényi divergences, with the fewest honest clients of all cohorts."""
        if question.is_server:
            curve = self.rdp(orders, question.neighboring, question.honest)
            bound = compose([(Bound(curve, question.left_out), question.releases)])
        else:
            # The bound of sampling needs all whole orders below each. With interior levels each takes seconds.
            curve = self.rdp(range(2, 5 if self.has_interior_levels else 129), "replace-one", question.honest)
            rate = max(cohort.rate for cohort in question.cohorts)
            parts = []
            for count, rounds in question.counts.items():
                amplified = renyi_without_replacement(RdpCurve(curve.orders, count * curve.values), rate)
                parts.append((Bound(amplified, question.left_out), rounds))
            bound = compose(parts)
        return EpsilonResult.of(bound, question.delta, "rdp")

    def _by_pure(self, question: "Question") -> Iterator[EpsilonResult]:
        """By pure ε with all coordinates at their worst, of few coordinates in few rounds against the server."""
        count = self.dim * question.releases
        if question.is_server and count <= 8 and self.mechanism.has_integer_messages:
            pure = self.dim * renyi(self.mechanism.discrete, inf, question.honest, distribution="sampled").upper
            bound = compose([(Bound(PureEpsilon(pure), question.left_out), question.releases)])
            yield EpsilonResult.of(bound, question.delta, "pure")

    def _interior_results(self, question: "Question") -> Iterator[EpsilonResult]:
        """Where levels lie inside the clip, and certificates take seconds."""
        channel, honest = self.mechanism.discrete, question.honest
        if question.is_server and self.dim * question.releases == 1:
            target = (1 - COHORT_FAILURE) * question.delta if question.left_out else question.delta
            single = coordinate_epsilon(channel, target, honest, "sampled")
            bound = Bound(profile_at(single, target), question.left_out)
            yield EpsilonResult.of(bound, question.delta, "pld")
            yield from self._by_pure(question)
            return
        gaussian = self._by_gaussian(question)
        yield gaussian
        if self.dim > 16 and gaussian.epsilon < 15.0:  # other bounds are hardly ever smaller
            return
        if not question.is_server:
            yield self._by_renyi(question)
            return
        yield from self._by_pure(question)
        orders = (1.5, 1.75, 2.0, 8.0, 32.0)  # each takes seconds
        worst = [
            inf if channel.has_noiseless_inputs else worst_inputs(channel, alpha, honest, "sampled").value
            for alpha in orders
        ]
        attained = RdpCurve(orders, question.releases * self.dim * np.array(worst))
        best = gaussian.epsilon
        for at_least, order in sorted(zip(renyi_epsilons(attained, question.delta), orders, strict=True)):
            if at_least < best:  # no bound at this order is below what is attained
                result = self._by_renyi(question, (order,))
                best = min(best, result.epsilon)
                yield result


def _mixed(
    question: "Question", profile: Callable[[HonestCohort, int], ReleaseProfile | None], failure: float
) -> Bound:
    """All releases, by the profiles of each cohort for rounds that were charged so often.

    A round that was repeated had the same clients: its releases are composed before the cohorts
    are mixed.

    See docs/proofs/participation.md#lemma-7.
    """
    parts = []
    for count, rounds in (question.user_counts if question.is_server else question.counts).items():
        amplified = []
        for cohort in question.cohorts:
            of_cohort = profile(cohort, count)
            if of_cohort is None:
                return Bound(PureEpsilon(inf))
            amplified.append((cohort.weight, sampled_without_replacement(of_cohort, cohort.rate)))
        parts.append((Bound(PrivacyProfile(((mixed(amplified), 1),)), question.left_out + failure * count), rounds))
    return compose(parts)


@lru_cache(maxsize=256)
def _mu(release: Release, neighboring: Neighboring, honest: int, failure: float) -> float:
    """Certified μ of a release with independent noise of its clients."""
    channel, distance, dim = release.mechanism.discrete, release.sensitivity(neighboring), release.dim
    if channel.additive is not None:
        farthest, squared = shift_range(channel.additive, release.l2_clip, neighboring)
        return shifted_gdp(
            channel.additive, honest=honest, dim=dim, farthest=farthest, squared=squared, failure=failure
        )
    if channel.is_affine:
        return affine_gdp(
            channel,
            honest=honest,
            dim=dim,
            l2_clip=release.l2_clip,
            failure=failure,
            neighboring=neighboring,
            distribution="sampled",
        )
    return interior_gdp(
        channel,
        honest=honest,
        dim=dim,
        squared=(distance / channel.clip) ** 2,
        farthest=4.0 if neighboring == "replace-one" else 1.0,
        failure=failure,
        distribution="sampled",
    )


@lru_cache(maxsize=256)
def mu_anywhere(release: Release, distance: float, honest: int, failure: float) -> float:
    """Certified μ where the vector may lie anywhere and moves by at most a distance.

    See docs/proofs/affine.md#theorem-11.

    Args:
        release: The release; its noise is independent.
        distance: The largest L2 distance.
        honest: Number of honest clients.
        failure: Probability of the outcomes that μ leaves out.

    Returns:
        μ.
    """
    channel = release.mechanism.discrete
    if channel.additive is not None:
        return shifted_gdp_anywhere(channel.additive, honest=honest, dim=release.dim, sensitivity=distance)
    dim = release.dim
    if channel.is_affine:
        return affine_gdp_anywhere(
            channel, honest=honest, dim=dim, sensitivity=distance, failure=failure, distribution="sampled"
        )
    squared = (distance / channel.clip) ** 2
    return interior_gdp(
        channel,
        honest=honest,
        dim=dim,
        squared=squared,
        farthest=min(4.0, squared),
        failure=failure,
        distribution="sampled",
    )


@lru_cache(maxsize=256)
def _rdp(release: Release, orders: tuple[float, ...], neighboring: Neighboring, honest: int) -> FloatArray:
    channel, dim = release.mechanism.discrete, release.dim
    if channel.additive is not None:
        farthest, squared = shift_range(channel.additive, release.l2_clip, neighboring)
        return shifted_rdp(channel.additive, orders, honest=honest, dim=dim, farthest=farthest, squared=squared)
    if channel.is_affine:
        return affine_rdp(
            channel,
            orders,
            honest=honest,
            dim=dim,
            l2_clip=release.l2_clip,
            neighboring=neighboring,
            distribution="sampled",
        )
    return dim * np.array([renyi(channel, alpha, honest, distribution="sampled").upper for alpha in orders])
