"""The Rényi privacy of a whole vector under an L2 budget, certified for all inputs of everyone.

A client sends d coordinates, each within ±c, and the vector is within C in Euclidean norm. Where the law of a
coordinate is affine on all of [-c, c], as with two levels, or a margin so wide that no level lies inside the clip,

    exp((α−1) D_α) − 1 ≤ κ · (x − x')² / c²

for all x, x' and all inputs of the others, and the smallest such κ is known: it is attained at the ends
(``docs/proofs/vector.md``). Summed over coordinates, D_α is at most d/(α−1) · log(1 + κ S/d). Here S is the squared
distance of the two vectors over c²: at most 4C²/c² when one replaces another, C²/c² when one is replaced by zero. The
cost does not depend on d.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import get_args

import numpy as np

from rqm._util.checks import FloatArray, order, real, shown, whole
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.setting import Neighbours
from rqm.privacy.shifts import shifted_rdp
from rqm.privacy.worst_case import renyi

SPLITS = 1024
"""Ways to split the other clients between the two ends that are looked at; in between, some are left out."""
TAIL = 1e-40
"""Probability that may be dropped at each end of a long sum; what is dropped is charged at its worst."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""


@dataclass(frozen=True)
class Gain:
    """What a coordinate leaks: exp((α−1) D_α) − 1 ≤ ``kappa`` · (x − x')² / c², and D_α ≤ ``most`` in any case."""

    kappa: FloatArray
    most: FloatArray


def end_laws(mech: Channel, law: Law) -> tuple[FloatArray, int]:
    """The laws at the two ends of the clip, and how many independent trials of that kind a coordinate is.

    What a PBM client sends is a sum of trials with the same input. Showing every trial's sum alone only helps the
    adversary, and each is a mechanism of two levels.
    """
    laws = np.exp(mech.trial_laws(law))
    return laws / laws.sum(axis=1, keepdims=True), mech.trials


def splits_of_others(
    low: FloatArray, high: FloatArray, others: int, *, quick: bool = False
) -> Iterator[tuple[FloatArray, float]]:
    """Laws of the others' sum, one for every way in which they stand at the two ends, and the mass that each lacks.

    Of many others some neighbouring ways are taken together, by leaving out those in whom they differ. ``quick`` gives
    three ways only.
    """
    block = 1 if quick else max(1, ceil(others / SPLITS))
    starts: Sequence[int] = range(0, others + 1, block)
    if np.allclose(low, high[::-1], rtol=1e-12, atol=0):
        starts = range(0, others // 2 + 1, block)  # the other half are mirror images
    lows, highs = _Powers(low), _Powers(high)
    for start in sorted({0, others // 2, others}) if quick else starts:
        # Between `start` and `start + block - 1` others are high: the rest of that block only adds noise.
        yield highs[start].plus(lows[max(0, others - start - block + 1)])


def vector_rdp(
    mech: Channel,
    orders: Sequence[float],
    *,
    honest: int,
    dim: int,
    l2_clip: float,
    neighbours: Neighbours = "replace",
    law: Law = "paper",
    quick: bool = False,
) -> FloatArray:
    """Certified D_α of the sum over ``honest`` clients of ``dim`` coordinates, one client's vector changed.

    ``orders`` lie in (1, 2] or [3, ∞). Vectors are within ``l2_clip`` (C), coordinates within ``mech.clip`` (c).
    Neighbours: one vector replaces another, or one is replaced by zero. ``quick`` looks at few inputs of the others:
    then the value is an estimate, good enough to search with, and certifies nothing.

    >>> from rqm import Rounding
    >>> mech = Rounding(clip=4 / 1024, levels=2, margin=20.7)
    >>> vector_rdp(mech, [2], honest=100, dim=2**20, l2_clip=1.0).round(3).tolist()
    [5.58]
    """
    alphas = np.array([order(a) for a in orders])
    if ((alphas == 1) | (alphas > 2) & (alphas < 3) | np.isinf(alphas)).any():
        raise ValueError(f"orders = {list(orders)}: must lie in (1, 2] or [3, ∞)")
    if neighbours not in get_args(Neighbours):
        raise ValueError(f"neighbours = {shown(neighbours)}: must be one of {', '.join(get_args(Neighbours))}")
    honest, dim = whole("honest", honest, 1), whole("dim", dim, 1)
    l2_clip = real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    additive = mech.additive
    if additive is not None:
        replaced = neighbours == "replace"
        return shifted_rdp(
            additive,
            alphas.tolist(),
            honest=honest,
            dim=dim,
            furthest=additive.steps / (1 if replaced else 2),
            squared=(4 if replaced else 1) * (l2_clip / additive.clip * additive.steps / 2) ** 2,
            quick=quick,
        )
    if not mech.affine:
        return dim * np.array([bound.upper for bound in renyi(mech, alphas.tolist(), honest, law=law)])
    laws, trials = end_laws(mech, law)
    found = gain(tuple(map(tuple, laws.tolist())), tuple(alphas.tolist()), honest - 1, neighbours, quick)
    distance = (4 if neighbours == "replace" else 1) * (l2_clip / mech.clip) ** 2
    with np.errstate(over="ignore"):  # what leaks beyond all numbers leaks infinitely
        under_budget = dim / (alphas - 1) * np.log1p(found.kappa * distance / dim)
        return np.asarray(trials * np.minimum(under_budget, dim * found.most))


@lru_cache(maxsize=256)
def gain(
    laws: tuple[tuple[float, ...], ...],
    orders: tuple[float, ...],
    others: int,
    neighbours: Neighbours,
    quick: bool = False,
) -> Gain:
    """What a coordinate leaks whose law is affine between the two ``laws``, beside ``others`` of the same kind.

    ``quick`` tries only three splits of the others.
    """
    low, high = (np.array(law) for law in laws)
    alphas = np.array(orders)
    kappa, most = np.zeros(len(alphas)), np.zeros(len(alphas))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        steepest = float(np.nanmax(np.abs(high - low) / (high + low)))
        for base, lost in splits_of_others(low, high, others, quick=quick):
            here = _leak(base, lost, low, high, alphas, steepest, neighbours)
            kappa, most = np.maximum(kappa, here.kappa), np.maximum(most, here.most)
    return Gain(kappa * SLACK, most * SLACK)


def _leak(
    base: FloatArray,
    lost: float,
    low: FloatArray,
    high: FloatArray,
    alphas: FloatArray,
    steepest: float,
    neighbours: Neighbours,
) -> Gain:
    """The sums over outcomes for one choice of the others; ``lost`` is probability that ``base`` lacks."""
    mass = np.convolve((low + high) / 2, base)
    ratio = np.convolve((high - low) / 2, base) / mass
    seen = mass > 0
    mass, ratio = mass[seen], np.clip(ratio[seen], -steepest, steepest)
    at = {end: np.log1p(end * ratio) for end in (1, -1, 0)}
    beyond = lost * np.exp(alphas * np.log1p(steepest) + (1 - alphas) * np.log1p(-steepest))

    def excess(u: int, w: int) -> FloatArray:
        """exp((α−1) D_α) − 1 for the inputs u c and w c. The linear term, which sums to zero, is taken out first."""
        logs = alphas[:, None] * at[u] + (1 - alphas)[:, None] * at[w]
        linear = (alphas * u + (1 - alphas) * w)[:, None] * ratio
        return np.asarray((mass * np.maximum(np.expm1(logs) - linear, 0)).sum(axis=1) + beyond)

    if neighbours == "replace":
        far = np.maximum(excess(1, -1), excess(-1, 1))
        near = max((mass * ratio**2 / (1 + end * ratio)).sum() for end in (1, -1))
        kappa = np.maximum(far / 4, alphas * (alphas - 1) / 2 * near + beyond)
    else:
        far = kappa = np.maximum.reduce([excess(*pair) for pair in ((1, 0), (-1, 0), (0, 1), (0, -1))])
    kappa, most = (np.where(np.isnan(part), inf, part) for part in (kappa, np.log1p(far) / (alphas - 1)))
    return Gain(kappa, most)


@dataclass(frozen=True)
class _Sum:
    """The law of a sum but for its farthest tails, of probability ``lost``; where it begins does not matter."""

    law: FloatArray
    lost: float

    def plus(self, other: "_Sum") -> tuple[FloatArray, float]:
        law = np.convolve(self.law, other.law)
        return law, self.lost + other.lost

    def trimmed(self) -> "_Sum":
        if len(self.law) < 512:
            return self
        below = int(np.searchsorted(np.cumsum(self.law), TAIL))
        above = int(np.searchsorted(np.cumsum(self.law[::-1]), TAIL))
        return _Sum(self.law[below : len(self.law) - above], self.lost + (2 * TAIL if below or above else 0))


class _Powers:
    """Sums of several independent copies of a law, made one after the other."""

    def __init__(self, law: FloatArray) -> None:
        self.law, self.made = law, [_Sum(np.ones(1), 0.0)]

    def __getitem__(self, count: int) -> _Sum:
        while len(self.made) <= count:
            last = self.made[-1]
            self.made.append(_Sum(np.convolve(last.law, self.law), last.lost).trimmed())
        return self.made[count]
