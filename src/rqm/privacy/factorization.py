"""Correlated Gaussian noise: what a trusted server adds to be taken back later, and what is left of it in the models.

In T rounds the server adds the rows of C⁻¹z, z white, C lower triangular: releasing x + C⁻¹z is releasing Cx + z. What
it tells of a user who takes part at most k times, at least p rounds apart, is a Gaussian mechanism's whose sensitivity
is that of Cx (Denisov et al. 2022: the data may be chosen by what was seen). A server with momentum β and the rates η
sums the noise n up to the iterate of round τ as Σ_t g[τ, t] n_t, g[τ, t] = Σ_{s=t}^{τ} η_s β^{s−t}; the error is the
root of the mean over τ of its variance, at sensitivity 1. Neighbours that are replaced differ by two clips: that factor
is the accountant's.

Strategies: independent noise; banded matrices with optimised bands (Choquette-Choo et al. 2023), the same in every
round or each column its own; buffered linear Toeplitz (McMahan et al. 2024); the banded inverse square root (Kalinin et
al. 2025).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from rqm._util.checks import real, whole
from rqm._util.schedules import Schedule, rate_factor

Floats = NDArray[np.float64]

STEPS = 1000
"""The most steps of an optimisation; hardly one in ten of them is needed."""


@final
@dataclass(frozen=True)
class Workload:
    """A server of so many ``rounds``, whose noise is summed with ``momentum`` and rates of a ``schedule``."""

    rounds: int
    momentum: float = 0.9
    schedule: Schedule = "linear"

    def __post_init__(self) -> None:
        """Validate every value."""
        whole("rounds", self.rounds, 1)
        real("momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")

    @cached_property
    def rates(self) -> Floats:
        """The rate of every round, over the first."""
        return np.array([rate_factor(self.schedule, turn, self.rounds) for turn in range(self.rounds)])

    @cached_property
    def matrix(self) -> Floats:
        """How much of the noise of round t (a column) is in the iterate of round τ (a row)."""
        found = np.zeros((self.rounds, self.rounds))
        powers = self.momentum ** np.arange(self.rounds)
        for turn in range(self.rounds):
            found[turn:, turn] = np.cumsum(self.rates[turn:] * powers[: self.rounds - turn])
        return found


@final
@dataclass(frozen=True, eq=False)
class Strategy:
    """C by its bands: ``rows[t, j]`` is C[t, t − j], zero where t < j."""

    rows: Floats

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.rows)

    @property
    def bands(self) -> int:
        """Rounds that the noise of one is correlated with, itself included."""
        return int(self.rows.shape[1])

    @cached_property
    def matrix(self) -> Floats:
        """C."""
        found = np.zeros((self.rounds, self.rounds))
        for lag in range(self.bands):
            found[range(lag, self.rounds), range(self.rounds - lag)] = self.rows[lag:, lag]
        return found

    def sensitivity(self, participations: int = 1, separation: int = 1) -> float:
        """The L2 norm of Cx at most, for a user's vectors of norm 1 in so many rounds, at least so far apart.

        Exact where a user's participations do not overlap, and for C that is the same in every round with positive
        falling bands (there as often and as early as possible is worst: Kalinin and Lampert 2024, theorem 2). Else a
        bound, by the triangle inequality.
        """
        times = min(participations, ceil(self.rounds / separation))
        if times == 1 or self.bands <= separation:
            return float(np.sqrt(_most(np.square(self.matrix).sum(0)[None], times, separation)[0]))
        if self._falling:
            return float(np.linalg.norm(self.matrix[:, : times * separation : separation][:, :times].sum(1)))
        overlap = np.abs(self.matrix.T @ self.matrix)
        each = _most(overlap, times, separation)
        return float(np.sqrt(_most(each[None], times, separation)[0]))

    @property
    def _falling(self) -> bool:
        bands = self.rows[-1]
        same = all((self.rows[lag:, lag] == bands[lag]).all() for lag in range(self.bands))
        return same and bool((bands >= 0).all() and (np.diff(bands) <= 0).all())

    def spread(self, workload: Workload) -> float:
        """The root mean variance of the iterates with noise C⁻¹z, whatever the sensitivity of C."""
        from scipy.linalg import solve_triangular  # noqa: PLC0415

        left = solve_triangular(self.matrix, workload.matrix.T, lower=True, trans="T")
        return float(np.sqrt(np.square(left).sum() / self.rounds))

    def error(self, workload: Workload, participations: int = 1, separation: int = 1) -> float:
        """The root mean variance of the iterates at sensitivity 1."""
        return self.spread(workload) * self.sensitivity(participations, separation)

    def over_independent(self, workload: Workload, participations: int = 1, separation: int = 1) -> float:
        """The error over that of independent noise."""
        alone = independent(self.rounds).error(workload, participations, separation)
        return self.error(workload, participations, separation) / alone


def _most(values: Floats, times: int, separation: int) -> Floats:
    """The largest sum, in every row, of so many values at most that are at least so far apart; none is negative."""
    rows, width = values.shape
    best = np.zeros((rows, width + separation))  # of the values from here on
    for _ in range(times):
        taken = values + best[:, separation:]
        best = np.zeros_like(best)
        best[:, :width] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]


# -- strategies -----------------------------------------------------------------------------------


def independent(rounds: int) -> Strategy:
    """Fresh noise in every round."""
    return Strategy(np.ones((rounds, 1)))


def same_bands(coefficients: Any, rounds: int) -> Strategy:
    """C with the same bands in every round."""
    bands = np.asarray(coefficients, dtype=np.float64)[:rounds]
    lags = np.arange(len(bands))
    return Strategy(np.where(lags <= np.arange(rounds)[:, None], bands, 0.0))


def unit_columns(strategy: Strategy) -> Strategy:
    """The same with columns of norm 1: the last rounds use the sensitivity that their cut-off columns leave."""
    norms = np.linalg.norm(strategy.matrix, axis=0)
    rows = strategy.rows.copy()
    for lag in range(strategy.bands):
        rows[lag:, lag] /= norms[: strategy.rounds - lag]
    return Strategy(rows)


@lru_cache(maxsize=8)
def banded(workload: Workload, bands: int) -> Strategy:
    """The best C with so many bands, the same in every round but for its columns' norms, which are 1.

    So its sensitivity is √k for participations at least ``bands`` rounds apart, or for one.
    """
    bands = min(whole("bands", bands, 1), workload.rounds)
    if bands == 1:
        return independent(workload.rounds)
    spread = _SameBands(workload)

    def loss(tail: Floats) -> tuple[float, Floats]:
        found = np.concatenate([[1.0], tail])
        value, slope = spread(found)
        norm = float(np.square(found).sum())
        return value + np.log(norm), (slope + 2 * found / norm)[1:]

    best = _minimised(loss, _root(bands)[1:])
    return unit_columns(same_bands(np.concatenate([[1.0], best]), workload.rounds))


def banded_columns(workload: Workload, bands: int, start: Strategy | None = None) -> Strategy:
    """The best C with so many bands, every column its own, of norm 1: a convex problem in CᵀC, and slow."""
    from scipy.linalg import solve_triangular  # noqa: PLC0415

    start = start or banded(workload, bands)
    rounds, bands = workload.rounds, start.bands
    row, lag = np.nonzero(np.arange(bands) <= np.arange(rounds)[:, None])
    at = (row, row - lag)

    def columns(values: Floats) -> tuple[Floats, Floats]:
        found = np.zeros((rounds, rounds))
        found[at] = values
        norms = np.linalg.norm(found, axis=0)
        return found / norms, norms

    def loss(values: Floats) -> tuple[float, Floats]:
        matrix, norms = columns(values)
        left = solve_triangular(matrix, workload.matrix.T, lower=True, trans="T")
        value = float(np.square(left).sum())
        full = solve_triangular(matrix, left @ left.T, lower=True).T
        slope = np.zeros((rounds, rounds))
        slope[at] = -2 * full[at]
        slope = (slope - matrix * (slope * matrix).sum(0)) / norms
        return float(np.log(value)), slope[at] / value

    best, _ = columns(_minimised(loss, start.rows[row, lag], 1e-7))
    rows = np.zeros((rounds, bands))
    rows[row, lag] = best[at]
    return Strategy(rows)


def buffered(workload: Workload, participations: int, separation: int, buffers: int = 3) -> Strategy:
    """The best buffered linear Toeplitz C: bands Σ_i ω_i λ_i^{j−1} after the first, which is 1.

    ω > 0, Σω < 1 and 0 < λ < 1, so that the bands are positive and fall, and the sensitivity is exact.
    """
    rounds, spread = workload.rounds, _SameBands(workload)
    times = min(participations, ceil(rounds / separation))
    power = np.arange(rounds - 1)

    def bands(values: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        scores, decays = np.exp(values[:buffers]), 1 / (1 + np.exp(-values[buffers:]))
        weights = scores / (1 + scores.sum())
        terms = decays[:, None] ** power
        return np.concatenate([[1.0], weights @ terms]), weights, decays, terms

    def loss(values: Floats) -> tuple[float, Floats]:
        found, weights, decays, terms = bands(values)
        value, slope = spread(found)
        norm, norm_slope = _repeated(found, times, separation)
        tail = (slope + norm_slope / norm)[1:]
        by_weight = terms @ tail
        by_decay = weights * ((power * decays[:, None] ** np.maximum(power - 1, 0)) @ tail)
        by_score = weights * (by_weight - (weights * by_weight).sum())
        return value + float(np.log(norm)), np.concatenate([by_score, by_decay * decays * (1 - decays)])

    slow = np.log(4.0 * separation * np.geomspace(0.05, 1.0, buffers))
    best = _minimised(loss, np.concatenate([np.full(buffers, -1.0), slow]))
    return same_bands(bands(best)[0], rounds)


def inverse_root(workload: Workload, bands: int) -> Strategy:
    """C whose *inverse* has so many bands: those of the root of (1 − x)(1 − βx), for a constant rate; closed form."""
    from scipy.signal import lfilter  # noqa: PLC0415

    rounds = workload.rounds
    bands = min(whole("bands", bands, 1), rounds)
    one, other = (_inverse_root_of(ratio, bands) for ratio in (1.0, workload.momentum))
    return same_bands(lfilter([1.0], np.convolve(one, other)[:bands], np.eye(1, rounds)[0]), rounds)


def _inverse_root_of(ratio: float, count: int) -> Floats:
    """The first coefficients of √(1 − ratio·x)."""
    lag = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((lag - 1.5) / lag * ratio)])


def _root(count: int) -> Floats:
    """The first coefficients of 1/√(1 − x): where a search begins."""
    lag = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((lag - 0.5) / lag)])


# -- optimisation ---------------------------------------------------------------------------------


class _SameBands:
    """log Σ_τ variance of the iterates for C with the same bands in every round, and its slope by the bands.

    Only sums in a fixed order, no products of matrices: the same bits every time.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        turn = np.arange(workload.rounds)
        later = turn[:, None] + turn  # [j, i]: the round that lies i after round j
        self.inside = later < workload.rounds
        self.rates = np.where(self.inside, workload.rates[np.minimum(later, workload.rounds - 1)], 0.0)

    def __call__(self, bands: Floats) -> tuple[float, Floats]:
        from scipy.signal import lfilter  # noqa: PLC0415

        rounds = self.workload.rounds
        inverse = lfilter([1.0], bands, np.eye(1, rounds)[0])  # the noise of a round, by rounds since z was drawn
        moved = lfilter([1.0], [1.0, -self.workload.momentum], inverse)  # what a step is of it
        iterates = np.cumsum(self.rates * moved, axis=1) * self.inside
        value = float(np.square(iterates).sum())
        after = np.cumsum(iterates[:, ::-1], axis=1)[:, ::-1]
        slope = 2 * (self.rates * after).sum(0)
        both = np.convolve(moved, inverse)[:rounds]
        by_band = -np.array([np.dot(slope[lag:], both[: rounds - lag]) for lag in range(len(bands))])
        return float(np.log(value)), by_band / value


def _repeated(bands: Floats, times: int, separation: int) -> tuple[float, Floats]:
    """The squared norm of the sum of the columns 0, p, 2p, …, and its slope by the bands."""
    total = np.zeros_like(bands)
    starts = range(0, min(times * separation, len(bands)), separation)
    for start in starts:
        total[start:] += bands[: len(bands) - start]
    slope = np.zeros_like(bands)
    for start in starts:
        slope[: len(bands) - start] += 2 * total[start:]
    return float(np.square(total).sum()), slope


def _minimised(loss: Any, start: Floats, gain: float = 1e-12) -> Floats:
    """Where a loss, given with its slope, is least; the search ends with a step that gains less than that part."""
    from scipy.optimize import minimize  # noqa: PLC0415

    options: Any = {"maxiter": STEPS, "maxfun": 2 * STEPS, "maxcor": 20, "ftol": gain, "gtol": 1e-9}
    found: Floats = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    return found
