"""`PrivateRecordMean`: the mean of silos' vectors, with a guarantee for every record of a silo.

A silo sends the sum of its records' vectors, each clipped. Nothing else leaves the silo: no number
of records, and no mean over them. The sum is scaled down to a public bound, which never increases
the distance of two sums. So the guarantee depends only on the clip of every record
(docs/proofs/participation.md#lemma-8).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from rqm._util.checks import floats, real, shown
from rqm.accounting.participation import ThreatModel
from rqm.core.base import BaseMean
from rqm.core.quantizer import Quantizer, quantizer_for
from rqm.core.transform import FLOAT_ROOM, clip_and_rotate, torch_backend

if TYPE_CHECKING:
    from rqm.accounting.calibration import RecordTarget
    from rqm.accounting.record_release import RecordRelease


@final
@dataclass(frozen=True, eq=False)
class RecordSum:
    """The sum of records' clipped vectors. It does not leave the silo as it is.

    Attributes:
        total: The sum, in float64.
        records: Number of records.
    """

    total: Any
    records: int

    def plus(self, total: Any, records: int) -> "RecordSum":
        """This sum and another one.

        Args:
            total: A sum of clipped vectors, in float64.
            records: Number of records in it.

        Returns:
            Both together.
        """
        return RecordSum(self.total + total, self.records + records)


@final
@dataclass(frozen=True, kw_only=True)
class PrivateRecordMean(BaseMean):
    """The mean of the silos' sums of records, round after round, and what it reveals about one record.

    It has the interface of `PrivateMean`. The function `rqm.private_record_mean` finds a mechanism
    for a given ε.

    Attributes:
        record_clip: L2 clip of each record's vector.
        sampling_rate: The probability with which a silo includes a record in a round (Poisson
            sampling); None: all.
        l2_clip: Public L2 bound of a silo's sum.
        noise: Correlated noise. A silo cancels it in its next message.
        delta: δ, well below one over the number of all records.

    The others are those of `PrivateMean`; `coordinates` must be None.

    >>> from rqm import DiscreteGaussian, Participation, SecureRandom
    >>> who = Participation(clients=4, rounds=10)
    >>> mechanism = DiscreteGaussian(clip=9.0, scale=0.2, steps=1001, bits=13)
    >>> mean = PrivateRecordMean(
    ...     dim=3, record_clip=1.0, l2_clip=9.0, delta=1e-6, mechanism=mechanism, participation=who
    ... )
    >>> message = mean.encode(np.ones((20, 3)), SecureRandom())  # a silo with 20 records
    >>> message.shape
    (4,)
    """

    unit: ClassVar[str] = "record"
    sums_records: ClassVar[bool] = True

    threat_model: ThreatModel = field(
        default_factory=lambda: ThreatModel(unit="record", neighboring="add-or-remove-one")
    )
    record_clip: float | None = None  # type: ignore[misc]
    sampling_rate: float | None = None  # type: ignore[misc]

    def _default_delta(self) -> float:
        raise ValueError("delta = None: must be given for records: well below one over the number of all of them")

    def _check(self) -> None:
        """Refuse what no bound is known for with records."""
        if self.sampling_rate is not None:
            rate = real("sampling_rate", self.sampling_rate, "above 0 and at most 1", 0, 1, closed="]")
            object.__setattr__(self, "sampling_rate", rate)
        for name in ("record_clip", "l2_clip"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{name} = None: must be given for records: record_clip is the L2 clip of each record's vector, "
                    "l2_clip a public bound on a silo's sum"
                )
        assert self.record_clip is not None
        assert self.l2_clip is not None
        max_ratio = 2**14  # so that float errors of scaling and rotating stay small
        if not self.record_clip <= self.l2_clip <= max_ratio * self.record_clip:
            raise ValueError(
                f"l2_clip = {self.l2_clip:g}: must be from 1 to {max_ratio} times a record's clip "
                f"({self.record_clip:g})"
            )
        if self.is_subset:
            raise ValueError(f"coordinates = {self.coordinates}: no bound is known for records; leave it out")
        self._check_sampling()
        mechanism = self.mechanism
        if (
            mechanism.correlation is not None
            or mechanism.vector_mechanism is not None
            or (mechanism.has_integer_messages and not mechanism.discrete.uses_l2_norm)
        ):
            raise ValueError(
                f"mechanism = {mechanism.kind!r}: no bound is known for records; must be integer noise "
                "(discrete-gaussian, skellam, binomial), levels outside the clip, or gaussian"
            )
        super()._check()
        if self.noise is not None and self.participation.window == 1:
            raise ValueError(
                "min_separation = 1: must be larger with correlated noise: it is the number of rounds after which a "
                "record returns"
            )
        _ = self.record_length

    def _check_sampling(self) -> None:
        """Refuse Poisson sampling with what its bound does not cover."""
        if self.sampling_rate is None:
            return
        if self.noise is not None:
            raise ValueError(
                "sampling_rate: must not be given with correlated noise, which needs a fixed order of records"
            )
        if self.threat_model.neighboring != "add-or-remove-one":
            raise ValueError(
                f"neighboring = {shown(self.threat_model.neighboring)}: must be 'add-or-remove-one' with Poisson "
                "sampling (sampling_rate), whose bound holds for that"
            )
        if self.participation.limit < self.participation.rounds:
            raise ValueError(
                "sampling_rate: must be given without max_participations and min_separation: each round samples anew"
            )

    @property
    def sensitivity_clip(self) -> float:
        """The clip of a record's vector."""
        assert self.record_clip is not None
        return self.record_clip

    @cached_property
    def quantizer(self) -> Quantizer:
        """How a silo's vector becomes a message. No guarantee depends on its norm, so it is not checked."""
        return quantizer_for(self.mechanism, self.coordinates, self.l2_bound, checks_length=False)

    @property
    def max_length(self) -> float | None:
        """The public bound of a silo's sum."""
        return self.l2_clip

    @property
    def release(self) -> "RecordRelease":
        """What one round reveals about a record."""
        from rqm.accounting.record_release import RecordRelease  # noqa: PLC0415 (takes the compiler)

        return RecordRelease(
            self.mechanism,
            self.coordinates,
            self.l2_bound,
            self.noise,
            self.zero_distance,
            record_clip=self.sensitivity_clip,
            sampling_rate=self.sampling_rate,
        )

    def target(self, epsilon: float) -> "RecordTarget":
        """What a search for a mechanism has to reach.

        Args:
            epsilon: ε of all rounds together.

        Returns:
            The target, with everything but the mechanism and its noise.
        """
        from rqm.accounting.calibration import RecordTarget  # noqa: PLC0415 (takes the compiler)

        return RecordTarget(epsilon, self.delta, self.participation, self.threat_model, self.release)

    @cached_property
    def record_length(self) -> float:
        """The L2 norm to which a record's vector is scaled down, below its clip, as sums are rounded to positions.

        Raises:
            ValueError: If the clip is too small for the rounding.
        """
        clip = self.sensitivity_clip
        length = (1 - FLOAT_ROOM) * clip
        if self.has_integer_messages:
            mechanism, sampler = self.mechanism.discrete, self.mechanism.discrete.sampler
            positions = clip / mechanism.clip * (sampler.high - sampler.low) / 2 - sqrt(self.coordinates)
            length = min(length, (1 - FLOAT_ROOM) * positions / sampler.scale)
        if not length > clip / 2:
            raise ValueError(
                f"record_clip = {clip:g}: is only some of the encoder's positions wide: must be larger, or the "
                f"mechanism's clip ({self.mechanism.discrete.clip:g}) smaller"
            )
        return length

    def sum_records(self, rows: Any, earlier: RecordSum | None = None) -> RecordSum:
        """Clip the vectors of a silo's records and add them up, for `encode`.

        Args:
            rows: Vectors, one row for each record. A row that is not finite counts as zero.
            earlier: A sum of other records of the silo, to which these are added.

        Returns:
            The sum.

        Raises:
            ValueError: If the rows have the wrong shape.
        """
        torch_transform = torch_backend(rows)
        if torch_transform is None:
            rows = floats("rows", rows).astype(np.float64)
        else:
            rows = torch_transform.copy_floats(rows).double()
        if tuple(rows.shape) == (0,):  # no record was drawn
            rows = rows.reshape(0, self.dim)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ValueError(f"rows have shape {tuple(rows.shape)}: must be (records, {self.dim})")
        clipped, _ = clip_and_rotate(rows, self.record_length, None)
        size = 128  # records are added up in blocks, so that float errors stay below `FLOAT_ROOM` of a record
        for start in range(0, max(len(rows), 1), size):
            block = clipped[start : start + size]
            total = block.sum(axis=0) if torch_transform is None else torch_transform.sum_rows(block)
            if earlier is None:
                earlier = RecordSum(total, len(block))
            elif len(block):
                earlier = earlier.plus(total, len(block))
        assert earlier is not None
        return earlier

    def _client_vector(self, vector: Any) -> Any:
        """The sum of a silo's records."""
        return (vector if isinstance(vector, RecordSum) else self.sum_records(vector)).total

    def _client_rows(self, rows: Sequence[RecordSum]) -> Any:
        """The sums of silos, a row each."""
        if not all(isinstance(row, RecordSum) for row in rows):
            raise TypeError(
                "rows: contains what is no RecordSum: must be what PrivateRecordMean.sum_records() returned, one for "
                "each silo"
            )
        totals = [row.total for row in rows]
        torch_transform = torch_backend(totals[0])
        return np.stack(totals) if torch_transform is None else torch_transform.stack(totals)
