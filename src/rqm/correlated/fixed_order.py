"""GDP of a record in a fixed order of batches, with correlated noise: one message of a silo in every
round.

A silo adds residual noise b and transient noise a to its integers, and cancels the previous
round's a in the same message: sums are y_t = X_t + B_t + A_t − A_{t−1}. A shift of one coordinate
by one step looks like a shift of A along a path of fewer rounds than lie between two
participations of a record, then of B (`handover.py`). Here B is noise of the silos' own, whatever
their data. So two vectors that differ by one step in a coordinate are made from one pair of pmfs,
and Φ⁻¹ of an event's probability rises by at most κ per step, except for tails that add up along
the way (docs/proofs/correlated.md#theorem-15).
"""

from functools import lru_cache
from math import ceil, inf, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from rqm._util.checks import FloatArray
from rqm.bounds import Bound, GdpMu
from rqm.certify.gaussian_dp import BestEvents
from rqm.correlated.certificate import ROUND_ERROR, one_shift
from rqm.correlated.handover import path_length, path_ratio, pmf_variance, ratio_above
from rqm.correlated.integer_noise import IntegerNoise
from rqm.correlated.scheme import Exposure
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.sums import summed


@lru_cache(maxsize=256)
def slope_per_step(
    mechanism: Additive, transient: IntegerNoise, honest: int, separation: int, tail: float = 1e-22
) -> float:
    """κ: by how much Φ⁻¹ of an event's probability rises when a coordinate moves by one step.

    See docs/proofs/correlated.md#lemma-14.

    Args:
        mechanism: The residual noise.
        transient: The transient noise.
        honest: Number of honest silos in each round and in the next.
        separation: Rounds from one participation of a record to the next.
        tail: Probability at each side that is left out.

    Returns:
        κ, infinite if none is known.

    >>> from rqm.correlated.noise import discrete_gaussian
    >>> from rqm.mechanisms.additive import DiscreteGaussian
    >>> mechanism = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12)
    >>> round(slope_per_step(mechanism, discrete_gaussian(60.0), 4, 8), 4)
    0.0443
    """
    pmfs, missing, negligible = [], 0.0, 1e-48
    for pmf in (mechanism.core[0], transient.pmf):
        total, _ = summed(pmf, honest, negligible, max_direct_copies=2)
        pmfs.append(total / total.sum())
        missing += 4 * honest * len(pmf) * negligible
    pair = step_pmfs(pmfs[0], pmfs[1], separation, negligible)
    if 2 * separation * missing > tail or any(abs(pmf.sum() - 1) > separation * ROUND_ERROR for pmf in pair):
        return inf
    events = BestEvents.between(*pair, tail - separation * missing)
    if events is None:
        return inf
    slope = 2 * events.steepest_slope()
    return slope * (1 + ROUND_ERROR * separation / slope)


def step_pmfs(
    residual: FloatArray, transient: FloatArray, separation: int, negligible: float = 1e-48
) -> tuple[FloatArray, FloatArray]:
    """Two pmfs that reveal a step at least as well as all sums from one participation of a record to
    the next.

    See docs/proofs/correlated.md#lemma-14.

    Args:
        residual: The pmf of the sum of residual noise.
        transient: The pmf of the sum of transient noise.
        separation: Rounds from one participation of a record to the next.
        negligible: Probabilities below this are not carried on. The default is far below the tail,
            in which they end up.

    Returns:
        The pmfs without and with the step.
    """
    variances = 0.0, pmf_variance(transient), pmf_variance(residual)
    rounds, _ = path_length(separation, *variances[:2], 1, variances[2])
    ratios = one_shift(ratio_above([transient], variances[1], rare=negligible))
    rounding = ratio_above([residual], variances[2], rare=negligible)
    ratio = path_ratio(ratios, None, rounding, variances, 1, rounds, points=80, rare=negligible)
    return np.append(ratio.probabilities, 0.0), np.append(ratio.probabilities * ratio.values, ratio.singular)


def tail_failure(kappa: float, steps: float, dim: int, count: int, mu: float, tail: float) -> float:
    """The failure probability for a record that is in several rounds and moves a vector by some
    steps in all.

    The movement is cut into pieces in which no coordinate moves by more than a step. What is left
    out of a piece counts with the factor by which the other pieces can increase it.

    See docs/proofs/correlated.md#theorem-15.

    Args:
        kappa: Slope per step.
        steps: Steps in all.
        dim: Number of coordinates.
        count: Rounds that the record is in.
        mu: μ of the whole movement.
        tail: Probability left out of each coordinate at each side.

    Returns:
        The failure probability.
    """
    left_out = count * dim * (4 * tail + float(ndtr(ndtri(2 * tail) + kappa)))
    return float(max(1, ceil(steps)) * ndtr(ndtri(min(left_out, 0.5)) + mu))


def fixed_order_gdp(mechanism: Additive, transient: IntegerNoise, exposure: Exposure) -> Bound:
    """Certified μ of a record over all rounds that it is in, except for outcomes with a failure probability.

    See docs/proofs/correlated.md#theorem-15.

    Args:
        mechanism: The residual noise.
        transient: The transient noise.
        exposure: The rounds that the record is in.

    Returns:
        The bound; its failure probability is 1 if it cannot be as small as is asked for, and its μ is infinite if
        none is known.

    >>> from rqm.bounds import epsilon
    >>> from rqm.correlated.noise import discrete_gaussian
    >>> from rqm.mechanisms.additive import DiscreteGaussian
    >>> mechanism = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12)
    >>> exposure = Exposure("record", honest=4, separation=8, dim=64, sensitivity=0.2, failure=1e-8, count=2)
    >>> round(epsilon(fixed_order_gdp(mechanism, discrete_gaussian(60.0), exposure), 1e-6), 2)
    8.41
    """
    steps = exposure.sensitivity / mechanism.clip * mechanism.steps / 2
    smallest_mu = inf
    for tail in (1e-22, 1e-25, 1e-28):  # so small that they add up to nothing over all steps
        kappa = slope_per_step(mechanism, transient, exposure.honest, exposure.separation, tail)
        mu = sqrt(exposure.count) * kappa * steps
        if mu == inf:
            break
        failure = tail_failure(kappa, steps, exposure.dim, exposure.count, mu, tail)
        if failure < exposure.failure:
            return Bound(GdpMu(mu), failure)
        smallest_mu = min(smallest_mu, mu)
    return Bound(GdpMu(smallest_mu), 1.0)
