"""Everything that a server sees of noise that is taken back, enumerated; and a certificate of it in a few plain lines.

A round's view is y_t = R_t + A_t − (what is taken back of earlier rounds), coordinate by coordinate, where everybody's
inputs may depend on all that was seen before. ``seen`` is the exact joint law of (y_1, …, y_T), with float64 sums of
positive numbers only. Nothing here is shared with the package. ``docs/proofs/cancel.md`` is why the certificate holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from scipy.special import ndtri

Chosen = Callable[[int, np.ndarray], np.ndarray]
"""Of a round and what was seen before, (views, rounds, coordinates): a number for each view and coordinate."""


def taken_back(law, low=None):
    """Noise of which all is taken back: {(what is added, what is subtracted later): chance}; from −K to K."""
    low = -(len(law) // 2) if low is None else low
    return {(low + i, low + i): p for i, p in enumerate(law) if p > 0}


def coins(chances, unit=1):
    """The law of a sum of coins that are worth ``unit``."""
    law = np.ones(1)
    for v in chances:
        law = np.convolve(law, [1 - v, *[0] * (unit - 1), v])
    return law


def joint_sum(noise, count):
    """The law of the sum of so many clients' pairs of numbers, as {(first, later): chance}."""
    total = {(0, 0): 1.0}
    for _ in range(count):
        more: dict[tuple[int, int], float] = {}
        for (a, b), p in total.items():
            for (c, d), q in noise.items():
                more[a + c, b + d] = more.get((a + c, b + d), 0.0) + p * q
        total = more
    return total


@dataclass
class Scheme:
    """Who sends what: ``honest`` clients in each round, whose rounds' noise is ``taken`` back in each, and what noise.

    ``others`` are the laws of the other honest clients' coins to choose from, a list for each round. By default every
    round takes back the noise of the one before.
    """

    noise: dict[tuple[int, int], float]
    honest: Sequence[int]
    others: Sequence[Sequence[np.ndarray]]
    taken: Sequence[Sequence[int]] = ()
    unit: int = 1
    dim: int = 1
    choose: Chosen = field(default=lambda turn, past: np.zeros((len(past), past.shape[2]), dtype=int))

    def __post_init__(self):
        if not self.taken:
            self.taken = [[t - 1] if t else [] for t in range(len(self.honest))]


def seen(scheme: Scheme, worlds: Sequence[dict[int, Chosen]]) -> np.ndarray:
    """The exact law of all that is seen, a row for each world: how likely the user's coin is 1 in its rounds.

    Given what was seen, coordinates are independent: of each we keep how likely all that was seen of it is, together
    with the noise that is still to be taken back.
    """
    d, past = scheme.dim, np.zeros((1, 0, scheme.dim), dtype=int)
    state, alive = [np.ones((len(worlds), 1)) for _ in range(d)], []
    for turn, honest in enumerate(scheme.honest):
        noise = joint_sum(scheme.noise, honest)
        picks, later = scheme.choose(turn, past), {t for back in scheme.taken[turn + 1 :] for t in back}
        both = [_round(scheme, worlds, turn, state[j], alive, noise, picks, past, j) for j in range(d)]
        state, shown = [one for one, _ in both], [one for _, one in both]
        alive = [*alive, turn]
        keep = [t for t in alive if t in later]
        gone = tuple(3 + alive.index(t) for t in alive if t not in later)
        state, alive = [one.sum(axis=gone) for one in state], keep
        # every view goes on in as many ways as there are outcomes of all coordinates
        views, many = len(past), [len(one) for one in shown]
        grids = np.stack([g.ravel() for g in np.meshgrid(*shown, indexing="ij")], axis=1)
        past = np.concatenate([np.repeat(past, len(grids), axis=0), np.tile(grids, (views, 1))[:, None]], axis=1)
        places = [g.ravel() for g in np.meshgrid(*[np.arange(m) for m in many], indexing="ij")]
        state = [
            one[:, :, place].reshape(len(worlds), -1, *one.shape[3:]) for one, place in zip(state, places, strict=True)
        ]
        likely = prod(one.reshape(len(worlds), len(past), -1).sum(axis=2) for one in state).max(axis=0) > 0
        past, state = past[likely], [one[:, likely] for one in state]
    return np.asarray(prod(one.reshape(len(worlds), len(past), -1).sum(axis=2) for one in state))


def _round(scheme, worlds, turn, state, alive, noise, picks, past, j):
    """One coordinate of a round: (worlds, views, outcomes, noise still to come back …), and what the outcomes are."""
    laws = scheme.others[turn]
    size = max(len(one) for one in laws) + scheme.unit
    table = np.array([np.pad(one, (0, size - len(one))) for one in laws])[picks[:, j]]
    up = np.pad(table, ((0, 0), (scheme.unit, 0)))[:, :size]
    coin = [one[turn](turn, past)[:, j, None] if turn in one else 0.0 for one in worlds]
    rounded = np.array([(1 - v) * table + v * up for v in coin])  # worlds, views, outcomes
    spans = [_span(joint_sum(scheme.noise, scheme.honest[t])) for t in alive]
    back = range(min(b for _, b in noise), max(b for _, b in noise) + 1)
    times = [scheme.taken[turn].count(t) for t in alive]
    ends = [
        [-m * s[0] for m, s in zip(times, spans, strict=True)],
        [-m * s[-1] for m, s in zip(times, spans, strict=True)],
    ]
    start = min(a for a, _ in noise) + sum(min(x) for x in zip(*ends, strict=True))
    stop = max(a for a, _ in noise) + sum(max(x) for x in zip(*ends, strict=True)) + size
    out = np.zeros((len(worlds), len(past), stop - start, *[len(s) for s in spans], len(back)))
    for where in np.ndindex(*[len(s) for s in spans]):
        minus = sum(m * s[i] for m, s, i in zip(times, spans, where, strict=True))
        each = state[(slice(None), slice(None), *where)][:, :, None] * rounded
        for (a, b), p in noise.items():
            first = a - minus - start
            out[(slice(None), slice(None), slice(first, first + size), *where, b - back[0])] += p * each
    return out, np.arange(start, stop)


def _span(noise):
    return range(min(b for _, b in noise), max(b for _, b in noise) + 1)


def always(*chances) -> Chosen:
    """A user whose coins have these chances whatever was seen."""
    return lambda turn, past: np.broadcast_to(np.array(chances, dtype=float), (len(past), len(chances)))


def smallest_mu(p: np.ndarray, q: np.ndarray, lost: float = 0.0) -> float:
    """The smallest μ with P(E) ≤ G_μ(Q(E)) + ``lost`` for all events, both ways: δ(ε) ≤ δ_μ(ε) + lost for every ε.

    The best events are those of the largest likelihood ratios; between two of them lie chords, and G_μ is concave.
    """
    most = 0.0
    for one, other in ((p, q), (q, p)):
        some = (one > 0) | (other > 0)
        a, b = one[some], other[some]
        order = np.argsort(-(a - b) / (a + b), kind="stable")
        power, level = np.cumsum(a[order])[:-1], np.cumsum(b[order])[:-1]
        rest, left = np.cumsum(a[order][::-1])[-2::-1] + lost, np.cumsum(b[order][::-1])[-2::-1]
        power, counts = power - lost, power > lost + 1e-15
        z = [
            np.where(x < y, ndtri(np.clip(x, 0, 1)), -ndtri(np.clip(y, 0, 1)))
            for x, y in ((power, rest), (level, left))
        ]
        with np.errstate(invalid="ignore"):
            apart = z[0] - z[1]
        most = max(most, float(np.where(np.isnan(apart), 0, apart)[counts].max(initial=0.0)))
    return most


def leaked(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The exact δ at some ε, the worse direction."""
    return max(float(np.maximum(a - np.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


# -- the certificate, plainly ---------------------------------------------------------------------

FINE = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 500)])
"""Likelihood ratios; whatever lies beyond the last counts as seen in one world only."""


def ratios(pairs: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray = FINE) -> np.ndarray:
    """How likely each ratio of the grid is for a pair from which all these pairs (noise, shifted noise) can be made.

    E min(ratio, q) of a pair is a concave function of q; their minimum is one, and lines between its points are below.
    """
    least = np.min([np.minimum(w, grid[:, None] * n).sum(axis=1) for n, w in pairs], axis=0)
    slopes = np.concatenate([[1.0], np.diff(least) / np.diff(grid), [0.0]])
    return np.maximum(-np.diff(slopes), 0)


def shifted(law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.append(law, 0.0), np.append(0.0, law)


def _onto(grid, values, chances):
    """Values put on a grid with their means kept, which only spreads them; those beyond its end count as its end."""
    values = np.minimum(values.ravel(), grid[-1])
    right = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    part = (values - grid[right - 1]) / (grid[right] - grid[right - 1])
    found = np.bincount(right, part * chances.ravel(), len(grid))
    return found + np.bincount(right - 1, (1 - part) * chances.ravel(), len(grid))


def dominating(noise: np.ndarray, splits: Sequence[np.ndarray], weights: Sequence[float]):
    """A pair (N, W) from which the views with the user's coin at 0 and at 1 can be made, one coordinate.

    ``noise`` is the law of a round's transient noise, ``splits`` those of the others' coins, ``weights`` how likely the
    shift is held for 0, 1, … rounds. The last outcome is what only W shows.
    """
    a, b = ratios([shifted(noise)]), ratios([shifted(one) for one in splits])
    held, law = weights[-1], b  # of Y over ``held``: given that the shift is held so long
    for w in weights[-2::-1]:
        moved = _onto(FINE, np.outer(FINE, FINE), np.outer(a, law))
        held, part = held + w, w / (held + w) if held + w else 1.0
        law = _onto(FINE, part * FINE[:, None] + (1 - part) * FINE, np.outer(b, moved))
    return np.append(law, 0.0), np.append(law * FINE, 1 - (law * FINE).sum())


def between(pair, v: float) -> np.ndarray:
    """The law with a coin of chance v."""
    return np.maximum((1 - v) * pair[0] + v * pair[1], 0)


def holding(transient: float, persistent: float, most: int) -> np.ndarray:
    """How likely to hold for 0, …, most − 1 rounds, the best for Gaussian noise of these variances."""
    if most == 1:
        return np.ones(1)
    n = most - 1  # the chances c_1, …, c_n of holding at least so long minimise Σ c² / transient + Σ (Δc)² / persistent
    matrix = np.diag(np.full(n, 1 / transient + 2 / persistent))
    matrix -= (np.eye(n, k=1) + np.eye(n, k=-1)) / persistent
    start = np.zeros(n)
    start[0] = 1 / persistent
    return -np.diff([1.0, *np.linalg.solve(matrix, start), 0.0])
