"""Privacy losses: a δ that is known as a function of ε becomes a law of losses, and laws of independent ones add up.

``docs/verify.md`` has the proof.
"""

from collections.abc import Callable
from math import ceil, inf, log
from typing import NamedTuple

import numpy as np

from .laws import Array

SLACK = 1 + 1e-6
"""More than the rounding errors of ε."""
HUGE = 700.0
"""An ε beyond this is not looked for among privacy losses: its exponential is no number."""
LARGEST = 2**23
"""Losses beyond so many are not composed."""
GRID = 2000
"""Values of ε at which the δ of a release is looked at, where releases differ in who is honest."""
REST = 1e-3
"""The part of δ that pays for losses beyond the last of these values."""


class Losses(NamedTuple):
    """The chances of losses at multiples of ``gap`` from ``start`` on; ``lost`` is that of all others."""

    law: Array
    start: int
    gap: float
    lost: float

    def delta(self, epsilon: Array) -> Array:
        """δ at some ε from 0 to ``HUGE``, rounded up."""
        at = self.gap * (self.start + np.arange(len(self.law)))
        above, paid = (np.append(np.cumsum(one[::-1])[::-1], 0.0) for one in (self.law, self.law * np.exp(-at)))
        first = np.searchsorted(at, epsilon, side="right")
        return np.asarray(np.maximum(above[first] - np.exp(epsilon) * paid[first], 0) + self.lost)

    def times(self, count: int, cut: float) -> "Losses":
        """Of so many independent ones, but for a chance of ``cut`` at either end, by Chernoff's bound."""
        here = self.start + np.arange(len(self.law))
        losses, farthest, ends = self.gap * here, int(abs(here).max()), []
        lost = count * self.lost * (1 + 1e-9)
        for sign in (1, -1):
            tilts = (2.0 ** np.arange(-14, 12) / (self.gap * farthest)).tolist()
            far = min((count * np.log(self.law @ np.exp(sign * t * losses)) - log(cut)) / t for t in tilts)
            ends.append(sign * min(count * farthest, ceil(far / self.gap)))
        top, bottom = ends
        size = 1 << (top - bottom + 1).bit_length()
        if size > LARGEST:
            return Losses(np.ones(1), 0, self.gap, inf)
        wrapped = np.zeros(size)
        np.add.at(wrapped, here % size, self.law)
        total = np.maximum(np.fft.irfft(np.fft.rfft(wrapped) ** count, size), 0)
        law = np.roll(total, -bottom)[: top - bottom + 1]
        return Losses(law, bottom, self.gap, lost + 2 * cut + size * 1e-18)

    def epsilon(self, delta: float) -> float:
        """The smallest multiple of ``gap`` at which δ is enough."""
        at = self.gap * np.arange(max(0, self.start), self.start + len(self.law), dtype=np.float64)
        at = at[at <= HUGE]
        good = np.flatnonzero(self.delta(at) <= delta)
        return float(at[good[0]]) * SLACK if len(good) else inf


def joined(more: Array, gap: float) -> Losses:
    """From δ at ε = 0, ``gap``, …, the same in both directions: straight lines in e^ε between its points are above it.

    δ(x) − max(0, 1 − x) for x = e^ε at 1/x is that at x, over x. The lines are the δ of a law with atoms q at the
    points, p = x q.
    """
    half = len(more) - 1
    x = np.exp(gap * np.arange(half + 1))
    x, more = np.concatenate([1 / x[:0:-1], x]), np.concatenate([(more / x)[:0:-1], more])
    q = np.diff(np.concatenate([[0.0], np.diff(more) / np.diff(x), [0.0]]))
    q[half] += 1
    return Losses(np.maximum(q, 0) * x, -half, gap, float(more[-1]))


def repeated(profile: Callable[[Array], Array], count: int, delta: float) -> float:
    """ε of so many releases, of each of which the δ is known; infinite if none is enough."""
    grid = np.geomspace(2.0**-20, HUGE, 301)
    enough = np.flatnonzero(profile(grid) <= (delta if count == 1 else REST * delta / count))
    if not len(enough):
        return inf
    last = int(enough[0])
    if count == 1:
        grid = np.linspace(grid[last - 1] if last else 0.0, grid[last], 1001)
        return float(grid[np.flatnonzero(profile(grid) <= delta)[0]]) * SLACK
    gap = float(grid[last]) / GRID
    more = np.maximum.accumulate(profile(gap * np.arange(GRID + 1, dtype=np.float64))[::-1])[::-1]
    return joined(more, gap).times(count, REST * delta).epsilon(delta)
