"""Integer noise with a symmetric table of probabilities, drawn as every mechanism's outcomes are (`kernels/`).

So what is sampled is known exactly.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, final

import numpy as np

from rqm import kernels
from rqm._util.checks import FloatArray, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray, IntegerSampler, grid_sampler
from rqm.mechanisms.sums import NEGLIGIBLE, summed


@final
@dataclass(frozen=True, eq=False)
class IntegerNoise:
    """Symmetric integer noise.

    Attributes:
        units: The pmf at −largest, …, largest, in units of 2**−TABLE_BITS.
    """

    units: IntArray

    @classmethod
    def from_weights(cls, weights: FloatArray) -> "IntegerNoise":
        """Noise whose pmf is proportional to some weights. Outcomes rarer than half a unit do not occur.

        Args:
            weights: The weights of 0, 1, 2, …; those of negative numbers are the same.

        Returns:
            The noise.

        >>> IntegerNoise.from_weights(np.exp(-np.arange(30.0) ** 2 / 8)).units[-3:].tolist()  # of 2⁴⁰
        [3340, 147, 5]
        """
        half = np.rint(weights / (2 * weights.sum() - weights[0]) * 2.0**TABLE_BITS).astype(np.int64)
        half = half[: int(np.flatnonzero(half)[-1]) + 1]
        half[0] += 2**TABLE_BITS - int(2 * half.sum() - half[0])
        units = np.concatenate([half[:0:-1], half])
        units.setflags(write=False)
        return cls(units)

    @property
    def largest(self) -> int:
        """The largest outcome."""
        return len(self.units) // 2

    @property
    def pmf(self) -> FloatArray:
        """The pmf at −largest, …, largest."""
        return self.units / 2.0**TABLE_BITS

    @cached_property
    def variance(self) -> float:
        """The variance, as it is sampled."""
        return float(self.pmf @ np.arange(-self.largest, self.largest + 1) ** 2.0)

    def summed(self, clients: int) -> tuple[FloatArray, float]:
        """The pmf of the sum over some clients.

        Args:
            clients: Number of clients.

        Returns:
            The pmf, and the probability that it lacks at its ends at most.
        """
        pmf, _ = summed(self.pmf, whole("clients", clients, 1))
        return pmf / pmf.sum(), 4 * clients * len(self.units) * NEGLIGIBLE

    def from_words(self, words: Any) -> IntArray:
        """Outcomes that follow from random 64-bit words, one for each."""
        positions = (words >> np.uint64(64 - TABLE_BITS)).astype(np.int64)
        return np.asarray(np.searchsorted(np.cumsum(self.units), positions, side="right") - self.largest)

    def sample(self, length: int, source: object) -> IntArray:
        """Draw outcomes.

        Args:
            length: How many.
            source: The source of randomness.

        Returns:
            The outcomes.
        """
        drawn = kernels.encode(self.sampler, np.full(length, -1.0, np.float32), source, None)
        return np.asarray(drawn.astype(np.int64) - self.largest)

    def sample_sum(self, clients: int, template: Any, source: object) -> Any:
        """Draw sums over some clients, for simulations.

        Args:
            clients: Number of clients.
            template: A torch tensor of 32-bit integers, of the shape of the sums.
            source: The source of randomness.

        Returns:
            The sums, a tensor.
        """
        torch = kernels.backend(template).torch  # type: ignore[union-attr]
        total = torch.zeros_like(template)
        width = min(clients, max(1, 2**28 // len(total)))  # samples that are drawn at once, to bound memory
        rows = torch.full((width, len(total)), -1.0, device=total.device)
        for start in range(0, clients, width):
            kernels.encode_sum(self.sampler, rows[: min(width, clients - start)], source, total, 1, False)
        total -= clients * self.largest
        return total

    @cached_property
    def sampler(self) -> IntegerSampler:
        """Draws largest + noise for the input −1."""
        modulus = 2 ** len(self.units).bit_length()
        return grid_sampler(1.0, Fraction(1), 2, self.units[None], modulus=modulus)
