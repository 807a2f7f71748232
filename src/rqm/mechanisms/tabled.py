"""Tabled channels: they round onto a uniform grid and then draw a level from a fixed table.

Such a law is affine in the input on every cell of the grid (``docs/proofs/integer-tables.md#lemma-1``), so the law at
the grid levels, one row each, is all there is to know about it. The grid that inputs are rounded to is the one of the
outputs, unless a mechanism says otherwise. The law that is *sampled* comes from the same rows rounded to integers
(``docs/proofs/integer-tables.md#assumption-1``), and is known exactly.
"""

from abc import abstractmethod
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS, IntArray, IntegerSampler, grid_sampler
from rqm.mechanisms.channel import Channel, Grid, Law


class Tabled(Channel):
    """A channel whose law is a table: row j is the law at the j-th level of the inputs."""

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

    @cached_property
    def _inner(self) -> range:
        """Indices of the inputs' levels strictly inside (-clip, clip)."""
        low = Fraction(self.input_levels - 1, 2) * (1 - 1 / self.input_reach)
        first = low.__floor__() + 1
        return range(first, self.input_levels - first)

    @property
    def breakpoints(self) -> FloatArray:
        """The inputs where a worst case can sit: ±clip and every level between them, in increasing order."""
        levels = Grid(self.clip * float(self.input_reach), self.input_levels).values
        return np.concatenate([[-self.clip], levels[self._inner], [self.clip]])

    def _cell(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """The level j below each (clipped) input and how far along its cell the input lies, in [0, 1]."""
        position = (self.input_levels - 1) / 2 * (1 + self._unit(x) / float(self.input_reach))
        level = np.clip(np.floor(position), 0, self.input_levels - 2)
        return level.astype(np.int64), position - level

    # -- the paper's law ----------------------------------------------------------------------

    @cached_property
    def _log_rows(self) -> FloatArray:
        return self.log_rows()

    def _rows_at(self, levels: range) -> FloatArray:
        """The rows of some levels."""
        return self._log_rows[levels]

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of ``pmf(x)``; −∞ where the law is zero."""
        level, part = self._cell(inputs("x", x))
        with np.errstate(divide="ignore"):
            below, above = np.log1p(-part), np.log(part)
        return np.logaddexp(below[..., None] + self._log_rows[level], above[..., None] + self._log_rows[level + 1])

    def knot_laws(self, law: Law = "paper") -> FloatArray:
        """Log-probabilities at every knot, one row each. Where ±clip lies in its cell is worked out in fractions."""
        if law != "paper":
            return self.log_law(self.breakpoints, law)
        ends = []
        for sign in (-1, 1):
            position = Fraction(self.input_levels - 1, 2) * (1 + sign / self.input_reach)
            level = min(int(position), self.input_levels - 2)
            part = position - level
            with np.errstate(divide="ignore"):
                below, above = np.log([float(1 - part), float(part)])
            rows = self._rows_at(range(level, level + 2))
            ends.append(np.logaddexp(below + rows[0], above + rows[1]))
        return np.vstack([ends[0], self._rows_at(self._inner), ends[1]])

    @property
    def variance_max(self) -> float:
        """The largest variance over all inputs: on each cell it is affine in x minus x²."""
        x = self.breakpoints
        second = self.variance(x) + x**2
        slope = np.diff(second) / np.diff(x)
        peak = np.clip(slope / 2, x[:-1], x[1:])
        return float((second[:-1] + slope * (peak - x[:-1]) - peak**2).max())

    # -- the law that is sampled --------------------------------------------------------------

    @cached_property
    def table(self) -> IntArray:
        """The integer table: row j sums to 2**TABLE_BITS and has exactly the mean that makes it unbiased."""
        place = Fraction(self.levels - 1, self.input_levels - 1) * self.input_reach / self.reach
        rows = np.array(
            [
                integer_row(row, Fraction(self.levels - 1, 2) + place * (j - Fraction(self.input_levels - 1, 2)))
                for j, row in enumerate(self._log_rows)
            ]
        )
        rows.setflags(write=False)
        return rows

    @cached_property
    def recipe(self) -> IntegerSampler:
        """What the encoders draw by."""
        return grid_sampler(self.clip, self.input_reach, self.input_levels, self.table, modulus=self.levels)

    def sampled_law(self, position: int) -> list[Fraction]:
        """The exact law of what ``encode`` draws at a position: between two rows of the integer table."""
        level = min(position >> POSITION_BITS, self.input_levels - 2)
        part = position - (level << POSITION_BITS)
        rest = 2**POSITION_BITS - part
        low, high = self.table[level], self.table[level + 1]
        total = 2 ** (POSITION_BITS + TABLE_BITS)
        return [Fraction(rest * int(a) + part * int(b), total) for a, b in zip(low, high, strict=True)]


class Wide(Tabled):
    """A tabled channel whose outermost level lies ``margin`` (Δ, in units of clip) beyond the clip."""

    margin: float

    @property
    def reach(self) -> Fraction:
        """X / c = 1 + Δ / c."""
        return 1 + Fraction(self.margin)

    @property
    def least_noise(self) -> float:
        """X / c from which on no level lies inside the clip."""
        return widest(self.levels)

    def with_noise(self, amount: float) -> Self:
        """Outer levels so far out, in clips."""
        return self.changed(margin=amount - 1)


def widest(levels: int) -> float:
    """X / c from which on no level of an even number lies strictly inside the clip; odd numbers have one at 0."""
    if levels % 2:
        raise ValueError(f"levels = {levels}: must be even here, or a level lies at zero, inside the clip")
    return float(max(levels - 1, 1)) * (1 + 1e-6)


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
            giver = next((i for i in (giver, *apart) if units[i + sign * rest] > 0), -1)
            for one, other in [(giver, giver + sign * rest)] if giver >= 0 else _way(units, sign * rest):
                units[one] -= 1
                units[other] += 1
    return units


def _way(units: IntArray, rest: int) -> list[tuple[int, int]]:
    """Moves of single units between outcomes that are possible, as few as may be, that go so far together."""
    able = np.flatnonzero(units > len(units)).tolist()
    steps = {j - i: (i, j) for i in able for j in able if i != j}
    found: dict[int, list[tuple[int, int]]] = {0: []}
    edge = [0]
    while edge and rest not in found:
        ways = {at + step: [*found[at], pair] for at in edge for step, pair in steps.items()}
        edge = [at for at in ways if abs(at) <= len(units) and at not in found]
        found |= {at: ways[at] for at in edge}
    if rest not in found:
        raise ValueError("a row of the table cannot have its mean in integers: give more outcomes some chance")
    return found[rest]
