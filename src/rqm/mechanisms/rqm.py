"""The Randomized Quantization Mechanism (Youn et al. 2023)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import log, log1p
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, real
from rqm.mechanisms.base import Ask, option
from rqm.mechanisms.channel import FARTHEST
from rqm.mechanisms.tabled import Wide, widest

MAX_TABLE_LEVELS = 1024


FEWEST = 8
"""Levels up to which none is put inside the clip by calibration: they would lie too far apart."""


@final
@dataclass(frozen=True)
class RQM(Wide):
    """Randomized Quantization Mechanism (Youn et al. 2023, Algorithm 2).

    Keeps each inner level with probability ``keep`` (q), always keeps the two outer levels, and rounds x
    between its kept neighbours. The outer levels lie ``margin`` (Δ) beyond the clip.

    ``keep`` may also name one probability for each of the levels − 2 inner levels.

    >>> float(RQM(clip=1.5).pmf(0.3).sum().round(12))
    1.0
    >>> RQM(margin=2.0, levels=4, keep=(0.5, 0.6)).breakpoints.round(3).tolist()
    [-1.0, 1.0]
    """

    kind: ClassVar[str] = "rqm"
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
        self._validate(MAX_TABLE_LEVELS)
        allowed = f"a positive finite number, up to {FARTHEST:g}"
        object.__setattr__(self, "margin", real("margin", self.margin, allowed, 0, FARTHEST, closed="]"))
        if np.ndim(self.keep) == 0:
            object.__setattr__(self, "keep", _probability("keep", self.keep))
        else:
            keep = tuple(_probability("keep", q) for q in np.asarray(self.keep).ravel().tolist())
            if len(keep) != self.levels - 2:
                raise ValueError(
                    f"keep has {len(keep)} probabilities: must be one number, or one for each of the "
                    f"{self.levels - 2} inner levels"
                )
            object.__setattr__(self, "keep", keep)

    @property
    def label(self) -> str:
        """A short name for a plot."""
        keep = f"{self.keep:g}" if isinstance(self.keep, float) else "…"
        return f"RQM Δ={'' if self.margin == 1 else format(self.margin, 'g')}c, q={keep}"

    @classmethod
    def proposals(cls, ask: Ask) -> Iterator[tuple[str, dict[str, Any]]]:
        """All outcomes that are allowed, beyond the clip."""
        if ask.levels > 2 and not ask.pure:
            yield "RQM, wide margin", {"levels": ask.levels}

    @property
    def least_noise(self) -> float:
        """1: the innermost levels lie at the ends of the clip and are always kept."""
        widest(self.levels)
        return 1.0

    @property
    def finest_noise(self) -> float:
        """As good as none, if levels may lie inside the clip."""
        return 0.01 if self.levels > FEWEST else self.least_noise

    def with_noise(self, amount: float) -> Self:
        """Outer levels so far out, in clips; or, where a level would lie inside the clip, inner ones dropped less.

        Below 1, where all of them are kept, there is less noise only with levels inside, as the paper has them: then
        the margin is three times the amount.
        """
        wide = widest(self.levels)
        if amount >= wide:
            return self.changed(margin=amount - 1)
        if amount < 1 and self.levels > FEWEST:
            return self.changed(margin=3 * amount)
        part = (max(amount, 1.0) - 1) / (wide - 1)
        keep = tuple((1 - (1 - self.keeps[1:-1]) * part).tolist())
        return self.changed(margin=wide - 1, keep=keep[0] if isinstance(self.keep, float) else keep)

    @property
    def keeps(self) -> FloatArray:
        """The probability of keeping each level: 1 at the two ends."""
        inner = np.broadcast_to(np.asarray(self.keep, dtype=np.float64), (self.levels - 2,))
        return np.concatenate([[1.0], inner, [1.0]])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build what ``to_dict`` described; ``keep`` may be text, as on a command line."""
        keep = values.get("keep")
        return super().from_dict({**values, "keep": _parsed(keep)} if isinstance(keep, str) else values)

    def log_rows(self) -> FloatArray:
        """The law at every level, in O(levels²): Lemma 5.1 at x = B(j), all terms positive."""
        keep = self.keeps
        lower = _log_below(keep)
        upper = _log_below(keep[::-1])[::-1, ::-1]
        rows = np.full((self.levels, self.levels), -np.inf)
        below, above = np.tril_indices(self.levels, -1), np.triu_indices(self.levels, 1)
        rows[below], rows[above] = lower[below], upper[above]
        np.fill_diagonal(rows, np.log(keep))
        return rows

    def exact_rows(self) -> npt.NDArray[np.object_]:
        """The paper's law at every level in fractions, from the very numbers that the parameters hold."""
        keep = np.array([Fraction(q) for q in self.keeps], dtype=object)
        down = bracket(keep)
        up = bracket(keep[::-1])[::-1, ::-1]
        rows = np.full((self.levels, self.levels), Fraction(0), dtype=object)
        for j in range(self.levels):
            rows[j, j] = keep[j]
            for side, rounds in ((range(j - 1, -1, -1), down), (range(j + 1, self.levels), up)):
                missed = 1 - keep[j]  # the chance that every level from j to here is dropped
                for i in side:
                    rows[j, i] = missed * keep[i] * rounds[j, i]
                    missed *= 1 - keep[i]
        return rows

    def exact_pmf(self, x: Fraction | float) -> list[Fraction]:
        """The paper's law at one input in [-clip, clip], in fractions."""
        position = Fraction(self.levels - 1, 2) * (1 + Fraction(x) / (Fraction(self.clip) * self.reach))
        level = min(int(position), self.levels - 2)
        part = position - level
        rows = self.exact_rows()
        return [(1 - part) * a + part * b for a, b in zip(rows[level], rows[level + 1], strict=True)]

    @property
    def theorem_bound(self) -> float:
        """Upper bound on D_∞ for one client (Theorem 5.2): log(2(1−q)²(1 + c/Δ)) + m·log(1/(1−q)).

        For keep probabilities that differ by level it is the same argument: every inner level is dropped.
        """
        drop = float(np.log1p(-self.keeps[1:-1]).sum())
        return log(2) + log1p(1 / self.margin) - drop


def _parsed(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"keep = {text}: must be a number, or numbers separated by commas") from None
    return values[0] if len(values) == 1 else values


def _probability(name: str, value: Any) -> float:
    return real(name, value, "strictly between 0 and 1", 0, 1)


def bracket(keep: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The chance S[j, i] that x = B(j), not kept itself, rounds down to its kept neighbour i ≤ j.

    With k the kept neighbour above, it is the mean of (k−j)/(k−i); ``inverse`` is the mean of 1/(k−i). Both
    follow from level j+1, which is either kept (k = j+1) or not. Works on floats and on fractions alike.
    """
    levels = len(keep)
    rounds_down = np.zeros((levels, levels), dtype=keep.dtype)
    inverse = np.zeros_like(rounds_down)
    for j in range(levels - 2, -1, -1):
        q = keep[j + 1]
        gap = (j + 1 - np.arange(j + 1)).astype(keep.dtype)
        inverse[j, : j + 1] = q / gap + (1 - q) * inverse[j + 1, : j + 1]
        tail = rounds_down[j + 1, : j + 1] + inverse[j + 1, : j + 1]
        rounds_down[j, : j + 1] = q / gap + (1 - q) * tail
    return rounds_down


def _log_below(keep: FloatArray) -> FloatArray:
    """Log-law of the levels i < j at input B(j), at [j, i]; other entries are meaningless."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # dropped[j] − dropped[i]: the log-probability that the levels i+1, …, j are all dropped
        dropped = np.concatenate([[0.0], np.cumsum(np.log1p(-keep[1:]))])
        return np.asarray(np.log(keep) + dropped[:, None] - dropped + np.log(bracket(keep)))
