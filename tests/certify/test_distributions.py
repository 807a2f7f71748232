"""Sums and divergences: against 50 digits, long doubles and sums of every split; what is cut is charged."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from rqm import PBM, RQM, renyi
from rqm.certify.distributions import (
    EMPTY_SUM,
    SMALLEST_ENTRY,
    Comparison,
    OtherSums,
    PartialSum,
    all_pairs,
    different_pairs,
    divergence_table,
    repeated,
    splits,
)
from rqm.related.randomized_response import RandomizedResponse
from tests.certify.oracle import convolve, divergence, exact_pmf, plain_divergences, plain_sum

ORDERS = [1, 1.0001, 1.5, 2, 2.5, 3, 8, 32, 33, 100, 257, 1000, np.inf]
EPSILONS = [-1.0, 0.0, 0.3, 1.0, 2.5]

CASES = [
    (RQM(), 1),
    (RQM(), 2),
    (RQM(margin=2.0, keep=0.57), 40),
    (RQM(margin=0.66, keep=0.33), 40),
    (RQM(margin=0.25, keep=0.97, levels=8), 12),
    (RQM(levels=6, keep=(0.9, 0.02, 0.5, 0.4), margin=0.3), 9),
    (PBM(theta=0.25), 1),
    (PBM(theta=0.15), 40),
    (PBM(theta=0.4), 40),
]
GRID = np.array([[i, j] for i in range(4) for j in range(4)])
NO_OTHERS = np.zeros((1, 2), np.int64)


def table_of(first, second, own_pmfs, parameters, measure="renyi", cells=GRID, **options):
    """Divergences of all pairs of pmfs, each at all parameters."""
    pairs = all_pairs(len(own_pmfs))
    return divergence_table(
        OtherSums(first, second, cells), Comparison(own_pmfs, pairs, parameters, measure), **options
    )


def single(p, q, orders):
    """D_α(P ‖ Q) of one client at some orders."""
    return table_of([EMPTY_SUM], [EMPTY_SUM], np.array([p, q]), orders, cells=NO_OTHERS)[0][0, 0]


def random_pmfs(rng, count, outcomes):
    return rng.dirichlet(np.full(outcomes, 3.0), size=count)


# -- numerics -------------------------------------------------------------------------------------


STEEP = CASES[-1]
"""Tails below all floats decide its high orders: the two bounds bracket the value, a few percent apart."""


@pytest.mark.parametrize(("mechanism", "clients"), CASES, ids=str)
def test_divergences_agree_with_fifty_digits(mechanism, clients):
    """Balanced others, both directions: to 1e-10 relative, without a warning, a NaN or an infinity."""
    with mp.workdps(50):
        low, high = exact_pmf(mechanism, -mechanism.clip), exact_pmf(mechanism, mechanism.clip)
        base = [mp.mpf(1)]
        for k in range(clients - 1):
            base = convolve(base, high if k >= (clients - 1) // 2 else low)
        a, b = convolve(base, high), convolve(base, low)
        for alpha, bound in zip(ORDERS, renyi(mechanism, ORDERS, clients, "balanced"), strict=True):
            truth = max(divergence(a, b, alpha), divergence(b, a, alpha))
            error = 0.04 if (mechanism, clients) == STEEP and alpha >= 100 else 1e-10
            assert (1 - error) * truth <= bound.lower <= truth * (1 + 1e-10)
            assert (1 - 1e-10) * truth <= bound.upper <= truth * (1 + error)


def test_tails_keep_their_precision_down_to_the_smallest_float_and_are_charged_below():
    """PBM's tails at n = 100, θ = 0.4 reach 0.1^1500."""
    total = repeated(np.exp(PBM(theta=0.4).log_pmf(1.0)), 100)
    last, p = 1500, mp.mpf(0.5) + mp.mpf(0.4)
    first = last + 1 - len(total.pmf)
    assert first > 0
    assert total.cut_ends == 1
    for k in (first, first + 1, first + 100, last):
        truth = mp.binomial(last, k) * p**k * (1 - p) ** (last - k)
        assert abs(total.pmf[k - first] / truth - 1) < 1e-11
    cut = mp.fsum(mp.binomial(last, k) * p**k * (1 - p) ** (last - k) for k in range(first))
    assert cut <= total.missing <= 1e-270


@pytest.mark.parametrize("outcomes", [2, 16, 17, 45])
def test_a_table_agrees_with_long_doubles(outcomes):
    rng = np.random.default_rng(outcomes)
    first, second = ([repeated(pmf, n) for n, pmf in enumerate(random_pmfs(rng, 4, outcomes))] for _ in range(2))
    own_pmfs = random_pmfs(rng, 3, outcomes)
    by_order, _ = table_of(first, second, own_pmfs, ORDERS)
    by_epsilon, _ = table_of(first, second, own_pmfs, EPSILONS, "hockey-stick")
    for cell, (i, j) in enumerate(GRID):
        base = plain_sum([first[i].pmf, second[j].pmf])
        sums = np.array([np.convolve(pmf, base) for pmf in own_pmfs.astype(np.longdouble)])
        p, q = sums[all_pairs(3).T]
        for k, alpha in enumerate(ORDERS):
            np.testing.assert_allclose(by_order[cell, :, k], plain_divergences(p, q, alpha), rtol=1e-11, atol=1e-11)
        for k, eps in enumerate(EPSILONS):
            delta = np.maximum(p - np.exp(np.longdouble(eps)) * q, 0).sum(axis=1).astype(float)
            assert (by_epsilon[cell, :, k] >= delta).all()
            np.testing.assert_allclose(by_epsilon[cell, :, k], delta, rtol=1e-5, atol=1e-7)


@given(st.integers(0, 70))
def test_powers_are_repeated_sums(count):
    pmf = np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(repeated(pmf, count).pmf, plain_sum([pmf] * count).astype(float), rtol=1e-12)


@given(st.lists(st.floats(-30, 0), min_size=2, max_size=40), st.data())
def test_divergences_rise_with_the_order_from_zero(logs, data):
    other_logs = data.draw(st.lists(st.floats(-30, 0), min_size=len(logs), max_size=len(logs)))
    p, q = (np.exp(np.array(v) - np.logaddexp.reduce(v)) for v in (logs, other_logs))
    values = single(p, q, [1, 1 + 1e-9, 1.01, 1.7, 2, 7.5, 30, 500, np.inf])
    assert (values >= -1e-12).all()
    assert (np.diff(values) >= -1e-9 * (1 + values[1:])).all()


def test_impossible_outcomes_are_infinite_one_way_only():
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    assert single(p, q, [1, 2, np.inf]).tolist() == [np.inf] * 3
    assert single(q, p, [np.inf])[0] == pytest.approx(np.log(2))


# -- cut tails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [1e-9, 1e-43, 1e-200])
def test_what_is_trimmed_is_charged(tail):
    pmf = np.array([0.7, 0.2, 0.1])
    whole, trimmed = repeated(pmf, 600), repeated(pmf, 600, tail)
    assert len(trimmed.pmf) < len(whole.pmf)
    assert 0 < trimmed.missing < 60 * tail
    assert whole.pmf.sum() - trimmed.pmf.sum() <= trimmed.missing + 1e-12


def exact_tables(own_pmfs, pmf, counts, orders, eps):
    """D_α of all pairs (sums, pairs, orders) with numbers of other clients, and hockey-stick divergences."""
    pairs, renyi_table, delta_table = all_pairs(len(own_pmfs)), [], []
    for n in counts:
        base = plain_sum([pmf] * n)
        sums = np.array([np.convolve(row, base) for row in own_pmfs.astype(np.longdouble)])
        p, q = sums[pairs[:, 0]], sums[pairs[:, 1]]
        renyi_table.append(np.array([plain_divergences(p, q, alpha) for alpha in orders]).T)
        delta_table.append(np.maximum(p - np.exp(np.longdouble(eps)) * q, 0).sum(axis=1))
    return np.array(renyi_table), np.array(delta_table, dtype=float)


@pytest.mark.parametrize("tail", [1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("smallest", [SMALLEST_ENTRY, 1e-8])
def test_a_cut_sum_with_its_charge_is_above_the_whole_sum(tail, smallest):
    """With tails cut far too early the bound may be loose, but never falls below the truth."""
    rng, orders, counts, eps = np.random.default_rng(1), [1.5, 2.0, 1000.0], (8, 11, 20, 40), 0.02
    own_pmfs, pmf = random_pmfs(rng, 3, 5), random_pmfs(rng, 1, 5)[0]
    truth, deltas = exact_tables(own_pmfs, pmf, counts, orders, eps)
    cells, rise = np.stack([np.arange(4), np.zeros(4, np.int64)], axis=1), np.array(orders) - 1
    cut = [repeated(pmf, n, tail) for n in counts]
    single_client = table_of([EMPTY_SUM], [EMPTY_SUM], own_pmfs, orders, cells=NO_OTHERS)[0]
    table, missing = table_of(cut, [EMPTY_SUM], own_pmfs, orders, cells=cells, smallest=smallest)
    assert (missing > 0).any()
    with np.errstate(divide="ignore"):
        charge = np.log(missing)[:, None, None] + rise * single_client
    assert (np.logaddexp(rise * table, charge) / rise >= truth * (1 - 1e-9)).all()
    sticks, missing = table_of(cut, [EMPTY_SUM], own_pmfs, [eps], "hockey-stick", cells=cells, smallest=smallest)
    assert (sticks[..., 0] + missing[:, None] >= deltas).all()
    assert (sticks[..., 0] < deltas).any() or tail != 1e-6  # without the charge it would be too small
    cut = [repeated(pmf, n).trimmed(tail) for n in counts]
    attained, _ = table_of(cut, [EMPTY_SUM], own_pmfs, orders[2:], cells=cells, smallest=smallest, is_attained=True)
    assert (attained[..., 0] <= truth[..., 2] * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2.0 ** np.array([*range(0, -80, -5), *range(-700, -780, -5)]), 2.0 ** np.arange(0, -780, -5)),
        (2.0 ** np.array([*np.linspace(0, -850, 41), -1000]), np.ones(1)),
    ],
)
def test_a_tail_that_floats_lose_is_charged(first, second):
    """The last outcomes of the sum are zero as floats, or nearly: they count as if there were no other clients."""
    own_pmfs = random_pmfs(np.random.default_rng(1), 2, 5)
    parts = [PartialSum(pmf / pmf.sum(), 0.0) for pmf in (first, second)]
    _, missing = table_of(parts[:1], parts[1:], own_pmfs, [2.0], cells=NO_OTHERS)
    assert 0 < missing[0] < 1e-270


# -- splits of the other clients ------------------------------------------------------------------

LOW, HIGH = np.array([0.7, 0.2, 0.1]), np.array([0.15, 0.25, 0.6])


@pytest.mark.parametrize("high", [HIGH, LOW[::-1].copy()], ids=["asymmetric", "mirrored"])
@given(others=st.integers(0, 30), max_splits=st.integers(1, 40))
def test_every_split_of_the_others_is_covered(high, others, max_splits):
    """Some sum holds none but clients of the split; what is left out only helps the adversary."""
    sums = {
        (lows, highs): plain_sum([LOW] * lows + [high] * highs).astype(float)
        for lows in range(others + 1)
        for highs in range(others + 1 - lows)
    }
    counted = []
    for total in splits(LOW, high, others, SMALLEST_ENTRY, max_splits):
        matching = [key for key, pmf in sums.items() if len(pmf) == len(total.pmf) and np.allclose(pmf, total.pmf)]
        assert len(matching) == 1
        counted += matching
    block = -(-others // max_splits)
    assert all(lows + highs > others - max(1, block) for lows, highs in counted)
    is_mirrored = np.array_equal(high, LOW[::-1])
    for highs in range(others + 1):
        orientations = [(others - highs, highs)] + ([(highs, others - highs)] if is_mirrored else [])
        assert any(a <= x and b <= y for a, b in counted for x, y in orientations)
    if max_splits > others:
        exact = [(others - highs, highs) for highs in range(others // 2 + 1 if is_mirrored else others + 1)]
        assert counted == exact


def test_splits_of_cut_sums_are_charged():
    for total, whole in zip(splits(LOW, HIGH, 200, 1e-12), splits(LOW, HIGH, 200, 0.0), strict=True):
        assert len(total.pmf) < len(whole.pmf)
        assert whole.pmf.sum() - total.pmf.sum() <= total.missing + 1e-14 < 1e-8


def test_fewer_splits_make_a_larger_divergence(monkeypatch):
    def largest(max_splits):
        sums = list(splits(LOW, HIGH, 60, SMALLEST_ENTRY, max_splits))
        cells = np.stack([np.arange(len(sums)), np.zeros(len(sums), np.int64)], axis=1)
        return float(table_of(sums, [EMPTY_SUM], np.array([LOW, HIGH]), [4.0], cells=cells)[0].max())

    values = [largest(count) for count in (61, 20, 10, 5, 2)]
    assert all(a < b for a, b in pairwise(values))


# -- pairs ----------------------------------------------------------------------------------------


def test_all_pairs_of_randomized_response_are_alike_and_of_other_tables_are_not():
    own_pmfs = RandomizedResponse(levels=7).breakpoint_log_pmfs()
    every, _ = table_of([EMPTY_SUM], [EMPTY_SUM], np.exp(own_pmfs), [1.0, 2.0, 7.5, np.inf], cells=NO_OTHERS)
    assert np.ptp(every[0], axis=0).max() < 1e-13
    assert different_pairs(own_pmfs).tolist() == [[6, 0]]
    permuted = own_pmfs.copy()
    permuted[3, 2] += 1e-9
    assert len(different_pairs(permuted)) == len(different_pairs(own_pmfs[:6])) + 12 == 42
    assert different_pairs(own_pmfs[:1]).shape == (0, 2)
