"""Scores of blocks of clients, with levels inside the clip: against enumerations, in fractions where it counts."""

from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement
from math import inf, log

import numpy as np
import pytest

from rqm import RQM, Rounding
from rqm.privacy import inside
from rqm.privacy.blocks import EDGE
from rqm.privacy.divergence import renyi_divergence
from rqm.privacy.event import Event
from rqm.privacy.inside import Laws, coordinate_rdp, cumulants, laws_of, vector_budget
from rqm.privacy.vector import vector_rdp
from rqm.privacy.worst_case import attained

SOME = [
    RQM(margin=1.0, levels=4, keep=0.3),
    RQM(margin=0.7, levels=5, keep=(0.2, 0.5, 0.4)),
    RQM(margin=2.0, levels=6, keep=0.5),
]


def summed(rows):
    return reduce(np.convolve, rows, np.ones(1))


def scores_of(law):
    """What it changes by, relatively, when all but its last outcome move up by one."""
    kept = np.append(law[:-1], 0.0)
    return (np.append(0.0, kept[:-1]) - kept) / law


def own_law(laws, u):
    """The law of an input u, and how it changes there."""
    knots, rows = np.array(laws.knots), np.array(laws.rows)
    cell = min(int(np.searchsorted(knots, u, side="right")) - 1, len(knots) - 2)
    part = (u - knots[cell]) / (knots[cell + 1] - knots[cell])
    change = (rows[cell + 1] - rows[cell]) / (knots[cell + 1] - knots[cell])
    return (1 - part) * rows[cell] + part * rows[cell + 1], change


def true_scores(laws, u, others):
    """The law of the sum, and its score, with the own input u beside others at these knots."""
    base = summed([np.array(laws.rows)[v] for v in others])
    law, change = own_law(laws, u)
    total = np.convolve(law, base)
    return total, np.convolve(change, base) / total


def random_mechanism(rng):
    levels = int(rng.integers(3, 7))
    keep = tuple(rng.uniform(0.05, 0.9, levels - 2))
    return RQM(margin=float(rng.uniform(0.1, 3)), levels=levels, keep=keep)


def broken(laws, others, rates, rng, tries, by=1.0):
    """Whether some inputs have a larger log E exp(±y S) than is certified, if that is divided by so much."""
    bounds = cumulants(laws, others, rates)[1] / by
    for _ in range(tries):
        at = rng.integers(0, len(laws.rows), others) if rng.random() < 0.5 else [rng.integers(len(laws.rows))] * others
        ends = rng.random() < 0.5
        u = laws.knots[rng.integers(len(laws.knots))] if ends else rng.uniform(laws.knots[0], laws.knots[-1])
        law, score = true_scores(laws, float(u), at)
        for rate, bound in zip(rates, bounds, strict=True):
            if max(np.log(law @ np.exp(sign * rate * score)) for sign in (1, -1)) > bound:
                return True
    return False


@pytest.mark.parametrize("mech", SOME, ids=repr)
def test_a_change_of_the_sum_is_made_of_steps_of_the_others(mech):
    """The identity behind it all, in fractions: own part, steps elsewhere, the change where a block is at its end."""
    rows = [[Fraction(p) for p in row] for row in laws_of(mech, "paper").rows]
    rng = np.random.default_rng(3)

    def added(*laws):
        total = [Fraction(1)]
        for law in laws:
            total = [
                sum(total[i] * law[z - i] for i in range(len(total)) if 0 <= z - i < len(law))
                for z in range(len(total) + len(law) - 1)
            ]
        return total

    for _ in range(5):
        cell = int(rng.integers(len(rows) - 1))
        change = [b - a for a, b in zip(rows[cell], rows[cell + 1], strict=True)]
        blocks = [added(*(rows[v] for v in rng.integers(0, len(rows), 3))) for _ in range(2)]
        share = Fraction(1, 3)
        change = [one - Fraction(sum(change), len(change)) for one in change]  # what floats leave of its sum
        steps = [-sum(change[: z + 1]) for z in range(len(change))]
        made = [(1 - 2 * share) * one for one in added(change, *blocks)]
        for k, block in enumerate(blocks):
            kept = [*block[:-1], Fraction(0)]
            moved = [(kept[z - 1] if z else 0) - kept[z] for z in range(len(block))]
            last = [Fraction(0)] * (len(block) - 1) + [block[-1]]
            for part in (added(steps, moved, blocks[1 - k]), added(change, last, blocks[1 - k])):
                made = [a + share * b for a, b in zip(made, part, strict=True)]
        assert made == added(change, *blocks)


@pytest.mark.parametrize("mech", SOME, ids=repr)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_blocks_of_others_are_what_all_ways_give(mech, size):
    """Every multiset of knots, by plain sums: neither more nor less."""
    laws = np.array(laws_of(mech, "paper").rows)
    ways = inside._ways(400)
    for rest in (False, True):
        rate = 0.05
        found = inside._block(laws, size, rate, ways, rest=rest)
        expected = np.zeros((len(ways) + 1, 2))
        last = 0.0
        for at in combinations_with_replacement(range(len(laws)), size):
            law = summed(laws[list(at)])
            low, top = law[0], law[-1]
            if not (low > EDGE and low >= top if rest else top <= EDGE or top <= low * (1 + 1e-9)):
                continue
            score = scores_of(law)
            last = max(last, top)
            expected[0] = np.maximum(expected[0], law @ score**2)
            for k, (times, _, _) in enumerate(ways.tolist()):
                for sign, s in enumerate((score, -score)):
                    peak = s.max()
                    value = times * rate * peak + log(law @ np.exp(times * rate * (s - peak)))
                    expected[k + 1, sign] = max(expected[k + 1, sign], value)
        assert found[1:, :2] == pytest.approx(expected[1:], rel=1e-8, abs=1e-12)
        assert found[0, 0] == pytest.approx(expected[0, 0], rel=1e-8)
        assert found[0, 2] == pytest.approx(last, rel=1e-8)
        assert (found[1:, :2] >= expected[1:] * (1 - 1e-13)).all()


def test_nobody_has_a_larger_score_and_two_per_cent_less_would_be_broken():
    """Thousands of random inputs of random mechanisms, with others in one's own block only, and in blocks besides."""
    rng, caught, cases = np.random.default_rng(8), 0, 0
    rates = (0.1, 1.0, 3.0, 8.0)
    for turn in range(30):
        laws = laws_of(random_mechanism(rng), "paper")
        others = int(rng.integers(0, 30)) if turn % 3 else int(rng.integers(0, 3))
        assert not broken(laws, others, rates, rng, 40)
        cases += 40
        if turn % 3 == 0:
            caught += broken(laws, others, rates, rng, 200, by=1.02)
    assert cases >= 1000
    assert caught >= 8


@pytest.fixture
def small_blocks(monkeypatch):
    """So little work that few others fill several blocks."""
    monkeypatch.setattr(inside, "OWN_WORK", 400)
    monkeypatch.setattr(inside, "WORK", 6000)
    cumulants.cache_clear()
    yield
    cumulants.cache_clear()


def attack(seed, mechanisms, tries):
    rng, rates = np.random.default_rng(seed), (0.05, 0.3, 1.0, 3.0)
    blocks = 0
    for _ in range(mechanisms):
        laws = laws_of(random_mechanism(rng), "paper")
        others = int(rng.integers(4, 40))
        blocks += inside._layout(np.array(laws.rows), others).blocks > 1
        assert not broken(laws, others, rates, rng, tries)
    return blocks


@pytest.mark.usefixtures("small_blocks")
def test_nobody_has_a_larger_score_where_steps_are_made_by_several_blocks():
    assert attack(9, 25, 20) > 10


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_nobody_has_a_larger_score_at_length():
    assert attack(10, 400, 30) > 150


@pytest.mark.parametrize("mech", SOME, ids=repr)
def test_the_integral_bounds_every_order(mech):
    """D_α ≤ α ∫ K(y)/y² dy by scores that are known exactly; for a Gaussian both are the same."""
    laws = laws_of(mech, "paper")
    for others in (0, 1, 3):
        at = [len(laws.rows) - 1] * others
        scores = [true_scores(laws, float(u), at) for u in np.linspace(-1, 1, 201)]
        scores += [true_scores(laws, float(u) - 1e-12, at) for u in laws.knots[1:]]
        ends = [np.log(true_scores(laws, u, at)[0]) for u in (1.0, -1.0)]
        for order in (1.2, 2.0, 5.0, 20.0):
            y = np.linspace(order - 1, order, 200)
            for sign, (p, q) in ((1, ends), (-1, ends[::-1])):
                sup = np.max([np.log(np.exp(2 * y[:, None] * sign * s) @ law) for law, s in scores], axis=0)
                assert renyi_divergence(p, q, [order])[0] <= order * np.trapezoid(sup / y**2, y) * 1.001


@pytest.mark.parametrize("clients", [2, 5, 40])
def test_what_is_attained_is_below_what_is_certified(clients):
    for mech in SOME:
        orders = (1.5, 2.0, 4.0, 16.0)
        bound = coordinate_rdp(laws_of(mech, "paper"), clients - 1, orders)
        assert (bound >= attained(mech, orders, clients)).all()


def released(mech, x, others):
    """The law of a whole release, all coordinates of all clients, as one long array."""
    laws = laws_of(mech, "paper")
    parts = [true_scores(laws, u, at)[0] for u, at in zip(x, others, strict=True)]
    return reduce(np.multiply.outer, parts).ravel()


def test_vectors_under_a_budget_are_below_the_bound():
    """Releases of up to three coordinates, enumerated; the bound is d times the worst coordinate's without a budget."""
    rng, closest = np.random.default_rng(4), 0.0
    for mech in SOME:
        laws = laws_of(mech, "paper")
        for others, dim, radius in ((0, 3, 1.0), (1, 3, 1.2), (2, 2, 0.8), (5, 2, 1.0)):
            for _ in range(30):
                vectors = rng.normal(size=(2, dim))
                vectors = np.clip(vectors * radius / np.linalg.norm(vectors, axis=1, keepdims=True), -1, 1)
                if rng.random() < 0.3:
                    vectors[1] = -vectors[0]
                at = rng.integers(0, len(laws.rows), (dim, others))
                p, q = (np.log(released(mech, x, at)) for x in vectors)
                squared = float(((vectors[0] - vectors[1]) ** 2).sum())
                if squared < 1e-6:
                    continue
                bound = vector_budget(laws, others, [1.5, 3.0], dim=dim, squared=squared, furthest=2.0)
                found = renyi_divergence(p, q, [1.5, 3.0])
                assert (found <= bound).all()
                closest = max(closest, float((found / bound).max()))
    assert closest > 0.5


def test_a_budget_counts_with_levels_inside_the_clip():
    """A thousand coordinates cost hardly more than a Gaussian of the least variance, not sixteen times as much."""
    mech = RQM(clip=4 / 32, margin=6.0, levels=16, keep=0.42)
    assert len(mech.knots) == 4
    found = vector_rdp(mech, [2.0, 8.0], honest=1000, dim=1024, l2_clip=1.0, law="sampled")
    least = float(mech.variance(mech.knots).min())
    assert found == pytest.approx(np.array([2.0, 8.0]) * 4 / (2 * 1000 * least), rel=0.08)
    assert not Event(mech, 1024, 1.0).dear
    assert Event(mech, 1, 1.0).dear


def test_where_nothing_is_known_nothing_is_claimed():
    many = Laws(tuple(((1 / 60,) * 60) for _ in range(60)), tuple(np.linspace(-1, 1, 60).tolist()))
    assert coordinate_rdp(many, 5, [2.0]).tolist() == [inf]
    plain = Rounding(levels=8, margin=0.1)
    assert plain.exposed
    assert vector_rdp(plain, [2.0], honest=5, dim=64, l2_clip=1.0)[0] == inf


def test_positions_of_the_sampled_law_lie_where_it_is_drawn():
    laws, paper = (laws_of(RQM(), law) for law in ("sampled", "paper"))
    assert laws.knots == pytest.approx(paper.knots, abs=1e-6)
    assert laws.knots[0] == -1.0
    assert laws.knots[-1] == 1.0
    assert sum(laws.rows[0]) == pytest.approx(1)
