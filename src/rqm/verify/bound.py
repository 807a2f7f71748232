"""A second bound on ε, simpler than the accountant's and told from scratch: ``docs/verify.md`` has the proof.

It takes what a release is, and how many of them one user was part of.
"""

from collections.abc import Callable
from functools import cache
from math import atanh, erfc, expm1, inf, log, log1p, sqrt
from typing import NamedTuple

import numpy as np

from .cancel import mu_cancelled
from .gaussian import CROWD, cheapest, epsilon_of, leaks, mu_of
from .laws import LONG, TAIL, Array, Unsure, ends, noise, others
from .losses import HUGE, Losses, joined, repeated
from .promise import Promise

ORDERS: tuple[float, ...] = (1.25, 1.5, 1.75, 2, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8, 9, 10, 11, 12, 14)
ORDERS += (16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
PARTS = np.array([0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0])[:, None]
"""Distances of two inputs, in units of the largest, between which every outcome is taken at its worst."""
FINE = 64
"""Stretches of a step, on each of which additive noise is taken at its worst."""
LARGE = 2**25
"""Outcomes times steps beyond which additive noise takes too long."""
FEW, GRID = 1000, 1000
"""Coordinates times releases up to which privacy losses are composed, and values of a loss on either side of 0."""
SLACK, ERROR = 1 + 1e-6, 2e-13
"""More than the rounding errors of ε, and of a coordinate's δ."""
NEAR = 1.03
"""Within this of a Gaussian of the same variance, a bound is good enough."""
CUT, FARTHEST = 2e-3, 1e-3
"""The part of δ that is kept back, as accountants may do, and what outcomes far out in the tails cost of it."""


def epsilon(promise: Promise, releases: int) -> tuple[float, float]:
    """An ε that holds for a user who was part of so many releases, and one below which no truthful statement lies."""
    kind = promise.mechanism["mechanism"]
    if not releases:
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        if promise.cancel is not None:
            return _cancelled(promise, releases), 0.0
        if kind == "gaussian":
            return _gaussian(promise, releases)
        if kind in ("rounding", "rqm", "pbm"):
            found, lower = _affine(promise, releases)
        elif kind == "vqsgd":
            found, lower = _affine(promise, releases)[0], 0.0  # others cannot send zero in one bit alone
        elif kind in ("discrete-gaussian", "skellam", "binomial"):
            found, lower = min(_additive(promise, releases), _certified(promise, releases)[0]), 0.0
        else:
            raise Unsure(f"mechanism = {kind}: this verifier has no bound for it")
    if HUGE < found < inf and len(promise.crowds(releases)[0]) > 1:
        raise Unsure(f"honest = {promise.honest}: this verifier has no tight bound for a fraction and so large an ε")
    return found, lower


def _smallest(leak: Callable[[float], float], releases: int, delta: float) -> float:
    """ε of Rényi divergences that compose, at the best order that a search finds (Canonne, Kamath, Steinke 2020)."""

    @cache
    def at(index: int) -> float:
        alpha = ORDERS[index]
        total = releases * leak(alpha) * SLACK
        if not total < inf:
            return inf
        if -expm1(-total) < delta**2:  # then even the total variation is below δ (Bretagnolle and Huber 1979)
            return 0.0
        return max(0.0, total + log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1))

    low, high = 0, len(ORDERS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
    return at(low) * SLACK


def _gaussian(promise: Promise, releases: int) -> tuple[float, float]:
    """Exactly, but for some δ that accountants may keep back; how many clients are honest does not matter here."""
    mu = (1 if promise.zero_out else 2) / promise.mechanism["noise_multiplier"] * sqrt(releases)
    left = promise.floor(releases)[1] * (1 - CUT)
    return epsilon_of(mu, left)[0], epsilon_of(mu * promise.attained, promise.delta)[1]


def _certified(promise: Promise, releases: int) -> tuple[float, float]:
    """By the μ of a release, for every number of honest clients that it may hold; and the largest μ of one."""
    crowds, delta = promise.crowds(releases)
    delta -= CUT * promise.delta
    each: list[tuple[float, float]] = []
    for chance, honest in crowds:
        each.append((chance, mu_of(promise, honest, FARTHEST * promise.delta / releases)))
        if each[-1][1] == inf:
            return inf, inf
    most = max(mu for _, mu in each)
    if len(each) == 1:
        return epsilon_of(most * sqrt(releases), delta)[0], most
    return repeated(lambda eps: _mixed([(chance, leaks(mu, eps)) for chance, mu in each]), releases, delta), most


def _cancelled(promise: Promise, releases: int) -> float:
    """By the μ of one participation; all rounds must have as many honest clients."""
    if isinstance(promise.honest, float):
        raise Unsure(
            f"honest = {promise.honest}: this verifier has no bound for a fraction and noise that is taken back"
        )
    honest, delta = promise.floor(releases)
    mu = mu_cancelled(promise, honest, releases, FARTHEST * promise.delta / releases)
    if not mu > 0:
        raise Unsure(f"cancel = {promise.cancel}: no μ was found")
    return epsilon_of(mu * sqrt(releases), delta - CUT * promise.delta)[0] if mu < inf else inf


def _mixed(parts: list[tuple[float, Array]]) -> Array:
    return np.asarray(sum(chance * one for chance, one in parts))


def _phi(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


# -- laws that are affine on the clip -------------------------------------------------------------


class _Pairs(NamedTuple):
    """For each split of the others, the laws of the sum with the user at −c and at c; and what their tails lack.

    No outcome, of one client or of a sum, leans more than ``lean``: the law at u c is m (1 + u r), and |r| ≤ lean.
    """

    ends: list[tuple[Array, Array]]
    lean: float
    lost: float


def _pairs(low: Array, high: Array, honest: int) -> _Pairs:
    found = []
    for other in others(low, high, honest - 1):
        down, up = np.convolve(low, other), np.convolve(high, other)
        seen = (down > 0) & (up > 0)  # both, or neither
        found.append((down[seen], up[seen]))
    one = low + high > 0
    lean = float((abs(high - low)[one] / (high + low)[one]).max())
    return _Pairs(found, lean, 8 * (honest + LONG) * TAIL if honest * len(low) >= LONG else 0.0)


def _shapes(pairs: _Pairs, zero_out: bool) -> list[tuple[Array, Array]]:
    """(F, y) such that every pair to look at is F and F (1 − a y), 0 < a ≤ 1; with what was cut off, at its worst."""
    found, most = [], pairs.lean
    worst = [2 * most / (1 + most), -2 * most / (1 - most)]
    for down, up in pairs.ends:
        r = (up - down) / (up + down)
        bases = [(up, 2 * r / (1 + r)), (down, -2 * r / (1 - r))]
        if zero_out:
            bases = [((down + up) / 2, r), ((down + up) / 2, -r)]
        found += [(np.append(f, [pairs.lost] * 2), np.append(y, worst)) for f, y in bases]
    return found


def _curve(p: float, x: Array) -> Array:
    """((1−x)^p − 1 + p x) / x²: monotone in x < 1, and positive for p < 0 or p > 1."""
    near = p * (p - 1) / 2 * (1 - (p - 2) * x / 3 * (1 - (p - 3) * x / 4))
    small = abs(x) * (abs(p) + 3) < 1e-3
    safe = np.where(small, 0.5, x)
    found = np.where(small, near, (np.expm1(p * np.log1p(-safe)) + p * safe) / safe**2)
    return np.nan_to_num(found, nan=inf, posinf=inf)  # what is beyond all numbers is no bound


def _excess(shapes: list[tuple[Array, Array]], alpha: float) -> tuple[float, float]:
    """κ with exp((α−1) D_α) − 1 ≤ κ a² for all pairs and all 0 < a ≤ 1; and the value at a = 1."""
    kappa = far = 0.0
    for law, y in shapes:
        weight = law * y * y
        seen = weight > 0
        for p in (alpha, 1 - alpha):
            values = _curve(p, PARTS * y[seen])
            worst = np.maximum(values[1:], values[:-1]) @ weight[seen]
            kappa, far = max(kappa, *worst.tolist()), max(far, float(values[-1] @ weight[seen]))
    return kappa, far


def _affine(promise: Promise, releases: int) -> tuple[float, float]:
    """By the certificate, unless there is none or it is far from what the variance tells: then in other ways, too."""
    low, high, trials = ends(promise.mechanism)
    honest, d = promise.floor(releases)[0], promise.coordinates
    if ((low > 0) != (high > 0)).any():
        return inf, 0.0  # some outcome tells all
    if honest * (len(low) - 1) ** 2 > CROWD:
        raise Unsure(f"{honest} honest clients of {len(low)} outcomes: takes this verifier too long")
    found, mu = _certified(promise, releases)
    if found == inf or mu > NEAR * _normal(promise, low, high, trials, promise.crowds(releases)[0][0][1]):
        found = min(found, _divergences(promise, releases))
        found = min(found, _few(promise, releases)) if d * releases <= FEW else found
    most = promise.clients if isinstance(promise.honest, float) else honest  # of a sample, with luck all are honest
    return found, min(found, _at_least(promise, low, high, trials * releases, most))


def _normal(promise: Promise, low: Array, high: Array, trials: int, honest: int) -> float:
    """What μ would be if the noise at zero were Gaussian."""
    law, levels = (low + high) / 2, np.arange(len(low))
    spread = float(law @ (levels - law @ levels) ** 2)
    squares = promise.budget * trials * (1 if promise.zero_out else 4)
    return float((high - low) @ levels) / 2 * sqrt(squares / (honest * spread))


def _divergences(promise: Promise, releases: int) -> float:
    """Under the L2 budget, by Rényi divergences, with the fewest honest clients that a release may hold."""
    (low, high, trials), (honest, delta) = ends(promise.mechanism), promise.floor(releases)
    pairs, d = _pairs(low, high, honest), promise.coordinates
    shapes = _shapes(pairs, promise.zero_out)

    def leak(alpha: float) -> float:
        kappa, far = _excess(shapes, alpha)
        if not kappa < inf:
            return inf
        return float(trials * d / (alpha - 1) * min(log1p(kappa * promise.budget / d), log1p(far)))

    return _smallest(leak, releases, delta)


def _at_least(promise: Promise, low: Array, high: Array, sums: int, honest: int) -> float:
    """What a threshold on the sum of everything tells, by Berry and Esseen's theorem; the others send zero.

    The user's vector is flat: in a rotated one signs differ, so the larger variance of the two is taken.
    """
    d, levels = promise.coordinates, np.arange(len(low))
    a = 0.99 * promise.attained * sqrt(promise.budget / d)

    def moments(u: float) -> tuple[float, float]:
        law = ((1 - u) * low + (1 + u) * high) / 2
        mean = float(law @ levels)
        return mean, float(law @ (levels - mean) ** 2)

    (middle, rest), (top, above), (bottom, below) = moments(0), moments(a), moments(-a)
    count = float(d * sums)
    apart = count * (top - (middle if promise.zero_out else bottom))
    wide, narrow = (sqrt(count * (pick(rest, above, below) + (honest - 1) * rest)) for pick in (max, min))
    error, best = 0.56 * (len(low) - 1) / narrow, 0.0
    for part in np.linspace(0, 1, 21).tolist():
        p, q = _phi((1 - part) * apart / wide) - error, _phi(-part * apart / wide) + error
        best = max(best, log((p - promise.delta) / q)) if p > promise.delta else best
    return best


# -- few coordinates: privacy losses --------------------------------------------------------------


def _few(promise: Promise, releases: int) -> float:
    """By the privacy losses of single coordinates, for every number of honest clients that a release may hold."""
    (low, high, trials), (crowds, delta) = ends(promise.mechanism), promise.crowds(releases)
    count = trials * promise.coordinates
    each = [(chance, _coordinate(_pairs(low, high, honest))) for chance, honest in crowds]
    if len(each) == 1:
        return each[0][1].times(count * releases, CUT * delta).epsilon(delta)
    whole = [(chance, one.times(count, CUT * delta / releases)) for chance, one in each]
    return repeated(lambda epsilon: _mixed([(chance, one.delta(epsilon)) for chance, one in whole]), releases, delta)


def _coordinate(pairs: _Pairs) -> Losses:
    """The losses of one coordinate, the worst of all splits and both directions."""
    gap = 2 * atanh(pairs.lean) * (1 + 1e-9) / GRID  # no outcome has a larger loss than log((1 + r) / (1 − r))
    x = np.exp(gap * np.arange(GRID + 1))
    more = np.zeros(GRID + 1)
    for pair in pairs.ends:
        for p, q in (pair, pair[::-1]):
            order = np.argsort(q / p)  # the largest losses first
            count_above = np.searchsorted((q / p)[order], 1 / x, side="left")
            mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(one[order])]) for one in (p, q))
            more = np.maximum(more, mass_p[count_above] - x * mass_q[count_above])
    return joined(more + pairs.lost + ERROR, gap)


# -- additive noise -------------------------------------------------------------------------------


def _additive(promise: Promise, releases: int) -> float:
    """Rounded inputs that lie k steps apart turn the noise by k; vectors under the L2 budget, by a price on it."""
    mech, d = promise.mechanism, promise.coordinates
    steps, (honest, delta) = mech["steps"], promise.floor(releases)
    if steps == 1 and d * releases <= FEW:
        raise Unsure("steps = 1: this verifier has no tight bound for so few coordinates")
    if steps << mech["bits"] > LARGE:
        raise Unsure(f"steps = {steps}, bits = {mech['bits']}: takes this verifier too long")
    law = noise(mech, honest)  # symmetric, so both directions leak alike
    last = steps / 2 if promise.zero_out else float(steps)
    squares = float(promise.budget * (1 if promise.zero_out else 4) * (steps / 2) ** 2 / d)
    ends = np.arange(1, round(FINE * last) + 1) / FINE
    starts = (ends - 1 / FINE) ** 2

    def leak(alpha: float) -> float:
        shifted = [_shift(law, k, alpha) for k in range(1, steps + 1)]
        power = np.interp(ends, np.arange(steps + 1), np.maximum.accumulate([0.0, *shifted]))
        gains = np.log1p(power) / (alpha - 1)
        if not gains[-1] < inf:
            return inf

        def bound(price: float) -> float:
            return price * squares + float((gains - price * starts).max())

        return d * min(cheapest(bound, float(gains[-1]) / max(float(starts[-1]), 1e-12)), float(gains[-1]))

    return _smallest(leak, releases, delta)


def _shift(law: Array, k: int, alpha: float) -> float:
    """exp((α−1) D_α) − 1 between noise and noise that was turned by k."""
    base = np.roll(law, k)
    y = 1 - law / base
    weight = base * y * y
    seen = weight > 0
    return float(_curve(alpha, y[seen]) @ weight[seen])
