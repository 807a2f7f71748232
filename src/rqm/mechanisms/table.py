"""Any mechanism, as the table of its law: what the optimisers find, and what a file can hold."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import FloatArray, real
from rqm._util.files import read_json, write_json
from rqm.kernels.integer_sampler import TABLE_BITS
from rqm.mechanisms.base import Option, option
from rqm.mechanisms.channel import FARTHEST, MAX_LEVELS
from rqm.mechanisms.tabled import Tabled

CLOSE = 1e-6
"""How far a row's total and mean may be from what they must be: the rest is set right."""


@final
@dataclass(frozen=True)
class Table(Tabled):
    """Rounds an input to one of ``len(rows)`` levels from -clip to clip, then draws an outcome from that level's row.

    Outcomes are evenly spaced, the outermost ``margin`` beyond the clip (in units of clip), so that sums of them mean
    something. Every row must have the mean of its level. The margin is taken to the nearest with which the
    integer table is unbiased exactly.

    >>> mech = Table(margin=1.0, rows=((0.75, 0.25), (0.25, 0.75)))  # the 1-bit mechanism
    >>> mech.pmf(0.0).round(9).tolist(), mech.bits
    ([0.5, 0.5], 1)
    """

    kind: ClassVar[str] = "table"

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    margin: float = option(1.0, "How far the outermost outcomes lie beyond the clip, in units of it.", flag=False)
    rows: tuple[tuple[float, ...], ...] = option(((0.75, 0.25), (0.25, 0.75)), "The law at each level.", flag=False)

    def __post_init__(self) -> None:
        """Validate every parameter."""
        margin = real("margin", self.margin, f"a finite number ≥ 0, up to {FARTHEST:g}", 0, FARTHEST, closed="[]")
        object.__setattr__(self, "margin", margin)
        try:
            rows = np.array(self.rows, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            rows = np.empty(0)
        if rows.ndim != 2 or len(rows) < 2 or not 2 <= rows.shape[1] <= MAX_LEVELS:
            raise ValueError("rows: must be at least two, of equal length, with at least two probabilities each")
        if not np.isfinite(rows).all() or (rows < 0).any():
            raise ValueError(f"rows contain {rows[~(rows >= 0)][0]:g}: must be probabilities")
        object.__setattr__(self, "levels", rows.shape[1])
        self._validate()
        wanted = np.linspace(-1, 1, len(rows)) / float(self.reach)
        totals, means = rows.sum(axis=1), rows @ np.linspace(-1, 1, rows.shape[1])
        for what, found, right in (("total", totals, np.ones(len(rows))), ("mean", means, wanted)):
            worst = int(np.argmax(abs(found - right)))
            if abs(found - right)[worst] > CLOSE:
                raise ValueError(
                    f"rows[{worst}] has {what} {found[worst]:.9g}: must be {right[worst]:.9g}"
                    + (" (from -1, the lowest outcome, to 1, the highest)" if what == "mean" else "")
                )
        object.__setattr__(self, "rows", tuple(map(tuple, (rows / totals[:, None]).tolist())))

    @property
    def outcomes(self) -> tuple[int, ...]:
        """Levels that are possible: the others only keep the spaces even."""
        return tuple(np.flatnonzero(np.array(self.rows).max(axis=0)).tolist())

    @property
    def bits(self) -> int:
        """Bits that say which of the possible outcomes it is."""
        return (len(self.outcomes) - 1).bit_length()

    @property
    def input_levels(self) -> int:
        """One for each row."""
        return len(self.rows)

    @property
    def input_reach(self) -> Fraction:
        """Inputs are rounded inside the clip."""
        return Fraction(1)

    @property
    def reach(self) -> Fraction:
        """X / c, such that the mean of every row is a whole number of units of the integer table."""
        top = Fraction((self.levels - 1) << (TABLE_BITS - 1), len(self.rows) - 1)
        return top / max(1, int(top / (1 + Fraction(self.margin))))

    def log_rows(self) -> FloatArray:
        """The logarithm of the rows."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.array(self.rows)))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """A command line offers a file that holds the rest."""
        return {"file": Option("file", "A table's JSON file.", None, str, required=True)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the table that ``to_dict`` described, or the one in a ``file``."""
        if set(values) == {"mechanism", "file"}:
            return cls.load(values["file"])
        return cls._given(values)

    @classmethod
    def _given(cls, values: dict[str, Any]) -> Self:
        """A table that somebody has given: what its law is, is not for us to say."""
        if "rows" not in values:
            raise ValueError("mechanism.rows: must be given, the law at each level; or a file that holds them")
        return super().from_dict(values)

    def save(self, path: Path | str) -> Path:
        """Write the table into a JSON file, whole or not at all."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a table that ``save`` wrote."""
        values = read_json(Path(path), "a table's JSON file")
        try:
            return cls._given(values)  # whose file is this one: it names no other
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: must be a table's JSON file ({error})") from None
