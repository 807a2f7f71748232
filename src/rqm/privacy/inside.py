"""How fast a sum tells of one client's input, for laws with levels inside the clip, whatever anybody sends.

The score of a sum, what its law changes by, relatively, when one's own input moves, is a conditional mean of its
parts' scores: of one's own block of clients, and of blocks of others, each of which may stand at any knots. Blocks are
small enough that all ways are tried, and large enough that hardly anything is lost by showing each by itself. If
log E exp(y S) ≤ K(y) for the score S wherever one's input lies, then on the way from one input to another

    D_α ≤ α ∫ K(y) / y² dy,  y from α − 1 to α,

and scores of coordinates add up (``docs/proofs/inside.md``). So the law of an input may be affine cell by cell only, a
vector has its L2 budget, and a thousand clients take no longer than fifty.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import comb, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.threads import usable_cores
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.blocks import others_scores, own_scores
from rqm.privacy.compiled import IntArray

WORK, OWN_WORK = 3e6, 6e4
"""Outcomes, of all ways in which a block can stand, that are looked at: of others, and of one's own."""
LEAST = 4
"""Clients in a block of others: of fewer too many send all they can, and then have no step to make."""
DEEPEST = 1e-280
"""Probabilities of a block's sum that floats hold accurately."""
NARROW = 1e-5
"""A cell so narrow, in clips, has a change that is lost in rounding errors."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of sums of positive numbers."""
START, FINE = 0.06, 1.1
"""The least rate, over the deviation of a block's score, and how much larger the next is from where exp(K) is large."""
REACH = 3
"""The largest step of one's own block, over the mean, for which blocks of others are looked at."""
KNOTS = 32
"""Knots up to which all ways of a block are tried."""
BLOCKS_TELL, OWN_TELLS = 0.3, 0.8
"""By how much more a block of one client would tell, for others and for oneself: a guess, by which blocks are made."""
STEP, AT_ONCE, USELESS = 1.15, 4, 8.0
"""Rates of a vector's score: each so much larger, so many at a time, until they tell so many times the variance."""
NODES = 5
"""Places at which K is asked between α − 1 and α."""


class _Layout(NamedTuple):
    """Others beside oneself in a block, the size of blocks of others, and how many of these there are."""

    own: int
    size: int
    blocks: int


class Laws(NamedTuple):
    """The laws of a coordinate at its knots, which lie at these places, from −1 to 1 in clips."""

    rows: tuple[tuple[float, ...], ...]
    knots: tuple[float, ...]

    @property
    def far(self) -> float:
        """How far apart two inputs can be."""
        return self.knots[-1] - self.knots[0]

    @property
    def fit(self) -> bool:
        """Whether there are few enough knots to try all ways, and no cell is lost in rounding errors."""
        return len(self.rows) <= KNOTS and min(np.diff(self.knots)) > NARROW


def laws_of(mech: Channel, law: Law) -> Laws:
    """Those of a mechanism, in the units of its positions where it is the sampled law."""
    laws = np.exp(mech.knot_laws(law))
    places = mech.knots / mech.clip
    if law == "sampled":
        positions = [int(at) for at in mech.position(mech.knots)]
        middle, half = Fraction(positions[0] + positions[-1], 2), Fraction(positions[-1] - positions[0], 2)
        places = np.array([float((at - middle) / half) for at in positions])
    laws /= laws.sum(axis=1, keepdims=True)
    return Laws(tuple(map(tuple, laws.tolist())), tuple(places.tolist()))


@lru_cache(maxsize=256)
def cumulants(of: Laws, others: int, rates: tuple[float, ...]) -> tuple[float, FloatArray]:
    """Bounds of E S², and of log E exp(±y S) for some rates y, of the score S of a coordinate, per clip."""
    laws, widths = np.array(of.rows), np.diff(of.knots)
    squares, found = 0.0, np.zeros(len(rates))
    for turn in range(1 if _mirrored(laws) else 2):  # upper halves of cells are lower ones, seen from the other side
        here = _half(_turned(laws) if turn else laws, widths[:: -1 if turn else 1], others, np.array(rates))
        squares, found = max(squares, here[0]), np.maximum(found, here[1])
    return squares * SLACK, found * SLACK + 1e-12


def _mirrored(laws: FloatArray) -> bool:
    return np.allclose(laws[::-1, ::-1], laws, rtol=1e-12, atol=0)


def _turned(laws: FloatArray) -> FloatArray:
    return np.ascontiguousarray(laws[::-1, ::-1])


def _half(laws: FloatArray, widths: FloatArray, others: int, rates: FloatArray) -> tuple[float, FloatArray]:
    """The same for inputs in the lower halves of cells."""
    own, size, blocks = _layout(laws, others)
    told = _information(laws, size) if blocks else inf
    share = 1 / told / (1 / _information(laws, own + 1) + blocks / told)
    changes, steps = _cells(laws, widths)
    rest = (np.array([0.0, 1.0]), np.zeros((2, 5)), np.zeros((2, 5)))
    if blocks:
        rate = START / sqrt(told)
        ways = _ways(REACH * share * float(abs(steps).sum(axis=1).max() * rates.max()) / rate)
        known = _block(laws, size, rate, ways, rest=False)
        rest = (np.append(0.0, ways[:, 0] * rate), known, _block(_turned(laws), size, rate, ways, rest=True))

    def kernel(first: int) -> FloatArray:
        found = np.zeros((len(rates) + 1, 2))
        own_scores(first, (laws, changes, steps), own, (1 - blocks * share, share, blocks), rest, rates, found)
        return found

    found = _everywhere(kernel, len(laws) if own else 1)
    found = np.where(np.isnan(found), inf, found)
    return float(found[0, 0]), found[1:].max(axis=1)


def _block(laws: FloatArray, size: int, rate: float, ways: IntArray, *, rest: bool) -> FloatArray:
    """What is known of a block of others, at multiples of a rate from zero on."""

    def kernel(first: int) -> FloatArray:
        found = np.zeros((len(ways) + 1, 3))
        if others_scores(first, laws, size, rate, ways, rest, found) == inf:
            found[:] = inf
        return found

    found = _everywhere(kernel, len(laws))
    with np.errstate(over="ignore"):
        curves = np.expm1(found[1:, :2]) / (ways[:, 0] * rate)[:, None] ** 2
    return np.column_stack([found, np.vstack([np.full(2, found[0, 0] / 2), curves])]) * SLACK


def _ways(most: float) -> IntArray:
    """Multiples of the least rate, each the sum of two before: coarse at first, then fine, up to the most."""
    found = [(1, 0, 0)]
    while found[-1][0] < most:
        last = found[-1][0]
        wanted = last * (0.34 if last < 1.4 / START else FINE - 1)
        k = max((k for k, one in enumerate(found) if one[0] <= max(wanted, 1)), default=0)
        found.append((last + found[k][0], len(found) - 1, k))
    return np.array(found, dtype=np.int64)


def _everywhere(kernel: Callable[[int], FloatArray], starts: int) -> FloatArray:
    """The largest of what is found, whoever of a block is lowest."""
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        return np.asarray(np.max(list(pool.map(kernel, range(starts))), axis=0))


def _cells(laws: FloatArray, widths: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How the law changes in each cell, per clip, and from where the steps up are made of which this consists."""
    changes = np.diff(laws, axis=0) / widths[:, None]
    below, above = -np.cumsum(changes, axis=1), np.cumsum(changes[:, ::-1], axis=1)[:, ::-1]
    above = np.append(above[:, 1:], np.zeros((len(above), 1)), axis=1)
    middle = np.argmax(np.cumsum(abs(changes), axis=1) > abs(changes).sum(axis=1)[:, None] / 2, axis=1)
    steps = np.where(np.arange(laws.shape[1]) < middle[:, None], below, above)
    steps[:, -1] = 0.0
    return changes, steps


def _layout(laws: FloatArray, others: int) -> _Layout:
    """Blocks for so many others, such that they tell least; who fills no block is left out."""
    knots, width = laws.shape
    deepest = int(log(DEEPEST) / log(laws[laws > 0].min())) - 1
    own = _largest(knots, width, OWN_WORK, deepest - 1)
    if others <= own:
        return _Layout(others, 0, 0)
    best, most = _Layout(own, 0, 0), float(own + 1)
    for size in range(LEAST, _largest(knots, width, WORK, deepest) + 1):
        for beside in range(own + 1):
            blocks = (others - beside) // size
            # A block tells more than its share of a long sum. And one's own tells where a step is made elsewhere.
            noise = beside + 1 + blocks * size / (1 + BLOCKS_TELL / size) / (1 + OWN_TELLS / (beside + 1))
            if blocks and noise > most:
                best, most = _Layout(beside, size, blocks), noise
    return best


def _largest(knots: int, width: int, work: float, deepest: int) -> int:
    size = 0
    while size < deepest and comb(size + knots, knots - 1) * (size + 1) * width <= work:
        size += 1
    return size


def _information(laws: FloatArray, size: int) -> float:
    """What a step of such a block tells, if all of it stand at one knot."""
    worst = 0.0
    for row in laws:
        law = row
        for _ in range(size - 1):
            law = np.convolve(law, row)
        seen = law[1:] > 0
        worst = max(worst, float(((law[:-1] - law[1:])[seen] ** 2 / law[1:][seen]).sum() + law[0]))
    return worst


def coordinate_rdp(laws: Laws, others: int, orders: Sequence[float]) -> FloatArray:
    """Certified D_α of one coordinate, moved anywhere in the clip; infinite where nothing is known.

    >>> from rqm import RQM
    >>> coordinate_rdp(laws_of(RQM(), "paper"), 299, [2.0]).round(4).tolist()
    [0.0747]
    """
    if not laws.fit:
        return np.full(len(orders), inf)
    places = [np.linspace(order - 1, order, NODES) for order in orders]
    rates = sorted({float(y) for one in places for y in one if y > 0})
    squares, values = cumulants(laws, others, tuple(laws.far * y for y in rates))
    known = dict(zip(rates, values.tolist(), strict=True))
    found = []
    for order, one in zip(orders, places, strict=True):
        total = 0.0
        for y0, y1 in pairwise(one.tolist()):
            if y0 > 0:  # K is below the chord
                b = (known[y1] - known[y0]) / (y1 - y0)
                total += (known[y0] - b * y0) * (1 / y0 - 1 / y1) + b * log(y1 / y0)
            else:
                total += y1 * max(squares * laws.far**2 / 2, float(np.expm1(known[y1])) / y1**2)
        found.append(order * total * SLACK)
    return np.asarray(np.nan_to_num(np.array(found), nan=inf))


def vector_budget(
    laws: Laws, others: int, orders: Sequence[float], *, dim: int, squared: float, furthest: float
) -> FloatArray:
    """Certified D_α of ``dim`` coordinates, two vectors of which are so far apart, in clips; infinite if none is known.

    ``furthest`` apart are they in one coordinate.
    """
    furthest, squared = min(furthest, laws.far, sqrt(squared)), min(squared, dim * furthest**2)
    if not laws.fit:
        return np.full(len(orders), inf)
    rates, curves = _curves(laws, others, furthest * max(orders))
    found = []
    for order in orders:
        y = np.linspace(order - 1, order, 2 * NODES)[1:]
        at = np.searchsorted(rates, furthest * y * (1 - 1e-12))  # the next rate's bound holds for all below
        found.append(order * squared * float(np.append(curves, inf)[at].mean()) * SLACK)
    return np.array(found)


@lru_cache(maxsize=64)
def _curves(laws: Laws, others: int, most: float) -> tuple[FloatArray, FloatArray]:
    """Rates, and bounds of log E exp(±y S) / y² for all y up to each of them: until they are of no use any more."""
    squares = cumulants(laws, others, (1e-9,))[0]
    if not squares < inf:
        return np.array([most]), np.array([inf])
    wanted = [0.25 / sqrt(squares)]
    while wanted[-1] < most:
        wanted.append(wanted[-1] * STEP)
    rates, curves, before = [0.0], [squares / 2], 0.0
    for first in range(0, len(wanted), AT_ONCE):
        some = wanted[first : first + AT_ONCE]
        for rate, value in zip(some, cumulants(laws, others, tuple(some))[1].tolist(), strict=True):
            if len(rates) == 1:  # (E exp − 1) / y² is convex
                here = float(np.expm1(value)) / rate**2
            else:  # the chord over y² is largest at an end, or in between
                slope = (value - before) / (rate - rates[-1])
                level = before - slope * rates[-1]
                at = min(max(-2 * level / slope, rates[-1]), rate)
                here = max((level + slope * y) / y**2 for y in (rates[-1], rate, at))
            rates.append(rate)
            curves.append(max(curves[-1], here))
            before = value
        if not curves[-1] < USELESS * squares:
            break
    return np.array(rates), np.nan_to_num(np.array(curves), nan=inf)
