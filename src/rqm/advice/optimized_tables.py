"""Mechanisms found by optimization, for a given number of clients and Rényi order.

`lattice_table` is for sums over several clients: coarse rounding, plus noise whose shape is optimized. `level_keeps`
optimizes RQM's keep probability level by level. For a single client see `rqm.related.mvu.private_table`. The results
are certified like any other mechanism, by `rqm.renyi` and the accountant.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import softmax

from rqm._util.checks import FloatArray, order, real, whole
from rqm.certify.blocks import divergences_with_equal_inputs
from rqm.certify.distributions import all_pairs, repeated
from rqm.certify.renyi import renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table

SPREAD_WEIGHT = 1e-9
"""The part of each row of a lattice table that is spread over all outcomes, so that none rules out an input."""
PENALTY = 20.0
"""The weight of too large a divergence, against the variance, in searches over many parameters."""


def attained_divergence(mechanism: DiscreteMechanism, alpha: float, clients: int) -> float:
    """The largest D_α with all other clients at the same breakpoint: a lower bound, and no guarantee.

    Args:
        mechanism: A mechanism whose pmf is symmetric.
        alpha: The Rényi order, at least 1.
        clients: Number of clients in the sum.

    Returns:
        The divergence.
    """
    pmfs = np.exp(mechanism.breakpoint_log_pmfs())
    others = pmfs[: (len(pmfs) + 1) // 2]  # mirror images give the same
    pairs = all_pairs(len(pmfs))
    return float(divergences_with_equal_inputs(pmfs, others, clients - 1, pairs, order(alpha)).max())


def _minimize(cost: Callable[[FloatArray], float], start: FloatArray, options: Any) -> FloatArray:
    """Where the method of Nelder and Mead ends."""
    result: Any = minimize(cost, start, method="Nelder-Mead", options=options)
    return np.asarray(result.x)


# -- lattice tables -------------------------------------------------------------------------------


def lattice_table(alpha: float, clients: int, divergence: float, levels: int = 16, *, clip: float = 1.0) -> Table:
    """A table of small variance for a sum, with a certified D_α of at most `divergence`.

    An input is rounded to one of K + 1 levels, and noise on the remaining outcomes is added. The noise does not depend
    on the inputs, so the worst case is known but for `SPREAD_WEIGHT`. K and the shape of the noise are optimized.

    Args:
        alpha: The Rényi order, above 1.
        clients: Number of honest clients in the sum, at least 2.
        divergence: The largest allowed D_α, of the pmf as written and of the integers that are sampled.
        levels: Number of outcomes, from 3 to 256.
        clip: c, what inputs are clipped to.

    Returns:
        The table.

    Raises:
        ValueError: If no lattice table with this number of levels reaches the divergence.
    """
    alpha = real("alpha", alpha, "a finite number above 1", 1, inf)
    clients = whole("clients", clients, 2)
    divergence = real("divergence", divergence, "a positive finite number", 0, inf)
    shapes = []
    for steps in range(1, whole("levels", levels, 3, 256) - 1):
        noise = _bent_noise(alpha, clients, divergence, levels, steps)
        if noise is not None:
            shapes.append((steps, _polished_noise(noise, alpha, clients, divergence, steps)))
    for steps, noise in sorted(shapes, key=lambda shape: _variance(*shape)):
        for flattening in (0.0, 1e-4, 1e-3, 1e-2):
            table = additive_table(steps, _flattened(noise, flattening), levels, clip)
            if attained_divergence(table, alpha, clients) <= divergence and all(
                renyi(table, alpha, clients, distribution=kind).upper <= divergence for kind in ("paper", "sampled")
            ):
                return table
    raise ValueError(
        f"divergence = {divergence:g}: no lattice table of {levels} levels reaches it for {clients} clients and order "
        f"{alpha:g}; use a larger divergence or more levels"
    )


def additive_table(steps: int, noise: FloatArray, levels: int, clip: float = 1.0) -> Table:
    """Rounding to `steps` + 1 levels, plus noise.

    Args:
        steps: K, the number of steps from -clip to clip.
        noise: The pmf of the noise on 0, 1, …, of length `levels` − K.
        levels: Number of outcomes.
        clip: c, what inputs are clipped to.

    Returns:
        The table, in which `SPREAD_WEIGHT` of each row is spread over all outcomes.
    """
    rows = np.zeros((steps + 1, levels))
    for j in range(steps + 1):
        rows[j] = SPREAD_WEIGHT * _max_entropy_pmf(levels, j + (len(noise) - 1) / 2)
        rows[j, j : j + len(noise)] += (1 - SPREAD_WEIGHT) * noise
    rows /= rows.sum(axis=1, keepdims=True)
    return Table(clip=clip, margin=(levels - 1) / steps - 1, rows=tuple(map(tuple, rows.tolist())))


def _max_entropy_pmf(levels: int, mean: float) -> FloatArray:
    """The pmf of largest entropy on 0, …, levels − 1 with this mean."""
    z = np.arange(levels) - mean
    tilt = brentq(lambda tilt: float(softmax(tilt * z) @ z), -40, 40, xtol=1e-14)
    return np.asarray(softmax(tilt * z))


def _variance(steps: int, noise: FloatArray) -> float:
    """The largest variance, in clip²: that of the noise, and that of rounding half-way between two levels."""
    z = np.arange(len(noise)) - (len(noise) - 1) / 2
    return float(noise @ z**2 + 0.25) * (2 / steps) ** 2


def _flattened(noise: FloatArray, flattening: float) -> FloatArray:
    """The noise with a slightly flatter shape: more variance and more privacy."""
    logs = np.log(np.maximum(noise, 1e-30))
    return np.asarray(softmax((1 - flattening) * logs + flattening * np.linspace(-1, 1, len(noise)) ** 2))


def _shift_divergence(noise: FloatArray, steps: int, clients: int, alpha: float) -> float:
    """An estimate of the largest D_α between the noise of all clients and the same noise shifted."""
    pmf = (1 - SPREAD_WEIGHT) * np.pad(noise, steps)
    total = repeated(pmf + SPREAD_WEIGHT / len(pmf), clients).pmf
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.log(total)
    largest = -inf
    for shift in range(1, steps + 1):
        p = logs[shift:]
        q = logs[: len(logs) - shift]  # symmetric noise: the other direction gives the same
        powers = alpha * p + (1 - alpha) * q
        powers = powers[np.isfinite(powers)]
        largest = max(largest, float(powers.max() + log(np.exp(powers - powers.max()).sum())))
    return largest / (alpha - 1)


def _bent_noise(alpha: float, clients: int, divergence: float, levels: int, steps: int) -> FloatArray | None:
    """The noise with a quadratic logarithm that reaches the divergence with the least variance; None if none does."""
    z = np.arange(levels - steps) - (levels - steps - 1) / 2

    def excess(bend: float) -> float:
        return _shift_divergence(softmax(bend * z**2), steps, clients, alpha) - divergence

    bends = np.linspace(-12, 3, 31) / max(z**2)  # from one peak to two
    reaches = [excess(bend) <= 0 for bend in bends]
    if not any(reaches):
        return None
    first = reaches.index(True)
    bend = bends[0] if first == 0 else brentq(excess, bends[first - 1], bends[first], xtol=1e-9)
    return np.asarray(softmax(bend * z**2))


def _polished_noise(noise: FloatArray, alpha: float, clients: int, divergence: float, steps: int) -> FloatArray:
    """Symmetric noise of less variance with the same divergence, each probability optimized on its own."""
    width = len(noise)
    half = (width + 1) // 2
    if half <= 2:
        return noise

    def unfolded(logs: FloatArray) -> FloatArray:
        return np.asarray(softmax(np.append(logs, logs[: width - half][::-1])))

    def cost(logs: FloatArray) -> float:
        shape = unfolded(logs)
        excess = _shift_divergence(shape, steps, clients, alpha) / divergence - 1
        return _variance(steps, shape) * (1 + PENALTY * max(0.0, excess))

    with np.errstate(divide="ignore"):
        start = np.maximum(np.log(noise[:half]), -60)
    polished = unfolded(_minimize(cost, start, {"maxiter": 400, "xatol": 1e-6}))
    is_private = _shift_divergence(polished, steps, clients, alpha) <= divergence
    return polished if is_private and _variance(steps, polished) < _variance(steps, noise) else noise


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
    """The RQM of least variance with one keep probability and an attained D_α of at most `divergence`.

    Args:
        alpha: The Rényi order, at least 1.
        clients: Number of clients in the sum.
        divergence: The largest `attained_divergence`; the certified one can be larger.
        levels: Number of outcomes.
        clip: c, what inputs are clipped to.
        keeps: The keep probabilities that are tried.

    Returns:
        The mechanism.

    Raises:
        ValueError: If no margin reaches the divergence.
    """
    results = [_with_least_margin(keep, alpha, clients, divergence, levels, clip) for keep in keeps]
    best = min(filter(None, results), key=lambda mechanism: mechanism.variance_max, default=None)
    if best is None:
        raise ValueError(f"divergence = {divergence:g}: no RQM of {levels} levels reaches it; it must be larger")
    return best


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
    """RQM with a keep probability for each inner level, of least variance at an attained D_α.

    Args:
        alpha: The Rényi order, at least 1.
        clients: Number of clients in the sum.
        divergence: The largest `attained_divergence`; the certified one can be larger.
        levels: Number of outcomes.
        clip: c, what inputs are clipped to.
        start: Where the search starts; None: `single_keep`. The result has no more variance.
        evaluations: How many mechanisms are tried.

    Returns:
        The mechanism; its keep probabilities are symmetric.
    """
    alpha = order(alpha)
    clients = whole("clients", clients, 1)
    start = start or single_keep(alpha, clients, divergence, levels, clip=clip)
    half = (levels - 1) // 2  # of the levels − 2 inner ones, with the middle one

    def mechanism(parameters: FloatArray) -> RQM:
        side = 1 / (1 + np.exp(-np.clip(parameters[1:], -12, 12)))
        keeps = np.append(side, side[: levels - 2 - half][::-1])
        margin = float(np.exp(np.clip(parameters[0], -8, 12)))
        return RQM(clip=clip, margin=margin, levels=levels, keep=tuple(keeps))

    def cost(parameters: FloatArray) -> float:
        tried = mechanism(parameters)
        excess = attained_divergence(tried, alpha, clients) / divergence - 1
        return tried.variance_max / clip**2 * (1 + PENALTY * max(0.0, excess))

    side = start.keeps[1 : 1 + half]
    first = np.append(log(start.margin), np.log(side / (1 - side)))
    simplex = np.vstack([first, first + 0.3 * np.eye(len(first))])
    options = {"maxfev": evaluations, "initial_simplex": simplex, "adaptive": True}
    parameters = _minimize(cost, first, options)
    best = _with_least_margin(mechanism(parameters).keep, alpha, clients, divergence, levels, clip)
    return best if best is not None and best.variance_max < start.variance_max else start


def _with_least_margin(
    keep: float | tuple[float, ...], alpha: float, clients: int, divergence: float, levels: int, clip: float
) -> RQM | None:
    """The RQM with the smallest margin whose attained D_α is at most `divergence`; None if there is none."""

    def mechanism(log_margin: float) -> RQM:
        return RQM(clip=clip, margin=exp(log_margin), levels=levels, keep=keep)

    def excess(log_margin: float) -> float:
        return attained_divergence(mechanism(log_margin), alpha, clients) - divergence

    # A larger margin is more noise, but D_α can jump where the margin passes a level: take the first crossing.
    for low, high in pairwise(np.linspace(-5, 5, 21).tolist()):
        if excess(high) <= 0:
            if excess(low) <= 0:
                return mechanism(low)
            root = float(brentq(excess, low, high, xtol=1e-10))
            return mechanism(root if excess(root) <= 0 else root + 2e-10 * (2 + abs(root)))
    return None
