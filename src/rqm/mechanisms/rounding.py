"""Plain stochastic rounding: QSGD's quantizer, and at two levels with a margin the 1-bit mechanism."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, final

import numpy as np
import numpy.typing as npt

from rqm._checks import FloatArray, inputs, real
from rqm.channel import Channel
from rqm.kernels.recipe import POSITION_BITS, TABLE_BITS, Recipe, on_grid


@final
@dataclass(frozen=True)
class Rounding(Channel):
    """Unbiased rounding to the two neighbouring levels (QSGD, Alistarh et al. 2017).

    It gives **no privacy** where a level lies inside the clip: some outputs are then impossible for some
    inputs. With ``levels=2`` and a positive ``margin`` it is the 1-bit mechanism, whose privacy is finite.

    >>> Rounding(levels=2, margin=1.0).pmf(1.0).tolist()
    [0.25, 0.75]
    """

    kind: ClassVar[str] = "rounding"

    clip: float = 1.0  # c
    margin: float = 0.0  # Δ, in units of clip
    levels: int = 16  # m

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate()
        margin = real("margin", self.margin, "a finite number ≥ 0", 0, np.inf, closed="[")
        object.__setattr__(self, "margin", margin)

    @property
    def reach(self) -> Fraction:
        """X / c = 1 + Δ / c."""
        return 1 + Fraction(self.margin)

    def log_rows(self) -> FloatArray:
        """Each level keeps its own place; the table is the identity and is never needed to sample."""
        with np.errstate(divide="ignore"):
            return np.log(np.eye(self.levels))

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of ``pmf(x)``, built without the identity table."""
        level, part = self._cell(inputs("x", x))
        out = np.full((*level.shape, self.levels), -np.inf)
        with np.errstate(divide="ignore"):
            np.put_along_axis(out, level[..., None], np.log1p(-part)[..., None], axis=-1)
            np.put_along_axis(out, level[..., None] + 1, np.log(part)[..., None], axis=-1)
        return out

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input ``x``: that of a coin between two levels."""
        _, part = self._cell(inputs("x", x))
        return np.asarray(part * (1 - part) * self.grid.step**2)

    def _sampled_numerators(self, position: int) -> list[int]:
        level = min(position >> POSITION_BITS, self.levels - 2)
        part = position - (level << POSITION_BITS)
        out = [0] * self.levels
        out[level] = (2**POSITION_BITS - part) << TABLE_BITS
        out[level + 1] = part << TABLE_BITS
        return out

    @cached_property
    def recipe(self) -> Recipe:
        """Rounding is the additive mechanism without noise: its table is one entry, which always draws 0."""
        nothing = np.array([[2**TABLE_BITS]])
        return on_grid(self.clip, self.reach, self.levels, nothing, rows=False, modulus=self.levels)
