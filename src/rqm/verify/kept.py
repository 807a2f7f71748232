"""Noise of which a part stays: what a path tells, told from scratch; ``docs/verify.md`` has the proof.

The noise of a sum is m E + F, and all but E is taken back. A shift by one step is handed on by F from round to round
until E, or others' coins, take it over: with Y' of the round after,

    Y = e ρ_E(E) ρ_back(F) + c ρ_coins + (1 − e − c) ρ_one(F) Y',

ρ_one and ρ_back the ratios for F one step higher and m − 1 steps lower. All values lie on an even
grid that begins at 0.
"""

from math import ceil, floor, sqrt
from typing import NamedTuple

import numpy as np

from .laws import Array, Unsure

DENSE = 36
"""Points of the grid in a deviation of the ratio."""
HIGHEST = 80
"""Deviations above 1 up to which there are points."""
WIDTH, REACH = 0.5, 10.0
"""Cells of F's outcomes, and how far from their middle they are told apart, in deviations."""
RARE = 1e-32
"""Chances that are not carried on: they become 0, and what is seen in one world only."""
LASTING = 4
"""A shift is handed on for at most so many times m rounds: more gains nothing."""


class Corners(NamedTuple):
    """Points (ρ_one, ρ_back) and their chances; what only the world with a shift shows, for either."""

    one: Array
    back: Array
    chances: Array
    gone: float
    gone_back: float


def corners(law: Array, times: int) -> Corners:
    """Both ratios of F. Cells of outcomes are split between three corners each, with both means kept.

    As ρ_one rises ρ_back falls, ever more slowly: an outcome lies below the line between the ends of its cell, and so
    within the triangle of these ends and of the corner below.
    """
    places = np.arange(len(law))
    middle, wide = len(law) // 2, sqrt(float(law @ (places - law @ places) ** 2))
    low, high = max(1, floor(middle - REACH * wide)), min(len(law) - times, ceil(middle + REACH * wide))
    if high - low < 3:
        raise Unsure(f"times = {times}: noise that goes is too narrow for it")
    one, back = law[low - 1 : high] / law[low : high + 1], law[low + times - 1 : high + times] / law[low : high + 1]
    here, points = law[low : high + 1], []
    steps = max(1, round(WIDTH * wide))
    for first in range(0, len(here) - 1, steps):
        last = min(first + steps, len(here) - 1)
        cell = slice(first, last + (last == len(here) - 1))
        u = (one[cell] - one[first]) / (one[last] - one[first])
        v = (back[cell] - back[last]) / (back[first] - back[last])
        tall = (back[first] - back[last]) / back[first]
        if not (u.min() >= 0 and v.min() >= 0 and tall * ((u + v).max() - 1) <= 1e-11):
            raise Unsure(f"times = {times}: the ratios of noise that goes do not bend one way")
        below = np.maximum(1 - u - v, 0.0)
        points += [
            (one[last], back[last], here[cell] @ u),
            (one[first], back[first], here[cell] @ v),
            (one[first], back[last], here[cell] @ below),
        ]
    far = float(law[:low].sum() + law[high + 1 :].sum())
    found = np.array([*points, (0.0, 0.0, far)]).T
    gone, gone_back = (float(law[: low + k].sum() + law[high + 1 + k :].sum()) for k in (-1, times - 1))
    return Corners(found[0], found[1], found[2], gone, gone_back)


def ends_here(stays: float, goes: float, times: int, coins: float, later: float | None) -> tuple[float, float, float]:
    """e and c, the best if all were Gaussian of these variances, and μ²; ``later`` is that of the round after."""
    if later is None:  # it must end
        cost = 1 / stays + (times - 1) ** 2 / goes
        e = 1 / (1 + cost * coins)
        return e, 1 - e, cost * e**2 + (1 - e) ** 2 / coins
    matrix = np.array(
        [[1 / stays + times**2 / goes + later, times / goes + later], [0.0, 1 / goes + 1 / coins + later]]
    )
    matrix[1, 0] = matrix[0, 1]
    e, c = np.linalg.solve(matrix, np.array([times / goes + later, 1 / goes + later])).tolist()
    if c < 0:
        e, c = min(1.0, (times / goes + later) / matrix[0, 0]), 0.0
    if e + c > 1:
        return ends_here(stays, goes, times, coins, None)
    told = e**2 / stays + (1 - c - times * e) ** 2 / goes + c**2 / coins + later * (1 - e - c) ** 2
    return e, c, float(told)


class _Line(NamedTuple):
    """Chances of ``first`` steps, one more, …"""

    first: int
    chances: Array

    def values(self) -> Array:
        """The numbers of steps."""
        return np.arange(float(self.first), self.first + len(self.chances))

    def mean(self) -> float:
        """The mean, if chances add up to 1."""
        return float(self.values() @ self.chances)


def handed(
    stays: tuple[Array, Array, float], coins: tuple[Array, Array, float], both: Corners, how: tuple[float, ...]
) -> tuple[Array, Array, float]:
    """Values and chances of the ratio, and what is seen in one world only; the same of E's and the coins'.

    ``how``: the variances of E, F and the coins, m, and the rounds in which it may be handed on. What lies beyond the
    last point, or hardly ever comes, becomes 0, and its mean what is seen in one world only.
    """
    of_stays, of_goes, of_coins, times, rounds = how
    later: float | None = None
    step, found, none, gone = 1.0, _Line(1, np.ones(1)), 0.0, 0.0
    points = [point for point in zip(*(part.tolist() for part in both[:3]), strict=True) if point[2] > 0]
    back_mean = float(both.back @ both.chances)
    for _ in range(int(rounds)):
        before = step
        e, c, later = ends_here(of_stays, of_goes, int(times), of_coins, later)
        step = min(sqrt(later), 0.5) / DENSE
        top, on = round(1 / step) + HIGHEST * DENSE, max(0.0, 1 - e - c)
        ended = e / step * stays[0]
        sums, beyond, lost = np.zeros(top + 1), none, none * back_mean * float(ended @ stays[1])
        for one, back, chance in points:
            first, missed, more = _line(on * one * before / step * found.values(), found.chances, top)
            second, rest, much = _line(back * ended, stays[1], top)
            beyond += chance * (missed + rest)
            lost += chance * (more + much + missed * float(back * ended @ stays[1]) + rest * first.mean())
            inside, rare, far = _cut(_sum(first, second), 0, top)
            sums[inside.first : inside.first + len(inside.chances)] += chance * inside.chances
            beyond, lost = beyond + chance * rare, lost + chance * far
        if not sums.any():
            return np.zeros(1), np.ones(1), 1.0
        start = int(np.flatnonzero(sums)[0])
        third, rest, much = _line(c / step * coins[0], coins[1], top)
        lost += beyond * float(c / step * coins[0] @ coins[1]) + much + rest * float(sums @ np.arange(top + 1))
        line = _sum(_Line(start, sums[start:]), third)
        beyond += rest
        often = line.first + np.append(np.flatnonzero(line.chances > RARE), int(line.chances.argmax()))
        found, rare, far = _cut(line, int(often.min()), min(int(often.max()), top))
        none = beyond + rare
        gone = c * coins[2] + on * _either(gone, both.gone) + step * (lost + far)
        gone += e * _either(stays[2], both.gone_back)
    return np.append(0.0, step * found.values()), np.append(none, found.chances), gone


def _line(values: Array, chances: Array, top: int) -> tuple[_Line, float, float]:
    """Values in steps, each split between the two points around it: its mean is kept.

    Besides, the chance of those beyond ``top``, and the sum of these values times their chances.
    """
    far = values > top
    missed, more = float(chances[far].sum()), float(values[far] @ chances[far])
    values, chances = np.where(far, top, values), np.where(far, 0.0, chances)
    left = values.astype(np.int64)
    part, first = values - left, int(left.min())
    left -= first
    size = int(left.max()) + 2
    found = np.bincount(left, chances * (1 - part), size) + np.bincount(left + 1, chances * part, size)
    return _Line(first, found.astype(np.float64)), missed, more


def _either(one: float, other: float) -> float:
    """The chance of one or the other."""
    return one + other - one * other


def _sum(one: _Line, other: _Line) -> _Line:
    """The law of a sum of two."""
    return _Line(one.first + other.first, np.convolve(one.chances, other.chances))


def _cut(line: _Line, low: int, high: int) -> tuple[_Line, float, float]:
    """What lies between; the chance of the rest, and the sum of its values times their chances."""
    a, b = max(0, low - line.first), max(0, high + 1 - line.first)
    rest, values = np.concatenate([line.chances[:a], line.chances[b:]]), line.values()
    far = float(rest @ np.concatenate([values[:a], values[b:]])) if len(rest) else 0.0
    return _Line(line.first + a, line.chances[a:b]), float(rest.sum()), far
