"""Channels: mechanisms that round onto a uniform grid and then draw a level from a fixed table.

A channel's law is affine in the input on every cell of the grid (``docs/proofs/affine.md``), so the law at the
grid levels, one row each, is all there is to know about it. The grid that inputs are rounded to is the one of the
outputs, unless a mechanism says otherwise. The law that is *sampled* comes from the same rows
rounded to integers (``docs/proofs/integer-table.md``), and is known exactly.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from math import log
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._checks import FloatArray, inputs, real, whole
from rqm.kernels.recipe import POSITION_BITS, TABLE_BITS, IntArray, Recipe, on_grid

Law = Literal["paper", "sampled"]

MAX_LEVELS = 65_536
CLIPS = (1e-280, 1e280)  # beyond them, scales between inputs and positions overflow


@dataclass(frozen=True)
class Grid:
    """``levels`` (m) evenly spaced values B(0), …, B(m−1) from ``-extent`` to ``extent``.

    >>> Grid(extent=3.0, levels=4).values
    array([-3., -1.,  1.,  3.])
    """

    extent: float
    levels: int

    @property
    def step(self) -> float:
        """The distance between neighbouring levels."""
        return 2 * self.extent / (self.levels - 1)

    @property
    def values(self) -> FloatArray:
        """The levels B(0), …, B(m−1)."""
        return np.linspace(-self.extent, self.extent, self.levels)


class Channel(ABC):
    """A mechanism with a law over the integers 0..levels−1, unbiased for every input in [-clip, clip]."""

    kind: ClassVar[str]
    modular: ClassVar[bool] = False  # whether outcomes, and so sums, are taken modulo 2**bits
    clip: float
    levels: int

    def _validate(self, max_levels: int = MAX_LEVELS) -> None:
        clip = real("clip", self.clip, f"from {CLIPS[0]:g} to {CLIPS[1]:g}", *CLIPS, closed="[]")
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "levels", whole("levels", self.levels, 2, max_levels))

    # -- what a mechanism defines -------------------------------------------------------------

    @property
    @abstractmethod
    def reach(self) -> Fraction:
        """X / c: the outermost level in units of the clip, exactly."""

    @abstractmethod
    def log_rows(self) -> FloatArray:
        """The natural logarithm of the law at every level of the inputs: row j is the law at the j-th of them."""

    @property
    def input_levels(self) -> int:
        """Levels that inputs are rounded to, each with a row of its own."""
        return self.levels

    @property
    def input_reach(self) -> Fraction:
        """The outermost level of the inputs, in units of the clip, exactly."""
        return self.reach

    # -- the grid -----------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """The levels, in the units of the input."""
        return Grid(self.clip * float(self.reach), self.levels)

    @property
    def bits(self) -> int:
        """Bits that carry one encoded coordinate before secure aggregation."""
        return (self.levels - 1).bit_length()

    @cached_property
    def _inner(self) -> range:
        """Indices of the inputs' levels strictly inside (-clip, clip)."""
        low = Fraction(self.input_levels - 1, 2) * (1 - 1 / self.input_reach)
        first = low.__floor__() + 1
        return range(first, self.input_levels - first)

    @property
    def knots(self) -> FloatArray:
        """The inputs where a worst case can sit: ±clip and every level between them, in increasing order."""
        levels = Grid(self.clip * float(self.input_reach), self.input_levels).values
        return np.concatenate([[-self.clip], levels[self._inner], [self.clip]])

    def _unit(self, x: FloatArray) -> FloatArray:
        """The input clipped, in units of the clip."""
        return np.asarray(np.clip(x, -self.clip, self.clip) / self.clip)

    def _cell(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """The level j below each (clipped) input and how far along its cell the input lies, in [0, 1]."""
        position = (self.input_levels - 1) / 2 * (1 + self._unit(x) / float(self.input_reach))
        level = np.clip(np.floor(position), 0, self.input_levels - 2)
        return level.astype(np.int64), position - level

    # -- the paper's law ----------------------------------------------------------------------

    @cached_property
    def _log_rows(self) -> FloatArray:
        return self.log_rows()

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of ``pmf(x)``; −∞ where the law is zero."""
        level, part = self._cell(inputs("x", x))
        with np.errstate(divide="ignore"):
            below, above = np.log1p(-part), np.log(part)
        return np.logaddexp(below[..., None] + self._log_rows[level], above[..., None] + self._log_rows[level + 1])

    def pmf(self, x: npt.ArrayLike) -> FloatArray:
        """The law of the output at input ``x`` (clipped), of shape ``x.shape + (levels,)``."""
        return np.exp(self.log_pmf(x))

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input ``x``."""
        x = inputs("x", x)
        deviation = self.grid.values - np.clip(x, -self.clip, self.clip)[..., None]
        return np.asarray((self.pmf(x) * deviation**2).sum(axis=-1))

    @property
    def variance_max(self) -> float:
        """The largest variance over all inputs: on each cell it is affine in x minus x²."""
        x = self.knots
        second = self.variance(x) + x**2
        slope = np.diff(second) / np.diff(x)
        peak = np.clip(slope / 2, x[:-1], x[1:])
        return float((second[:-1] + slope * (peak - x[:-1]) - peak**2).max())

    # -- the law that is sampled --------------------------------------------------------------

    @cached_property
    def table(self) -> IntArray:
        """The integer table: row j sums to 2**TABLE_BITS and has exactly the mean that makes it unbiased."""
        place = Fraction(self.levels - 1, self.input_levels - 1) * self.input_reach / self.reach
        rows = np.array([
            integer_row(row, Fraction(self.levels - 1, 2) + place * (j - Fraction(self.input_levels - 1, 2)))
            for j, row in enumerate(self._log_rows)
        ])  # fmt: skip
        rows.setflags(write=False)
        return rows

    @cached_property
    def recipe(self) -> Recipe:
        """What the encoders draw by."""
        return on_grid(
            self.clip, self.input_reach, self.input_levels, self.table, rows=True, modulus=self.levels
        )  # fmt: skip

    def position(self, x: npt.ArrayLike) -> IntArray:
        """Fixed-point position of ``x`` on the grid: the level in the high bits, the part of the cell in the low.

        Float rounding happens before the clamp only, so whatever it does, the result is a position whose law
        is accounted for.
        """
        return self.recipe.position(inputs("x", x))

    def _sampled_numerators(self, position: int) -> list[int]:
        """The sampled law at a position, times 2**(POSITION_BITS + TABLE_BITS)."""
        level = min(position >> POSITION_BITS, self.input_levels - 2)
        part = position - (level << POSITION_BITS)
        rest = 2**POSITION_BITS - part
        low, high = self.table[level], self.table[level + 1]
        return [rest * int(a) + part * int(b) for a, b in zip(low, high, strict=True)]

    def sampled_pmf(self, x: npt.ArrayLike) -> npt.NDArray[np.object_]:
        """The exact law of what ``encode`` draws at input ``x``, as fractions."""
        positions = self.position(x)
        out = np.empty((*positions.shape, self.levels), dtype=object)
        total = 2 ** (POSITION_BITS + TABLE_BITS)
        for index in np.ndindex(positions.shape):
            out[index] = [Fraction(n, total) for n in self._sampled_numerators(int(positions[index]))]
        return out

    def log_law(self, x: npt.ArrayLike, law: Law = "paper") -> FloatArray:
        """Log-probabilities at input ``x``: of the paper's law, or of the one that is sampled."""
        if law == "paper":
            return self.log_pmf(x)
        if law == "sampled":
            return np.asarray(np.vectorize(_log_fraction, otypes=[np.float64])(self.sampled_pmf(x)))
        raise ValueError(f"law = {law!r}: must be 'paper' or 'sampled'")

    def knot_laws(self, law: Law = "paper") -> FloatArray:
        """Log-probabilities at every knot, one row each. Where ±clip lies in its cell is worked out in fractions."""
        if law != "paper":
            return self.log_law(self.knots, law)
        ends = []
        for sign in (-1, 1):
            position = Fraction(self.input_levels - 1, 2) * (1 + sign / self.input_reach)
            level = min(int(position), self.input_levels - 2)
            part = position - level
            with np.errstate(divide="ignore"):
                below, above = np.log([float(1 - part), float(part)])
            ends.append(np.logaddexp(below + self._log_rows[level], above + self._log_rows[level + 1]))
        return np.vstack([ends[0], self._log_rows[self._inner], ends[1]])

    # -- encode and decode --------------------------------------------------------------------

    def encode(self, x: Any, rng: object, *, threads: int | None = None) -> Any:
        """Draw one level for each input: unsigned integers, in the array library of ``x`` (NumPy or torch).

        ``rng`` is a SecureRandom or a SeededRandom; with the latter the levels do not depend on ``threads`` (all
        processors if None). Floats of 32 and 64 bits are read in place: only the output is allocated.
        """
        return kernels.encode(self.recipe, x, rng, threads)

    def encode_sum(
        self, x: Any, rng: object, *, out: Any = None, threads: int | None = None, check: bool = True
    ) -> Any:
        """Encode every client's input and return only the sum of their levels, as 32-bit integers.

        ``x`` has one row for each client. With ``out`` the sum is added to it in place. ``check=False`` is for a caller
        who knows that all inputs are finite and that ``out`` has room: on a GPU nothing then waits for the host.

        >>> from rqm import RQM, SeededRandom
        >>> RQM().encode_sum(np.zeros((40, 3)), SeededRandom(1)).shape
        (3,)
        """
        return kernels.encode_sum(self.recipe, x, rng, out, threads, check)

    def sum_bits(self, clients: int) -> int:
        """Bits of a secure sum's coordinate: k with n (m−1) < 2**k, so that a sum modulo 2**k is the sum.

        >>> from rqm import RQM
        >>> RQM(levels=16).sum_bits(40)
        10
        """
        return int(whole("clients", clients, 1) * (self.levels - 1)).bit_length()

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Unbiased estimate of the mean of ``clients`` inputs from the sum of their levels, as float64.

        ``check=False`` is for a caller who knows that the sum is one that these clients can have sent.
        """
        clients = whole("clients", clients, 1)
        top = clients * (self.levels - 1)
        other = kernels.backend(z_sum)
        if other is not None:
            return other.decode(z_sum, self.grid.extent, top, clients, check)
        total = inputs("z_sum", z_sum)
        if check and total.size and (total.min() < 0 or total.max() > top):
            raise kernels.outside(clients, top, total.min() if total.min() < 0 else total.max())
        return self.grid.extent * (2 * total / top - 1)

    # -- to and from a plain dict -------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters and the mechanism's name, ready for JSON or TOML."""
        fields: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {"mechanism": self.kind, **fields}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build the mechanism that ``to_dict`` described."""
        fields = dict(fields)
        kind = fields.pop("mechanism", cls.kind)
        if kind != cls.kind:
            raise ValueError(f"mechanism = {kind!r}: must be {cls.kind!r} here")
        return cls(**fields)


def _log_fraction(value: Fraction) -> float:
    return log(value.numerator) - log(value.denominator) if value else -np.inf


def integer_row(log_row: FloatArray, mean: Fraction) -> IntArray:
    """Round a law to integers over 2**TABLE_BITS, keeping total, ``mean`` and support exactly."""
    total = 2**TABLE_BITS
    if (mean * total).denominator != 1:
        raise ValueError(f"mean = {float(mean):g}: must be a multiple of 2**-{TABLE_BITS}")
    units: IntArray = np.maximum(1, np.rint(np.exp(log_row) * total)).astype(np.int64)
    units[np.isneginf(log_row)] = 0
    index = np.arange(len(units))
    if (units > 0).sum() == 1:  # a point mass
        units[units > 0] = total
        return units
    # The heaviest level takes up what rounding left over in the total, a second one what it left in the mean.
    giver = int(np.argmax(units))
    units[giver] += total - int(units.sum())
    shift = int(mean * total) - sum(i * n for i, n in enumerate(units.tolist()))
    if shift and not (giver + 1 < len(units) if shift > 0 else giver > 0):
        giver = int(np.argmax(units * (index != giver)))  # no level lies that way: let the next one give
    if shift:
        sign = 1 if shift > 0 else -1
        away = (index - giver) * sign
        taker = int(np.argmax(np.where(away > 0, units * away, -1.0)))
        moved, rest = divmod(abs(shift), int(away[taker]))
        units[taker] += moved
        units[giver] -= moved
        if rest:  # one unit goes the rest of the way, between two outcomes that are possible
            apart = [i for i in index.tolist() if 0 <= i + sign * rest < len(units) and units[i] > 1]
            giver, *_ = [
                *(i for i in (giver, *apart) if units[i + sign * rest] > 0), -1
            ]  # fmt: skip
            if giver < 0:
                raise ValueError("a row of the table cannot have its mean in integers: give more outcomes some chance")
            units[giver] -= 1
            units[giver + sign * rest] += 1
    return units
