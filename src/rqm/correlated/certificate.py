"""GDP of one participation in a run with correlated noise, certified.

A run reveals no more of one participation than noise that is shifted along a random path reveals
over noise (docs/proofs/correlated.md). The likelihood ratio of the two is computed by
`handover.path_ratio`; the client's own rounded coordinate then mixes them, and the best events of
`certify.gaussian_dp` measure what is revealed.
"""

from functools import lru_cache
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.bounds import Neighboring
from rqm.certify.affine_rdp import end_pmfs, squared_distance
from rqm.certify.distributions import splits
from rqm.certify.gaussian_dp import BestEvents
from rqm.certify.trials import CoordinateGdp
from rqm.correlated.handover import (
    Ratio,
    ShiftRatios,
    path_length,
    path_ratio,
    pmf_variance,
    ratio_above,
    shift_ratios,
)
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.discrete import DiscreteMechanism

ROUND_ERROR = 1e-9
"""Above the relative errors of the likelihood ratios of one round."""


class _Coordinate(NamedTuple):
    """One coordinate, of which a tail at each side is left out."""

    ends: tuple[tuple[float, ...], ...]
    noise: CorrelatedNoise
    honest: int
    separation: int
    neighboring: Neighboring
    tail: float


def correlated_gdp(
    mechanism: DiscreteMechanism,
    noise: CorrelatedNoise,
    *,
    honest: int,
    separation: int,
    dim: int,
    l2_clip: float,
    failure: float,
    neighboring: Neighboring = "replace-one",
) -> float:
    """Certified μ of one participation in a run, for the integers that are sampled.

    See docs/proofs/correlated.md#theorem-8.

    Args:
        mechanism: Stochastic rounding to two levels outside the clip.
        noise: The correlated noise that each client adds.
        honest: Number of honest clients in each of `separation` rounds from a participation on,
            each of which delivers both of its messages.
        separation: Rounds from one participation of a user to the next, at least.
        dim: Number of coordinates.
        l2_clip: L2 bound of a vector.
        failure: Probability of the outcomes that μ leaves out.
        neighboring: "replace-one" or "zero-out".

    Returns:
        μ, infinite if none is known.

    Raises:
        ValueError: If the mechanism is not stochastic rounding to two levels outside the clip.

    >>> from rqm import StochasticRounding
    >>> mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=33.0)
    >>> who = {"honest": 100, "separation": 8, "dim": 2**20, "l2_clip": 1.0, "failure": 1e-9}
    >>> round(correlated_gdp(mechanism, CorrelatedNoise(26.0), **who), 3)
    0.612
    """
    honest = whole("honest", honest, 1)
    dim = whole("dim", dim, 1)
    separation = whole("separation", separation, 1)
    failure = real("failure", failure, "above 0 and below 1", 0, 1)
    real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    if not mechanism.is_affine or mechanism.levels != 2:
        raise ValueError("noise: correlated noise must come with two levels outside the clip (mechanism 'rounding')")
    tail = float(2.0 ** np.floor(np.log2(failure / (2 * dim))))
    ends = end_pmfs(mechanism, "sampled")
    coordinate = coordinate_gdp(_Coordinate(ends, noise, honest, separation, neighboring, tail))
    distance = squared_distance(mechanism, l2_clip, neighboring)
    return sqrt(min(distance * coordinate.per_square, dim * coordinate.largest))


@lru_cache(maxsize=256)
def coordinate_gdp(coordinate: _Coordinate) -> CoordinateGdp:
    """μ² of one coordinate; any choice of paths is valid, and the least μ² that is found counts.

    See docs/proofs/correlated.md#lemma-7.
    """
    fraction = 1.0
    best = _by_paths(coordinate, 1.0)
    # The rounding of few clients may be far from Gaussian. Then paths may be best that are longer than for Gaussians.
    while not coordinate.noise.residual_std and coordinate.honest <= 200 and best.per_square < inf:
        by_paths = _by_paths(coordinate, fraction / 2)
        if by_paths.per_square >= 0.999 * best.per_square:
            break
        fraction, best = fraction / 2, by_paths
    return best


def _by_paths(coordinate: _Coordinate, fraction: float) -> CoordinateGdp:
    """μ² by the path lengths that are best for Gaussian noise, if rounding has `fraction` of its variance."""
    ends = np.array(coordinate.ends)
    noise = coordinate.noise
    honest = coordinate.honest
    rounding, rounding_variance, missing = _others_rounding(coordinate.ends, honest - 1)
    transient, missing_transient = noise.summed(honest)
    missing += missing_transient
    if noise.residual_std:
        left, missing_left = noise.residual.summed(honest)
        missing += missing_left
        residual = ratio_above([left], pmf_variance(left), points=8)
        ratios = shift_ratios(transient, noise.gain)
        variances = pmf_variance(left), pmf_variance(transient), fraction * rounding_variance
    else:
        residual = None
        ratios = one_shift(ratio_above([transient], pmf_variance(transient)))
        variances = 0.0, pmf_variance(transient), fraction * rounding_variance
    rounds, _ = path_length(coordinate.separation, variances[0], variances[1], noise.gain, variances[2])
    ratio = path_ratio(ratios, residual, rounding, variances, noise.gain, rounds)
    masses = ratio.probabilities.sum(), ratio.probabilities @ ratio.values + ratio.singular
    if ratio.probabilities.min() < 0 or not all(abs(mass - 1) < rounds * ROUND_ERROR for mass in masses):
        return CoordinateGdp(inf, inf)
    error = 2 * ROUND_ERROR * rounds / sqrt(ratio.variance) if ratio.variance else inf
    return _from_ratio(ratio, ends, rounds * missing, error, coordinate)


def one_shift(ratio: Ratio) -> ShiftRatios:
    """Transient noise that comes without residual noise, of which only a shift by one matters.

    Args:
        ratio: Its likelihood ratio for a shift by one.

    Returns:
        The same with a ratio of 0 for the other shift.
    """
    return ShiftRatios(ratio.values, np.zeros(len(ratio.values)), ratio.probabilities, ratio.singular, 0.0)


@lru_cache(maxsize=64)
def _others_rounding(ends: tuple[tuple[float, ...], ...], others: int) -> tuple[Ratio, float, float]:
    """The ratio of the other clients' rounding for their worst inputs, its least variance, and what
    its pmfs lack.

    See docs/proofs/correlated.md#lemma-5.
    """
    low, high = (np.array(pmf) for pmf in ends)
    sums = list(splits(low, high, others))
    smallest_variance = min(pmf_variance(partial_sum.pmf / partial_sum.pmf.sum()) for partial_sum in sums)
    # Of mirrored splits only one is computed: a shift up of one is a shift down of the other.
    pmfs = [partial_sum.pmf for partial_sum in sums] + [partial_sum.pmf[::-1] for partial_sum in sums]
    return ratio_above(pmfs, smallest_variance), smallest_variance, max(partial_sum.missing for partial_sum in sums)


def _from_ratio(ratio: Ratio, ends: FloatArray, missing: float, error: float, coordinate: _Coordinate) -> CoordinateGdp:
    """μ of the client's own rounded coordinate, with a relative error of μ².

    See docs/proofs/correlated.md#theorem-8.
    """
    if 2 * missing > coordinate.tail:
        return CoordinateGdp(inf, inf)
    low, high = (
        np.append(ratio.probabilities * (1 + up * (ratio.values - 1)), up * ratio.singular)
        for up in (ends[0, 1], ends[1, 1])
    )
    events = BestEvents.between(low, high, coordinate.tail - missing)
    if events is None:
        return CoordinateGdp(0.0, 0.0)
    gdp = events.raised(CoordinateGdp(0.0, 0.0), coordinate.neighboring)
    return CoordinateGdp(gdp.per_square * (1 + error), gdp.largest * (1 + error))
