"""The numerics, against 50 digits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from rqm import PBM, RQM, renyi
from rqm.mechanisms.response import RandomizedResponse
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences, renyi_divergence, unlike_pairs
from tests.privacy.oracle import convolve, divergence, exact_law

ORDERS = [1, 1.0001, 1.5, 2, 8, 32, 100, 1000, np.inf]

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


@pytest.mark.parametrize(("mech", "clients"), CASES, ids=str)
def test_agrees_with_fifty_digits(mech, clients):
    """Balanced others, both directions: to 1e-10 relative, without a warning, a NaN or an infinity."""
    with mp.workdps(50):
        low, high = exact_law(mech, -mech.clip), exact_law(mech, mech.clip)
        base = [mp.mpf(1)]
        for k in range(clients - 1):
            base = convolve(base, high if k >= (clients - 1) // 2 else low)
        a, b = convolve(base, high), convolve(base, low)
        found = renyi(mech, ORDERS, clients, "balanced")
        for alpha, bound in zip(ORDERS, found, strict=True):
            truth = max(divergence(a, b, alpha), divergence(b, a, alpha))
            assert np.isfinite(bound.lower)
            assert abs(bound.lower - truth) <= 1e-10 * truth


def test_tails_far_below_the_smallest_float_keep_their_precision():
    """PBM's tails at n = 100, θ = 0.4 reach 0.1^1500."""
    mech = PBM(theta=0.4)
    law = Sum.of(mech.log_pmf(1.0)).times(100).log_law(1501)
    p = mp.mpf(0.5) + mp.mpf(0.4)
    for k in (0, 1, 2, 700, 1500):
        truth = mp.log(mp.binomial(1500, k)) + k * mp.log(p) + (1500 - k) * mp.log(1 - p)
        assert abs(law[k] - truth) < 1e-10 * abs(truth) + 1e-11


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=90), st.lists(st.floats(0.001, 1), min_size=1, max_size=70))
def test_convolution_equals_numpys(a, b):
    p, q = np.array(a) / sum(a), np.array(b) / sum(b)
    both = Sum.of(np.log(p)) + Sum.of(np.log(q))
    np.testing.assert_allclose(np.exp(both.log_law(len(a) + len(b) - 1)), np.convolve(p, q), rtol=1e-12)


@given(st.integers(0, 70))
def test_powers_are_repeated_sums(count):
    unit = Sum.of(np.log([0.2, 0.5, 0.3]))
    slow = Sum.nothing()
    for _ in range(count):
        slow = slow + unit
    width = 2 * count + 1
    np.testing.assert_allclose(unit.times(count).log_law(width), slow.log_law(width), rtol=1e-12, atol=1e-12)


@given(st.lists(st.floats(-30, 0), min_size=2, max_size=40), st.data())
def test_orders_are_monotone_and_non_negative(logs, data):
    other = data.draw(st.lists(st.floats(-30, 0), min_size=len(logs), max_size=len(logs)))
    p, q = (np.array(v) - np.logaddexp.reduce(v) for v in (logs, other))
    values = renyi_divergence(p, q, [1, 1 + 1e-9, 1.01, 1.7, 2, 7.5, 30, 500, np.inf])
    assert (values >= -1e-12).all()
    assert (np.diff(values) >= -1e-9 * (1 + values[1:])).all()


def test_impossible_outcomes_are_infinite_one_way_only():
    p, q = np.log([0.5, 0.5]), np.array([0.0, -np.inf])
    assert renyi_divergence(p, q, [1, 2, np.inf]).tolist() == [np.inf] * 3
    assert renyi_divergence(q, p, [np.inf])[0] == pytest.approx(np.log(2))


def test_extreme_laws_stay_finite():
    """1,024 levels and q = 1 − 1e-6: probabilities down to 1e-6000."""
    mech = RQM(levels=1024, keep=1 - 1e-6, margin=0.5)
    for clients in (1, 3):
        found = renyi(mech, [1, 2, 1000, np.inf], clients, "balanced")
        assert all(np.isfinite(b.lower) and b.lower > 0 for b in found)


def test_all_pairs_of_randomized_response_are_alike_and_of_other_tables_are_not():
    own = RandomizedResponse(levels=7).knot_laws()
    every = pair_divergences(
        Sum.nothing(), [Sum.of(row) for row in own], all_pairs(7), np.array([1.0, 2.0, 7.5, np.inf])
    )
    assert np.ptp(every, axis=0).max() < 1e-13
    assert unlike_pairs(own).tolist() == [[6, 0]]
    other = own.copy()
    other[3, 2] += 1e-9
    assert len(unlike_pairs(other)) == len(unlike_pairs(own[:6])) + 12 == 42
    assert unlike_pairs(own[:1]).shape == (0, 2)
