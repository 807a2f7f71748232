"""Upper bounds on the Rényi divergence of a sum that hold whatever the other clients send.

The argument is written out in ``docs/proofs/certificate.md``; in short: the knots are put into a few groups of
neighbours. Every law of a group holds the group's *common shape*, shifted, with probability at least w. Each other
client then adds that shape with probability w, independently of its input, and anything at all otherwise. Telling
the adversary which clients added their shape, and dropping everything else, only helps the adversary; what is left
depends on nothing but how many shapes of each group were added. All such counts are tried.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product
from math import comb, inf, sqrt

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.threads import usable_cores
from rqm.privacy.blocks import block_of, outermost, thirds
from rqm.privacy.cells import stack
from rqm.privacy.compiled import Bools, IntArray, enumerate_counts
from rqm.privacy.counts import Shapes, Spread, pair_bounds, steps_of, worst_spread
from rqm.privacy.divergence import UNIT_ROUNDOFF, Sum, all_pairs, pair_divergences, unlike_pairs
from rqm.privacy.measures import Measure, Renyi
from rqm.privacy.shapes import Group, group_of, partition
from rqm.privacy.splits import Splits
from rqm.privacy.tiers import Tier, tiers

WIDEST = 2**16
"""Outcomes of a sum that a certificate may look at; where an order needs more of the tails, fewer clients must do."""
MOST_TERMS, SPREADS = 2e10, {4: 10_000, 3: 10_000, 2: 100}
"""Terms that are worth a first look at all pairs, or a closer one at those that are left; counts of such, by groups.

They take a minute or two. Where there are more, the bound is that of fewer clients, or of one.
"""
SHORT = 4096
"""Outcomes up to which a sum between two ends is not trimmed."""
NEGLIGIBLE = 36.0
"""−log of the probability that may be left out, where it does not count for more than itself."""


def needed_tail(alpha: float, alone: float) -> float:
    """The log-probability that may be left out of a sum; it counts as much as if nobody else were there.

    Where one client leaks ``alone`` at this order, that is exp((α−1) D_α) each.
    """
    if np.isinf(alpha) or np.isinf(alone):
        return -inf
    return -(alpha - 1) * alone - NEGLIGIBLE


def charged(value: FloatArray, log_lost: float, orders: FloatArray, alone: FloatArray) -> FloatArray:
    """The bound on D_α when so much probability was left out, each of it as if nobody else were there.

    That adds x to exp((α−1) D_α), and D_α rises by less than x exp(−(α−1) D_α) / (α−1).
    """
    rise = orders - 1
    with np.errstate(divide="ignore", over="ignore"):
        more = np.where(rise > 0, np.exp(rise * (alone - value) + log_lost) / rise, np.exp(log_lost) * alone)
    return np.asarray(value + more)


def certify(
    own: FloatArray,
    others: FloatArray,
    count: int,
    alphas: Sequence[float],
    attained: Sequence[float],
    worst: int | None = None,
) -> FloatArray:
    """Bound D_α of one client's law plus ``count`` others', over all pairs of ``own`` laws and all others' laws.

    ``own`` and ``others`` hold one log-law a row. ``attained`` are values known to be reached, one an order: pairs
    that provably stay below them are not looked at closely. ``worst`` is a row of the others that may be worst.
    """
    orders = np.asarray(alphas, dtype=np.float64)
    laws = [Sum.of(row) for row in own]
    alone = pair_divergences(Sum.nothing(), laws, unlike_pairs(own), orders).max(axis=0)
    best = outward(alone, orders, own, others, 0)
    pairs = all_pairs(len(own))
    for tier in reversed(tiers(len(others), others.shape[1], count) if count else []):
        clients = min(count, tier.last)
        asked = Asked(tier, own, laws, others, clients, pairs)
        open_to = np.array([asked.within_reach(*one) for one in zip(orders, alone, strict=True)])
        open_to &= best > tier.past * np.asarray(attained)  # there is nothing below
        if clients < count and open_to.any():
            # Where fewer clients already attain more than is certified for all of them, they have nothing to add.
            fewer = _all_equal(laws, others if worst is None else others[[worst]], clients, pairs, orders, alone)
            open_to &= best > fewer
        if open_to.any():
            bound = asked.bound(orders[open_to], alone[open_to], np.asarray(attained)[open_to], best[open_to])
            bound = outward(bound, orders[open_to], own, others, clients)
            best[open_to] = np.minimum(best[open_to], bound)
    return best


def _all_equal(
    laws: list[Sum], others: FloatArray, count: int, pairs: IntArray, orders: FloatArray, alone: FloatArray
) -> FloatArray:
    """The largest divergence among those where all others send the same."""
    tail = min(map(needed_tail, orders, alone))
    tried = [pair_divergences(Sum.of(row).times(count, tail), laws, pairs, orders).max(axis=0) for row in others]
    return np.asarray(np.max(tried, axis=0))


def outward(value: FloatArray, orders: FloatArray, own: FloatArray, others: FloatArray, count: int) -> FloatArray:
    """Add more than floating-point rounding can have taken away with up to ``count`` others; round up to 40 bits.

    Every probability is a sum of products of positive floats: its relative error is at most the number of operations
    behind it, where a sum of 2n others comes from two of n. Those of the laws themselves grow with their width and with
    the logarithms they come from. An error of r in all probabilities moves D_α by at most r·(2α−1)/(α−1), and near
    α = 1, where the code divides by the mass, by a multiple of the largest log-ratio.
    """
    finite = np.concatenate([own[np.isfinite(own)], others[np.isfinite(others)]])
    depth = float(abs(finite).max(initial=1.0))
    possible = np.isfinite(own)
    ratios = own.max(axis=0, initial=-inf, where=possible) - own.min(axis=0, initial=inf, where=possible)
    widest = float(ratios.max(initial=0.0))  # of each outcome, over all pairs of laws for which it is possible
    doublings = int(count).bit_length()  # in steps, so that it hardly ever rises with the count
    roundings = 8 * own.shape[1] + max(2, doublings / 2) * 2**doublings * (others.shape[1] + 4) + 8 * depth + 64
    capped = np.clip(orders, 1 + 1e-9, 1e6)
    gain = np.minimum((2 * capped - 1) / (capped - 1), 4 + 4 * widest) + 4 * np.where(np.isfinite(value), value, 0.0)
    safe = value + UNIT_ROUNDOFF * roundings * gain
    mantissa, exponent = np.frexp(safe)
    return np.asarray(np.where(np.isfinite(value), np.ldexp(np.ceil(mantissa * 2.0**40), exponent - 40), value))


# -- one tier -------------------------------------------------------------------------------------


Way = tuple[list[Group], int, int, int, int]
"""Groups, how many of them are far, blocks in all and of those far, and how many groups have one block."""


@dataclass(frozen=True)
class Asked:
    """What a tier certifies: the divergence of every pair of ``laws`` beside ``count`` of the ``others``."""

    tier: Tier
    own: FloatArray
    laws: list[Sum]
    others: FloatArray
    count: int
    pairs: IntArray

    @property
    def exact(self) -> bool:
        """Whether every knot is a group of its own."""
        return self.tier.groups == len(self.others)

    def within_reach(self, alpha: float, alone: float) -> bool:
        """Whether the tails that an order needs fit, for the most clients of the tier, and all pairs can be tried."""
        if not self.exact and self._too_many:
            return False
        outcomes = self.tier.last * (self.others.shape[1] - 1)
        spread = sqrt(self.tier.last) * self._deviation
        needed = -needed_tail(alpha, alone)
        return outcomes <= WIDEST or (needed < inf and 2 * sqrt(2 * needed) * spread <= WIDEST)

    @property
    def _looks(self) -> bool:
        """Whether pairs are sorted out by a first look."""
        return self.exact or self.tier.groups > 2

    @property
    def _most(self) -> int:
        """The clients by whom work is judged: of groups the most of the tier, so that more never raise a bound."""
        return self.count if self.exact else self.tier.last

    @cached_property
    def _deviation(self) -> float:
        """The largest standard deviation of what one of the others sends."""
        law = np.exp(self.others)
        z = np.arange(law.shape[1])
        return sqrt(float((law @ z**2 - (law @ z) ** 2).max()))

    @property
    def _too_many(self) -> bool:
        """Whether already a first look at all pairs is too much."""
        first = comb(min(self._most, 40) + 2, 2) * (10 if self.exact else 1) if self._looks else SPREADS[2]
        return self._work(len(self.pairs), first) > MOST_TERMS

    def _work(self, pairs: int, counts: int) -> float:
        """Terms to be added up for so many pairs and counts of the others."""
        long = min(WIDEST, 6 * self._deviation * sqrt(self._most))
        return float(pairs * counts * max(self.others.shape[1], long))

    def bound(self, orders: FloatArray, alone: FloatArray, attained: FloatArray, limits: FloatArray) -> FloatArray:
        """The bounds, but no less than what is attained; infinite where they are not below what is known already."""
        if self.exact and len(self.others) == 2:
            return np.maximum(attained, _two_ends(self, orders, alone, attained))
        wanted = None if self._too_many else self._wanted(orders, alone, attained)
        counts = comb(self.count + len(self.others) - 1, self.count) if self.exact else SPREADS[self.tier.groups]
        if wanted is None or self._work(int(wanted.any(axis=1).sum()), counts) > MOST_TERMS:
            if self.exact and self.count > 1:
                return replace(self, count=self.count - 1).bound(orders, alone, attained, limits)
            return np.full(len(orders), inf)
        if self.exact:
            return np.maximum(attained, _all_counts(self, orders, alone, attained, wanted))
        with ThreadPoolExecutor(max_workers=usable_cores()) as pool:  # no order knows of another
            return np.maximum(attained, list(pool.map(self._spread, orders, alone, attained, limits, wanted.T)))

    def _wanted(self, orders: FloatArray, alone: FloatArray, attained: FloatArray) -> Bools:
        """Which pairs may leak more than is attained at each order, by a quick look with a group a half."""
        if not self._looks:
            return np.ones((len(self.pairs), len(orders)), dtype=np.bool_)
        count, last, block = self.count, self.tier.last, self.tier.block
        middle = len(self.others) // 2
        halves_of = [self.others[:middle], self.others[middle:]]
        halves = [group_of(half) for half in halves_of]
        tail = min(map(needed_tail, orders, alone))
        known = partial(pair_bounds, laws=self.laws, orders=orders, alone=alone, log_tail=tail)
        by_themselves = pair_divergences(Sum.nothing(), self.laws, self.pairs, orders)

        def look(count: int, reached: FloatArray) -> Bools:
            """Which pairs may leak more than is reached, beside nobody, in few counts, in many: most are out soon."""
            left: Bools = ~(by_themselves <= reached)  # what is no number rules nothing out
            for counts in (8, 40):
                some = left.any(axis=1)
                if some.any():
                    size = max(block, 1 + count // counts)
                    seen = known(halves, steps_of(2, size, count), block=size, pairs=self.pairs[some])
                    left[some] &= ~(seen <= reached)
            some = left.any(axis=1)
            if some.any() and self.tier.size > 1:
                several = max(block, 1 + count // (40 * self.tier.size))
                steps = steps_of(2, several * self.tier.size, count)
                closer = partial(known, [block_of(half, self.tier.size) for half in halves_of])
                left[some] &= ~(closer(steps, block=several, pairs=self.pairs[some]) <= reached)
            return left

        wanted = look(count, attained)
        if count < last and not self.exact:
            # Those that matter for more clients stay: the bound must not depend on who else is looked at.
            wanted |= look(last, _all_equal(self.laws, self.others, last, self.pairs, orders, alone))
        return wanted

    def _spread(self, alpha: float, alone: float, attained: float, limit: float, wanted: Bools) -> float:
        """The bound of one order by groups."""
        few = steps_of(self.tier.groups, self.tier.block * self.tier.size, self.count) <= 0
        if np.isinf(alpha) or np.isinf(alone) or few:
            return alone  # every count has a positive probability, and none at all leaks most
        if not wanted.any():
            return attained
        measure = Renyi(self.laws, self.pairs[wanted], alpha, alone, needed_tail(alpha, alone))
        return self.worst(measure, attained, limit)

    def worst(self, measure: Measure, attained: float, limit: float = inf, known: list[Shapes] | None = None) -> float:
        """The largest bound of a measure over all spreads of the others, but no less than what is attained.

        Infinite where it is seen early not to be below ``limit``. Where one measure after the other is asked for, sums
        of shapes stay ``known``.
        """
        if not known:
            known = [] if known is None else known
            known += [
                Shapes(groups, self.tier.block, steps, measure.log_tail, deep=measure.deep)
                for ways in self.ways
                for groups, _, steps, _, _ in ways
            ]
        worst, kept, made = attained, iter(known), partial(Spread, block=self.tier.block, measure=measure)
        for ways in self.ways:
            worst = worst_spread([partial(made, next(kept), *way, attained=worst) for way in ways], worst, limit)
        return worst

    def each_way(self) -> list[Way]:
        """Those of blocks in two halves, whichever of them is looked at first."""
        middle = len(self.others) // 2
        return list(self._blocks([self.others[:middle], self.others[middle:]], 0))

    @cached_property
    def ways(self) -> list[list[Way]]:
        """For either half being far, and whoever is left of blocks: one way or two, of which both hold."""
        middle = len(self.others) // 2
        halves = [self.others[:middle], self.others[middle:]]
        mirrored = np.array_equal(self.others[::-1, ::-1], self.others)
        groups, steps = self.tier.groups, steps_of(self.tier.groups, self.tier.block * self.tier.size, self.count)
        if groups == 2 and self.tier.size > 1:
            # The one in the middle, if there is one, is of the second half: then they are no mirror images.
            return [[one] for one in self._blocks(halves, 0, mirrored=mirrored and len(self.others) % 2 == 0)]
        if groups <= 2:
            return [[(partition(self.others, groups), 0, steps, steps, 0)]]
        if self.tier.ends:  # of mirror images, those with fewer clients at the lower end
            return [[one] for one in self._blocks(thirds(self.others, self.tier.size), int(mirrored))]
        # Most clients sit in one half: cut that one finely and the far one less.
        found: list[list[Way]] = []
        for near, far in [(1, 0), (0, 1)][: 1 if mirrored else 2]:
            if self.tier.size > 1:
                found += [[one] for one in self._blocks([halves[far], *outermost(halves[near], last=near == 1)], 1)]
                continue
            finest = [group_of(halves[far]), *partition(halves[near], groups - 1)]
            found.append([(finest, 1, steps, steps // 2, 0)])
            if groups == 4:
                found[-1].append(([*partition(halves[far], 2), *partition(halves[near], 2)], 2, steps, steps // 2, 0))
        return found

    def _blocks(self, parts: list[FloatArray], far: int, *, mirrored: bool = False) -> Iterator[Way]:
        """Blocks of several clients of a part of the knots; by how many of each part are left: these make smaller ones.

        Of the last part so many are left as the others leave.
        """
        size, found = self.tier.size, set[tuple[int, ...]]()
        blocks = [block_of(part, size) for part in parts]
        if not self.tier.rest:
            steps = steps_of(len(parts), self.tier.block * size, self.count)
            yield blocks, far, steps, self.count // 2 // (self.tier.block * size) if far else steps, 0
            return
        for some in product(range(size), repeat=len(parts) - 1):
            left = (*some, (self.count - sum(some)) % size)
            steps, first = (self.count - sum(left)) // size, (self.count // 2 - left[0]) // size
            if steps < 0 or (far and first < 0) or (mirrored and left[::-1] in found):
                continue
            found.add(left)
            rest = [block_of(part, one) for part, one in zip(parts, left, strict=True) if one]
            yield [*blocks, *rest], far, steps, first if far else steps, len(rest)


def _two_ends(asked: Asked, orders: FloatArray, alone: FloatArray, attained: FloatArray) -> FloatArray:
    """The largest divergence over all splits of the others between two knots, in blocks."""
    low, high = (Sum.of(row) for row in asked.others)
    # Short sums stay whole: they are no work.
    tail = min(map(needed_tail, orders, alone)) if asked.count * asked.others.shape[1] > SHORT else -inf
    splits = Splits(low, high, asked.count, asked.tier.block, tail)

    def value(base: Sum) -> FloatArray:
        found = pair_divergences(base, asked.laws, asked.pairs, orders).max(axis=0)
        return found if base.log_lost == -inf else charged(found, base.log_lost, orders, alone)

    def stretch(ends: tuple[int, int]) -> FloatArray:
        best = attained.copy()
        for _, base in splits.laws(*ends, lambda common: bool((value(common) <= best).all())):
            np.maximum(best, value(base), out=best)
        return best

    laws = [np.exp(asked.others), np.exp(asked.own)]
    mirrored = all(np.allclose(law[::-1, ::-1], law, rtol=1e-12, atol=0) for law in laws)
    last = asked.count // 2 // asked.tier.block + 1 if mirrored else len(splits)
    cuts = sorted({round(k) for k in np.linspace(0, last, 4 * usable_cores() + 1)})
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        return np.asarray(np.max(list(pool.map(stretch, pairwise(cuts))), axis=0))


def _all_counts(asked: Asked, orders: FloatArray, alone: FloatArray, attained: FloatArray, wanted: Bools) -> FloatArray:
    """The largest divergence over all counts of others at the knots, for the pairs that are ``wanted``.

    Pairs that leak no more beside fewer others than all others at one knot leave are not looked at any further.
    """
    some = wanted.any(axis=1)
    if not some.any():
        return attained
    reached = np.maximum(attained, _all_equal(asked.laws, asked.others, asked.count, asked.pairs[some], orders, alone))
    for fewer in (asked.count // 4, asked.count // 2):
        wanted &= _each_pair(asked, fewer, orders, wanted) > reached
    return np.asarray(np.maximum(reached, _each_pair(asked, asked.count, orders, wanted).max(axis=0)))


def _each_pair(asked: Asked, steps: int, orders: FloatArray, wanted: Bools) -> FloatArray:
    """The largest divergence of each wanted pair over all counts of ``steps`` others at the knots; −∞ of all others."""
    values, some = np.full(wanted.shape, -inf), wanted.any(axis=1)
    if not some.any():
        return values
    pairs = asked.pairs[some]
    units = [Sum.of(row) for row in asked.others]
    rest = [Sum.nothing()]  # the last count is what the others leave
    for _ in range(steps):
        rest.append(rest[-1] + units[-1])
    used = sorted({int(i) for i in pairs.ravel()})
    local, orders_asked = np.searchsorted(used, pairs), np.where(wanted[some], orders, np.nan)
    shapes, own, powers = stack(units[:-1]), stack([asked.laws[i] for i in used]), stack(rest)
    size = (shapes[0].shape[1] + 1) * steps + own[0].shape[1] + powers[0].shape[1] + 4
    table = np.full((steps + 1, len(pairs), len(orders)), -inf)

    def fill(c0: int) -> None:
        start = units[0].times(c0)
        laws = ((start.mantissa, start.exponent), shapes, own, powers)
        enumerate_counts(c0, steps, laws, (local, orders_asked), size, table)

    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        list(pool.map(fill, range(steps + 1)))
    values[some] = table.max(axis=0)
    return values
