"""Bounds for additive integer noise: what the noise of a sum lets through of a shift.

The other clients' rounded inputs only shift the sum, so between two rounded inputs that differ by
k steps the divergence is f(k) = D_α(N ‖ N + k) for the noise N of all honest clients, modulo M:
exactly, for all inputs of the others. Two inputs that differ by s steps, rounded with the same
coin, differ by ⌊s⌋ or ⌈s⌉ steps, s on average. By joint convexity of exp((α−1) D_α), with ρ the
fractional part of s,

    exp((α−1) D_α) ≤ (1 − ρ) exp((α−1) f(⌊s⌋)) + ρ exp((α−1) f(⌈s⌉)) =: exp((α−1) g(s)).

D_α of a vector is at most the largest Σ g(s_j) with Σ s_j² ≤ S: for every λ ≥ 0 at most λS + d ·
max(g(s) − λs²). The same holds for μ², with μ(k) at whole steps and slopes in between
(docs/proofs/additive.md).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, exp, floor, inf, log, log1p, log2, sqrt

import numpy as np
from scipy.special import logsumexp

from rqm._util.checks import FloatArray
from rqm._util.numeric import find_minimum
from rqm.bounds import Neighboring
from rqm.certify.distributions import likely_range
from rqm.certify.gaussian_dp import BestEvents
from rqm.mechanisms.additive import Additive

NOISE_ROUND_UP = 1 + 1e-6
"""Above the relative errors of pmfs of summed noise, and of sums of nonnegative terms."""


def shift_range(mechanism: Additive, l2_clip: float, neighboring: Neighboring) -> tuple[float, float]:
    """The largest distances between coordinates of neighboring vectors.

    Args:
        mechanism: The mechanism.
        l2_clip: L2 bound of a vector.
        neighboring: "replace-one" or "zero-out".

    Returns:
        The largest difference of one coordinate in steps, and the sum of the squares of all
        differences.
    """
    squared = (l2_clip / mechanism.clip * mechanism.steps / 2) ** 2
    if neighboring == "zero-out":
        return mechanism.steps / 2, squared
    return float(mechanism.steps), 4 * squared


@lru_cache(maxsize=64)
def shift_divergences(mechanism: Additive, orders: tuple[float, ...], honest: int) -> FloatArray:
    """f(k) for k = 0, …, steps (rows) and some orders (columns), of the noise that is sampled,
    rounded up.

    See docs/proofs/additive.md#lemma-1.

    Args:
        mechanism: The mechanism.
        orders: Rényi orders from 1 to infinity.
        honest: Number of honest clients in the sum.

    Returns:
        An array of shape (steps + 1, orders).
    """
    noise = mechanism.summed(honest)
    logs = np.log(noise)
    divergences = np.zeros((mechanism.steps + 1, len(orders)))
    for k in range(1, mechanism.steps + 1):
        shifted = np.roll(noise, k)
        log_ratio = logs - np.roll(logs, k)
        for index, alpha in enumerate(orders):
            forward = _divergence(shifted, log_ratio, alpha)
            backward = _divergence(noise, -log_ratio, alpha)  # the noise is symmetric but for one outcome
            divergences[k, index] = max(forward, backward)
    return np.maximum.accumulate(divergences, axis=0) * NOISE_ROUND_UP  # a larger shift counts for at least as much


def _divergence(q: FloatArray, u: FloatArray, alpha: float) -> float:
    """D_α(P ‖ Q) from Q and u = log P/Q, as a sum of nonnegative terms so that small values keep
    their digits.

    Since Σ Q(e^u − 1) = 0, exp((α−1) D_α) − 1 = Σ Q (e^{αu} − 1 − α(e^u − 1)).
    """
    if alpha == inf:
        return float(u.max())
    if alpha > 1 and alpha * u.max() > 600:
        return float(logsumexp(alpha * u, b=q) / (alpha - 1))
    if alpha == 1:
        small = u * u / 2 * (1 + 2 * u / 3)
        large = u * np.exp(u) - np.expm1(u)
    else:
        small = alpha * (alpha - 1) / 2 * u * u * (1 + (alpha + 1) / 3 * u)
        large = np.expm1(alpha * u) - alpha * np.expm1(u)
    excess = float(np.where(abs(alpha * u) < 1e-4, small, large) @ q)
    return excess if alpha == 1 else log1p(excess) / (alpha - 1)


def shifted_rdp(
    mechanism: Additive, orders: Sequence[float], *, honest: int, dim: int, farthest: float, squared: float
) -> FloatArray:
    """Certified D_α of coordinates whose differences are bounded one by one and in the sum of
    squares.

    See docs/proofs/additive.md#theorem-4.

    Args:
        mechanism: The mechanism.
        orders: Rényi orders above 1.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        farthest: The largest difference of one coordinate, in steps.
        squared: The largest sum of the squares of all differences, in steps².

    Returns:
        One bound for each order.
    """
    alphas = np.array(orders, dtype=float)
    table = shift_divergences(mechanism, tuple(alphas.tolist()), honest)
    last = min(float(mechanism.steps), farthest)
    shift = np.append(np.arange(0, last, 1 / 64), last)  # the bound is computed at these
    low = np.minimum(shift[1:].astype(np.int64), mechanism.steps - 1)
    fraction = (shift[1:] - low)[:, None]
    below = (alphas - 1) * table[low]
    above = (alphas - 1) * table[low + 1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log1p((1 - fraction) * np.expm1(below) + fraction * np.expm1(above))
        large = np.logaddexp(np.log1p(-fraction) + below, np.log(fraction) + above)
    g = np.where(above < 500, small, large) / (alphas - 1)
    squares = shift[:-1] ** 2  # g at the end of an interval is paid for at its beginning
    bounds = np.empty(len(alphas))
    for index, gains in enumerate(g.T):

        def excess(price: float, gains: FloatArray = gains) -> float:
            return float((gains - price * squares).max())

        start = gains[-1] / max(squares[-1], 1e-12)
        bounds[index] = _least_bound(excess, squared / dim, start)
    return np.asarray(dim * np.minimum(bounds, table[-1]) * NOISE_ROUND_UP)


def _least_bound(excess: Callable[[float], float], mean: float, start: float) -> float:
    """The least of price · mean + excess(price) over prices, each of which gives a bound."""

    def bound(log_price: float) -> float:
        return exp(log_price) * mean + excess(exp(log_price))

    center = log(max(1e-300, start))
    return min(bound(find_minimum(bound, center - 8, center + 8, xtol=1e-7)), bound(center), excess(0.0))


def shifted_gdp(
    mechanism: Additive, *, honest: int, dim: int, farthest: float, squared: float, failure: float
) -> float:
    """Certified μ of coordinates whose differences are bounded one by one and in the sum of squares.

    Two inputs s = k + ρ steps apart are reached one from the other by k whole steps, μ(k), and a
    fraction of a step, of slope κ at most: μ(s) ≤ μ(k) + ρ κ. Also μ(s) ≤ μ(k + 1), as rounded
    inputs are k or k + 1 steps apart. κ depends on k only through the tails that are cut for k
    whole steps (κ(k) in docs/proofs/additive.md#lemma-7).

    See docs/proofs/additive.md#theorem-6.

    Args:
        mechanism: The mechanism.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        farthest: The largest difference of one coordinate, in steps.
        squared: The largest sum of the squares of all differences, in steps².
        failure: Probability of the outcomes that μ leaves out.

    Returns:
        μ, infinite where the noise is too narrow.
    """
    max_shift = min(mechanism.steps, ceil(farthest))
    tail = 2.0 ** floor(log2(failure / (2 * dim)))
    whole_steps = _whole_steps(mechanism, honest, max_shift, tail)
    return inf if whole_steps is None else _under_budget(*whole_steps, dim, farthest, squared)


def shifted_gdp_anywhere(mechanism: Additive, *, honest: int, dim: int, sensitivity: float) -> float:
    """Certified μ if the vector may lie anywhere in the clip and moves by at most `sensitivity` in
    L2.

    It is computed from the noise modulo M, of which every outcome has some probability: no
    outcome is left out.

    See docs/proofs/additive.md#theorem-9.

    Args:
        mechanism: The mechanism.
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        sensitivity: The largest L2 distance of neighboring vectors.

    Returns:
        μ.
    """
    steps = sensitivity / mechanism.clip * mechanism.steps / 2
    farthest = min(float(mechanism.steps), steps)
    mu, slope = _circular_steps(mechanism, honest, ceil(farthest))
    return _under_budget(mu, slope, dim, farthest, steps**2)


@lru_cache(maxsize=256)
def _circular_steps(mechanism: Additive, honest: int, max_shift: int) -> tuple[FloatArray, FloatArray]:
    """μ(k) for k = 0, …, `max_shift` and the steepest slope within a step, of the noise modulo M.

    See docs/proofs/additive.md#theorem-9.
    """
    noise = mechanism.summed(honest)

    def events(k: int) -> BestEvents:
        best = BestEvents.between(noise, np.roll(noise, k), 0.0)
        assert best is not None
        return best

    slope = 2 * events(1).steepest_slope()
    mu = np.zeros(max_shift + 1)
    last = 0
    for k in range(1, max_shift + 1):
        if k <= 8 or k >= last + last // 8 or k == max_shift:
            mu[k] = events(k).mu_between_ends()
            last = k
        else:  # composed of two shifts
            mu[k] = mu[last] + mu[k - last]
    mu = np.minimum(mu, np.arange(max_shift + 1) * slope)
    return np.maximum.accumulate(mu), np.full(max_shift, slope)


@lru_cache(maxsize=256)
def _whole_steps(mechanism: Additive, honest: int, max_shift: int, tail: float) -> tuple[FloatArray, FloatArray] | None:
    """μ(k) for k = 0, …, `max_shift` and the steepest slope κ(k) beside k more steps, except for a
    tail at each end.

    A pair of inputs lies on a line of k + 2 steps. All outcomes that are less likely than the
    tail everywhere on that line are merged into one, at either end.

    See docs/proofs/additive.md#lemma-7.
    """
    noise, missing = mechanism.unwrapped_sum_pmf(honest)
    if 2 * missing > tail:
        return None
    first, last = likely_range(noise, tail - missing)

    def merged(shift: int, line: int) -> FloatArray:
        """The shifted noise, with all outcomes before the line's first and after its last merged."""
        start = first - line - shift
        stop = last + line - shift
        low = max(start, 0)
        high = min(stop, len(noise))
        core = np.pad(noise[low:high], (low - start, stop - high))
        return np.concatenate([[noise[:low].sum()], core, [noise[high:].sum()]])

    def events(shift: int, line: int) -> BestEvents | None:
        return BestEvents.between(merged(0, line), merged(shift, line), 0.0)

    mu = np.zeros(max_shift + 1)
    slope = np.zeros(max_shift)
    for k in range(max_shift):
        step = events(1, k + 2)
        slope[k] = inf if step is None else 2 * step.steepest_slope()
        shifted = events(k + 1, k + 3)
        mu[k + 1] = (k + 1) * slope[k]
        if shifted is not None:
            mu[k + 1] = min(mu[k + 1], shifted.mu_between_ends())
    if not (np.isfinite(mu).all() and np.isfinite(slope).all()):
        return None
    return np.maximum.accumulate(mu), slope


def _under_budget(mu: FloatArray, slope: FloatArray, dim: int, farthest: float, squared: float) -> float:
    """μ of `dim` coordinates from μ(k) and slopes: differences up to `farthest` each, `squared` in
    all.

    See docs/proofs/additive.md#theorem-6.
    """
    max_shift = len(slope)
    k = np.arange(max_shift)
    base = mu[:-1]
    width = np.full(max_shift, 1.0)
    width[-1] = min(1.0, farthest - (max_shift - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.minimum(width, np.nan_to_num(np.maximum(mu[1:] - base, 0) / slope, nan=0.0))

    def excess(price: float) -> float:
        """The largest μ(s)² − price · s²: a parabola in ρ between two whole steps."""
        with np.errstate(divide="ignore", invalid="ignore"):
            top = np.nan_to_num((slope * base - price * k) / (price - slope**2), nan=0.0)
        rho = np.stack([np.zeros(max_shift), width, np.clip(top, 0, width)])
        return float(((base + slope * rho) ** 2 - price * (k + rho) ** 2).max())

    mean = min(squared / dim, farthest**2)  # no coordinate can use more
    largest = min(_least_bound(excess, mean, slope.max() ** 2), float(mu[-1]) ** 2)
    return sqrt(dim * largest * NOISE_ROUND_UP)
