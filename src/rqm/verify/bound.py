"""A second bound on ε, simpler than the accountant's and told from scratch: ``docs/verify.md`` has the proof.

It takes what a release is, and how many of them one user was part of.
"""

from collections.abc import Callable
from functools import cache
from math import atanh, ceil, erfc, exp, expm1, inf, lgamma, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np

from .laws import LONG, TAIL, Array, Unsure, ends, noise, others

ORDERS: tuple[float, ...] = (1.25, 1.5, 1.75, 2, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8, 9, 10, 11, 12, 14)
ORDERS += (16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
PARTS = np.array([0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0])[:, None]
"""Distances of two inputs, in units of the largest, between which every outcome is taken at its worst."""
FINE = 64
"""Stretches of a step, on each of which additive noise is taken at its worst."""
LARGE = 2**25
"""Outcomes times steps beyond which additive noise takes too long."""
CROWD = 4 * 10**6
"""Honest clients times the square of their outcomes beyond which sums take too long."""
FEW, GRID = 1000, 1000
"""Coordinates times releases up to which privacy losses are composed, and values of a loss on either side of 0."""
SLACK, ERROR = 1 + 1e-6, 2e-13
"""More than the rounding errors of ε, and of a coordinate's δ."""
HUGE = 700.0
"""An ε beyond this is not looked for among privacy losses: its exponential is no number."""
UNLUCKY = 0.1
"""The part of δ that pays for samples with fewer honest clients than the floor."""
MANY = 10**8
"""Populations beyond it are not computed with."""


class Promise(NamedTuple):
    """What one release is, and who takes part."""

    mechanism: dict[str, Any]
    dim: int
    clients: int
    delta: float
    l2_clip: float | None
    rotate: bool
    population: int | None
    participations: int | None
    honest: int | float | None
    survivors: int | None
    zero_out: bool
    uniform: bool

    @property
    def coordinates(self) -> int:
        """Integers that a client sends: padded to a power of two if vectors are rotated."""
        return 1 << (self.dim - 1).bit_length() if self.rotate else self.dim

    def floor(self, releases: int) -> tuple[int, float]:
        """Honest clients whose noise is in each of so many sums, the user's included, and the δ that is left."""
        gone = 0 if self.survivors is None else self.clients - self.survivors
        if not isinstance(self.honest, float):
            return max(1, (self.clients if self.honest is None else self.honest) - gone), self.delta
        if not self.uniform or self.population is None or self.population > MANY or self.clients > MANY / 100:
            raise Unsure(f"honest = {self.honest}: a fraction needs clients who are drawn at random from a population")
        good = max(1, int(self.honest * self.population)) - 1  # others: the user himself is honest, and there
        few = _surely(self.population - 1, good, self.clients - 1, UNLUCKY * self.delta / releases)
        return max(1, 1 + few - gone), (1 - UNLUCKY) * self.delta

    @property
    def budget(self) -> float:
        """(C/c)²: the sum of squares of a vector's coordinates, in units of the clip, at most."""
        most = float(self.coordinates)
        return most if self.l2_clip is None else min(most, (self.l2_clip / self.mechanism["clip"]) ** 2)


def _surely(population: int, good: int, drawn: int, chance: float) -> int:
    """The most h such that fewer than h of those drawn without replacement are good with that chance at most."""

    def choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    whole, below = choose(population, drawn), 0.0
    for h in range(max(0, drawn - (population - good)), min(drawn, good) + 1):
        below += exp(choose(good, h) + choose(population - good, drawn - h) - whole) * (1 + 1e-4)
        if below > chance:
            return h
    return min(drawn, good)


def epsilon(promise: Promise, releases: int) -> tuple[float, float]:
    """An ε that holds for a user who was part of so many releases, and one below which no truthful statement lies."""
    kind = promise.mechanism["mechanism"]
    if not releases:
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        if kind == "gaussian":
            return _gaussian(promise, releases)
        if kind in ("rounding", "rqm", "pbm"):
            return _affine(promise, releases)
        if kind in ("discrete-gaussian", "skellam", "binomial"):
            return _additive(promise, releases), 0.0
    raise Unsure(f"mechanism = {kind}: this verifier has no bound for it")


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
    _, delta = promise.floor(releases)
    mu = (1 if promise.zero_out else 2) / promise.mechanism["noise_multiplier"] * sqrt(releases)

    def leaks(eps: float) -> float:
        """δ of the Gaussian mechanism, exactly (Balle and Wang 2018)."""
        return _phi(mu / 2 - eps / mu) - exp(eps) * _phi(-mu / 2 - eps / mu)

    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * log(1 / delta))
    for _ in range(60 if high < 500 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if leaks(middle) > promise.delta else (low, middle)
    return _smallest(lambda alpha: alpha * mu * mu / 2 / releases, releases, delta), low


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


def _pairs(low: Array, high: Array, honest: int, levels: int) -> _Pairs:
    found = []
    for other in others(low, high, honest - 1):
        down, up = np.convolve(low, other), np.convolve(high, other)
        seen = (down > 0) & (up > 0)  # both, or neither
        found.append((down[seen], up[seen]))
    one = low + high > 0
    lean = float((abs(high - low)[one] / (high + low)[one]).max())
    return _Pairs(found, lean, 8 * (honest + LONG) * TAIL if honest * levels >= LONG else 0.0)


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
    """Under the L2 budget, by Rényi divergences; and of few coordinates also by their privacy losses."""
    low, high, trials = ends(promise.mechanism)
    honest, delta = promise.floor(releases)
    if ((low > 0) != (high > 0)).any():
        return inf, 0.0  # some outcome tells all
    if honest * (len(low) - 1) ** 2 > CROWD:
        raise Unsure(f"{honest} honest clients of {len(low)} outcomes: takes this verifier too long")
    levels = 2 if promise.mechanism["mechanism"] == "pbm" else promise.mechanism["levels"]
    pairs, d = _pairs(low, high, honest, levels), promise.coordinates
    shapes = _shapes(pairs, promise.zero_out)

    def leak(alpha: float) -> float:
        kappa, far = _excess(shapes, alpha)
        if not kappa < inf:
            return inf
        return trials * d / (alpha - 1) * min(log1p(kappa * promise.budget / d), log1p(far))

    found = _smallest(leak, releases, delta)
    if d * releases <= FEW:
        found = min(found, _composed(pairs, trials * d * releases, delta))
    most = promise.clients if isinstance(promise.honest, float) else honest  # of a sample, with luck all are honest
    return found, min(found, _at_least(promise, low, high, trials * releases, most))


def _at_least(promise: Promise, low: Array, high: Array, sums: int, honest: int) -> float:
    """What a threshold on the sum of everything tells, by Berry and Esseen's theorem; the others send zero.

    The user's vector is flat: in a rotated one signs differ, so the larger variance of the two is taken.
    """
    d, levels = promise.coordinates, np.arange(len(low))
    a = 0.99 * sqrt(promise.budget / d)

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


def _composed(pairs: _Pairs, count: int, delta: float) -> float:
    """ε of so many coordinates by the distribution of privacy losses, composed on a grid; inf if δ is too small."""
    gap = 2 * atanh(pairs.lean) * (1 + 1e-9) / GRID  # no outcome has a larger loss than log((1 + r) / (1 − r))
    x = np.exp(gap * np.arange(GRID + 1))
    more = np.zeros(GRID + 1)  # δ at ε ≥ 0, the worst of all splits and both directions
    for pair in pairs.ends:
        for p, q in (pair, pair[::-1]):
            order = np.argsort(q / p)  # the largest losses first
            count_above = np.searchsorted((q / p)[order], 1 / x, side="left")
            mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(one[order])]) for one in (p, q))
            more = np.maximum(more, mass_p[count_above] - x * mass_q[count_above])
    more = more + pairs.lost + ERROR
    # δ(x) − max(0, 1 − x) for x = e^ε on the whole grid: at 1/x it is that at x, over x. Lines between its points are
    # above it, and are the δ of a law with atoms q at the points, p = x q.
    x, more = np.concatenate([1 / x[:0:-1], x]), np.concatenate([(more / x)[:0:-1], more])
    slopes = np.concatenate([[0.0], np.diff(more) / np.diff(x), [0.0]])
    q = np.diff(slopes)
    q[GRID] += 1
    p = np.maximum(q, 0) * x
    return _tail(p, gap, count, delta - count * float(more[-1]) * (1 + 1e-9))


def _tail(p: Array, gap: float, count: int, delta: float) -> float:
    """The smallest ε on the grid at which so many independent losses of this law leak no more than δ."""
    if delta <= 0:
        return inf
    losses, cut = gap * np.arange(-GRID, GRID + 1), 1e-3 * delta
    tilts = 2.0 ** np.arange(-14, 12) / (gap * GRID)
    ends = []  # beyond which losses lie with a chance of ``cut`` at most, by Chernoff's bound
    for sign in (1, -1):
        far = min((count * np.log(p @ np.exp(sign * t * losses)) - log(cut)) / t for t in tilts.tolist())
        ends.append(sign * min(count * GRID, ceil(far / gap)))
    top, bottom = ends
    size = 1 << (top - bottom + 1).bit_length()
    if size > 2**23:
        return inf
    wrapped = np.zeros(size)
    np.add.at(wrapped, np.arange(-GRID, GRID + 1) % size, p)
    total = np.maximum(np.fft.irfft(np.fft.rfft(wrapped) ** count, size), 0)
    law = np.roll(total, -bottom)[: top - bottom + 1]
    at = gap * np.arange(bottom, top + 1)
    law, at = law[at >= 0], at[at >= 0]
    above = np.concatenate([np.cumsum(law[::-1])[::-1][1:], [0.0]])
    paid = np.concatenate([np.cumsum((law * np.exp(-at))[::-1])[::-1][1:], [0.0]])
    good = np.flatnonzero((at <= HUGE) & (above - np.exp(at) * paid + 2 * cut + size * 1e-18 <= delta))
    return float(at[good[0]]) * SLACK if len(good) else inf


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
    squares = promise.budget * (1 if promise.zero_out else 4) * (steps / 2) ** 2 / d
    ends = np.arange(1, round(FINE * last) + 1) / FINE
    starts = (ends - 1 / FINE) ** 2

    def leak(alpha: float) -> float:
        shifted = [_shift(law, k, alpha) for k in range(1, steps + 1)]
        power = np.interp(ends, np.arange(steps + 1), np.maximum.accumulate([0.0, *shifted]))
        gains = np.log1p(power) / (alpha - 1)
        if not gains[-1] < inf:
            return inf
        prices = gains[-1] / max(float(starts[-1]), 1e-12) * np.exp(np.linspace(-8, 8, 801))
        low, high = 0, len(prices) - 1

        def bound(index: int) -> float:
            return float(prices[index] * squares + (gains - prices[index] * starts).max())

        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if bound(middle) <= bound(middle + 1) else (middle + 1, high)
        return d * min(bound(low), float(gains[-1]))

    return _smallest(leak, releases, delta)


def _shift(law: Array, k: int, alpha: float) -> float:
    """exp((α−1) D_α) − 1 between noise and noise that was turned by k."""
    base = np.roll(law, k)
    y = 1 - law / base
    weight = base * y * y
    seen = weight > 0
    return float(_curve(alpha, y[seen]) @ weight[seen])
