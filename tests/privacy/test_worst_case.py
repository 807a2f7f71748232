"""Worst cases: the reference values, Theorem 5.2, the search and its interface."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rqm
from rqm import PBM, RQM, Noiseless, Rounding, renyi
from rqm.kernels.recipe import TABLE_BITS
from rqm.mechanisms.response import RandomizedResponse
from rqm.privacy import search, worst_case

INF = np.inf


@pytest.mark.parametrize(
    ("margin", "keep", "alpha", "at_ends", "maximum", "x"),
    [
        (1.0, 0.42, 10, 5.33666, 5.36840, 0.9333),
        (0.66, 0.33, INF, 5.28754, 5.29826, 0.996),
        (1.0, 0.23, INF, 3.17378, 3.21931, 0.9333),
    ],
)
def test_the_papers_pair_is_not_the_worst_pair(margin, keep, alpha, at_ends, maximum, x):
    mech = RQM(margin=margin, keep=keep)
    paper = renyi(mech, alpha, others="balanced")
    worst = renyi(mech, alpha)
    assert paper.lower == pytest.approx(at_ends, abs=5.1e-6)
    assert worst.lower == worst.upper == pytest.approx(maximum, abs=5.1e-6)
    assert sorted([abs(worst.x), abs(worst.x_prime)]) == pytest.approx([x, 1.0], abs=1e-4)


@pytest.mark.parametrize(
    ("mech", "alpha", "others", "value"),
    [
        (RQM(), 2, "balanced", 0.45670),
        (RQM(), 2, [2 / 15] * 39, 0.43751),
        (RQM(), 2, [1.0] * 39, 0.48589),
        (RQM(), 2, [14 / 15] * 39, 0.50270),
        (RQM(), 10, "balanced", 1.6506),
        (RQM(), 10, [1.0] * 39, 2.1501),
        (PBM(), 2, "balanced", 0.49989),
        (PBM(), 2, [1.0] * 39, 0.51753),
    ],
    ids=str,
)
def test_reference_values_at_forty_clients(mech, alpha, others, value):
    digits = 5.1e-6 if alpha == 2 else 5.1e-5
    bound = renyi(mech, alpha, 40, others)
    assert bound.lower == pytest.approx(value, abs=digits)
    assert not bound.certified


def test_pbm_certificate_is_tight_at_forty_clients():
    for bound, value in zip(renyi(PBM(), [2, 8, 32], 40), (0.51753, 2.42114, 10.93425), strict=True):
        assert bound.certified
        assert bound.lower == bound.upper == pytest.approx(value, abs=5.1e-6)


@given(
    levels=st.integers(2, 40),
    keep=st.floats(0.01, 0.99),
    margin=st.floats(0.02, 6),
    data=st.data(),
)
def test_theorem_bound_is_never_below_the_exact_value(levels, keep, margin, data):
    if data.draw(st.booleans()):
        keep = data.draw(st.lists(st.floats(0.01, 0.99), min_size=levels - 2, max_size=levels - 2))
    mech = RQM(levels=levels, keep=keep, margin=margin)
    assert renyi(mech, INF).lower <= mech.theorem_bound * (1 + 1e-12) + 1e-12


def test_theorem_bound_is_the_papers_formula():
    q, m, ratio = 0.42, 16, 1.0
    assert RQM().theorem_bound == pytest.approx(np.log(2 * (1 - q) ** 2 * (1 + ratio)) + m * np.log(1 / (1 - q)))


@given(alpha=st.one_of(st.floats(1, 300), st.just(INF)), keep=st.floats(0.05, 0.9), margin=st.floats(0.1, 3))
def test_one_client_is_the_maximum_over_a_fine_grid_of_inputs(alpha, keep, margin):
    from rqm.privacy.divergence import renyi_divergence

    mech = RQM(levels=7, keep=keep, margin=margin)
    bound = renyi(mech, alpha)
    assert bound.lower == bound.upper
    logs = mech.log_pmf(np.linspace(-1, 1, 23))
    best = max(renyi_divergence(p, q, [alpha])[0] for p in logs for q in logs)
    assert best <= bound.upper * (1 + 1e-12) + 1e-13
    at = [mech.log_pmf(v) for v in (bound.x, bound.x_prime)]
    assert renyi_divergence(*at, [alpha])[0] == pytest.approx(bound.lower, rel=1e-10, abs=1e-12)


@settings(max_examples=15)
@given(clients=st.integers(2, 6), alpha=st.sampled_from([1, 1.5, 2, 8, 40, INF]), seed=st.integers(0, 99))
def test_lower_is_attained_by_the_inputs_it_names(clients, alpha, seed):
    rng = np.random.default_rng(seed)
    mech = RQM(levels=int(rng.integers(3, 10)), keep=float(rng.uniform(0.1, 0.9)), margin=float(rng.uniform(0.1, 3)))
    bound = renyi(mech, alpha, clients)
    inputs = [x for x, n in bound.other_inputs.items() for _ in range(n)]
    assert len(inputs) == clients - 1
    assert renyi(mech, alpha, clients, inputs).lower == pytest.approx(bound.lower, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("mech", [RQM(), RQM(margin=2.0, keep=0.57), RQM(margin=0.66, keep=0.33), PBM()], ids=repr)
def test_sampled_law_leaks_what_the_papers_does(mech):
    for alphas, clients in (([1, 2, 10, 100, 1000, INF], 1), ([2, 8, 32], 4)):
        paper, sampled = renyi(mech, alphas, clients), renyi(mech, alphas, clients, law="sampled")
        for a, b in zip(paper, sampled, strict=True):
            assert b.law == "sampled"
            assert b.upper == pytest.approx(a.upper, rel=1e-6)


def test_floored_entries_keep_pure_privacy_finite():
    mech = RQM(levels=64, keep=0.99, margin=0.1)
    assert renyi(mech, INF).lower > 200
    assert renyi(mech, INF, law="sampled").upper < 40 * np.log(2) + 1


def test_rounding_inside_the_clip_gives_no_privacy():
    assert renyi(Rounding(levels=4), 2).lower == INF
    assert renyi(Rounding(levels=4), 2, 5).upper == INF
    assert renyi(Rounding(levels=2), 2).upper == INF  # the levels are ±clip themselves
    assert renyi(Rounding(levels=2, margin=1.0), INF).upper == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    "mech",
    [
        RQM(margin=1e-9, levels=4),
        RQM(margin=1e-12, levels=4),
        RQM(margin=2.6666666666666696, levels=12, keep=1 - 1e-6),
        RQM(margin=2.6666666666666696, levels=12, keep=1 - 1e-8),
        RQM(margin=3e-6, levels=3),
    ],
    ids=repr,
)
def test_upper_is_safe_where_the_clip_lies_close_to_a_level(mech):
    """Cancellation in the place of ±clip within its cell would make the law, and the bound, too small."""
    from mpmath import log, mp, mpf

    with mp.workdps(50):
        p, q = ([mpf(v.numerator) / v.denominator for v in mech.exact_pmf(x)] for x in (1.0, -1.0))
        truth = max(abs(log(a / b)) for a, b in zip(p, q, strict=True))
        upper = renyi(mech, INF).upper
        assert truth <= upper <= truth * (1 + 1e-9)


def test_rounding_to_many_levels_needs_no_table_to_be_judged():
    mech = Rounding(levels=65_536)
    for clients in (1, 40):
        bound = renyi(mech, 2, clients)
        assert bound.lower == bound.upper == INF
    assert "_log_rows" not in mech.__dict__
    wide = Rounding(levels=65_536, margin=1e6)  # no level inside the clip: a coin between two of them
    part = 32_767.5 * (1 + 1 / wide.input_reach) - 32_767
    assert renyi(wide, INF).upper == pytest.approx(float(np.log(float(part / (1 - part)))), rel=1e-8)
    assert "_log_rows" not in wide.__dict__
    small = Rounding(levels=4, margin=0.3)  # the inputs it names do attain infinity
    bound = renyi(small, 2, 5)
    assert renyi(small, 2, 5, [x for x, n in bound.other_inputs.items() for _ in range(n)]).lower == INF


def test_randomized_response_among_1024_values_is_judged_by_one_pair():
    """All pairs are alike: a million of them, each a million terms, would take hours."""
    mech = RandomizedResponse(levels=1024)
    true, other = (units / 2**TABLE_BITS for units in mech.units)
    for bound in renyi(mech, [2, 8, INF]):
        a = bound.alpha
        terms = true**a * other ** (1 - a) + other**a * true ** (1 - a) + 1022 * other if a < INF else 0
        exact = np.log(terms) / (a - 1) if a < INF else np.log(true / other)
        assert bound.lower <= bound.upper
        assert bound.upper == pytest.approx(exact, rel=1e-9)
        assert {bound.x, bound.x_prime} == {-1.0, 1.0}


def test_of_very_many_knots_those_that_leak_most_are_tried(monkeypatch):
    everything = renyi(RQM(levels=24), [2, 8], 5)
    renyi_of = worst_case.renyi
    monkeypatch.setattr(search, "MANY_KNOTS", 4)
    monkeypatch.setattr(search, "PAIRS_OF_MANY", 8)
    monkeypatch.setattr(worst_case, "_KEPT", OrderedDict())
    monkeypatch.setattr(worst_case, "_TRIED", OrderedDict())
    for some, every in zip(renyi_of(RQM(levels=24), [2, 8], 5), everything, strict=True):
        assert some.lower == pytest.approx(every.lower, rel=1e-3)
        assert some.upper == pytest.approx(every.upper, rel=1e-6)


def test_what_a_bound_says_about_itself():
    one, many = renyi(RQM(), 2), renyi(RQM(levels=3), 2, 5)
    assert (one.threat_model, one.neighbours) == ("local", "replace-one")
    assert many.threat_model == "aggregate of 5 honest clients"
    assert one.certified
    assert many.certified
    assert isinstance(one, rqm.Bound)


def test_random_others_follow_their_seed():
    values = [renyi(RQM(), 2, 20, "random", seed=s).lower for s in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"alpha": 0.5}, ValueError, "alpha = 0.5"),
        ({"alpha": float("nan")}, ValueError, "alpha"),
        ({"alpha": "two"}, TypeError, "alpha"),
        ({"alpha": []}, ValueError, "empty"),
        ({"clients": 0}, ValueError, "clients = 0"),
        ({"clients": 2.5}, TypeError, "clients"),
        ({"others": "median", "clients": 3}, ValueError, "'median'"),
        ({"others": [0.1], "clients": 3}, ValueError, "clients - 1 = 2"),
        ({"others": [0.1, 2.0], "clients": 3}, ValueError, "within the clip"),
        ({"others": [0.1, float("nan")], "clients": 3}, ValueError, "finite"),
        ({"law": "true"}, ValueError, "'true'"),
    ],
)
def test_bad_requests_are_named(kwargs, error, words):
    with pytest.raises(error, match=words):
        renyi(RQM(), **kwargs)


def test_laws_too_steep_to_sum_are_refused_not_miscounted():
    mech = RQM(levels=32, keep=1 - 1e-13)
    assert np.isfinite(renyi(mech, 2).upper)
    with pytest.raises(ValueError, match="falls by more than"):
        renyi(mech, 2, 3)


def test_a_mechanism_without_a_law_is_a_type_error():
    with pytest.raises(TypeError, match="no law"):
        renyi(Noiseless(), 2)
