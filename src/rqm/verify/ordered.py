"""Records in a fixed order, under noise that a silo takes back in its next message: their ε, told from scratch.

Every silo is in every round, and adds noise that stays besides: a step of one coordinate is a step of that noise, or is
held by what is taken back, round after round. ``docs/verify.md`` has the proof.
"""

from math import ceil, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from .cancel import FAR_OUT, dropped_by, told, transient
from .gaussian import SLACK, best_tests, epsilon_of
from .laws import Unsure, cores

TAILS = (1e-22, 1e-25, 1e-28)
"""What either end of a coordinate may lose: the first that is little enough for so many coordinates is taken."""
LITTLE = 0.02
"""The part of δ that all ends may cost together."""


class Order(NamedTuple):
    """What a record's rounds are: deviation of what is taken back, rounds up to its next turn, coordinates, its way."""

    cancel: float
    separation: int
    coordinates: int
    moved: float


def epsilon(mech: dict[str, Any], order: Order, honest: int, count: int, delta: float) -> float:
    """ε of a record in so many rounds, beside so many honest silos, its own included; infinite if nothing is known."""
    (stays, lacks), (goes, more) = cores(mech, honest), transient(order.cancel, honest)
    steps = order.moved / mech["clip"] * mech["steps"] / 2
    with np.errstate(all="ignore"):
        found, rounds = told(stays, goes, order.separation)
        masses = found.chances.sum(), found.chances @ found.values + found.alone
        if not all(abs(mass - 1) < 1e-6 for mass in masses):
            raise Unsure(f"cancel = {order.cancel}: probabilities of a path add up to {masses}, not to 1")
        noise, moved = np.append(found.chances, 0.0), np.append(found.chances * found.values, found.alone)
        dropped = rounds * (lacks + more) + dropped_by(rounds, FAR_OUT)
        for tail in TAILS:
            best = best_tests(noise, moved, tail - dropped, dropped)
            if best is None:
                return inf
            slope = 2 * float(best.slopes[[0, 2]].max()) * SLACK
            mu = sqrt(count) * slope * steps
            lost = _ends(slope, steps, count * order.coordinates, mu, tail)
            if lost < LITTLE * delta:
                return epsilon_of(mu, delta - lost)[0]
    return inf


def _ends(slope: float, steps: float, coordinates: int, mu: float, tail: float) -> float:
    """What the ends of so many coordinates cost, in every part of the way in which none moves by more than a step."""
    from scipy.special import ndtr, ndtri  # noqa: PLC0415 (takes a while)

    cut = coordinates * (4 * tail + ndtr(ndtri(2 * tail) + slope))
    return float(max(1, ceil(steps)) * ndtr(ndtri(min(cut, 0.5)) + mu))
