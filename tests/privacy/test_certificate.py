"""The certificate: never below anything that can happen, tight, and never larger with more clients."""

from collections import OrderedDict
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, Rounding, renyi
from rqm.privacy import certificate, worst_case
from rqm.privacy import tiers as ways
from rqm.privacy.certificate import certify
from rqm.privacy.shapes import common_shape, partition
from rqm.privacy.tiers import tiers
from tests.privacy.oracle import quick_divergence

mechanisms = st.builds(
    RQM, levels=st.integers(2, 12), keep=st.floats(0.05, 0.95), margin=st.floats(0.1, 4), clip=st.just(1.0)
)
orders = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 8.0, 32.0, np.inf]), st.floats(1, 60))


def climb(laws, count, alpha, rng, steps=3):
    """An adversary of its own: random starts, then the best single change, over inputs and pair together."""
    knots = len(laws)
    best = -1.0
    for _ in range(steps):
        state = [int(v) for v in rng.integers(0, knots, size=count + 2)]
        value = -1.0
        while True:
            moves = []
            for place in range(len(state)):
                for v in range(knots):
                    moved = state.copy()
                    moved[place] = v
                    if moved[0] != moved[1]:
                        moves.append((quick_divergence(laws, moved[:2], moved[2:], alpha), moved))
            top, move = max(moves)
            if top <= value * (1 + 1e-12):
                break
            value, state = top, move
        best = max(best, value)
    return best


def coarse(monkeypatch, budget=40):
    """Take away the exact search, so that the grouping argument itself is what is tested."""
    monkeypatch.setattr(ways, "BUDGET", budget)
    monkeypatch.setattr(worst_case, "_KEPT", OrderedDict())


@settings(max_examples=40)
@given(mech=mechanisms, clients=st.integers(2, 9), alpha=orders, data=st.data())
def test_upper_holds_for_random_inputs(mech, clients, alpha, data):
    with pytest.MonkeyPatch.context() as patch:
        coarse(patch, data.draw(st.sampled_from([12, 40, 130_000])))
        bound = renyi(mech, alpha, clients)
    for _ in range(5):  # any inputs at all, not only knots
        x = data.draw(st.lists(st.floats(-1, 1), min_size=clients + 1, max_size=clients + 1))
        if x[0] != x[1]:
            value = quick_divergence(mech.pmf(x), (0, 1), range(2, clients + 1), alpha)
            assert value <= bound.upper * (1 + 1e-9) + 1e-12
    assert bound.lower <= bound.upper


def survives_the_adversary(mech, clients, alpha, seed):
    with pytest.MonkeyPatch.context() as patch:
        coarse(patch)
        upper = renyi(mech, alpha, clients).upper
    found = climb(mech.pmf(mech.knots), clients - 1, alpha, np.random.default_rng(seed))
    assert found <= upper * (1 + 1e-9) + 1e-12


seeds = st.integers(0, 2**32)


@settings(max_examples=12)
@given(mech=mechanisms, clients=st.integers(2, 6), alpha=orders, seed=seeds)
def test_upper_holds_against_an_independent_adversary(mech, clients, alpha, seed):
    survives_the_adversary(mech, clients, alpha, seed)


@pytest.mark.slow
@settings(max_examples=400)
@given(mech=mechanisms, clients=st.integers(2, 8), alpha=orders, seed=seeds)
def test_upper_holds_against_an_independent_adversary_full_count(mech, clients, alpha, seed):
    survives_the_adversary(mech, clients, alpha, seed)


def test_the_adversary_breaks_the_papers_accounting():
    """Power: what the paper takes for the worst case does not survive the same adversary."""
    mech = RQM()
    claimed = renyi(mech, 10, 3, "balanced").upper
    found = climb(mech.pmf(mech.knots), 2, 10, np.random.default_rng(0))
    assert found > claimed * 1.001
    assert found <= renyi(mech, 10, 3).upper * (1 + 1e-12)


@settings(max_examples=12)
@given(mech=mechanisms, clients=st.integers(2, 5), alpha=orders)
def test_small_cases_equal_full_enumeration(mech, clients, alpha):
    laws = mech.pmf(mech.knots)
    knots = range(len(laws))
    pairs = [(i, j) for i in knots for j in knots if i != j]
    if len(laws) > 6:
        clients = min(clients, 3)
    truth = max(
        quick_divergence(laws, pair, others, alpha)
        for others in combinations_with_replacement(knots, clients - 1)
        for pair in pairs
    )
    bound = renyi(mech, alpha, clients)
    assert bound.upper == pytest.approx(truth, rel=1e-8, abs=1e-11)
    assert bound.upper >= truth * (1 - 1e-12)


@settings(max_examples=60)
@given(mech=mechanisms, data=st.data())
def test_every_law_of_a_group_holds_the_common_shape(mech, data):
    laws = mech.pmf(mech.knots)
    a = data.draw(st.integers(0, len(laws) - 1))
    b = data.draw(st.integers(a + 1, len(laws)))
    shape, weight = common_shape(laws[a:b])
    assert shape.sum() == pytest.approx(1)
    assert 0 < weight <= 1
    for law in laws[a:b]:
        room = [(law[s : s + len(shape)] - weight * shape).min() for s in range(len(law) - len(shape) + 1)]
        assert max(room) >= 0  # some shift fits under the law, without any tolerance


def test_partitions_cover_all_knots_in_order():
    logs = RQM(levels=40, margin=0.2, keep=0.3).log_pmf(RQM(levels=40, margin=0.2, keep=0.3).knots)
    for groups in (1, 2, 3, 4):
        found = partition(logs, groups)
        assert len(found) == groups
        assert all(0 < g.weight <= 1 and g.spread > 0 for g in found)


@pytest.mark.parametrize(
    "mech", [Rounding(levels=2, margin=1.0), RQM(margin=20.0), RQM(levels=2), PBM(theta=0.1)], ids=repr
)
def test_two_knots_are_exact(mech):
    assert len(mech.knots) == 2
    for bound in renyi(mech, [1, 2, 8, 32, 1000, np.inf], 40):
        assert bound.lower == bound.upper


TIGHT = [
    pytest.param(RQM(margin=2.0, keep=0.57), {2: 1.10, 8: 1.10, 32: 1.10}, marks=pytest.mark.slow),
    (PBM(theta=0.25), {2: 1.10, 8: 1.10, 32: 1.10}),
    pytest.param(RQM(), {2: 1.10, 8: 1.10, 32: 1.10}, marks=pytest.mark.slow),
    pytest.param(RQM(margin=0.66, keep=0.33), {2: 1.10, 8: 1.10, 32: 1.10}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mech", "limits"), TIGHT, ids=str)
def test_tight_at_forty_clients(mech, limits):
    for bound, limit in zip(renyi(mech, list(limits), 40), limits.values(), strict=True):
        assert bound.lower <= bound.upper <= limit * bound.lower


def never_rises(mech, counts, alphas):
    before = np.full(len(alphas), np.inf)
    for n in counts:
        now = np.array([b.upper for b in renyi(mech, alphas, n)])
        assert (now <= before * (1 + 1e-3)).all(), (n, now / before)
        before = now


FALLING = [
    RQM(levels=5, margin=0.7, keep=0.4),
    RQM(levels=8, keep=0.6),
    RQM(levels=7, margin=1.746, keep=(0.9386, 0.8917, 0.6825, 0.8367, 0.969)),
    PBM(levels=4),
]


@pytest.mark.parametrize("budget", [4, 60, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mech", FALLING, ids=repr)
def test_never_larger_with_more_clients(mech, budget, monkeypatch):
    coarse(monkeypatch, budget)
    never_rises(mech, range(1, 22), [1, 1.1, 2, 9, 64, np.inf])


@pytest.mark.slow
@pytest.mark.parametrize("mech", [RQM(), RQM(margin=0.66, keep=0.33), PBM()], ids=repr)
def test_never_larger_with_more_clients_at_full_size(mech):
    never_rises(mech, [1, 2, 8, 9, 10, 11, 12, 25, 40, 41, 91, 92, 120], [2, 8, 32, 1000])


@given(knots=st.integers(2, 40), width=st.integers(2, 64), others=st.integers(1, 3000))
def test_tiers_reach_every_number_of_clients(knots, width, others):
    found = tiers(knots, width, others)
    assert max(tier.last for tier in found) >= others
    for size in {tier.size for tier in found}:
        same = [tier.last for tier in found if tier.size == size and tier.groups == 2]
        assert same == sorted(same)
        assert not same or same[-1] >= others
    assert found[0].groups == knots


def test_asymmetric_mechanisms_are_looked_at_from_both_sides():
    """With keep probabilities that lean, left-heavy and right-heavy others differ; both are certified."""
    mech = RQM(levels=8, margin=0.4, keep=(0.9, 0.8, 0.6, 0.3, 0.2, 0.1))
    with pytest.MonkeyPatch.context() as patch:
        coarse(patch, 400)
        bound = renyi(mech, 4, 8)
    laws = mech.pmf(mech.knots)
    for v in range(len(laws)):
        for pair in ((0, len(laws) - 1), (len(laws) - 1, 0)):
            assert quick_divergence(laws, pair, [v] * 7, 4) <= bound.upper


def test_rounding_is_outward():
    mech = RQM(levels=3, margin=1.0, keep=0.5)
    logs = mech.log_pmf(mech.knots)
    value = quick_divergence(np.exp(logs), (2, 0), [], 2)
    assert certify(logs, logs, 0, [2.0], [0.0])[0] > value


def test_where_there_is_too_much_to_try_fewer_clients_bound_the_sum(monkeypatch):
    from rqm.mechanisms.response import RandomizedResponse

    mech = RandomizedResponse(levels=6)
    own = mech.knot_laws()
    alone, three, many = (certify(own, own, count, [2.0], [0.0])[0] for count in (0, 2, 9))
    assert many < three < alone
    values = []
    for most in (1e3, 1e5, 1e6, 1e7, 2e10):
        monkeypatch.setattr(certificate, "MOST_TERMS", most)
        by_count = [certify(own, own, count, [2.0], [0.0])[0] for count in (0, 1, 2, 3, 9)]
        assert sorted(by_count, reverse=True) == by_count  # more clients never raise it
        values.append(by_count[-1])
    assert sorted(values, reverse=True) == values
    assert values[0] == alone
    assert values[-1] == many
