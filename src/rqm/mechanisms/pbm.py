"""The Poisson Binomial Mechanism (Chen, Özgür and Kairouz 2022), the baseline of the RQM paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import comb, lgamma
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs, real
from rqm.kernels.integer_sampler import POSITION_BITS, IntegerSampler
from rqm.mechanisms.base import ProposalRequest, option
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind
from rqm.mechanisms.stochastic_rounding import StochasticRounding


@final
@dataclass(frozen=True)
class PBM(DiscreteMechanism):
    """Poisson Binomial Mechanism: z ~ Binomial(levels − 1, 1/2 + θ x / c) (Chen et al. 2022, Algorithm 2).

    It is the sum of levels − 1 independent 1-bit mechanisms (`unit`). The pmf of each is affine in x, that of the
    sum is not. `levels` counts outcomes: `levels=16` is Binomial(15).

    >>> PBM(theta=0.25, levels=3).pmf(0.0).round(12).tolist()
    [0.25, 0.5, 0.25]
    """

    kind = "pbm"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"PBM (0.1)": {"theta": 0.1, "levels": 8}}

    is_affine = True
    """Every trial is."""
    min_noise = 1.0
    """1 / (2θ) of a trial that is never wrong."""

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    theta: float = option(0.25, "θ, how much the probability of a one changes with x.")
    levels: int = option(16, "m, the number of outcomes: 16 is 4 bits.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate()
        object.__setattr__(self, "theta", real("theta", self.theta, "strictly between 0 and 1/2", 0, 0.5))

    @property
    def bernoulli_trials(self) -> int:  # type: ignore[override]
        """Bernoulli trials of one client."""
        return self.levels - 1

    @cached_property
    def unit(self) -> StochasticRounding:
        """One trial: the 1-bit mechanism whose probability of a 1 is 1/2 + θ x / c."""
        return StochasticRounding(clip=self.clip, margin=1 / (2 * self.theta) - 1, levels=2)

    @property
    def output_range(self) -> Fraction:
        """X / c = 1 / (2θ)."""
        return 1 / (2 * Fraction(self.theta))

    @property
    def breakpoints(self) -> FloatArray:
        """±clip: binomials are ordered by likelihood ratio, so the outermost pair is the worst."""
        return np.array([-self.clip, self.clip])

    def _lean(self, x: npt.ArrayLike) -> FloatArray:
        """θ x / c: the probability of a one minus 1/2, at clipped inputs."""
        return np.asarray(self.theta * np.asarray(np.clip(inputs("x", x), -self.clip, self.clip) / self.clip))

    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of `pmf(x)`."""
        lean = self._lean(x)
        k = np.arange(self.levels)
        log_factorial = np.array([lgamma(j + 1) for j in range(self.levels)])
        choose = log_factorial[-1] - log_factorial - log_factorial[::-1]
        failures = self.bernoulli_trials - k
        return np.asarray(choose + k * np.log(0.5 + lean)[..., None] + failures * np.log(0.5 - lean)[..., None])

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input `x`: (c/θ)² p(1−p) / (m−1)."""
        lean = self._lean(x)
        return np.asarray((self.clip / self.theta) ** 2 * (0.25 - lean**2) / self.bernoulli_trials)

    @property
    def label(self) -> str:
        """A short name for plots."""
        return f"PBM θ={self.theta:g}"

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with 1 / (2θ), the outermost level in clips, equal to the amount."""
        return self.with_parameters(theta=0.5 / amount)

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        """One candidate: all outcomes that are allowed."""
        if ask.levels > 2 and not ask.pure:
            yield "PBM", {"levels": ask.levels}

    def trial_log_pmfs(self, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities of failure and success of one trial at ±clip."""
        if kind == "sampled":
            return self.unit.log_pmf_at(self.breakpoints, kind)
        return np.log([[0.5 + self.theta, 0.5 - self.theta], [0.5 - self.theta, 0.5 + self.theta]])

    @property
    def variance_max(self) -> float:
        """The largest variance over all inputs, at x = 0."""
        return float(self.variance(0.0))

    def sampled_pmf_at(self, position: int) -> list[Fraction]:
        """The exact pmf that `encode` samples from at a position: binomial."""
        n, p = self.bernoulli_trials, Fraction(position, 2**POSITION_BITS)
        return [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]

    @cached_property
    def sampler(self) -> IntegerSampler:
        """Counts the successes among levels − 1 fixed-point comparisons, each a draw of `unit`."""
        return replace(self.unit.sampler, modulus=self.levels, trials=self.bernoulli_trials)
