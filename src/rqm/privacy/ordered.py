"""Records in a fixed order, under noise of which a part is taken back: one message of a silo in every round.

A silo adds persistent noise b and transient noise a to its integers, and takes the last round's a back in the same
message: sums are y_t = X_t + B_t + A_t − A_{t−1}. A step of one coordinate is a shift of A along a path of fewer rounds
than lie between two turns of a record, then of B, as in ``cancel.py``; but here B is noise of the silos' own, whatever
they hold. So two vectors a step apart in a coordinate are made from one pair of laws, and Φ⁻¹ of what any event tells
rises by at most κ a step (``docs/proofs/silos.md``), but for tails that add up along the way.
"""

from functools import lru_cache
from math import ceil, inf, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from rqm._util.checks import FloatArray
from rqm.kernels.recipe import TABLE_BITS
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.sums import summed
from rqm.mechanisms.transient import Transient
from rqm.privacy.cancel import PER_ROUND, ratio
from rqm.privacy.gaussian import gaussian_epsilon
from rqm.privacy.holding import holding
from rqm.privacy.paths import FINE, ROUGH, along
from rqm.privacy.tradeoff import Events

TAILS = (1e-22, 1e-25, 1e-28)
"""What need not be told of a coordinate, at each side: so little that a long way of steps adds up to nothing. Of few
silos' noise, which comes from tables, less is known so far out; for many coordinates it must be less."""
NOTHING = 1e-48
"""Chances that are not carried on: far below the tail, in which they end up."""
MOST_LOST = 0.02
"""The part of δ that tails may take, at most; else the certificate says nothing."""


@lru_cache(maxsize=256)
def rise(
    mech: Additive, transient: Transient, honest: int, separation: int, tail: float = TAILS[0], *, quick: bool = False
) -> float:
    """κ: by how much Φ⁻¹ of an event's chance rises a step, but for ``tail``; infinite if nothing is known.

    ``honest`` silos are in each round and in the next, and a record comes back after ``separation`` rounds.

    >>> from rqm.mechanisms.additive import DiscreteGaussian
    >>> mech = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12)
    >>> round(rise(mech, Transient(60.0), 4, 8), 4)
    0.0443
    """
    laws, missing = [], 0.0
    for one in (mech.core[0], transient.units / 2.0**TABLE_BITS):
        found, _ = summed(one, honest, NOTHING, few=2)
        laws.append(found / found.sum())
        missing += 4 * honest * len(one) * NOTHING
    return steepest(laws[0], laws[1], separation, tail - separation * missing, ROUGH if quick else FINE)


def steepest(stays: FloatArray, goes: FloatArray, separation: int, tail: float, fine: int = FINE) -> float:
    """The same for sums of noise of these laws, but for so much at each side."""
    noise, moved = a_step(stays, goes, separation, fine)
    events = Events.of(noise, moved, tail)
    if events is None:
        return inf
    steep = 2 * events.steepest()
    return steep * (1 + PER_ROUND * separation / steep)


def a_step(stays: FloatArray, goes: FloatArray, separation: int, fine: int = FINE) -> tuple[FloatArray, FloatArray]:
    """Two laws that tell a step at least as well as all sums do from one turn of a record up to the next."""
    spread = [_variance(law) for law in (stays, goes)]
    found = along(
        holding(separation, spread[1], spread[0]),
        ratio([stays], spread[0], nothing=NOTHING),
        ratio([goes], spread[1], nothing=NOTHING),
        fine,
        NOTHING,
    )
    return np.append(found.chances, 0.0), np.append(found.chances * found.values, found.alone)


def tails(kappa: float, steps: float, dim: int, count: int, mu: float, tail: float) -> float:
    """What is added to δ at most, where a record is in ``count`` rounds and moves a vector by so many ``steps`` in all.

    The way is walked in pieces in which no coordinate moves by more than a step; what is cut off in each of them
    counts as much as the rest of the way, of ``mu`` in all, can make of it.
    """
    cut = count * dim * (4 * tail + float(ndtr(ndtri(2 * tail) + kappa)))
    return float(max(1, ceil(steps)) * ndtr(ndtri(min(cut, 0.5)) + mu))


def ordered_epsilon(
    mech: Additive,
    transient: Transient,
    *,
    honest: int,
    separation: int,
    dim: int,
    moved: float,
    count: int,
    delta: float,
    quick: bool = False,
) -> float:
    """ε of a record that is in ``count`` rounds, and moves a vector of ``dim`` coordinates so far; infinite if unknown.

    >>> from rqm.mechanisms.additive import DiscreteGaussian
    >>> mech, who = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12), {"honest": 4, "separation": 8}
    >>> round(ordered_epsilon(mech, Transient(60.0), **who, dim=64, moved=0.2, count=2, delta=1e-6), 2)
    8.41
    """
    best, steps = inf, moved / mech.clip * mech.steps / 2
    for tail in TAILS:
        kappa = rise(mech, transient, honest, separation, tail, quick=quick)
        mu = sqrt(count) * kappa * steps
        if mu == inf:
            break
        lost = tails(kappa, steps, dim, count, mu, tail)
        if lost < MOST_LOST * delta:
            best = min(best, gaussian_epsilon(mu, delta - lost))
            break
    return best


def _variance(law: FloatArray) -> float:
    places = np.arange(len(law))
    return float(law @ (places - law @ places) ** 2)
