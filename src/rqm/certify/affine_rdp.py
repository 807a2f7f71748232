"""Rényi DP of a vector under an L2 bound, certified for all inputs of all clients.

A client sends d coordinates, each within ±c, and its vector is within C in L2. If the pmf of a
coordinate is affine in its input on all of [−c, c] (no level strictly inside the clip), then for
all inputs x, x' and all other clients

    exp((α−1) D_α) − 1 ≤ κ · (x − x')² / c²,

and the smallest such κ is attained at the ends of the clip (docs/proofs/affine.md#theorem-4). Summed over
coordinates, D_α is at most d/(α−1) · log(1 + κS/d), where S is the largest squared distance of
neighboring vectors over c². The cost does not depend on d.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, log
from typing import NamedTuple

import numpy as np

from rqm._util.checks import FloatArray, one_of, order, real, whole
from rqm.bounds import Neighboring
from rqm.certify.distributions import ROUND_UP, PartialSum, splits
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind

CLIENT_RELATIONS: tuple[Neighboring, ...] = ("replace-one", "zero-out")
"""Neighboring relations for a client's whole vector."""


class AffineLeakage(NamedTuple):
    """Bounds on the Rényi divergence of one coordinate at some orders: exp((α−1) D_α) − 1 ≤ κ · (x − x')²/c², and D_α ≤
    `largest`.

    κ may be too large for a float and is given by its logarithm.
    """

    log_kappa: FloatArray
    largest: FloatArray


def end_pmfs(mechanism: DiscreteMechanism, distribution: PmfKind) -> tuple[tuple[float, ...], ...]:
    """The pmfs of one coordinate, or of one of its independent trials, at the two ends of the clip.

    The messages of PBM are sums of trials with the same input. Revealing every trial's sum only
    helps the adversary, and each trial is a mechanism of two levels.

    See docs/proofs/affine.md#lemma-9.

    Args:
        mechanism: A mechanism whose trials have an affine pmf.
        distribution: "paper" or "sampled".

    Returns:
        Two rows that sum to 1.
    """
    pmfs = np.exp(mechanism.trial_log_pmfs(distribution))
    return tuple(map(tuple, (pmfs / pmfs.sum(axis=1, keepdims=True)).tolist()))


def squared_distance(mechanism: DiscreteMechanism, l2_clip: float, neighboring: Neighboring) -> float:
    """The largest squared L2 distance of neighboring vectors, in squared clips of a coordinate.

    Args:
        mechanism: The mechanism, for the clip of a coordinate.
        l2_clip: L2 bound of a vector.
        neighboring: "replace-one", where the distance is 2C, or "zero-out", where it is C.

    Returns:
        The squared distance.
    """
    return (4 if neighboring == "replace-one" else 1) * (l2_clip / mechanism.clip) ** 2


def affine_rdp(
    mechanism: DiscreteMechanism,
    orders: Sequence[float],
    *,
    honest: int,
    dim: int,
    l2_clip: float,
    neighboring: Neighboring = "replace-one",
    distribution: PmfKind = "paper",
) -> FloatArray:
    """Certified D_α of the sum over honest clients of whole vectors, with one client's vector
    changed.

    See docs/proofs/affine.md#theorem-4.

    Args:
        mechanism: A mechanism whose pmf, or that of its trials, is affine on the clip.
        orders: Rényi orders in (1, 2] or [3, ∞).
        honest: Number of honest clients in the sum.
        dim: Number of coordinates.
        l2_clip: L2 bound of a vector.
        neighboring: "replace-one" or "zero-out".
        distribution: "paper" or "sampled".

    Returns:
        One bound for each order.

    >>> from rqm import StochasticRounding
    >>> mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=20.7)
    >>> affine_rdp(mechanism, [2], honest=100, dim=2**20, l2_clip=1.0).round(3).tolist()
    [5.58]
    """
    alphas = np.array([order(alpha) for alpha in orders])
    if ((alphas == 1) | (alphas > 2) & (alphas < 3) | np.isinf(alphas)).any():
        raise ValueError(f"orders = {list(orders)}: must lie in (1, 2] or [3, ∞)")
    one_of("neighboring", neighboring, CLIENT_RELATIONS)
    honest = whole("honest", honest, 1)
    dim = whole("dim", dim, 1)
    real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    leakage = affine_leakage(end_pmfs(mechanism, distribution), tuple(alphas.tolist()), honest - 1, neighboring)
    distance = squared_distance(mechanism, l2_clip, neighboring)
    under_budget = dim / (alphas - 1) * np.logaddexp(0, leakage.log_kappa + log(distance) - log(dim))
    return np.asarray(mechanism.bernoulli_trials * np.minimum(under_budget, dim * leakage.largest))


@lru_cache(maxsize=256)
def affine_leakage(
    ends: tuple[tuple[float, ...], ...], orders: tuple[float, ...], others: int, neighboring: Neighboring
) -> AffineLeakage:
    """What a coordinate leaks whose pmf is affine between two pmfs, with other clients of the same
    kind.

    See docs/proofs/affine.md#lemma-3.

    Args:
        ends: The pmfs at the two ends of the clip, see `end_pmfs`.
        orders: Rényi orders above 1.
        others: Number of other clients.
        neighboring: "replace-one" or "zero-out".

    Returns:
        The largest leakage over all splits of the other clients between the two ends.
    """
    low, high = (np.array(pmf) for pmf in ends)
    alphas = np.array(orders)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        steepest = float(np.nanmax(np.abs(high - low) / (high + low)))
        # What an outcome counts for at most, (1 + r)^α (1 − r)^(1−α), and in the limit of equal inputs.
        farthest = alphas * np.log1p(steepest) + (1 - alphas) * np.log1p(-steepest)
        nearest = np.log(alphas * (alphas - 1) / 2 * steepest**2 / (1 - steepest))
        tail = float(np.clip(np.exp(-80 - farthest.max()), 1e-280, 1e-40))
        log_kappa = np.full(len(alphas), -inf)
        largest = np.zeros(len(alphas))
        for base in splits(low, high, others, tail):
            kappa, leakage_at_distance = _leakage_with_others(
                base, low, high, alphas, steepest, farthest, nearest, neighboring
            )
            log_kappa = np.maximum(log_kappa, np.where(np.isnan(kappa), inf, kappa))
            largest = np.maximum(
                largest,
                np.where(np.isnan(leakage_at_distance), inf, np.logaddexp(0, leakage_at_distance) / (alphas - 1)),
            )
    return AffineLeakage(log_kappa + log(ROUND_UP), largest * ROUND_UP)


def _leakage_with_others(
    base: PartialSum,
    low: FloatArray,
    high: FloatArray,
    alphas: FloatArray,
    steepest: float,
    farthest: FloatArray,
    nearest: FloatArray,
    neighboring: Neighboring,
) -> tuple[FloatArray, FloatArray]:
    """log κ, and log(exp((α−1) D_α) − 1) between the two ends, beside one sum of the other clients.

    See docs/proofs/affine.md#lemma-2.
    """
    at_low = np.convolve(base.pmf, low)
    at_high = np.convolve(base.pmf, high)
    is_seen = at_low + at_high > 0
    mass = ((at_low + at_high) / 2)[is_seen]
    ratio = np.clip(((at_high - at_low) / (at_high + at_low))[is_seen], -steepest, steepest)
    log_mass = np.log(mass)
    missing = np.log(base.missing + 1e-290)
    logs = {sign: np.log1p(sign * ratio) for sign in (1, -1, 0)}
    is_moderate = farthest < 500.0  # no outcome counts for more than exp(500): no logarithms are needed
    large_exponent = 40.0  # from here on exp(x) − 1 equals exp(x) as a float, and linear terms do not matter

    def excess(u: int, w: int) -> FloatArray:
        """log(exp((α−1) D_α) − 1) at the inputs u·c and w·c; the linear term, which sums to zero, is
        taken out."""
        powers = alphas[:, None] * logs[u] + (1 - alphas)[:, None] * logs[w]
        linear = (alphas * u + (1 - alphas) * w)[:, None] * ratio
        total = np.empty(len(alphas))
        total[is_moderate] = np.log(np.maximum(np.expm1(powers[is_moderate]) - linear[is_moderate], 0) @ mass)
        powers, linear = powers[~is_moderate], linear[~is_moderate]
        small = np.log(np.maximum(np.expm1(np.minimum(powers, large_exponent)) - linear, 0))
        total[~is_moderate] = _log_sum(log_mass + np.where(powers < large_exponent, small, powers))
        return np.asarray(np.logaddexp(total, missing + farthest))

    if neighboring == "zero-out":
        at_distance = np.maximum.reduce([excess(*pair) for pair in ((1, 0), (-1, 0), (0, 1), (0, -1))])
        return at_distance, at_distance
    at_distance = np.maximum(excess(1, -1), excess(-1, 1))
    squares = log_mass + 2 * np.log(np.abs(ratio))
    at_zero = max(_log_sum((squares - logs[end])[None])[0] for end in (1, -1)) + np.log(alphas * (alphas - 1) / 2)
    return np.maximum(at_distance - log(4), np.logaddexp(at_zero, missing + nearest)), at_distance


def _log_sum(logs: FloatArray) -> FloatArray:
    """Logarithms of the sums of rows of numbers given by theirs."""
    top = np.maximum(logs.max(axis=1, initial=-1e300), -1e300)
    return np.asarray(top + np.log(np.exp(logs - top[:, None]).sum(axis=1)))
