"""What blocks of clients have in common is in every one of them, and no more would be."""

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from scipy.optimize import linprog

from rqm import RQM, renyi
from rqm.privacy.blocks import block_of
from rqm.privacy.certificate import Asked
from rqm.privacy.counts import pair_bounds
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences
from rqm.privacy.measures import Renyi
from rqm.privacy.tiers import Tier

MECH = RQM(levels=8, margin=0.8, keep=0.4)


def room(law, shape):
    """The most of a law of its own that with the shape is below ``law``."""
    places = len(law) - len(shape) + 1
    rows = np.array([np.concatenate([np.zeros(k), shape, np.zeros(places - 1 - k)]) for k in range(places)]).T
    return -linprog(-np.ones(places), A_ub=rows, b_ub=law).fun


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_choice_of_knots_adds_the_shape(size):
    logs = MECH.knot_laws()[len(MECH.knots) // 2 :]
    group = block_of(logs, size)
    shape = np.exp(group.shape.log_law(group.shape.mantissa.size))
    shape = np.trim_zeros(shape)
    found = []
    for choice in combinations_with_replacement(np.exp(logs), size):
        total = np.ones(1)
        for law in choice:
            total = np.convolve(total, law)
        found.append(room(total, shape))
    assert 0.5 < group.weight <= min(found) + 1e-6
    assert group.weight * 1.01 > min(found)  # a shape that is not there would be found out


def test_more_clients_together_have_more_in_common():
    logs = RQM().knot_laws()[5:]
    least = min(float(RQM().variance(x)) for x in RQM().knots) / RQM().grid.step ** 2
    parts = [group.weight * group.spread / (size * least) for size in (1, 2, 3) for group in [block_of(logs, size)]]
    assert parts == sorted(parts)
    assert parts[0] < 0.8
    assert parts[2] > 0.93


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("alpha", [1.5, 8.0])
def test_no_spread_of_the_others_is_above_the_bound(alpha, size):
    """Blocks, and smaller ones of those who are left, where every way to spread the others can still be tried."""
    logs, count, orders = MECH.knot_laws(), 7, np.array([alpha])
    laws, pairs = [Sum.of(row) for row in logs], all_pairs(len(logs))
    worst = 0.0
    for choice in combinations_with_replacement(range(0, len(logs), 2), count):
        base = Sum.nothing()
        for knot in choice:
            base = base + laws[knot]
        worst = max(worst, float(pair_divergences(base, laws, pairs, orders).max()))
    alone = float(pair_divergences(Sum.nothing(), laws, pairs, orders).max())
    asked = Asked(Tier(2, 1, count, size), logs, laws, logs, count, pairs)
    measure = Renyi(laws, pairs, alpha, alone)
    found = asked.worst(measure, 0.0)
    assert worst <= found * (1 + 1e-9) <= 1.6 * worst
    assert asked.worst(measure, 0.0, limit=1.01 * found) == found
    assert asked.worst(measure, 0.0, limit=0.99 * found) in (found, np.inf)


@pytest.mark.parametrize("levels", [5, 6])
def test_every_number_of_clients_on_either_side_of_the_middle_is_looked_at(levels):
    """Of an odd number of knots the middle one is in one half: the other half's image is not that half."""
    logs = RQM(levels=levels, margin=0.4, keep=0.42).knot_laws()
    laws, pairs, alpha = [Sum.of(row) for row in logs], all_pairs(len(logs)), np.array([32.0])
    alone = pair_divergences(Sum.nothing(), laws, pairs, alpha).max(axis=0)
    for count, size in ((3, 2), (20, 3)):
        asked = Asked(Tier(2, 1, count, size), logs, laws, logs, count, pairs)
        known = {"laws": laws, "pairs": pairs, "orders": alpha, "alone": alone, "log_tail": -np.inf, "block": 1}
        every = [pair_bounds(groups, steps, ones, **known).max() for groups, _, steps, _, ones in asked.each_way()]
        found = asked.worst(Renyi(laws, pairs, 32.0, float(alone[0])), 0.0)
        assert found >= max(every) * (1 - 1e-9)


def test_those_who_are_left_of_blocks_count():
    """One client more or less never makes much of a difference, whether or not blocks are full."""
    mech = RQM(margin=2.0, keep=0.57)
    logs = mech.knot_laws()
    laws, pairs = [Sum.of(row) for row in logs], all_pairs(len(logs))
    alone = float(pair_divergences(Sum.nothing(), laws, pairs, np.array([2.0])).max())
    found = [
        Asked(Tier(2, 1, count, 4), logs, laws, logs, count, pairs).worst(Renyi(laws, pairs, 2.0, alone), 0.0)
        for count in range(20, 29)
    ]
    assert all(1.02 < one / more < 1.06 for one, more in pairwise(found))


@pytest.mark.parametrize("clients", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_clients_are_certified_near_what_is_attained(clients):
    for bound in renyi(RQM(margin=2.0, keep=0.57), [2, 16], clients):
        assert bound.lower <= bound.upper <= 1.03 * bound.lower
