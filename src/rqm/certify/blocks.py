"""Bounds that hold for all inputs of the other clients.

The other clients sit at breakpoints of the mechanism's pmf. A bound on a jointly convex
divergence is needed for every way to place them. Three families of placements are computed, see
`other_clients`:

- *Splits*: with two breakpoints, how many clients sit at each of them is all that matters.
- *Enumeration*: with few clients, every multiset of breakpoints.
- *Blocks*: the breakpoints are cut into two halves. Any sum of b clients of one half contains a
  common shape with some probability, whatever their inputs (`common_shape`). Revealing which
  blocks contained their shape, and dropping everything else, only helps the adversary. So the
  bound is a mean over the numbers of shapes, the largest over all ways to divide the clients
  between the halves.

All three are mixtures of known sums, so one function, `largest_means`, evaluates them. See
docs/proofs/interior-levels.md#theorem-5.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, reduce
from itertools import combinations_with_replacement, product
from math import comb
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray
from rqm.certify.distributions import (
    EMPTY_SUM,
    SMALLEST_ENTRY,
    UNDERFLOW,
    Comparison,
    IntArray,
    OtherSums,
    PartialSum,
    all_pairs,
    different_pairs,
    divergence_table,
    repeated,
    splits,
)

MAX_PLACEMENTS = 130_000
"""Multisets of breakpoints that are enumerated; of 18 breakpoints up to 6 other clients."""
BLOCK_SIZES = (5, 3, 2, 1)
"""Clients of a block, in the order in which they are tried. Sums of large blocks have most in
common; small blocks lose less where a block lacks its shape."""
MAX_BREAKPOINTS = 80
"""With more breakpoints the linear programs take hours; the bound is then that of one client."""
MAX_COUNTED_BLOCKS = 100
"""Blocks that are counted one by one; of more, several count as one."""
NEGLIGIBLE_PART = 1e-6
"""The part of a mean by which cells that are too rare to matter may raise it."""


# -- sums of the other clients as mixtures --------------------------------------------------------


class Mixtures(NamedTuple):
    """Mixtures of sums of the other clients: row r of `weights` has the probabilities of the cells.

    Without weights every cell is a mixture of its own.
    """

    sums: OtherSums
    weights: FloatArray | None = None


def other_clients(
    pmfs: FloatArray, count: int, sizes: Iterable[int] = BLOCK_SIZES, tail: float = SMALLEST_ENTRY
) -> Iterator[list[Mixtures]]:
    """Families of mixtures that cover all placements of the other clients.

    See docs/proofs/interior-levels.md#theorem-10.

    Args:
        pmfs: The pmfs of a client at its breakpoints, one row each.
        count: How many other clients there are.
        sizes: Block sizes to try where placements are not enumerated.
        tail: Probability that may be cut from each end of a sum.

    Yields:
        One family, which covers everything exactly, or one for each block size. Any family gives
        a valid bound.
    """
    if count == 0:
        yield [Mixtures(OtherSums.of([EMPTY_SUM]))]
    elif len(pmfs) == 2:
        yield [Mixtures(OtherSums.of(list(splits(pmfs[0], pmfs[1], count, tail))))]
    elif comb(count + len(pmfs) - 1, count) <= MAX_PLACEMENTS:
        yield [_all_placements(pmfs, count)]
    elif len(pmfs) <= MAX_BREAKPOINTS:
        # Each multiset of breakpoints that a block may have is a constraint of a linear program.
        width = -(-len(pmfs) // 2)
        largest = max(size for size in BLOCK_SIZES if comb(width + size - 1, size) <= 800)
        for size in dict.fromkeys(min(size, largest) for size in sizes):
            yield list(_blocks(pmfs, count, size, tail))


def _all_placements(pmfs: FloatArray, count: int) -> Mixtures:
    """Every multiset of breakpoints, as a multiset for a part of the clients and one for the rest.

    See docs/proofs/interior-levels.md#lemma-2.
    """
    breakpoints = range(len(pmfs))
    low = list(combinations_with_replacement(breakpoints, count // 2))
    high = list(combinations_with_replacement(breakpoints, count - count // 2))

    def sum_of(multiset: tuple[int, ...]) -> PartialSum:
        return PartialSum(_convolved(pmfs[list(multiset)]), 0.0).trimmed(SMALLEST_ENTRY)

    last = np.array([max(multiset, default=-1) for multiset in low])
    begin = np.array([min(multiset) for multiset in high])
    cells = np.argwhere(last[:, None] <= begin)
    return Mixtures(OtherSums([*map(sum_of, low)], [*map(sum_of, high)], cells))


def _blocks(pmfs: FloatArray, count: int, size: int, tail: float) -> Iterator[Mixtures]:
    """Blocks of `size` clients in each half of the breakpoints, one family for each number of
    clients left over.

    The clients of a half who do not fill a block make one smaller block. Where blocks are counted
    several at a time, they are dropped instead.

    See docs/proofs/interior-levels.md#lemma-6.
    """
    middle = len(pmfs) // 2
    halves = pmfs[:middle], pmfs[middle:]
    several = max(1, -(-count // (size * MAX_COUNTED_BLOCKS)))
    if several > 1:
        full = several * size
        steps = max(0, -(-(count - 2 * (full - 1)) // full))
        yield _counted(halves, size, several, steps, (0, 0), tail)
        return
    for low in range(min(size, count + 1)):
        remainders = low, (count - low) % size
        steps = (count - sum(remainders)) // size
        if steps >= 0:
            yield _counted(halves, size, 1, steps, remainders, tail)


def _counted(
    halves: tuple[FloatArray, FloatArray], size: int, several: int, steps: int, remainders: tuple[int, int], tail: float
) -> Mixtures:
    """Mixtures over the numbers of shapes, one for each way to divide `steps` blocks between the
    halves.

    Sum i of a half has i // 2 blocks with their shape, and for odd i the smaller block's shape as
    well.

    See docs/proofs/interior-levels.md#theorem-5.
    """
    sums, chances, rest_chances = [], [], []
    for half, remainder in zip(halves, remainders, strict=True):
        shape = common_shape(half, size)
        smaller = common_shape(half, remainder) if remainder else CommonShape(np.ones(1), 1.0)
        rest = PartialSum(smaller.pmf, 0.0)
        block = repeated(shape.pmf, several)
        power = EMPTY_SUM
        sums_of_half = [power, power + rest]
        for _ in range(steps):
            power = (power + block).trimmed(tail)
            sums_of_half += [power, power + rest]
        sums.append(sums_of_half)
        chances.append(_full_blocks(steps, shape.weight, several))
        rest_chances.append((1 - smaller.weight, smaller.weight))
    counts = np.arange(steps + 1)
    pairs = np.argwhere(np.add.outer(counts, counts) <= steps)
    low_counts, high_counts = pairs.T
    # Row k: k blocks are in the lower half, steps − k in the other.
    weights = chances[0][:, low_counts] * chances[1][::-1, high_counts]
    cells, cell_weights = [], []
    for low, high in product((0, 1), repeat=2):
        chance = rest_chances[0][low] * rest_chances[1][high]
        if chance > 0:
            cells.append(2 * pairs + (low, high))
            cell_weights.append(weights * chance)
    all_sums = OtherSums(sums[0], sums[1], np.concatenate(cells))
    return Mixtures(all_sums, np.concatenate(cell_weights, axis=1))


def _full_blocks(steps: int, weight: float, several: int) -> FloatArray:
    """[k, c]: the probability that of k · several blocks c · several (and fewer than that more)
    contain their shape."""
    added = _convolved([np.array([1 - weight, weight])] * several)
    chances = np.zeros((steps + 1, steps + 1))
    full = np.ones(1)  # the pmf of the number of blocks with their shape
    for k in range(steps + 1):
        chances[k, : k + 1] = np.add.reduceat(full, several * np.arange(k + 1))
        full = np.convolve(full, added)
    return chances


def largest_means(
    mixtures: Iterable[Mixtures],
    comparison: Comparison,
    averaged: Callable[[FloatArray, FloatArray], FloatArray],
    negligible: float,
) -> FloatArray:
    """For each pair and parameter, the largest mean over all mixtures.

    See docs/proofs/interior-levels.md#lemma-7.

    Args:
        mixtures: A family that covers all placements of the other clients.
        comparison: The divergences.
        averaged: Turns a table of divergences, and the probability that each cell lacks, into the
            jointly convex numbers that are averaged; none of them is above 1.
        negligible: What may be added to a mean: cells and tails that are less likely than this
            are counted as 1.

    Returns:
        An array of shape (pairs, parameters).
    """
    largest = []
    for mixture in mixtures:
        sums, weights = mixture
        unweighted = np.zeros(1)
        if weights is not None:
            matters = weights.max(axis=0) > negligible / len(sums.cells)
            unweighted = weights[:, ~matters].sum(axis=1)
            weights = weights[:, matters]
            sums = sums._replace(cells=sums.cells[matters])
        longest = len(sums.first[-1].pmf) + len(sums.second[-1].pmf)
        table, missing = divergence_table(sums, comparison, max(SMALLEST_ENTRY, negligible / longest))
        values = averaged(table, missing[:, None, None])
        if weights is not None:
            values = np.tensordot(weights, values, axes=1) + unweighted[:, None, None]
        largest.append(values.max(axis=0))
    return np.asarray(np.max(largest, axis=0))


# -- Rényi divergence -----------------------------------------------------------------------------


def certified_renyi(
    own_pmfs: FloatArray,
    others: FloatArray,
    count: int,
    alpha: float,
    attained: float,
    close_enough: tuple[float, float] = (1.05, 1.125),
) -> float:
    """A bound on D_α of one client's sum with `count` others, over all pairs of the client's pmfs
    and all placements.

    See docs/proofs/interior-levels.md#lemma-8.

    Args:
        own_pmfs: The pmfs of the client whose input differs, at its breakpoints.
        others: The pmfs of one of the other clients at their breakpoints.
        count: How many other clients there are.
        alpha: The Rényi order.
        attained: A value that some inputs attain. Pairs that are provably below it are left out.
        close_enough: A bound within this factor of the attained value is not improved. The second
            factor is for large cohorts, of more than twice `MAX_COUNTED_BLOCKS` clients, where each
            block size takes seconds.

    Returns:
        The bound, at least `attained`.
    """
    pairs = pairs_of_client(own_pmfs, count)
    rise = 1.0 if np.isinf(alpha) else alpha - 1
    if len(pairs) > 1 and len(others) > 2 and _is_mirrored(own_pmfs) and _is_mirrored(others):
        pairs = pairs[2 * pairs @ [len(own_pmfs), 1] < len(own_pmfs) ** 2]  # one of each two that mirror each other
    bounds = _single_client(own_pmfs, pairs, alpha)
    for fewer in _counts(len(others), count, alpha):
        matters = bounds > attained
        pairs, bounds = pairs[matters], bounds[matters]
        if not len(pairs):
            return attained
        if fewer < count:
            with_equal_inputs = divergences_with_equal_inputs(own_pmfs, others, fewer, pairs, alpha)
            if (with_equal_inputs >= bounds).all():
                continue
        single_client = _single_client(own_pmfs, pairs, alpha)
        smallest_ratio = (
            attained / single_client.max() if alpha == 1 else np.exp(rise * (attained - single_client.max()))
        )
        negligible = 0.0 if np.isinf(alpha) else NEGLIGIBLE_PART * smallest_ratio
        sufficient = close_enough[fewer > 2 * MAX_COUNTED_BLOCKS] * attained
        sizes = BLOCK_SIZES if fewer == count else BLOCK_SIZES[1:2]
        for family in other_clients(others, fewer, sizes, max(SMALLEST_ENTRY, negligible / max(fewer, 1))):
            bounds = np.minimum(bounds, _mean_divergences(family, own_pmfs, pairs, alpha, single_client, negligible))
            if bounds.max() <= sufficient:
                break
    return max(float(bounds.max()), attained)


def _counts(breakpoints: int, count: int, alpha: float) -> list[int]:
    """Numbers of other clients that are accounted for, in turn: a bound for fewer of them is one for
    all.

    The most that can be enumerated are among them: blocks of a few more clients may be looser.

    At the order infinity only sums of which nothing is cut, and no blocks, say more than that of
    one client.

    See docs/proofs/interior-levels.md#lemma-3.
    """
    enumerated = 0
    while enumerated < count and comb(enumerated + breakpoints, enumerated + 1) <= MAX_PLACEMENTS:
        enumerated += 1
    if not np.isinf(alpha) or breakpoints > MAX_BREAKPOINTS or count == 0:
        fewer = sorted({count // 8, count // 2, count} - {0})
        return fewer if breakpoints == 2 or enumerated in (0, *fewer) else [*fewer, enumerated]
    if breakpoints == 2:
        return sorted({2**k for k in range(count.bit_length())} | {count})
    return [min(enumerated, 16)]


def pairs_of_client(own_pmfs: FloatArray, others: int) -> IntArray:
    """Pairs of a client's pmfs, of which one is the worst.

    Pairs that are alike for one client are not alike beside others, whose placements may be left
    out where they mirror others.

    Args:
        own_pmfs: The pmfs of the client, one row each.
        others: The number of other clients whose messages are accounted for.

    Returns:
        Rows (v, w).
    """
    if others == 0 or len(own_pmfs) > MAX_BREAKPOINTS:
        return different_pairs(own_pmfs)
    return all_pairs(len(own_pmfs))


def _is_mirrored(pmfs: FloatArray) -> bool:
    """Whether the pmfs in reverse order are the mirror images of the pmfs."""
    return np.array_equal(pmfs[::-1, ::-1], pmfs)


def _single_client(own_pmfs: FloatArray, pairs: IntArray, alpha: float) -> FloatArray:
    """D_α of one client for each pair."""
    table, _ = divergence_table(OtherSums.of([EMPTY_SUM]), Comparison(own_pmfs, pairs, [alpha], "renyi"))
    return table[0, :, 0]


def divergences_with_equal_inputs(
    own_pmfs: FloatArray, others: FloatArray, count: int, pairs: IntArray, alpha: float
) -> FloatArray:
    """For each pair the largest D_α if all other clients have the same input. It is attained: no bound is below.

    Args:
        own_pmfs: The client's pmfs, one row each.
        others: The pmfs of another client.
        count: Number of other clients.
        pairs: Pairs of rows of `own_pmfs`.
        alpha: The Rényi order.

    Returns:
        A divergence for each pair.
    """
    sums = OtherSums.of([repeated(pmf, count) for pmf in others])
    table, _ = divergence_table(sums, Comparison(own_pmfs, pairs, [alpha], "renyi"), is_attained=True)
    return np.asarray(table[:, :, 0].max(axis=0))


def _mean_divergences(
    family: list[Mixtures],
    own_pmfs: FloatArray,
    pairs: IntArray,
    alpha: float,
    single_client: FloatArray,
    negligible: float,
) -> FloatArray:
    """D_α of each pair from the mean of exp((α−1) D_α), in units of what one client alone leaks."""
    is_weighted = any(mixtures.weights is not None for mixtures in family)
    if np.isinf(alpha) and is_weighted:
        return single_client  # some of the numbers of shapes is zero
    rise = 1.0 if alpha == 1 or np.isinf(alpha) else alpha - 1
    is_unbounded = np.isinf(single_client)  # alone; beside others it need not be
    unit = np.where(is_unbounded, 1.0 if alpha == 1 else 0.0, single_client)[:, None]

    def averaged(table: FloatArray, missing: FloatArray) -> FloatArray:
        missing = np.where(is_unbounded[:, None] & (missing > 0), np.inf, missing)
        if alpha == 1:
            return table / unit + missing
        with np.errstate(over="ignore"):
            values = np.exp(rise * (table - unit))
        if np.isinf(alpha):  # a part that is cut may be the one that reveals most
            return np.where(missing > 0, np.maximum(missing, 1.0), values)
        return values + missing

    comparison = Comparison(own_pmfs, pairs, [alpha], "renyi")
    means = largest_means(family, comparison, averaged, negligible)[:, 0] * (1 + 1e-12)
    unit = unit[:, 0]
    bounds = unit * means if alpha == 1 else unit + np.log(means + UNDERFLOW) / rise
    return np.where(is_unbounded & is_weighted, np.inf, bounds)


# -- common shapes --------------------------------------------------------------------------------


class CommonShape(NamedTuple):
    """A pmf that all sums of some clients contain: each of them is at least `weight` · (`pmf` ∗ some
    pmf)."""

    pmf: FloatArray
    weight: float


def common_shape(pmfs: FloatArray, clients: int) -> CommonShape:
    """The common shape of the sums of `clients` clients, each at one of several breakpoints.

    A linear program proposes the shape; its weight is then computed by plain arithmetic over
    every multiset of breakpoints, so an inexact solver makes the bound looser but never wrong.

    See docs/proofs/interior-levels.md#lemma-4.

    Args:
        pmfs: The pmfs at the breakpoints, one row each.
        clients: How many clients are summed.

    Returns:
        The shape and its weight in the worst of the sums.
    """
    if len(pmfs) == 1:
        return CommonShape(repeated(pmfs[0], clients).pmf, 1.0)
    rows = _key(pmfs)
    mirrored = _key(pmfs[::-1, ::-1])
    shape, weight = _common_shape(min(rows, mirrored), clients)
    return CommonShape(shape if rows <= mirrored else shape[::-1], weight)


def _key(pmfs: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, pmfs.tolist()))


def _convolved(pmfs: Iterable[FloatArray]) -> FloatArray:
    """The pmf of the sum of clients with these pmfs."""
    return reduce(np.convolve, pmfs, np.ones(1))


def variance(pmf: FloatArray) -> float:
    """The variance of a pmf, whatever its mass."""
    z = np.arange(len(pmf))
    mass = pmf.sum()
    return float(pmf @ z**2 / mass - (pmf @ z / mass) ** 2)


@lru_cache(maxsize=64)
def _common_shape(rows: tuple[tuple[float, ...], ...], clients: int) -> CommonShape:
    pmfs = np.array(rows)
    choices = list(combinations_with_replacement(range(len(pmfs)), clients))
    sums = np.array([_convolved(pmfs[list(choice)]) for choice in choices])
    unit = clients * min(map(variance, pmfs))
    considered = [k for k, choice in enumerate(choices) if choice[0] == choice[-1]]
    best = CommonShape(np.ones(1), 0.0)
    sufficient_part = 0.985  # of the weight in the sums that were considered
    for _ in range(3):
        shape, proposed = _alternating(sums[considered], unit)
        weights = np.array([_complement(pmf, shape).sum() for pmf in sums])
        if weights.min() * variance(shape) > best.weight * variance(best.pmf):
            best = CommonShape(shape, float(weights.min()))
        if weights.min() > sufficient_part * proposed:
            break
        worst = [int(k) for k in np.argsort(weights)[:12] if weights[k] < sufficient_part * proposed]
        considered = [*considered, *(k for k in worst if k not in considered)]
    return CommonShape(best.pmf, best.weight * (1 - 1e-12))


def _alternating(sums: FloatArray, unit: float) -> CommonShape:
    """The best shape of some sums, found in turn with what is added to it to make up each sum."""
    width = sums.shape[1]
    index = np.arange(len(sums))
    means = sums @ np.arange(width)
    low = np.floor(means + 1e-9).astype(np.int64)
    fraction = np.clip(means - low, 0, 1)
    added = np.zeros_like(sums)
    added[index, low] = 1 - fraction
    added[index, np.minimum(low + 1, width - 1)] += fraction
    best = CommonShape(np.ones(1), 0.0)
    for _ in range(3):
        shape = _heaviest_shape(sums, added, unit)
        if shape is None:
            break
        complements = [_complement(pmf, shape) for pmf in sums]
        weight = min(float(complement.sum()) for complement in complements)
        if weight * variance(shape) > best.weight * variance(best.pmf):
            best = CommonShape(shape, weight)
        center = round(float(shape @ np.arange(len(shape))))
        added = np.zeros_like(sums)
        for row, complement in zip(added, complements, strict=True):
            if complement.sum() > 0:
                shifted = np.minimum(np.flatnonzero(complement) + center, width - 1)
                row[shifted] = complement[complement > 0] / complement.sum()
    return best


def _heaviest_shape(sums: FloatArray, added: FloatArray, unit: float) -> FloatArray | None:
    """The shape with most mass and variance for which shape ∗ added lies below every sum."""
    from scipy.sparse import csr_matrix, vstack  # noqa: PLC0415

    width = sums.shape[1]
    offsets = np.arange(-width + 1, width)
    rows = []
    is_impossible = np.zeros(len(offsets), dtype=np.bool_)
    for pmf, more in zip(sums, added, strict=True):
        matrix = np.zeros((width, len(offsets)))
        for outcome in np.flatnonzero(more):
            at = offsets + outcome
            inside = (at >= 0) & (at < width)
            is_impossible |= ~inside
            matrix[at[inside], np.flatnonzero(inside)] += more[outcome]
        rare = _is_rare(pmf)
        is_impossible |= (matrix[rare] > 0).any(axis=0)
        rows.append(csr_matrix(matrix[~rare] / pmf[~rare, None]))
    possible = np.flatnonzero(~is_impossible)
    if not len(possible):
        return None
    # Mass counts as much as a squared distance of three variances.
    value = 3.0 * unit + offsets[possible].astype(np.float64) ** 2
    limits: Any = vstack(rows).tocsc()[:, possible]
    mass = np.zeros(len(offsets))
    mass[possible] = _largest_within(limits, value, 1e-9)
    if not mass.any():
        return None
    shape = np.trim_zeros(mass)
    return np.asarray(shape / shape.sum())


def _complement(pmf: FloatArray, shape: FloatArray) -> FloatArray:
    """As much mass as possible for which shape ∗ complement lies below `pmf`: checked, and scaled
    down if it does not.

    See docs/proofs/interior-levels.md#lemma-4.
    """
    shift_count = len(pmf) - len(shape) + 1
    if shift_count < 1:
        return np.zeros(1)
    shifted = np.zeros((len(pmf), shift_count))
    for k in range(shift_count):
        shifted[k : k + len(shape), k] = shape
    rare = _is_rare(pmf)
    possible = ~(shifted[rare] > 0).any(axis=0)
    if not possible.any():
        return np.zeros(shift_count)
    rows = shifted[~rare][:, possible] / pmf[~rare, None]
    complement = np.zeros(shift_count)
    complement[possible] = _largest_within(rows, np.ones(rows.shape[1]), 1e-12)
    total = shifted @ complement
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = float(np.where(total > 0, pmf / total, np.inf).min(initial=1.0))
    return complement * min(1.0, fraction) * (1 - 1e-12)


def _is_rare(pmf: FloatArray) -> npt.NDArray[np.bool_]:
    """The outcomes of a sum that are so rare that a common shape has none of them."""
    return pmf < 1e-11


def _largest_within(limits: Any, value: FloatArray, smallest: float) -> FloatArray:
    """The x ≥ 0 with `limits` @ x ≤ 1 and the largest `value` @ x, without entries below `smallest`; zero if the
    solver fails."""
    from scipy.optimize import linprog  # noqa: PLC0415 (takes half a second)

    solved = linprog(-value, A_ub=limits, b_ub=np.ones(limits.shape[0]), method="highs")
    if solved.x is None:
        return np.zeros(len(value))
    return np.where(solved.x > smallest, solved.x, 0.0)
