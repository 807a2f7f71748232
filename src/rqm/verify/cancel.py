"""Noise that is taken back a round later: a μ for one participation in such a run, told from scratch.

What a run tells of one coin, noise tells that was shifted along a random path. The law of the ratio of the two is put
on a grid, round after round; ``docs/verify.md`` has the proof.
"""

from collections.abc import Iterator
from math import asinh, ceil, exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from .gaussian import apart, best_tests
from .kept import LASTING, corners, handed
from .laws import FAR, LONG, TAIL, Array, Unsure, ends, others, power
from .laws import UNITS as TABLE
from .promise import Promise

FINE, COARSE = 32, 10
"""Points of a grid in each deviation of a ratio: of a path, and of one round's noise."""
FARTHEST = 1e4
"""How far points beyond those spread out, in units of them."""
ENOUGH = 4.0
"""To hold noise for longer than this many times σ_A/σ_B changes nothing."""
FEW = 200
"""Honest clients up to whom their coins may be far from Gaussian, and noise is better held longer."""
NARROWEST, WIDEST = 0.5, 2.0**11
"""Deviations of transient noise below and beyond which no encoder has it."""
LONGEST = 1000
"""Rounds that noise is held for at most: any law of them is right."""
MOST_TIMES = 1024
"""How many times as large the part that stays is at first, at most."""
LARGE = 10**5
"""Outcomes of a sum of transient noise beyond which it takes too long."""


class Reach(NamedTuple):
    """Deviations below and above 1 up to which points are so dense, and chances that are left out, and charged for."""

    below: int
    above: int
    never: float


USUAL, FAR_OUT = Reach(11, 14, 1e-42), Reach(13, 17, 1e-60)
"""For a user's coins; and for records, of which so much less may be cut off."""


class Ratio(NamedTuple):
    """How much likelier shifted noise is than noise: values, their chances, what only the former shows; deviation."""

    values: Array
    chances: Array
    alone: float
    spread: float


def mu_cancelled(promise: Promise, honest: int, participations: int, lost: float) -> float:
    """μ of one of so many participations beside so many honest clients, the user's included, but for chances."""
    assert promise.cancel is not None
    low, high, trials = ends(promise.mechanism)
    if len(low) != 2 or trials != 1:
        raise Unsure("cancel: this verifier knows it for rounding to two levels only")
    if honest == 1:
        return inf
    once = participations == 1 or promise.participations == 1  # others are of a chain begun anew
    smallest = inf
    with np.errstate(all="ignore"):
        for found, dropped in _kept(promise, honest, once) if promise.left else _paths(promise, honest, once):
            masses = found.chances.sum(), found.chances @ found.values + found.alone
            if not all(abs(mass - 1) < 1e-6 for mass in masses):
                raise Unsure(f"cancel = {promise.cancel}: probabilities of a path add up to {masses}, not to 1")
            bottom, top = (_at(found, float(v)) for v in (low[1], high[1]))
            tail = lost / (2 * promise.coordinates) - dropped
            best = best_tests(bottom, top, tail, dropped) if tail > 0 else None
            mu = inf if best is None else apart(best, promise.zero_out).mu(promise)
            if mu >= smallest:
                break
            smallest = mu
    return smallest


def _paths(promise: Promise, honest: int, once: bool) -> Iterator[tuple[Ratio, float]]:
    """What a path tells by one law of the holding time after another, any of which is right; and what it lacks."""
    assert promise.cancel is not None
    low, high, _ = ends(promise.mechanism)
    noise, dropped = transient(promise.cancel, honest)
    held, stays = _variance(noise), (honest - 1) * min(low[0] * low[1], high[0] * high[1])
    longest = ceil(ENOUGH * sqrt(held / stays)) + 1
    rounds = longest if once else min(longest, promise.separation or 1)
    points = _points(1 / sqrt(held), COARSE)
    moved, still = _told(points, *_shift(noise, points)), coins(low, high, honest - 1)
    dropped = rounds * (dropped + 8 * (honest + LONG) * TAIL) + dropped_by(rounds)
    for part in (1, 1 / 2, 1 / 4, 1 / 8) if honest <= FEW else (1,):
        yield along(holding(rounds, held, part * stays), still, moved), dropped


def told(stays: Array, goes: Array, separation: int) -> tuple[Ratio, int]:
    """What a path tells if its last step is of noise whose law is known, not of others' coins; and its rounds."""
    still, held = _variance(stays), _variance(goes)
    if not min(still, held) > 0:
        raise Unsure("the noise of a path is none")

    def one(law: Array) -> Ratio:
        points = _points(1 / sqrt(_variance(law)), COARSE, FAR_OUT)
        return _told(points, *_shift(law, points), FAR_OUT)

    rounds = min(separation, ceil(ENOUGH * sqrt(held / still)) + 1, LONGEST)
    return along(holding(rounds, held, still), one(stays), one(goes), FAR_OUT), rounds


def dropped_by(rounds: int, reach: Reach = USUAL) -> float:
    """What paths of so many rounds leave out, at most."""
    return rounds * 10**4 * reach.never


def _kept(promise: Promise, honest: int, once: bool) -> Iterator[tuple[Ratio, float]]:
    """The same where a part of the noise stays (``kept.py``)."""
    assert promise.cancel is not None
    low, high, _ = ends(promise.mechanism)
    (goes, dropped), (left, more) = transient(promise.cancel, honest), transient(promise.left, honest)
    points = _points(1 / sqrt(_variance(left)), COARSE)
    end, still = _told(points, *_shift(left, points)), coins(low, high, honest - 1)
    longest = LASTING * promise.times
    rounds = longest if once else min(longest, promise.separation or 1)
    spreads = _variance(left), _variance(goes), (honest - 1) * min(low[0] * low[1], high[0] * high[1])
    values, chances, alone = handed(end[:3], still[:3], corners(goes, promise.times), (*spreads, promise.times, rounds))
    seen = chances > 0
    spread = sqrt(float(chances @ (values - chances @ values) ** 2))
    found = Ratio(values[seen], chances[seen], alone, spread)
    yield found, rounds * (dropped + more + 8 * (honest + LONG) * TAIL) + dropped_by(rounds)


def _at(found: Ratio, chance: float) -> Array:
    """The law with a coin of some chance; last what is seen of it alone."""
    return np.append(found.chances * (1 + chance * (found.values - 1)), chance * found.alone)


def transient(deviation: float, clients: int) -> tuple[Array, float]:
    """The law of the sum of so many clients' transient noise as it is sampled, and what it lacks at most."""
    steps = np.arange(ceil(9 * deviation) + 1)
    half = np.exp(-(steps**2) / (2 * deviation**2))
    units = np.rint(half / (2 * half.sum() - 1) * TABLE)
    units = units[units > 0]
    units[0] += TABLE - (2 * units.sum() - units[0])
    if 20 * deviation * sqrt(clients) > LARGE:
        raise Unsure(f"cancel = {deviation}, {clients} honest clients: takes this verifier too long")
    return power(np.concatenate([units[:0:-1], units]) / TABLE, clients, tail=FAR), 8 * (clients + LONG) * FAR


def coins(low: Array, high: Array, number: int) -> Ratio:
    """What tells a sum of coins from one a step higher, at least as well as that of these others does, for all inputs.

    Its curves, the mean distance below a point and above it, are the highest of all, and straight between points.
    """
    points = _points(1 / sqrt(number * min(low[0] * low[1], high[0] * high[1])), COARSE)
    gaps, one = np.diff(points), int(np.searchsorted(points, 1.0))
    under, over = np.zeros(len(points)), np.zeros(len(points))
    for law in others(low, high, number):
        here, alone = _shift(law, points)
        below, above = np.cumsum(here)[:-1], np.cumsum(here[::-1])[-2::-1]
        under = np.maximum(under, np.append(0.0, np.cumsum(below * gaps)))
        over = np.maximum(over, np.append(np.cumsum((above * gaps)[::-1])[::-1], 0.0) + alone)
    below, above = np.diff(under)[:one] / gaps[:one], np.append(-np.diff(over)[one:] / gaps[one:], 0.0)
    middle = np.array([1 - below[-1] - above[0]])
    chances = np.concatenate([below[:1], np.diff(below), middle, -np.diff(above)])
    return _told(points, np.maximum(chances, 0), float(over[-1]))


def _shift(law: Array, points: Array) -> tuple[Array, float]:
    """The ratio for noise one step higher; what has no chance, or hardly any, before the step speaks for it alone."""
    noise, moved = np.append(law, 0.0), np.append(0.0, law)
    far = moved > points[-1] * noise
    alone = float((moved - points[-1] * noise)[far].sum())
    values = np.full(len(noise), points[-1])
    values[~far & (noise > 0)] = moved[~far & (noise > 0)] / noise[~far & (noise > 0)]
    return _split(points, values, noise, alone)


def _variance(law: Array) -> float:
    places = np.arange(len(law))
    return float(law @ (places - law @ places) ** 2)


def _points(spread: float, fine: int, reach: Reach = USUAL) -> Array:
    """0, even steps around 1, and beyond them steps that grow."""
    step = min(spread, 0.5) / fine
    near = 1 + step * np.arange(-min(reach.below * fine, int(0.999 / step)), reach.above * fine + 1)
    grown = (near[-1] - 1) * np.geomspace(1, FARTHEST, 20 * int(log(FARTHEST)))[1:]
    return np.concatenate([[0.0], near, 1 + grown])


def _split(points: Array, values: Array, chances: Array, alone: float) -> tuple[Array, float]:
    """Values put on points with their means kept, which tells more; of those beyond the last, the rest is ``alone``."""
    beyond = values > points[-1]
    alone += float(((values - points[-1]) * chances)[beyond].sum())
    values = np.minimum(values, points[-1])
    right = np.clip(np.searchsorted(points, values), 1, len(points) - 1)
    part = (values - points[right - 1]) / (points[right] - points[right - 1])
    law = np.bincount(right, part * chances, len(points)) + np.bincount(right - 1, (1 - part) * chances, len(points))
    return np.asarray(law, dtype=np.float64), alone


def _told(points: Array, law: Array, alone: float, reach: Reach = USUAL) -> Ratio:
    """Such a ratio, but for chances that are left out."""
    seen = law > reach.never
    points, law = points[seen], law[seen]
    mean = float(law @ points)
    return Ratio(points, law, alone, sqrt(float(law @ (points - mean) ** 2)))


def holding(rounds: int, held: float, stays: float) -> Array:
    """How likely noise is held for 0, …, rounds − 1: the best if both were Gaussian, of these variances."""
    angle = 2 * asinh(sqrt(stays / held) / 2)
    longer = np.array([_sinh(left * angle, rounds * angle) for left in range(rounds, -1, -1)])
    return -np.diff(longer)


def _sinh(x: float, most: float) -> float:
    """sinh(x) / sinh(most)."""
    return exp(x - most) * (1 - exp(-2 * x)) / (1 - exp(-2 * most))


def along(weights: Array, stays: Ratio, held: Ratio, reach: Reach = USUAL) -> Ratio:
    """The ratio along a path, from its last round back, given that it came so far: Y = c ρ_stays + (1 − c) ρ_held Y."""
    found, come = stays, float(weights[-1])
    for weight in weights[-2::-1].tolist():
        come += weight
        c = weight / come
        spread = sqrt(held.spread**2 + (1 + held.spread**2) * found.spread**2)
        gone = found.alone + (1 - found.alone) * held.alone
        moved = _product(found, held, _points(spread, FINE, reach), gone, reach)
        spread = sqrt((c * stays.spread) ** 2 + ((1 - c) * moved.spread) ** 2)
        sums = c * stays.values[:, None] + (1 - c) * moved.values
        pairs = np.multiply.outer(stays.chances, moved.chances)
        gone = c * stays.alone + (1 - c) * moved.alone
        points = _points(spread, FINE, reach)
        found = _told(points, *_split(points, sums.ravel(), pairs.ravel(), gone), reach)
    return found


def _product(one: Ratio, other: Ratio, points: Array, alone: float, reach: Reach) -> Ratio:
    values = np.multiply.outer(one.values, other.values).ravel()
    return _told(points, *_split(points, values, np.multiply.outer(one.chances, other.chances).ravel(), alone), reach)
