"""`TableMechanism`: mechanisms that round to an evenly spaced grid and then draw an outcome from a fixed table.

The pmf is affine in the input on every cell of the grid (docs/proofs/integer-tables.md#lemma-1). So the pmfs at the
levels, one row each, define it. Inputs are rounded to the grid of the outputs, unless a mechanism says otherwise. The
pmf that is sampled comes from the same rows, rounded to integers (docs/proofs/integer-tables.md#assumption-1).
"""

from abc import abstractmethod
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS, IntArray, IntegerSampler, end_positions, grid_sampler
from rqm.mechanisms.discrete import DiscreteMechanism, Grid, PmfKind, log_fractions


class TableMechanism(DiscreteMechanism):
    """A mechanism whose pmf is a table: row j is the pmf at the j-th level of the inputs."""

    @abstractmethod
    def log_rows(self) -> FloatArray:
        """Natural logarithm of the pmf at every level of the inputs, one row each."""

    @property
    def input_levels(self) -> int:
        """Levels that inputs are rounded to, each with a row of its own."""
        return self.levels

    @property
    def input_range(self) -> Fraction:
        """The outermost level of the inputs, in units of the clip, exactly."""
        return self.output_range

    # -- the grid -----------------------------------------------------------------------------

    @cached_property
    def _interior_levels(self) -> range:
        """Indices of the input levels strictly inside (-clip, clip)."""
        first = floor(Fraction(self.input_levels - 1, 2) * (1 - 1 / self.input_range)) + 1
        return range(first, self.input_levels - first)

    @property
    def is_affine(self) -> bool:
        """Whether no level lies inside the clip."""
        return not self._interior_levels

    @property
    def breakpoints(self) -> FloatArray:
        """The inputs that a worst case can have: ±clip and every level between them, in increasing order."""
        levels = Grid(self.clip * float(self.input_range), self.input_levels).values
        return np.concatenate([[-self.clip], levels[self._interior_levels], [self.clip]])

    def _cell(self, x: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
        """The level below each (clipped) input, and the input's position in its cell, in [0, 1]."""
        units = np.asarray(np.clip(inputs("x", x), -self.clip, self.clip) / self.clip)
        position = (self.input_levels - 1) / 2 * (1 + units / float(self.input_range))
        level = np.clip(np.floor(position), 0, self.input_levels - 2)
        return level.astype(np.int64), position - level

    # -- the paper's pmf ----------------------------------------------------------------------

    @cached_property
    def _log_rows(self) -> FloatArray:
        return self.log_rows()

    def _rows_at(self, levels: range) -> FloatArray:
        """Some of the rows."""
        return self._log_rows[levels]

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of `pmf(x)`; −∞ where the pmf is zero."""
        level, fraction = self._cell(x)
        with np.errstate(divide="ignore"):
            below, above = np.log1p(-fraction), np.log(fraction)
        return np.logaddexp(below[..., None] + self._log_rows[level], above[..., None] + self._log_rows[level + 1])

    def breakpoint_log_pmfs(self, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities at every breakpoint, one row each. Positions of ±clip are computed in fractions."""
        interior = self._interior_levels
        if kind == "sampled":
            low, high = end_positions(self.input_range, self.input_levels)
            positions = [low, *(level << POSITION_BITS for level in interior), high]
            return log_fractions(np.array([self.sampled_pmf_at(position) for position in positions], dtype=object))
        if kind != "paper":
            return super().breakpoint_log_pmfs(kind)
        ends = []
        for sign in (-1, 1):
            position = Fraction(self.input_levels - 1, 2) * (1 + sign / self.input_range)
            level = min(int(position), self.input_levels - 2)
            with np.errstate(divide="ignore"):
                below, above = np.log([float(level + 1 - position), float(position - level)])
            rows = self._rows_at(range(level, level + 2))
            ends.append(np.logaddexp(below + rows[0], above + rows[1]))
        return np.vstack([ends[0], self._rows_at(interior), ends[1]])

    @property
    def variance_max(self) -> float:
        """The largest variance over all inputs: on each cell it is affine in x minus x²."""
        x = self.breakpoints
        second_moments = self.variance(x) + x**2
        slopes = np.diff(second_moments) / np.diff(x)
        peaks = np.clip(slopes / 2, x[:-1], x[1:])
        return float((second_moments[:-1] + slopes * (peaks - x[:-1]) - peaks**2).max())

    # -- the pmf that is sampled --------------------------------------------------------------

    @cached_property
    def table(self) -> IntArray:
        """The integer table: row j sums to 2**TABLE_BITS and has exactly the mean that makes it unbiased."""
        step = Fraction(self.levels - 1, self.input_levels - 1) * self.input_range / self.output_range
        middle, input_middle = Fraction(self.levels - 1, 2), Fraction(self.input_levels - 1, 2)
        rows = [integer_row(row, middle + step * (j - input_middle)) for j, row in enumerate(self._log_rows)]
        table = np.array(rows)
        table.setflags(write=False)
        return table

    @cached_property
    def sampler(self) -> IntegerSampler:
        """What the encoders sample from."""
        return grid_sampler(self.clip, self.input_range, self.input_levels, self.table, modulus=self.levels)

    def sampled_pmf_at(self, position: int) -> list[Fraction]:
        """The exact pmf that `encode` samples from at a position: between two rows of the integer table."""
        level = min(position >> POSITION_BITS, self.input_levels - 2)
        above = position - (level << POSITION_BITS)
        below = 2**POSITION_BITS - above
        total = 2 ** (POSITION_BITS + TABLE_BITS)
        rows = zip(self.table[level].tolist(), self.table[level + 1].tolist(), strict=True)
        return [Fraction(below * low + above * high, total) for low, high in rows]


class WideTableMechanism(TableMechanism):
    """A table whose outermost levels lie `margin` (Δ, in units of clip) beyond the clip."""

    margin: float

    @property
    def output_range(self) -> Fraction:
        """X / c = 1 + Δ / c."""
        return 1 + Fraction(self.margin)

    @property
    def min_noise(self) -> float:  # type: ignore[override]
        """The X / c from which on no level lies inside the clip.

        Raises:
            ValueError: If the number of levels is odd, so that a level is at 0.
        """
        if self.levels % 2:
            raise ValueError(f"levels = {self.levels}: must be even here, or a level lies at zero, inside the clip")
        return float(max(self.levels - 1, 1)) * (1 + 1e-6)

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with outermost levels at this many clips."""
        return self.with_parameters(margin=amount - 1)


def integer_row(log_row: FloatArray, mean: Fraction) -> IntArray:
    """Round a pmf to integers that sum to 2**TABLE_BITS, with exactly this mean and the same support.

    Args:
        log_row: Natural logarithm of the pmf.
        mean: The mean of the integers, a multiple of 2**-TABLE_BITS.

    Returns:
        The integers.

    Raises:
        ValueError: If the mean is no such multiple, or if no integers near the pmf have it.
    """
    total = 2**TABLE_BITS
    if (mean * total).denominator != 1:
        raise ValueError(f"mean = {float(mean):g}: must be a multiple of 2**-{TABLE_BITS}")
    units: IntArray = np.maximum(1, np.rint(np.exp(log_row) * total)).astype(np.int64)
    units[np.isneginf(log_row)] = 0
    if np.count_nonzero(units) == 1:  # a point mass
        units[units > 0] = total
        return units
    # The most likely outcome corrects the total, a second one corrects the mean.
    index = np.arange(len(units))
    source = int(np.argmax(units))
    units[source] += total - int(units.sum())
    shift = int(mean * total) - sum(outcome * count for outcome, count in enumerate(units.tolist()))
    if not shift:
        return units
    sign = 1 if shift > 0 else -1
    if not 0 <= source + sign < len(units):  # no outcome on that side: take the next most likely one
        source = int(np.argmax(units * (index != source)))
    distances = (index - source) * sign
    target = int(np.argmax(np.where(distances > 0, units * distances, -1.0)))
    moves, remainder = divmod(abs(shift), int(distances[target]))
    units[target] += moves
    units[source] -= moves
    if remainder:
        for start, end in _single_moves(units, source, sign * remainder):
            units[start] -= 1
            units[end] += 1
    return units


def _single_moves(units: IntArray, source: int, shift: int) -> list[tuple[int, int]]:
    """As few moves of single units as possible that change the sum of outcomes by `shift`; as (from, to)."""
    targets = np.arange(len(units)) + shift
    is_inside = (targets >= 0) & (targets < len(units))
    for start in (source, *np.flatnonzero(is_inside & (units > 1)).tolist()):
        if units[start + shift] > 0:
            return [(start, start + shift)]
    sources = np.flatnonzero(units > len(units)).tolist()
    steps = {end - start: (start, end) for start in sources for end in sources if start != end}
    paths: dict[int, list[tuple[int, int]]] = {0: []}
    frontier: Any = [0]
    while frontier and shift not in paths:
        longer = {total + step: [*paths[total], move] for total in frontier for step, move in steps.items()}
        frontier = [total for total in longer if abs(total) <= len(units) and total not in paths]
        paths |= {total: longer[total] for total in frontier}
    if shift not in paths:
        raise ValueError("a row of the table cannot have its mean in integers: give more outcomes some probability")
    return paths[shift]
