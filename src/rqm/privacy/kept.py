"""Noise of which a part stays: what a run tells of one coin that is hidden by both parts together.

A client adds a = m e + f and takes back a − e one round later: f goes, e stays, and e is first sent m times as large.
So the server sees y_t = R_t + A_t − A_{t−1} + E_{t−1}, A = m E + F. A change of one coin is, to whoever sees all y, a
shift of A by one step in every round until E, or others' coins, take it over: (E, F) by (0, 1) in a round that hands it
on, by (1, 1 − m) in the last, or there the coins by one. So the ratio of likelihoods obeys

    Y_t = e ρ_E ρ_{1−m} + c ρ_coins + (1 − e − c) ρ_1 Y_{t+1},

e and c the chances to end here, ρ_E and ρ_coins the ratios for one step more, and ρ_k that for F higher by k; two of
them are of one F (``docs/proofs/cancel.md``). In the last round in which a user may not take part again it ends.
"""

from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numba import njit

from rqm._util.checks import FloatArray
from rqm.privacy.holding import shares
from rqm.privacy.paths import Ratio, seldom_told

FAR = 10
"""Deviations of F up to which its outcomes are told apart; what lies beyond counts as if it told all."""
CELLS, FINE = 2, 50
"""Cells of F's outcomes, and points of the ratio, in a deviation each."""
BELOW, ABOVE = 12, 80
"""Deviations of the ratio below and above 1 up to which it has points."""
ROUNDED = 1e-12
"""By how much ratios may be off the line that they lie on: less than is charged for the rounding errors of a round."""
LEAST = 1e-26
"""Chances too small to be carried on: split between 0 and what only the shift shows."""


class Sheet(NamedTuple):
    """Points (ρ_1, ρ_{1−m}) with their chances; what only a shifted F gives, for either shift; the variance of F."""

    one: FloatArray
    back: FloatArray
    chances: FloatArray
    alone: float
    alone_back: float
    variance: float


def sheet(law: FloatArray, times: int) -> Sheet:
    """Both ratios of F on few points that tell no less, F of this law.

    As ρ_1 rises ρ_{1−m} falls, ever more slowly. That line is cut into pieces, and each outcome of a piece is split
    between three corners that enclose the piece, with both means kept: its ends, and the corner below them. Where the
    line bends otherwise, as in the last tails of a table, outcomes count as if they told all.
    """
    law, z = law / law.sum(), np.arange(len(law))
    middle = float(law @ z)
    deviation = sqrt(float(law @ (z - middle) ** 2))
    first, last = max(1, int(middle - FAR * deviation)), min(len(law) - times, int(middle + FAR * deviation) + 1)
    if last - first < 2:
        return Sheet(np.zeros(1), np.zeros(1), np.ones(1), 1.0, 1.0, deviation**2)
    here = law[first : last + 1]
    one, back = law[first - 1 : last] / here, law[first + times - 1 : last + times] / here
    outside = float(law[:first].sum() + law[last + 1 :].sum())
    alone = float(law[: first - 1].sum() + law[last:].sum())
    alone_back = float(law[: first + times - 1].sum() + law[last + times :].sum())
    cuts = np.unique(np.append(np.arange(0, len(here), max(1, int(deviation / CELLS))), len(here) - 1))
    points: list[tuple[float, float, float]] = []
    for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        some = slice(a, b + (b == cuts[-1]))
        weights = _weights(one[some], back[some], (one[a], one[b]), (back[a], back[b]))
        if weights is None:
            outside += float(here[some].sum())
            alone += float(here[some] @ one[some])
            alone_back += float(here[some] @ back[some])
        else:
            places = (one[a], back[a]), (one[b], back[b]), (one[a], back[b])
            points += [(x, y, mass) for (x, y), mass in zip(places, (weights @ here[some]).tolist(), strict=True)]
    found = np.array([*points, (0.0, 0.0, outside)]).T
    return Sheet(found[0], found[1], found[2], alone, alone_back, deviation**2)


def _weights(
    x: FloatArray, y: FloatArray, ends: tuple[float, float], heights: tuple[float, float]
) -> FloatArray | None:
    """The weights of a piece's outcomes at its ends and at the corner below; None if they are not within these."""
    wide, high = ends[1] - ends[0], heights[0] - heights[1]
    if not (0 < wide < inf and 0 < high < inf):
        return None
    second, first = (x - ends[0]) / wide, (y - heights[1]) / high
    third = 1 - first - second
    off = max(-wide * float(second.min()) / ends[1], -high * float(min(first.min(), third.min())) / heights[0])
    if not off <= ROUNDED:
        return None
    second, third = np.clip(second, 0.0, 1.0), np.clip(third, 0.0, 1.0)
    third = np.minimum(third, 1 - second)
    return np.stack([1 - second - third, second, third])


class _Law(NamedTuple):
    """Chances of the whole numbers of steps from ``first`` on."""

    first: int
    chances: FloatArray

    @classmethod
    def of(cls, values: FloatArray, chances: FloatArray) -> "_Law":
        """Values in steps, each split between the two whole numbers around it: that keeps means, and tells more."""
        left = np.floor(values).astype(np.int64)
        first, part = int(left.min()), values - left
        found = np.bincount(left - first, chances * (1 - part), int(left.max()) - first + 2)
        found[1:] += np.bincount(left - first, chances * part)
        return cls(first, found.astype(np.float64))

    @property
    def values(self) -> FloatArray:
        """The whole numbers, as floats."""
        return self.first + np.arange(float(len(self.chances)))

    def plus(self, other: "_Law") -> "_Law":
        """The law of the sum of two."""
        return _Law(self.first + other.first, np.convolve(self.chances, other.chances))

    def within(self, lowest: int, highest: int) -> tuple["_Law", float, float]:
        """Of it what lies between; the chance of the rest, and its mean times that."""
        a, b = max(lowest - self.first, 0), max(highest + 1 - self.first, 0)
        rest = self.chances.copy()
        rest[a:b] = 0.0
        return _Law(max(lowest, self.first), self.chances[a:b]), float(rest.sum()), float(rest @ self.values)


def handed_on(
    stays: Ratio, coins: Ratio, variances: tuple[float, float], goes: Sheet, times: int, rounds: int, fine: int = FINE
) -> Ratio:
    """The ratio for a coin that is handed on for less than ``rounds`` rounds; ``variances`` of E and others' coins."""
    (now, step), zero, alone, later = (_Law(1, np.ones(1)), 1.0), 0.0, 0.0, inf
    stays, coins, used = seldom_told(stays), seldom_told(coins), goes.chances > LEAST
    one, back, weights = (part[used] for part in goes[:3])
    never = float(goes.chances[~used].sum())
    missed, missed_back = (
        more + float(goes.chances[~used] @ ratio[~used])
        for more, ratio in ((goes.alone, goes.one), (goes.alone_back, goes.back))
    )
    for _ in range(rounds):
        end, by_coins, on, later = shares(variances[0], goes.variance, times, variances[1], later)
        before, step = step, min(sqrt(later), 1 / 3) / fine
        lowest, highest = max(1, round(1 / step) - BELOW * fine), round(1 / step) + ABOVE * fine
        found, nothing = np.zeros(highest + 1), zero + never
        handed, ended = on * before / step * now.values, end / step * stays.values
        rare, lost = _spread(one, back, weights, handed, now.chances, ended, stays.chances, found)
        nothing += rare
        others = _Law.of(by_coins / step * coins.values, coins.chances)
        if not found.any():
            return Ratio(np.zeros(1), np.ones(1), 1.0)  # all of it is told
        first = int(np.flatnonzero(found)[0])
        now, rare, far = _Law(first, found[first:]).plus(others).within(lowest, highest)
        lost = step * (lost + far) + nothing * by_coins * float(coins.values @ coins.chances)
        lost += zero * end * float(goes.back @ goes.chances) * float(stays.values @ stays.chances)
        alone = lost + end * _either(stays.alone, missed_back) + on * _either(missed, alone) + by_coins * coins.alone
        now, zero, far = _often(now, nothing + rare)
        alone += step * far
    return Ratio(np.append(0.0, step * now.values), np.append(zero, now.chances), alone)


def _often(found: _Law, zero: float) -> tuple[_Law, float, float]:
    """Without its ends, too rare to be carried on: now 0, or what the shift alone shows."""
    kept = np.append(np.flatnonzero(found.chances > LEAST), int(found.chances.argmax()))
    often, rare, far = found.within(found.first + int(kept.min()), found.first + int(kept.max()))
    return often, zero + rare, far


def _either(one: float, other: float) -> float:
    """The chance of one or the other."""
    return one + other - one * other


@njit(cache=True)
def _spread(ones, backs, weights, handed, chances, ended, others, out):  # type: ignore[no-untyped-def]
    """Add the law of one · x + back · y to ``out``, x and y of two laws and (one, back) of a third.

    Returns the chance of what lies beyond the last point, and its mean times that.
    """
    rare, lost, top = 0.0, 0.0, len(out) - 1
    for k in range(len(ones)):
        near, first, beyond, rest = _on_points(backs[k], ended, others, 1.0, top)
        far, start, gone, missed = _on_points(ones[k], handed, chances, weights[k], top)
        mass, mean, whole, moment = 0.0, 0.0, gone, missed
        for j in range(len(near)):
            mass += near[j]
            mean += near[j] * (first + j)
        for i in range(len(far)):
            whole += far[i]
            moment += far[i] * (start + i)
        rare += whole * beyond + gone * mass
        lost += whole * rest + beyond * moment + gone * mean + missed * mass
        for i in range(len(far)):
            chance, base = far[i], start + i + first
            inside = min(len(near), max(top + 1 - base, 0))
            part = out[base : base + inside]
            for j in range(inside):
                part[j] += chance * near[j]
            for j in range(inside, len(near)):
                rare += chance * near[j]
                lost += chance * near[j] * (base + j)
    return rare, lost


@njit(cache=True)
def _on_points(scale, values, chances, weight, top):  # type: ignore[no-untyped-def]
    """Scaled values that rise, none negative, each split between the two whole numbers around it; the first of these.

    Besides, the chance of those beyond ``top``, and their mean times that.
    """
    first = int(min(scale * values[0], top))
    found = np.zeros(int(min(scale * values[-1], top)) - first + 2)
    beyond, rest = 0.0, 0.0
    for i in range(len(values)):
        value = scale * values[i]
        if value > top:
            beyond += weight * chances[i]
            rest += weight * chances[i] * value
            continue
        left = int(value)
        part = value - left
        found[left - first] += weight * chances[i] * (1 - part)
        found[left - first + 1] += weight * chances[i] * part
    return found, first, beyond, rest
