"""Mechanisms that nobody published: tables found by optimisation for a stated number of clients and order.

``private_table`` solves a linear program: of all unbiased tables that are ε-differentially private by themselves, the
one whose largest variance is smallest. ``level_keeps`` gives RQM a keep probability for each level. For sums over
several clients see ``lattice.summed_table``.
What they return is certified by the same means as any other mechanism.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from math import ceil, exp, inf, log
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, linprog, minimize
from scipy.sparse import block_array, csr_array, eye_array, kron

from rqm._util.checks import FloatArray, order, real, whole
from rqm.advice.lattice import attained, certified
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.mechanisms.table import Table
from rqm.mechanisms.table_mechanism import TableMechanism

PURE_LEVELS = 64
"""Outcomes up to which the linear program takes seconds."""
LEAST = 1e-6
"""Every outcome of a private table has at least this chance: enough that rounding to integers hardly moves ratios."""
BETWEEN = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where in a cell the linear program looks at the variance."""


# -- one client, pure differential privacy --------------------------------------------------------


def pure_loss(mech: TableMechanism) -> float:
    """The ε of one message, exactly: the largest ratio within a column of the integer table, as a logarithm.

    For mechanisms whose inputs' levels lie within the clip; rounded up.
    """
    if mech.input_range != 1:
        raise ValueError(f"{mech!r}: must round its inputs to levels within the clip")
    most, least = mech.table.max(axis=0), mech.table.min(axis=0)
    used = most > 0
    if (least[used] == 0).any():
        return inf
    return float((np.log(most[used]) - np.log(least[used])).max() + 1e-14)


def private_table(
    epsilon: float, levels: int = 16, *, clip: float = 1.0, rows: int = 33, average: bool = False
) -> Table:
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
        found = program(epsilon, np.linspace(-reach, reach, levels), rows, average)
        return inf if found is None else found.value

    grid = np.sort(np.append(np.geomspace(1.0, max(widest, 1.5), 13), widest / 1.2))
    at = int(np.argmin([cost(reach) for reach in grid]))
    finer = np.geomspace(grid[max(0, at - 1)], grid[min(at + 1, len(grid) - 1)], 8)
    reach = min([grid[at], *finer], key=cost)
    slack = 1e-9
    while slack < 0.1:  # rounding to integers moves the ratios by some billionths
        found = program(epsilon * (1 - slack), np.linspace(-reach, reach, levels), rows, average)
        if found is None:
            reach *= 1 + 10 * slack  # it was the narrowest there is
        else:
            mech = Table(clip=clip, margin=reach - 1, rows=tuple(map(tuple, found.rows.tolist())))
            if pure_loss(mech) <= epsilon:
                return mech
        slack *= 4
    raise ValueError(f"epsilon = {epsilon:g}: no unbiased table of {levels} levels is that private")


class Solved(NamedTuple):
    """The least variance, in clip², the rows, and by how much it grows as each outcome moves (for the average)."""

    value: float
    rows: FloatArray
    slopes: FloatArray


def program(epsilon: float, outcomes: FloatArray, k: int, average: bool) -> Solved | None:
    """The smallest largest variance, or average, and the rows. Variables: the rows, a floor a column, the bound."""
    m, levels = len(outcomes), np.linspace(-1, 1, k)
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
    ]
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
        goal,
        A_ub=inner.tocsr(),
        b_ub=limits,
        A_eq=means.tocsr(),
        b_eq=np.concatenate([np.ones(k), levels]),
        bounds=[(0, None)] * (k * m) + [(LEAST, None)] * m + [(0, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-9},
    )
    if found.status != 0:
        return None
    rows = np.maximum(found.x[: k * m].reshape(k, m), 0)
    prices = found.eqlin.marginals[k:]  # of the means: moving an outcome moves them
    return Solved(
        float(found.fun),
        rows / rows.sum(axis=1, keepdims=True),
        (rows * (2 * outcomes / k - prices[:, None])).sum(axis=0),
    )


# -- RQM with a keep probability for each level ---------------------------------------------------


def single_keep(
    alpha: float,
    clients: int,
    divergence: float,
    levels: int = 16,
    *,
    clip: float = 1.0,
    keeps: Iterable[float] = tuple(np.arange(1, 20) / 20),
) -> RQM:
    """Of RQMs with one keep probability on a grid, each with the smallest margin that reaches D_α, the most exact."""
    found = [_with_margin(keep, alpha, clients, divergence, levels, clip) for keep in keeps]
    return min((mech for mech in found if mech), key=lambda mech: mech.variance_max)


def level_keeps(
    alpha: float,
    clients: int,
    divergence: float,
    levels: int = 16,
    *,
    clip: float = 1.0,
    start: RQM | None = None,
    evaluations: int = 1000,
) -> RQM:
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
            price,
            first,
            method="Nelder-Mead",
            options={"maxfev": evaluations, "initial_simplex": spread, "adaptive": True},
        ).x
    )
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
) -> list[DiscreteMechanism]:
    """The published ones at a certified D_α of ``divergence`` at most: RQM (q = 0.42), PBM, one bit."""
    makers: list[Callable[[float], DiscreteMechanism]] = [
        lambda size: RQM(clip=clip, margin=size, levels=levels),
        lambda size: PBM(clip=clip, theta=0.5 / (1 + size), levels=levels),
        lambda size: StochasticRounding(clip=clip, margin=size, levels=2),
    ]
    found = []
    for make in makers:
        low, high = -6.0, 6.0
        for _ in range(18):
            middle = (low + high) / 2
            low, high = (low, middle) if attained(make(exp(middle)), alpha, clients) <= divergence else (middle, high)
        mech = make(exp(high))
        for _ in range(30):
            if certified(mech, alpha, clients) <= divergence:
                found.append(mech)
                break
            high += 0.01
            mech = make(exp(high))
    return found
