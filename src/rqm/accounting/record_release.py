"""One release of silos' sums of records, and the bounds that are known for a record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

from rqm._util.checks import real
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release, mu_anywhere
from rqm.bounds import Assumption, FixedOrder, Neighboring, PoissonSampling, RdpCurve, Unit
from rqm.correlated.fixed_order import fixed_order_gdp
from rqm.mechanisms.base import Mechanism


@final
@dataclass(frozen=True, kw_only=True)
class RecordRelease(Release):
    """What one round reveals about a record: the sum of the silos' sums of records.

    Attributes:
        record_clip: L2 bound of a record's vector. A record moves its silo's vector by no more,
            wherever that lies.
        sampling_rate: The probability with which a silo includes a record (Poisson sampling);
            None: no sampling.
    """

    unit: ClassVar[Unit] = "record"
    tail_fraction: ClassVar[float] = 0.02  # the noise of few silos is far from Gaussian in its tails

    record_clip: float  # type: ignore[misc]
    sampling_rate: float | None = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Validate every value."""
        super().__post_init__()
        real("record_clip", self.record_clip, "a positive finite number", 0, inf)

    def _check_distance(self) -> None:
        real("zero_distance", self.zero_distance, "1", 1, 1, closed="[]")

    def check(self, participation: Participation, threat_model: ThreatModel) -> None:
        """Refuse a participation or a threat model for which no bound is known.

        Args:
            participation: Who takes part.
            threat_model: What is assumed about the adversary.

        Raises:
            ValueError: If they do not go with this release.
        """
        super().check(participation, threat_model)
        if self.sampling_rate is None:
            return
        if threat_model.neighboring != "add-or-remove-one" or not 0 < self.sampling_rate <= 1:
            raise ValueError(
                f"sampling_rate = {self.sampling_rate}: must be above 0 and at most 1, with neighboring = "
                "'add-or-remove-one', for which the bound of Poisson sampling holds"
            )
        if participation.limit < participation.rounds:
            raise ValueError(
                "sampling_rate: must be given without max_participations and min_separation; each round samples anew"
            )

    @property
    def bound_kind(self) -> str:
        """Records have bounds of their own."""
        return "record"

    @property
    def privacy_unit_clip(self) -> float:
        """The L2 bound of a record's vector."""
        return self.record_clip

    @property
    def is_sampled(self) -> bool:
        """Whether silos sample their records."""
        return self.sampling_rate not in (None, 1)

    def scaled(self, mechanism: Mechanism) -> "RecordRelease":
        """One coordinate of a release with a record's clip of one and independent noise.

        Args:
            mechanism: How the coordinate is encoded.

        Returns:
            The release.
        """
        return RecordRelease(mechanism, 1, 1.0, record_clip=1.0, sampling_rate=self.sampling_rate)

    def assumptions(self, participation: Participation) -> Iterator[Assumption]:
        """Conditions of this kind of release alone.

        Args:
            participation: Who takes part.

        Yields:
            The assumptions.
        """
        if participation.min_separation > 1 or participation.limit < participation.rounds:
            yield FixedOrder()
        if self.sampling_rate is not None and self.is_sampled:
            yield PoissonSampling(self.sampling_rate)

    def fixed_order_mu(
        self, neighboring: Neighboring, honest: int, window: int, count: int, failure: float
    ) -> tuple[float, float]:
        """Certified μ of a record over all rounds that it is in, in a fixed order with correlated noise.

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

    def participation_mu(self, neighboring: Neighboring, honest: int, failure: float, window: int) -> float:
        """μ of a single participation.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest silos.
            failure: Probability of the outcomes that μ leaves out, with independent noise.
            window: Rounds from a participation to the next.

        Returns:
            μ.
        """
        if self.noise is None or not self.mechanism.has_integer_messages:
            return self.mu(neighboring, honest, failure, window)
        return self.fixed_order_mu(neighboring, honest, window, 1, 1.0)[0]

    def _independent_mu(self, neighboring: Neighboring, honest: int, failure: float) -> float:
        return mu_anywhere(self, self.sensitivity(neighboring), honest, failure)

    @property
    def _attainable_fraction(self) -> float:
        return 1.0  # a silo's vector may be longer than a record's clip

    def per_coordinate(self, neighboring: Neighboring, honest: int) -> float | None:
        """None: the divergence of a coordinate does not say how private a round is.

        Args:
            neighboring: Not used.
            honest: Not used.
        """
        return None

    def rdp(self, orders: Sequence[float], neighboring: Neighboring, honest: int) -> RdpCurve:
        """Rényi divergences of a trusted server's Gaussian; no others are computed for records.

        Args:
            orders: Rényi orders.
            neighboring: The neighboring relation.
            honest: Number of honest silos.

        Returns:
            The curve.

        Raises:
            ValueError: If the noise is not exactly Gaussian.
        """
        if self.mechanism.gaussian_multiplier is None:
            raise ValueError("record_clip: Rényi divergences are not computed for records")
        return super().rdp(orders, neighboring, honest)
