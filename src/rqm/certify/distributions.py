"""Sums of independent integers, and divergences between such sums.

A probability mass function (pmf) is a float64 array over 0, 1, 2, …. Sums only add and multiply
nonnegative numbers, so their relative errors stay small. Far tails may be cut:
`PartialSum.missing` bounds the probability that was cut. What was cut from the sum of the other
clients is charged by the caller.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from rqm._util.checks import FloatArray
from rqm._util.threads import fill_in_parallel

IntArray = npt.NDArray[np.int64]
Measure = Literal["renyi", "hockey-stick"]

SMALLEST_ENTRY = 1e-280
"""Entries of a sum below this are cut. Products with a client's own pmf stay above the smallest
float, 2e-308."""
UNDERFLOW = 1e-290
"""Above the sum of all terms that are too small for a float."""
ROUND_UP = 1 + 1e-9
"""Above the relative rounding errors of sums of positive numbers, and of Φ⁻¹ of them."""


class PartialSum(NamedTuple):
    """The pmf of a sum, up to an offset, without its rarest outcomes; `missing` bounds their
    probability.

    `cut_ends` says where they were cut: 0 nowhere, 1 at the lower end, 2 at the upper end, 3 at both.

    See docs/proofs/interior-levels.md#lemma-7.
    """

    pmf: FloatArray
    missing: float
    cut_ends: int = 0

    def __add__(self, addend: "PartialSum") -> "PartialSum":  # type: ignore[override]
        """The sum of two independent integers."""
        cut_ends = self.cut_ends | addend.cut_ends
        return PartialSum(np.convolve(self.pmf, addend.pmf), self.missing + addend.missing, cut_ends)

    def trimmed(self, tail: float) -> "PartialSum":
        """Without the outcomes at each end whose total probability is at most `tail`."""
        first, last = likely_range(self.pmf, tail)
        if first == 0 and last == len(self.pmf):
            return self
        if first >= last:
            return PartialSum(np.zeros(1), self.missing + float(self.pmf.sum()), 3)
        cut = self.pmf[:first].sum() + self.pmf[last:].sum()
        missing = self.missing + max(float(cut), UNDERFLOW)  # or zero as a float
        cut_ends = self.cut_ends | (1 if first else 0) | (2 if last < len(self.pmf) else 0)
        return PartialSum(self.pmf[first:last], missing, cut_ends)


def likely_range(pmf: FloatArray, tail: float) -> tuple[int, int]:
    """The first outcome, and the one after the last, without those at each end that have a probability of at most
    `tail` together."""
    first = np.searchsorted(np.cumsum(pmf), tail, side="right")
    after = np.searchsorted(np.cumsum(pmf[::-1]), tail, side="right")
    return int(first), len(pmf) - int(after)


EMPTY_SUM = PartialSum(np.ones(1), 0.0)
"""The sum over no clients."""


def repeated(pmf: FloatArray, count: int, tail: float = SMALLEST_ENTRY) -> PartialSum:
    """The sum of independent integers with the same pmf, up to an offset.

    Args:
        pmf: The pmf of one of them.
        count: How many are added.
        tail: Probability that may be cut from each end of an intermediate sum. By default only
            entries that are too small for a float are cut.

    Returns:
        The sum; of no integers, `EMPTY_SUM`.
    """
    total = EMPTY_SUM
    square = PartialSum(np.trim_zeros(pmf), 0.0)
    while count:
        if count & 1:
            total = (total + square).trimmed(tail)
        count >>= 1
        if count:
            square = (square + square).trimmed(tail)
    return total


def splits(
    low: FloatArray, high: FloatArray, others: int, tail: float = 1e-40, max_splits: int = 1024
) -> Iterator[PartialSum]:
    """Sums of `others` clients, one for each way to split them between two pmfs.

    If the two pmfs mirror each other, one of two mirrored splits is enough and the other is left
    out. Of more than `max_splits` splits, neighboring ones share a sum without the clients whose
    inputs differ. Dropping clients never makes a divergence smaller.

    See docs/proofs/affine.md#lemma-1.

    Args:
        low: The pmf of a client at the lower input.
        high: The pmf of a client at the upper input.
        others: The number of clients.
        tail: Probability that may be cut from each end of a sum. The default is below every
            error that callers allow for.
        max_splits: The largest number of different sums; it bounds the time.

    Yields:
        The sums, from few clients at the upper input to many.
    """
    block = max(1, ceil(others / max_splits))
    blocks = others // block + 1  # block k: from block·k clients at the upper input on
    powers: dict[tuple[bool, int], PartialSum] = {}

    def clients(at_high: bool, count: int) -> PartialSum:
        if (at_high, count) not in powers:
            powers[at_high, count] = repeated(high if at_high else low, count, tail)
        return powers[at_high, count]

    def _halved(common: PartialSum, first: int, last: int) -> Iterator[PartialSum]:
        """The blocks from `first` to `last` − 1; `common` is the sum over the clients that they
        share."""
        if last - first == 1:
            yield common
            return
        middle = (first + last) // 2
        with_low = (common + clients(False, block * (last - middle))).trimmed(tail)
        yield from _halved(with_low, first, middle)
        with_high = (common + clients(True, block * (middle - first))).trimmed(tail)
        yield from _halved(with_high, middle, last)

    last = blocks
    if np.allclose(low, high[::-1], rtol=1e-14, atol=0):
        last = others // 2 // block + 1
    if last == blocks and others % block < block - 1:  # no client is low in all splits of the last block
        last -= 1
        yield clients(True, block * last)
    if last:
        yield from _halved(clients(False, others - block * last + 1), 0, last)


# -- divergences ----------------------------------------------------------------------------------

# Sums of positive numbers may be taken in any order.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})


@compiled
def _convolve(x: FloatArray, y: FloatArray, out: FloatArray) -> int:  # pragma: no cover (compiled)
    """Write the convolution of `x` and the shorter `y` to `out`; return its length."""
    size: int = x.shape[0] + y.shape[0] - 1
    out[:size] = 0.0
    for j in range(y.shape[0]):
        window = out[j : j + x.shape[0]]
        for i in range(x.shape[0]):
            window[i] += y[j] * x[i]
    return size


@compiled
def _power_sum(q: FloatArray, ratio: FloatArray, alpha: float, power: FloatArray) -> float:  # pragma: no cover
    """Σ q · ratio**alpha; `power` is scratch space of two rows."""
    size = q.shape[0]
    total = 0.0
    if alpha > 256 or alpha != np.floor(alpha):
        for z in range(size):
            total += q[z] * ratio[z] ** alpha
        return total
    # Repeated squaring needs no logarithms.
    result = power[0]
    square = power[1]
    exponent = int(alpha)
    for z in range(size):
        result[z] = q[z]
        square[z] = ratio[z]
    while exponent:
        if exponent & 1:
            for z in range(size):
                result[z] *= square[z]
        exponent >>= 1
        for z in range(size):
            square[z] *= square[z]
    for z in range(size):
        total += result[z]
    return total


@compiled
def _renyi(
    p: FloatArray, q: FloatArray, orders: FloatArray, out: FloatArray, scratch: FloatArray
) -> None:  # pragma: no cover (compiled)
    """Write D_α(P ‖ Q) to `out` for every order, infinite if P has an outcome that Q has not."""
    mean_below = 0.5  # (α − 1) times the largest loss, below which D_α is a mean of losses
    size, largest = p.shape[0], 0.0
    ratio = scratch[2, :size]
    for z in range(size):
        ratio[z] = p[z] / q[z] if q[z] > 0.0 else (np.inf if p[z] > 0.0 else 0.0)
        largest = max(largest, ratio[z])
    if largest == np.inf:
        out[:] = np.inf
        return
    for k in range(orders.shape[0]):  # first those that need the ratio itself
        alpha = orders[k]
        if alpha == np.inf:
            out[k] = np.log(largest)
        elif alpha == 1.0 or (alpha - 1) * np.log(largest) < mean_below:  # without cancellation as α tends to 1
            total, mass = 0.0, 0.0
            for z in range(size):
                if p[z] > 0.0:
                    loss = np.log(ratio[z])
                    total += p[z] * (loss if alpha == 1.0 else np.expm1((alpha - 1) * loss))
                    mass += p[z]
            out[k] = total / mass if alpha == 1.0 else np.log1p(total / mass) / (alpha - 1)
    for z in range(size):
        ratio[z] /= largest
    for k in range(orders.shape[0]):
        alpha = orders[k]
        if 1.0 < alpha < np.inf and (alpha - 1) * np.log(largest) >= mean_below:
            total = _power_sum(q, ratio, alpha, scratch) + UNDERFLOW
            out[k] = (np.log(total) + alpha * np.log(largest)) / (alpha - 1)


@compiled
def _hockey_stick(p: FloatArray, q: FloatArray, epsilon: float) -> float:  # pragma: no cover (compiled)
    """Σ max(p − e^ε q, 0), rounded up. See docs/proofs/interior-levels.md#lemma-9."""
    error = 1e-8  # above the relative error of a probability of a sum of up to 10⁵ clients
    more = 1.0 + error
    less = np.exp(epsilon) * (1.0 - error)
    total = 0.0
    for z in range(p.shape[0]):
        total += max(more * p[z] - less * q[z], 0.0)
    return total


@compiled
def _fill(
    cells: IntArray,
    first: tuple[FloatArray, IntArray],
    second: tuple[FloatArray, IntArray],
    own_pmfs: FloatArray,
    pairs: IntArray,
    parameters: FloatArray,
    is_hockey_stick: bool,
    smallest: float,
    is_attained: bool,
    cut_ends: IntArray,
    table: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Fill `table[cell, pair, parameter]`, and note in `cut_ends` where outcomes of a cell were cut; see
    `divergence_table`."""
    width = own_pmfs.shape[1]
    longest = first[0].shape[1] + second[0].shape[1] + width
    base = np.empty(longest)
    sums = np.empty((own_pmfs.shape[0], longest))
    scratch = np.empty((3, longest))
    for cell in range(cells.shape[0]):
        i, j = cells[cell]
        x = first[0][i, : first[1][i]]
        y = second[0][j, : second[1][j]]
        whole = _convolve(x, y, base) if x.shape[0] >= y.shape[0] else _convolve(y, x, base)
        start = 0
        stop = whole
        while start + 1 < stop and base[start] < smallest:
            start += 1
        while start + 1 < stop and base[stop - 1] < smallest:
            stop -= 1
        size = stop - start + width - 1
        if start > 0:
            cut_ends[cell] |= 1
        if stop < whole:
            cut_ends[cell] |= 2
        first_used = 0
        last_used = size
        if is_attained and cut_ends[cell] & 1:
            first_used += width - 1
        if is_attained and cut_ends[cell] & 2:
            last_used -= width - 1
        if first_used >= last_used:
            table[cell] = 0.0
            continue
        for v in range(own_pmfs.shape[0]):
            _convolve(base[start:stop], own_pmfs[v], sums[v])
        for k in range(pairs.shape[0]):
            p = sums[pairs[k, 0], first_used:last_used]
            q = sums[pairs[k, 1], first_used:last_used]
            if not is_hockey_stick:
                _renyi(p, q, parameters[k], table[cell, k], scratch)
                continue
            for m in range(parameters.shape[1]):
                table[cell, k, m] = _hockey_stick(p, q, parameters[k, m])


class OtherSums(NamedTuple):
    """Sums of the other clients: row (i, j) of `cells` is the sum of `first[i]` and `second[j]`."""

    first: Sequence[PartialSum]
    second: Sequence[PartialSum]
    cells: IntArray

    @classmethod
    def of(cls, sums: Sequence[PartialSum]) -> "OtherSums":
        """Some sums, each of which is a cell."""
        cells = np.zeros((len(sums), 2), np.int64)
        cells[:, 0] = np.arange(len(sums))
        return cls(sums, [EMPTY_SUM], cells)


class Comparison(NamedTuple):
    """Divergences between sums that differ in one client.

    Attributes:
        own_pmfs: The pmfs of the client whose input differs, one row each.
        pairs: Rows (v, w): the client has the pmf `own_pmfs[v]` or `own_pmfs[w]`.
        parameters: The Rényi orders, or the values of ε of hockey-stick divergences: a row for each pair, or one
            for all of them.
        measure: "renyi" or "hockey-stick".
    """

    own_pmfs: FloatArray
    pairs: IntArray
    parameters: npt.ArrayLike
    measure: Measure


def divergence_table(
    others: OtherSums, comparison: Comparison, smallest: float = SMALLEST_ENTRY, is_attained: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Divergences between sums that differ in one client, beside many sums of the other clients.

    Args:
        others: Sums of the other clients.
        comparison: The divergences.
        smallest: Outcomes at both ends of a sum of the other clients are cut if they are less
            likely.
        is_attained: Whether Rényi divergences must be no larger than those of the whole sums, of
            orders above 1. Outcomes to which a cut part of the sum would have added are then left
            out.

    Returns:
        A table of shape (cells, pairs, parameters), and for each cell the probability that its
        sum lacks.
    """
    own_pmfs, pairs, parameters, measure = comparison
    rows = np.empty((len(pairs), np.shape(parameters)[-1]))
    rows[:] = parameters
    table = np.empty((len(others.cells), *rows.shape))
    missing = np.zeros(len(table))
    cut_ends = np.zeros(len(table), np.int64)
    for sums, index in zip(others[:2], others.cells.T, strict=True):
        missing += np.array([partial_sum.missing for partial_sum in sums])[index]
        cut_ends |= np.array([partial_sum.cut_ends for partial_sum in sums])[index]
    first = _stacked(others.first)
    second = _stacked(others.second)

    def fill(chunk: slice) -> None:
        _fill(
            others.cells[chunk],
            first,
            second,
            own_pmfs,
            pairs,
            rows,
            measure == "hockey-stick",
            smallest,
            is_attained,
            cut_ends[chunk],
            table[chunk],
        )

    fill_in_parallel(fill, len(table), min_cells=4)
    longest = first[0].shape[1] + second[0].shape[1]
    return table, missing + longest * smallest * (cut_ends > 0)


def _stacked(sums: Sequence[PartialSum]) -> tuple[FloatArray, IntArray]:
    """Pmfs as rows of one array, and their lengths."""
    sizes = np.array([len(partial_sum.pmf) for partial_sum in sums])
    rows = np.zeros((len(sums), sizes.max()))
    for row, partial_sum in zip(rows, sums, strict=True):
        row[: len(partial_sum.pmf)] = partial_sum.pmf
    return rows, sizes


def all_pairs(count: int) -> IntArray:
    """All ordered pairs of different indices below `count`."""
    return np.argwhere(~np.eye(count, dtype=np.bool_))


def different_pairs(pmfs: FloatArray) -> IntArray:
    """Ordered pairs of pmfs that differ in more than the names of the outcomes.

    Where the pmfs are the same but for the place of one entry (randomized response), all pairs
    are alike.

    >>> different_pairs(np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])).tolist()
    [[2, 0]]
    """
    rows, outcomes = pmfs.shape
    diagonal = np.eye(rows, outcomes, dtype=np.bool_)
    if rows == outcomes > 1 and np.array_equal(pmfs, np.where(diagonal, pmfs[0, 0], pmfs[0, 1])):
        return np.array([[rows - 1, 0]])
    return all_pairs(rows)
