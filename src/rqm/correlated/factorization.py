"""Matrix factorization mechanisms: correlated Gaussian noise of a trusted server, and its error in
the model.

In T rounds the server adds the rows of C⁻¹z with white noise z and C lower triangular: releasing
x + C⁻¹z reveals what Cx + z reveals. For a user who takes part at most k times, at least p rounds
apart, that is a Gaussian mechanism whose sensitivity is that of Cx (Denisov et al. 2022; adaptive
inputs are covered). A server with momentum β and learning rates η sums the noise n up to the
iterate of round τ as Σ_t g[τ, t] n_t, g[τ, t] = Σ_{s=t}^{τ} η_s β^{s−t}. The error is the root
mean square of the iterates' noise at sensitivity 1. Banded matrices are optimized as in
Choquette-Choo et al. (2023).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from rqm._util.checks import real, whole
from rqm.mechanisms.base import Schedule, rate_factor

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Workload:
    """How a server sums noise into its model.

    Attributes:
        rounds: T.
        momentum: β.
        schedule: The schedule of the learning rate.
    """

    rounds: int
    momentum: float = 0.9
    schedule: Schedule = "linear"

    def __post_init__(self) -> None:
        """Validate every value."""
        whole("rounds", self.rounds, 1)
        real("momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")

    @cached_property
    def rates(self) -> Floats:
        """The learning rate of every round, over the first."""
        return np.array([rate_factor(self.schedule, index, self.rounds) for index in range(self.rounds)])

    @cached_property
    def matrix(self) -> Floats:
        """How much of the noise of round t (a column) is in the iterate of round τ (a row)."""
        weights = np.zeros((self.rounds, self.rounds))
        powers = self.momentum ** np.arange(self.rounds)
        for t in range(self.rounds):
            weights[t:, t] = np.cumsum(self.rates[t:] * powers[: self.rounds - t])
        return weights


@final
@dataclass(frozen=True, eq=False)
class Strategy:
    """A strategy matrix C by its bands: `rows[t, j]` is C[t, t − j], zero where t < j."""

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
        dense = np.zeros((self.rounds, self.rounds))
        for lag in range(self.bands):
            dense[range(lag, self.rounds), range(self.rounds - lag)] = self.rows[lag:, lag]
        return dense

    def sensitivity(self, max_participations: int = 1, min_separation: int = 1) -> float:
        """The largest L2 norm of Cx for a user's vectors of norm 1.

        Exact where a user's participations do not overlap, and where C is the same in every round
        with nonnegative nonincreasing bands (Kalinin and Lampert 2024, Theorem 2). Otherwise a
        bound, by the triangle inequality.

        Args:
            max_participations: k.
            min_separation: p, in rounds.

        Returns:
            The sensitivity.
        """
        count = min(max_participations, ceil(self.rounds / min_separation))
        if count == 1 or self.bands <= min_separation:
            squares = np.square(self.matrix).sum(0)[None]
            return float(np.sqrt(_largest_sums(squares, count, min_separation)[0]))
        bands = self.rows[-1]
        is_toeplitz = all((self.rows[lag:, lag] == bands[lag]).all() for lag in range(self.bands))
        if is_toeplitz and (bands >= 0).all() and (np.diff(bands) <= 0).all():
            columns = self.matrix[:, : count * min_separation : min_separation][:, :count]
            return float(np.linalg.norm(columns.sum(1)))
        row_sums = _largest_sums(np.abs(self.matrix.T @ self.matrix), count, min_separation)
        return float(np.sqrt(_largest_sums(row_sums[None], count, min_separation)[0]))

    def error(self, workload: Workload, max_participations: int = 1, min_separation: int = 1) -> float:
        """The root mean square of the iterates' noise at sensitivity 1.

        Args:
            workload: How the server sums noise.
            max_participations: k.
            min_separation: p, in rounds.

        Returns:
            The error.
        """
        from scipy.linalg import solve_triangular  # noqa: PLC0415 (rare)

        left = solve_triangular(self.matrix, workload.matrix.T, lower=True, trans="T")
        spread = float(np.sqrt(np.square(left).sum() / self.rounds))
        return spread * self.sensitivity(max_participations, min_separation)

    def over_independent(self, workload: Workload) -> float:
        """The error over that of independent noise, for users who take part once.

        Args:
            workload: How the server sums noise.

        Returns:
            The ratio.
        """
        return self.error(workload) / Strategy(np.ones((self.rounds, 1))).error(workload)


def _largest_sums(values: Floats, count: int, min_separation: int) -> Floats:
    """The largest sum, in every row, of at most `count` values at least so far apart; none is
    negative."""
    rows, width = values.shape
    best = np.zeros((rows, width + min_separation))  # of the values from here on
    for _ in range(count):
        taken = values + best[:, min_separation:]
        best = np.zeros_like(best)
        best[:, :width] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]


@lru_cache(maxsize=8)
def banded(workload: Workload, bands: int) -> Strategy:
    """The best banded C with columns of norm 1 and the same coefficients in every round.

    Its sensitivity is √k for k participations at least `bands` rounds apart.

    See docs/proofs/correlated.md#lemma-17.

    Args:
        workload: How the server sums noise.
        bands: Rounds that noise is correlated over, itself included.

    Returns:
        The strategy.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 (rare)

    bands = min(whole("bands", bands, 1), workload.rounds)
    if bands == 1:
        return Strategy(np.ones((workload.rounds, 1)))
    spread = _ToeplitzError(workload)

    def loss(tail: Floats) -> tuple[float, Floats]:
        coefficients = np.concatenate([[1.0], tail])
        value, slope = spread(coefficients)
        norm = float(np.square(coefficients).sum())
        return value + np.log(norm), (slope + 2 * coefficients / norm)[1:]

    lags = np.arange(1, bands)
    start: Floats = np.cumprod((lags - 0.5) / lags, dtype=np.float64)  # of 1/√(1 − x)
    options: Any = {"maxiter": 1000, "maxfun": 2000, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-9}
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    coefficients = np.concatenate([[1.0], best])
    rows = np.where(np.arange(bands) <= np.arange(workload.rounds)[:, None], coefficients, 0.0)
    norms = np.linalg.norm(Strategy(rows).matrix, axis=0)
    for lag in range(bands):
        rows[lag:, lag] /= norms[: workload.rounds - lag]
    return Strategy(rows)


class _ToeplitzError:
    """log Σ_τ variance of the iterates for C with the same bands in every round, and its slope by
    the bands.

    Only sums in a fixed order, no products of matrices: the same bits every time.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        index = np.arange(workload.rounds)
        later = index[:, None] + index  # [j, i]: the round that lies i after round j
        self.inside = later < workload.rounds
        self.rates = np.where(self.inside, workload.rates[np.minimum(later, workload.rounds - 1)], 0.0)

    def __call__(self, bands: Floats) -> tuple[float, Floats]:
        from scipy.signal import lfilter  # noqa: PLC0415 (rare)

        rounds = self.workload.rounds
        inverse = lfilter([1.0], bands, np.eye(1, rounds)[0])  # the noise of a round, by rounds since z was drawn
        steps = lfilter([1.0], [1.0, -self.workload.momentum], inverse)
        iterates = np.cumsum(self.rates * steps, axis=1) * self.inside
        value = float(np.square(iterates).sum())
        tail_sums = np.cumsum(iterates[:, ::-1], axis=1)[:, ::-1]
        slope = 2 * (self.rates * tail_sums).sum(0)
        products = np.convolve(steps, inverse)[:rounds]
        by_band = -np.array([np.dot(slope[lag:], products[: rounds - lag]) for lag in range(len(bands))])
        return float(np.log(value)), by_band / value
