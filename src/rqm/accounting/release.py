"""One release, and the bounds that are known for it: the registry of bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, sqrt
from typing import ClassVar

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.accounting.participation import Participation, ThreatModel
from rqm.bounds import Assumption, Neighboring, RdpCurve, ReleaseProfile, Unit
from rqm.certify.affine_rdp import affine_rdp
from rqm.certify.gaussian_dp import affine_gdp, affine_gdp_anywhere
from rqm.certify.kinks import coordinate_epsilon, interior_gdp
from rqm.certify.privacy_loss import coordinates_profile
from rqm.certify.renyi import renyi, worst_inputs
from rqm.certify.shifts import shift_range, shifted_gdp, shifted_gdp_anywhere, shifted_rdp
from rqm.correlated.certificate import correlated_gdp
from rqm.correlated.handover import gaussian_squared_mu
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.base import Mechanism


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
    record_clip: ClassVar[float | None] = None
    sampling_rate: ClassVar[float | None] = None

    mechanism: Mechanism
    dim: int
    l2_clip: float
    noise: CorrelatedNoise | None = None
    zero_distance: float = 1.0

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.adds_noise:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        self._check_distance()

    def _check_distance(self) -> None:
        largest = 2.0 if self.noise is None else 1.0
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
        if self.mechanism.correlation is not None:
            participation.check_bands(self.mechanism.correlation.bands)
        honest = threat_model.honest_clients
        if self.mechanism.has_integer_messages and self.mechanism.is_local and honest != 1:
            raise ValueError(f"honest_clients = {honest}: must be 1; each client's message is accounted for alone")
        is_fraction = threat_model.honest_fraction is not None
        if self.noise is not None and (threat_model.adversary != "server" or is_fraction):
            raise ValueError(
                "noise = 'correlated': must come with adversary = 'server' and a number of honest clients of every "
                "round (honest_clients); in a fixed order no round is a random sample"
            )

    @property
    def bound_kind(self) -> str:
        """Which bounds are known: "correlated" noise, "interior" levels, or "independent" noise."""
        if self.noise is not None:
            return "correlated"
        return "interior" if self.has_interior_levels else "independent"

    @property
    def privacy_unit_clip(self) -> float:
        """The L2 bound of what one unit of privacy contributes."""
        return self.l2_clip

    @property
    def is_sampled(self) -> bool:
        """Whether clients sample their records."""
        return False

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
    def is_by_trusted_server(self) -> bool:
        """Whether a trusted server adds the noise."""
        return self.mechanism.trusted_server

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

    def independent(self) -> "Release":
        """The same if the adversary knew the transient noise."""
        return replace(self, noise=None)

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
            variance += (self.noise.residual_std * mechanism.discrete.grid.step) ** 2
        return sqrt(clients * variance) / self.privacy_unit_clip

    def mu(self, neighboring: Neighboring, honest: int, failure: float, window: int = 1) -> float:
        """Certified μ of one participation, as it is deployed.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients, in each round of the window.
            failure: Probability of the outcomes that μ leaves out.
            window: With correlated noise, rounds from a participation to the next.

        Returns:
            μ, infinite if none is known.
        """
        if self.mechanism.gaussian_multiplier is not None:
            return self.estimated_mu(neighboring, honest, window)
        if self.noise is not None:
            return correlated_gdp(
                self.mechanism.discrete,
                self.noise,
                honest=honest,
                separation=window,
                dim=self.dim,
                l2_clip=self.l2_clip,
                failure=failure,
                neighboring=neighboring,
            )
        return self._independent_mu(neighboring, honest, failure)

    def _independent_mu(self, neighboring: Neighboring, honest: int, failure: float) -> float:
        """Certified μ with independent noise."""
        if neighboring == "zero-out" and self.zero_distance > 1:  # no more than if the vector were replaced
            replaced = _mu(self, "replace-one", honest, failure)
            return min(replaced, mu_anywhere(self, self.sensitivity(neighboring), honest, failure))
        return _mu(self, neighboring, honest, failure)

    def participation_mu(self, neighboring: Neighboring, honest: int, failure: float, window: int) -> float:
        """`mu`, also of releases whose participations are accounted for together.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients.
            failure: Probability of the outcomes that μ leaves out.
            window: Rounds from a participation to the next.

        Returns:
            μ of a single participation.
        """
        return self.mu(neighboring, honest, failure, window)

    def estimated_mu(self, neighboring: Neighboring, honest: int, window: int = 1) -> float:
        """μ if all noise were Gaussian with the variance at zero; exact for Gaussian mechanisms,
        else no bound.

        See docs/proofs/correlated.md#lemma-12.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest clients.
            window: With correlated noise, rounds from a participation to the next.

        Returns:
            μ.
        """
        distance = self.sensitivity(neighboring)
        noise = self.noise
        transient, residual, gain = (
            (0.0, 0.0, 1) if noise is None else (noise.transient_std, noise.residual_std, noise.gain)
        )
        multiplier = self.mechanism.gaussian_multiplier
        if multiplier is not None:  # noise in units of the clip
            unit = self.privacy_unit_clip
            independent, transient, residual = multiplier * unit, transient * unit, residual * unit
        else:
            channel = self.mechanism.discrete
            variance = (
                float(channel.variance(0.0)) if channel.additive is None else channel.additive.variance_without_floor
            )
            independent = sqrt(honest * variance)
            transient, residual = (sqrt(honest) * std * channel.grid.step for std in (transient, residual))
            distance *= self._attainable_fraction
        if not transient:
            return distance / independent
        return distance * sqrt(gaussian_squared_mu(window, residual**2, transient**2, gain, independent**2))

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

    def pure_epsilon(self, honest: int) -> float:
        """Pure ε with all coordinates at their worst.

        Args:
            honest: Number of honest clients.

        Returns:
            ε, infinite if none is known.
        """
        if not self.mechanism.has_integer_messages:
            return inf
        return self.dim * renyi(self.mechanism.discrete, inf, honest, distribution="sampled").upper

    def coordinate_epsilon(self, delta: float, honest: int) -> float:
        """ε of a single coordinate of one release, by hockey-stick divergences.

        Args:
            delta: δ.
            honest: Number of honest clients.

        Returns:
            ε.
        """
        return coordinate_epsilon(self.mechanism.discrete, delta, honest, "sampled")

    def attained_rdp(self, orders: Sequence[float], honest: int) -> FloatArray:
        """Rényi divergences that some inputs attain where levels lie inside the clip, all
        coordinates at their worst.

        Args:
            orders: Rényi orders.
            honest: Number of honest clients.

        Returns:
            Values that no bound by `rdp` is below.
        """
        channel = self.mechanism.discrete
        if channel.has_noiseless_inputs:
            return np.full(len(orders), inf)
        return self.dim * np.array([worst_inputs(channel, float(alpha), honest, "sampled").value for alpha in orders])


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
