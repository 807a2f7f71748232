"""Stochastic rounding: QSGD's quantizer, and with two levels and a margin the 1-bit mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, real
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS, IntegerSampler, grid_sampler
from rqm.mechanisms.base import ProposalRequest, option
from rqm.mechanisms.discrete import MAX_MARGIN
from rqm.mechanisms.table_mechanism import WideTableMechanism


@final
@dataclass(frozen=True)
class StochasticRounding(WideTableMechanism):
    """Unbiased rounding to the two neighboring levels (QSGD, Alistarh et al. 2017).

    It gives **no privacy** if a level lies inside the clip: some outputs are then impossible for some inputs. With
    `levels=2` and a positive `margin` it is the 1-bit mechanism, whose privacy is finite.

    >>> StochasticRounding(levels=2, margin=1.0).pmf(1.0).tolist()
    [0.25, 0.75]
    """

    kind = "rounding"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"1 bit": {"levels": 2, "margin": 1.0}}

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    margin: float = option(0.0, "Δ, in units of the clip: how far the outer levels lie beyond it.")
    levels: int = option(16, "m, the number of outcomes: 16 is 4 bits.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate()
        margin = real("margin", self.margin, f"a finite number ≥ 0, up to {MAX_MARGIN:g}", 0, MAX_MARGIN, closed="[]")
        object.__setattr__(self, "margin", margin)

    @property
    def has_noiseless_inputs(self) -> bool:  # type: ignore[override]
        """Whether a level lies inside the clip: a client that holds it adds no noise."""
        return not self.is_affine

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        """Two levels."""
        if not ask.pure:
            yield "1 bit", {"levels": 2}

    def log_rows(self) -> FloatArray:
        """The identity matrix: an input at a level is rounded to it. Nothing samples from this table."""
        with np.errstate(divide="ignore"):
            return np.log(np.eye(self.levels))

    def _rows_at(self, levels: range) -> FloatArray:
        """Some rows of the identity matrix, which may have 2³² entries."""
        rows = np.full((len(levels), self.levels), -np.inf)
        rows[np.arange(len(levels)), levels] = 0
        return rows

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of `pmf(x)`, without the identity matrix."""
        level, fraction = self._cell(x)
        logs = np.full((*level.shape, self.levels), -np.inf)
        with np.errstate(divide="ignore"):
            np.put_along_axis(logs, level[..., None], np.log1p(-fraction)[..., None], axis=-1)
            np.put_along_axis(logs, level[..., None] + 1, np.log(fraction)[..., None], axis=-1)
        return logs

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input `x`: of a choice between two levels."""
        _, fraction = self._cell(x)
        return np.asarray(fraction * (1 - fraction) * self.grid.step**2)

    def sampled_pmf_at(self, position: int) -> list[Fraction]:
        """The exact pmf that `encode` samples from at a position: a choice between two levels."""
        level = min(position >> POSITION_BITS, self.levels - 2)
        up = Fraction(position - (level << POSITION_BITS), 2**POSITION_BITS)
        pmf = [Fraction(0)] * self.levels
        pmf[level : level + 2] = 1 - up, up
        return pmf

    @cached_property
    def sampler(self) -> IntegerSampler:
        """An additive mechanism whose noise is always 0."""
        zero = np.array([[2**TABLE_BITS]])
        return grid_sampler(self.clip, self.output_range, self.levels, zero, modulus=self.levels)
