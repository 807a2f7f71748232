"""Upper bounds on the Rényi divergence of a sum that hold whatever the other clients send.

The argument is written out in ``docs/proofs/certificate.md``; in short: the knots are put into a few groups of
neighbours. Every law of a group holds the group's *common shape*, shifted, with probability at least w. Each other
client then adds that shape with probability w, independently of its input, and anything at all otherwise. Telling
the adversary which clients added their shape, and dropping everything else, only helps the adversary; what is left
depends on nothing but how many shapes of each group were added. All such counts are tried.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import comb, inf

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from rqm._util.checks import FloatArray
from rqm._util.threads import usable_cores
from rqm.privacy.compiled import BLOCK, EMPTY, IntArray, enumerate_counts
from rqm.privacy.divergence import UNIT_ROUNDOFF, Sum, all_pairs, pair_divergences
from rqm.privacy.shapes import Group, group_of, partition

BUDGET = 130_000
"""Counts of shapes that one certificate may try; more groups are tighter and need more."""


@dataclass(frozen=True)
class Tier:
    """One way to certify: ``groups`` groups, others counted in blocks of ``block``, for up to ``last`` others."""

    groups: int
    block: int
    last: int


def tiers(knots: int, width: int, others: int) -> list[Tier]:
    """The ways to certify ``others`` clients whose laws have ``width`` outcomes, from exact to coarse.

    The bound of a tier never rises with more clients, and every tier but the first starts where the one before
    ends, so the smallest bound over the tiers never rises either.
    """
    found: list[Tier] = []
    ways = [(knots, 1), *((groups, 1) for groups in (4, 3, 2) if groups < knots)]
    block = 1
    while not found or found[-1].last < others:
        groups, block = ways.pop(0) if ways else (2, 2 * block)
        steps = 1
        while _affordable(groups, knots, (steps + 1) * block * width, steps + 1):
            steps += 1
        last = block * steps + groups * (block - 1)
        if not found or last > found[-1].last:
            found.append(Tier(groups, block, last))
    return found


def _affordable(groups: int, knots: int, outcomes: int, steps: int) -> bool:
    if groups == knots:  # exact: one long convolution a count
        counts = comb(steps + groups - 1, groups - 1)
        return counts <= BUDGET and counts * outcomes**2 <= 2e11
    return comb(steps + groups, groups) <= (BUDGET if groups > 2 else BUDGET // 16)


def certify(
    own: FloatArray,
    others: FloatArray,
    count: int,
    alphas: Sequence[float],
    attained: Sequence[float],
) -> FloatArray:
    """Bound D_α of one client's law plus ``count`` others', over all pairs of ``own`` laws and all others' laws.

    ``own`` and ``others`` hold one log-law a row. ``attained`` are values known to be reached, one an order: pairs
    that provably stay below them are not looked at closely.
    """
    orders = np.asarray(alphas, dtype=np.float64)
    laws = [Sum.of(row) for row in own]
    pairs = all_pairs(len(own))
    best = outward(pair_divergences(Sum.nothing(), laws, pairs, orders).max(axis=0), orders, own, others, 0)
    for tier in reversed(tiers(len(others), others.shape[1], count) if count else []):
        clients = min(count, tier.last)
        # Where fewer clients already attain more than is certified for all of them, they have nothing to add.
        open_to = best > (_all_equal(laws, others, clients, pairs, orders) if clients < count else -inf)
        if open_to.any():
            known = np.asarray(attained)[open_to]
            bound = _run_tier(tier, laws, others, clients, pairs, orders[open_to], known)
            bound = outward(bound, orders[open_to], own, others, clients)
            best[open_to] = np.minimum(best[open_to], bound)
    return best


def _all_equal(laws: list[Sum], others: FloatArray, count: int, pairs: IntArray, orders: FloatArray) -> FloatArray:
    """The largest divergence among those where all others send the same."""
    tried = [pair_divergences(Sum.of(row).times(count), laws, pairs, orders).max(axis=0) for row in others]
    return np.asarray(np.max(tried, axis=0))


def outward(value: FloatArray, orders: FloatArray, own: FloatArray, others: FloatArray, count: int) -> FloatArray:
    """Add more than floating-point rounding can have taken away with up to ``count`` others; round up to 40 bits.

    Every probability is a sum of products of positive floats: its relative error is at most the number of operations
    behind it. Those of the laws themselves grow with their width and with the logarithms they come from. An error of
    r in all probabilities moves D_α by at most r·(2α−1)/(α−1), and near α = 1, where the code divides by the mass, by
    a multiple of the largest log-ratio.
    """
    finite = np.concatenate([own[np.isfinite(own)], others[np.isfinite(others)]])
    depth = float(abs(finite).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        ratios = own[:, None, :] - own[None, :, :]
    widest = float(abs(ratios[np.isfinite(ratios)]).max(initial=0.0))
    sums = 2 ** int(count).bit_length()  # in steps, so that it hardly ever rises with the count
    roundings = 8 * own.shape[1] + 2 * sums * (others.shape[1] + 4) + 8 * depth + 64
    capped = np.clip(orders, 1 + 1e-9, 1e6)
    gain = np.minimum((2 * capped - 1) / (capped - 1), 4 + 4 * widest) + 4 * np.where(np.isfinite(value), value, 0.0)
    safe = value + UNIT_ROUNDOFF * roundings * gain
    mantissa, exponent = np.frexp(safe)
    return np.asarray(np.where(np.isfinite(value), np.ldexp(np.ceil(mantissa * 2.0**40), exponent - 40), value))


# -- trying all counts ----------------------------------------------------------------------------


def _run_tier(
    tier: Tier,
    laws: list[Sum],
    others: FloatArray,
    count: int,
    everyone: IntArray,
    orders: FloatArray,
    attained: FloatArray,
) -> FloatArray:
    knots = len(others)
    middle = knots // 2
    halves = [others[:middle], others[middle:]]
    whole = [group_of(half) for half in halves]
    # A quick look with one group a half, in blocks, finds the pairs that matter ...
    quick = _all_counts(whole, 0, max(tier.block, 1 + count // 40), count, laws, everyone, orders).max(axis=2)
    wanted = quick > attained
    if (
        count < tier.last and tier.groups < knots
    ):  # those that matter for more clients stay: the bound must not depend on who else is looked at
        most = _all_counts(whole, 0, max(tier.block, 1 + tier.last // 40), tier.last, laws, everyone, orders)
        wanted |= most.max(axis=2) > _all_equal(laws, others, tier.last, everyone, orders)
    pairs, wanted = everyone[wanted.any(axis=1)], wanted[wanted.any(axis=1)]
    # ... and they are looked at closely.
    if tier.groups <= 2 or tier.groups == knots:
        groups = partition(others, tier.groups)
        close = _all_counts(groups, 0, tier.block, count, laws, pairs, orders, wanted)[0]
        return np.asarray(np.maximum(attained, close.max(axis=1)))
    # Most clients sit in one half: cut that one finely and the far one less. Two ways to do so hold; the second is
    # for the orders where the first is not already attained.
    bound = attained
    mirrored = np.array_equal(others[::-1, ::-1], others)
    for near, far in [(1, 0), (0, 1)][: 1 if mirrored else 2]:
        cut = [whole[far], *partition(halves[near], tier.groups - 1)]
        close = _all_counts(cut, 1, 1, count, laws, pairs, orders, wanted)[0]
        loose = close.max(axis=1) > attained * (1 + 1e-9)
        if tier.groups == 4 and loose.any():
            cut = [*partition(halves[far], 2), *partition(halves[near], 2)]
            again = _all_counts(cut, 2, 1, count, laws, pairs, orders[loose], wanted[:, loose])[0]
            close[loose] = np.minimum(close[loose], again)
        bound = np.maximum(bound, close.max(axis=1))
    return np.asarray(bound)


def _all_counts(
    groups: list[Group],
    far: int,
    block: int,
    count: int,
    laws: list[Sum],
    pairs: IntArray,
    orders: FloatArray,
    wanted: npt.NDArray[np.bool_] | None = None,
) -> FloatArray:
    """For each order, the largest bound over the pairs and all ways to spread ``count`` clients over the groups.

    Shape (1, orders, far counts): if ``far`` > 0, the first ``far`` groups together hold at most half of the
    clients, and the last axis tells how many they hold. ``wanted`` tells which pairs matter at which order; if it
    is not given, every pair has its own row in the first axis. Clients are counted in blocks; what does not fill a
    block is dropped.
    """
    asked = np.where(np.ones((len(pairs), 1), dtype=np.bool_) if wanted is None else wanted, orders, np.nan)
    steps = count if block == 1 else -(-(count - len(groups) * (block - 1)) // block)
    if steps <= 0 or not len(pairs):
        alone = pair_divergences(Sum.nothing(), laws, pairs, orders)
        return (alone if wanted is None else alone.max(axis=0, keepdims=True, initial=-inf))[:, :, None]
    exact = all(group.weight == 1.0 for group in groups) and not far
    first = steps // 2 if far else steps
    shape = (first + 1,) + (steps + 1,) * (len(groups) - 1)
    units = [group.shape.times(block) for group in groups]
    # One table axis a group. An exact search needs no table, only the largest value at each first count, and its
    # last count is what the others leave: `rest` holds the powers of the last shape.
    rest = [Sum.nothing()]
    if exact:
        for _ in range(steps):
            rest.append(rest[-1] + units[-1])
        units = units[:-1]
    used = sorted({int(i) for i in pairs.ravel()})
    local = np.searchsorted(used, pairs)
    shapes, own, powers = _stack(units), _stack([laws[i] for i in used]), _stack(rest)
    size = (shapes[0].shape[1] + 1) * steps + own[0].shape[1] + powers[0].shape[1] + 4
    cells = first + 1 if exact else int(np.prod(shape))
    table = np.full((len(pairs) if wanted is None else 1, len(orders), cells), -inf)

    def fill(c0: int) -> None:
        start = units[0].times(c0)
        laws = ((start.mantissa, start.exponent), shapes, own, powers)
        enumerate_counts(c0, steps, laws, (local, asked), size, exact, table)

    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        list(pool.map(fill, range(first + 1)))
    if exact:
        return table
    return _expect(table, shape, [group.weight for group in groups], far, steps, block, orders)


def _stack(sums: list[Sum]) -> tuple[FloatArray, IntArray]:
    """Pad some laws to the same number of blocks."""
    blocks = max(len(s.exponent) for s in sums)
    mantissa = np.zeros((len(sums), blocks, BLOCK))
    exponent = np.full((len(sums), blocks), EMPTY, dtype=np.int64)
    for k, s in enumerate(sums):
        mantissa[k, : len(s.exponent)] = s.mantissa
        exponent[k, : len(s.exponent)] = s.exponent
    return mantissa, exponent


def _expect(
    table: FloatArray,
    shape: tuple[int, ...],
    weights: list[float],
    far: int,
    steps: int,
    block: int,
    orders: FloatArray,
) -> FloatArray:
    """Average over which clients added their shape; for each far count, the worst spread over the groups."""
    grid = np.indices(shape).reshape(len(shape), -1)
    total = grid.sum(axis=0)
    thin = [_thinning(length - 1, weight, block) for length, weight in zip(shape, weights, strict=True)]
    away = grid[:far].sum(axis=0)
    full = (total == steps) & (away < shape[0] if far else True)
    places = [full & (away == k) for k in range(shape[0])] if far else [full]
    out = np.empty((*table.shape[:2], len(places)))
    for k, row in enumerate(table):
        for a, alpha in enumerate(orders):
            top = row[a].max()
            if np.isinf(alpha) or np.isinf(top):
                out[k, a] = top  # every count has a positive probability
                continue
            with np.errstate(under="ignore"):
                moments = row[a] if alpha == 1 else np.exp((alpha - 1) * (row[a] - top))
            moments = np.where(total <= steps, moments, 0.0).reshape(shape)
            for g, matrix in enumerate(thin):
                moments = np.moveaxis(np.tensordot(matrix, moments, axes=(1, g)), 0, g)
            worst = np.array([moments.reshape(-1)[place].max() for place in places]) * (1 + 1e-12) + 1e-270
            out[k, a] = worst if alpha == 1 else top + np.log(worst) / (alpha - 1)
    return out


def _thinning(steps: int, weight: float, block: int) -> FloatArray:
    """[k, c]: the chance that k blocks of clients add c full blocks of shapes, rounded outward below."""
    if weight == 1.0:
        return np.eye(steps + 1)
    blocks = np.arange(steps + 1)
    upto = np.asarray(binom.cdf(block * blocks[None, :] + block - 1, block * blocks[:, None], weight))
    return np.asarray(np.diff(upto, axis=1, prepend=0.0))
