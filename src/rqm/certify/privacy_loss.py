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

from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from rqm._util.checks import FloatArray
from rqm.bounds import ReleaseProfile, symmetric_loss
from rqm.certify.affine_rdp import end_pmfs
from rqm.certify.distributions import PartialSum, splits
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind

LOSS_GRID_SIZE = 4000
"""Values of ε at which the profile of a coordinate is computed; between them it is bounded
(Doroshenko et al. 2022)."""
DELTA_ERROR = 1e-13
"""Above the rounding errors of δ on a coordinate's grid, and of δ at many ε at once."""

Pair = tuple[FloatArray, FloatArray, float]
"""The pmfs of a sum with the client at either end, for one split of the others, and the probability
that each lacks."""


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
            deltas = np.asarray(composed.get_delta_for_epsilon(eps)) + DELTA_ERROR
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
def _affine_loss(ends: tuple[tuple[float, ...], ...], trials: int, others: int) -> Any:
    """The privacy loss distribution that dominates one coordinate; None if some outcome reveals
    everything.

    See docs/proofs/composition.md#lemma-8.
    """
    low, high = (np.array(pmf) for pmf in ends)
    own_pmfs = [reduce(np.convolve, [pmf] * trials) for pmf in (low, high)]
    if ((own_pmfs[0] > 0) != (own_pmfs[1] > 0)).any():
        return None
    pairs = [_with_others(base, *own_pmfs) for base in splits(low, high, trials * others)]
    if trials == 1:  # the other clients' noise makes no loss larger than that of the client alone
        is_seen = low > 0
        last = float(abs(np.log(high[is_seen] / low[is_seen])).max()) * (1 + 1e-9)
    else:
        last = max(max(_last_loss(first, second), _last_loss(second, first)) for first, second, _ in pairs)
    return symmetric_loss(*_largest_profile(pairs, last))


def _with_others(base: PartialSum, low: FloatArray, high: FloatArray) -> Pair:
    return np.convolve(low, base.pmf), np.convolve(high, base.pmf), base.missing


def _epsilon_grid(last: float) -> FloatArray:
    half = LOSS_GRID_SIZE // 2
    return np.asarray(np.arange(-half, half + 1, dtype=np.float64) * (last / half))


def _largest_profile(pairs: Iterable[Pair], last: float) -> tuple[FloatArray, float]:
    """The largest δ of some pairs, in both directions, on a grid of ε from −last to last, and the grid's interval.

    See docs/proofs/composition.md#lemma-8.
    """
    grid = _epsilon_grid(last)
    largest = np.zeros(len(grid))
    for first, second, missing in pairs:
        for p, q in ((first, second), (second, first)):
            is_seen = (p > 0) & (q > 0)
            loss = np.log(p[is_seen]) - np.log(q[is_seen])
            by_loss = np.argsort(-loss)
            above = np.searchsorted(-loss[by_loss], -grid, side="left")  # outcomes whose loss exceeds ε
            mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(pmf[is_seen][by_loss])]) for pmf in (p, q))
            largest = np.maximum(largest, mass_p[above] - np.exp(grid) * mass_q[above] + missing)
    return _as_profile(grid, largest), float(grid[1] - grid[0])


def _as_profile(grid: FloatArray, deltas: FloatArray) -> FloatArray:
    """The profile that upper bounds of δ on a rising grid imply: at each ε the least bound up to there.

    The true δ falls as ε grows, so a bound at one ε holds at every larger one.

    See docs/proofs/composition.md#lemma-8.
    """
    minimum = np.maximum(0, -np.expm1(grid))
    return np.asarray(np.minimum.accumulate(np.clip(np.nan_to_num(deltas + DELTA_ERROR, nan=1.0), minimum, 1)))


@lru_cache(maxsize=64)
def _additive_profile(mechanism: Additive, honest: int) -> tuple[FloatArray, float]:
    """The largest δ of a coordinate with additive noise on a grid of ε, and the grid's interval. Losses
    that are too rare are infinite.

    See docs/proofs/composition.md#lemma-9.
    """
    noise = mechanism.summed(honest)
    pairs = []
    for k in range(1, mechanism.steps + 1):
        shifted = np.roll(noise, k)
        pairs += [(noise, shifted), (shifted, noise)]
    last = max(_last_loss(p, q) for p, q in pairs)
    grid = _epsilon_grid(last)
    unit = last / (LOSS_GRID_SIZE // 2)
    largest = np.zeros(len(grid))
    sum_error = 1e-9  # above the relative errors of pmfs of summed noise
    for p, q in pairs:
        cell = np.ceil((np.log(p) - np.log(q)) / unit + LOSS_GRID_SIZE // 2)
        cell = np.clip(cell, 0, len(grid)).astype(np.int64)
        above_p, above_q = (np.cumsum(np.bincount(cell, pmf, len(grid) + 1)[:0:-1])[::-1] for pmf in (p, q))
        largest = np.maximum(largest, (1 + sum_error) * above_p - (1 - sum_error) * np.exp(grid) * above_q)
    return _as_profile(grid, largest), float(grid[1] - grid[0])


def _last_loss(p: FloatArray, q: FloatArray) -> float:
    """A loss of P against Q beyond which outcomes of a total probability below 10⁻¹⁶ may count as
    if they revealed everything."""
    is_seen = (p > 0) & (q > 0)
    p, loss = p[is_seen], np.log(p[is_seen]) - np.log(q[is_seen])
    unit = max(float(loss.max()), 1e-9) / LOSS_GRID_SIZE
    cell = np.clip(np.ceil(loss / unit), 0, LOSS_GRID_SIZE).astype(np.int64)
    above = np.cumsum(np.bincount(cell, p, LOSS_GRID_SIZE + 1)[::-1])
    return (LOSS_GRID_SIZE - int(np.searchsorted(above, 1e-16))) * unit * (1 + 1e-9)
