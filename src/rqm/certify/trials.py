"""GDP of a coordinate that is a sum of independent trials: the sum itself, not its trials one by
one.

A trial with n − 1 others of its kind may be far from Gaussian where the sum of all trials is not:
if nearly all trials of ten thousand clients have the same outcome, the sum of all trials has fifteen
times more of the rare ones. Its pmf is no longer affine in the client's input. But the best events
are known, and on a grid of inputs so are their probabilities; in between, slopes are bounded
(docs/proofs/trials.md).
"""

from collections.abc import Callable
from functools import lru_cache
from math import inf, pi, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, ndtri, xlog1py, xlogy

from rqm._util.checks import FloatArray
from rqm.bounds import Neighboring
from rqm.certify.distributions import ROUND_UP, IntArray, splits


class CoordinateGdp(NamedTuple):
    """μ² of one coordinate with inputs u, u' in clips: at most `largest`, and at most `per_square` ·
    (squared distance).

    The squared distance is 2(u² + u'²), or u² if u' is zero.
    """

    per_square: float
    largest: float

    def raised(
        self,
        rises: list[FloatArray],
        slopes: list[FloatArray],
        per_square: Callable[[IntArray], float],
        neighboring: Neighboring,
        batch_size: int,
    ) -> "CoordinateGdp":
        """The largest of these and the μ² of some events, of which z = Φ⁻¹ of the probability is known.

        See docs/proofs/affine.md#lemma-7.

        Args:
            rises: For the inputs from zero to either end of the clip, how far z moves: a value for each event.
            slopes: Its steepest mean slope from zero on.
            per_square: The largest μ² / (2(u² + u'²)) of the events with some indices.
            neighboring: "replace-one" or "zero-out".
            batch_size: Events for which `per_square` is computed at once, those with the steepest slopes first.

        Returns:
            The larger of each.
        """
        if neighboring == "zero-out":
            steepest = float(np.max(slopes))
            farthest = float(np.max(rises))
            return CoordinateGdp(max(self.per_square, steepest**2), max(self.largest, farthest**2))
        upper_bounds = (slopes[0] ** 2 + slopes[1] ** 2) / 2
        by_bound = np.argsort(-upper_bounds)
        largest = self.per_square
        for start in range(0, len(by_bound), batch_size):
            events = by_bound[start : start + batch_size]
            events = events[upper_bounds[events] > largest]
            if not len(events):
                break
            largest = max(largest, per_square(events))
        return CoordinateGdp(largest, max(self.largest, float((rises[0] + rises[1]).max()) ** 2))


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
        self.trials = trials
        self.rise = trials * (high - low) / 2
        grid = [0.0, 0.001]  # inputs in clips, closer together near zero
        while grid[-1] < 1:
            grid.append(min(1.0, grid[-1] + sqrt(0.002 * grid[-1])))
        self.inputs = np.array(grid)[:, None]
        outcomes = np.arange(trials + 1.0)
        modes = np.arange(trials) / max(1, trials - 1)
        self.pmfs = []
        self.max_pmfs = []
        for rise in ((high - low) / 2, (low - high) / 2):
            success = (low + high) / 2 + self.inputs * rise
            self.pmfs.append(_binomial_pmf(outcomes, trials, success))
            begin, end = success[:-1], success[1:]
            worst = np.clip(modes, np.minimum(begin, end), np.maximum(begin, end))
            self.max_pmfs.append(_binomial_pmf(outcomes[:-1], trials - 1, worst))

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
        at_high = np.convolve(base, self.pmfs[0][-1])
        at_low = np.convolve(base, self.pmfs[1][-1])
        likely_above = np.cumsum(at_high[::-1])[::-1][1:] > tail
        likely_below = np.cumsum(at_low)[:-1] > tail
        # Those that are not in the tails at either end, and one beyond.
        first = max(int(np.argmax(likely_below)) - 1, 0)
        last = int(np.flatnonzero(likely_above).max(initial=-1)) + 1
        used = slice(first, min(last + 1, len(likely_above)))
        below = np.cumsum(base)
        above = np.append(np.cumsum(base[:0:-1])[::-1], 0.0)
        rises, mean_slopes = [], []
        for pmfs, max_pmfs in zip(self.pmfs, self.max_pmfs, strict=True):
            inside = _means(pmfs, _windows(above, self.trials + 1, below[-1], 0.0)[used])
            outside = _means(pmfs, _windows(below, self.trials + 1, 0.0, below[-1])[used])
            z = _normal_quantile(inside, outside)
            rise = z_distance(z, z[0])
            rise[0] = 0.0
            # The slope of an event's probability is that of its last outcome beside one trial less.
            steepest = self.rise * _means(max_pmfs, _windows(base, self.trials, 0.0, 0.0)[used])
            farthest = np.maximum(z[:-1] ** 2, z[1:] ** 2)
            density = np.exp(-farthest / 2) / sqrt(2 * pi)
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes = nan_as_infinity(steepest / density)
            rises.append(rise)
            mean_slopes.append(self._mean_slopes(rise, slopes))

        def per_square(events: IntArray) -> float:
            return self._per_square(mean_slopes[0][:, events], mean_slopes[1][:, events])

        at_ends = [rise[-1] for rise in rises]
        steepest_means = [slopes.max(axis=0) for slopes in mean_slopes]
        return bounds.raised(at_ends, steepest_means, per_square, neighboring, batch_size=16)

    def _mean_slopes(self, rises: FloatArray, slopes: FloatArray) -> FloatArray:
        """The largest rise over its distance from zero in each cell: one row a cell, one column an
        event.

        From the beginning of a cell on z rises by no more than the steepest slope, and at its end it
        is known.

        See docs/proofs/trials.md#lemma-3.
        """
        begin = self.inputs[:-1]
        end = self.inputs[1:]
        reached = rises[:-1] + slopes * (end - begin)
        with np.errstate(divide="ignore", invalid="ignore"):
            first = np.where(begin > 0, rises[:-1] / begin, slopes)
            by_end = np.where(begin > 0, rises[1:] / begin, inf)
        return np.asarray(np.minimum(np.maximum(first, reached / end), by_end))

    def _per_square(self, mean: FloatArray, opposite: FloatArray) -> float:
        """The largest (x a + y b)² / 2(x² + y²) over all pairs of cells, with a and b the cells' mean
        slopes.

        See docs/proofs/trials.md#theorem-4.
        """
        a = mean[:, None]
        b = opposite[None]
        begin = self.inputs[:-1, None]
        end = self.inputs[1:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            smallest = begin.swapaxes(0, 1) / end
            largest = end.swapaxes(0, 1) / begin
            ratio = np.clip(b / a, smallest, largest)
            squares = (a + b * ratio) ** 2 / (2 * (1 + ratio**2))
        return float(nan_as_infinity(squares).max())


def z_distance(z: FloatArray, start: FloatArray) -> FloatArray:
    """|z − start| of values of Φ⁻¹ of sums of positive numbers, plus more than their absolute error."""
    return np.abs(z - start) + 1e-11


def nan_as_infinity(bounds: FloatArray) -> FloatArray:
    """Upper bounds, infinite where their computation gave no number."""
    return np.where(np.isnan(bounds), inf, bounds)


def _binomial_pmf(successes: FloatArray, trials: int, p: FloatArray) -> FloatArray:
    """The binomial pmf; SciPy's takes half a second to import."""
    failures = trials - successes
    log_choices = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(failures + 1)
    return np.exp(log_choices + xlogy(successes, p) + xlog1py(failures, -p))


def _windows(values: FloatArray, count: int, before: float, after: float) -> FloatArray:
    """Row i has the values at i, i − 1, …, i − count + 1; there are constants before and after the values."""
    padded = np.pad(values, count - 1, constant_values=(before, after))
    return np.lib.stride_tricks.sliding_window_view(padded, count)[:, ::-1]


def _means(pmfs: FloatArray, windows: FloatArray) -> FloatArray:
    """The mean of each window under each pmf."""
    return np.asarray(np.einsum("uk,zk->uz", pmfs, windows))  # a product of matrices would start threads


def _normal_quantile(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Φ⁻¹ of probabilities of events, computed from the smaller of these and their complements."""
    z = ndtri(np.maximum(np.minimum(inside, outside), 1e-300))
    return np.asarray(np.where(inside <= outside, z, -z))
