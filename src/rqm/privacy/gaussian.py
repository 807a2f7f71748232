"""A release as a Gaussian mechanism: certified μ for which two inputs are no easier to tell than N(0, 1) and N(μ, 1).

Rényi divergences lose some per cent of noise on the way to (ε, δ); trade-off functions do not. Where the law of a
coordinate is affine on the clip, the release of a whole vector under an L2 budget is μ-GDP (Dong, Roth and Su 2022) but
for outcomes far out in the tails, whose probability is charged to δ (``docs/proofs/gaussian.md``). From then on
everything is the Gaussian's own, exact account: squares of μ add up.
"""

from functools import lru_cache
from math import inf, sqrt

import numpy as np
from scipy.special import log_ndtr, ndtr

from rqm._util.checks import FloatArray, real, whole
from rqm._util.solve import zero
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.pooled import pooled
from rqm.privacy.scores import summed_rate
from rqm.privacy.setting import Neighbours, checked_delta, checked_epsilon
from rqm.privacy.shifts import moved_gdp, shifted_gdp, shifts_of
from rqm.privacy.tradeoff import Coordinate, Events
from rqm.privacy.vector import end_laws, splits_of_others

SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""
NEAR = 1.1
"""Within this of a Gaussian of the variance at the clip's ends, trials are not looked at together: it takes seconds."""
ROUNDING = 1e-14
"""More than the relative errors of probabilities."""


def gaussian_deltas(mu: float, epsilon: FloatArray) -> FloatArray:
    """δ of telling N(0, 1) from N(μ, 1) at some ε, exactly (Balle and Wang 2018) but for rounding, which is up."""
    if not mu:
        return np.zeros_like(epsilon)
    likely = ndtr(mu / 2 - epsilon / mu) * (1 + ROUNDING)
    return np.asarray(np.clip(likely - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)), 0, 1))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The same at one ε."""
    return float(gaussian_deltas(mu, np.array(epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε at which δ is enough; itself enough.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    delta = checked_delta(delta)
    if gaussian_delta(mu, 0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    found = zero(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0, high, xtol=1e-12)
    return found * (1 + 1e-10) + 1e-11


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private; itself private."""
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    found = zero(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, high, xtol=1e-13)
    return float(found) * (1 - 1e-10)


def vector_gdp(
    mech: Channel,
    *,
    honest: int,
    dim: int,
    l2_clip: float,
    lost: float,
    neighbours: Neighbours = "replace",
    law: Law = "paper",
    quick: bool = False,
    moved: float | None = None,
) -> float:
    """Certified μ of the sum over ``honest`` clients of ``dim`` coordinates, one client's vector changed.

    If it may lie anywhere, and is ``moved`` so far at most, neither ``l2_clip`` nor ``neighbours`` matters.

    For laws that are affine on the clip, or made of trials that are, or affine cell by cell (``inner.py``), and for
    additive noise as it is sampled; but for outcomes of probability ``lost``. Infinite where there is no such μ.
    ``quick`` looks at few inputs of the others: good enough to search with, but it certifies nothing.

    >>> from rqm import Rounding
    >>> mech = Rounding(clip=4 / 1024, levels=2, margin=20.7)
    >>> round(vector_gdp(mech, honest=100, dim=2**20, l2_clip=1.0, lost=1e-9), 3)
    2.375
    """
    honest, dim = whole("honest", honest, 1), whole("dim", dim, 1)
    l2_clip, lost = real("l2_clip", l2_clip, "a positive finite number", 0, inf), checked_delta(lost)
    if mech.additive is not None:
        if moved is not None:
            return moved_gdp(mech.additive, honest=honest, dim=dim, moved=moved)
        furthest, squared = shifts_of(mech.additive, l2_clip, neighbours)
        return shifted_gdp(mech.additive, honest=honest, dim=dim, furthest=furthest, squared=squared, lost=lost)
    if not mech.affine:
        from rqm.privacy.inner import inner_gdp  # noqa: PLC0415 (takes the compiler)

        far = 4.0 if neighbours == "replace" else 1.0
        squared = far * (l2_clip / mech.clip) ** 2 if moved is None else (moved / mech.clip) ** 2
        furthest = far if moved is None else min(4.0, squared)
        return inner_gdp(
            mech, honest=honest, dim=dim, squared=squared, furthest=furthest, lost=lost, law=law, quick=quick
        )
    laws, trials = end_laws(mech, law)
    ends = tuple(map(tuple, laws.tolist()))
    tail = lost / (2 * dim * trials) / SLACK
    if moved is not None:
        return _moved(ends, honest - 1, dim, trials, (moved / mech.clip) ** 2, 2.0 ** np.floor(np.log2(tail)), quick)
    found = coordinate(ends, honest - 1, neighbours, 2.0 ** np.floor(np.log2(tail)), quick)
    budget = (l2_clip / mech.clip) ** 2
    far = 4 if neighbours == "replace" else 1
    squared = trials * min(far * budget * found.per_square, dim * found.most)
    if trials > 1 and found.per_square * honest * trials * float(mech.variance(mech.clip)) > NEAR * mech.clip**2:
        both = pooled((ends[0][1], ends[1][1]), trials, honest, neighbours, trials * tail, quick)
        squared = min(squared, far * budget * both.per_square, dim * both.most)
    longest = trials * min(budget, dim)
    return sqrt(min(squared, far * longest * summed_rate(ends, honest - 1, longest)))


def _moved(
    ends: tuple[tuple[float, ...], ...], others: int, dim: int, trials: int, squared: float, tail: float, quick: bool
) -> float:
    """The same for two vectors anywhere, so far apart in clips: by the steepest slope, or by scores of many."""
    one = min(4.0, squared)  # of a coordinate
    longest = trials * min(squared, 4 * dim)
    found = longest * min(steepest(ends, others, tail, quick), summed_rate(ends, others, longest / one))
    return sqrt(min(found, trials * dim * coordinate(ends, others, "replace", tail, quick).most))


@lru_cache(maxsize=256)
def steepest(laws: tuple[tuple[float, ...], ...], others: int, tail: float, quick: bool = False) -> float:
    """μ² of a coordinate over the squared distance of two inputs, in clips, wherever these lie."""
    low, high = (np.array(law) for law in laws)
    worst = 0.0
    for base, missing in splits_of_others(low, high, others, quick=quick):
        if 2 * missing > tail:
            return inf
        events = Events.of(np.convolve(low, base), np.convolve(high, base), tail - missing)
        if events is not None:
            worst = max(worst, events.steepest())
    return worst**2 * SLACK


@lru_cache(maxsize=256)
def coordinate(
    laws: tuple[tuple[float, ...], ...], others: int, neighbours: Neighbours, tail: float, quick: bool = False
) -> Coordinate:
    """What a coordinate leaks whose law is affine between ``laws``, beside others, but for ``tail`` at each end."""
    low, high = (np.array(law) for law in laws)
    worst = Coordinate(0.0, 0.0)
    for base, missing in splits_of_others(low, high, others, quick=quick):
        if 2 * missing > tail:  # less than can be told apart
            return Coordinate(inf, inf)
        events = Events.of(np.convolve(low, base), np.convolve(high, base), tail - missing)
        if events is not None:
            worst = events.worst(worst, neighbours)
    return Coordinate(worst.per_square * SLACK, worst.most * SLACK)
