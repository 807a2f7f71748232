"""One release of silos' sums of records, and the bounds that are known for a record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, ClassVar, final

from rqm._util.checks import real
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.profiles import poisson_sampled_gaussian
from rqm.accounting.release import Release, mu_anywhere
from rqm.bounds import (
    Assumption,
    Bound,
    EpsilonResult,
    FixedOrder,
    Neighboring,
    PoissonSampling,
    PrivacyProfile,
    RdpCurve,
    Unit,
    compose,
)
from rqm.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from rqm.accounting.accountant import Question


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
    max_zero_distance: ClassVar[float] = 1.0
    tail_fraction: ClassVar[float] = 0.02  # the noise of few silos is far from Gaussian in its tails

    record_clip: float  # type: ignore[misc]
    sampling_rate: float | None = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Validate every value."""
        super().__post_init__()
        real("record_clip", self.record_clip, "a positive finite number", 0, inf)

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
    def privacy_unit_clip(self) -> float:
        """The L2 bound of a record's vector."""
        return self.record_clip

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

    def mu(self, neighboring: Neighboring, honest: int, failure: float) -> float:
        """Certified μ of one release, with independent noise.

        Args:
            neighboring: The neighboring relation.
            honest: Number of honest silos.
            failure: Probability of the outcomes that μ leaves out.

        Returns:
            μ, infinite if none is known.
        """
        if self.mechanism.gaussian_multiplier is not None:
            return self.estimated_mu(neighboring, honest)
        return mu_anywhere(self, self.sensitivity(neighboring), honest, failure)

    def settling_clients(self, question: "Question") -> int:
        """A silo that misses a round cancels nothing there, and its noise is missing in two rounds."""
        return max(1, question.honest - question.participation.dropouts)

    def independent_results(self, question: "Question") -> Iterator[EpsilonResult]:
        """ε by certified μ, with Poisson sampling if there is any.

        See docs/proofs/participation.md#lemma-11.

        Args:
            question: Who takes part, the adversary, and δ.

        Yields:
            One result.
        """
        mu, rate = self.mu(question.neighboring, question.honest, question.failure), self.sampling_rate
        if rate is None or not self.is_sampled or mu == inf:
            yield self._by_gaussian(question)
            return
        parts = []
        for count, rounds in question.user_counts.items():
            parts.append((_sampled(mu, rate, question.failure), count * rounds))
            if count > 1:  # or as one release of a sample that stays the same; only one of both happens
                parts.append((_sampled(mu * sqrt(count), rate, 0.0), rounds))
        yield EpsilonResult.of(compose(parts), question.delta, "pld")

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


def _sampled(mu: float, rate: float, failure: float) -> Bound:
    """The bound of a release of a Poisson sample."""
    return Bound(PrivacyProfile(((poisson_sampled_gaussian(mu, rate), 1),)), failure)
