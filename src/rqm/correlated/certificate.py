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

from rqm._util.checks import FloatArray
from rqm.bounds import Bound, GdpMu, Neighboring
from rqm.certify.affine_rdp import end_pmfs
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
from rqm.correlated.integer_noise import IntegerNoise
from rqm.correlated.scheme import Exposure
from rqm.mechanisms.discrete import DiscreteMechanism

ROUND_ERROR = 1e-9
"""Above the relative errors of the likelihood ratios of one round."""


class Coordinate(NamedTuple):
    """One coordinate, of which a tail at each side is left out, with each client's noise. `ends` are the pmfs at both
    ends of the clip."""

    ends: tuple[tuple[float, ...], ...]
    transient: IntegerNoise
    residual: IntegerNoise | None
    gain: int
    honest: int
    separation: int
    neighboring: Neighboring
    tail: float


def correlated_gdp(
    mechanism: DiscreteMechanism,
    transient: IntegerNoise,
    residual: IntegerNoise | None,
    gain: int,
    exposure: Exposure,
) -> Bound:
    """Certified μ of a user's participations, for the integers that are sampled.

    See docs/proofs/correlated.md#theorem-8.

    Args:
        mechanism: Stochastic rounding to two levels outside the clip.
        transient: The noise that each client cancels in the next round.
        residual: The noise that is added `gain` times, of which all but one are canceled; None: there is none.
        gain: See `residual`.
        exposure: The participations.

    Returns:
        The bound.
    """
    tail = float(2.0 ** np.floor(np.log2(exposure.failure / exposure.count / (2 * exposure.dim))))
    ends = end_pmfs(mechanism, "sampled")
    coordinate = coordinate_gdp(
        Coordinate(ends, transient, residual, gain, exposure.honest, exposure.separation, exposure.neighboring, tail)
    )
    squared = min(
        (exposure.sensitivity / mechanism.clip) ** 2 * coordinate.per_square, exposure.dim * coordinate.largest
    )
    return Bound(GdpMu(sqrt(exposure.count * squared)), exposure.failure)


@lru_cache(maxsize=256)
def coordinate_gdp(coordinate: Coordinate) -> CoordinateGdp:
    """μ² of one coordinate; any choice of paths is valid, and the least μ² that is found counts.

    See docs/proofs/correlated.md#lemma-7.
    """
    fraction = 1.0
    best = _by_paths(coordinate, 1.0)
    # The rounding of few clients may be far from Gaussian. Then paths may be best that are longer than for Gaussians.
    while coordinate.residual is None and coordinate.honest <= 200 and best.per_square < inf:
        by_paths = _by_paths(coordinate, fraction / 2)
        if by_paths.per_square >= 0.999 * best.per_square:
            break
        fraction, best = fraction / 2, by_paths
    return best


def _by_paths(coordinate: Coordinate, fraction: float) -> CoordinateGdp:
    """μ² by the path lengths that are best for Gaussian noise, if rounding has `fraction` of its variance."""
    honest, gain = coordinate.honest, coordinate.gain
    rounding, rounding_variance, missing = _others_rounding(coordinate.ends, honest - 1)
    transient, missing_transient = coordinate.transient.summed(honest)
    missing += missing_transient
    if coordinate.residual is None:
        residual, residual_variance = None, 0.0
        ratios = one_shift(ratio_above([transient], pmf_variance(transient)))
    else:
        left, missing_left = coordinate.residual.summed(honest)
        missing += missing_left
        residual_variance = pmf_variance(left)
        residual = ratio_above([left], residual_variance, points=8)
        ratios = shift_ratios(transient, gain)
    variances = residual_variance, pmf_variance(transient), fraction * rounding_variance
    rounds, _ = path_length(coordinate.separation, *variances[:2], gain, variances[2])
    ratio = path_ratio(ratios, residual, rounding, variances, gain, rounds)
    masses = ratio.probabilities.sum(), ratio.probabilities @ ratio.values + ratio.singular
    if ratio.probabilities.min() < 0 or not all(abs(mass - 1) < rounds * ROUND_ERROR for mass in masses):
        return CoordinateGdp(inf, inf)
    error = 2 * ROUND_ERROR * rounds / sqrt(ratio.variance) if ratio.variance else inf
    return _from_ratio(ratio, np.array(coordinate.ends), rounds * missing, error, coordinate)


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


def _from_ratio(ratio: Ratio, ends: FloatArray, missing: float, error: float, coordinate: Coordinate) -> CoordinateGdp:
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
