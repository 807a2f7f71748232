"""The numbers from which every kernel samples: a grid for the inputs and an integer table.

Proofs that the samples follow the accounted pmf: docs/proofs/integer-tables.md#the-encoders.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray
from rqm.randomness import Words

IntArray = npt.NDArray[np.int64]

TABLE_BITS = 40
"""Each row of an integer table sums to 2**TABLE_BITS. See docs/proofs/integer-tables.md."""
POSITION_BITS = 24
"""Bits of a position on the grid below the level. TABLE_BITS and POSITION_BITS make one 64-bit word."""
ALIAS_BITS = 16
"""The low bits of a table entry are its alias, the bits above them its threshold."""
MAX_OUTCOMES = 2**ALIAS_BITS
POSITION_SHIFT = 2.0**52
"""A float below 2**51 plus this has the nearest integer in its low bits."""
MIN_POSITIONS = 1024
"""Positions that [-clip, clip] must have. Rounding then moves an input by at most 0.1 % of the clip."""
_POSITION_MASK = np.int64(2**51 - 1)


@dataclass(frozen=True, eq=False)
class IntegerSampler:
    """Rounds an input to a level of a grid, then draws from an integer table or counts Bernoulli trials.

    Attributes:
        clip: Inputs are clipped to [-clip, clip].
        scale: Units of position per unit of input.
        center: Position of the input 0, plus `POSITION_SHIFT`.
        low: Position of -clip. All positions are clamped to `low..high`.
        high: Position of clip.
        entries: The rows of the alias table (see `alias_table`), one after the other.
        column_bits: Each row of the table has 2**column_bits entries.
        has_row_per_level: True: the outcome is drawn from the row of the level. False: the only row is the pmf of
            noise, and the outcome is (level + noise) mod modulus.
        modulus: Number of outcomes.
        trials: 0, or the number of Bernoulli trials. Then the grid has two levels, the table is not used, and the
            outcome is the number of trials that round the position up.
    """

    clip: float
    scale: float
    center: float
    low: int
    high: int
    entries: Words
    column_bits: int
    has_row_per_level: bool
    modulus: int
    trials: int = 0

    @property
    def words_per_coordinate(self) -> int:
        """Random 64-bit words for one coordinate: one for a table, three for every eight trials of 24 bits."""
        return 3 * ((self.trials + 7) // 8) if self.trials else 1

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every outcome."""
        return np.uint8 if self.modulus <= 256 else np.uint16

    def position(self, x: FloatArray) -> IntArray:
        """The fixed-point position of each input, exactly as every kernel computes it: a product, a sum, a clamp."""
        with np.errstate(over="ignore"):
            shifted = np.asarray(x, dtype=np.float64) * self.scale + self.center
        shifted = np.asarray(np.clip(shifted, self.low + POSITION_SHIFT, self.high + POSITION_SHIFT))
        return np.asarray(shifted.view(np.int64) & _POSITION_MASK)


def end_positions(output_range: Fraction, levels: int) -> tuple[int, int]:
    """The positions of ±clip on a grid, to which every position is clamped.

    They are the outermost positions inside [-clip, clip], computed in fractions. With an output range however little
    above 1, no input is placed on an outer level, where it would get no noise.

    Args:
        output_range: The outermost levels, in clips.
        levels: Number of levels.

    Returns:
        The positions of -clip and of clip.

    Raises:
        ValueError: If [-clip, clip] has fewer than `MIN_POSITIONS` positions.
    """
    middle = (levels - 1) << (POSITION_BITS - 1)
    low = ceil(middle * (1 - 1 / output_range))
    if 2 * (middle - low) < MIN_POSITIONS:
        raise ValueError(
            f"the outer levels lie {float(output_range):g} clips from 0: must be at most "
            f"{2 * middle // MIN_POSITIONS}, or [-clip, clip] has fewer than {MIN_POSITIONS} of the encoder's positions"
        )
    return low, 2 * middle - low


def grid_sampler(clip: float, output_range: Fraction, levels: int, table: IntArray, *, modulus: int) -> IntegerSampler:
    """The sampler that rounds to an evenly spaced grid of levels and then draws from a table.

    Args:
        clip: Inputs are clipped to [-clip, clip].
        output_range: The outermost levels, in clips.
        levels: Number of levels, from -output_range · clip to output_range · clip.
        table: Rows of integers that sum to 2**TABLE_BITS: a pmf for each level, or one pmf of noise, which is added
            to the level.
        modulus: Number of outcomes.

    Returns:
        The sampler.

    Raises:
        ValueError: If [-clip, clip] has fewer than `MIN_POSITIONS` positions, or if there are too many outcomes.
    """
    low, high = end_positions(output_range, levels)
    middle = (low + high) // 2
    entries, column_bits = alias_table(table)
    has_row_per_level = len(table) > 1
    min_modulus = 1 if has_row_per_level else levels
    if not min_modulus <= modulus <= MAX_OUTCOMES or column_bits > ALIAS_BITS:
        raise ValueError(
            f"modulus = {modulus}: must lie in {min_modulus}..{MAX_OUTCOMES}, and a row of the table must have at "
            f"most {MAX_OUTCOMES} columns"
        )
    return IntegerSampler(
        clip=clip,
        scale=middle / clip / float(output_range),
        center=middle + POSITION_SHIFT,
        low=low,
        high=high,
        entries=entries,
        column_bits=column_bits,
        has_row_per_level=has_row_per_level,
        modulus=modulus,
    )


def alias_table(table: IntArray) -> tuple[Words, int]:
    """Entries that draw exactly from each row of an integer table with one look-up (Walker 1977, Vose 1991).

    A row is padded to 2**b columns of equal capacity 2**(TABLE_BITS − b). Column i holds `threshold` units of outcome
    i. Its other units belong to one other outcome, the alias. The outcome of 40 uniform bits is: the top b bits select
    a column; if the other bits are below its threshold, the column itself, else its alias.

    Args:
        table: Rows of non-negative integers that sum to 2**TABLE_BITS.

    Returns:
        The entries of all rows, threshold · 2**ALIAS_BITS + alias, and b.

    >>> entries, column_bits = alias_table(np.array([[3 << 38, 1 << 38]]))
    >>> [(int(e) >> ALIAS_BITS, int(e) & 1) for e in entries]  # column 0: outcome 0; column 1: half outcome 1, half 0
    [(549755813888, 0), (274877906944, 0)]
    """
    column_bits = max(0, (table.shape[1] - 1).bit_length())
    capacity = 1 << (TABLE_BITS - column_bits)
    entries = np.empty((table.shape[0], 1 << column_bits), dtype=np.uint64)
    for row_entries, row in zip(entries, table.tolist(), strict=True):
        units = row + [0] * (len(row_entries) - len(row))
        alias = list(range(len(units)))
        underfull = [i for i, count in enumerate(units) if count < capacity]
        overfull = [i for i, count in enumerate(units) if count > capacity]
        while underfull:  # an overfull outcome fills up an underfull column, and may become underfull itself
            column = underfull.pop()
            donor = overfull[-1]
            alias[column] = donor
            units[donor] -= capacity - units[column]
            if units[donor] <= capacity:
                overfull.pop()
                if units[donor] < capacity:
                    underfull.append(donor)
        row_entries[:] = [threshold << ALIAS_BITS | outcome for threshold, outcome in zip(units, alias, strict=True)]
    return entries.ravel(), column_bits
