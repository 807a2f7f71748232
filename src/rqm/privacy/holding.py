"""How long to hold transient noise on the way of a shift (``cancel.py``, ``kept.py``): the best for Gaussians."""

from math import asinh, expm1, sqrt

import numpy as np

from rqm._util.checks import FloatArray


def holding(rounds: int, transient: float, others: float) -> FloatArray:
    """A law of the holding time, 0 … rounds − 1: any is right, and this is the best for Gaussians of these variances.

    It minimises Σ (chance to hold longer than j)² / transient + Σ w_j² / others.

    >>> holding(3, 100.0, 100.0).round(3).tolist()
    [0.625, 0.25, 0.125]
    """
    if rounds == 1 or others == 0:
        return np.asarray(np.eye(rounds)[-1])
    angle = 2 * asinh(sqrt(others / transient) / 2)
    left = np.arange(rounds, -1, -1) * angle
    longer = np.exp(left - left[0]) * np.array([expm1(-2 * x) for x in left]) / expm1(-2 * left[0])
    return np.asarray(-np.diff(longer))


def gaussian_paths(rounds: int, transient: float, others: float) -> float:
    """μ² of a shift by one step if both noises are Gaussian of these variances: what no certificate is far below."""
    w = holding(rounds, transient, others)
    longer = 1 - np.cumsum(w)[:-1]
    return float((longer**2).sum() / transient + (w**2).sum() / others)


def hazard(stays: float, goes: float, times: int, later: float) -> tuple[float, float]:
    """How likely to end a path here, the best if all were Gaussian of these variances; μ² of a shift by one step.

    ``later`` is the μ² of what follows if it is handed on.
    """
    chance = (times / goes + later) / (1 / stays + times**2 / goes + later)
    return chance, chance**2 / stays + (1 - times * chance) ** 2 / goes + later * (1 - chance) ** 2


def gaussian_handed(rounds: int, goes: float, stays: float, times: int) -> float:
    """The same where a part stays (``kept.py``), for noise of these variances; others' coins are not counted on."""
    found = 0.0
    for _ in range(rounds):
        found = hazard(stays, goes, times, found)[1]
    return found
