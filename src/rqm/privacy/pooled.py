"""A coordinate that is a sum of trials as a Gaussian mechanism: the sum itself, not its trials one by one.

A trial beside n − 1 others of its kind may be far from a Gaussian where the sum of all is not: if nearly all trials of
ten thousand clients come out alike, those that do not are few in each, and fifteen times as many in the sum. Its law is
no longer affine in the client's input; but its events are known, and on a grid of inputs so are their probabilities; in
between slopes are bounded (``docs/proofs/gaussian.md``, "Several trials").
"""

from functools import lru_cache
from math import inf, pi, sqrt

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from rqm._util.checks import FloatArray
from rqm.privacy.setting import Neighbours
from rqm.privacy.tradeoff import ERROR, Coordinate
from rqm.privacy.vector import splits_of_others

WAYS = 128
"""Ways to split the others' trials that are looked at; in between, some are left out."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""
AT_ONCE = 16
"""Events that are looked at closely at a time, those that could be worst first."""
FIRST, WIDTH = 0.001, 0.002
"""The first cell of inputs, in clips; and the square of a cell's width over its place."""


def _grid() -> FloatArray:
    """Inputs from zero to one, closer together near zero."""
    places = [0.0, FIRST]
    while places[-1] < 1:
        places.append(min(1.0, places[-1] + sqrt(WIDTH * places[-1])))
    return np.array(places)


GRID = _grid()


@lru_cache(maxsize=256)
def pooled(
    chances: tuple[float, float], trials: int, clients: int, neighbours: Neighbours, tail: float, quick: bool = False
) -> Coordinate:
    """What a coordinate leaks that is the sum of so many trials of each client, but for ``tail`` at each end.

    A trial succeeds with the first of the ``chances`` where the input is at one end of the clip, with the second where
    it is at the other.
    """
    low, high = (np.array([1 - p, p]) for p in chances)
    own = _Own(*chances, trials)
    worst = Coordinate(0.0, 0.0)
    for base, missing in splits_of_others(low, high, trials * (clients - 1), quick=quick, ways=WAYS):
        if 2 * missing > tail:
            return Coordinate(inf, inf)
        seen = np.flatnonzero(base)
        worst = own.worst(base[seen[0] : seen[-1] + 1], tail - missing, worst, neighbours)
    return Coordinate(worst.per_square * SLACK, worst.most * SLACK)


class _Own:
    """The client's own trials at a grid of inputs: laws, and the most that a law of all but one can be in a cell."""

    def __init__(self, low: float, high: float, trials: int) -> None:
        self.trials, self.rise = trials, trials * (high - low) / 2
        chance = {sign: (low + high) / 2 + sign * GRID * (high - low) / 2 for sign in (1, -1)}
        outcomes = np.arange(trials + 1)
        self.laws = {sign: np.asarray(binom.pmf(outcomes, trials, p[:, None])) for sign, p in chance.items()}
        most = np.arange(trials) / max(1, trials - 1)
        self.most = {}
        for sign, p in chance.items():
            ends = np.sort(np.stack([p[:-1], p[1:]]), axis=0)[:, :, None]
            self.most[sign] = np.asarray(binom.pmf(outcomes[:-1], trials - 1, np.clip(most, ends[0], ends[1])))

    def worst(self, base: FloatArray, tail: float, known: Coordinate, neighbours: Neighbours) -> Coordinate:
        """The largest μ² beside others of this law, and what is known already."""
        z = {sign: _beside(laws, base) for sign, laws in self.laws.items()}
        # Events {sum ≥ t} for t = 1, …: those that are not in the tails at either end, and one beyond.
        above, below = z[1][0][-1], z[-1][1][-1]
        kept = slice(int(np.argmax(below > tail)) - (below[0] <= tail), _last(above, tail) + 1)
        ways, slopes = {}, {}
        for sign, (inside, outside) in z.items():
            where = _normal(inside[:, kept], outside[:, kept])
            ways[sign] = abs(where - where[0]) + ERROR
            ways[sign][0] = 0.0
            # The slope of an event's probability is that of its last outcome beside one trial less.
            steep = self.rise * _windows(base, self.trials)[: inside.shape[1]] @ self.most[sign].T
            density = np.minimum(*(np.exp(-part * part / 2) for part in (where[:-1], where[1:]))) / sqrt(2 * pi)
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes[sign] = np.nan_to_num(steep.T[:, kept] / density, nan=inf, posinf=inf)
        means = {sign: _means(ways[sign], slopes[sign]) for sign in ways}
        if neighbours == "zero-out":
            crude = np.maximum(*(means[sign].max(axis=0) for sign in (1, -1))) ** 2
            most = np.maximum(ways[1][-1], ways[-1][-1])
            return Coordinate(max(known.per_square, float(crude.max())), max(known.most, float(most.max()) ** 2))
        most = max(known.most, float((ways[1][-1] + ways[-1][-1]).max()) ** 2)
        crude = (means[1].max(axis=0) ** 2 + means[-1].max(axis=0) ** 2) / 2
        found, order = known.per_square, np.argsort(-crude)
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            if crude[some[0]] <= found:
                break
            found = max(found, _closely(means[1][:, some], means[-1][:, some]))
        return Coordinate(found, most)


def _windows(base: FloatArray, count: int) -> FloatArray:
    """A row for each sum 0, 1, …: the probabilities that the others add what ``count`` own outcomes leave of it."""
    padded = np.concatenate([np.zeros(count - 1), base, np.zeros(count)])
    return np.lib.stride_tricks.sliding_window_view(padded, count)[:, ::-1]


def _beside(laws: FloatArray, base: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Probabilities of {sum ≥ t}, t = 1, 2, …, and of their complements, a row for each law."""
    sums = (_windows(base, laws.shape[1]) @ laws.T).T
    sums = sums[:, : len(base) + laws.shape[1] - 1]
    return np.cumsum(sums[:, ::-1], axis=1)[:, ::-1][:, 1:], np.cumsum(sums, axis=1)[:, :-1]


def _last(above: FloatArray, tail: float) -> int:
    """The last event that is no less likely than a tail, or one beyond."""
    seen = np.flatnonzero(above > tail)
    return min(int(seen[-1]) + 1, len(above) - 1) if len(seen) else 0


def _normal(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Φ⁻¹ of probabilities of events, by the smaller of these and of their complements."""
    least = np.maximum(np.minimum(inside, outside), 1e-300)
    return np.asarray(np.where(inside <= outside, ndtri(least), -ndtri(least)))


def _means(ways: FloatArray, slopes: FloatArray) -> FloatArray:
    """The most that a way over its length can be in each cell: a row a cell, a column an event.

    From the beginning of a cell on it rises by no more than the steepest slope, and at its end it is known.
    """
    width = np.diff(GRID)[:, None]
    begin, end = GRID[:-1, None], GRID[1:, None]
    reached = np.minimum(ways[:-1] + slopes * width, inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(begin > 0, ways[:-1] / begin, slopes)
        by_end = np.where(begin > 0, ways[1:] / begin, inf)
    return np.asarray(np.minimum(np.maximum(first, reached / end), by_end))


def _closely(one: FloatArray, other: FloatArray) -> float:
    """The largest (x a + y b)² / 2(x² + y²) over all pairs of cells, a and b what the cells of some events have."""
    a, b = one[:, None], other[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.clip(b / a, (GRID[:-1] / GRID[1:, None])[..., None], (GRID[1:] / GRID[:-1, None])[..., None])
        found = (a + b * ratio) ** 2 / (2 * (1 + ratio**2))
    return float(np.nan_to_num(found, nan=inf).max())
