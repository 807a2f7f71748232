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

from rqm._util.checks import FloatArray
from rqm.mechanisms.additive import Additive

SLACK = 1 + 1e-8
"""More than the rounding errors of sums of terms that are not negative."""
FINE = 64
"""Between two steps the bound is looked at so many times; each time for the whole stretch up to the next."""


@lru_cache(maxsize=64)
def shift_divergences(mech: Additive, orders: tuple[float, ...], honest: int, *, quick: bool = False) -> FloatArray:
    """f(k) for k = 0, …, steps, one row each, one column an order; of the noise that is sampled, rounded up."""
    law = mech.summed(honest, quick=quick)
    logs, out = np.log(law), np.zeros((mech.steps + 1, len(orders)))
    every = range(1, mech.steps + 1)
    looked_at = sorted({*every[:2], *every[:: max(1, mech.steps // 4)], mech.steps}) if quick else every
    for k in looked_at:
        turned = np.roll(law, k)
        ratio = logs - np.roll(logs, k)  # the noise is symmetric but for one outcome: look at both directions
        for q, u in ((turned, ratio), (law, -ratio))[: 1 if quick else 2]:
            out[k] = np.maximum(out[k], [_divergence(q, u, alpha) for alpha in orders])
    if quick:  # between them D grows as the square
        squares = np.arange(mech.steps + 1.0)[:, None] ** 2
        per_square = out[looked_at] / squares[looked_at]
        out = squares * np.array([np.interp(squares[:, 0], squares[looked_at, 0], one) for one in per_square.T]).T
    return np.maximum.accumulate(out, axis=0) * SLACK  # a larger shift counts for at least as much


def _divergence(q: FloatArray, u: FloatArray, alpha: float) -> float:
    """D_α(P ‖ Q) from Q and u = log P/Q, as a sum of terms that are not negative: small values keep their digits.

    Since ΣQ(e^u − 1) = 0, exp((α−1) D_α) − 1 = Σ Q (e^{αu} − 1 − α (e^u − 1)).
    """
    if alpha == inf:
        return float(u.max())
    if alpha == 1:
        return float((q * np.where(abs(u) < 1e-4, u * u / 2 * (1 + 2 * u / 3), u * np.exp(u) - np.expm1(u))).sum())
    if alpha * u.max() > 600:
        powers = alpha * u + np.log(q)
        top = powers.max()
        return float((top + np.log(np.exp(powers - top).sum())) / (alpha - 1))
    near = alpha * (alpha - 1) / 2 * u * u * (1 + (alpha + 1) / 3 * u)
    far = np.expm1(alpha * u) - alpha * np.expm1(u)
    return float(np.log1p((q * np.where(abs(alpha * u) < 1e-4, near, far)).sum()) / (alpha - 1))


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
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log1p((1 - part) * np.expm1(power[low]) + part * np.expm1(power[low + 1]))
        large = np.logaddexp(np.log1p(-part) + power[low], np.log(part) + power[low + 1])
    g = np.where(power[low + 1] < 500, small, large) / (alphas - 1)
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
