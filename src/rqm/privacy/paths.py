"""Ratios of likelihoods along a path, round after round, in compiled loops (``cancel.py``)."""

from math import sqrt
from typing import NamedTuple

import numpy as np
from numba import njit

from rqm._util.checks import FloatArray

FINE, ROUGH = 100, 25
"""Values that are told apart in each deviation of a ratio; others are split between two of them, which keeps means."""
BELOW, ABOVE = 12, 16
"""Deviations below and above 1 up to which they are told apart so finely; above, …"""
COARSE, FAR = 32, 1024
"""… so many steps are taken together, so many times."""

SELDOM = 1e-28
"""Chances too small to be carried on, in loops whose time goes with the number of values."""


class Ratio(NamedTuple):
    """How much likelier shifted noise is than noise: values, and their chances under the noise.

    ``alone`` is the probability of what only the shifted noise can give.
    """

    values: FloatArray
    chances: FloatArray
    alone: float

    @property
    def variance(self) -> float:
        """Its variance under the noise."""
        return float(self.chances @ (self.values - self.chances @ self.values) ** 2)


def along(w: FloatArray, coins: Ratio, held: Ratio, fine: int = FINE, seldom: float = SELDOM) -> Ratio:
    """The ratio for noise shifted along a path: held for a time drawn by ``w``, then by coins.

    From the last round back, each time divided by the chance to come so far: its mean and ``alone`` add up to 1.
    """
    come = np.cumsum(w[::-1])[::-1]
    coins, held = seldom_told(coins, seldom), seldom_told(held, seldom)
    found, spread = coins, coins.variance
    for time in range(len(w) - 2, -1, -1):
        if come[time] == 0:
            continue
        share = w[time] / come[time]
        spread = held.variance + (1 + held.variance) * spread
        product = _combined(found, held, (0.0, 1.0, 0.0), spread, fine, seldom)
        spread = share**2 * coins.variance + (1 - share) ** 2 * spread
        found = _combined(product, coins, (1 - share, 0.0, share), spread, fine, seldom)
    return found


def _combined(
    one: Ratio, other: Ratio, how: tuple[float, float, float], spread: float, dense: int, seldom: float
) -> Ratio:
    """The law of x (p + q y) + s y, for independent x and y of these laws, on points that suit its variance."""
    p, q, s = how
    deviation = min(sqrt(spread), 1 / 3)
    step = deviation / dense
    below = min(BELOW * dense, int((1 - 1e-9) / step))
    fine, far = np.arange(-below, ABOVE * dense + 1), ABOVE * dense + COARSE * np.arange(1, FAR + 1)
    points = np.append(0.0, 1 + np.append(fine, far) * step)
    chances = np.zeros(len(points))
    lost = _spread(one.values, one.chances, other.values, other.chances, p, q, s, points, chances, len(fine))
    # what only the shift can give: in one, in the other, or in both
    mean, whole = float(one.chances @ one.values), float(other.chances @ other.values)
    alone = p * one.alone + s * other.alone + q * (one.alone * (whole + other.alone) + mean * other.alone)
    return seldom_told(Ratio(points, chances, alone + lost), seldom)


def seldom_told(found: Ratio, limit: float = SELDOM) -> Ratio:
    """A ratio that tells a little more: values that hardly ever come become 0, or what the shift alone gives.

    That keeps chances and means, and most values of a grid are such: far from 1.
    """
    seldom = found.chances < limit
    seldom[0] = False  # the value 0, on every grid
    chances, values = found.chances[~seldom], found.values[~seldom]
    chances[0] += found.chances[seldom].sum()
    return Ratio(values, chances, found.alone + float(found.chances[seldom] @ found.values[seldom]))


@njit(cache=True)
def _spread(values, chances, others, weights, p, q, s, points, out, fine):  # type: ignore[no-untyped-def]
    """Add the law to ``out``; return by how much what lies beyond the last point misses it."""
    first, end, last = points[1], points[fine], len(points) - 1
    step, wide = points[2] - points[1], points[last] - points[last - 1]
    lost = 0.0
    for j in range(len(others)):
        if weights[j] == 0.0:
            continue
        scale, shift = p + q * others[j], s * others[j]
        for i in range(len(values)):
            chance = chances[i] * weights[j]
            value = values[i] * scale + shift
            if value < first:
                part = value / first
                out[0] += chance * (1 - part)
                out[1] += chance * part
                continue
            if value >= points[last]:
                out[last] += chance
                lost += chance * (value - points[last])
                continue
            place = (value - first) / step + 1 if value < end else (value - end) / wide + fine
            left = min(int(place), last - 1)
            part = place - left
            out[left] += chance * (1 - part)
            out[left + 1] += chance * part
    return lost
