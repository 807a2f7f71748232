"""The worst inputs of everybody that a search finds: what is attained, which is no guarantee."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.cells import Cells, stack
from rqm.privacy.certificate import needed_tail
from rqm.privacy.compiled import IntArray
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences, unlike_pairs

MANY = 256
"""Others from which on a search tries few splits, and moves many of them at once."""

MANY_KNOTS, PAIRS_OF_MANY, KNOTS_OF_MANY = 160, 128, 17
"""Knots from which on a search tries some pairs, and others at some knots, alone."""

AT_ONCE = 2048
"""Ways to spread the others that are looked at together."""


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
    return values.max(axis=0), [_named(column, pairs) for column in values.T]


def _named(values: FloatArray, pairs: IntArray) -> tuple[int, int]:
    """The pair with the largest value. Mirror images tie but for rounding: the last, the one with the larger x."""
    i, j = pairs[np.flatnonzero(values >= values.max() * (1 - 1e-12))[-1]].tolist()
    return i, j


class _Search:
    """The best that was found so far for every order, and what it takes to try other counts at the knots."""

    def __init__(self, own: FloatArray, orders: FloatArray) -> None:
        self.laws, self.orders, self.unlike = [Sum.of(row) for row in own], orders, unlike_pairs(own)
        self.alone = pair_divergences(Sum.nothing(), self.laws, self.unlike, orders)
        self.tail = min(map(needed_tail, orders.tolist(), self.alone.max(axis=0).tolist()))
        self.best = [Found(-1.0, (0, 1), (0,) * len(own))] * len(orders)
        self.cells = Cells(self.tail)
        self._powers: dict[tuple[int, int], Sum] = {}

    def consider(self, tried: Sequence[tuple[int, ...]], pairs: IntArray) -> bool:
        """Try so many other clients at each knot, one way after the other; whether some order gets better."""
        if not tried or len(tried) > AT_ONCE:
            better = [self.consider(tried[k : k + AT_ONCE], pairs) for k in range(0, len(tried), AT_ONCE)]
            return any(better)
        parts = [self._halves(counts) for counts in tried]
        rows = [{sums: k for k, sums in enumerate(dict.fromkeys(half))} for half in zip(*parts, strict=True)]
        laws = [[self._total(one) for one in half] for half in rows]
        at = np.array([[half[one] for half, one in zip(rows, part, strict=True)] for part in parts])
        sizes = [np.array([len(law.exponent) for law in half])[k] for half, k in zip(laws, at.T, strict=True)]
        places = np.column_stack([at, *sizes])
        asked = np.broadcast_to(self.orders, (len(pairs), len(self.orders))).copy()
        values = self.cells.table(places, (stack(laws[0]), stack(laws[1])), self.laws, pairs, asked)
        improved = False
        for a, most in enumerate(values.max(axis=0)):
            for k in np.flatnonzero(most > self.best[a].value * (1 + 1e-12)).tolist():
                if most[k] > self.best[a].value * (1 + 1e-12):
                    self.best[a] = Found(float(most[k]), _named(values[:, a, k], pairs), tried[k])
                    improved = True
        return improved

    def split(self, at: dict[int, int]) -> tuple[int, ...]:
        """So many at some knots, nobody at the others."""
        return tuple(at.get(v, 0) for v in range(len(self.laws)))

    @staticmethod
    def _halves(counts: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """The knots with some clients and how many there are, the last of them by itself."""
        some = tuple((v, times) for v, times in enumerate(counts) if times)
        return some[:-1], some[-1:]

    def _total(self, some: tuple[tuple[int, int], ...]) -> Sum:
        total = Sum.nothing()
        for k, (v, times) in enumerate(some):
            total = (total + self._power(v, times)).trimmed(self.tail) if k else self._power(v, times)
        return total

    def _power(self, v: int, times: int) -> Sum:
        if (v, times) not in self._powers:
            before = self._powers.get((v, times - 1))
            law = self.laws[v]
            self._powers[v, times] = (
                law.times(times, self.tail) if before is None else (before + law).trimmed(self.tail)
            )
        return self._powers[v, times]


def search(own: FloatArray, count: int, orders: FloatArray) -> list[Found]:
    """Look for the worst inputs of ``count`` other clients: all equal, two values, then some move at a time.

    Of many clients a good part moves at first, then fewer and fewer.
    """
    if count == 0:
        best, pair = best_pairs(Sum.nothing(), [Sum.of(row) for row in own], unlike_pairs(own), orders)
        return [Found(float(value), one, (0,) * len(own)) for value, one in zip(best, pair, strict=True)]
    found, knots = _Search(own, orders), len(own)
    pairs, spread = _worth_trying(found)
    ranked = []
    for v in reversed(spread):
        found.consider([found.split({v: count})], pairs)
        ranked.append((max(one.value for one in found.best), v))
    promising = np.array(sorted({one.pair for one in found.best}))
    tried = max(3, 20_000 // (count * own.shape[1]))  # few splits where each is dear
    splits = sorted({int(k) for k in np.linspace(1, count - 1, min(count - 1, tried))})
    most = 16 if count < MANY else 4
    knots_tried = spread if knots <= most else sorted(v for _, v in sorted(ranked)[-max(4, most // 2) :])
    two = combinations(knots_tried, 2)
    found.consider([found.split({u: k, v: count - k}) for u, v in two for k in splits], promising)
    size = 1 if count < MANY else count // 4
    for _ in range(min(count, MANY)):
        starts = {one.counts for one in found.best}
        moved = {many for start in starts for many in _moves(start, knots_tried, size)}
        if not found.consider(sorted(moved), promising):
            if size <= max(1, count // MANY):
                break
            size = max(1, size // 4)
    return found.best


def _worth_trying(found: _Search) -> tuple[IntArray, Sequence[int]]:
    """The pairs, and the knots of the others, that are tried: all, or of very many those that leak most by themselves.

    What is found is attained in any case.
    """
    knots = len(found.laws)
    if knots <= MANY_KNOTS:
        return all_pairs(knots), range(knots)
    worst = {int(k) for column in found.alone.T for k in np.argsort(-column, kind="stable")[:PAIRS_OF_MANY]}
    ends = {(0, knots - 1), (knots - 1, 0)}
    some = sorted(ends | {(int(i), int(j)) for i, j in found.unlike[sorted(worst)]})
    return np.array(some), sorted({round(v) for v in np.linspace(0, knots - 1, KNOTS_OF_MANY)})


def _moves(counts: tuple[int, ...], knots: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """All assignments that differ in the input of ``size`` clients, or of all at a knot with fewer."""
    for u in (u for u, n in enumerate(counts) if n):
        for v in knots:
            if u != v:
                moved, step = list(counts), min(size, counts[u])
                moved[u] -= step
                moved[v] += step
                yield tuple(moved)
