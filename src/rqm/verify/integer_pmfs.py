"""Probability mass functions of messages and of their sums, rebuilt from the mechanisms' definitions.

Probabilities are rounded to integers by the rule of docs/proofs/integer-tables.md#assumption-1, as they are
sampled. A pmf is an array. A sum of independent messages lacks the farthest tails; callers charge
their probability to δ.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil, expm1, inf, lgamma, log1p

import numpy as np
import numpy.typing as npt
from scipy.special import ive

from .verification_report import Row, Unverifiable

Array = npt.NDArray[np.float64]

TABLE_TOTAL = 2**40
"""The probabilities of one input are integers that add up to this."""
TAIL = 1e-40
"""Probability that may be cut off at each end of a long sum."""
LONG = 512
"""Outcomes from which on the tails of a sum are cut off."""


def end_pmfs(mechanism: Row) -> tuple[Array, Array, int]:
    """The pmfs of one coordinate's message at both ends of the clip.

    Args:
        mechanism: The parameters of a mechanism that is affine on the clip.

    Returns:
        The pmfs at −c and at c of one trial, and how many independent trials a message consists of.

    Raises:
        Unverifiable: If a level lies inside the clip, or the pmfs hardly depend on the input.
    """
    if mechanism["mechanism"] == "vqsgd":
        return *mechanism["pmfs"], 1
    if mechanism["mechanism"] == "pbm":
        slope = min(1.0, 2 * mechanism["theta"] * (1 + 1e-12))
        rows = np.eye(2)
        trials = mechanism["levels"] - 1
    else:
        levels = mechanism["levels"]
        output_range = 1 + Fraction(mechanism["margin"])
        trials = 1
        if levels % 2 or output_range < levels - 1:
            raise Unverifiable(f"levels = {levels}, margin = {mechanism['margin']}: a level lies inside the clip")
        slope = float((levels - 1) / output_range)
        middle = levels // 2
        rows = np.eye(2)
        if mechanism["mechanism"] == "rqm":
            rows = np.array([rqm_row(mechanism, level) for level in (middle - 1, middle)])
    if slope < 2**-14:  # encoders have 1,024 positions within the clip
        raise Unverifiable("the outer levels lie so far out that no encoder supports them")
    upper = (1 + slope) / 2
    lower = (1 - slope) / 2
    return upper * rows[0] + lower * rows[1], lower * rows[0] + upper * rows[1], trials


def rqm_row(mechanism: Row, level: int) -> Array:
    """The pmf of RQM for an input at a level: the level itself if it is kept, else its kept neighbors."""
    levels = mechanism["levels"]
    keep = np.concatenate([[1.0], np.broadcast_to(np.array(mechanism["keep"], dtype=float), levels - 2), [1.0]])
    below = np.array([keep[i] * np.prod(1 - keep[i + 1 : level]) for i in range(level)])
    above = np.array([keep[k] * np.prod(1 - keep[level + 1 : k]) for k in range(level + 1, levels)])
    i = np.arange(level)[:, None]
    k = np.arange(level + 1, levels)[None]
    joint = (1 - keep[level]) * below[:, None] * above[None] / (k - i)
    row = np.concatenate([(joint * (k - level)).sum(axis=1), [keep[level]], (joint * (level - i)).sum(axis=0)])
    return np.asarray(_as_integers(row, level) / TABLE_TOTAL)


def _as_integers(row: Array, mean: int) -> npt.NDArray[np.int64]:
    """A pmf in integers: possible outcomes have at least 1; total and mean are corrected at the largest."""
    is_inner = 0 < mean < len(row) - 1  # then all outcomes are possible
    units = np.maximum(int(is_inner), np.rint(row * TABLE_TOTAL)).astype(np.int64)
    levels = np.arange(len(row))
    giver = int(units.argmax())
    units[giver] += TABLE_TOTAL - units.sum()
    shift = mean * TABLE_TOTAL - int(levels @ units)
    sign = 1 if shift > 0 else -1
    if not 0 <= giver + sign < len(units):
        giver = int(np.where(levels == giver, -1, units).argmax())
    taker = int((units * sign * (levels - giver)).argmax())
    transferred, remainder = divmod(abs(shift), abs(taker - giver))
    units[taker] += transferred
    units[giver + sign * remainder] += 1  # between the two, or nothing is moved
    units[giver] -= transferred + 1
    if units.min() < 0:
        raise Unverifiable("a row of the table cannot be rounded to integers")
    return units


# -- sums -----------------------------------------------------------------------------------------


def _convolved(a: Array, b: Array, tail: float = TAIL) -> Array:
    """The pmf of a sum except for its farthest tails. Nothing is subtracted: relative errors stay small."""
    pmf = np.convolve(a, b)
    if len(pmf) < LONG:
        return pmf
    first = np.searchsorted(np.cumsum(pmf), tail)
    last = np.searchsorted(np.cumsum(pmf[::-1]), tail)
    return pmf[first : len(pmf) - last]


def pmf_of_sum(pmf: Array, count: int, tail: float = TAIL) -> Array:
    """The pmf of the sum of independent outcomes.

    Args:
        pmf: The pmf of one of them.
        count: How many are summed.
        tail: Probability that may be cut off at each end of a long sum.

    Returns:
        The pmf, except for its farthest tails.
    """
    if count < 2:
        return pmf if count else np.ones(1)
    half = pmf_of_sum(pmf, count // 2, tail)
    twice = _convolved(half, half, tail)
    return _convolved(twice, pmf, tail) if count % 2 else twice


def missing_from_sum(count: int, tail: float) -> float:
    """More than the probability that all sums of this number of outcomes lack."""
    return 8 * (count + LONG) * tail


def _growing_sums(pmf: Array, counts: list[int]) -> list[Array]:
    """The pmfs of sums of outcomes, for increasing counts."""
    power = cache(lambda count: pmf_of_sum(pmf, count))
    sums = [power(counts[0])]
    for count, next_count in pairwise(counts):
        sums.append(_convolved(sums[-1], power(next_count - count)))
    return sums


def other_sums(low: Array, high: Array, others: int) -> Iterator[Array]:
    """Pmfs such that for all inputs of the others at the ends, their sum is one of these and an independent rest.

    In a block at least `start`, and fewer than the next start, of them are at the upper end: a fortieth at most. The
    clients in whom members of a block differ are left out: they only add independent noise.

    See docs/verify.md#lemma-2.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        others: How many other clients there are.

    Yields:
        One pmf for each block.
    """
    starts = [0]
    while starts[-1] <= others:
        start = starts[-1]
        starts.append(start + max(1, min(ceil(others / 40), min(start, others - start) // 4)))
    at_low = reversed(_growing_sums(low, [max(0, others - following + 1) for following in starts[:0:-1]]))
    for upper, lower in zip(_growing_sums(high, starts[:-1]), at_low, strict=True):
        yield np.convolve(upper, lower)


def end_sums(low: Array, high: Array, honest: int) -> Iterator[tuple[Array, Array]]:
    """Pmfs of the sum of all honest clients' messages, for each block of the others.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        honest: Honest clients, the user included.

    Yields:
        The pmfs with the user's input at −c and at c.
    """
    for others in other_sums(low, high, honest - 1):
        yield np.convolve(low, others), np.convolve(high, others)


# -- additive noise -------------------------------------------------------------------------------


def step_std(mechanism: Row) -> float:
    """The standard deviation of one client's additive noise, in steps."""
    return float(mechanism["scale"] * mechanism["steps"] / 2)


def _core_noise(mechanism: Row) -> Array:
    """The pmf of one client's additive noise as it is sampled, without the unit that every outcome has."""
    size = 2 ** mechanism["bits"]
    std = step_std(mechanism)
    t = np.arange(size) - size // 2
    if mechanism["mechanism"] == "discrete-gaussian":
        logs = -(t**2) / (2 * std**2)
    elif mechanism["mechanism"] == "skellam":
        logs = np.log(ive(abs(t), std**2))
    else:
        half = max(1, -(-ceil(4 * std**2 - 1e-9) // 2))  # of an even number of trials
        if half > 10**9:  # factorials lose too many digits
            raise Unverifiable(f"scale = {mechanism['scale']}: the noise does not fit {mechanism['bits']} bits")
        logs = np.array([-lgamma(half + s + 1) - lgamma(half - s + 1) if abs(s) <= half else -inf for s in t.tolist()])
    core = _integer_noise(logs, 1)
    if core is None:
        raise Unverifiable(f"scale = {mechanism['scale']}: the noise does not fit {mechanism['bits']} bits")
    return core


def _integer_noise(logs: Array, floor: int) -> Array | None:
    """A pmf in integers, less some units of every outcome; None if the middle has too little to correct the total."""
    pmf = np.exp(logs - logs.max())
    units = np.maximum(0, np.rint(pmf / pmf.sum() * TABLE_TOTAL) - floor)
    units[0] = 0  # has no mirror image, or no probability
    middle = len(units) // 2
    units[middle] += TABLE_TOTAL - floor * len(units) - units.sum()
    units = np.trim_zeros(units)
    return np.asarray(units / units.sum()) if units.min() >= 0 else None


def modular_noise(mechanism: Row, honest: int) -> Array:
    """The pmf of the honest clients' additive noise modulo 2^bits, as it is sampled.

    Args:
        mechanism: The parameters of a mechanism with additive noise.
        honest: Number of honest clients.

    Returns:
        The pmf.
    """
    size = 2 ** mechanism["bits"]
    total = pmf_of_sum(_core_noise(mechanism), honest)
    folded = np.bincount(np.arange(len(total)) % size, total, size)
    uniform = -expm1(honest * log1p(-size / TABLE_TOTAL))  # if one outcome is uniform, so is the sum
    return np.asarray((1 - uniform) * folded + uniform / size)


def unbounded_noise(mechanism: Row, honest: int) -> tuple[Array, float]:
    """The pmf of the same sum, not modulo 2^bits, if no outcome came from the uniform part.

    Args:
        mechanism: The parameters of a mechanism with additive noise.
        honest: Number of honest clients.

    Returns:
        The pmf, and the probability that it lacks at most.
    """
    return _shifted_sum(_core_noise(mechanism), honest)


def _shifted_sum(pmf: Array, count: int) -> tuple[Array, float]:
    """The pmf of a sum that is shifted later, so that far less is cut off; and the probability that it lacks."""
    tail = 1e-120
    return pmf_of_sum(pmf, count, tail), missing_from_sum(count, tail)


def transient_noise(std: float, clients: int) -> tuple[Array, float]:
    """The pmf of the sum of clients' transient noise, as it is sampled.

    Args:
        std: Standard deviation of one client's noise, in steps.
        clients: Number of clients.

    Returns:
        The pmf, and the probability that it lacks at most.
    """
    if 20 * std * clients**0.5 > 10**5:
        raise Unverifiable(f"noise = {std}, {clients} honest clients: takes this verifier too long")
    farthest = ceil(9 * std)
    t = np.arange(-farthest, farthest + 1)
    pmf = _integer_noise(-(t**2) / (2 * std**2), 0)
    assert pmf is not None
    return _shifted_sum(pmf, clients)
