"""What a certificate by blocks says, counted out by hand: every spread of the others, and every choice of knots."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
import pytest
from scipy.optimize import linprog

from rqm import RQM
from rqm.privacy import inner
from rqm.privacy.blocks import block_of, thirds
from rqm.privacy.certificate import Asked, certify
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences
from rqm.privacy.measures import Renyi
from rqm.privacy.tiers import Tier

EVEN = RQM(levels=6, margin=0.6, keep=0.45)
ODD = RQM(levels=7, margin=0.6, keep=0.45)
LEANING = RQM(levels=6, margin=0.3, keep=(0.8, 0.6, 0.4, 0.2))


BACK = RQM(levels=6, margin=0.3, keep=(0.2, 0.4, 0.6, 0.8))


def law_of(group):
    return np.trim_zeros(np.exp(group.shape.log_law(group.shape.mantissa.size)))


def plain_sum(laws):
    total = np.ones(1, dtype=np.longdouble)
    for law in laws:
        total = np.convolve(total, law)
    return total


def most(own, base, alpha):
    """The largest exp((α−1) D_α) of a pair, in long doubles."""
    log = np.log(np.array([np.convolve(law, base) for law in own]))
    found = np.exp((alpha - 1) * (log[:, None] - log[None]) + log[:, None]).sum(axis=-1)
    return float((found * (1 - np.eye(len(own)))).max())


def counted_out(logs, tier, count, alpha):
    """The largest mean over all spreads of the others between three groups: none is left out by an image of it."""
    own, parts, size = np.exp(logs).astype(np.longdouble), thirds(logs, tier.size), tier.size
    groups = {(k, few): block_of(part, few) for k, part in enumerate(parts) for few in range(1, size + 1)}
    shapes = {key: law_of(group).astype(np.longdouble) for key, group in groups.items()}
    full, known, best = tier.block * size, {}, 0.0

    def value(added, rest):
        if (added, rest) not in known:
            some = [shapes[k, size] for k in range(3) for _ in range(tier.block * added[k])]
            known[added, rest] = most(own, plain_sum([*some, *(shapes[one] for one in rest)]), alpha)
        return known[added, rest]

    def chances(k, blocks):
        weight, many = groups[k, size].weight, tier.block * blocks
        chance = [comb(many, c) * weight**c * (1 - weight) ** (many - c) for c in range(many + 1)]
        return [sum(chance[c * tier.block : (c + 1) * tier.block]) for c in range(blocks + 1)]

    spreads = {(a, b, count - a - b) for a in range(count + 1) for b in range(count + 1 - a)}
    for blocks, left in {(tuple(n // full for n in one), tuple(n % full for n in one)) for one in spreads}:
        rests = [(k, one) for k, one in enumerate(left) if one] if tier.rest else []
        thin = [chances(k, blocks[k]) for k in range(3)]
        mean = 0.0
        for added in product(*(range(n + 1) for n in blocks)):
            for there in product((True, False), repeat=len(rests)):
                chance = np.prod([thin[k][c] for k, c in enumerate(added)])
                for one, yes in zip(rests, there, strict=True):
                    chance *= groups[one].weight if yes else 1 - groups[one].weight
                if chance > 0:
                    mean += chance * value(added, tuple(one for one, yes in zip(rests, there, strict=True) if yes))
        best = max(best, mean)
    return float(np.log(best) / (alpha - 1))


def asked_of(logs, tier, count):
    laws = [Sum.of(row) for row in logs]
    return Asked(tier, logs, laws, logs, count, all_pairs(len(logs)))


def alone_of(asked, alpha):
    return float(pair_divergences(Sum.nothing(), asked.laws, asked.pairs, np.array([alpha])).max())


@pytest.mark.parametrize("mech", [EVEN, ODD, LEANING, BACK], ids=["even", "odd", "leaning", "back"])
@pytest.mark.parametrize(
    ("size", "block", "rest", "count"),
    [(2, 1, True, 5), (2, 1, True, 6), (3, 1, True, 7), (2, 1, False, 8), (2, 1, False, 9), (2, 2, False, 17)],
)
def test_blocks_of_both_ends_and_the_middle_are_spread_in_every_way(mech, size, block, rest, count):
    """Residues, blocks in all and those of the lower end: what is certified is the largest mean, no less, no more."""
    logs, tier = mech.knot_laws(), Tier(3, block, count, size, rest=rest, ends=True)
    asked = asked_of(logs, tier, count)
    for alpha in (2.0, 24.0):
        found = asked.worst(Renyi(asked.laws, asked.pairs, alpha, alone_of(asked, alpha)), 0.0)
        assert found == pytest.approx(counted_out(logs, tier, count, alpha), rel=1e-7)


@pytest.mark.parametrize("mech", [EVEN, ODD, LEANING, BACK], ids=["even", "odd", "leaning", "back"])
@pytest.mark.parametrize(
    ("size", "block", "rest"), [(2, 1, True), (3, 1, True), (2, 1, False), (3, 1, False), (2, 2, False)]
)
def test_every_spread_of_the_others_or_its_image_is_looked_at(mech, size, block, rest):
    """Also where the worst is elsewhere: of a spread, blocks may be left out until it is one that is looked at."""
    logs, full = mech.knot_laws(), size * block
    images = np.array_equal(logs[::-1, ::-1], logs)
    parts = thirds(logs, size)
    for count in (*range(3 * full, 3 * full + 9), 25, 26):
        ways = [
            one
            for ways in asked_of(logs, Tier(3, block, count, size, rest=rest, ends=True), count).ways
            for one in ways
        ]
        said = [
            ([(group.weight, group.spread) for group in groups[len(groups) - ones :]], far, steps, first)
            for groups, far, steps, first, ones in ways
        ]

        def seen(spread, said=said):
            blocks = [n // full for n in spread]
            left = [block_of(part, n % full) for part, n in zip(parts, spread, strict=True) if n % full and rest]
            smaller = [(group.weight, group.spread) for group in left]
            return any(
                smaller == others and (min(blocks[0], first) if far else blocks[0]) + blocks[1] + blocks[2] >= steps
                for others, far, steps, first in said
            )

        for low in range(count + 1):
            for high in range(count + 1 - low):
                spread = low, count - low - high, high
                assert seen(spread) or (images and seen(spread[::-1])), (count, spread)


@pytest.mark.parametrize("mech", [EVEN, ODD, LEANING, RQM(levels=8, margin=0.25, keep=0.3)], ids=repr)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_choice_of_knots_of_either_side_adds_the_shape(mech, size):
    """Of both halves and of all thirds; a weight of so much more would be found out."""
    logs = mech.knot_laws()
    middle = len(logs) // 2
    for part in (logs[:middle], logs[middle:], *thirds(logs, size)):
        group = block_of(part, size)
        shape, rooms = law_of(group), []
        for choice in combinations_with_replacement(np.exp(part), size):
            total = plain_sum(choice).astype(np.float64)
            places = len(total) - len(shape) + 1
            rows = np.array([np.pad(shape, (k, places - 1 - k)) for k in range(places)]).T
            rooms.append(-linprog(-np.ones(places), A_ub=rows / total[:, None], b_ub=np.ones(len(total))).fun)
        assert min(rooms) / 1.02 < group.weight <= min(rooms) + 1e-6


@pytest.mark.parametrize("size", [2, 3])
def test_no_pair_is_ruled_out_that_leaks_more_than_is_attained(size):
    """A first look at pairs: each in turn, where a little less is attained than it leaks beside some of the others."""
    logs, count, alpha = RQM(levels=8, margin=2.0, keep=0.57).knot_laws(), 5, 2.0
    asked = asked_of(logs, Tier(3, 1, count, size, ends=True), count)
    own = np.exp(logs).astype(np.longdouble)
    worst = np.zeros((len(own), len(own)))
    for choice in combinations_with_replacement(own, count):
        log = np.log(np.array([np.convolve(law, plain_sum(choice)) for law in own]))
        worst = np.maximum(worst, np.log(np.exp(2 * log[:, None] - log[None]).sum(axis=-1)).astype(np.float64))
    orders, alone = np.array([alpha]), np.array([alone_of(asked, alpha)])
    for place, (i, j) in enumerate(asked.pairs.tolist()):
        assert asked._wanted(orders, alone, np.array([worst[i, j] * (1 - 1e-9)]))[place, 0], (i, j)


def test_laws_with_holes_are_not_ruled_out():
    """One client leaks everything, a sum does not: what nobody can say by a quick look stays in."""
    rng = np.random.default_rng(0)
    laws = rng.uniform(0.05, 1, (5, 7))
    laws[[1, 3], 3] = 0.0
    laws /= laws.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        logs = np.log(laws)
    for count, alpha in product((1, 2), (1.5, 8.0)):
        worst = 0.0
        for choice in combinations_with_replacement(laws.astype(np.longdouble), count):
            sums = np.array([np.convolve(law, plain_sum(choice)) for law in laws])
            with np.errstate(divide="ignore", invalid="ignore"):
                both = np.where(sums[:, None] > 0, sums[:, None] ** alpha * sums[None] ** (1 - alpha), 0.0)
            worst = max(worst, float(np.log((both.sum(axis=-1) * (1 - np.eye(5))).max()) / (alpha - 1)))
        assert certify(logs, logs, count, [alpha], [0.0])[0] >= worst * (1 - 1e-9)


def test_threads_that_ask_at_once_are_told_the_same():
    """Sums of shapes are kept from one question to the next: nobody may see them half made."""
    for margin in (0.4, 0.41, 0.42):
        mech, epsilons = RQM(levels=8, margin=margin, keep=0.42), [0.05, 0.1, 0.2, 0.3]
        inner._ways.cache_clear()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(partial(inner.coordinate_delta, mech, honest=40, law="paper"), epsilons))
        inner._ways.cache_clear()
        assert found == pytest.approx([inner.coordinate_delta(mech, one, 40, "paper") for one in epsilons], rel=1e-9)
