"""What every kernel draws by: where an input lies on the grid, and a table of integers to draw from.

The proofs that the draws follow the law that is accounted for are in ``docs/proofs/integer-tables.md#the-encoders``.
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
"""Each row of an integer table sums to 2**TABLE_BITS."""
POSITION_BITS = 24
"""A position on the grid has this many bits below the level; with TABLE_BITS they make one 64-bit word."""
ALIAS_BITS = 16
"""The low bits of a table entry name its other outcome; the bits above them hold its threshold."""
SHIFT = 2.0**52
"""Added to a float below 2**51, it leaves the nearest integer in the low bits of the sum."""
MIN_SPAN = 1024
"""Positions that [-clip, clip] must have; fewer would round inputs too coarsely."""
MAX_OUTCOMES = 2**ALIAS_BITS
_LOW_BITS = np.int64(2**51 - 1)


@dataclass(frozen=True, eq=False)
class Recipe:
    """A sampler, in numbers: round the input's position to a level, then draw from a table or count trials.

    With ``rows`` the table has one row for each level and the outcome is drawn from the level's own. Without, its
    only row is noise: the outcome is level + noise modulo ``modulus``. With ``trials`` there is no table: the outcome
    counts how many of so many comparisons round the position up, on a grid of two levels.
    """

    clip: float
    scale: float  # units of position for one unit of input
    centre: float  # the position of input 0, plus SHIFT
    low: int  # the positions of -clip and clip, to which every position is clamped
    high: int
    entries: Words
    columns: int  # each row has 2**columns entries
    rows: bool
    modulus: int
    trials: int = 0

    @property
    def words(self) -> int:
        """Random words that one coordinate takes: one for a draw from a table, three for eight trials of 24 bits."""
        return 3 * ((self.trials + 7) // 8) if self.trials else 1

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every outcome."""
        return np.uint8 if self.modulus <= 256 else np.uint16

    def position(self, x: FloatArray) -> IntArray:
        """The fixed-point position of each input, exactly as every kernel computes it: a product, a sum, a clamp."""
        with np.errstate(over="ignore"):
            near = np.asarray(x, dtype=np.float64) * self.scale + self.centre
        near = np.asarray(np.clip(near, self.low + SHIFT, self.high + SHIFT))
        return np.asarray(near.view(np.int64) & _LOW_BITS)


def end_positions(reach: Fraction, levels: int) -> tuple[int, int]:
    """The positions of ±clip on a grid, to which every position is clamped.

    They are the outermost positions inside [-clip, clip], computed in fractions: with a margin, however small, no input
    lands on an outer level, where it would get no noise.

    Args:
        reach: The outermost level, in clips.
        levels: Number of levels.

    Returns:
        The positions of -clip and of clip.

    Raises:
        ValueError: If [-clip, clip] has fewer than `MIN_SPAN` positions.
    """
    middle = (levels - 1) << (POSITION_BITS - 1)
    low = ceil(middle * (1 - 1 / reach))
    if 2 * (middle - low) < MIN_SPAN:
        raise ValueError(
            f"the outer levels lie {float(reach):g} clips from 0: must be at most {2 * middle // MIN_SPAN}, or [-clip, "
            f"clip] has fewer than {MIN_SPAN} of the encoder's positions"
        )
    return low, 2 * middle - low


def on_grid(clip: float, reach: Fraction, levels: int, table: IntArray, *, rows: bool, modulus: int) -> Recipe:
    """The recipe that rounds to ``levels`` levels from -reach·clip to reach·clip and then draws from ``table``."""
    low, high = end_positions(reach, levels)
    middle = (low + high) // 2
    entries, columns = alias_table(table)
    if not (1 if rows else levels) <= modulus <= MAX_OUTCOMES or columns > ALIAS_BITS:
        raise ValueError(f"modulus = {modulus}: must lie in {levels}..{MAX_OUTCOMES}, with no more columns than that")
    scale = middle / clip / float(reach)
    return Recipe(clip, scale, middle + SHIFT, low, high, entries, columns, rows, modulus)


def alias_table(table: IntArray) -> tuple[Words, int]:
    """Entries that draw from each row of an integer table in one look-up (Walker 1977, Vose 1991), exactly.

    A row is padded to 2**b columns of equal capacity 2**(TABLE_BITS − b). Column i holds ``threshold`` units of
    outcome i, and its other outcome, the alias, takes the rest. The outcome of 40 uniform bits is therefore: the top b
    bits name a column; if the others are below its threshold the column itself, else its alias.

    >>> entries, columns = alias_table(np.array([[3 << 38, 1 << 38]]))
    >>> [(int(e) >> ALIAS_BITS, int(e) & 1) for e in entries]  # of 2**39: column 0 has all, column 1 a half
    [(549755813888, 0), (274877906944, 0)]
    """
    columns = max(0, (table.shape[1] - 1).bit_length())
    capacity = 1 << (TABLE_BITS - columns)
    entries = np.empty((table.shape[0], 1 << columns), dtype=np.uint64)
    for out, row in zip(entries, table.tolist(), strict=True):
        units = row + [0] * (len(out) - len(row))
        alias = list(range(len(units)))
        short = [i for i, n in enumerate(units) if n < capacity]
        rich = [i for i, n in enumerate(units) if n > capacity]
        while short:  # a rich outcome fills up a short column, and may become short itself
            i, giver = short.pop(), rich[-1]
            alias[i] = giver
            units[giver] -= capacity - units[i]
            if units[giver] <= capacity:
                rich.pop()
                if units[giver] < capacity:
                    short.append(giver)
        out[:] = [n << ALIAS_BITS | other for n, other in zip(units, alias, strict=True)]
    return entries.ravel(), columns
