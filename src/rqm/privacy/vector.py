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
from math import ceil, exp, inf, log

import numpy as np

from rqm._util import cache
from rqm._util.checks import FloatArray, order, real, shown, whole
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.compiled import BLOCK, EMPTY
from rqm.privacy.composition import LOW
from rqm.privacy.divergence import Sum
from rqm.privacy.setting import Neighbours
from rqm.privacy.shifts import shifted_rdp
from rqm.privacy.splits import Splits
from rqm.privacy.worst_case import attained, renyi

SPLITS = 1024
"""Ways to split the other clients between the two ends that are looked at; in between, some are left out."""
TAIL = 1e-40
"""Probability that may be dropped at each end of a long sum, where it counts for no more than itself."""
NEGLIGIBLE = 80.0
"""−log of what dropped probability may count for, in units of exp((α−1) D_α)."""
MILD, LEAST = 500.0, -700.0
"""Where no outcome counts for more than exp(MILD), probabilities below exp(LEAST) may be left out."""
LARGE = 40.0
"""From here on exp(x) − 1 is exp(x), and terms of the first order do not matter; they are left in."""
WHOLE: tuple[Neighbours, ...] = ("replace", "zero-out")
"""What may happen to the whole of a client's vector."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""


@dataclass(frozen=True)
class Gain:
    """What a coordinate leaks: exp((α−1) D_α) − 1 ≤ ``kappa`` · (x − x')² / c², and D_α ≤ ``most`` in any case.

    ``kappa`` is given by its logarithm: it may lie beyond all floats.
    """

    log_kappa: FloatArray
    most: FloatArray

    @property
    def kappa(self) -> FloatArray:
        """κ itself, infinite where it is beyond all floats."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_kappa)

    def or_more(self, other: "Gain") -> "Gain":
        """The larger of each."""
        return Gain(np.maximum(self.log_kappa, other.log_kappa), np.maximum(self.most, other.most))


def end_laws(mech: Channel, law: Law) -> tuple[FloatArray, int]:
    """The laws at the two ends of the clip, and how many independent trials of that kind a coordinate is.

    What a PBM client sends is a sum of trials with the same input. Showing every trial's sum alone only helps the
    adversary, and each is a mechanism of two levels.
    """
    laws = np.exp(mech.trial_laws(law))
    return laws / laws.sum(axis=1, keepdims=True), mech.trials


def splits_of_others(
    low: FloatArray, high: FloatArray, others: int, *, quick: bool = False, ways: int = SPLITS
) -> Iterator[tuple[FloatArray, float]]:
    """Laws of the others' sum, one for every way in which they stand at the two ends, and the mass that each lacks.

    Of many others neighbouring ways are taken together, ``ways`` are left, by leaving out those in whom they differ.
    ``quick`` gives three ways only.
    """
    with np.errstate(divide="ignore"):
        laws = _ways(np.log(low), np.log(high), others, log(TAIL), quick=quick, ways=ways)
    for law in laws:
        yield np.exp(law.log_law(law.mantissa.size)), exp(law.log_lost)


def _ways(
    low: FloatArray, high: FloatArray, others: int, log_tail: float, *, quick: bool, ways: int = SPLITS
) -> Iterator[Sum]:
    """The laws of the others' sum for all splits, or for three."""
    splits = Splits(Sum.of(low), Sum.of(high), others, 1 if quick else max(1, ceil(others / ways)), log_tail)
    mirrored = np.allclose(np.exp(low), np.exp(high[::-1]), rtol=1e-12, atol=0)  # then the other half are mirror images
    if quick:
        return (splits.law(way) for way in sorted({0, others // 2, *([] if mirrored else [others])}))
    return (law for _, law in splits.laws(0, others // 2 // splits.block + 1 if mirrored else len(splits)))


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
    if neighbours not in WHOLE:
        raise ValueError(f"neighbours = {shown(neighbours)}: must be one of {', '.join(WHOLE)}")
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
        squares = (2 if neighbours == "replace" else 1) * (l2_clip / mech.clip) ** 2
        return _by_cells(mech, alphas, honest, dim, squares, law, quick)
    laws, trials = end_laws(mech, law)
    found = gain(tuple(map(tuple, laws.tolist())), tuple(alphas.tolist()), honest - 1, neighbours, quick)
    distance = (4 if neighbours == "replace" else 1) * (l2_clip / mech.clip) ** 2
    under_budget = dim / (alphas - 1) * np.logaddexp(0, found.log_kappa + log(distance) - log(dim))
    bound = np.asarray(trials * np.minimum(under_budget, dim * found.most))
    # Where no budget helps, a coordinate's own certificate may say less than that of its trials, shown one by one.
    if trials > 1 and not quick and (under_budget > dim * found.most / 2).any():
        bound = np.minimum(bound, dim * np.array([one.upper for one in renyi(mech, alphas.tolist(), honest, law=law)]))
    return bound


def _by_cells(
    mech: Channel, alphas: FloatArray, honest: int, dim: int, squares: float, law: Law, quick: bool
) -> FloatArray:
    """The same for laws with kinks inside the clip: under the budget at low orders, or d times the worst coordinate."""
    from rqm.privacy.budget import budget_rdp  # noqa: PLC0415 (takes the compiler)

    least = attained(mech, tuple(alphas.tolist()), honest, law=law)
    if quick:
        return np.asarray(np.where(alphas <= LOW, min(dim, squares / 2), dim) * least)
    if squares < 2 * dim:
        found = budget_rdp(mech, alphas.tolist(), honest=honest, squared=squares, law=law)
    else:  # all coordinates may be at their worst
        found = np.full(len(alphas), inf)
    worse = found > dim * least
    if worse.any():
        worst = dim * np.array([bound.upper for bound in renyi(mech, alphas[worse].tolist(), honest, law=law)])
        found[worse] = np.minimum(found[worse], worst)
    return found


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
    asked = [laws, orders, others, neighbours, SPLITS]
    held = None if quick else cache.read("gain", asked)
    if held is not None:
        return Gain(*map(np.array, held))
    found = _gain(laws, orders, others, neighbours, quick=quick)
    if not quick:
        cache.write("gain", asked, [found.log_kappa.tolist(), found.most.tolist()])
    return found


def _gain(
    laws: tuple[tuple[float, ...], ...],
    orders: tuple[float, ...],
    others: int,
    neighbours: Neighbours,
    *,
    quick: bool,
) -> Gain:
    low, high = (np.array(law) for law in laws)
    alphas = np.array(orders)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        steepest = float(np.nanmax(np.abs(high - low) / (high + low)))
        one = _Coordinate(low, high, alphas, steepest, neighbours)
        worst = Gain(np.full(len(alphas), -inf), np.zeros(len(alphas)))
        ways = _ways(np.log(low), np.log(high), others, -NEGLIGIBLE - float(one.dearest.max()), quick=quick)
        for law in ways:
            worst = worst.or_more(one.leak(law))
    return worst


class _Coordinate:
    """A coordinate whose law is affine between two laws, beside others of one sum at a time."""

    def __init__(
        self, low: FloatArray, high: FloatArray, alphas: FloatArray, steepest: float, neighbours: Neighbours
    ) -> None:
        self.alphas, self.steepest, self.neighbours = alphas, steepest, neighbours
        self.ends = [Sum.of(np.log(law)) for law in (low, high)]
        # The most that an outcome can count for: (1 + r)^α (1 − r)^(1−α), and in the limit of equal inputs.
        self.dearest = alphas * np.log1p(steepest) + (1 - alphas) * np.log1p(-steepest)
        self.nearest = np.log(alphas * (alphas - 1) / 2 * steepest**2 / (1 - steepest))

    def leak(self, base: Sum) -> Gain:
        """The sums over outcomes for one choice of the others."""
        log_mass, ratio = _middle(*(base + end for end in self.ends))
        mass = np.exp(log_mass)
        ratio = np.clip(ratio, -self.steepest, self.steepest)
        at = {end: np.log1p(end * ratio) for end in (1, -1, 0)}
        lost, alphas, mild = base.log_lost, self.alphas, self.dearest < MILD
        # What is below all floats counts as lost.
        lost_too = np.where(mild, np.logaddexp(lost, LEAST + log(len(ratio))), lost)

        def excess(u: int, w: int) -> FloatArray:
            """log(exp((α−1) D_α) − 1) at the inputs u c and w c. The linear term, which sums to zero, is taken out."""
            logs = alphas[:, None] * at[u] + (1 - alphas)[:, None] * at[w]
            linear = (alphas * u + (1 - alphas) * w)[:, None] * ratio
            found = np.empty(len(alphas))
            found[mild] = np.log(np.maximum(np.expm1(logs[mild]) - linear[mild], 0) @ mass)
            logs, linear = logs[~mild], linear[~mild]
            terms = np.where(logs < LARGE, np.log(np.maximum(np.expm1(np.minimum(logs, LARGE)) - linear, 0)), logs)
            found[~mild] = _log_sum(log_mass + terms)
            return np.asarray(np.logaddexp(found, lost_too + self.dearest))

        if self.neighbours == "replace":
            far = np.maximum(excess(1, -1), excess(-1, 1))
            squares = log_mass + 2 * np.log(np.abs(ratio))
            near = np.max([_log_sum((squares - at[end])[None]) for end in (1, -1)], axis=0)
            near = np.logaddexp(near + np.log(alphas * (alphas - 1) / 2), lost + self.nearest)
            kappa = np.maximum(far - log(4), near)
        else:
            far = kappa = np.maximum.reduce([excess(*pair) for pair in ((1, 0), (-1, 0), (0, 1), (0, -1))])
        kappa, most = (np.where(np.isnan(part), inf, part) for part in (kappa, np.logaddexp(0, far) / (alphas - 1)))
        return Gain(kappa + log(SLACK), most * SLACK)


def _middle(low: Sum, high: Sum) -> tuple[FloatArray, FloatArray]:
    """The law in the middle between two, by its logarithm, and by what part of it they differ from it."""
    blocks = max(len(low.exponent), len(high.exponent))
    a, b = (np.zeros((blocks, BLOCK)) for _ in range(2))
    exponents = np.full((2, blocks), EMPTY)
    for room, exponent, law in ((a, exponents[0], low), (b, exponents[1], high)):
        room[: len(law.exponent)], exponent[: len(law.exponent)] = law.mantissa, law.exponent
    top = exponents.max(axis=0)
    a, b = (np.ldexp(part, np.maximum(own - top, -1100)[:, None]) for part, own in zip((a, b), exponents, strict=True))
    total = a + b
    seen = total > 0
    log_mass = np.log(total / 2, where=seen, out=np.zeros_like(total)) + log(2) * top[:, None]
    return log_mass[seen], ((b - a)[seen] / total[seen])


def _log_sum(logs: FloatArray) -> FloatArray:
    """Logarithms of the sums of rows of numbers given by theirs."""
    top = np.maximum(logs.max(axis=1), -1e300)
    return np.asarray(top + np.log(np.exp(logs - top[:, None]).sum(axis=1)))
