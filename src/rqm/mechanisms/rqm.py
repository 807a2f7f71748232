"""The Randomized Quantization Mechanism (Youn et al. 2023)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log, log1p
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import FloatArray, real
from rqm.mechanisms.base import ProposalRequest, option
from rqm.mechanisms.discrete import MAX_MARGIN
from rqm.mechanisms.table_mechanism import WideTableMechanism

MIN_INTERIOR_LEVELS = 9
"""With fewer levels calibration puts none inside the clip: they would be too far apart."""


@final
@dataclass(frozen=True)
class RQM(WideTableMechanism):
    """Randomized Quantization Mechanism (Youn et al. 2023, Algorithm 2).

    Keeps each inner level with probability `keep` (q) and always keeps the two outer levels, which lie `margin` (Δ)
    beyond the clip. Then rounds x at random to one of the nearest kept levels below and above. `keep` may also be
    a tuple with a probability for each of the levels − 2 inner levels.

    >>> float(RQM(clip=1.5).pmf(0.3).sum().round(12))
    1.0
    >>> RQM(margin=2.0, levels=4, keep=(0.5, 0.6)).breakpoints.round(3).tolist()
    [-1.0, 1.0]
    """

    kind = "rqm"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "RQM (1.0, 0.42)": {},
        "RQM (1.0, 0.23)": {"keep": 0.23},
        "RQM (0.66, 0.33)": {"margin": 0.66, "keep": 0.33},
    }

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    margin: float = option(1.0, "Δ, in units of the clip: how far the outer levels lie beyond it.")
    levels: int = option(16, "m, the number of outcomes: 16 is 4 bits.")
    keep: float | tuple[float, ...] = option(0.42, "q, the chance of keeping an inner level; or one each: 0.4,0.5,…")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate(1024)
        allowed = f"a positive finite number, up to {MAX_MARGIN:g}"
        object.__setattr__(self, "margin", real("margin", self.margin, allowed, 0, MAX_MARGIN, closed="]"))
        is_number = np.ndim(self.keep) == 0
        values = [self.keep] if is_number else np.asarray(self.keep).ravel().tolist()
        keep = tuple(real("keep", q, "strictly between 0 and 1", 0, 1) for q in values)
        if not is_number and len(keep) != self.levels - 2:
            raise ValueError(
                f"keep has {len(keep)} probabilities: must be one number, or one for each of the "
                f"{self.levels - 2} inner levels"
            )
        object.__setattr__(self, "keep", keep[0] if is_number else keep)

    @property
    def label(self) -> str:
        """A short name for plots."""
        keep = f"{self.keep:g}" if isinstance(self.keep, float) else "…"
        return f"RQM Δ={'' if self.margin == 1 else format(self.margin, 'g')}c, q={keep}"

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        """One candidate: all outcomes that are allowed."""
        if ask.levels > 2 and not ask.pure:
            yield "RQM, wide margin", {"levels": ask.levels}

    @property
    def min_noise(self) -> float:  # type: ignore[override]
        """1: the innermost levels lie at the ends of the clip and are always kept."""
        return min(1.0, super().min_noise)

    @property
    def min_noise_of_small_cohorts(self) -> float:
        """Hardly any noise, if levels may lie inside the clip."""
        return self.min_noise if self.levels < MIN_INTERIOR_LEVELS else 0.01

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with another amount of noise.

        Args:
            amount: If no level then lies inside the clip, the outermost level in clips. Below that the margin stays and
                inner levels are dropped less often, down to never at 1. Still less noise needs levels inside the clip,
                as in the paper: the margin is then three times the amount.

        Returns:
            The mechanism.
        """
        min_reach = super().min_noise
        if amount >= min_reach:
            return self.with_parameters(margin=amount - 1)
        if amount < 1 and self.levels >= MIN_INTERIOR_LEVELS:
            return self.with_parameters(margin=3 * amount)
        fraction = (max(amount, 1.0) - 1) / (min_reach - 1)
        keep = tuple((1 - (1 - self.keeps[1:-1]) * fraction).tolist())
        return self.with_parameters(margin=min_reach - 1, keep=keep[0] if isinstance(self.keep, float) else keep)

    @property
    def keeps(self) -> FloatArray:
        """The probability of keeping each level: 1 at the two ends."""
        inner = np.full(self.levels - 2, self.keep)
        return np.concatenate([[1.0], inner, [1.0]])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The mechanism that `to_dict` described; `keep` may be text, as on the command line."""
        keep = values.get("keep")
        if not isinstance(keep, str):
            return super().from_dict(values)
        try:
            numbers = tuple(float(number) for number in keep.split(","))
        except ValueError:
            raise ValueError(f"keep = {keep}: must be a number, or numbers separated by commas") from None
        return super().from_dict({**values, "keep": numbers[0] if len(numbers) == 1 else numbers})

    def log_rows(self) -> FloatArray:
        """Logarithm of the pmf at every level, in O(levels²): Lemma 5.1 at x = B(j), with positive terms only."""
        keep = self.keeps
        lower = _log_below(keep)
        upper = _log_below(keep[::-1])[::-1, ::-1]
        rows = np.full((self.levels, self.levels), -np.inf)
        below, above = np.tril_indices(self.levels, -1), np.triu_indices(self.levels, 1)
        rows[below], rows[above] = lower[below], upper[above]
        np.fill_diagonal(rows, np.log(keep))
        return rows

    @property
    def theorem_bound(self) -> float:  # type: ignore[override]
        """Upper bound on D_∞ of one client (Theorem 5.2): log(2(1−q)²(1 + c/Δ)) + m·log(1/(1−q)).

        The proof also holds for probabilities that differ by level: every inner level is dropped.
        """
        log_dropped = float(np.log1p(-self.keeps[1:-1]).sum())
        return log(2) + log1p(1 / self.margin) - log_dropped


def _log_below(keep: FloatArray) -> FloatArray:
    """Log-probabilities of the levels i < j at input B(j), at [j, i]; other entries are meaningless."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # log_dropped[j] − log_dropped[i]: the log-probability that the levels i+1, …, j are all dropped
        log_dropped = np.concatenate([[0.0], np.cumsum(np.log1p(-keep[1:]))])
        return np.asarray(np.log(keep) + log_dropped[:, None] - log_dropped + np.log(_rounds_down(keep)))


def _rounds_down(keep: FloatArray) -> FloatArray:
    """The probability S[j, i] that x = B(j), if level j is dropped, rounds down to its kept neighbor i < j.

    With k the kept neighbor above, it is the mean of (k−j)/(k−i), and `inverse` is the mean of 1/(k−i). Both follow
    from those of level j+1, which is either kept (k = j+1) or not.
    """
    levels = len(keep)
    rounds_down = np.zeros((levels, levels))
    inverse = np.zeros((levels, levels))
    for j in range(levels - 2, -1, -1):
        q = keep[j + 1]
        gap = j + 1.0 - np.arange(j + 1)
        inverse[j, : j + 1] = q / gap + (1 - q) * inverse[j + 1, : j + 1]
        rounds_down[j, : j + 1] = q / gap + (1 - q) * (rounds_down[j + 1, : j + 1] + inverse[j + 1, : j + 1])
    return rounds_down
