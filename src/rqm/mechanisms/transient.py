"""Transient noise: what a client adds to its integers, and takes back one round later.

Discrete Gaussian noise as a table of integers, drawn as every mechanism's outcomes are (``kernels/``): what is sampled
is known exactly. Outcomes that are rarer than half a unit of the table do not occur. It is no mechanism of its own: it
holds no input.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, log2, nan
from numbers import Real
from typing import Any, final

import numpy as np

from rqm import kernels
from rqm._util.checks import FloatArray, known_keys, real, shown, whole
from rqm.kernels.recipe import TABLE_BITS, IntArray, Recipe, on_grid
from rqm.mechanisms.sums import NEGLIGIBLE, summed
from rqm.randomness import expanded

WIDEST = 2.0**11
"""The largest deviation: its table has fewer than 2¹⁶ outcomes."""
TOGETHER = 2**28
"""Coordinates of all clients whose noise is drawn at once."""
SAFE = 6.0
"""Deviations of the noise that came and went in a round that the modulus has room for, to each side."""
MOST_TIMES = 1024
"""How many times as large the part that stays is sent at first, at most."""

Cancel = float | tuple[float, float, int]
"""The deviation of noise of which all goes; or that of what goes, that of what stays, and how many times it is sent."""


PARTS = ["goes", "stays", "times"]


def cancel_of(value: Any) -> Any:
    """What a file or a caller says of noise that is taken back: a list or a table of three as a tuple.

    >>> cancel_of({"goes": 39.2, "stays": 2.0, "times": 49}), cancel_of([39.2, 2.0, 49]), cancel_of(25.4)
    ((39.2, 2.0, 49), (39.2, 2.0, 49), 25.4)
    """
    if isinstance(value, Mapping):
        known_keys(value, PARTS, "cancel.")
        missing = [name for name in PARTS if name not in value]
        if missing:
            raise ValueError(f"cancel.{missing[0]}: missing; must come with all of {', '.join(PARTS)}")
        value = [value[name] for name in PARTS]
    if not isinstance(value, list | tuple):
        return value
    plain = len(value) == len(PARTS) and not any(isinstance(one, bool | str) for one in value)
    return (*(float(one) if isinstance(one, Real) else one for one in value[:2]), value[2]) if plain else tuple(value)


@final
@dataclass(frozen=True)
class Transient:
    """Noise f of standard deviation ``deviation`` (σ), in steps between two levels of what it is added to.

    With ``stays``, the deviation of another noise e, a client adds ``times`` · e + f and takes back all but e: the part
    that stays is sent ``times`` as large at first.

    >>> Transient(2.0).units[-3:].tolist(), Transient(2.0).reach  # of 2⁴⁰; nobody draws more than 14 steps
    ([3340, 147, 5], 14)
    >>> round(Transient.of((30.0, 1.5, 50)).variance ** 0.5, 2)  # much as if e were sent alone
    80.78
    """

    deviation: float
    stays: float = 0.0
    times: int = 1

    def __post_init__(self) -> None:
        """Validate σ."""
        value = real("cancel", self.deviation, f"from 0.5 to {WIDEST:g} steps", 0.5, WIDEST, closed="[]")
        object.__setattr__(self, "deviation", value)
        if self.stays == 0.0 and self.times == 1:
            return
        object.__setattr__(
            self, "stays", real("cancel", self.stays, f"from 0.5 to {WIDEST:g} steps", 0.5, WIDEST, closed="[]")
        )
        object.__setattr__(self, "times", whole("cancel", self.times, 2, MOST_TIMES))

    @classmethod
    def of(cls, cancel: Any) -> "Transient":
        """From what plans say: a number, or three of them."""
        value = cancel_of(cancel)
        if not isinstance(value, tuple):
            return cls(value)
        if len(value) != len(PARTS):
            raise ValueError(
                f"cancel = {shown(cancel)}: must be the deviation of noise that goes, or three numbers: that, the "
                "deviation of noise that stays, and how many times as large it is sent at first"
            )
        return cls(value[0], value[1] or nan, value[2])  # none is no number of steps

    @cached_property
    def left(self) -> "Transient":
        """The part that stays, alone."""
        return Transient(self.stays)

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
        """Of what is added, as it is sampled, in steps²."""
        return self._variance(self.times)

    @property
    def back_variance(self) -> float:
        """Of what is taken back."""
        return self._variance(self.times - 1)

    def _variance(self, times: int) -> float:
        """Of the part that goes, and that which stays so many times."""
        goes = float(self.units @ np.arange(-self.reach, self.reach + 1) ** 2.0) / 2.0**TABLE_BITS
        return goes + (times**2 * self.left.variance if self.stays else 0.0)

    def summed(self, clients: int) -> tuple[FloatArray, float]:
        """The law of the sum of so many clients' noise that goes, and what it lacks at its ends at most."""
        law, _ = summed(self.units / 2.0**TABLE_BITS, whole("clients", clients, 1))
        return law / law.sum(), 4 * clients * len(self.units) * NEGLIGIBLE

    def bits(self, clients: int, spread: int) -> int:
        """Bits that hold a sum of values up to ``spread`` and of noise that came and noise that went."""
        return ceil(log2(spread + 1 + 2 * SAFE * (2 * clients * self.variance) ** 0.5))

    def checked(self, drawn: Any, count: int) -> IntArray:
        """What ``draw`` has given, or raise."""
        values, shape = np.asarray(drawn), (2, count) if self.stays else (count,)
        if values.shape != shape or not np.issubdtype(values.dtype, np.signedinteger):
            raise ValueError(
                f"transient is of shape {values.shape} and type {values.dtype}: must be integers of shape {shape}"
            )
        values = values.astype(np.int64)
        parts = [(self, values)]
        if self.stays:
            left = values[0] - values[1]
            parts = [(self, values[0] - self.times * left), (self.left, left)]
        for one, part in parts:
            rare = count * (TABLE_BITS - log2(one.units[one.reach])) > TABLE_BITS  # that all are zero
            if abs(part).max() > one.reach or (rare and not part.any()):
                raise ValueError(f"transient: must be as drawn, each within {one.reach} of zero and not all zero")
        return values

    def added(self, message: Any, drawn: Any) -> Any:
        """A message, in its library, with what was drawn for it."""
        values = self.both(self.checked(drawn, len(message)))[0]
        return message + (values if kernels.backend(message) is None else message.new_tensor(values))

    def both(self, drawn: Any) -> tuple[Any, Any]:
        """What is added of what was drawn, and what is taken back."""
        return (drawn[0], drawn[1]) if self.stays else (drawn, drawn)

    def _joined(self, goes: Any, stays: Any) -> Any:
        """Both rows: what is added, and what is taken back."""
        back = goes + (self.times - 1) * stays
        return np.stack([back + stays, back])

    def draw(self, count: int, rng: object) -> IntArray:
        """One client's integers, so many; where a part stays, a row that is added and a row that is taken back."""
        drawn = kernels.encode(self.recipe, np.full(count, -1.0, np.float32), rng, None)
        goes = np.asarray(drawn.astype(np.int64) - self.reach)
        return np.asarray(self._joined(goes, self.left.draw(count, rng)) if self.stays else goes)

    def drawn_from(self, secret: bytes, count: int) -> IntArray:
        """The same from a secret of 32 bytes: whoever is given it draws the same."""
        words = expanded(secret, whole("count", count, 1) * (2 if self.stays else 1)) >> np.uint64(64 - TABLE_BITS)
        goes = self._looked_up(words[:count])
        return np.asarray(self._joined(goes, self.left._looked_up(words[count:])) if self.stays else goes)

    def _looked_up(self, words: Any) -> IntArray:
        return np.asarray(np.searchsorted(np.cumsum(self.units), words.astype(np.int64), side="right") - self.reach)

    def drawn_for(self, clients: int, like: Any, rng: object) -> tuple[Any, Any]:
        """What so many clients add to a sum like this, a torch tensor of 32-bit integers, and what they take back."""
        torch = kernels.backend(like).torch  # type: ignore[union-attr]
        goes = torch.zeros_like(like)
        self._add(clients, goes, rng)
        if not self.stays:
            return goes, goes
        stays = torch.zeros_like(like)
        self.left._add(clients, stays, rng)
        back = goes + (self.times - 1) * stays
        return back + stays, back

    def _add(self, clients: int, total: Any, rng: object) -> None:
        """Add the noise of so many clients that goes."""
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
