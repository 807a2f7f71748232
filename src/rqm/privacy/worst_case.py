"""The Rényi privacy of one client among n: the worst case that was found, and the one that is certified."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import inf
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rqm._util import cache
from rqm._util.checks import FloatArray, inputs, order, whole
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.base import mechanism_of
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.certificate import certify, needed_tail, outward
from rqm.privacy.compiled import IntArray
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences

Others = Literal["worst", "balanced", "random"]

MANY = 256
"""Others from which on a search tries few splits, and moves many of them at once."""
QUICK_CLIENTS = 200
"""Clients up to which a certificate takes seconds, where several levels lie inside the clip."""


@dataclass(frozen=True)
class Bound:
    """The Rényi divergence of order ``alpha`` that one coordinate of one round may leak.

    ``lower`` is attained by the inputs named in ``x``, ``x_prime`` and ``other_inputs``; it is not a guarantee. Where
    the worst case is known exactly, both are the same number, rounded up.
    ``upper`` holds for all inputs of everyone if ``certified``; otherwise for the named other inputs only.
    Neighbours replace one client's value. The adversary sees the sum over ``clients`` honest clients (for one
    client: what it sends).
    """

    lower: float
    upper: float
    alpha: float
    clients: int
    certified: bool
    law: Law
    x: float
    x_prime: float
    other_inputs: dict[float, int]
    neighbours: str = "replace-one"

    @property
    def threat_model(self) -> str:
        """Who the adversary is: ``local`` sees the message, ``aggregate`` only the sum."""
        return "local" if self.clients == 1 else f"aggregate of {self.clients} honest clients"


@overload
def renyi(
    mech: Channel,
    alpha: float = ...,
    clients: int = ...,
    others: Others | npt.ArrayLike = ...,
    *,
    law: Law = ...,
    seed: int = ...,
) -> Bound: ...
@overload
def renyi(
    mech: Channel,
    alpha: Sequence[float],
    clients: int = ...,
    others: Others | npt.ArrayLike = ...,
    *,
    law: Law = ...,
    seed: int = ...,
) -> list[Bound]: ...
def renyi(
    mech: Channel,
    alpha: float | Sequence[float] = 2,
    clients: int = 1,
    others: Others | npt.ArrayLike = "worst",
    *,
    law: Law = "paper",
    seed: int = 0,
) -> Bound | list[Bound]:
    """Rényi privacy of one coordinate sent by one client among ``clients``, whose sum alone is revealed.

    ``others="worst"`` searches for the other clients' worst inputs and certifies a bound for all of them.
    ``"balanced"`` (half at -clip, half at clip) and ``"random"`` (each at ±clip, by ``seed``) are what the paper
    plots, for the pair ±clip; an array gives the other clients' inputs. ``law="sampled"`` speaks of the integer
    table that is deployed. Several orders share the work and give a list.

    >>> from rqm import RQM
    >>> bound = renyi(RQM(), alpha=10)
    >>> round(bound.lower, 4), round(bound.upper, 4), round(bound.x, 4), bound.x_prime
    (5.3684, 5.3684, 0.9333, -1.0)
    """
    mech = mechanism_of(mech).channel
    clients = whole("clients", clients, 1)
    single = np.ndim(alpha) == 0
    orders = np.array([order(a) for a in np.atleast_1d(np.asarray(alpha, dtype=object))])
    if not orders.size:
        raise ValueError("alpha is empty: give at least one order")
    bounds = (
        _worst(mech, tuple(orders.tolist()), clients, law)
        if isinstance(others, str) and others == "worst"
        else (_given(mech, orders, clients, others, law, seed))
    )
    return bounds[0] if single else bounds


# -- the other clients' inputs are given ----------------------------------------------------------


def _given(
    mech: Channel, orders: FloatArray, clients: int, others: Others | npt.ArrayLike, law: Law, seed: int
) -> list[Bound]:
    count = clients - 1
    ends = np.array([-mech.clip, mech.clip])
    if isinstance(others, str):
        if others == "balanced":
            values = ends[(np.arange(count) >= count // 2).astype(int)]
        elif others == "random":
            values = np.random.default_rng(whole("seed", seed, 0)).choice(ends, size=count)
        else:
            raise ValueError(f"others = {others!r}: must be 'worst', 'balanced', 'random' or an array of inputs")
        candidates = ends  # the paper's pair
    else:
        values = inputs("others", others).ravel()
        if len(values) != count:
            raise ValueError(f"others has {len(values)} inputs: must be clients - 1 = {count}")
        if count and abs(values).max() > mech.clip:
            bad = values[np.argmax(abs(values))]
            raise ValueError(f"others contains {bad:g}: must lie within the clip, ±{mech.clip:g}")
        candidates = mech.knots
    distinct, counts = np.unique(values, return_counts=True)
    own = [Sum.of(row) for row in mech.log_law(candidates, law)]
    _check_summable(mech, own, clients)
    tail, base = _tail(own, orders), Sum.nothing()
    for row, times in zip(mech.log_law(distinct, law), counts, strict=True) if count else ():
        base = (base + Sum.of(row).times(int(times), tail)).trimmed(tail)
    best, pair = _best_pairs(base, own, all_pairs(len(own)), orders)
    return [
        Bound(
            **_value(value, value, alpha, (candidates[i], candidates[j]), zip(distinct, counts, strict=True)),
            clients=clients,
            certified=False,
            law=law,
        )
        for value, (i, j), alpha in zip(best, pair, orders, strict=True)
    ]


# -- the other clients' inputs are the worst there are --------------------------------------------


@dataclass(frozen=True)
class _Found:
    """The best value of one order, with the pair and the number of other clients at each knot."""

    value: float
    pair: tuple[int, int]
    counts: tuple[int, ...]


_Key = tuple[Channel, float, int, Law]
_KEPT: OrderedDict[_Key, Bound] = OrderedDict()
_TRIED: OrderedDict[_Key, _Found] = OrderedDict()
KEEP = 4096
"""Bounds that are kept, one an order, since they take seconds; and what was found by searching."""


def attained(mech: Channel, alphas: tuple[float, ...], clients: int, *, law: Law = "paper") -> FloatArray:
    """What some inputs leak at some orders: no bound can be below. Found in a fraction of a bound's time.

    >>> from rqm import RQM
    >>> found = attained(RQM(), (2.0, 8.0), 5)
    >>> bool((found <= [bound.upper for bound in renyi(RQM(), [2, 8], 5)]).all())
    True
    """
    found = {alpha: _KEPT[key].lower for alpha, key in _known(mech, alphas, clients, law).items() if key in _KEPT}
    new = tuple(alpha for alpha in alphas if alpha not in found)
    if mech.exposed or mech.additive is not None:  # at once
        found |= {bound.alpha: bound.lower for bound in _worst(mech, new, clients, law)}
    else:
        found |= {alpha: one.value for alpha, one in zip(new, _searched(mech, new, clients, law), strict=True)}
    return np.array([found[alpha] for alpha in alphas])


def _known(mech: Channel, alphas: tuple[float, ...], clients: int, law: Law) -> dict[float, _Key]:
    """Where the bounds of some orders are kept; those that lie on the disk are read."""
    keys = {alpha: (mech, alpha, clients, law) for alpha in alphas}
    for alpha in (alpha for alpha in keys if keys[alpha] not in _KEPT):
        held = cache.read("renyi", _content(mech, alpha, clients, law)) if _lasting(mech, clients) else None
        if held is not None:
            others = {float(x): int(count) for x, count in held.pop("other_inputs")}
            _KEPT[keys[alpha]] = Bound(**held, other_inputs=others)
    return keys


def _worst(mech: Channel, alphas: tuple[float, ...], clients: int, law: Law) -> list[Bound]:
    """The bounds for some orders, those that are not known yet worked out together."""
    keys = _known(mech, alphas, clients, law)
    new = tuple(alpha for alpha in keys if keys[alpha] not in _KEPT)
    for alpha, bound in zip(new, _found(mech, new, clients, law) if new else (), strict=True):
        _KEPT[keys[alpha]] = bound
        if _lasting(mech, clients):
            facts = {**asdict(bound), "other_inputs": [list(one) for one in bound.other_inputs.items()]}
            cache.write("renyi", _content(mech, alpha, clients, law), facts)
    bounds = [_KEPT[keys[alpha]] for alpha in alphas]
    while len(_KEPT) > KEEP:
        _KEPT.popitem(last=False)
    return bounds


def _searched(mech: Channel, alphas: tuple[float, ...], clients: int, law: Law) -> list[_Found]:
    """The worst inputs that a search finds at some orders, those that are not known yet searched for together."""
    keys = {alpha: (mech, alpha, clients, law) for alpha in alphas}
    new = [alpha for alpha in alphas if keys[alpha] not in _TRIED]
    if new:
        own = mech.knot_laws(law)
        _check_summable(mech, [Sum.of(row) for row in own], clients)
        _TRIED.update(zip((keys[alpha] for alpha in new), search(own, clients - 1, np.array(new)), strict=True))
    found = [_TRIED[keys[alpha]] for alpha in alphas]
    while len(_TRIED) > KEEP:
        _TRIED.popitem(last=False)
    return found


def _lasting(mech: Channel, clients: int) -> bool:
    """Whether a bound is worth keeping on the disk, and depends on nothing but this package."""
    return clients > 2 and type(mech).__module__.startswith("rqm.mechanisms.")


def _content(mech: Channel, alpha: float, clients: int, law: Law) -> list[Any]:
    return [mech.to_dict(), alpha, clients, law]


def _found(mech: Channel, alphas: tuple[float, ...], clients: int, law: Law) -> tuple[Bound, ...]:
    orders = np.array(alphas)
    if mech.exposed:
        return tuple(_no_privacy(mech, float(alpha), clients, law) for alpha in orders)
    if mech.additive is not None:
        return tuple(_shifts(mech.additive, orders, clients))
    own, found = mech.knot_laws(law), _searched(mech, alphas, clients, law)
    lower = np.array([one.value for one in found])
    # A client may be many independent trials, each affine in its input: for the bound they are all free.
    others, count = mech.trial_laws(law), (clients - 1) * mech.trials
    upper = certify(own, others, count, list(orders), list(lower), int(np.argmax(found[0].counts)))
    rounded = outward(lower, orders, own, others, 4 * count + 4)
    lower = np.where(upper <= rounded, upper, lower)  # equal but for rounding: then say so
    return tuple(
        Bound(
            **_value(low, high, alpha, mech.knots[list(one.pair)].tolist(), zip(mech.knots, one.counts, strict=True)),
            clients=clients,
            certified=True,
            law=law,
        )
        for low, high, alpha, one in zip(lower, upper, orders, found, strict=True)
    )


def _shifts(mech: Additive, orders: FloatArray, clients: int) -> list[Bound]:
    """The noise does not depend on anybody's input: what the others hold does not matter. Of the sampled law."""
    from rqm.privacy.shifts import coordinate  # noqa: PLC0415 (takes a while)

    values, shifts = coordinate(mech, orders.tolist(), clients)
    return [
        Bound(
            **_value(value, value, alpha, (mech.knots[shift], mech.knots[0]), [(0.0, clients - 1)]),
            clients=clients,
            certified=True,
            law="sampled",
        )
        for value, alpha, shift in zip(values, orders, shifts, strict=True)
    ]


def _no_privacy(mech: Channel, alpha: float, clients: int, law: Law) -> Bound:
    """Others on a level inside the clip add no noise, and x = clip can be rounded to where -clip cannot."""
    found = _value(inf, inf, alpha, (mech.clip, -mech.clip), [(mech.knots[1], clients - 1)])
    return Bound(**found, clients=clients, certified=True, law=law)


def _value(
    lower: float, upper: float, alpha: float, pair: Sequence[float], others: Iterable[tuple[float, int]]
) -> dict[str, Any]:
    """What a bound says of one order: its values, and the inputs that attain the lower."""
    return {
        "lower": float(lower),
        "upper": float(upper),
        "alpha": float(alpha),
        "x": float(pair[0]),
        "x_prime": float(pair[1]),
        "other_inputs": {float(x): int(count) for x, count in others if count},
    }


def _check_summable(mech: Channel, laws: list[Sum], clients: int) -> None:
    if clients > 1 and any(one.steep() for one in laws):
        raise ValueError(f"{mech!r}: the law falls by more than 2**33 a level; sums of such laws are not supported")


def _tail(own: list[Sum], orders: FloatArray) -> float:
    """What may be left out of the others' sum at these orders: no more than rounding takes away."""
    alone = pair_divergences(Sum.nothing(), own, all_pairs(len(own)), orders).max(axis=0)
    return min(map(needed_tail, orders.tolist(), alone.tolist()))


class _Search:
    """The best that was found so far for every order, and what it takes to try other counts at the knots."""

    def __init__(self, own: FloatArray, orders: FloatArray) -> None:
        self.laws, self.orders = [Sum.of(row) for row in own], orders
        self.tail = _tail(self.laws, orders)
        self.best = [_Found(-1.0, (0, 1), (0,) * len(own))] * len(orders)
        self._powers: dict[tuple[int, int], Sum] = {}

    def consider(self, counts: tuple[int, ...], pairs: IntArray) -> bool:
        """Try so many other clients at each knot; whether some order gets better."""
        base = Sum.nothing()
        for v, times in enumerate(counts):
            base = (base + self._power(v, times)).trimmed(self.tail) if times else base
        value, pair = _best_pairs(base, self.laws, pairs, self.orders)
        better = [a for a in range(len(self.orders)) if value[a] > self.best[a].value * (1 + 1e-12)]
        for a in better:
            self.best[a] = _Found(float(value[a]), pair[a], counts)
        return bool(better)

    def only(self, at: dict[int, int], pairs: IntArray) -> bool:
        """Try some knots, nobody at the others."""
        return self.consider(tuple(at.get(v, 0) for v in range(len(self.laws))), pairs)

    def _power(self, v: int, times: int) -> Sum:
        if (v, times) not in self._powers:
            self._powers[v, times] = self.laws[v].times(times, self.tail)
        return self._powers[v, times]


def search(own: FloatArray, count: int, orders: FloatArray) -> list[_Found]:
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


def _best_pairs(
    base: Sum, laws: list[Sum], pairs: IntArray, orders: FloatArray
) -> tuple[FloatArray, list[tuple[int, int]]]:
    """For each order, the largest divergence over the pairs and the pair that attains it."""
    values = pair_divergences(base, laws, pairs, orders)
    best = values.max(axis=0)
    # Mirror images tie but for rounding: name the last, the one with the larger x.
    at = [int(np.flatnonzero(column >= top * (1 - 1e-12))[-1]) for column, top in zip(values.T, best, strict=True)]
    return best, [(int(pairs[k][0]), int(pairs[k][1])) for k in at]
