"""The Rényi privacy of additive mechanisms: what a sum's noise lets through of a shift.

Whatever the other clients send, their noise is the same, and their rounded inputs only turn the sum; so between two
rounded inputs that differ by k steps the divergence is f(k) = D_α(N ‖ N + k) for the noise N of all honest clients,
modulo M: exactly, for all inputs of the others.

Two inputs that differ by δ steps, rounded with the same coin, differ by ⌊δ⌋ or ⌈δ⌉ steps, δ in the mean. By joint
convexity of exp((α−1) D_α), with ρ the part of δ after the point,

    exp((α−1) D_α) ≤ (1 − ρ) exp((α−1) f(⌊δ⌋)) + ρ exp((α−1) f(⌈δ⌉)) =: exp((α−1) g(δ)).

The D_α of a vector is then at most the largest Σ g(δ_j) with Σ δ_j² ≤ S: for every λ ≥ 0 at most
λ S + d · max (g(δ) − λ δ²).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np
from scipy.optimize import minimize_scalar

from rqm._checks import FloatArray
from rqm.mechanisms.additive import Additive

SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""
FINE = 64
"""Between two steps the bound is looked at so many times; each time for the whole stretch up to the next."""


@lru_cache(maxsize=64)
def shift_divergences(mech: Additive, orders: tuple[float, ...], honest: int, *, quick: bool = False) -> FloatArray:
    """f(k) for k = 0, …, steps, one row each, one column an order; of the noise that is sampled, rounded up."""
    law = mech.summed(honest, quick=quick)
    logs, out = np.log(law), np.zeros((mech.steps + 1, len(orders)))
    alphas = np.array(orders)
    finite = np.isfinite(alphas) & (alphas > 1)
    every = range(1, mech.steps + 1)
    looked_at = sorted({*every[:2], *every[:: max(1, mech.steps // 4)], mech.steps}) if quick else every
    for k in looked_at:
        ratio = logs - np.roll(logs, k)  # the noise is symmetric but for one outcome: look at both directions
        for turned in (ratio, -ratio):
            weights = law if turned is ratio else np.roll(law, k)
            powers = np.multiply.outer(alphas[finite] - 1, turned)
            top = powers.max(axis=1)
            sums = np.log((weights * np.exp(powers - top[:, None])).sum(axis=1)) + top
            out[k, finite] = np.maximum(out[k, finite], sums / (alphas[finite] - 1))
            out[k, alphas == 1] = np.maximum(out[k, alphas == 1], (weights * turned).sum())
            out[k, np.isinf(alphas)] = np.maximum(out[k, np.isinf(alphas)], turned.max())
    if quick:  # between them D grows as the square
        squares = np.arange(mech.steps + 1.0)[:, None] ** 2
        per_square = out[looked_at] / squares[looked_at]
        out = squares * np.array([np.interp(squares[:, 0], squares[looked_at, 0], one) for one in per_square.T]).T
    return np.maximum.accumulate(out, axis=0) * SLACK  # a larger shift counts for at least as much


def coordinate(mech: Additive, orders: Sequence[float], honest: int) -> tuple[FloatArray, list[int]]:
    """The largest D_α of one coordinate for each order, exact but for rounding, and the shift that attains it."""
    found = shift_divergences(mech, tuple(map(float, orders)), honest)
    return found[-1], [int(np.argmax(column >= column[-1] / SLACK)) for column in found.T]


def shifted_rdp(
    mech: Additive,
    orders: Sequence[float],
    *,
    honest: int,
    dim: int,
    squared: float,
    furthest: float,
    quick: bool = False,
) -> FloatArray:
    """Certified D_α of ``dim`` coordinates whose differences are at most ``furthest`` steps each, ``squared`` in all.

    ``squared`` is the sum of squares of the differences, in steps². Of the noise that is sampled: before it is rounded
    to integers it has no floor. ``quick`` sums by Fourier transforms: an estimate, good enough to search with.
    """
    alphas = np.array(orders, dtype=float)
    table = shift_divergences(mech, tuple(alphas.tolist()), honest, quick=quick)
    last = min(float(mech.steps), furthest)
    delta = np.unique(np.concatenate([np.arange(0, last, 1 / FINE), [last]]))
    low = np.minimum(delta[1:].astype(int), mech.steps - 1) if mech.steps > 1 else np.zeros(len(delta) - 1, int)
    part = (delta[1:] - low)[:, None]
    power = (alphas - 1) * table
    with np.errstate(divide="ignore"):
        g = np.logaddexp(np.log1p(-part) + power[low], np.log(part) + power[low + 1]) / (alphas - 1)
    t = delta[:-1] ** 2  # g at the end of a stretch is paid for at its beginning
    out = np.empty(len(alphas))
    for column in range(len(alphas)):
        gains, mean = g[:, column], squared / dim

        def bound(log_price: float, gains: FloatArray = gains, mean: float = mean) -> float:
            price = np.exp(log_price)
            return float(price * mean + (gains - price * t).max())

        steepest = np.log(max(1e-300, gains[-1] / max(t[-1], 1e-12)))
        found = minimize_scalar(bound, bounds=(steepest - 8, steepest + 8), method="bounded", options={"xatol": 1e-6})
        out[column] = dim * min(bound(float(found.x)), bound(-inf), float(table[-1, column]))
    return out * SLACK
