"""A release as a Gaussian mechanism: a μ for which it tells no more than N(0, 1) against N(μ, 1), told from scratch.

But for outcomes far out in the tails, whose chance is charged to δ; ``docs/verify.md`` has the proof.
"""

from collections.abc import Callable
from math import floor, inf, log, log2, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from .laws import LONG, TAIL, Array, Unsure, cores, ends, others
from .promise import Promise
from .scores import summed

ERROR, SLACK = 1e-11, 1 + 1e-6
"""More than the rounding errors of a difference of Φ⁻¹, and of μ²."""
SURE = 1e12
"""How many times more likely than what sums have dropped all events must be."""
CROWD = 4 * 10**6
"""Honest clients times the square of their outcomes beyond which sums take too long."""


def leaks(mu: float, epsilon: Array) -> Array:
    """δ of N(0, 1) against N(μ, 1) at some ε, exactly (Balle and Wang 2018) but for rounding, which is up."""
    from scipy.special import log_ndtr, ndtr  # noqa: PLC0415 (takes a while)

    likely = ndtr(mu / 2 - epsilon / mu)
    with np.errstate(over="ignore"):
        return np.asarray(np.maximum(likely * (1 + 1e-12) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)), 0))


def epsilon_of(mu: float, delta: float) -> tuple[float, float]:
    """The smallest ε at which δ is enough, from above and from below."""
    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * log(1 / delta))
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if leaks(mu, np.array(middle)) > delta else (low, middle)
    return high * SLACK, low / SLACK


class Apart(NamedTuple):
    """μ² of a coordinate: at most ``most``, and so much for each unit of 2(u² + u'²), or of u² if u' is zero."""

    per_square: float
    most: float

    def mu(self, promise: Promise, trials: int = 1) -> float:
        """μ of a vector within the budget, each coordinate of which is so many of these."""
        squares = promise.budget * trials * (1 if promise.zero_out else 4)
        return sqrt(min(squares * self.per_square, promise.coordinates * trials * self.most) * SLACK)


class Tests(NamedTuple):
    """The best tests between two laws and their mean: Φ⁻¹ of what each finds, in a row a law; and half its rise."""

    z: Array
    rise: Array

    @property
    def slopes(self) -> Array:
        """How Φ⁻¹ rises with the input, which is −1, 0 and 1 at the three laws."""
        return np.asarray(self.rise * np.exp(self.z**2 / 2) * sqrt(2 * pi))


def best_tests(low: Array, high: Array, tail: float, lost: float) -> Tests | None:
    """Of all outcomes but those that lean most, of chance ``tail`` at either side; None if ``lost`` ones matter."""
    from scipy.special import ndtri  # noqa: PLC0415 (takes a while)

    low, high = low[low + high > 0], high[low + high > 0]
    order = np.argsort((low - high) / (low + high))  # what speaks most for ``high`` comes first
    three = np.array([low, (low + high) / 2, high])[:, order]
    found, missed = np.cumsum(three, axis=1)[:, :-1], np.cumsum(three[:, ::-1], axis=1)[:, -2::-1]
    first = max(0, int(np.searchsorted(found.max(axis=0), tail, side="right")) - 1)
    last = min(found.shape[1], int(np.searchsorted(-missed.max(axis=0), -tail, side="left")) + 1)
    found, missed = found[:, first:last], missed[:, first:last]
    if min(found.min(initial=1), missed.min(initial=1)) < SURE * lost:
        return None
    z = np.where(found < missed, ndtri(np.minimum(found, 0.5)), -ndtri(np.minimum(missed, 0.5)))
    half = (three[2] - three[0]) / 2
    rise = np.where(found[1] < missed[1], np.cumsum(half)[:-1][first:last], -np.cumsum(half[::-1])[-2::-1][first:last])
    return Tests(z, np.maximum(rise, 0))


def mu_of(promise: Promise, honest: int, lost: float) -> float:
    """μ of one release beside so many honest clients, the user's included, but for outcomes of chance ``lost``."""
    find = _affine if promise.mechanism["mechanism"] in ("rounding", "rqm", "pbm", "vqsgd") else _additive
    with np.errstate(all="ignore"):
        return find(promise, honest, lost)


def _tail(lost: float, d: int) -> float:
    """What either end of each of d coordinates may lose, down to a power of two: all who read a ledger cut alike."""
    return 2.0 ** floor(log2(lost / (2 * d)))


def _affine(promise: Promise, honest: int, lost: float) -> float:
    """The way from one input to the other leads through zero, by the steepest mean slope to either side.

    Or, if that says less, the release is looked at as a whole.
    """
    low, high, trials = ends(promise.mechanism)
    if honest * (len(low) - 1) ** 2 > CROWD:
        raise Unsure(f"{honest} honest clients of {len(low)} outcomes: takes this verifier too long")
    budget = promise.budget * trials
    whole = sqrt(budget * (1 if promise.zero_out else 4) * summed(low, high, honest, budget) * SLACK)
    d, worst = promise.coordinates * trials, Apart(0.0, 0.0)
    dropped = 8 * (honest + LONG) * TAIL if honest * (len(low) - 1) >= LONG / 2 else 0.0
    tail = _tail(lost, d) - dropped
    for other in others(low, high, honest - 1):
        best = best_tests(np.convolve(low, other), np.convolve(high, other), tail, dropped)
        if best is None:
            return whole
        here = apart(best, promise.zero_out)
        worst = Apart(max(worst.per_square, here.per_square), max(worst.most, here.most))
    return min(worst.mu(promise, trials), whole)


def apart(best: Tests, zero_out: bool) -> Apart:
    """How far these tests tell inputs apart."""
    down, up = np.diff(best.z, axis=0) + ERROR
    left, right = (np.maximum(best.slopes[1], way) ** 2 for way in (down, up))
    if zero_out:
        return Apart(float(np.maximum(left, right).max(initial=0)), float(np.maximum(down, up).max(initial=0) ** 2))
    return Apart(float((left + right).max(initial=0) / 2), float((down + up).max(initial=0) ** 2))


def _additive(promise: Promise, honest: int, lost: float) -> float:
    """Whole steps as they are, parts of a step by the steepest slope; vectors under the L2 budget, by a price on it."""
    mech, d = promise.mechanism, promise.coordinates
    last = mech["steps"] / 2 if promise.zero_out else float(mech["steps"])
    found = _steps(mech, honest, -int(-last // 1), _tail(lost, d))
    if found is None:
        return inf
    far, slope = found
    k, before = np.arange(len(far)), np.concatenate([[0.0], far[:-1]])
    parts = np.minimum((far - before) / slope, np.minimum(1, last - k))  # of a step, after which a whole one says less
    squares = float(promise.budget * (1 if promise.zero_out else 4) * (mech["steps"] / 2) ** 2 / d)

    def bound(price: float) -> float:
        """By a price on squares of distances: μ² less what they cost is largest at an end, or at a parabola's top."""
        top = np.clip(np.nan_to_num((slope * before - price * k) / (price - slope**2)), 0, parts)
        part = np.stack([np.zeros(len(k)), parts, top])
        gains = (before + slope * part) ** 2 - price * (k + part) ** 2
        return price * squares + float(gains.max())

    return sqrt(d * min(cheapest(bound, float(slope[0]) ** 2), float(far[-1]) ** 2) * SLACK)


def cheapest(bound: Callable[[float], float], about: float) -> float:
    """The least of a convex bound over prices about a given one; each of them would do."""
    prices = (about * np.exp(np.linspace(-8, 8, 3201))).tolist()
    low, high = 0, len(prices) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(prices[middle]) <= bound(prices[middle + 1]) else (middle + 1, high)
    return bound(prices[low])


def _steps(mech: dict[str, Any], honest: int, most: int, tail: float) -> tuple[Array, Array] | None:
    """μ of noise that is shifted by k = 1, …, ``most``, and the steepest slope on the way; None if there is none.

    A way of k steps and a part of one lies among k + 2. Outcomes before the least likely ``tail`` of its ends are shown
    as one, and as another those beyond; k + 2 steps more to either side, so that this holds for all pairs on the way.
    Its k whole steps leave one of those out: they are also as long as k times what is steepest k + 1 steps out.
    """
    law, dropped = cores(mech, honest)
    if not tail > 2 * dropped:
        return None
    first = int(np.searchsorted(np.cumsum(law), tail - dropped, side="right"))
    last = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), tail - dropped, side="right"))

    def told(turn: int, way: int) -> Tests | None:
        """What tells noise from noise that was shifted by ``turn``, so far out."""
        noise, other = (_shown(law, first - way - at, last + way - at) for at in (0, turn))
        return best_tests(noise, other, 0.0, dropped)

    far, slope = np.zeros(most), np.zeros(most)
    for k in range(most):
        step, whole = told(1, k + 2), told(k + 1, k + 3)
        slope[k] = inf if step is None else 2 * step.slopes[[0, 2]].max(initial=0)
        way = inf if whole is None else (whole.z[2] - whole.z[0]).max(initial=0) + ERROR
        far[k] = min(way, (k + 1) * slope[k])
    if not (slope.min() > 0 and slope.max() < inf):
        return None
    return np.maximum.accumulate(far), slope


def _shown(law: Array, start: int, stop: int) -> Array:
    """A law from one outcome up to another: all before in one, and all after."""
    low, high = max(start, 0), min(stop, len(law))
    inner = np.zeros(stop - start)
    inner[low - start : high - start] = law[low:high]
    return np.concatenate([[law[:low].sum()], inner, [law[high:].sum()]])
