"""Quantizers: how a transformed vector becomes a client's message, and a sum of messages a mean.

The L2 budget of integer messages is checked in integers, on the positions that the encoder rounds
to, so that no float error can break it (docs/proofs/integer-tables.md).
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from typing import Any, Protocol, final

from rqm import kernels
from rqm._util.checks import floats, real
from rqm.core.transform import FLOAT_ROOM, torch_backend
from rqm.kernels.integer_sampler import IntegerSampler
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.randomness import SecureRandom, SeededRandom, require


class Quantizer(Protocol):
    """Encodes transformed vectors, and decodes the sum of their messages."""

    @property
    def max_length(self) -> float:
        """The L2 norm to which vectors are scaled down before they are encoded, below the L2 bound."""

    def encode(self, row: Any, source: SecureRandom | SeededRandom, *, keep: Any) -> Any:
        """The message of one client.

        Args:
            row: The transformed vector, as a matrix of one row, which may be overwritten.
            source: The source of randomness.
            keep: An array whose memory must not be overwritten.
        """

    def add_messages(self, rows: Any, total: Any, source: object) -> None:
        """Add the messages of clients to their sum, in place.

        Args:
            rows: Their transformed vectors, which may be overwritten.
            total: The sum.
            source: The source of randomness.
        """

    def decode(self, total: Any, survivors: int, *, check: bool) -> Any:
        """The mean of the transformed vectors.

        Args:
            total: The sum of the messages.
            survivors: Clients in the sum.
            check: Whether to refuse a sum that these clients cannot have sent.
        """


@final
@dataclass(frozen=True)
class CoordinateQuantizer:
    """Encodes each coordinate as an integer.

    Attributes:
        mechanism: The mechanism of a coordinate.
        coordinates: Number of coordinates.
        l2_bound: The L2 bound C of a vector.
        checks_length: Whether a vector whose positions exceed the bound becomes zero.
    """

    mechanism: DiscreteMechanism
    coordinates: int
    l2_bound: float
    checks_length: bool = True

    @property
    def budget(self) -> int:
        """The L2 budget in squared integer positions: (C/c · half the span of the positions)²."""
        span = self.mechanism.sampler.high - self.mechanism.sampler.low
        clips = real("l2_clip", self.l2_bound, "a positive finite number", 0, inf) / self.mechanism.clip
        numerator, denominator = clips.as_integer_ratio()
        return (numerator * span) ** 2 // (2 * denominator) ** 2

    @property
    def dropped_bits(self) -> int:
        """Low bits of each distance that are rounded up, so that the sum of squares fits 64 bits."""
        span = self.mechanism.sampler.high - self.mechanism.sampler.low
        return max(0, (self.coordinates.bit_length() + 2 * span.bit_length() - 61) // 2)

    @property
    def max_squares(self) -> int:
        """The budget in the units of `squared_distances`."""
        return int(min(4 * self.budget >> 2 * self.dropped_bits, 2**63 - 1))

    @cached_property
    def max_length(self) -> float:
        """The L2 norm to which vectors are scaled down, below C, so that none exceeds the budget.

        It is below C, because each coordinate is rounded by up to half a position, squares are
        rounded up, and floats err. This matters only if [-c, c] has few positions.

        Raises:
            ValueError: If the budget is too small for the rounding.
        """
        if self.l2_bound >= self.mechanism.clip * sqrt(self.coordinates):  # the clip of each coordinate is enough
            return (1 - FLOAT_ROOM) * self.l2_bound
        half_positions = sqrt(self.max_squares) - (sqrt(self.coordinates) if self.dropped_bits else 0.0)
        half_positions = 2.0**self.dropped_bits * half_positions - sqrt(self.coordinates)
        float_error = 2.0**-16  # scaling and rotating in float32 lengthen a vector by no more than this fraction
        length = min(
            (1 - FLOAT_ROOM) * self.l2_bound, (1 - float_error) * half_positions / (2 * self.mechanism.sampler.scale)
        )
        if not length > self.l2_bound / 2:
            raise ValueError(
                f"l2_clip = {self.l2_bound:g}: allows {max(0.0, half_positions) / 2:.3g} positions of the encoder, too "
                f"few to round {self.coordinates} coordinates: must be larger, or the mechanism's clip "
                f"({self.mechanism.clip:g}) or margin smaller"
            )
        return length

    def exceeds_bound(self, rows: Any) -> Any:
        """Which rows exceed the L2 budget, in integers, after they are clamped and rounded to positions."""
        torch_transform = torch_backend(rows)
        if torch_transform is not None:
            squares = torch_transform.squared_distances(self.mechanism.sampler, rows, self.dropped_bits)
        else:
            from rqm.kernels import rotation  # noqa: PLC0415 (the compiler takes half a second)

            squares = rotation.squares(self.mechanism.sampler, floats("x", rows), self.dropped_bits)
        return squares > self.max_squares

    def enforce_bound(self, rows: Any) -> Any:
        """Set rows that exceed the L2 bound to zero, in place. No transformed row does."""
        if not self.checks_length:
            return rows
        exceeds, torch_transform = self.exceeds_bound(rows), torch_backend(rows)
        if torch_transform is None:
            rows[exceeds] = 0.0
        else:
            torch_transform.zero_rows(rows, exceeds)
        return rows

    def encode(self, row: Any, source: SecureRandom | SeededRandom, *, keep: Any) -> Any:
        """See `Quantizer`."""
        return kernels.encode_long(self.mechanism.sampler, self.enforce_bound(row)[0], source, keep=keep)

    def add_messages(self, rows: Any, total: Any, source: object) -> None:
        """See `Quantizer`."""
        # With one thread, so that torch's own threads stay ready.
        self.mechanism.encode_sum(self.enforce_bound(rows), source, out=total, check=False, threads=1)

    def decode(self, total: Any, survivors: int, *, check: bool) -> Any:
        """See `Quantizer`."""
        return self.mechanism.decode(total, survivors, check=check)


@final
@dataclass(frozen=True)
class VectorQuantizer:
    """Encodes a whole vector, such as vqSGD.

    Attributes:
        mechanism: The mechanism.
        l2_bound: The L2 bound of a vector, the mechanism's unit.
    """

    mechanism: Mechanism
    l2_bound: float

    @property
    def max_length(self) -> float:
        """See `Quantizer`."""
        return (1 - FLOAT_ROOM) * self.l2_bound

    def encode(self, row: Any, source: SecureRandom | SeededRandom, *, keep: Any) -> Any:
        """See `Quantizer`."""
        assert self.mechanism.vector_mechanism is not None
        return self.mechanism.vector_mechanism.encode(row[0] / self.l2_bound, source)

    def add_messages(self, rows: Any, total: Any, source: object) -> None:
        """See `Quantizer`."""
        assert self.mechanism.vector_mechanism is not None
        self.mechanism.vector_mechanism.encode_sum(rows / self.l2_bound, require(source), total, threads=1)

    def decode(self, total: Any, survivors: int, *, check: bool) -> Any:
        """See `Quantizer`."""
        return self.mechanism.decode(total, survivors, check=check) * self.l2_bound


@final
@dataclass(frozen=True)
class FloatMessages:
    """Sends floats: baselines with a trusted server, and local mechanisms of floats.

    Attributes:
        mechanism: The mechanism.
        l2_bound: The L2 bound of a vector.
    """

    mechanism: Mechanism
    l2_bound: float

    @property
    def max_length(self) -> float:
        """See `Quantizer`."""
        return (1 - FLOAT_ROOM) * self.l2_bound

    def encode(self, row: Any, source: SecureRandom | SeededRandom, *, keep: Any) -> Any:
        """Raises a `TypeError`: only integers may leave a client."""
        return self.mechanism.discrete.encode(row[0], source)

    def add_messages(self, rows: Any, total: Any, source: object) -> None:
        """See `Quantizer`."""
        total += self.mechanism.sample_messages(rows, require(source)).sum(dim=0, dtype=total.dtype)

    def decode(self, total: Any, survivors: int, *, check: bool) -> Any:
        """See `Quantizer`."""
        return self.mechanism.decode(total, survivors, check=check)


def quantizer_for(mechanism: Mechanism, coordinates: int, l2_bound: float, *, checks_length: bool) -> Quantizer:
    """The quantizer of a mechanism.

    Args:
        mechanism: The mechanism.
        coordinates: Coordinates of a transformed vector.
        l2_bound: L2 bound of a transformed vector.
        checks_length: Whether integer messages are checked against the bound.

    Returns:
        The quantizer.
    """
    if mechanism.vector_mechanism is not None:
        return VectorQuantizer(mechanism, l2_bound)
    if mechanism.has_integer_messages:
        return CoordinateQuantizer(mechanism.discrete, coordinates, l2_bound, checks_length)
    return FloatMessages(mechanism, l2_bound)


def squared_distances(sampler: IntegerSampler, positions: Any, dropped_bits: int) -> Any:
    """For each row, the sum of squares of twice a position's distance from the middle of the clip.

    Args:
        sampler: The encoder.
        positions: The positions, a row for each vector.
        dropped_bits: Low bits of each distance that are rounded up.

    Returns:
        The sums.
    """
    distances = 2 * positions - (sampler.low + sampler.high)
    if dropped_bits:
        distances = (abs(distances) >> dropped_bits) + 1
    return (distances * distances).sum(axis=1)
