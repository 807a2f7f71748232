"""The worst way to spread the other clients over groups, looked at closely only where it can be.

The bound of a spread is a mean over the counts of shapes that are added (``docs/proofs/certificate.md``). More shapes
never leak more, so a coarse lattice of counts bounds all others from above. From there on, whichever spread is worst by
what is known so far gets the counts that weigh most in its mean computed, until the worst is known exactly: the same
maximum as if every count had been computed.
"""

from collections.abc import Callable, Iterable
from itertools import product
from math import comb, inf, prod

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.cells import Cells, stack
from rqm.privacy.compiled import BLOCK, EMPTY, Blocked, Bools, IntArray
from rqm.privacy.divergence import Sum
from rqm.privacy.means import lower_beyond, spread_means, take_large
from rqm.privacy.measures import Measure, Moments
from rqm.privacy.shapes import Group

LATTICE, COARSER = 10, 5
"""Counts of each of two groups, or of more, that are computed to begin with, besides none."""
ENOUGH = 1e-11
"""The part of a mean that may stay bounded from above only."""

LITTLE = 0.15
"""The part of what is not known exactly in a mean that may wait."""
AT_ONCE = 100
"""Spreads that are looked at together."""
NARROW = 0.2
"""Those within this part of the way from what is attained to the worst are looked at together."""
AXES = 4


class Shapes:
    """Sums of so many shapes of each group, in blocks of ``block``: made when asked for, and kept.

    A count is looked up in two parts, the sums over the first and over the last half of the groups.
    """

    def __init__(self, groups: list[Group], block: int, steps: int, log_tail: float, *, deep: bool = True) -> None:
        self.log_tail, self.cells = log_tail, Cells(log_tail, deep=deep)
        self.powers = [[Sum.nothing(), group.shape.times(block, log_tail)] for group in groups]
        half = (len(groups) + 1) // 2
        self.halves = [_Half(range(len(groups))[some], steps, self.part) for some in (slice(half), slice(half, None))]

    def power(self, group: int, count: int) -> Sum:
        """So many blocks of one shape."""
        powers = self.powers[group]
        while len(powers) <= count:
            powers.append((powers[-1] + powers[1]).trimmed(self.log_tail))
        return powers[count]

    def part(self, groups: range, counts: list[int]) -> Sum:
        """The sum of so many blocks of some groups."""
        group, *more = groups
        total = self.power(group, counts[0])
        for group, count in zip(more, counts[1:], strict=True):
            total = (total + self.power(group, count)).trimmed(self.log_tail) if count else total
        return total

    def divergences(
        self, counts: IntArray, laws: list[Sum], pairs: IntArray, asked: FloatArray, *, each: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """For each count, the largest divergence of a pair (or of ``each``) and the probability that its law lacks.

        Of shape (1 or pairs, orders, counts); ``asked`` holds the orders that matter for each pair, else NaN.
        """
        at = [half.find(counts) for half in self.halves]
        places = np.stack([*at, *(half.sizes[k] for half, k in zip(self.halves, at, strict=True))], axis=1)
        first, second = self.halves
        table = (self.cells.table if each else self.cells.largest)(
            places, (first.laws, second.laws), laws, pairs, asked
        )
        return table, first.lost[at[0]] + second.lost[at[1]] + np.exp(self.log_tail)


class _Half:
    """Sums of shapes of some groups, each up to ``steps``, as rows of arrays that grow: worked out when asked for."""

    def __init__(self, groups: range, steps: int, made: Callable[[range, list[int]], Sum]) -> None:
        self.groups, self.made = groups, made
        self.shape = (max(steps, 1) + 1,) * len(groups)
        self.rows = np.full(prod(self.shape), -1)  # by counts
        self.laws: Blocked = (np.zeros((0, 0, BLOCK)), np.full((0, 0), EMPTY))
        self.sizes, self.lost = np.zeros(0, dtype=np.int64), np.zeros(0)

    def find(self, counts: IntArray) -> IntArray:
        """The rows of some counts of all groups."""
        at = np.ravel_multi_index(tuple(counts[:, self.groups].T), self.shape)
        new = np.unique(at[self.rows[at] < 0])
        if len(new):
            self.rows[new] = np.arange(len(self.sizes), len(self.sizes) + len(new))
            self._add(np.stack(np.unravel_index(new, self.shape), axis=1))
        return np.asarray(self.rows[at])

    def _add(self, counts: IntArray) -> None:
        have, now = len(self.sizes), len(self.sizes) + len(counts)
        sums = [self.made(self.groups, one) for one in counts.tolist()]
        (rows, blocks), (mantissa, exponent) = self.laws[1].shape, stack(sums)
        widest = exponent.shape[1]
        if now > rows or widest > blocks:
            size = (max(rows, 2 * now), max(blocks, widest))
            room = np.zeros((*size, BLOCK)), np.full(size, EMPTY)
            for fresh, old in zip(room, self.laws, strict=True):
                fresh[:rows, :blocks] = old
            self.laws = room
        self.laws[0][have:now, :widest], self.laws[1][have:now, :widest] = mantissa, exponent
        self.sizes = np.append(self.sizes, [len(one.exponent) for one in sums])
        self.lost = np.append(self.lost, np.exp([one.log_lost for one in sums]))


def thinning(steps: int, weight: float, block: int) -> FloatArray:
    """[k, c]: the chance that k blocks of clients add c full blocks of shapes, rounded outward below."""
    if weight == 1.0:
        return np.eye(steps + 1)
    if block == 1:
        chosen = np.arange(steps + 1)
        ways = np.array([[comb(k, c) for c in chosen.tolist()] for k in chosen.tolist()], dtype=np.float64)
        with np.errstate(under="ignore"):
            return np.asarray(ways * weight**chosen * (1 - weight) ** np.maximum(chosen[:, None] - chosen, 0))
    from scipy.special import betainc  # noqa: PLC0415 (takes a while)

    clients, most = block * np.arange(steps + 1)[:, None], block * np.arange(1, steps + 2) - 1
    some = most < clients
    left, right = np.where(some, clients - most, 1), np.where(some, most + 1, 1)
    upto = np.where(some, betainc(left, right, 1 - weight), 1.0)
    return np.asarray(np.diff(upto, axis=1, prepend=0.0))


def steps_of(groups: int, block: int, count: int) -> int:
    """Full blocks that are left of ``count`` clients in so many groups, wherever they are."""
    return count if block == 1 else -(-(count - groups * (block - 1)) // block)


def pair_bounds(
    groups: list[Group],
    steps: int,
    ones: int = 0,
    *,
    block: int,
    laws: list[Sum],
    pairs: IntArray,
    orders: FloatArray,
    alone: FloatArray,
    log_tail: float,
) -> FloatArray:
    """A bound for every pair and order, all counts computed, of two groups, and of ``ones`` with one block each.

    ``alone`` is what one client leaks.
    """
    if steps <= 0 and not ones:
        return np.broadcast_to(alone, (len(pairs), len(orders)))
    many = [steps + 1] * 2 + [2] * ones
    counts = np.array([one for one in np.ndindex(*many) if one[0] + one[1] <= steps])
    asked = np.broadcast_to(orders, (len(pairs), len(orders))).copy()
    table, lost = Shapes(groups, block, steps, log_tail).divergences(counts, laws, pairs, asked, each=True)
    left, right, *rest = (
        thinning(steps if k < 2 else 1, group.weight, block)[slice(None) if k < 2 else 1]
        for k, group in enumerate(groups)
    )
    out = np.empty((len(pairs), len(orders)))
    for k, alpha in enumerate(orders):
        if np.isinf(alpha):
            out[:, k] = table[:, k].max(axis=1)  # every count has a positive probability
            continue
        scale = Moments(float(alpha), float(alone[k]))
        dense = np.zeros((len(pairs), *many))
        dense[:, *counts.T] = scale.of(table[:, k], lost)
        for chances in reversed(rest):
            dense = dense @ chances
        # The spread (i, steps − i), for each i.
        out[:, k] = scale.back(np.einsum("ia,pab,ib->pi", left, dense, right[::-1], optimize=True).max(axis=1))
    return out


class Spread:
    """Bounds of a measure for all spreads of ``steps`` blocks over some groups, with at most ``first`` in the ``far``.

    They are upper bounds throughout, and get smaller by ``refine``. Where there are fewer than four groups, the last
    have nobody. Of the last ``ones`` groups there is one block each, wherever the others are: means are over them, too.
    """

    def __init__(
        self,
        shapes: Shapes,
        groups: list[Group],
        far: int,
        steps: int,
        first: int,
        ones: int = 0,
        *,
        block: int,
        measure: Measure,
        attained: float,
    ) -> None:
        self.steps, self.far, self.first, self.free = steps, far, first, len(groups) - ones
        self.shapes = shapes
        self.measure = measure
        self.rest = np.array(list(product((0, 1), repeat=ones)), dtype=np.int64)
        weights = np.array([group.weight for group in groups[self.free :]])
        self.chances = np.prod(np.where(self.rest == 1, weights, 1 - weights), axis=1)
        self.thin = np.zeros((AXES, steps + 1, steps + 1))
        self.thin[:, 0, 0] = 1.0
        for matrix, group in zip(self.thin, groups[: self.free], strict=False):
            matrix[:] = thinning(steps, group.weight, block)
        self.stride = max(1, steps // (LATTICE if self.free == 2 else COARSER))
        spreads = self._counts(1, full=True)
        self.spreads = spreads[np.argsort(spreads[:, : self.far].sum(axis=1), kind="stable")]
        self.place = self.spreads[:, : self.far].sum(axis=1)
        self.starts = np.flatnonzero(np.diff(self.place, prepend=-1))
        self._begin(attained)

    def _values(self, counts: IntArray, *, each: bool = False) -> FloatArray:
        """What is averaged at some counts of the groups, a mean over whether the last ones add their shapes."""
        every = np.concatenate(
            [
                np.repeat(counts[:, : self.free], len(self.rest), axis=0),
                np.tile(self.rest, (len(counts), 1)),
            ],
            axis=1,
        )
        values = self.measure.values(self.shapes, every, each=each)
        return np.asarray(values.reshape(len(values), len(counts), len(self.rest)) @ self.chances)

    def _counts(self, stride: int, *, full: bool = False) -> IntArray:
        """Counts by ``stride``, with no more shapes than there are blocks, or with as many."""
        axes = [np.arange(0, self.steps + 1, stride)] * (self.free - 1 if full else self.free)
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
        grid = grid[grid.sum(axis=1) <= self.steps]
        if full:
            grid = np.column_stack([grid, self.steps - grid.sum(axis=1)])
        kept = grid[grid[:, : self.far].sum(axis=1) <= self.first]
        return np.pad(kept, [(0, 0), (0, AXES - self.free)])

    def _begin(self, attained: float) -> None:
        """Compute the lattice, and bound everything by it; where there are two groups, find the pairs that matter."""
        lattice = self._counts(self.stride)
        few = self.free == 2
        values = self._values(lattice, each=few)
        many = [self.first + 1] * self.far + [self.steps + 1] * (self.free - self.far) + [1] * (AXES - self.free)
        near = np.ix_(*(np.arange(n) // self.stride for n in many))
        coarse = np.zeros((len(values), *(-(-n // self.stride) for n in many)))
        coarse[:, *(lattice.T // self.stride)] = values
        if few:
            worth = np.zeros(len(values), dtype=np.bool_)
            for k, one in enumerate(coarse):
                means = spread_means(np.ascontiguousarray(one[near]), self.thin, self.spreads)
                worth[k] = self.measure.back(means).max() > attained
            self.measure, coarse = self.measure.some(worth), coarse[worth]
        self.table = np.ascontiguousarray(coarse.max(axis=0, initial=0.0)[near])
        self.most = float(self.table.max())
        self.open = self.table.copy()  # but nothing where the table is exact
        self.open[tuple(lattice.T)] = 0.0
        self.bounds = spread_means(self.table, self.thin, self.spreads)
        self.least = np.zeros(len(self.spreads))  # what they will not fall below

    def by_place(self) -> FloatArray:
        """The largest bound for each number of clients in the far groups."""
        return self.measure.back(np.maximum.reduceat(self.bounds, self.starts))

    def least_by_place(self) -> FloatArray:
        """What these will not fall below."""
        return self.measure.back(np.maximum.reduceat(self.least, self.starts))

    def refine(self, places: Bools, above: float) -> bool:
        """Look closer at spreads whose bounds lie above, with so many clients far; False if they are known exactly."""
        if not self.measure.rows:
            return False
        limit = self.measure.of(above)
        active = np.flatnonzero(places[self.place] & (self.bounds >= limit))
        active = active[np.argsort(-self.bounds[active])[:AT_ONCE]]
        spreads, before = self.spreads[active], self.bounds[active]
        adds = spread_means(self.open, self.thin, spreads)
        # What adds little to what is open waits: perhaps it need not be known.
        least, counts = np.where(adds > ENOUGH * before, LITTLE * adds, inf), np.empty((0, AXES), dtype=np.int64)
        while not len(counts) and least.min(initial=inf) < inf:  # many may be open that add little each
            counts = take_large(self.open, self.thin, spreads, least, self.most)
            least = least / 8
        if len(counts):
            values = self._values(counts)[0]
            lower_beyond(self.table, self.open, counts, values, self.stride)
        now = spread_means(self.table, self.thin, spreads)
        self.bounds[active] = np.minimum(before, now)
        self.least[active] = now - spread_means(self.open, self.thin, spreads)
        return bool(len(counts) or (now < before * (1 - 1e-12)).any())


def worst_spread(ways: Iterable[Callable[[], Spread]], attained: float, limit: float = inf) -> float:
    """The largest bound over all spreads, for each far count the smaller of those that several ``ways`` give.

    Infinite as soon as it is seen not to be below ``limit``.
    """
    made = [way() for way in ways]
    while True:
        bounds = np.array([one.by_place() for one in made])
        best = bounds.min(axis=0)
        top = float(best.max())
        if top <= attained:
            return attained
        if float(np.min([one.least_by_place() for one in made], axis=0).max()) >= limit:
            return inf
        above = max(attained, top - NARROW * (top - attained))
        deciding = (bounds == best) & (best >= above)
        closer = [one.refine(places, above) for one, places in zip(made, deciding, strict=True)]
        if any(closer):
            continue
        closer = [one.refine(best == top, top) for one in made]
        if not any(closer):
            return top
