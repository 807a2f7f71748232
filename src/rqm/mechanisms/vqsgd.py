"""vqSGD: a whole vector as one vertex of a cross-polytope, told by randomized response."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, log, sqrt
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, real, shown, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray
from rqm.mechanisms.base import Mechanism, option
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.table import Table
from rqm.randomness import SecureRandom, SeededRandom

LARGEST = 25.0
"""ε of one bit, or of one index, at most."""
SPARE = 8
"""Units by which an index is accounted for as less private than it is, since rounding a table moves some."""


@final
@dataclass(frozen=True)
class VQSGD(Mechanism):
    """VqSGD on a cross-polytope (Gandikota et al. 2021), the norm inside it: 2d one-hot bits, or one index.

    A vector v of d coordinates, in units of its L2 clip, is a mean of the 2d vertices ±√d e_j: vertex (j, s) has the
    probability |v_j|/√d [s = sign v_j] + γ/2d, γ = 1 − ‖v‖₁/√d, which is no less than 0 for every ‖v‖₂ ≤ 1. So nothing
    is divided by the vector's own norm, and no norm is sent. The vertex is told

    - as 2d bits of which one is set, each flipped with probability 1/(1 + e^{ε/2}), which a secure sum adds up; or
    - if ``local``, by 2d-ary randomized response: as one index, private by itself.

    Either way one message is ε-differentially private by itself, exactly. Two vectors differ in two of the bits, so a
    secure sum over others tells as much as two coordinates of randomized response do.

    >>> VQSGD(epsilon=4.0).law(np.array([0.6, 0.0])).round(4).tolist()
    [0.5519, 0.2288, 0.2288, 0.2288]
    """

    kind: ClassVar[str] = "vqsgd"
    integers: ClassVar[bool] = True
    needs_l2_clip: ClassVar[bool] = True
    bits: ClassVar[int] = 1

    epsilon: float = option(8.0, "ε of one message, pure.")
    local: bool = option(False, "Whether a message is one index by randomized response, and not 2d bits.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        most = LARGEST if self.local else 2 * LARGEST
        epsilon = real("epsilon", self.epsilon, f"a positive number up to {most:g}", 0, most, closed="]")
        object.__setattr__(self, "epsilon", epsilon)
        if not isinstance(self.local, bool):
            raise TypeError(f"local = {shown(self.local)}: must be true or false")

    # -- what it tells about itself -----------------------------------------------------------

    @property
    def whole(self) -> Self:
        """The mechanism itself: it encodes a vector as a whole."""
        return self

    @property
    def hides_alone(self) -> bool:
        """If ``local``: what the others send is not counted on."""
        return self.local

    @cached_property
    def channel(self) -> Channel:
        """What happens to one of the 2d bits; if ``local``, to an index of which one knows that it is one of two."""
        return RandomizedResponse(levels=2, epsilon=self.epsilon / (1 if self.local else 2))

    @property
    def differing(self) -> int:
        """Two of the bits, or the one index."""
        return 1 if self.local else 2

    def slots(self, coordinates: int) -> int:
        """Two vertices for every coordinate; whose law must be possible."""
        if self.local and coordinates > 1:
            self._pair(2 * coordinates)
        return 2 * coordinates

    def message_bits(self, slots: int) -> int:
        """A bit each; or those of an index."""
        return (slots - 1).bit_length() if self.local else slots

    def told(self, dim: int, l2_clip: float) -> tuple[Mechanism, int, float]:
        """Whatever two vectors are, their vertices are two at the most: two bits differ, or one index.

        Vertices are drawn, but a divergence is convex in both laws: two certain ones are the worst.
        """
        if not self.local:
            return self.channel, 2, sqrt(2)
        return (self.channel if dim == 2 else self._pair(dim)), 1, 1.0

    def units(self, slots: int) -> tuple[int, int]:
        """Of 2**TABLE_BITS, the units of the true vertex and of each other; rounded to the private side."""
        other = ceil(2**TABLE_BITS / (exp(self.epsilon) + slots - 1))
        return 2**TABLE_BITS - (slots - 1) * other, other

    def _pair(self, slots: int) -> Table:
        """The law of an index at two vertices, as (the one, any third, the other): a little less private than it is.

        Words that are scaled to 2d are uniform but for a part of 2d / 2⁶⁴, less than the units that are taken here.
        """
        true, other = self.units(slots)
        if not true > other > SPARE:
            raise ValueError(f"epsilon = {self.epsilon:g}: must be larger for {slots} vertices")
        p, q = ((units / 2**TABLE_BITS) for units in (true + SPARE, other - SPARE))
        made = Table(margin=1 / (p - q) - 1, rows=((p, 1 - p - q, q), (q, 1 - p - q, p)))
        if min(made.table[0, 0], made.table[1, 2]) <= true or max(made.table[0, 2], made.table[1, 0]) >= other:
            raise ValueError(f"epsilon = {self.epsilon:g}: its law does not fit the integers of a table")
        return made

    # -- the law ------------------------------------------------------------------------------

    def shares(self, v: npt.ArrayLike) -> FloatArray:
        """The probability of every vertex: √d e_1, …, √d e_d, −√d e_1, …; before it is told."""
        v = np.asarray(v, dtype=np.float64)
        size = np.abs(v) / sqrt(len(v))
        rest = max(0.0, 1 - size.sum()) / (2 * len(v))
        return np.asarray(np.concatenate([np.where(v > 0, size, 0.0), np.where(v > 0, 0.0, size)]) + rest)

    def law(self, v: npt.ArrayLike) -> FloatArray:
        """If ``local`` the probability of every index, else that every bit is set; ``v`` in units of the L2 clip."""
        shares = self.shares(v)
        true, other = self._told_with(len(shares))
        return np.asarray(shares * true + (1 - shares) * other)

    def _told_with(self, slots: int) -> tuple[float, float]:
        """The probabilities that a vertex is told, if it is the true one, and if it is not."""
        true, other = self.units(slots) if self.local else self.channel.units  # type: ignore[attr-defined]
        return true / 2**TABLE_BITS, other / 2**TABLE_BITS

    def variance(self, slots: int) -> float:
        """The variance of a decoded coordinate of one client's zero vector, in L2 clips².

        Of a vector v all coordinates together have d times that, less ‖v‖²: d/(p − q)² of one index, and of bits that
        are flipped with probability f, d + 2d² f(1 − f)/(1 − 2f)².
        """
        true, other = self._told_with(slots)
        if self.local:
            return 1 / (true - other) ** 2
        return 1 + slots * true * other / (true - other) ** 2

    # -- how its noise grows ------------------------------------------------------------------

    @property
    def least_noise(self) -> float:
        """1: the truth."""
        return 1.0

    def with_noise(self, amount: float) -> Self:
        """Bits stretched so far when they are decoded."""
        each = log((amount + 1) / (amount - 1))
        return self.changed(epsilon=min(each, LARGEST) * (1 if self.local else 2))

    # -- encode and decode --------------------------------------------------------------------

    def vertices(self, rows: Any, source: SecureRandom | SeededRandom) -> IntArray:
        """A vertex for every row, in units of the L2 clip; of 2d, those of positive sign first."""
        d, (first, second) = rows.shape[1], source.words(2 * len(rows)).reshape(-1, 2).T
        place = first / 2.0**64 * sqrt(d)
        if isinstance(rows, np.ndarray):
            below = (np.abs(rows).cumsum(axis=1, dtype=np.float64) <= place[:, None]).sum(axis=1)
            there = rows[np.arange(len(rows)), np.minimum(below, d - 1)] > 0
        else:
            sums = rows.double().abs().cumsum(1)
            found = (sums <= sums.new_tensor(place)[:, None]).sum(1)
            there = (rows.gather(1, found.clamp(max=d - 1)[:, None])[:, 0] > 0).cpu().numpy()
            below = found.cpu().numpy()
        return np.asarray(np.where(below == d, _scaled(second, 2 * d), np.where(there, below, d + below)))

    def messages(self, rows: FloatArray, source: SecureRandom | SeededRandom) -> IntArray:
        """The message of every row, before they are summed: 2d integers each."""
        found, slots = self.vertices(rows, source), 2 * rows.shape[1]
        if self.local:
            return np.asarray(np.eye(slots, dtype=np.int64)[self._index(found, slots, source)])
        return np.asarray(self.channel.encode(2.0 * np.eye(slots)[found] - 1, source)).astype(np.int64)

    def encode(self, row: Any, source: SecureRandom | SeededRandom) -> Any:
        """One client's message: 2d integers, in the library of ``row``, a vector in L2 clips."""
        if isinstance(row, np.ndarray):
            return self.encode_sum(row[None], source, np.zeros(2 * len(row), dtype=np.int64))
        return self.encode_sum(row[None], source, row.new_zeros(2 * len(row)).int())

    def encode_sum(self, rows: Any, source: SecureRandom | SeededRandom, out: Any, threads: int | None = None) -> Any:
        """Add the messages of many clients, a row of a vector in L2 clips each, to ``out``: 2d integers."""
        slots = 2 * rows.shape[1]
        found = self.vertices(rows, source)
        if self.local:
            counts = np.bincount(self._index(found, slots, source), minlength=slots)
            out += counts if isinstance(out, np.ndarray) else out.new_tensor(counts)
            return out
        other = kernels.backend(rows)
        bits = rows.new_full((len(rows), slots), -1.0) if other is not None else np.full((len(rows), slots), -1.0)
        bits[range(len(found)), found] = 1.0
        if other is not None:
            return self.channel.encode_sum(bits, source, out=out, check=False, threads=threads)
        out += self.channel.encode_sum(bits, source, threads=threads)
        return out

    def _index(self, found: IntArray, slots: int, source: SecureRandom | SeededRandom) -> IntArray:
        """Every vertex by randomized response: the true one, or one of all, each as likely as another."""
        (true, other), (first, second) = self.units(slots), source.words(2 * len(found)).reshape(-1, 2).T
        kept = first >> np.uint64(64 - TABLE_BITS) < true - other
        return np.asarray(np.where(kept, found, _scaled(second, slots)))

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """The mean of the clients' vectors, unbiased, in units of the L2 clip, from the sums of 2d slots."""
        clients, slots = whole("clients", clients, 1), z_sum.shape[0]
        half = slots // 2
        if check and slots and not (z_sum.min() >= 0 and z_sum.max() <= clients):
            raise kernels.sum_range_error(clients, clients, z_sum.min() if z_sum.min() < 0 else z_sum.max())
        true, other = self._told_with(slots)
        total = z_sum.astype(np.float64) if isinstance(z_sum, np.ndarray) else z_sum.double()
        return (total[:half] - total[half:]) * (sqrt(half) / (clients * (true - other)))


def _scaled(words: Any, count: int) -> IntArray:
    """Words of 64 bits as whole numbers below ``count`` (of 32 bits at most): ⌊word · count / 2⁶⁴⌋, exactly."""
    low, high = words & np.uint64(2**32 - 1), words >> np.uint64(32)
    of = np.uint64(count)
    return np.asarray((high * of + (low * of >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
