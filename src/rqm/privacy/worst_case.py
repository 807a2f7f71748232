"""The Rényi privacy of one client among n: the worst case that was found, and the one that is certified."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rqm._util import cache
from rqm._util.checks import FloatArray, inputs, order, whole
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.base import mechanism_of
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.certificate import WIDEST, certify, outward
from rqm.privacy.divergence import Sum, all_pairs
from rqm.privacy.search import Found, best_pairs, search, tail_of

Others = Literal["worst", "balanced", "random"]

TIGHT = 1.002
"""A bound so near to what is attained is not improved."""
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
    tail, base = tail_of(own, orders), Sum.nothing()
    for row, times in zip(mech.log_law(distinct, law), counts, strict=True) if count else ():
        base = (base + Sum.of(row).times(int(times), tail)).trimmed(tail)
    best, pair = best_pairs(base, own, all_pairs(len(own)), orders)
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


_Key = tuple[Channel, float, int, Law]
_KEPT: OrderedDict[_Key, Bound] = OrderedDict()
_TRIED: OrderedDict[_Key, Found] = OrderedDict()
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


def _searched(mech: Channel, alphas: tuple[float, ...], clients: int, law: Law) -> list[Found]:
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
    upper = _by_trials(mech, orders, clients, law)
    loose = upper > TIGHT * lower
    if loose.any():
        asked, worst = (orders[loose].tolist(), lower[loose].tolist()), int(np.argmax(found[0].counts))
        upper[loose] = np.minimum(upper[loose], certify(own, others, count, *asked, worst))
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


def _by_trials(mech: Channel, orders: FloatArray, clients: int, law: Law) -> FloatArray:
    """The bound of a law that is affine on the clip, or of its trials shown one by one; infinite where it is not asked.

    Of sums so long that a certificate must leave out some of the others, or of the tails that a high order needs.
    """
    found = np.full(len(orders), inf)
    usable = (orders > 1) & np.isfinite(orders)
    if mech.affine and usable.any() and (clients - 1) * mech.trials * (mech.trial_laws(law).shape[1] - 1) > WIDEST:
        from rqm.privacy.vector import end_laws, gain  # noqa: PLC0415 (which asks for bounds of a coordinate itself)

        laws, trials = end_laws(mech, law)
        ends = tuple(map(tuple, laws.tolist()))
        found[usable] = trials * gain(ends, tuple(orders[usable].tolist()), clients - 1, "replace").most
    return found


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
