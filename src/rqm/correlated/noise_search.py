"""The parameters of `CorrelatedNoise` with the least noise in the model for the same μ."""

from math import sqrt

from rqm.correlated.factorization import Workload
from rqm.correlated.iterates import IterateNoise, iterate_noise
from rqm.correlated.noise import MIN_STD, CorrelatedNoise

ROUNDING_STD = 0.5
"""The standard deviation of rounding half-way between two levels, in steps."""


def best_noise(
    separation: int,
    workload: Workload,
    *,
    clients: int,
    honest: int,
    bits: int,
    least_squared_mu: float = 0.0,
) -> CorrelatedNoise:
    """Correlated noise that goes best with rounding to two levels, in steps.

    Args:
        separation: Rounds from one participation to the next, at least.
        workload: How the server sums noise into its model.
        clients: Clients in a round.
        honest: Honest clients in each round.
        bits: Bits of a sum, at most.
        least_squared_mu: μ² of a shift by one step that a client's noise must at least allow for,
            as steps cannot be finer.

    Returns:
        The noise.
    """
    noise = iterate_noise(workload)
    simple = CorrelatedNoise(max(noise.best_ratio(separation) * ROUNDING_STD, MIN_STD))
    residuals = (0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)  # standard deviations, in steps
    with_residual = [_best_residual(separation, clients, honest, noise, residual, bits) for residual in residuals]
    usable = [
        candidate
        for candidate in with_residual
        if candidate is not None and candidate.estimated_mu(separation, ROUNDING_STD) ** 2 >= least_squared_mu
    ]
    predicted = {candidate: _predicted(candidate, separation, honest, noise) for candidate in (simple, *usable)}
    near_best = [candidate for candidate in predicted if predicted[candidate] <= 1.015 * min(predicted.values())]
    return min(near_best, key=lambda candidate: (candidate.sum_bits(clients, clients), predicted[candidate]))


def _predicted(noise: CorrelatedNoise, separation: int, honest: int, iterates: IterateNoise) -> float:
    """The noise of the iterates over that of independent noise, if it were Gaussian but for how
    paths are drawn."""
    transient, residual, gain = noise.transient_std, noise.residual_std, noise.gain
    squared = noise.estimated_mu(separation, ROUNDING_STD) ** 2
    if residual:  # that a path ends in a random round reveals more, the fewer clients there are
        squared += (1 / residual**2 + gain**2 / transient**2) ** 2 / (4 * gain * honest)
    return iterates.rms(ROUNDING_STD, transient, residual, gain) * sqrt(squared) / iterates.rms(1.0, 0.0)


def _best_residual(
    separation: int, clients: int, honest: int, iterates: IterateNoise, residual: float, bits: int
) -> CorrelatedNoise | None:
    """The best noise with this residual noise and at most `bits` bits: a coarse grid, then a fine one."""
    best: CorrelatedNoise | None = None
    # A path that ends at random reveals much in the tails of sums with smaller standard deviations, in steps.
    if residual < 20.0 / sqrt(honest):
        return None
    min_ratio = max(15.0 / sqrt(honest), MIN_STD)
    shapes = (0.25, 0.4, 0.6, 1.0, 1.6, 2.5)  # of transient noise over `gain` times residual noise
    tried = [(shape * residual, gain) for shape in shapes for gain in range(8, 129, 8)]
    for _ in range(2):
        choices = [
            CorrelatedNoise(round(ratio * gain, 4), residual, gain) for ratio, gain in tried if ratio >= min_ratio
        ]
        choices = [candidate for candidate in choices if candidate.sum_bits(clients, clients) <= bits]
        if not choices:
            return best
        best = min(choices, key=lambda candidate: _predicted(candidate, separation, honest, iterates))
        ratio, middle = best.transient_std / best.gain, best.gain
        tried = [(by * ratio, gain) for by in (0.9, 1.0, 1.1) for gain in range(max(2, middle - 7), middle + 8)]
    return best
