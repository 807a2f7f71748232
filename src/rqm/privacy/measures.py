"""What a certificate averages over the counts of shapes that are added: numbers that more noise never raises.

By joint convexity the mean of such a number over what others draw, if the adversary is told, bounds it for all of their
inputs (``docs/proofs/certificate.md``): of exp((α−1) D_α), and of hockey-stick divergences.
"""

from dataclasses import dataclass, replace
from math import inf, log
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import Bools, IntArray
from rqm.privacy.divergence import Sum

if TYPE_CHECKING:
    from rqm.privacy.counts import Shapes

LEAST = 1e-12
"""An ε of zero is looked at so far out: less than the errors that are allowed for (``flat.ROUNDED``)."""


class Moments:
    """Divergences as what is averaged, exp((α−1) D) over that of nobody else (the KL divergence itself), and back."""

    def __init__(self, alpha: float, top: float) -> None:
        self.alpha, self.top = alpha, top

    def of(self, value: FloatArray, lost: FloatArray) -> FloatArray:
        """From divergences; lost probability is charged as if nobody else were there.

        No number at all where that is infinite.
        """
        with np.errstate(under="ignore", invalid="ignore"):
            if self.alpha == 1:
                return np.asarray(value + lost * self.top)
            return np.asarray(np.exp((self.alpha - 1) * (value - self.top)) + lost)

    def back(self, mean: FloatArray) -> FloatArray:
        """To divergences, rounded up."""
        safe = mean * (1 + 1e-12) + 1e-270
        return np.asarray(safe if self.alpha == 1 else self.top + np.log(safe) / (self.alpha - 1))


class Measure(Protocol):
    """What is averaged, for each of some ``rows`` (pairs of inputs), and what it stands for.

    Laws of sums may lack tails of ``log_tail``, and where probabilities below all floats matter it goes ``deep``.
    """

    @property
    def log_tail(self) -> float:
        """The logarithm of the probability that may be left out at each end of a sum."""
        ...

    @property
    def deep(self) -> bool:
        """Whether probabilities below all floats matter."""
        ...

    @property
    def rows(self) -> int:
        """How many pairs there are."""
        ...

    def values(self, shapes: "Shapes", counts: IntArray, *, each: bool = False) -> FloatArray:
        """For each count what is averaged: of ``each`` row, or the largest as the only one."""
        ...

    def some(self, worth: Bools) -> "Measure":
        """The same for some of the rows."""
        ...

    def of(self, value: float) -> float:
        """What is averaged where it stands for this value."""
        ...

    def back(self, mean: FloatArray) -> FloatArray:
        """What a mean stands for, rounded up."""
        ...


@dataclass(frozen=True)
class Renyi:
    """D_α between pairs of laws; ``alone`` is what one client leaks."""

    laws: list[Sum]
    pairs: IntArray
    alpha: float
    alone: float
    log_tail: float = -inf
    deep: ClassVar[bool] = True

    @property
    def rows(self) -> int:
        """How many pairs there are."""
        return len(self.pairs)

    @property
    def scale(self) -> Moments:
        """What is averaged."""
        return Moments(self.alpha, self.alone)

    def values(self, shapes: "Shapes", counts: IntArray, *, each: bool = False) -> FloatArray:
        """exp((α−1) D_α) over that of nobody else."""
        asked = np.full((len(self.pairs), 1), self.alpha)
        value, lost = shapes.divergences(counts, self.laws, self.pairs, asked, each=each)
        return self.scale.of(value[:, 0], lost)

    def some(self, worth: Bools) -> "Renyi":
        """The same for some pairs."""
        return replace(self, pairs=self.pairs[worth])

    def of(self, value: float) -> float:
        """From a divergence."""
        return float(self.scale.of(np.array(value), np.zeros(1))[0])

    def back(self, mean: FloatArray) -> FloatArray:
        """To divergences."""
        return self.scale.back(mean)


@dataclass(frozen=True)
class HockeySticks:
    """Of each pair of laws δ at an ε of its own, the largest P(E) − e^ε Q(E) of an event, times its weight."""

    laws: list[Sum]
    pairs: IntArray
    epsilons: FloatArray
    weights: FloatArray
    log_tail: float = log(1e-100)
    deep: ClassVar[bool] = False

    @property
    def rows(self) -> int:
        """How many pairs there are."""
        return len(self.pairs)

    def values(self, shapes: "Shapes", counts: IntArray, *, each: bool = False) -> FloatArray:
        """δ, at most 1, times the weight; what a law lacks is told in any case."""
        asked = -np.maximum(self.epsilons, LEAST)[:, None]
        value, lost = shapes.divergences(counts, self.laws, self.pairs, asked, each=True)
        found = self.weights[:, None] * np.minimum(np.exp(np.nan_to_num(value[:, 0], nan=0.0)) + lost, 1.0)
        return found if each else found.max(axis=0, keepdims=True)

    def some(self, worth: Bools) -> "HockeySticks":
        """The same for some pairs."""
        return HockeySticks(self.laws, self.pairs[worth], self.epsilons[worth], self.weights[worth], self.log_tail)

    def of(self, value: float) -> float:
        """It is averaged itself."""
        return value

    def back(self, mean: FloatArray) -> FloatArray:
        """It is averaged itself."""
        return np.asarray(mean * (1 + 1e-9))
