"""The ways to certify a sum: how the knots are grouped, and the other clients counted."""

from dataclasses import dataclass, replace
from math import comb

from rqm.privacy.blocks import block_sizes, third_size

BUDGET = 130_000
"""Counts of shapes that one certificate may try; more groups are tighter and need more."""
FEW = 24
"""Others from whom on blocks are better than four groups, and much quicker."""
MANY = 8
"""Knots from which on a half is cut in two for blocks."""
SEVERAL, NEAR, NOT_FAR = 48, 1.02, 1.08
"""Others from whom on three groups of blocks take long, and when they are asked, before and after."""
SMALL = 3
"""Clients of a smaller block, of which less is missing where one is: that counts at high orders."""
TOO_MANY = 128
"""Others from whom on those who are left of three groups of blocks would take minutes."""
LONG = 400
"""Others from whom on three groups take long where many numbers are to be averaged."""
WAYS = 128
"""Ways to split many others between two ends that are looked at."""


@dataclass(frozen=True)
class Tier:
    """One way to certify: ``groups`` groups, others counted in blocks of ``block``, for up to ``last`` others.

    Groups have shapes of ``size`` clients together, of which a block has so many. It is asked where the bound is more
    than ``past`` times what is attained. Of the ``rest``, who do not fill a block, smaller blocks are made, or none.
    Three groups of blocks are a half of the knots and two parts of the other, or both ``ends`` and what is between.
    """

    groups: int
    block: int
    last: int
    size: int = 1
    past: float = 1.0
    rest: bool = True
    ends: bool = False


def tiers(knots: int, width: int, others: int) -> list[Tier]:
    """The ways to certify ``others`` clients whose laws have ``width`` outcomes, from exact to coarse; then in blocks.

    The bound of a tier never rises with more clients, and every tier but the first starts where the one before
    ends, so the smallest bound over the tiers never rises either.
    """
    found: list[Tier] = []
    for groups in (knots, *(few for few in (4, 3) if few < knots)):
        tier = _tier(groups, knots, 1, width)
        if not found or tier.last > found[-1].last:
            found.append(tier)
        if tier.last >= others:
            break
    if found[0].last >= others:
        return found[:1]
    if knots == 2:
        return _doubled(knots, width, others, 1)
    return [*found, *fine_tiers(knots, width, others), *block_tiers(knots, width, others)]


def block_tiers(knots: int, width: int, others: int) -> list[Tier]:
    """Those with a group for each half of the knots, whose shapes are those of two clients or more together.

    Large blocks have most in common, and of small ones less is missing where one is: that counts at high orders.
    """
    sizes = block_sizes(-(-knots // 2), others)
    return [tier for size in sizes for tier in _doubled(2, width, others, size, knots)]


def fine_tiers(knots: int, width: int, others: int) -> list[Tier]:
    """Large blocks in three groups, where there are knots and room enough: tightest at low orders.

    Of many others those who are left are few.
    """
    largest = third_size(knots)
    if largest == 1 or knots < MANY:
        return []
    if others < TOO_MANY:
        past = NEAR if others < SEVERAL else NOT_FAR
        sizes = block_sizes(-(-knots // 2), others)[-1], largest
        return [replace(_tier(3, knots, 1, width, size), past=past, ends=k == 1) for k, size in enumerate(sizes)]
    sizes = min(largest, SMALL), largest
    found = [tier for size in dict.fromkeys(sizes) for tier in _doubled(3, width, others, size, knots)]
    return [replace(tier, past=NOT_FAR, rest=False, ends=True) for tier in found]


def measured_tiers(knots: int, width: int, others: int, *, tails: bool) -> list[Tier]:
    """The ways to certify all ``others`` by means over shapes, whatever is averaged: the best is tried first.

    Far out in the ``tails`` more groups are better than blocks, of which one may be missing.
    """
    blocks = [tier for tier in reversed(block_tiers(knots, width, others)) if tier.last >= others]
    finer = [_tier(groups, max(knots, groups + 1), 1, width) for groups in (4, 3) if groups <= knots]
    fitting = [tier for tier in finer if tier.last >= others][:1]
    if tails or others < FEW:
        return [*fitting, *blocks]
    fine = fine_tiers(knots, width, others)[-1:] if TOO_MANY <= others < LONG else []
    return [*blocks[:1], *fine]


def _doubled(groups: int, width: int, others: int, size: int, knots: int = 2) -> list[Tier]:
    """Ways with blocks of one, two, four, … such shapes, until there is room for all."""
    found, block = [_tier(groups, knots, 1, width, size)], 1
    while found[-1].last < others:
        block *= 2
        tier = _tier(groups, knots, block, width, size)
        if tier.last > found[-1].last:
            found.append(tier)
    return found


def _tier(groups: int, knots: int, block: int, width: int, size: int = 1) -> Tier:
    """The way with so many groups, for as many others as there is room for."""
    steps = 1
    while _affordable(groups, knots, block, width, steps + 1):
        steps += 1
    full = block * size
    last = full * steps + (groups * (full - 1) if groups < knots else 0)
    return Tier(groups, block, last, size, rest=block == 1)


def _affordable(groups: int, knots: int, block: int, width: int, steps: int) -> bool:
    if groups == knots and block > 1:
        return steps <= min(WAYS, BUDGET)
    if groups == knots:  # exact: one long convolution a count
        counts = comb(steps + groups - 1, groups - 1)
        return counts <= BUDGET and counts * (steps * width) ** 2 <= 2e11
    return comb(steps + groups, groups) <= (2 * BUDGET if groups > 2 else BUDGET // 16)
