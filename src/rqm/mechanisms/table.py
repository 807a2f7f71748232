"""Any mechanism, given by the table of its pmfs: the result of an optimizer, or a file."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from rqm._util.checks import FloatArray, real
from rqm._util.files import read_json, write_json
from rqm.kernels.integer_sampler import TABLE_BITS
from rqm.mechanisms.base import Option, option
from rqm.mechanisms.discrete import MAX_LEVELS, MAX_MARGIN
from rqm.mechanisms.table_mechanism import TableMechanism


@final
@dataclass(frozen=True)
class Table(TableMechanism):
    """Rounds an input to one of `len(rows)` levels from -clip to clip, then draws an outcome from that level's row.

    Outcomes are evenly spaced, the outermost `margin` (in units of clip) beyond the clip. Every row must have the
    mean of its level. The margin is rounded so that the integer table is exactly unbiased.

    >>> mech = Table(margin=1.0, rows=((0.75, 0.25), (0.25, 0.75)))  # the 1-bit mechanism
    >>> mech.pmf(0.0).round(9).tolist(), mech.bits
    ([0.5, 0.5], 1)
    """

    kind = "table"
    input_range = Fraction(1)
    """Inputs are rounded inside the clip."""

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    margin: float = option(1.0, "Distance of the outermost outcomes from the clip, in units of it.", flag=False)
    rows: tuple[tuple[float, ...], ...] = option(((0.75, 0.25), (0.25, 0.75)), "The pmf at each level.", flag=False)

    def __post_init__(self) -> None:
        """Validate every parameter."""
        margin = real("margin", self.margin, f"a finite number ≥ 0, up to {MAX_MARGIN:g}", 0, MAX_MARGIN, closed="[]")
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
        totals = rows.sum(axis=1)
        _check_rows("total", totals, np.ones(len(rows)))
        means = np.linspace(-1, 1, len(rows)) / float(self.output_range)
        _check_rows("mean", rows @ np.linspace(-1, 1, rows.shape[1]), means)
        object.__setattr__(self, "rows", tuple(map(tuple, (rows / totals[:, None]).tolist())))

    @property
    def outcomes(self) -> tuple[int, ...]:
        """The possible outcomes. The others only keep the spacing even."""
        return tuple(np.flatnonzero(np.array(self.rows).max(axis=0)).tolist())

    @property
    def bits(self) -> int:
        """Bits of one of the possible outcomes."""
        return (len(self.outcomes) - 1).bit_length()

    @property
    def input_levels(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def output_range(self) -> Fraction:
        """X / c, such that the mean of every row is a whole number of units of the integer table."""
        units = Fraction((self.levels - 1) << (TABLE_BITS - 1), len(self.rows) - 1)
        return units / max(1, int(units / (1 + Fraction(self.margin))))

    def log_rows(self) -> FloatArray:
        """Natural logarithm of the rows."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.array(self.rows)))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The command line offers a file with all parameters."""
        return {"file": Option("file", "A table's JSON file.", None, str, required=True)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The table that `to_dict` described, or the one in a `file`."""
        if set(values) == {"mechanism", "file"}:
            return cls.load(values["file"])
        return cls._with_rows(values)

    @classmethod
    def _with_rows(cls, values: dict[str, Any]) -> Self:
        """The table of a dictionary, which must have rows: the default ones are an example."""
        if "rows" not in values:
            raise ValueError("mechanism.rows: must be given, the pmf at each level; or a file that holds them")
        return super().from_dict(values)

    def save(self, path: Path | str) -> Path:
        """Write the table into a JSON file, atomically."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a table that `save` wrote."""
        values = read_json(Path(path), "a table's JSON file")
        try:
            return cls._with_rows(values)  # not `from_dict`: the file must not name another file
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: must be a table's JSON file ({error})") from None


def _check_rows(name: str, values: FloatArray, targets: FloatArray) -> None:
    """Raise if the total or mean of a row is not what it must be."""
    row = int(np.argmax(abs(values - targets)))
    if abs(values - targets)[row] > 1e-6:  # smaller errors are corrected
        raise ValueError(
            f"rows[{row}] has {name} {values[row]:.9g}: must be {targets[row]:.9g}, with outcomes from -1 to 1"
        )
