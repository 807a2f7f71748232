"""How long to hold transient noise on the way of a shift (``cancel.py``, ``kept.py``): the best for Gaussians."""

from math import asinh, expm1, inf, sqrt
from typing import NamedTuple

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


class Shares(NamedTuple):
    """How likely a path ends here, by noise that stays or by coins, and goes on; μ² of a shift by one step."""

    ends: float
    coins: float
    goes_on: float
    told: float


def shares(stays: float, goes: float, times: int, coins: float, later: float) -> Shares:
    """The best if all were Gaussian of these variances, and μ² ``later`` if the path goes on; infinite: it must end.

    It minimises e²/stays + (1 − c − times · e)²/goes + c²/coins + later (1 − e − c)², for e and c that end it here.
    """
    own, least = 1 / stays + times**2 / goes, 1 / coins if coins else inf

    def at(e: float, c: float) -> Shares:
        on = 1 - e - c if later < inf else 0.0
        told = e**2 / stays + (1 - c - times * e) ** 2 / goes + (c**2 * least if c else 0.0)
        return Shares(e, c, on, told + (later * on**2 if on else 0.0))

    def must_end() -> Shares:
        e = 1.0 if not coins else least / (1 / stays + (times - 1) ** 2 / goes + least)
        return at(e, 1 - e)

    if later == inf:
        return must_end()
    across, only = times / goes + later, 1 / goes + later
    alone = at(min(1.0, across / (own + later)), 0.0)
    if not coins:
        return alone
    slope = only + least
    found = (own + later) * slope - across**2
    e, c = (across * slope - across * only) / found, ((own + later) * only - across**2) / found
    if c <= 0:
        return alone
    return at(e, c) if e + c <= 1 else must_end()


def gaussian_handed(rounds: int, goes: float, stays: float, times: int, coins: float) -> float:
    """The same where a part stays (``kept.py``), for noise of these variances."""
    return handed_for(rounds, goes, stays, times, coins, 0.0)[1]


def handed_for(
    rounds: int, goes: float, stays: float, times: int, coins: float, more: float = 1e-4
) -> tuple[int, float]:
    """For how many of so many rounds a shift is worth handing on: less than ``more`` is gained by others; its μ²."""
    found, before, after = inf, inf, 0
    while after < rounds:
        found, before, after = shares(stays, goes, times, coins, found).told, found, after + 1
        if before - found <= max(more / after, 1e-12) * found:
            break
    return after, found
