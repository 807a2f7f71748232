"""The Rényi privacy of additive mechanisms: what a sum's noise lets through of a shift.

Whatever the other clients send, their noise is the same, and their rounded inputs only turn the sum; so between two
rounded inputs that differ by k steps the divergence is f(k) = D_α(N ‖ N + k) for the noise N of all honest clients,
modulo M: exactly, for all inputs of the others.

Two inputs that differ by δ steps, rounded with the same coin, differ by ⌊δ⌋ or ⌈δ⌉ steps, δ in the mean. By joint
convexity of exp((α−1) D_α), with ρ the part of δ after the point,

    exp((α−1) D_α) ≤ (1 − ρ) exp((α−1) f(⌊δ⌋)) + ρ exp((α−1) f(⌈δ⌉)) =: exp((α−1) g(δ)).

The D_α of a vector is then at most the largest Σ g(δ_j) with Σ δ_j² ≤ S: for every λ ≥ 0 at most
λ S + d · max (g(δ) − λ δ²).

The same holds for μ of the Gaussian certificate, with μ(k) between integers and slopes of the stretches in between
(``docs/proofs/additive.md``).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf, sqrt

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.solve import lowest
from rqm.mechanisms.additive import Additive
from rqm.privacy.setting import Neighbours
from rqm.privacy.tradeoff import Events

SLACK = 1 + 1e-6
"""More than the errors of laws of sums, and of sums of terms that are not negative."""
LOOKED_AT = 8
"""Steps up to which every shift is looked at; of more, every so many'th part of them."""
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
        found = lowest(bound, steepest - 8, steepest + 8, xtol=1e-6)
        out[column] = dim * min(bound(found), bound(-inf), float(table[-1, column]))
    return out * SLACK


def shifts_of(mech: Additive, l2_clip: float, neighbours: Neighbours) -> tuple[float, float]:
    """How far two neighbours' coordinates can lie apart, in steps, and the sum of the squares of these distances."""
    replaced = neighbours == "replace"
    return mech.steps / (1 if replaced else 2), (4 if replaced else 1) * (l2_clip / mech.clip * mech.steps / 2) ** 2


def moved_gdp(mech: Additive, *, honest: int, dim: int, moved: float) -> float:
    """Certified μ of ``dim`` coordinates where a vector, wherever it lies, is moved so far at most.

    By the law of the sum modulo M, of which every outcome has its unit: no outcome is left out.
    """
    steps = moved / mech.clip * mech.steps / 2
    furthest = min(float(mech.steps), steps)
    return _under_budget(_turned(mech, honest, -int(-furthest // 1)), dim, furthest, steps**2)


@lru_cache(maxsize=256)
def _turned(mech: Additive, honest: int, most: int) -> tuple[FloatArray, FloatArray]:
    """μ(k) for k = 0, …, ``most``, and the steepest slope within a step: between turns of one law on its circle.

    Some k are looked at; the others are reached in two turns.
    """
    law = mech.summed(honest)

    def events(k: int) -> Events:
        found = Events.of(law, np.roll(law, k), 0.0)
        assert found is not None
        return found

    slope = 2 * events(1).steepest()
    mu = np.zeros(most + 1)
    last = 0
    for k in range(1, most + 1):
        if k <= LOOKED_AT or k >= last + last // LOOKED_AT or k == most:
            mu[k], last = events(k).apart(), k
        else:
            mu[k] = mu[last] + mu[k - last]
    return np.maximum.accumulate(np.minimum(mu, np.arange(most + 1) * slope)), np.full(most, slope)


def shifted_gdp(mech: Additive, *, honest: int, dim: int, furthest: float, squared: float, lost: float) -> float:
    """Certified μ of such coordinates, but for outcomes of probability ``lost``; infinite where noise is too narrow.

    Two inputs δ = k + ρ steps apart are reached one from the other by k whole steps, μ(k), and a part of a step, of
    slope κ(k) at most: μ(δ) ≤ μ(k) + ρ κ(k). And μ(δ) ≤ μ(k + 1), since rounded with the same coin they are k or k + 1
    steps apart.
    """
    most = min(mech.steps, -int(-furthest // 1))
    found = _whole_steps(mech, honest, most, 2.0 ** np.floor(np.log2(lost / (2 * dim))))
    return inf if found is None else _under_budget(found, dim, furthest, squared)


def _under_budget(found: tuple[FloatArray, FloatArray], dim: int, furthest: float, squared: float) -> float:
    """μ of ``dim`` coordinates from μ(k) and slopes: differences up to ``furthest`` each, ``squared`` in all."""
    mu, slope = found
    most = len(slope)
    k, base, last = np.arange(most), mu[:-1], np.full(most, 1.0)
    last[-1] = min(1.0, furthest - (most - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        last = np.minimum(last, np.nan_to_num(np.maximum(mu[1:] - base, 0) / slope, nan=0.0))

    def excess(price: float) -> float:
        """The largest μ(δ)² − price δ²: a parabola in ρ between two integers."""
        with np.errstate(divide="ignore", invalid="ignore"):
            top = np.nan_to_num((slope * base - price * k) / (price - slope**2), nan=0.0)
        rho = np.stack([np.zeros(most), last, np.clip(top, 0, last)])
        return float(((base + slope * rho) ** 2 - price * (k + rho) ** 2).max())

    mean = min(squared / dim, furthest**2)  # no coordinate can use more
    return sqrt(dim * min(_cheapest(excess, mean, slope.max() ** 2), float(mu[-1]) ** 2) * SLACK)


def _cheapest(excess: Callable[[float], float], mean: float, about: float) -> float:
    """The least of price · mean + excess(price) over prices, each of which gives a bound."""

    def bound(log_price: float) -> float:
        return float(np.exp(log_price)) * mean + excess(float(np.exp(log_price)))

    middle = float(np.log(about))
    return min(bound(lowest(bound, middle - 8, middle + 8, xtol=1e-7)), bound(middle))


@lru_cache(maxsize=256)
def _whole_steps(mech: Additive, honest: int, most: int, tail: float) -> tuple[FloatArray, FloatArray] | None:
    """μ(k) for k = 0, …, ``most`` and the steepest slope within a step beside k others, but for ``tail`` at each end.

    A pair of inputs lies on a way of k + 2 steps. All outcomes that are less likely than ``tail`` on all of the way are
    shown as one, at either end.
    """
    law, missing = mech.straight(honest)
    if 2 * missing > tail:
        return None
    first = int(np.searchsorted(np.cumsum(law), tail - missing, side="right"))
    last = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), tail - missing, side="right"))

    def shown(turn: int, way: int) -> FloatArray:
        """The noise turned by so many steps: all before the way's first outcome in one, and all after its last."""
        start, stop = first - way - turn, last + way - turn
        core = np.zeros(stop - start)
        low, high = max(start, 0), min(stop, len(law))
        core[low - start : high - start] = law[low:high]
        return np.concatenate([[law[:low].sum()], core, [law[high:].sum()]])

    mu, slope = np.zeros(most + 1), np.zeros(most)
    for k in range(most + 1):
        if k:
            events = Events.of(shown(0, k + 2), shown(k, k + 2), 0.0)
            mu[k] = min(inf if events is None else events.apart(), k * slope[k - 1])
        if k < most:
            cell = Events.of(shown(0, k + 2), shown(1, k + 2), 0.0)
            slope[k] = inf if cell is None else 2 * cell.steepest()
    if not (np.isfinite(mu).all() and np.isfinite(slope).all()):
        return None
    return np.maximum.accumulate(mu), slope
