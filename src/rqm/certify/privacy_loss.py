"""Privacy loss distributions of coordinates: a tighter ε where few coordinates are sent.

For fixed inputs of the other clients the hockey-stick divergence is jointly convex in the two
pmfs. So where a pmf is affine on the clip it is largest between the two ends, with the other
clients at the ends too. Its largest value over all splits of the other clients, at every ε, is
the profile of a pair that dominates every coordinate; such pairs compose (Zhu, Dong and Wang
2022). PBM sends a sum of trials, each affine, so all other clients' trials stand at the ends.
Sums of trials are ordered by likelihood ratio, so the client's own trials, all together, are
worst at the ends as well.

Of additive noise the other clients change nothing. Two rounded inputs are k steps apart, and by
joint convexity the largest value over all possible k is that of a dominating pair, however inputs
are rounded.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rqm._util.checks import FloatArray
from rqm.bounds import ReleaseProfile, symmetric_loss
from rqm.certify.affine_rdp import Ends, EndSums, end_pmfs, end_sums
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind


def coordinates_profile(
    mechanism: DiscreteMechanism, *, honest: int, coordinates: int, distribution: PmfKind = "paper"
) -> ReleaseProfile | None:
    """The privacy profile of some coordinates, each with any two inputs within the clip.

    See docs/proofs/composition.md#lemma-8.

    Args:
        mechanism: A mechanism with additive noise, or whose pmf or that of its trials is affine
            on the clip.
        honest: Number of honest clients in the sum.
        coordinates: How many coordinates are released, over all rounds that are composed.
        distribution: "paper" or "sampled".

    Returns:
        The profile, or None if some outcome reveals everything.
    """
    composed = _composed(mechanism, honest, coordinates, distribution)
    if composed is None:
        return None

    def delta(eps: FloatArray) -> FloatArray:
        if len(eps) == 1:  # without the differences of large sums that several values at once are made of
            return np.array([composed.get_delta_for_epsilon(float(eps[0]))])
        with np.errstate(over="ignore", invalid="ignore"):
            deltas = (
                np.asarray(composed.get_delta_for_epsilon(eps)) + 1e-13
            )  # above the rounding errors of many ε at once
        return np.clip(np.nan_to_num(deltas, nan=1.0, posinf=1.0), 0, 1)

    return ReleaseProfile(delta)


@lru_cache(maxsize=256)
def _composed(mechanism: DiscreteMechanism, honest: int, coordinates: int, distribution: PmfKind) -> Any:
    if mechanism.additive is not None:
        single = symmetric_loss(*_additive_profile(mechanism.additive, honest))
    else:
        ends = end_pmfs(mechanism, distribution)
        single = _affine_loss(ends, mechanism.bernoulli_trials, honest - 1)
    return None if single is None else single.self_compose(coordinates, tail_mass_truncation=1e-15)  # it is charged


@lru_cache(maxsize=64)
def _affine_loss(ends: Ends, trials: int, others: int) -> Any:
    """The privacy loss distribution that dominates one coordinate; None if some outcome reveals
    everything.

    See docs/proofs/composition.md#lemma-8.
    """
    (alone,) = end_sums(ends, 0, trials=trials)
    if ((alone.low > 0) != (alone.high > 0)).any():
        return None
    pairs = list(end_sums(ends, trials * others, trials=trials))
    if trials == 1:  # the other clients' noise makes no loss larger than that of the client alone
        largest = max(_losses(alone.low, alone.high).max(), _losses(alone.high, alone.low).max())
        last = float(largest) * (1 + 1e-9)
    else:
        last = _last_loss(pairs)
    return symmetric_loss(*_largest_profile(pairs, last))


@lru_cache(maxsize=64)
def _additive_profile(mechanism: Additive, honest: int) -> tuple[FloatArray, float]:
    """The largest δ of a coordinate with additive noise on a grid of ε, and the grid's interval. Losses
    that are too rare are infinite.

    See docs/proofs/composition.md#lemma-9.
    """
    noise = mechanism.summed(honest)
    pairs = [EndSums(noise, np.roll(noise, k), 0.0) for k in range(1, mechanism.steps + 1)]
    return _largest_profile(pairs, _last_loss(pairs), sum_error=1e-9)  # above the relative errors of summed noise


def _largest_profile(pairs: Sequence[EndSums], last: float, sum_error: float = 0.0) -> tuple[FloatArray, float]:
    """The largest δ of some pairs, in both directions, on a grid of ε from −last to last, and the grid's interval.

    The true δ falls as ε grows, so a bound at one ε holds at every larger one.

    See docs/proofs/composition.md#lemma-8.
    """
    half = 2000  # between the values of the grid the profile is bounded (Doroshenko et al. 2022)
    interval = last / half
    grid = np.arange(-half, half + 1) * interval
    ratio = np.exp(grid)
    largest = np.zeros(len(grid))
    for pair in pairs:
        for p, q in ((pair.low, pair.high), (pair.high, pair.low)):
            cell = _losses(p, q) / interval + half
            above_p = _masses_above(cell, p, len(grid))[1:]
            above_q = _masses_above(cell, q, len(grid))[1:]
            deltas = (1 + sum_error) * above_p - (1 - sum_error) * ratio * above_q
            largest = np.maximum(largest, deltas + pair.missing)
    minimum = np.maximum(0, -np.expm1(grid))
    error = 1e-13  # above the rounding errors of sums of probabilities
    bounds = np.clip(np.nan_to_num(largest + error, nan=1.0), minimum, 1)
    return np.asarray(np.minimum.accumulate(bounds)), interval


def _last_loss(pairs: Sequence[EndSums]) -> float:
    """A loss beyond which the outcomes of each pair have a total probability below 10⁻¹⁶. They may count as if they
    revealed everything."""
    cells = 4000
    last = 0.0
    for low, high, _ in pairs:
        for p, q in ((low, high), (high, low)):
            loss = _losses(p, q)
            unit = max(float(loss.max()), 1e-9) / cells
            above = _masses_above(loss / unit, p, cells)
            likely = np.count_nonzero(above >= 1e-16) - 1
            last = max(last, likely * unit * (1 + 1e-9))
    return last


def _losses(p: FloatArray, q: FloatArray) -> FloatArray:
    """The privacy loss of every outcome, −∞ where one of the two probabilities is too small for a float."""
    is_seen = (p > 0) & (q > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(is_seen, np.log(p) - np.log(q), -np.inf)


def _masses_above(cell: FloatArray, pmf: FloatArray, cells: int) -> FloatArray:
    """The probability of all outcomes whose cell, rounded up, is at least 0, 1, …, `cells`."""
    index = np.clip(np.ceil(cell), 0, cells).astype(np.int64)
    masses = np.bincount(index, pmf, cells + 1)
    return np.asarray(np.cumsum(masses[::-1])[::-1], dtype=np.float64)
