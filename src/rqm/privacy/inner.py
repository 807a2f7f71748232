"""Laws with kinks inside the clip, as the paper uses RQM: what a coordinate tells at (ε, δ), and a vector's μ.

Such a law is affine on every cell between neighbouring knots only, so neither a worst pair of inputs nor the others'
worst inputs are known beforehand. Of a coordinate the hockey-stick divergence is certified over all pairs of knots and
all spreads of the others, as Rényi divergences are (``certificate.py``). Of a vector under an L2 budget the Gaussian
certificate goes from cell to cell: Φ⁻¹ of an event's probability rises along a coordinate no faster than its steepest
slope in any cell, and squares of slopes add up over coordinates (``docs/proofs/inner.md``).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf, log, pi, sqrt
from threading import Lock

import numpy as np
from scipy.special import ndtr, ndtri

from rqm._util import cache
from rqm._util.checks import FloatArray
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.certificate import Asked
from rqm.privacy.counts import Shapes
from rqm.privacy.divergence import Sum, all_pairs
from rqm.privacy.measures import HockeySticks
from rqm.privacy.mixtures import Mixture
from rqm.privacy.tiers import measured_tiers

TAIL = 1e-100
"""Probability that may be left out at each end of a sum."""
STEPS = (1.002, 1.005, 1.01, 1.015, 1.019, 1.03, 1.05, 1.08, 1.12, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0, 10.0)
"""Where an ε is looked for, over what is attained."""
FLOOR = 0.01
"""An ε of which such parts are tried, where less is attained."""
NEAR, FAR = np.arange(0, 4.1, 0.25), np.concatenate([np.arange(4.5, 8.1, 0.5), np.arange(9, 17), np.arange(19, 40, 3)])
"""Where scores are bounded, in deviations: farther out in wider steps."""
RISE = 1.06
"""How much more than the variance of scores a certificate makes of μ², about."""
USELESS = 9.0
"""A μ beyond this, an ε of some 80, protects nobody, and is not certified."""
LEAST = 1e-60
"""Where it is less than this there is nothing more to look at."""
ENOUGH = 1.05
"""How far above that other ways are not tried any more."""
CLOSE, ROUGH = 1.015, 1.1
"""How close a bound is to be to what is attained, near and far out."""

_ONE_AT_A_TIME = Lock()


@lru_cache(maxsize=64)
def _laws(mech: Channel, law: Law) -> tuple[FloatArray, list[Sum]]:
    logs = mech.knot_laws(law)
    return logs, [Sum.of(row) for row in logs]


@lru_cache(maxsize=8)
def _ways(mech: Channel, honest: int, law: Law, tails: bool) -> list[tuple[Asked, list[Shapes]]]:
    """The ways to certify all others, the best first, each with the sums of shapes that were worked out for it."""
    logs, laws = _laws(mech, law)
    tiers = measured_tiers(len(logs), logs.shape[1], honest - 1, tails=tails)
    return [(Asked(tier, logs, laws, logs, honest - 1, all_pairs(len(logs))), []) for tier in tiers]


def _worst(
    mech: Channel,
    honest: int,
    law: Law,
    measured: Callable[[list[Sum]], HockeySticks],
    attained: float,
    *,
    limit: float = inf,
    enough: float = 0.0,
    tails: bool = False,
) -> float:
    """The largest bound over all inputs of the others: by the first way that is down to what is attained, or the best.

    Or by the first that is ``enough``. Infinite where none is below ``limit``.
    """
    best = inf
    for asked, known in _ways(mech, honest, law, tails):
        with _ONE_AT_A_TIME:  # sums of shapes are added to what is known
            best = min(best, asked.worst(measured(asked.laws), attained, min(best, limit), known))
        if best <= max(attained, enough):
            break
    return best


def _alone(mech: Channel, honest: int, law: Law) -> list[FloatArray]:
    """Laws of the others' sum if they all hold the same, one for each knot."""
    sums = [one.times(honest - 1, log(TAIL)) for one in _laws(mech, law)[1]]
    return [np.exp(one.log_law(one.mantissa.size)) for one in sums]


# -- one coordinate -------------------------------------------------------------------------------


def attained_deltas(mech: Channel, epsilons: FloatArray, honest: int, law: Law) -> FloatArray:
    """δ at some ε that some inputs attain, all others holding the same: no bound can be below."""
    own, best = np.exp(_laws(mech, law)[0]), np.zeros(len(epsilons))
    factor = np.exp(epsilons)
    for base in _alone(mech, honest, law):
        laws = np.array([np.convolve(one, base) for one in own])
        for i, j in all_pairs(len(own)).tolist():
            for k, times in enumerate(factor):
                best[k] = max(best[k], float(np.maximum(laws[i] - times * laws[j], 0).sum()))
    return best


def coordinate_delta(
    mech: Channel, epsilon: float, honest: int, law: Law, attained: float = 0.0, limit: float = inf
) -> float:
    """Certified δ of one coordinate at ε, but no less than what is attained; infinite where it is not below a limit."""
    if honest == 1:
        return float(max(attained, attained_deltas(mech, np.array([epsilon]), 1, law)[0] * (1 + 1e-9)))
    pairs = all_pairs(len(_laws(mech, law)[1]))
    same = np.ones(len(pairs))
    sticks = partial(HockeySticks, pairs=pairs, epsilons=epsilon * same, weights=same)
    return _worst(mech, honest, law, sticks, attained, limit=limit, tails=True)


def coordinate_epsilon(mech: Channel, delta: float, honest: int, law: Law = "paper", *, quick: bool = False) -> float:
    """The smallest ε that is certified for one coordinate of one release, at δ."""
    if mech.exposed:
        return inf
    asked = [mech.to_dict(), delta, honest, law]
    held = None if quick else cache.read("coordinate", asked)
    if held is not None:
        return float(held)
    least = _attained_epsilon(mech, delta, honest, law)
    if quick or least == inf:
        return least
    found = _certified_epsilon(mech, delta, honest, law, least)
    cache.write("coordinate", asked, found)
    return found


def _certified_epsilon(mech: Channel, delta: float, honest: int, law: Law, least: float) -> float:
    tried = (max(least * step, FLOOR * step - FLOOR) for step in STEPS)  # where hardly anything is told, too
    return next(
        (one for one in tried if coordinate_delta(mech, one, honest, law, delta, delta * (1 + 1e-6)) <= delta), inf
    )


def _attained_epsilon(mech: Channel, delta: float, honest: int, law: Law) -> float:
    """An ε at which δ is attained, to some digits; infinite if none is enough."""
    low, high = 0.0, 1.0
    while attained_deltas(mech, np.array([high]), honest, law)[0] > delta:
        low, high = high, 2 * high
        if high > 1e3:
            return inf
    while high - low > 1e-4 * high:
        grid = np.linspace(low, high, 10)
        above = attained_deltas(mech, grid, honest, law) > delta
        last = int(np.flatnonzero(above)[-1]) if above.any() else 0
        low, high = float(grid[last]), float(grid[last + 1])
    return high


# -- a vector under an L2 budget ------------------------------------------------------------------


def inner_gdp(
    mech: Channel, *, honest: int, dim: int, squared: float, furthest: float, lost: float, law: Law, quick: bool = False
) -> float:
    """Certified μ of the sum over ``honest`` clients of ``dim`` coordinates, one client's vector changed.

    Its squared distance is at most ``squared``, in clips, and that of a coordinate at most ``furthest``; but for
    outcomes of probability ``lost``. Infinite where there is no such μ. Of the law that is sampled, distances are those
    of integer positions, on which ``PrivateMean`` holds the budget.
    """
    squared = min(squared, dim * furthest)
    rough = sqrt(squared * RISE * _information(mech, honest, law)) if not mech.exposed else inf
    if quick or rough > USELESS:
        return rough if quick else inf
    known = _scores(mech, honest, law)
    if known is None:
        return inf
    count, least = max(1, int(squared / furthest * (1 + 1e-9))), 0.0
    for _ in range(40):  # what is left out is told from where the vector comes from, and where it goes
        tail = float(ndtr(ndtri(lost / 2) - least))
        found = sqrt(squared * known.factor(count, dim, max(tail, 1e-300)))
        if found <= least:
            return found * (1 + 1e-9)
        least = found * 1.001
        if least > 2 * USELESS:
            break
    return inf


def _information(mech: Channel, honest: int, law: Law) -> float:
    """The largest variance of a score, all others holding the same: about what μ² over a squared distance is."""
    own, widths, most = np.exp(_laws(mech, law)[0]), np.diff(mech.knots) / mech.clip, 0.0
    for base in _alone(mech, honest, law):
        laws = np.array([np.convolve(one, base) for one in own])
        rises = (np.diff(laws, axis=0) / widths[:, None]) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            both = [np.where(law > 0, rises / law, 0.0).sum(axis=1) for law in (laws[:-1], laws[1:])]
        most = max(most, float(np.max(both)))
    return most


@lru_cache(maxsize=64)
def _scores(mech: Channel, honest: int, law: Law) -> Mixture | None:
    """A law above every score of a coordinate in convex order; None if none is known."""
    asked = [mech.to_dict(), honest, law]
    held = cache.read("scores", asked)
    if held is not None:
        return Mixture.over(*map(np.array, held))
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.exp(_laws(mech, law)[0])
        widths = np.diff(mech.knots) / mech.clip
        ratios = np.concatenate([own[1:] / own[:-1], own[:-1] / own[1:]])
        largest = float(np.nanmax((ratios - 1) / np.concatenate([widths, widths])[:, None])) * (1 + 1e-9)
    if not np.isfinite(largest):
        return None
    places, above = _bounded(mech, honest, law, widths, largest)
    cache.write("scores", asked, [places.tolist(), above.tolist()])
    return Mixture.over(places, above)


def _bounded(mech: Channel, honest: int, law: Law, widths: FloatArray, largest: float) -> tuple[FloatArray, FloatArray]:
    """Some τ from zero to the largest score, and bounds of E(s − τ)₊ over all inputs of everybody."""
    bases, own = _alone(mech, honest, law), np.exp(_laws(mech, law)[0])
    sums = [np.array([np.convolve(one, base) for one in own]) for base in bases]

    def reached(tau: float) -> float:
        rows = _rows(widths, tau)
        i, j, factor, weight = rows[0].astype(int), rows[1].astype(int), np.exp(rows[2])[:, None], rows[3]
        return max(float((weight * np.maximum(laws[i] - factor * laws[j], 0).sum(axis=1)).max()) for laws in sums)

    unit = sqrt(2 * pi) * reached(0.0)  # the deviation of a Gaussian with that mean
    places, above = [], []
    for step in (*NEAR, *FAR):
        tau = float(step * unit)
        if tau >= largest:
            break
        at_least = reached(tau)
        if honest > 1:
            i, j, epsilons, weights = _rows(widths, tau)
            pairs = np.stack([i, j], axis=1).astype(np.int64)
            sticks = partial(HockeySticks, pairs=pairs, epsilons=epsilons, weights=weights)
            close = at_least * (CLOSE if step in NEAR else ROUGH) + unit * TAIL
            at_least = _worst(mech, honest, law, sticks, close, enough=ENOUGH * close)
        places.append(tau)
        above.append(at_least * (1 + 1e-9) + unit * TAIL)
        if above[-1] < LEAST * unit:
            break
    falling = np.maximum.accumulate(np.array([*above, 0.0])[::-1])[::-1]  # as it does, but for how close bounds are
    return np.array([*places, largest]), falling


def _rows(widths: FloatArray, tau: float) -> FloatArray:
    """E(s − τ)₊ in every cell, either way, at both ends of it: pairs of knots, and ε and weight of a hockey stick.

    On a cell of width w the score is (Q − P)/w over the law; under P, E(s − τ)₊ is δ at log(1 + τw) over w, under Q
    it is (1 − τw)/w times that at −log(1 − τw).
    """
    low = np.arange(len(widths))
    there, back = np.stack([low + 1, low]), np.stack([low, low + 1])
    steep = np.maximum(1 - tau * widths, 1e-300)
    under_p = np.stack([np.log1p(tau * widths), 1 / widths])
    under_q = np.stack([-np.log(steep), np.where(tau * widths < 1, steep, 0.0) / widths])
    return np.concatenate([np.concatenate([way, end]) for way in (there, back) for end in (under_p, under_q)], axis=1)
