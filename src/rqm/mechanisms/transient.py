"""Transient noise: what a client adds to its integers, and takes back one round later.

Discrete Gaussian noise as a table of integers, drawn as every mechanism's outcomes are (``kernels/``): what is sampled
is known exactly. Outcomes that are rarer than half a unit of the table do not occur. It is no mechanism of its own: it
holds no input.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, log2
from typing import Any, final

import numpy as np

from rqm import kernels
from rqm._util.checks import FloatArray, real, whole
from rqm.kernels.recipe import TABLE_BITS, IntArray, Recipe, on_grid
from rqm.mechanisms.sums import NEGLIGIBLE, summed
from rqm.randomness import expanded

WIDEST = 2.0**11
"""The largest deviation: its table has fewer than 2¹⁶ outcomes."""
TOGETHER = 2**28
"""Coordinates of all clients whose noise is drawn at once."""
SAFE = 6.0
"""Deviations of the noise that came and went in a round that the modulus has room for, to each side."""


@final
@dataclass(frozen=True)
class Transient:
    """Noise of standard deviation ``deviation`` (σ), in steps between two levels of what it is added to.

    >>> Transient(2.0).units[-3:].tolist(), Transient(2.0).reach  # of 2⁴⁰; nobody draws more than 14 steps
    ([3340, 147, 5], 14)
    """

    deviation: float

    def __post_init__(self) -> None:
        """Validate σ."""
        value = real("cancel", self.deviation, f"from 0.5 to {WIDEST:g} steps", 0.5, WIDEST, closed="[]")
        object.__setattr__(self, "deviation", value)

    @cached_property
    def units(self) -> IntArray:
        """The law at −reach, …, reach, in units of 2**−TABLE_BITS; symmetric."""
        steps = np.arange(ceil(9 * self.deviation) + 1)
        half = np.exp(-(steps**2) / (2 * self.deviation**2))
        half = np.rint(half / (2 * half.sum() - 1) * 2.0**TABLE_BITS).astype(np.int64)
        half = half[: int(np.flatnonzero(half)[-1]) + 1]
        half[0] += 2**TABLE_BITS - int(2 * half.sum() - half[0])
        units = np.concatenate([half[:0:-1], half])
        units.setflags(write=False)
        return units

    @property
    def reach(self) -> int:
        """The farthest outcome."""
        return len(self.units) // 2

    @property
    def variance(self) -> float:
        """As it is sampled, in steps²."""
        return float(self.units @ np.arange(-self.reach, self.reach + 1) ** 2.0) / 2.0**TABLE_BITS

    def summed(self, clients: int) -> tuple[FloatArray, float]:
        """The law of the sum of so many clients' noise, outcome by outcome, and what it lacks at its ends at most."""
        law, _ = summed(self.units / 2.0**TABLE_BITS, whole("clients", clients, 1))
        return law / law.sum(), 4 * clients * len(self.units) * NEGLIGIBLE

    def bits(self, clients: int, spread: int) -> int:
        """Bits that hold a sum of values up to ``spread`` and of noise that came and noise that went."""
        return ceil(log2(spread + 1 + 2 * SAFE * (2 * clients * self.variance) ** 0.5))

    def checked(self, drawn: Any, count: int) -> IntArray:
        """What ``draw`` has given, or raise."""
        values = np.asarray(drawn)
        if values.shape != (count,) or not np.issubdtype(values.dtype, np.signedinteger):
            raise ValueError(
                f"transient is of shape {values.shape} and type {values.dtype}: must be {count} integers, as drawn"
            )
        if abs(values).max() > self.reach or not values.any():
            raise ValueError(f"transient: must be as drawn, each within {self.reach} of zero and not all zero")
        return values.astype(np.int64)

    def added(self, message: Any, drawn: Any) -> Any:
        """A message, in its library, with what was drawn for it."""
        values = self.checked(drawn, len(message))
        return message + (values if kernels.backend(message) is None else message.new_tensor(values))

    def draw(self, count: int, rng: object) -> IntArray:
        """So many integers, one client's."""
        drawn = kernels.encode(self.recipe, np.full(count, -1.0, np.float32), rng, None)
        return np.asarray(drawn.astype(np.int64) - self.reach)

    def drawn_from(self, secret: bytes, count: int) -> IntArray:
        """So many integers of the same law from a secret of 32 bytes: whoever is given it draws the same."""
        words = expanded(secret, whole("count", count, 1)) >> np.uint64(64 - TABLE_BITS)
        return np.asarray(np.searchsorted(np.cumsum(self.units), words.astype(np.int64), side="right") - self.reach)

    def add(self, clients: int, total: Any, rng: object) -> None:
        """Add the noise of so many clients to a sum, a torch tensor of 32-bit integers."""
        torch = kernels.backend(total).torch  # type: ignore[union-attr]
        width = min(clients, max(1, TOGETHER // len(total)))
        rows = torch.full((width, len(total)), -1.0, device=total.device)
        for start in range(0, clients, width):
            some = rows[: min(width, clients - start)]
            kernels.encode_sum(self.recipe, some, rng, total, 1, False)
        total -= clients * self.reach

    @cached_property
    def recipe(self) -> Recipe:
        """Draws reach + noise for the input −1."""
        modulus = 2 ** len(self.units).bit_length()
        return on_grid(1.0, Fraction(1), 2, self.units[None], rows=False, modulus=modulus)
