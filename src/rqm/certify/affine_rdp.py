"""Rényi DP of a vector under an L2 bound, certified for all inputs of all clients.

A client sends d coordinates, each within ±c, and its vector is within C in L2. If the pmf of a
coordinate is affine in its input on all of [−c, c] (no level strictly inside the clip), then for
all inputs x, x' and all other clients

    exp((α−1) D_α) − 1 ≤ κ · (x − x')² / c²,

and the smallest such κ is attained at the ends of the clip (docs/proofs/affine.md#theorem-4). Summed over
coordinates, D_α is at most d/(α−1) · log(1 + κS/d), where S is the largest squared distance of
neighboring vectors over c². The cost does not depend on d.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from math import inf, log
from typing import NamedTuple

import numpy as np

from rqm._util.checks import FloatArray, one_of, order, real, whole
from rqm.bounds import Neighboring
from rqm.certify.distributions import ROUND_UP, splits
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind

Ends = tuple[tuple[float, ...], ...]
"""The pmfs of a coordinate at the two ends of the clip."""


class AffineLeakage(NamedTuple):
    """Bounds on the Rényi divergence of one coordinate at some orders: exp((α−1) D_α) − 1 ≤ κ · (x − x')²/c², and D_α ≤
    `largest`.

    κ may be too large for a float and is given by its logarithm.
    """

    log_kappa: FloatArray
    largest: FloatArray


class EndSums(NamedTuple):
    """The pmfs of a sum with the client's coordinate at the lower and at the upper end, and the probability that each
    lacks."""

    low: FloatArray
    high: FloatArray
    missing: float


def end_pmfs(mechanism: DiscreteMechanism, distribution: PmfKind) -> Ends:
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


def end_sums(ends: Ends, others: int, tail: float = 1e-40, trials: int = 1) -> Iterator[EndSums]:
    """Sums with the client at either end, one pair for each split of the others between the ends.

    See docs/proofs/affine.md#lemma-1.

    Args:
        ends: The pmfs at the two ends, see `end_pmfs`.
        others: Number of other clients, or of their trials.
        tail: Probability that may be cut from each end of a sum of the others.
        trials: Trials of the client, all of them at the same end.

    Yields:
        The pairs, in the order of `splits`.
    """
    low, high = (np.array(pmf) for pmf in ends)
    own_low, own_high = (reduce(np.convolve, [pmf] * trials) for pmf in (low, high))
    for base in splits(low, high, others, tail):
        yield EndSums(np.convolve(own_low, base.pmf), np.convolve(own_high, base.pmf), base.missing)


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
    one_of("neighboring", neighboring, ("replace-one", "zero-out"))
    honest = whole("honest", honest, 1)
    dim = whole("dim", dim, 1)
    real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    leakage = affine_leakage(end_pmfs(mechanism, distribution), tuple(alphas.tolist()), honest - 1, neighboring)
    distance = squared_distance(mechanism, l2_clip, neighboring)
    log_mean = leakage.log_kappa + log(distance) - log(dim)
    under_budget = dim / (alphas - 1) * np.logaddexp(0, log_mean)
    return np.asarray(mechanism.bernoulli_trials * np.minimum(under_budget, dim * leakage.largest))


@lru_cache(maxsize=256)
def affine_leakage(ends: Ends, orders: tuple[float, ...], others: int, neighboring: Neighboring) -> AffineLeakage:
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
    low, high = np.array(ends)
    alphas = np.array(orders)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        steepest = float(np.nanmax(np.abs(high - low) / (high + low)))
        # What an outcome counts for at most, (1 + r)^α (1 − r)^(1−α), and in the limit of equal inputs.
        farthest = alphas * np.log1p(steepest) + (1 - alphas) * np.log1p(-steepest)
        nearest = np.log(alphas * (alphas - 1) / 2 * steepest**2 / (1 - steepest))
        tail = float(np.clip(np.exp(-80 - farthest.max()), 1e-280, 1e-40))
        log_kappa = np.full(len(alphas), -inf)
        log_excess = np.full(len(alphas), -inf)
        for sums in end_sums(ends, others, tail):
            kappa, excess = _leakage_of(sums, alphas, steepest, farthest, nearest, neighboring)
            log_kappa = np.maximum(log_kappa, np.where(np.isnan(kappa), inf, kappa))
            log_excess = np.maximum(log_excess, np.where(np.isnan(excess), inf, excess))
        largest = np.logaddexp(0, log_excess) / (alphas - 1)
    return AffineLeakage(log_kappa + log(ROUND_UP), largest * ROUND_UP)


def _leakage_of(
    sums: EndSums,
    alphas: FloatArray,
    steepest: float,
    farthest: FloatArray,
    nearest: FloatArray,
    neighboring: Neighboring,
) -> tuple[FloatArray, FloatArray]:
    """log κ, and log(exp((α−1) D_α) − 1) between the two ends, beside one sum of the other clients.

    See docs/proofs/affine.md#lemma-2.
    """
    low, high, missing = sums
    is_seen = low + high > 0
    low, high = low[is_seen], high[is_seen]
    mass = (low + high) / 2
    ratio = np.clip((high - low) / (high + low), -steepest, steepest)
    logs = {sign: np.log1p(sign * ratio) for sign in (1, -1, 0)}
    log_missing = np.log(missing + 1e-290)
    gain = np.log(alphas * (alphas - 1) / 2)

    def excess(u: int, w: int) -> FloatArray:
        """log(exp((α−1) D_α) − 1) at the inputs u·c and w·c; the linear term, which sums to zero, is
        taken out."""
        powers = np.outer(alphas, logs[u]) + np.outer(1 - alphas, logs[w])
        linear = np.outer(alphas * u + (1 - alphas) * w, ratio)
        top = np.maximum(powers.max(axis=1, keepdims=True), 0)  # in units of its power, no term overflows
        terms = np.expm1(np.minimum(powers, 40)) - linear
        terms = np.maximum(terms, 0) * np.exp(-top)
        np.exp(powers - top, out=terms, where=powers > 40)  # linear terms do not matter there
        total = np.log(terms @ mass) + top[:, 0]
        return np.asarray(np.logaddexp(total, log_missing + farthest))

    if neighboring == "zero-out":
        at_distance = np.max([excess(1, 0), excess(-1, 0), excess(0, 1), excess(0, -1)], axis=0)
        return at_distance, at_distance
    at_distance = np.maximum(excess(1, -1), excess(-1, 1))
    squares = mass * ratio**2
    largest = np.maximum((squares / (1 + ratio)).sum(), (squares / (1 - ratio)).sum())
    at_zero = np.logaddexp(np.log(largest) + gain, log_missing + nearest)
    return np.maximum(at_distance - log(4), at_zero), at_distance
