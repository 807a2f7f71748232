"""Mechanisms that nobody published: tables found by optimisation for a stated number of clients and order.

``private_table`` solves a linear program: of all unbiased tables that are ε-differentially private by themselves, the
one whose largest variance is smallest. ``summed_table`` is for sums over several clients and a Rényi divergence of
their sum: noise on a lattice, whose shape is optimised. ``level_keeps`` gives RQM a keep probability for each level.
What they return is certified by the same means as any other mechanism.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from math import ceil, exp, inf, log
from typing import Any

import numpy as np
from scipy.optimize import brentq, linprog, minimize
from scipy.sparse import block_array, csr_array, eye_array, kron

from rqm._checks import FloatArray, order, real, whole
from rqm.channel import Channel
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences
from rqm.privacy.worst_case import renyi

PURE_LEVELS = 64
"""Outcomes up to which the linear program takes seconds."""
FLOOR = 1e-9
"""The share of a row that goes to outcomes beyond its noise: without it an outcome could rule out an input."""
LEAST = 1e-6
"""Every outcome of a private table has at least this chance: enough that rounding to integers hardly moves ratios."""
BETWEEN = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where in a cell the linear program looks at the variance."""


# -- one client, pure differential privacy --------------------------------------------------------


def pure_loss(mech: Channel) -> float:
    """The ε of one message, exactly: the largest ratio within a column of the integer table, as a logarithm.

    For mechanisms whose inputs' levels lie within the clip; rounded up.
    """
    if mech.input_reach != 1:
        raise ValueError(f"{mech!r}: must round its inputs to levels within the clip")
    most, least = mech.table.max(axis=0), mech.table.min(axis=0)
    used = most > 0
    if (least[used] == 0).any():
        return inf
    return float((np.log(most[used]) - np.log(least[used])).max() + 1e-14)


def private_table(
    epsilon: float, levels: int = 16, *, clip: float = 1.0, rows: int = 33, average: bool = False
) -> Table:  # fmt: skip
    """The ε-differentially private table whose largest variance over all inputs is smallest.

    With ``average`` it is the variance averaged over inputs that is smallest, as in the Minimum Variance Unbiased
    mechanism (Chaudhuri, Guo and Rabbat 2022), here with evenly spaced outcomes, so that sums of them mean something.

    ``rows`` is how many levels inputs are rounded to; more of them cost time and help little. The linear program is
    over the laws at those levels, the outermost outcome is searched for.

    >>> mech = private_table(5.4699, rows=17)
    >>> pure_loss(mech) <= 5.4699, mech.variance_max < 0.05
    (True, True)
    """
    epsilon = real("epsilon", epsilon, "above 0 and at most 12", 0, 12, closed="]")
    levels = whole("levels", levels, 2, PURE_LEVELS)
    return _private_table(epsilon, levels, real("clip", clip, "a positive finite number", 0, inf), rows, average)


@lru_cache(maxsize=32)
def _private_table(epsilon: float, levels: int, clip: float, rows: int, average: bool) -> Table:
    widest = 1.2 * (exp(epsilon) + 1) / (exp(epsilon) - 1)  # that of the 1-bit mechanism, and some

    def cost(reach: float) -> float:
        found = _program(epsilon, levels, reach, rows, average)
        return inf if found is None else found[0]

    grid = np.sort(np.append(np.geomspace(1.0, max(widest, 1.5), 13), widest / 1.2))
    at = int(np.argmin([cost(reach) for reach in grid]))
    finer = np.geomspace(grid[max(0, at - 1)], grid[min(at + 1, len(grid) - 1)], 8)
    reach = min([grid[at], *finer], key=cost)
    slack = 1e-9
    while slack < 0.1:  # rounding to integers moves the ratios by some billionths
        found = _program(epsilon * (1 - slack), levels, reach, rows, average)
        if found is None:
            reach *= 1 + 10 * slack  # it was the narrowest there is
        else:
            mech = Table(clip=clip, margin=reach - 1, rows=tuple(map(tuple, found[1].tolist())))
            if pure_loss(mech) <= epsilon:
                return mech
        slack *= 4
    raise ValueError(f"epsilon = {epsilon:g}: no unbiased table of {levels} levels is that private")


def _program(epsilon: float, m: int, reach: float, k: int, average: bool) -> tuple[float, FloatArray] | None:
    """The smallest largest variance, in clip², and the rows. Variables: the rows, a floor a column, the bound."""
    outcomes, levels = np.linspace(-reach, reach, m), np.linspace(-1, 1, k)
    identity: Any = eye_array(k * m)
    stacked: Any = kron(np.ones((k, 1)), eye_array(m))
    low, part = np.divmod(np.arange((k - 1) * len(BETWEEN)), len(BETWEEN))
    share = np.asarray(BETWEEN)[part]
    weights: Any = csr_array(
        (np.concatenate([1 - share, share]), (np.tile(np.arange(len(low)), 2), np.concatenate([low, low + 1]))),
        shape=(len(low), k),
    )
    blocks: Any = [
        [-identity, stacked, None],  # floor ≤ row
        [exp(-epsilon) * identity, -stacked, None],  # row ≤ e^ε floor
        [kron(weights, outcomes[None] ** 2), None, csr_array(-np.ones((len(low), 1)))],  # variance ≤ bound
    ]  # fmt: skip
    inner: Any = block_array(blocks)
    limits = np.concatenate([np.zeros(2 * k * m), (weights @ levels) ** 2])
    per_row: Any = [kron(eye_array(k), ones[None]) for ones in (np.ones(m), outcomes)]
    means: Any = block_array([[one, csr_array((k, m + 1))] for one in per_row])
    goal = np.zeros(k * m + m + 1)
    if average:
        goal[: k * m] = np.tile(outcomes**2, k) / k
    else:
        goal[-1] = 1
    found: Any = linprog(
        goal, A_ub=inner.tocsr(), b_ub=limits, A_eq=means.tocsr(), b_eq=np.concatenate([np.ones(k), levels]),
        bounds=[(0, None)] * (k * m) + [(LEAST, None)] * m + [(0, None)], method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-9},
    )  # fmt: skip
    if found.status != 0:
        return None
    rows = np.maximum(found.x[: k * m].reshape(k, m), 0)
    return float(found.fun), rows / rows.sum(axis=1, keepdims=True)


# -- sums over several clients, a Rényi divergence ------------------------------------------------


def summed_table(
    alpha: float, clients: int, divergence: float, levels: int = 16, *, clip: float = 1.0,
    start: Iterable[Channel] = (),
) -> Channel:  # fmt: skip
    """A table of small variance whose certified D_α in a sum over ``clients`` does not exceed ``divergence``.

    An input is rounded to one of K + 1 levels, and noise on the outcomes that are left is added: whatever the others'
    inputs, their noise is the same, so that (but for a billionth) the worst case is known exactly. K and the shape of
    the noise are optimised. Of that and the mechanisms in ``start`` the best is returned, so it is never worse.
    """
    alpha, clients = order(alpha), whole("clients", clients, 2)
    divergence = real("divergence", divergence, "a positive finite number", 0, inf)
    levels = whole("levels", levels, 3, 256)
    known = [mech for mech in start if _certified(mech, alpha, clients) <= divergence]
    best: Channel | None = min(known, key=lambda mech: mech.variance_max, default=None)
    # The variance is nearly that of a Gaussian, plus that of rounding, which fewer levels make larger.
    shapes = [shape for steps in range(1, levels - 1) if (shape := _noise(alpha, clients, divergence, levels, steps))]
    for steps, noise in sorted(shapes, key=lambda shape: _spread(*shape)):
        if best is not None and _spread(steps, noise) * clip**2 >= best.variance_max:
            break
        for flatter in (0.0, 1e-4, 1e-3, 1e-2):
            mech = lattice(steps, _tempered(noise, flatter), levels, clip)
            if attained(mech, alpha, clients) <= divergence and _certified(mech, alpha, clients) <= divergence:
                if best is None or mech.variance_max < best.variance_max:
                    best = mech
                break
        if best is not None:
            break
    if best is None:
        raise ValueError(
            f"divergence = {divergence:g}: no lattice of {levels} levels reaches it for {clients} clients and order "
            f"{alpha:g}: must be larger, or the levels more"
        )
    return best


def _certified(mech: Channel, alpha: float, clients: int) -> float:
    """What is certified of the law as the paper writes it, and of the integers that are deployed."""
    return max(renyi(mech, alpha, clients).upper, renyi(mech, alpha, clients, law="sampled").upper)


def lattice_spread(alpha: float, clients: int, divergence: float, levels: int) -> float | None:
    """About the variance, in clip², that ``summed_table`` would reach; None if no lattice does."""
    shapes = (_noise(alpha, clients, divergence, levels, steps, polish=False) for steps in range(1, levels - 1))
    return min((_spread(*shape) for shape in shapes if shape), default=None)


def lattice(steps: int, noise: FloatArray, levels: int, clip: float = 1.0) -> Table:
    """Rounding to ``steps`` + 1 levels, plus noise on 0, 1, …; a billionth of each row goes to all outcomes."""
    rows = np.zeros((steps + 1, levels))
    for j in range(steps + 1):
        rows[j, j : j + len(noise)] = (1 - FLOOR) * noise
        rows[j] += FLOOR * _tilted(levels, j + (len(noise) - 1) / 2)
    rows /= rows.sum(axis=1, keepdims=True)
    return Table(clip=clip, margin=(levels - 1) / steps - 1, rows=tuple(map(tuple, rows.tolist())))


def _tilted(levels: int, mean: float) -> FloatArray:
    """The law on all outcomes with that mean whose entropy is largest."""
    z = np.arange(levels) - (levels - 1) / 2

    def law(tilt: float) -> FloatArray:
        weights = np.exp(tilt * z - abs(tilt * z).max())
        return np.asarray(weights / weights.sum())

    tilt = brentq(lambda t: float(law(t) @ z) - (mean - (levels - 1) / 2), -40, 40, xtol=1e-14)
    return law(float(tilt))


def _spread(steps: int, noise: FloatArray) -> float:
    """The largest variance, in clip²: that of the noise and of rounding half-way between two levels."""
    z = np.arange(len(noise)) - (len(noise) - 1) / 2
    return float(noise @ z**2 + 0.25) * (2 / steps) ** 2


def _tempered(noise: FloatArray, flatter: float) -> FloatArray:
    """The noise with its logarithm a little flatter, and somewhat bent outwards: more variance, more privacy."""
    z = np.linspace(-1, 1, len(noise))
    law = np.maximum(noise, 1e-30) ** (1 - flatter) * np.exp(flatter * z**2)
    return np.asarray(law / law.sum())


def _shifted(noise: FloatArray, steps: int, clients: int, alpha: float) -> float:
    """About the largest D_α between the noise of all clients and the same shifted, with a floor as in ``lattice``."""
    law = np.ones(1)
    square, count = np.pad((1 - FLOOR) * noise, steps), clients
    square += FLOOR / len(square)
    while count:
        law = np.convolve(law, square) if count & 1 else law
        count >>= 1
        square = np.convolve(square, square) if count else square
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.log(law)

    def shifted(by: int) -> float:
        p, q = logs[by:], logs[: len(logs) - by]  # the noise is symmetric: so are the two directions
        seen = np.isfinite(p) & np.isfinite(q)
        p, q = p[seen], q[seen]
        if alpha == 1:
            return float((np.exp(p) * (p - q)).sum())
        if alpha == inf:
            return float(abs(p - q).max())
        powers = alpha * p + (1 - alpha) * q
        top = powers.max()
        return float((top + log(np.exp(powers - top).sum())) / (alpha - 1))

    return max(shifted(by) for by in range(1, steps + 1))


def _noise(
    alpha: float, clients: int, divergence: float, levels: int, steps: int, *, polish: bool = True
) -> tuple[int, FloatArray] | None:
    """The symmetric noise of least variance on the outcomes that ``steps`` leave; None if none is private enough."""
    width = levels - steps
    z = np.arange(width) - (width - 1) / 2
    if width < 2:
        return None

    def law(bend: float) -> FloatArray:
        weights = np.exp(bend * z**2 - (bend * z**2).max())
        return np.asarray(weights / weights.sum())

    def gap(bend: float) -> float:
        return _shifted(law(bend), steps, clients, alpha) - divergence

    bends = np.linspace(-12, 3, 31) / max(z**2)  # from a peak, over a plateau, to two peaks
    gaps = np.array([gap(bend) for bend in bends])
    if not (gaps <= 0).any():
        return None
    first = int(np.argmax(gaps <= 0))
    best = law(bends[0] if first == 0 else float(brentq(gap, bends[first - 1], bends[first], xtol=1e-9)))
    half = (width + 1) // 2
    if polish and half > 2:  # let every probability go its own way: the variance, and a high price for less privacy

        def unfold(logs: FloatArray) -> FloatArray:
            full = np.concatenate([logs, logs[: width - half][::-1]])
            weights = np.exp(full - full.max())
            return np.asarray(weights / weights.sum())

        def price(logs: FloatArray) -> float:
            noise = unfold(logs)
            over = max(0.0, _shifted(noise, steps, clients, alpha) / divergence - 1)
            return _spread(steps, noise) * (1 + 20 * over)

        with np.errstate(divide="ignore"):
            begin = np.maximum(np.log(best[:half]), -60)
        found = unfold(minimize(price, begin, method="Nelder-Mead", options={"maxiter": 400, "xatol": 1e-6}).x)
        if _shifted(found, steps, clients, alpha) <= divergence and _spread(steps, found) < _spread(steps, best):
            best = found
    return steps, best


# -- RQM with a keep probability for each level ---------------------------------------------------


def attained(mech: Channel, alpha: float, clients: int) -> float:
    """The largest D_α with all other clients at one and the same knot: quick, attained, and no guarantee."""
    laws = [Sum.of(row) for row in mech.knot_laws()]
    pairs, orders = all_pairs(len(laws)), np.array([order(alpha)])
    # Mirror images have mirrored divergences.
    bases = [law.times(clients - 1) for law in laws[: (len(laws) + 1) // 2]] if clients > 1 else [Sum.nothing()]
    return max(float(pair_divergences(base, laws, pairs, orders).max()) for base in bases)


def single_keep(
    alpha: float, clients: int, divergence: float, levels: int = 16, *, clip: float = 1.0,
    keeps: Iterable[float] = tuple(np.arange(1, 20) / 20),
) -> RQM:  # fmt: skip
    """Of RQMs with one keep probability on a grid, each with the smallest margin that reaches D_α, the most exact."""
    found = [_with_margin(keep, alpha, clients, divergence, levels, clip) for keep in keeps]
    return min((mech for mech in found if mech), key=lambda mech: mech.variance_max)


def level_keeps(
    alpha: float, clients: int, divergence: float, levels: int = 16, *, clip: float = 1.0, start: RQM | None = None,
    evaluations: int = 1000,
) -> RQM:  # fmt: skip
    """RQM with a keep probability for each inner level (symmetric): of least variance at a D_α of ``divergence``.

    D_α is the attained one of ``attained``; what the result guarantees is for ``renyi`` to say. The search begins at
    the best single keep probability (or ``start``), so it is never worse.
    """
    alpha, clients = order(alpha), whole("clients", clients, 1)
    start = start or single_keep(alpha, clients, divergence, levels, clip=clip)
    half = (levels - 1) // 2  # of the levels − 2 inner ones, with the middle

    def made(numbers: FloatArray) -> RQM:
        side = 1 / (1 + np.exp(-np.clip(numbers[1:], -12, 12)))
        keeps = np.concatenate([side, side[: levels - 2 - half][::-1]])
        return RQM(clip=clip, margin=float(np.exp(np.clip(numbers[0], -8, 12))), levels=levels, keep=tuple(keeps))

    def price(numbers: FloatArray) -> float:
        mech = made(numbers)
        over = max(0.0, attained(mech, alpha, clients) / divergence - 1)
        return mech.variance_max / clip**2 * (1 + 20 * over)

    side = start.keeps[1 : 1 + half]
    first = np.concatenate([[log(start.margin)], np.log(side / (1 - side))])
    spread = np.vstack([first, first + 0.3 * np.eye(len(first))])
    found = made(
        minimize(
            price, first, method="Nelder-Mead",
            options={"maxfev": evaluations, "initial_simplex": spread, "adaptive": True},
        ).x
    )  # fmt: skip
    best = _with_margin(found.keep, alpha, clients, divergence, levels, clip)
    return best if best is not None and best.variance_max < start.variance_max else start


def _with_margin(
    keep: float | tuple[float, ...], alpha: float, clients: int, divergence: float, levels: int, clip: float
) -> RQM | None:
    """The RQM with the smallest margin whose attained D_α is at most ``divergence``."""

    def mech(logarithm: float) -> RQM:
        return RQM(clip=clip, margin=exp(logarithm), levels=levels, keep=keep)

    def gap(logarithm: float) -> float:
        return attained(mech(logarithm), alpha, clients) - divergence

    # More margin is more noise; where it steps over a level, D may jump a little: take the first crossing.
    grid = np.linspace(-5, 5, 21)
    for low, high in pairwise(grid):
        if gap(high) <= 0:
            if gap(low) <= 0:
                return mech(float(low))
            found = float(brentq(gap, low, high, xtol=1e-10))
            return mech(found if gap(found) <= 0 else found + 2e-10 * ceil(1 + abs(found)))
    return None


def known_mechanisms(
    alpha: float, clients: int, divergence: float, levels: int = 16, *, clip: float = 1.0
) -> list[Channel]:
    """The published ones at a certified D_α of ``divergence`` at most: RQM (q = 0.42), PBM, one bit."""
    makers: list[Callable[[float], Channel]] = [
        lambda size: RQM(clip=clip, margin=size, levels=levels),
        lambda size: PBM(clip=clip, theta=0.5 / (1 + size), levels=levels),
        lambda size: Rounding(clip=clip, margin=size, levels=2),
    ]
    found = []
    for make in makers:
        low, high = -6.0, 6.0
        for _ in range(18):
            middle = (low + high) / 2
            low, high = (low, middle) if attained(make(exp(middle)), alpha, clients) <= divergence else (middle, high)
        mech = make(exp(high))
        for _ in range(30):
            if _certified(mech, alpha, clients) <= divergence:
                found.append(mech)
                break
            high += 0.01
            mech = make(exp(high))
    return found
