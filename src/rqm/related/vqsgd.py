"""vqSGD: a whole vector as one vertex of a cross-polytope, sent by randomized response."""

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, real, shown, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray
from rqm.mechanisms.base import Mechanism, option
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.table import Table
from rqm.randomness import SecureRandom, SeededRandom
from rqm.related.randomized_response import RandomizedResponse, response_units

MAX_BIT_EPSILON = 25.0
"""ε of one bit, or of one index. With a larger one, units of 2⁻⁴⁰ are too coarse for the flips."""


@final
@dataclass(frozen=True)
class VQSGD(Mechanism):
    """VqSGD on a cross-polytope (Gandikota et al. 2021), the norm inside it: 2d one-hot bits, or one index.

    A vector v of d coordinates, in units of its L2 clip, is rounded at random to one of the 2d vertices ±√d e_j. Vertex
    (j, s) has the probability |v_j|/√d [s = sign v_j] + γ/2d with γ = 1 − ‖v‖₁/√d, which is at least 0 if ‖v‖₂ ≤ 1. So
    the norm of the vector is not sent. The vertex is sent

    - as 2d bits with one of them set, each flipped with probability 1/(1 + e^{ε/2}), for a secure sum; or
    - if `local`, as one index, by 2d-ary randomized response.

    A single message is exactly ε-differentially private. Two vectors differ in two of the bits. So a secure sum reveals
    as much as two coordinates of randomized response.

    >>> VQSGD(epsilon=4.0).response_pmf(np.array([0.6, 0.0])).round(4).tolist()
    [0.5519, 0.2288, 0.2288, 0.2288]
    """

    kind = "vqsgd"
    has_integer_messages = True
    needs_l2_clip = True
    bits = 1
    min_noise = 1.0
    """No noise: bits are not scaled."""

    epsilon: float = option(8.0, "ε of one message, pure.")
    local: bool = option(False, "Whether a message is one index by randomized response, and not 2d bits.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        limit = MAX_BIT_EPSILON * (1 if self.local else 2)
        epsilon = real("epsilon", self.epsilon, f"a positive number up to {limit:g}", 0, limit, closed="]")
        object.__setattr__(self, "epsilon", epsilon)
        if not isinstance(self.local, bool):
            raise TypeError(f"local = {shown(self.local)}: must be true or false")

    # -- messages -----------------------------------------------------------------------------

    @property
    def vector_mechanism(self) -> Self:  # type: ignore[override]
        """The mechanism itself: it encodes whole vectors."""
        return self

    @property
    def is_local(self) -> bool:  # type: ignore[override]
        """If `local`."""
        return self.local

    @cached_property
    def discrete(self) -> DiscreteMechanism:
        """The mechanism of one of the 2d bits; if `local`, of an index that is known to be one of two."""
        return RandomizedResponse(levels=2, epsilon=self.epsilon / (1 if self.local else 2))

    @property
    def differing_integers(self) -> int:  # type: ignore[override]
        """Two of the bits, or the one index."""
        return 1 if self.local else 2

    def message_length(self, coordinates: int) -> int:
        """Two vertices per coordinate."""
        if self.local and coordinates > 1:
            self._pair(2 * coordinates)
        return 2 * coordinates

    def message_bits(self, slots: int) -> int:
        """One bit each; if `local`, the bits of an index."""
        return (slots - 1).bit_length() if self.local else slots

    def reduce_to_worst_case(self, dim: int, l2_clip: float) -> tuple[Mechanism, int, float]:
        """The worst case: two vectors with different vertices, which differ in two bits, or in one index.

        Vertices are random, but divergences are jointly convex, so two certain vertices are the worst case.

        Args:
            dim: Integers of a message, 2d.
            l2_clip: L2 bound of the vectors, on which this does not depend.

        Returns:
            The mechanism of the integers that differ, their number, and their L2 bound.
        """
        if not self.local:
            return self.discrete, 2, sqrt(2)
        return (self.discrete if dim == 2 else self._pair(dim)), 1, 1.0

    def units(self, slots: int) -> tuple[int, int]:
        """Units of the true vertex and of each other one (see `response_units`)."""
        return response_units(self.epsilon, slots)

    def _pair(self, slots: int) -> Table:
        """The pmfs of an index at two vertices, over the first vertex, all others and the second.

        They are a few units less private than the index. That covers rounding of the table, and words that are scaled
        to 2d, which are uniform up to 2d / 2⁶⁴.
        """
        spare_units = 8
        true_units, false_units = self.units(slots)
        if not true_units > false_units > spare_units:
            raise ValueError(f"epsilon = {self.epsilon:g}: must be larger for {slots} vertices")
        p = (true_units + spare_units) / 2**TABLE_BITS
        q = (false_units - spare_units) / 2**TABLE_BITS
        pair = Table(margin=1 / (p - q) - 1, rows=((p, 1 - p - q, q), (q, 1 - p - q, p)))
        if (
            min(pair.table[0, 0], pair.table[1, 2]) <= true_units
            or max(pair.table[0, 2], pair.table[1, 0]) >= false_units
        ):
            raise ValueError(f"epsilon = {self.epsilon:g}: must be larger, or its pmf does not fit an integer table")
        return pair

    # -- the pmf ------------------------------------------------------------------------------

    def shares(self, v: npt.ArrayLike) -> FloatArray:
        """The probability of every vertex √d e_1, …, √d e_d, −√d e_1, …, before randomized response."""
        v = np.asarray(v, dtype=np.float64)
        sizes = np.abs(v) / sqrt(len(v))
        uniform = max(0.0, 1 - sizes.sum()) / (2 * len(v))
        return np.asarray(np.concatenate([np.where(v > 0, sizes, 0.0), np.where(v > 0, 0.0, sizes)]) + uniform)

    def response_pmf(self, v: npt.ArrayLike) -> FloatArray:
        """The probability that each bit is set; if `local`, of each index. `v` is in units of the L2 clip."""
        vertices = self.shares(v)
        p_true, p_false = self._response(len(vertices))
        return vertices * p_true + (1 - vertices) * p_false

    def _response(self, slots: int) -> tuple[float, float]:
        """The probabilities that a vertex is sent, if it is the true one, and if it is not."""
        p_true, p_false = self.units(slots) if self.local else self.discrete.units  # type: ignore[attr-defined]
        return p_true / 2**TABLE_BITS, p_false / 2**TABLE_BITS

    def variance(self, slots: int) -> float:
        """The variance of a decoded coordinate of one client's zero vector, in L2 clips².

        The variance of all d coordinates of a vector v is d times that, minus ‖v‖². It is d/(p − q)² for one index, and
        d + 2d² f(1 − f)/(1 − 2f)² for bits that are flipped with probability f.
        """
        p_true, p_false = self._response(slots)
        if self.local:
            return 1 / (p_true - p_false) ** 2
        return 1 + slots * p_true * p_false / (p_true - p_false) ** 2

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with bits that decoding scales by the amount."""
        epsilon = min(log((amount + 1) / (amount - 1)), MAX_BIT_EPSILON)
        return self.with_parameters(epsilon=epsilon * (1 if self.local else 2))

    # -- encode and decode --------------------------------------------------------------------

    def vertices(self, rows: Any, source: SecureRandom | SeededRandom) -> IntArray:
        """A random vertex for each vector.

        Args:
            rows: One vector per client, in L2 clips.
            source: The source of randomness.

        Returns:
            A number from 0 to 2d − 1 for each row. The d positive vertices come first.
        """
        d = rows.shape[1]
        first, second = source.words(2 * len(rows)).reshape(-1, 2).T
        uniform = first / 2.0**64 * sqrt(d)
        if isinstance(rows, np.ndarray):
            index = (np.abs(rows).cumsum(axis=1, dtype=np.float64) <= uniform[:, None]).sum(axis=1)
            is_positive = rows[np.arange(len(rows)), np.minimum(index, d - 1)] > 0
        else:
            sums = rows.double().abs().cumsum(1)
            indices = (sums <= sums.new_tensor(uniform)[:, None]).sum(1)
            is_positive = (rows.gather(1, indices.clamp(max=d - 1)[:, None])[:, 0] > 0).cpu().numpy()
            index = indices.cpu().numpy()
        chosen = np.where(is_positive, index, d + index)
        return np.where(index == d, _scaled(second, 2 * d), chosen)

    def encode_rows(self, rows: FloatArray, source: SecureRandom | SeededRandom) -> IntArray:
        """The messages of all vectors before they are summed.

        Args:
            rows: One vector per client, in L2 clips.
            source: The source of randomness.

        Returns:
            One row of 2d integers per client.
        """
        vertices = self.vertices(rows, source)
        slots = 2 * rows.shape[1]
        if self.local:
            return np.eye(slots, dtype=np.int64)[self._randomized(vertices, slots, source)]
        return np.asarray(self.discrete.encode(2.0 * np.eye(slots)[vertices] - 1, source)).astype(np.int64)

    def encode(self, row: Any, source: SecureRandom | SeededRandom) -> Any:
        """One client's message.

        Args:
            row: A vector in L2 clips: a NumPy array or a torch tensor.
            source: The source of randomness.

        Returns:
            2d integers, in the array library of `row`.
        """
        if isinstance(row, np.ndarray):
            return self.encode_sum(row[None], source, np.zeros(2 * len(row), dtype=np.int64))
        return self.encode_sum(row[None], source, row.new_zeros(2 * len(row)).int())

    def encode_sum(self, rows: Any, source: SecureRandom | SeededRandom, out: Any, threads: int | None = None) -> Any:
        """Add the messages of many clients to a sum.

        Args:
            rows: One vector per client, in L2 clips.
            source: Randomness.
            out: 2d integers, which are changed in place.
            threads: CPU threads; None: all processors.

        Returns:
            The sum.
        """
        slots = 2 * rows.shape[1]
        vertices = self.vertices(rows, source)
        if self.local:
            counts = np.bincount(self._randomized(vertices, slots, source), minlength=slots)
            out += counts if isinstance(out, np.ndarray) else out.new_tensor(counts)
            return out
        is_array = kernels.backend(rows) is None
        bits = np.full((len(rows), slots), -1.0) if is_array else rows.new_full((len(rows), slots), -1.0)
        bits[range(len(vertices)), vertices] = 1.0
        if not is_array:
            return self.discrete.encode_sum(bits, source, out=out, check=False, threads=threads)
        out += self.discrete.encode_sum(bits, source, threads=threads)
        return out

    def _randomized(self, vertices: IntArray, slots: int, source: SecureRandom | SeededRandom) -> IntArray:
        """Randomized response: each vertex itself, or one of all vertices, uniformly."""
        true_units, false_units = self.units(slots)
        first, second = source.words(2 * len(vertices)).reshape(-1, 2).T
        is_true = first >> np.uint64(64 - TABLE_BITS) < true_units - false_units
        return np.where(is_true, vertices, _scaled(second, slots))

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """An unbiased estimate of the mean of the clients' vectors, in L2 clips.

        Args:
            z_sum: The sum of their messages, 2d integers.
            clients: Number of clients in the sum.
            check: Whether to raise a ValueError for a sum that no clients can have sent.

        Returns:
            d numbers.
        """
        clients = whole("clients", clients, 1)
        slots = z_sum.shape[0]
        half = slots // 2
        if check and slots and not (z_sum.min() >= 0 and z_sum.max() <= clients):
            raise kernels.sum_range_error(clients, clients, z_sum.min() if z_sum.min() < 0 else z_sum.max())
        p_true, p_false = self._response(slots)
        total = z_sum.astype(np.float64) if isinstance(z_sum, np.ndarray) else z_sum.double()
        return (total[:half] - total[half:]) * (sqrt(half) / (clients * (p_true - p_false)))


def _scaled(words: Any, count: int) -> IntArray:
    """⌊word · count / 2⁶⁴⌋ of words of 64 bits, exactly, for a count of at most 32 bits."""
    low = words & np.uint64(2**32 - 1)
    high = words >> np.uint64(32)
    factor = np.uint64(count)
    return np.asarray((high * factor + (low * factor >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
