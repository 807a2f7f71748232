"""One release, and the bounds that are known for it: the registry of bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, sqrt
from typing import final

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.bounds import Neighboring, RdpCurve, ReleaseProfile
from rqm.certify.affine_rdp import affine_rdp
from rqm.certify.gaussian_dp import affine_gdp, affine_gdp_anywhere
from rqm.certify.kinks import coordinate_epsilon, interior_gdp
from rqm.certify.privacy_loss import coordinates_profile
from rqm.certify.renyi import renyi, worst_inputs
from rqm.certify.shifts import shift_range, shifted_gdp, shifted_gdp_anywhere, shifted_rdp
from rqm.correlated.certificate import correlated_gdp
from rqm.correlated.fixed_order import fixed_order_gdp
from rqm.correlated.handover import gaussian_squared_mu
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.base import Mechanism

MAX_PLD_COORDINATES = 1000
"""Coordinates, times participations, up to which privacy loss distributions are composed."""


@final
@dataclass(frozen=True)
class Release:
    """What one round reveals: the sum of the clients' vectors, encoded by a mechanism.

    Attributes:
        mechanism: How each client encodes its vector.
        dim: Coordinates that a client sends.
        l2_clip: L2 bound of a client's vector.
        noise: Correlated noise, in steps of the mechanism's levels, or in L2 clips where a
            trusted server adds it; None: noise is independent.
        record_clip: L2 bound of a record's vector where the unit is a record: it moves its silo's
            vector by no more, wherever that lies. None: the unit is a user.
        sampling_rate: The probability with which a silo includes a record (Poisson sampling);
            None: no sampling.
        zero_distance: L2 distance of a user's vector from what a user with a zero update sends,
            over `l2_clip`; at least 1. It is above 1 where a zero update still sends something,
            which goes neither with correlated noise nor with records
            (docs/proofs/participation.md#lemma-13).
    """

    mechanism: Mechanism
    dim: int
    l2_clip: float
    noise: CorrelatedNoise | None = None
    record_clip: float | None = None
    sampling_rate: float | None = None
    zero_distance: float = 1.0

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.adds_noise:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        largest = 2.0 if self.noise is None and self.record_clip is None else 1.0
        real("zero_distance", self.zero_distance, f"from 1 to {largest:g}", 1, largest, closed="[]")
        for name in ("l2_clip", "record_clip"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name), "a positive finite number", 0, inf)

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
            return 2 * (self.record_clip or self.l2_clip)
        return (self.record_clip or self.l2_clip) * self.zero_distance

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
        return sqrt(clients * variance) / (self.record_clip or self.l2_clip)

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
        return _mu(self, neighboring, honest, failure)

    def fixed_order_mu(
        self, neighboring: Neighboring, honest: int, window: int, count: int, failure: float
    ) -> tuple[float, float]:
        """Certified μ of a record over all rounds that it is in, in a fixed order with correlated
        noise.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest silos in each round and in the next.
            window: Rounds from one participation of a record to the next.
            count: Rounds that the record is in.
            failure: The largest probability that may be left out.

        Returns:
            μ, infinite if none is known, and the probability that is left out.
        """
        mechanism = self.mechanism.discrete.additive
        assert mechanism is not None
        assert self.noise is not None
        return fixed_order_gdp(
            mechanism,
            self.noise,
            honest=honest,
            separation=window,
            dim=self.dim,
            sensitivity=self.sensitivity(neighboring),
            count=count,
            failure=failure,
        )

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
            unit = self.record_clip or self.l2_clip
            independent, transient, residual = multiplier * unit, transient * unit, residual * unit
        else:
            channel = self.mechanism.discrete
            variance = (
                float(channel.variance(0.0)) if channel.additive is None else channel.additive.variance_without_floor
            )
            independent = sqrt(honest * variance)
            transient, residual = (sqrt(honest) * std * channel.grid.step for std in (transient, residual))
            if self.record_clip is None:  # the clip of each coordinate may bind first
                distance *= min(1.0, channel.clip * sqrt(self.dim) / self.l2_clip)
        if not transient:
            return distance / independent
        return distance * sqrt(gaussian_squared_mu(window, residual**2, transient**2, gain, independent**2))

    # -- other bounds -------------------------------------------------------------------------

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
        if self.record_clip is not None:
            raise ValueError("record_clip: Rényi divergences are not computed for records")
        return RdpCurve(orders, _rdp(self, orders, "replace-one" if self.zero_distance > 1 else neighboring, honest))

    def profile(self, honest: int, count: int) -> ReleaseProfile | None:
        """The privacy profile of a few releases with replaced vectors, by the losses of their
        coordinates.

        See docs/proofs/composition.md#lemma-9.

        Args:
            honest: Number of honest clients.
            times: How many releases of the same vector are composed.

        Returns:
            The profile; None if the coordinates are too many, or none is known.
        """
        mechanism = self.mechanism
        if not mechanism.has_integer_messages or self.dim * count > MAX_PLD_COORDINATES:
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
    is_anywhere = release.record_clip is not None or (neighboring == "zero-out" and release.zero_distance > 1)
    if is_anywhere and release.record_clip is None:  # no more than if the vector were replaced
        return min(_mu(release, "replace-one", honest, failure), _mu_anywhere(release, distance, honest, failure))
    if is_anywhere:
        return _mu_anywhere(release, distance, honest, failure)
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


def _mu_anywhere(release: Release, distance: float, honest: int, failure: float) -> float:
    """Certified μ where the vector may lie anywhere and moves by at most a distance.

    See docs/proofs/affine.md#theorem-11.
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
