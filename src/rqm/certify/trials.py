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
        events = {sign: _upper_events(pmfs, base) for sign, pmfs in self.pmfs.items()}
        # Events {sum ≥ t} for t = 1, …: those that are not in the tails at either end, and one beyond.
        above, below = events[1][0][-1], events[-1][1][-1]
        used = slice(int(np.argmax(below > tail)) - (below[0] <= tail), _last_likely(above, tail) + 1)
        rises, mean_slopes = {}, {}
        for sign, (inside, outside) in events.items():
            z = _normal_quantile(inside[:, used], outside[:, used])
            rises[sign] = abs(z - z[0]) + Z_ERROR
            rises[sign][0] = 0.0
            # The slope of an event's probability is that of its last outcome beside one trial less.
            steepest = self.rise * _with_others(base, self.max_pmfs[sign])[:, : inside.shape[1]]
            density = np.minimum(*(np.exp(-values * values / 2) for values in (z[:-1], z[1:]))) / sqrt(2 * pi)
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes = np.nan_to_num(steepest[:, used] / density, nan=inf, posinf=inf)
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


def _with_others(base: FloatArray, pmfs: FloatArray) -> FloatArray:
    """The pmfs of the sums of a client, one row for each of its pmfs, and the other clients."""
    count = pmfs.shape[1]
    padded = np.concatenate([np.zeros(count - 1), base, np.zeros(count)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, count)[:, ::-1]
    return np.asarray(
        np.einsum("zk,uk->uz", windows, pmfs)
    )  # no product of matrices: threads would cost more than they gain


def _upper_events(pmfs: FloatArray, base: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Probabilities of {sum ≥ t}, t = 1, 2, …, and of their complements, a row for each pmf."""
    sums = _with_others(base, pmfs)[:, : len(base) + pmfs.shape[1] - 1]
    return np.cumsum(sums[:, ::-1], axis=1)[:, ::-1][:, 1:], np.cumsum(sums, axis=1)[:, :-1]


def _last_likely(above: FloatArray, tail: float) -> int:
    """The last event that is likelier than a tail, or the one after it."""
    likely = np.flatnonzero(above > tail)
    return min(int(likely[-1]) + 1, len(above) - 1) if len(likely) else 0


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
