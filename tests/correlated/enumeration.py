"""The exact joint distribution of everything that a server sees of small runs with correlated noise.

A round's sum is y_t = R_t + A_t − (what is canceled of earlier rounds), coordinate by coordinate. All inputs may
depend on what was seen before. `joint_pmf` enumerates (y_1, …, y_T) with float64 sums of positive numbers only.
A certificate of its own follows, in a few plain lines. Nothing here is shared with the package.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from scipy.special import ndtri

Choice = Callable[[int, np.ndarray], np.ndarray]
"""Of a round and what was seen before, (views, rounds, coordinates): a number for each view and coordinate."""


# -- pmfs -----------------------------------------------------------------------------------------


def discrete_gaussian(largest, deviation):
    """A Gaussian at −largest, …, largest, cut off there."""
    pmf = np.exp(-(np.arange(-largest, largest + 1) ** 2) / (2 * deviation**2))
    return pmf / pmf.sum()


def sum_pmf(pmf, count):
    """The pmf of the sum of independent draws."""
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, pmf)
    return total


def bernoulli_sum(probabilities, unit=1):
    """The pmf of a sum of independent trials that are worth `unit`: of rounded coordinates."""
    pmf = np.ones(1)
    for p in probabilities:
        pmf = np.convolve(pmf, [1 - p, *[0] * (unit - 1), p])
    return pmf


def pmf_variance(pmf):
    outcomes = np.arange(len(pmf))
    return float(pmf @ outcomes**2 - (pmf @ outcomes) ** 2)


# -- the enumeration ------------------------------------------------------------------------------


def transient_only(pmf, lowest=None):
    """Noise of which all is canceled: {(what is added, what is canceled later): probability}."""
    lowest = -(len(pmf) // 2) if lowest is None else lowest
    return {(lowest + i, lowest + i): p for i, p in enumerate(pmf) if p > 0}


def joint_sum(noise, count):
    """The pmf of the sum of clients' pairs of numbers, as {(added, canceled): probability}."""
    total = {(0, 0): 1.0}
    for _ in range(count):
        longer: dict[tuple[int, int], float] = {}
        for (a, b), p in total.items():
            for (c, d), q in noise.items():
                longer[a + c, b + d] = longer.get((a + c, b + d), 0.0) + p * q
        total = longer
    return total


@dataclass
class Scheme:
    """A run.

    Attributes:
        noise: One client's noise, as `transient_only` returns it.
        honest: Honest clients of each round.
        others: The pmfs of the other honest clients' rounding to choose from, a list for each round.
        canceled: The rounds whose noise is canceled in each round; by default that of the round before.
        unit: The worth of a step, where noise comes in parts of a step.
        dim: Coordinates.
        choose: Which pmf of `others` applies.
    """

    noise: dict[tuple[int, int], float]
    honest: Sequence[int]
    others: Sequence[Sequence[np.ndarray]]
    canceled: Sequence[Sequence[int]] = ()
    unit: int = 1
    dim: int = 1
    choose: Choice = field(default=lambda round_index, past: np.zeros((len(past), past.shape[2]), dtype=int))

    def __post_init__(self):
        if not self.canceled:
            self.canceled = [[t - 1] if t else [] for t in range(len(self.honest))]


def joint_pmf(scheme: Scheme, worlds: Sequence[dict[int, Choice]]) -> np.ndarray:
    """The exact pmf of all that is seen, a row for each world: the probability that the user's coordinate is
    rounded up, in each of its rounds.

    Given what was seen, coordinates are independent. For each of them we keep the probability of what was seen of
    it, together with the noise that is still to be canceled.
    """
    d, past = scheme.dim, np.zeros((1, 0, scheme.dim), dtype=int)
    state, pending = [np.ones((len(worlds), 1)) for _ in range(d)], []
    for round_index, honest in enumerate(scheme.honest):
        noise = joint_sum(scheme.noise, honest)
        picks = scheme.choose(round_index, past)
        later = {t for rounds in scheme.canceled[round_index + 1 :] for t in rounds}
        updates = [_round(scheme, worlds, round_index, state[j], pending, noise, picks, past, j) for j in range(d)]
        state, outcomes = [table for table, _ in updates], [view for _, view in updates]
        pending = [*pending, round_index]
        keep = [t for t in pending if t in later]
        finished_axes = tuple(3 + pending.index(t) for t in pending if t not in later)
        state, pending = [table.sum(axis=finished_axes) for table in state], keep
        # Every view goes on in as many ways as there are outcomes of all coordinates.
        views, counts = len(past), [len(view) for view in outcomes]
        grids = np.stack([g.ravel() for g in np.meshgrid(*outcomes, indexing="ij")], axis=1)
        past = np.concatenate([np.repeat(past, len(grids), axis=0), np.tile(grids, (views, 1))[:, None]], axis=1)
        indices = [g.ravel() for g in np.meshgrid(*[np.arange(m) for m in counts], indexing="ij")]
        state = [
            table[:, :, index].reshape(len(worlds), -1, *table.shape[3:])
            for table, index in zip(state, indices, strict=True)
        ]
        is_possible = _total(state, len(worlds), len(past)).max(axis=0) > 0
        past, state = past[is_possible], [table[:, is_possible] for table in state]
    return np.asarray(_total(state, len(worlds), len(past)))


def _total(state, worlds, views):
    return prod(table.reshape(worlds, views, -1).sum(axis=2) for table in state)


def _round(scheme, worlds, round_index, state, pending, noise, picks, past, j):
    """One coordinate of a round: (worlds, views, outcomes, noise still to be canceled …), and the outcomes."""
    pmfs = scheme.others[round_index]
    size = max(len(pmf) for pmf in pmfs) + scheme.unit
    table = np.array([np.pad(pmf, (0, size - len(pmf))) for pmf in pmfs])[picks[:, j]]
    shifted = np.pad(table, ((0, 0), (scheme.unit, 0)))[:, :size]
    up = [world[round_index](round_index, past)[:, j, None] if round_index in world else 0.0 for world in worlds]
    rounded = np.array([(1 - v) * table + v * shifted for v in up])  # worlds, views, outcomes
    spans = [_span(joint_sum(scheme.noise, scheme.honest[t])) for t in pending]
    canceled = _span(noise)
    multiplicities = [scheme.canceled[round_index].count(t) for t in pending]
    ends = [
        [-m * s[0] for m, s in zip(multiplicities, spans, strict=True)],
        [-m * s[-1] for m, s in zip(multiplicities, spans, strict=True)],
    ]
    start = min(a for a, _ in noise) + sum(min(x) for x in zip(*ends, strict=True))
    stop = max(a for a, _ in noise) + sum(max(x) for x in zip(*ends, strict=True)) + size
    out = np.zeros((len(worlds), len(past), stop - start, *[len(s) for s in spans], len(canceled)))
    for where in np.ndindex(*[len(s) for s in spans]):
        minus = sum(m * s[i] for m, s, i in zip(multiplicities, spans, where, strict=True))
        weight = state[(slice(None), slice(None), *where)][:, :, None] * rounded
        for (a, b), p in noise.items():
            first = a - minus - start
            out[(slice(None), slice(None), slice(first, first + size), *where, b - canceled[0])] += p * weight
    return out, np.arange(start, stop)


def _span(noise):
    return range(min(b for _, b in noise), max(b for _, b in noise) + 1)


def always(*probabilities) -> Choice:
    """A user whose coordinates are rounded up with these probabilities whatever was seen."""
    return lambda round_index, past: np.broadcast_to(
        np.array(probabilities, dtype=float), (len(past), len(probabilities))
    )


# -- measures -------------------------------------------------------------------------------------


def smallest_mu(p: np.ndarray, q: np.ndarray, failure: float = 0.0) -> float:
    """The smallest μ with P(E) ≤ G_μ(Q(E)) + `failure` for all events, both ways: δ(ε) ≤ δ_μ(ε) + failure.

    The best events are those of the largest likelihood ratios; between two of them lie chords, and G_μ is concave.
    """
    largest = 0.0
    for first, second in ((p, q), (q, p)):
        is_possible = (first > 0) | (second > 0)
        a, b = first[is_possible], second[is_possible]
        order = np.argsort(-(a - b) / (a + b), kind="stable")
        power, level = np.cumsum(a[order])[:-1], np.cumsum(b[order])[:-1]
        power_outside = np.cumsum(a[order][::-1])[-2::-1] + failure
        level_outside = np.cumsum(b[order][::-1])[-2::-1]
        power, counts = power - failure, power > failure + 1e-15
        z = [
            np.where(x < y, ndtri(np.clip(x, 0, 1)), -ndtri(np.clip(y, 0, 1)))
            for x, y in ((power, power_outside), (level, level_outside))
        ]
        with np.errstate(invalid="ignore"):
            distance = z[0] - z[1]
        largest = max(largest, float(np.where(np.isnan(distance), 0, distance)[counts].max(initial=0.0)))
    return largest


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The exact δ at some ε, the worse direction."""
    return max(float(np.maximum(a - np.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def curve(noise, shifted, q):
    """sup over events of W(E) − q N(E), by going through all outcomes."""
    return float(np.maximum(shifted - q * noise, 0).sum())


# -- a plain certificate --------------------------------------------------------------------------

RATIO_GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 500)])
"""Likelihood ratios; what lies beyond the last counts as seen in one world only."""


def shifted_pair(pmf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A pmf and the same one step higher."""
    return np.append(pmf, 0.0), np.append(0.0, pmf)


def ratio_pmf(pairs: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray = RATIO_GRID) -> np.ndarray:
    """The pmf on the grid of the likelihood ratio of a pair from which all these pairs (noise, shifted noise) can be
    made.

    E min(ratio, q) of a pair is a concave function of q; their minimum is one, and lines between its points lie
    below.
    """
    overlap = np.min([np.minimum(w, grid[:, None] * n).sum(axis=1) for n, w in pairs], axis=0)
    slopes = np.concatenate([[1.0], np.diff(overlap) / np.diff(grid), [0.0]])
    return np.maximum(-np.diff(slopes), 0)


def _on_grid(grid, values, probabilities):
    """Values put on a grid with their means kept, which only spreads them; those beyond its end count as its end."""
    values = np.minimum(values.ravel(), grid[-1])
    right = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    fraction = (values - grid[right - 1]) / (grid[right] - grid[right - 1])
    upper = np.bincount(right, fraction * probabilities.ravel(), len(grid))
    return upper + np.bincount(right - 1, (1 - fraction) * probabilities.ravel(), len(grid))


def dominating_pair(transient: np.ndarray, splits: Sequence[np.ndarray], path: Sequence[float]):
    """A pair (N, W) from which the views with the user's coordinate rounded down and up can be made.

    Args:
        transient: The pmf of a round's transient noise.
        splits: The pmfs of the others' rounding.
        path: The probabilities that a path of shifts has 0, 1, … rounds of transient noise.

    Returns:
        The pair; the last outcome is what only W shows.
    """
    a, b = ratio_pmf([shifted_pair(transient)]), ratio_pmf([shifted_pair(pmf) for pmf in splits])
    reached, pmf = path[-1], b  # of Y over `reached`, given that the path goes on for so long
    for probability in path[-2::-1]:
        product = _on_grid(RATIO_GRID, np.outer(RATIO_GRID, RATIO_GRID), np.outer(a, pmf))
        reached = reached + probability
        weight = probability / reached if reached else 1.0
        pmf = _on_grid(RATIO_GRID, weight * RATIO_GRID[:, None] + (1 - weight) * RATIO_GRID, np.outer(b, product))
    return np.append(pmf, 0.0), np.append(pmf * RATIO_GRID, 1 - (pmf * RATIO_GRID).sum())


def mixture(pair, v: float) -> np.ndarray:
    """The pmf of what is seen if the user's coordinate is rounded up with probability v."""
    return np.maximum((1 - v) * pair[0] + v * pair[1], 0)


def best_path(transient: float, rounding: float, rounds: int) -> np.ndarray:
    """The probabilities of 0, …, rounds − 1 rounds of transient noise that are best for Gaussians of these
    variances."""
    if rounds == 1:
        return np.ones(1)
    n = rounds - 1  # the probabilities c_j to go on for j rounds minimize Σ c² / transient + Σ (Δc)² / rounding
    matrix = np.diag(np.full(n, 1 / transient + 2 / rounding))
    matrix -= (np.eye(n, k=1) + np.eye(n, k=-1)) / rounding
    start = np.zeros(n)
    start[0] = 1 / rounding
    return -np.diff([1.0, *np.linalg.solve(matrix, start), 0.0])


def path_cost(path, transient: float, rounding: float) -> float:
    """μ² of a shift by one step along such a path, if all noise were Gaussian of these variances."""
    onward = 1 - np.cumsum(path)[:-1]
    return float((onward**2).sum() / transient + (np.asarray(path) ** 2).sum() / rounding)
