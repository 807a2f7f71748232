"""k-ary randomized response: send the rounded value, or any other one."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, exp, inf, log
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import FloatArray, real
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray
from rqm.mechanisms.base import option
from rqm.mechanisms.table_mechanism import TableMechanism


def response_units(epsilon: float, outcomes: int) -> tuple[int, int]:
    """Units (of 2**TABLE_BITS) of the true outcome and of each other one, rounded so that the loss is at most ε."""
    false_units = ceil(2**TABLE_BITS / (exp(epsilon) + outcomes - 1))
    return 2**TABLE_BITS - (outcomes - 1) * false_units, false_units


@final
@dataclass(frozen=True)
class RandomizedResponse(TableMechanism):
    """k-ary randomized response (Warner 1965; Kairouz, Bonawitz and Ramage 2016) on a rounded input.

    The input is rounded to one of `levels` values from -clip to clip. The value is sent with probability
    e^ε / (e^ε + levels − 1), else one of the others, uniformly. Decoding scales the outcomes so that the mean is
    unbiased. A single message is exactly ε-differentially private. With two levels it is the 1-bit mechanism, and the
    single bit of basic RAPPOR.

    >>> RandomizedResponse(levels=2, epsilon=1.0986122886681098).pmf(1.0).round(6).tolist()
    [0.25, 0.75]
    """

    kind = "randomized-response"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"randomized response": {"levels": 8, "epsilon": 3.0}}
    for_models: ClassVar[Mapping[str, Any]] = {"levels": 2}
    input_range = Fraction(1)
    """Inputs are rounded inside the clip."""
    min_noise = 1.0
    """No noise: the outcomes are not scaled."""

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    levels: int = option(16, "m, the number of outcomes: 16 is 4 bits.")
    epsilon: float = option(4.0, "ε of one message, pure.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        self._validate(1024)
        epsilon = real("epsilon", self.epsilon, "a positive number up to 25", 0, 25, closed="]")
        object.__setattr__(self, "epsilon", epsilon)
        true_units, false_units = self.units
        if true_units <= false_units:
            raise ValueError(f"epsilon = {epsilon:g}: must be larger for {self.levels} levels")

    @cached_property
    def units(self) -> tuple[int, int]:
        """Units of the true value and of each other one (see `response_units`)."""
        return response_units(self.epsilon, self.levels)

    @property
    def output_range(self) -> Fraction:
        """The scale of the outcomes: 1 / (p_true − p_other), exactly."""
        true_units, false_units = self.units
        return Fraction(2**TABLE_BITS, true_units - false_units)

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with this scale of the outcomes."""
        return self.with_parameters(epsilon=log((amount + self.levels - 1) / (amount - 1)))

    @property
    def loss(self) -> float:
        """ε of the sampled integers: the logarithm of their ratio."""
        true_units, false_units = self.units
        return float(np.log(true_units) - np.log(false_units)) if false_units else inf

    @cached_property
    def table(self) -> IntArray:
        """The integer table."""
        true_units, false_units = self.units
        rows = np.full((self.levels, self.levels), false_units)
        np.fill_diagonal(rows, true_units)
        rows.setflags(write=False)
        return rows

    def log_rows(self) -> FloatArray:
        """Natural logarithm of the pmf at every level, which is the sampled one."""
        return np.asarray(np.log(self.table) - np.log(2.0) * TABLE_BITS)
