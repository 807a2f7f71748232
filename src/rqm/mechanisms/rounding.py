"""Plain stochastic rounding: QSGD's quantizer, and at two levels with a margin the 1-bit mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs, real
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS, IntegerSampler, grid_sampler
from rqm.mechanisms.base import Ask, option
from rqm.mechanisms.channel import FARTHEST
from rqm.mechanisms.tabled import Wide


@final
@dataclass(frozen=True)
class Rounding(Wide):
    """Unbiased rounding to the two neighbouring levels (QSGD, Alistarh et al. 2017).

    It gives **no privacy** where a level lies inside the clip: some outputs are then impossible for some
    inputs. With ``levels=2`` and a positive ``margin`` it is the 1-bit mechanism, whose privacy is finite.

    >>> Rounding(levels=2, margin=1.0).pmf(1.0).tolist()
    [0.25, 0.75]
    """

    kind: ClassVar[str] = "rounding"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"1 bit": {"levels": 2, "margin": 1.0}}

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    margin: float = option(0.0, "Δ, in units of the clip: how far the outer levels lie beyond it.")
    levels: int = option(16, "m, the number of outcomes: 16 is 4 bits.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate()
        margin = real("margin", self.margin, f"a finite number ≥ 0, up to {FARTHEST:g}", 0, FARTHEST, closed="[]")
        object.__setattr__(self, "margin", margin)

    @property
    def exposed(self) -> bool:
        """Whether a level lies inside the clip: whoever holds it adds no noise."""
        return len(self.breakpoints) > 2

    @classmethod
    def proposals(cls, ask: Ask) -> Iterator[tuple[str, dict[str, Any]]]:
        """Two levels are enough."""
        if not ask.pure:
            yield "1 bit", {"levels": 2}

    def log_rows(self) -> FloatArray:
        """Each level keeps its own place; the table is the identity and is never needed to sample."""
        with np.errstate(divide="ignore"):
            return np.log(np.eye(self.levels))

    def _rows_at(self, levels: range) -> FloatArray:
        """Some rows of the identity, which has 2³² entries at most."""
        out = np.full((len(levels), self.levels), -np.inf)
        out[np.arange(len(levels)), levels] = 0
        return out

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

    def sampled_law(self, position: int) -> list[Fraction]:
        """The exact law of what ``encode`` draws at a position: a coin between two levels."""
        level = min(position >> POSITION_BITS, self.levels - 2)
        up = Fraction(position - (level << POSITION_BITS), 2**POSITION_BITS)
        out = [Fraction(0)] * self.levels
        out[level : level + 2] = 1 - up, up
        return out

    @cached_property
    def recipe(self) -> IntegerSampler:
        """Rounding is the additive mechanism without noise: its table is one entry, which always draws 0."""
        nothing = np.array([[2**TABLE_BITS]])
        return grid_sampler(self.clip, self.reach, self.levels, nothing, modulus=self.levels)
