"""GDP of a coordinate that is a sum of independent trials: the sum itself, not its trials one by
one.

A trial with n − 1 others of its kind may be far from Gaussian where the sum of all trials is not:
if nearly all trials of ten thousand clients have the same outcome, the sum of all trials has fifteen
times more of the rare ones. Its pmf is no longer affine in the client's input. But the best events
are known, and on a grid of inputs so are their probabilities; in between, slopes are bounded
(docs/proofs/trials.md).
"""

from functools import lru_cache
from math import inf, pi, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, ndtri, xlog1py, xlogy

from rqm._util.checks import FloatArray
from rqm.bounds import Neighboring
from rqm.certify.distributions import ROUND_UP, splits

Z_ERROR = 1e-11
"""Above the absolute error of Φ⁻¹ of a sum of positive numbers."""


class CoordinateGdp(NamedTuple):
    """μ² of one coordinate with inputs u, u' in clips: at most `largest`, and at most `per_square` ·
    (squared distance).

    The squared distance is 2(u² + u'²), or u² if u' is zero.
    """

    per_square: float
    largest: float

    def maximum(self, alternative: "CoordinateGdp") -> "CoordinateGdp":
        """The larger of each."""
        return CoordinateGdp(max(self.per_square, alternative.per_square), max(self.largest, alternative.largest))


def _input_grid() -> FloatArray:
    """Inputs from zero to one, closer together near zero."""
    grid = [0.0, 0.001]
    while grid[-1] < 1:
        grid.append(min(1.0, grid[-1] + sqrt(0.002 * grid[-1])))
    return np.array(grid)


INPUTS = _input_grid()
"""Ends of the cells of inputs, in clips."""


@lru_cache(maxsize=256)
def summed_trials(
    success: tuple[float, float],
    trials: int,
    clients: int,
    neighboring: Neighboring,
    tail: float,
    max_splits: int = 128,
) -> CoordinateGdp:
    """μ² of a coordinate that is the sum of trials of every client, except for a tail at each end.

    See docs/proofs/trials.md#theorem-4.

    Args:
        success: The probability of success of a trial at the input −c and at c.
        trials: Trials of one client.
        clients: Number of honest clients.
        neighboring: "replace-one" or "zero-out".
        tail: Probability at each end of the sum that is left out.
        max_splits: The largest number of different splits of the other clients' trials; it bounds
            the time.

    Returns:
        The largest over all splits of the other clients' trials; infinite if tails are unknown.
    """
    low, high = (np.array([1 - p, p]) for p in success)
    own_trials = _OwnTrials(*success, trials)
    worst = CoordinateGdp(0.0, 0.0)
    for base in splits(low, high, trials * (clients - 1), max_splits=max_splits):
        if 2 * base.missing > tail:
            return CoordinateGdp(inf, inf)
        worst = own_trials.raised(worst, np.trim_zeros(base.pmf), tail - base.missing, neighboring)
    return CoordinateGdp(worst.per_square * ROUND_UP, worst.largest * ROUND_UP)


class _OwnTrials:
    """The client's own trials on the grid of inputs: pmfs, and bounds in each cell on the pmf of all
    trials but one.

    See docs/proofs/trials.md#lemma-3.
    """

    def __init__(self, low: float, high: float, trials: int) -> None:
        self.trials, self.rise = trials, trials * (high - low) / 2
        success = {sign: (low + high) / 2 + sign * INPUTS * (high - low) / 2 for sign in (1, -1)}
        outcomes = np.arange(trials + 1.0)
        self.pmfs = {sign: _binomial_pmf(outcomes, trials, p[:, None]) for sign, p in success.items()}
        modes = np.arange(trials) / max(1, trials - 1)
        self.max_pmfs = {}
        for sign, p in success.items():
            cell_ends = np.sort(np.stack([p[:-1], p[1:]]), axis=0)[:, :, None]
            worst = np.clip(modes, cell_ends[0], cell_ends[1])
            self.max_pmfs[sign] = _binomial_pmf(outcomes[:-1], trials - 1, worst)

    def raised(self, bounds: CoordinateGdp, base: FloatArray, tail: float, neighboring: Neighboring) -> CoordinateGdp:
        """The largest μ² with a sum of the other clients, and of the sums before.

        Args:
            bounds: The largest so far.
            base: The pmf of the sum of the other clients.
            tail: Probability at each end of the sum that is left out.
            neighboring: "replace-one" or "zero-out".

        Returns:
            The larger of each.
        """
        # Events {sum ≥ t} for t = 1, 2, …: their probabilities and those of their complements.
        at_ends = {sign: np.convolve(base, pmfs[-1]) for sign, pmfs in self.pmfs.items()}
        likely_above = np.cumsum(at_ends[1][::-1])[::-1][1:] > tail
        likely_below = np.cumsum(at_ends[-1])[:-1] > tail
        # Those that are not in the tails at either end, and one beyond.
        first = max(int(np.argmax(likely_below)) - 1, 0)
        last = int(np.flatnonzero(likely_above).max(initial=-1)) + 1
        used = slice(first, min(last + 1, len(likely_above)))
        below = np.cumsum(base)
        above = np.append(np.cumsum(base[:0:-1])[::-1], 0.0)
        rises, mean_slopes = {}, {}
        for sign, pmfs in self.pmfs.items():
            inside = _means(pmfs, _windows(above, self.trials + 1, below[-1], 0.0)[used])
            outside = _means(pmfs, _windows(below, self.trials + 1, 0.0, below[-1])[used])
            z = _normal_quantile(inside, outside)
            rises[sign] = abs(z - z[0]) + Z_ERROR
            rises[sign][0] = 0.0
            # The slope of an event's probability is that of its last outcome beside one trial less.
            steepest = self.rise * _means(self.max_pmfs[sign], _windows(base, self.trials, 0.0, 0.0)[used])
            density = np.minimum(*(np.exp(-values * values / 2) for values in (z[:-1], z[1:]))) / sqrt(2 * pi)
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes = np.nan_to_num(steepest / density, nan=inf, posinf=inf)
            mean_slopes[sign] = _mean_slopes(rises[sign], slopes)
        if neighboring == "zero-out":
            per_square = max(float(values.max()) for values in mean_slopes.values()) ** 2
            return bounds.maximum(CoordinateGdp(per_square, max(float(rise[-1].max()) for rise in rises.values()) ** 2))
        crude = (mean_slopes[1].max(axis=0) ** 2 + mean_slopes[-1].max(axis=0) ** 2) / 2
        per_square = bounds.per_square
        by_bound = np.argsort(-crude)
        batch_size = 16
        for start in range(0, len(by_bound), batch_size):
            batch = by_bound[start : start + batch_size]
            if crude[batch[0]] <= per_square:
                break
            per_square = max(per_square, _per_square(mean_slopes[1][:, batch], mean_slopes[-1][:, batch]))
        return CoordinateGdp(per_square, max(bounds.largest, float((rises[1][-1] + rises[-1][-1]).max()) ** 2))


def _binomial_pmf(successes: FloatArray, trials: int, p: FloatArray) -> FloatArray:
    """The binomial pmf; SciPy's takes half a second to import."""
    log_choices = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
    return np.asarray(np.exp(log_choices + xlogy(successes, p) + xlog1py(trials - successes, -p)))


def _windows(values: FloatArray, count: int, before: float, after: float) -> FloatArray:
    """Row i has the values at i, i − 1, …, i − count + 1; there are constants before and after the values."""
    padded = np.pad(values, count - 1, constant_values=(before, after))
    return np.lib.stride_tricks.sliding_window_view(padded, count)[:, ::-1]


def _means(pmfs: FloatArray, windows: FloatArray) -> FloatArray:
    """The mean of each window under each pmf."""
    return np.einsum("uk,zk->uz", pmfs, windows)  # a product of matrices would start threads


def _normal_quantile(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Φ⁻¹ of probabilities of events, computed from the smaller of these and their complements."""
    z = ndtri(np.maximum(np.minimum(inside, outside), 1e-300))
    return np.asarray(np.where(inside <= outside, z, -z))


def _mean_slopes(rises: FloatArray, slopes: FloatArray) -> FloatArray:
    """The largest rise over its distance from zero in each cell: one row a cell, one column an
    event.

    From the beginning of a cell on z rises by no more than the steepest slope, and at its end it
    is known.

    See docs/proofs/trials.md#lemma-3.
    """
    begin, end = INPUTS[:-1, None], INPUTS[1:, None]
    reached = rises[:-1] + slopes * (end - begin)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(begin > 0, rises[:-1] / begin, slopes)
        by_end = np.where(begin > 0, rises[1:] / begin, inf)
    return np.asarray(np.minimum(np.maximum(first, reached / end), by_end))


def _per_square(mean: FloatArray, opposite: FloatArray) -> float:
    """The largest (x a + y b)² / 2(x² + y²) over all pairs of cells, with a and b the cells' mean
    slopes.

    See docs/proofs/trials.md#theorem-4.
    """
    a, b = mean[:, None], opposite[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        smallest = (INPUTS[:-1] / INPUTS[1:, None])[..., None]
        largest = (INPUTS[1:] / INPUTS[:-1, None])[..., None]
        ratio = np.clip(b / a, smallest, largest)
        squares = (a + b * ratio) ** 2 / (2 * (1 + ratio**2))
    return float(np.nan_to_num(squares, nan=inf, posinf=inf).max())
