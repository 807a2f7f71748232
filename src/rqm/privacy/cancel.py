"""Noise that is taken back a round later: what the whole run tells of one participation, certified.

Every client adds transient noise a to its coin and takes it back one round later, so that the server sees
y_t = R_t + A_t − A_{t−1}, R the sum of coins and A of transient noise. A change of one coin in round s is, to whoever
sees all y, a shift of the noise along a path: of A by one step in the rounds s, …, s+L−1, then of the others' coins in
round s+L, for any holding time L. So a run tells no more than noise that is shifted along a random path tells from
noise (``docs/proofs/cancel.md``), and the ratio of their likelihoods obeys

    Y_t = w_t ρ_coins + ρ_A Y_{t+1},

ρ the ratio for a shift of one noise by one step, and w the law of L. Ratios are known by their curves,
sup_E W(E) − q N(E): those of the others' worst inputs are maxima of such curves, and a curve drawn through some of its
points lies above itself.
"""

from functools import lru_cache
from math import ceil, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.transient import Transient
from rqm.privacy.holding import handed_for, holding
from rqm.privacy.kept import FINE as HANDED
from rqm.privacy.kept import handed_on, sheet
from rqm.privacy.paths import FINE as FINEST
from rqm.privacy.paths import ROUGH, Ratio, along
from rqm.privacy.setting import Neighbours, checked_delta
from rqm.privacy.tradeoff import Coordinate, Events
from rqm.privacy.vector import end_laws, splits_of_others

FINE, WIDER, NEAR, FAR = 16, 8, 12, 1e4
"""Points of a ratio's curve for each of its deviations, up to so many of them; then they spread out up to the last."""
NOTHING = 1e-35
"""Where a curve is lower than this it may as well end."""
FEW = 200
"""Clients up to whom coins may be far from Gaussian: to hold noise longer than is best for Gaussians may tell less."""
BETTER = 0.999
"""A holding time that tells this much less is worth another look."""
PER_ROUND = 1e-9
"""More than the relative errors of the ratios of one round."""


def cancelled_gdp(
    mech: Channel,
    transient: Transient,
    *,
    honest: int,
    separation: int,
    dim: int,
    l2_clip: float,
    lost: float,
    neighbours: Neighbours = "replace",
    quick: bool = False,
) -> float:
    """Certified μ of one participation in a run with noise that cancels, for the law that is sampled.

    ``honest`` clients of every round deliver both messages. Another participation of the same user comes ``separation``
    rounds later at the earliest. The rest is as in ``vector_gdp``.

    >>> from rqm import Rounding
    >>> mech = Rounding(clip=4 / 1024, levels=2, margin=33.0)
    >>> found = cancelled_gdp(mech, Transient(26.0), honest=100, separation=8, dim=2**20, l2_clip=1.0, lost=1e-9)
    >>> round(found, 3)
    0.612
    """
    honest, dim = whole("honest", honest, 1), whole("dim", dim, 1)
    separation = whole("separation", separation, 1)
    l2_clip, lost = real("l2_clip", l2_clip, "a positive finite number", 0, inf), checked_delta(lost)
    laws, trials = end_laws(mech, "sampled")
    if not mech.affine or laws.shape[1] != 2 or trials != 1:
        raise ValueError("cancel: must come with a mechanism of two levels, both outside the clip")
    ends = tuple(map(tuple, laws.tolist()))
    tail = 2.0 ** np.floor(np.log2(lost / (2 * dim)))
    found = coordinate(Asked(ends, transient, honest, separation, neighbours, tail, quick))
    budget = (4 if neighbours == "replace" else 1) * (l2_clip / mech.clip) ** 2
    return sqrt(min(budget * found.per_square, dim * found.most))


class Asked(NamedTuple):
    """One coordinate whose coin's law lies between ``ends``, in a run; ``tail`` at each side need not be told."""

    ends: tuple[tuple[float, ...], ...]
    transient: Transient
    honest: int
    separation: int
    neighbours: Neighbours
    tail: float
    quick: bool = False


@lru_cache(maxsize=256)
def coordinate(asked: Asked) -> Coordinate:
    """What a run tells of one coordinate."""
    if asked.transient.stays:
        return _handed(asked, HANDED // 2 if asked.quick else HANDED)
    if asked.honest > FEW:
        return _held(asked, 1.0, ROUGH if asked.quick else FINEST)
    part, rough = 1.0, _held(asked, 1.0, ROUGH)
    while rough.per_square < inf:
        other = _held(asked, part / 2, ROUGH)
        if other.per_square >= BETTER * rough.per_square:
            break
        part, rough = part / 2, other
    return rough if asked.quick else _held(asked, part, FINEST)


def _held(asked: Asked, part: float, fine: int) -> Coordinate:
    """The same by one law of the holding time: as if the coins' variance were ``part`` of what it is."""
    ends, transient, honest, separation, _, _, quick = asked
    noise, missing = transient.summed(honest)
    low, high, lacking, error = view(np.array(ends), noise, honest - 1, separation, part=part, fine=fine, quick=quick)
    return _told((low, high), lacking + separation * missing, error, asked)


def _handed(asked: Asked, fine: int) -> Coordinate:
    """The same where a part of the noise stays (``kept.py``)."""
    noise, honest, ends = asked.transient, asked.honest, np.array(asked.ends)
    (goes, missing), (stays, more) = noise.summed(honest), noise.left.summed(honest)
    coins, least, lacking = _coins(ends, honest - 1, asked.quick)
    spread = _variance(stays)
    rounds, _ = handed_for(asked.separation, _variance(goes), spread, noise.times, least)
    end = ratio([stays], spread, WIDER)
    found = handed_on(end, coins, (spread, least), sheet(goes, noise.times), noise.times, rounds, fine)
    masses = found.chances.sum(), found.chances @ found.values + found.alone
    if found.chances.min() < 0 or not all(abs(mass - 1) < rounds * PER_ROUND for mass in masses):
        return Coordinate(inf, inf)  # no certificate
    error = 2 * PER_ROUND * rounds / sqrt(found.variance) if found.variance else inf
    return _told(_at_ends(found, ends), rounds * (missing + more + lacking), error, asked)


def _coins(ends: FloatArray, others: int, quick: bool) -> tuple[Ratio, float, float]:
    """The ratio for others' coins that hold what is worst, their least variance, and what their laws lack at most."""
    ways = list(splits_of_others(ends[0], ends[1], others, quick=quick)) if others else [(np.ones(1), 0.0)]
    least = min(_variance(law) for law, _ in ways)
    # of splits that are mirror images only one is among the ways: a shift up of the one is a shift down of the other
    coins = ratio([law for law, _ in ways] + [law[::-1] for law, _ in ways], least)
    return coins, least, max(lacks for _, lacks in ways)


def _told(laws: tuple[FloatArray, FloatArray], lacking: float, error: float, asked: Asked) -> Coordinate:
    """What two laws tell, of which so much is lacking, with a relative error of μ²."""
    if 2 * lacking > asked.tail:
        return Coordinate(inf, inf)
    events = Events.of(*laws, asked.tail - lacking)
    if events is None:
        return Coordinate(0.0, 0.0)
    found = events.worst(Coordinate(0.0, 0.0), asked.neighbours)
    return Coordinate(found.per_square * (1 + error), found.most * (1 + error))


def _at_ends(found: Ratio, ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The laws of what is seen with a coin at either end; last what it alone shows."""
    low, high = (
        np.append(found.chances * (1 + up * (found.values - 1)), up * found.alone) for up in (ends[0, 1], ends[1, 1])
    )
    return low, high


def view(
    ends: FloatArray,
    noise: FloatArray,
    others: int,
    separation: int,
    *,
    part: float = 1.0,
    fine: int = FINEST,
    quick: bool = False,
) -> tuple[FloatArray, FloatArray, float, float]:
    """Two laws that tell the ends of a coin apart at least as well as a whole run does, one participation in it.

    ``ends`` holds the coin's law at both ends of the clip, ``noise`` the law of the transient noise of a sum; the
    ``others`` hold what is worst. Noise is held as is best if their coins had ``part`` of their variance, and all were
    Gaussian. Besides, what the laws lack at most, and a relative error of μ².
    """
    (coins, least, lacking), spread = _coins(ends, others, quick), _variance(noise)
    found = along(holding(separation, spread, part * least), coins, ratio([noise], spread), fine)
    low, high = _at_ends(found, ends)
    error = 2 * PER_ROUND * separation / sqrt(found.variance) if found.variance else inf
    return low, high, separation * lacking, error


def ratio(laws: list[FloatArray], variance: float, fine: int = FINE, nothing: float = NOTHING) -> Ratio:
    """The ratio for noise one step higher and noise: it tells no less than that of each of these laws.

    Its curve is the highest of theirs at points as fine as suits noise of this variance, and straight in between.
    """
    points = _points(min(1 / sqrt(variance), 1.0) / fine if variance else 1 / fine, fine)
    puts, calls = np.zeros(len(points)), np.zeros(len(points))
    for law in laws:
        noise, moved = np.append(law, 0.0), np.append(0.0, law)
        values = np.divide(moved, noise, out=np.full(len(noise), inf), where=noise > 0)
        order = np.argsort(values, kind="stable")
        noise, moved = noise[order], moved[order]
        at = np.searchsorted(values[order], points, side="right")
        under = [np.append(0.0, np.cumsum(part))[at] for part in (noise, moved)]
        over = [np.append(np.cumsum(part[::-1])[::-1], 0.0)[at] for part in (noise, moved)]
        puts = np.maximum(puts, points * under[0] - under[1])
        calls = np.maximum(calls, over[1] - points * over[0])
    return _of_curves(points, puts, calls, nothing)


def _points(step: float, fine: int) -> FloatArray:
    """Points for a curve: 0, even steps around 1, and beyond them steps that grow by their distance from 1."""
    below = np.arange(-min(NEAR * fine, int((1 - 1e-9) / step)), 0) * step
    near = np.arange(1, NEAR * fine + 1) * step
    growth = 1 + 1 / (NEAR * fine)
    far = near[-1] * growth ** np.arange(1, ceil(log(FAR / near[-1]) / log(growth)) + 1)
    return np.concatenate([[0.0], 1 + below, [1.0], 1 + near, 1 + far])


def _of_curves(points: FloatArray, puts: FloatArray, calls: FloatArray, nothing: float) -> Ratio:
    """The ratio ρ whose E max(q − ρ, 0) below 1, and E max(ρ − q, 0) above, are as given; 1 is one of the points."""
    middle = int(np.searchsorted(points, 1.0))
    rises = np.diff(puts[: middle + 1]) / np.diff(points[: middle + 1])  # chances to lie below
    falls = np.append(-np.diff(calls[middle:]) / np.diff(points[middle:]), 0.0)  # chances to lie above
    chances = np.concatenate([rises[:1], np.diff(rises), [1 - rises[-1] - falls[0]], falls[:-1] - falls[1:]])
    last = int(np.flatnonzero(np.append(True, calls[:-1] > nothing))[-1])  # beyond, there is nothing to tell
    return Ratio(points[: last + 1], np.maximum(chances[: last + 1], 0.0), float(calls[last]))


def _variance(law: FloatArray) -> float:
    places = np.arange(len(law))
    return float(law @ (places - law @ places) ** 2)
