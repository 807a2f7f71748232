"""The worst inputs of everybody that a search finds: what is attained, which is no guarantee."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.certificate import needed_tail
from rqm.privacy.compiled import IntArray
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences

MANY = 256
"""Others from which on a search tries few splits, and moves many of them at once."""


@dataclass(frozen=True)
class Found:
    """The best value of one order, with the pair and the number of other clients at each knot."""

    value: float
    pair: tuple[int, int]
    counts: tuple[int, ...]


def tail_of(own: list[Sum], orders: FloatArray) -> float:
    """What may be left out of the others' sum at these orders: no more than rounding takes away."""
    alone = pair_divergences(Sum.nothing(), own, all_pairs(len(own)), orders).max(axis=0)
    return min(map(needed_tail, orders.tolist(), alone.tolist()))


def best_pairs(
    base: Sum, laws: list[Sum], pairs: IntArray, orders: FloatArray
) -> tuple[FloatArray, list[tuple[int, int]]]:
    """For each order, the largest divergence over the pairs and the pair that attains it."""
    values = pair_divergences(base, laws, pairs, orders)
    best = values.max(axis=0)
    # Mirror images tie but for rounding: name the last, the one with the larger x.
    at = [int(np.flatnonzero(column >= top * (1 - 1e-12))[-1]) for column, top in zip(values.T, best, strict=True)]
    return best, [(int(pairs[k][0]), int(pairs[k][1])) for k in at]


class _Search:
    """The best that was found so far for every order, and what it takes to try other counts at the knots."""

    def __init__(self, own: FloatArray, orders: FloatArray) -> None:
        self.laws, self.orders = [Sum.of(row) for row in own], orders
        self.tail = tail_of(self.laws, orders)
        self.best = [Found(-1.0, (0, 1), (0,) * len(own))] * len(orders)
        self._powers: dict[tuple[int, int], Sum] = {}

    def consider(self, counts: tuple[int, ...], pairs: IntArray) -> bool:
        """Try so many other clients at each knot; whether some order gets better."""
        base = Sum.nothing()
        for v, times in enumerate(counts):
            base = (base + self._power(v, times)).trimmed(self.tail) if times else base
        value, pair = best_pairs(base, self.laws, pairs, self.orders)
        better = [a for a in range(len(self.orders)) if value[a] > self.best[a].value * (1 + 1e-12)]
        for a in better:
            self.best[a] = Found(float(value[a]), pair[a], counts)
        return bool(better)

    def only(self, at: dict[int, int], pairs: IntArray) -> bool:
        """Try some knots, nobody at the others."""
        return self.consider(tuple(at.get(v, 0) for v in range(len(self.laws))), pairs)

    def _power(self, v: int, times: int) -> Sum:
        if (v, times) not in self._powers:
            self._powers[v, times] = self.laws[v].times(times, self.tail)
        return self._powers[v, times]


def search(own: FloatArray, count: int, orders: FloatArray) -> list[Found]:
    """Look for the worst inputs of ``count`` other clients: all equal, two values, then some move at a time.

    Of many clients a good part moves at first, then fewer and fewer.
    """
    found, knots = _Search(own, orders), len(own)
    pairs = all_pairs(knots)
    ranked = []
    for v in reversed(range(knots)):
        found.only({v: count}, pairs)
        ranked.append((max(one.value for one in found.best), v))
    if count == 0:
        return found.best
    promising = np.array(sorted({one.pair for one in found.best}))
    tried = max(3, 20_000 // (count * own.shape[1]))  # few splits where each is dear
    splits = sorted({int(k) for k in np.linspace(1, count - 1, min(count - 1, tried))})
    most = 16 if count < MANY else 4
    knots_tried = range(knots) if knots <= most else sorted(v for _, v in sorted(ranked)[-max(4, most // 2) :])
    for u, v in combinations(knots_tried, 2):
        for k in splits:
            found.only({u: k, v: count - k}, promising)
    size = 1 if count < MANY else count // 4
    for _ in range(min(count, MANY)):
        starts = {one.counts for one in found.best}
        moved = {many for start in starts for many in _moves(start, knots_tried, size)}
        improved = [found.consider(many, promising) for many in sorted(moved)]
        if not any(improved):
            if size <= max(1, count // MANY):
                break
            size = max(1, size // 4)
    return found.best


def _moves(counts: tuple[int, ...], knots: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """All assignments that differ in the input of ``size`` clients, or of all at a knot with fewer."""
    for u in (u for u, n in enumerate(counts) if n):
        for v in knots:
            if u != v:
                moved, step = list(counts), min(size, counts[u])
                moved[u] -= step
                moved[v] += step
                yield tuple(moved)
