"""Worst cases: the reference values, Theorem 5.2, the search and its interface."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import log, mp

import rqm
from rqm import PBM, RQM, Noiseless, StochasticRounding, renyi
from rqm.certify import renyi as renyi_module
from rqm.certify.affine_rdp import affine_rdp
from rqm.kernels.integer_sampler import TABLE_BITS
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.related.randomized_response import RandomizedResponse
from tests.certify.oracle import exact_pmf, plain_divergence, plain_divergences

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
    mechanism = RQM(margin=margin, keep=keep)
    paper = renyi(mechanism, alpha, others="balanced")
    worst = renyi(mechanism, alpha)
    assert paper.lower == pytest.approx(at_ends, abs=5.1e-6)
    assert worst.lower == worst.upper == pytest.approx(maximum, abs=5.1e-6)
    assert sorted([abs(worst.witness.x), abs(worst.witness.x_prime)]) == pytest.approx([x, 1.0], abs=1e-4)


@pytest.mark.parametrize(
    ("mechanism", "alpha", "others", "value"),
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
def test_reference_values_at_forty_clients(mechanism, alpha, others, value):
    digits = 5.1e-6 if alpha == 2 else 5.1e-5
    bound = renyi(mechanism, alpha, 40, others)
    assert bound.lower == pytest.approx(value, abs=digits)
    assert bound.lower <= bound.upper <= bound.lower * (1 + 1e-12)
    assert not bound.certified


def test_pbm_certificate_is_tight_at_forty_clients():
    for bound, value in zip(renyi(PBM(), [2, 8, 32], 40), (0.51753, 2.42114, 10.93425), strict=True):
        assert bound.certified
        assert bound.lower == pytest.approx(value, abs=5.1e-6)
        assert bound.lower <= bound.upper <= 1.002 * bound.lower


@given(
    levels=st.integers(2, 40),
    keep=st.floats(0.01, 0.99),
    margin=st.floats(0.02, 6),
    data=st.data(),
)
def test_theorem_bound_is_never_below_the_exact_value(levels, keep, margin, data):
    if data.draw(st.booleans()):
        keep = data.draw(st.lists(st.floats(0.01, 0.99), min_size=levels - 2, max_size=levels - 2))
    mechanism = RQM(levels=levels, keep=keep, margin=margin)
    assert renyi(mechanism, INF).lower <= mechanism.theorem_bound * (1 + 1e-12) + 1e-12


def test_theorem_bound_is_the_papers_formula():
    q, m, ratio = 0.42, 16, 1.0
    assert RQM().theorem_bound == pytest.approx(np.log(2 * (1 - q) ** 2 * (1 + ratio)) + m * np.log(1 / (1 - q)))


@given(alpha=st.one_of(st.floats(1, 300), st.just(INF)), keep=st.floats(0.05, 0.9), margin=st.floats(0.1, 3))
def test_one_client_is_the_maximum_over_a_fine_grid_of_inputs(alpha, keep, margin):
    mechanism = RQM(levels=7, keep=keep, margin=margin)
    bound = renyi(mechanism, alpha)
    assert bound.lower == bound.upper
    pmfs = mechanism.pmf(np.linspace(-1, 1, 23)).astype(np.longdouble)
    assert plain_divergences(pmfs[:, None], pmfs[None], alpha).max() <= bound.upper * (1 + 1e-12) + 1e-13
    witness = mechanism.pmf([bound.witness.x, bound.witness.x_prime])
    assert plain_divergence(witness, (0, 1), [], alpha) == pytest.approx(bound.lower, rel=1e-10, abs=1e-12)


def inputs_of(bound):
    return [x for x, count in bound.witness.other_inputs.items() for _ in range(count)]


@settings(max_examples=15)
@given(clients=st.integers(2, 6), alpha=st.sampled_from([1, 1.5, 2, 8, 40, INF]), seed=st.integers(0, 99))
def test_lower_is_attained_by_the_inputs_in_the_witness(clients, alpha, seed):
    rng = np.random.default_rng(seed)
    mechanism = RQM(
        levels=int(rng.integers(3, 10)), keep=float(rng.uniform(0.1, 0.9)), margin=float(rng.uniform(0.1, 3))
    )
    bound = renyi(mechanism, alpha, clients)
    assert len(inputs_of(bound)) == clients - 1
    assert renyi(mechanism, alpha, clients, inputs_of(bound)).lower == pytest.approx(bound.lower, rel=1e-9, abs=1e-11)
    pmfs = mechanism.pmf([bound.witness.x, bound.witness.x_prime, *inputs_of(bound)])
    exact = plain_divergence(pmfs, (0, 1), range(2, clients + 1), alpha)
    assert exact == pytest.approx(bound.lower, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("mechanism", [RQM(), RQM(margin=2.0, keep=0.57), RQM(margin=0.66, keep=0.33), PBM()], ids=repr)
def test_the_sampled_pmf_leaks_what_the_papers_does(mechanism):
    for alphas, clients in (([1, 2, 10, 100, 1000, INF], 1), ([2, 8, 32], 4)):
        paper, sampled = renyi(mechanism, alphas, clients), renyi(mechanism, alphas, clients, distribution="sampled")
        for a, b in zip(paper, sampled, strict=True):
            assert b.distribution == "sampled"
            assert b.upper == pytest.approx(a.upper, rel=1e-6)


def test_floored_entries_keep_pure_privacy_finite():
    mechanism = RQM(levels=64, keep=0.99, margin=0.1)
    assert renyi(mechanism, INF).lower > 200
    assert renyi(mechanism, INF, distribution="sampled").upper < 40 * np.log(2) + 1


def test_rounding_inside_the_clip_gives_no_privacy():
    assert renyi(StochasticRounding(levels=4), 2).lower == INF
    assert renyi(StochasticRounding(levels=4), 2, 5).upper == INF
    assert renyi(StochasticRounding(levels=2), 2).upper == INF  # the levels are ±clip themselves
    assert renyi(StochasticRounding(levels=2, margin=1.0), INF).upper == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    "mechanism",
    [
        RQM(margin=1e-9, levels=4),
        RQM(margin=1e-12, levels=4),
        RQM(margin=2.6666666666666696, levels=12, keep=1 - 1e-6),
        RQM(margin=2.6666666666666696, levels=12, keep=1 - 1e-8),
        RQM(margin=3e-6, levels=3),
    ],
    ids=repr,
)
def test_upper_is_safe_where_the_clip_lies_close_to_a_level(mechanism):
    """Cancellation in the position of ±clip within its cell would make the pmf, and the bound, too small."""
    with mp.workdps(50):
        p, q = (exact_pmf(mechanism, x) for x in (1.0, -1.0))
        truth = max(abs(log(a / b)) for a, b in zip(p, q, strict=True))
        upper = renyi(mechanism, INF).upper
        assert truth <= upper <= truth * (1 + 1e-9)


def test_rounding_to_many_levels_needs_no_table():
    mechanism = StochasticRounding(levels=65_536)
    for clients in (1, 40):
        bound = renyi(mechanism, 2, clients)
        assert bound.lower == bound.upper == INF
    assert "_log_rows" not in mechanism.__dict__
    wide = StochasticRounding(levels=65_536, margin=1e6)  # no level inside the clip: one of two levels
    fraction = 32_767.5 * (1 + 1 / wide.input_range) - 32_767
    assert renyi(wide, INF).upper == pytest.approx(float(np.log(float(fraction / (1 - fraction)))), rel=1e-8)
    assert "_log_rows" not in wide.__dict__
    small = StochasticRounding(levels=4, margin=0.3)  # the inputs in its witness do attain infinity
    bound = renyi(small, 2, 5)
    assert renyi(small, 2, 5, inputs_of(bound)).lower == INF


def test_randomized_response_among_1024_values_is_bounded_by_one_pair():
    """All pairs are alike: a million of them, each a million terms, would take hours."""
    mechanism = RandomizedResponse(levels=1024)
    true, false = (units / 2**TABLE_BITS for units in mechanism.units)
    for bound in renyi(mechanism, [2, 8, INF]):
        a = bound.alpha
        terms = true**a * false ** (1 - a) + false**a * true ** (1 - a) + 1022 * false if a < INF else 0
        exact = np.log(terms) / (a - 1) if a < INF else np.log(true / false)
        assert bound.lower <= bound.upper
        assert bound.upper == pytest.approx(exact, rel=1e-9)
        assert {bound.witness.x, bound.witness.x_prime} == {-1.0, 1.0}


def test_of_very_many_breakpoints_those_that_leak_most_are_searched(monkeypatch):
    mechanism, orders = RQM(levels=24), [2, 8]
    everything = renyi(mechanism, orders, 5)
    monkeypatch.setattr(renyi_module._Search, "many_breakpoints", 4)
    monkeypatch.setattr(renyi_module._Search, "searched_pairs", 8)
    renyi_module._worst_case.cache_clear()
    renyi_module.worst_inputs.cache_clear()
    for partial_bound, every in zip(renyi(mechanism, orders, 5), everything, strict=True):
        assert partial_bound.lower == pytest.approx(every.lower, rel=1e-3)
        assert partial_bound.upper == pytest.approx(every.upper, rel=1e-6)


AFFINE = [StochasticRounding(levels=2, margin=1.0), StochasticRounding(levels=2, margin=20.0), RQM(margin=20.0), PBM()]
MORE_MECHANISMS = [
    RandomizedResponse(levels=2, epsilon=1.0),
    RandomizedResponse(levels=2, epsilon=4.0),
    *(kind(scale=1.0, steps=15, bits=12) for kind in (Skellam, DiscreteGaussian, Binomial)),
]
MANY_CLIENTS = [pytest.param(clients, marks=pytest.mark.slow) for clients in (10, 1000, 10_000, 100_000)]


@pytest.mark.parametrize(
    "mechanism", [*AFFINE, *(pytest.param(extra, marks=pytest.mark.slow) for extra in MORE_MECHANISMS)], ids=repr
)
@pytest.mark.parametrize("clients", [40, 1500, *MANY_CLIENTS])
def test_bounds_of_one_release_agree(mechanism, clients):
    """Those of one coordinate and of a vector of one coordinate; additive noise has one bound only."""
    orders, distribution = [2.0, 32.0, 256.0], "paper" if mechanism.additive is None else "sampled"
    coordinate = np.array([bound.upper for bound in renyi(mechanism, orders, clients, distribution=distribution)])
    assert np.isfinite(coordinate).all()
    if mechanism.additive is None:
        vector = affine_rdp(mechanism, orders, honest=clients, dim=1, l2_clip=mechanism.clip, distribution=distribution)
        assert np.isfinite(vector).all()
        assert (vector <= 1.1 * coordinate).all()
        assert (coordinate <= 1.1 * vector).all()


@pytest.mark.parametrize("mechanism", [StochasticRounding(levels=2, margin=1.0), PBM(levels=4)], ids=repr)
def test_many_more_clients_never_leak_more(mechanism):
    previous = np.full(2, np.inf)
    for clients in (1, 100, 3684, 3700, 4097, 5000, 20_000):
        now = np.array([bound.upper for bound in renyi(mechanism, [2.0, 256.0], clients)])
        assert (now <= previous * (1 + 1e-9)).all()
        previous = now


def test_what_a_bound_says_about_itself():
    single, many = renyi(RQM(), 2), renyi(RQM(levels=3), 2, 5)
    assert (single.threat_model, single.neighboring) == ("local", "replace-one")
    assert many.threat_model == "aggregate of 5 honest clients"
    assert single.certified
    assert many.certified
    assert isinstance(single, rqm.RenyiBound)


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
        ({"distribution": "true"}, ValueError, "'true'"),
    ],
)
def test_bad_requests_are_named(kwargs, error, words):
    with pytest.raises(error, match=words):
        renyi(RQM(), **kwargs)


@pytest.mark.parametrize("others", ["worst", "balanced"])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("levels", "keep"), [(32, 1 - 1e-13), (1024, 1 - 1e-6)])
def test_pmfs_too_steep_for_floats_are_refused(levels, keep, clients, others):
    with pytest.raises(ValueError, match="probabilities must be at least"):
        renyi(RQM(levels=levels, keep=keep, margin=0.5), 2, clients, others)


def test_a_mechanism_without_a_pmf_is_a_type_error():
    with pytest.raises(TypeError, match="no pmf"):
        renyi(Noiseless(), 2)
