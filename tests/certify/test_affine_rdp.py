"""The bound for vectors against brute force, exhaustive maxima and composed privacy losses."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, StochasticRounding, renyi
from rqm.accounting.release import Release
from rqm.certify import affine_rdp as module
from rqm.certify.affine_rdp import affine_leakage, affine_rdp
from rqm.certify.distributions import splits

affine_mechanisms = st.one_of(
    st.builds(StochasticRounding, levels=st.just(2), margin=st.floats(0.2, 60)),
    st.builds(RQM, levels=st.just(2), margin=st.floats(0.2, 60), keep=st.just(0.5)),
    st.builds(RQM, levels=st.sampled_from([4, 6]), margin=st.floats(6, 90), keep=st.floats(0.05, 0.95)),
    st.builds(RQM, levels=st.just(16), margin=st.floats(15, 90), keep=st.floats(0.1, 0.9)),
)
orders = st.one_of(st.sampled_from([2.0, 3.0, 4.0, 8.0, 32.0]), st.floats(1.05, 2), st.floats(3, 40))
units = st.floats(-1, 1)


def sum_pmf(pmfs, signs):
    pmf = np.ones(1)
    for sign in signs:
        pmf = np.convolve(pmf, pmfs[int(sign > 0)])
    return pmf


def divergence(p, q, alpha):
    keep = p > 0
    logs = alpha * np.log(p[keep]) + (1 - alpha) * np.log(q[keep])
    return (logs.max() + np.log(np.exp(logs - logs.max()).sum())) / (alpha - 1)


def coordinate(mechanism, u, v, signs, alpha):
    """D_α of one coordinate, the others at ±clip as `signs` say, by plain convolution."""
    base = sum_pmf(mechanism.pmf(np.array([-mechanism.clip, mechanism.clip])), signs)
    return divergence(*(np.convolve(mechanism.pmf(w * mechanism.clip), base) for w in (u, v)), alpha)


def end_pmfs(mechanism):
    return tuple(map(tuple, mechanism.pmf(np.array([-mechanism.clip, mechanism.clip])).tolist()))


@settings(max_examples=120)
@given(affine_mechanisms, orders, st.integers(0, 6), units, units, st.data())
def test_no_pair_leaks_more_than_its_distance_allows(mechanism, alpha, others, u, v, data):
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=others, max_size=others))
    if abs(u - v) > 1e-3:
        value = np.expm1((alpha - 1) * coordinate(mechanism, u, v, signs, alpha))
        kappa = np.exp(affine_leakage(end_pmfs(mechanism), (alpha,), others, "replace-one").log_kappa[0])
        assert value <= kappa * (u - v) ** 2 * (1 + 1e-6) + 1e-12
    if abs(u) > 1e-3:
        kappa = np.exp(affine_leakage(end_pmfs(mechanism), (alpha,), others, "zero-out").log_kappa[0])
        for pair in ((u, 0), (0, u)):
            value = np.expm1((alpha - 1) * coordinate(mechanism, *pair, signs, alpha))
            assert value <= kappa * u**2 * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("alpha", [2.0, 5.0, 16.0])
@pytest.mark.parametrize("mechanism", [StochasticRounding(levels=2, margin=2.0), RQM(levels=16, margin=20.0)], ids=repr)
def test_the_constant_is_the_smallest(mechanism, alpha):
    kappa = np.exp(affine_leakage(end_pmfs(mechanism), (alpha,), 3, "replace-one").log_kappa[0])
    grid = [-1.0, -0.999, 0.999, 1.0]
    largest = max(
        np.expm1((alpha - 1) * coordinate(mechanism, u, v, signs, alpha)) / (u - v) ** 2
        for u, v in product(grid, grid)
        if u != v
        for signs in product([-1, 1], repeat=3)
    )
    assert largest == pytest.approx(kappa, rel=5e-3)


@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    "mechanism",
    [StochasticRounding(levels=2, margin=1.0), RQM(levels=4, margin=8.0, keep=0.3), PBM(levels=3, theta=0.2)],
    ids=repr,
)
def test_never_below_the_exhaustive_maximum(mechanism, dim, neighboring):
    """All vectors on a grid within the budget, all others at ±clip."""
    grid, clients, budget = np.linspace(-1, 1, 7), 3, 1.2
    signs = list(product([-1, 1], repeat=clients - 1))
    vectors = [x for x in product(grid, repeat=dim) if np.hypot.reduce(np.array([*x, 0.0])) <= budget]
    for alpha in (2.0, 3.0, 8.0):
        table = {
            (u, v): max(coordinate(mechanism, u, v, s, alpha) for s in signs) for u in grid for v in grid if u != v
        } | {(u, u): 0.0 for u in grid}
        zero = (0.0,) * dim
        pairs = (
            product(vectors, vectors)
            if neighboring == "replace-one"
            else [pair for x in vectors for pair in ((x, zero), (zero, x))]
        )
        nearest = {u: min(grid, key=lambda g: abs(g - u)) for u in (*grid, 0.0)}
        worst = max(sum(table[nearest[u], nearest[v]] for u, v in zip(x, y, strict=True)) for x, y in pairs)
        (bound,) = affine_rdp(mechanism, [alpha], honest=clients, dim=dim, l2_clip=budget, neighboring=neighboring)
        assert worst <= bound * (1 + 1e-9)


@settings(max_examples=30)
@given(st.floats(0.01, 0.4), st.integers(2, 6), orders, st.integers(1, 4), units, units)
def test_pbm_never_leaks_more(theta, levels, alpha, clients, u, v):
    mechanism = PBM(theta=theta, levels=levels)
    if abs(u - v) > 1e-3:
        exact = max(coordinate(mechanism, u, v, [s] * (clients - 1), alpha) for s in (-1, 1))
        budget = max(abs(u), abs(v))
        (bound,) = affine_rdp(mechanism, [alpha], honest=clients, dim=1, l2_clip=budget)
        assert exact <= bound * (1 + 1e-6) + 1e-12


@settings(max_examples=40)
@given(
    affine_mechanisms,
    st.integers(1, 40),
    st.integers(1, 10**6),
    st.floats(0.01, 100),
    st.sampled_from(["replace-one", "zero-out"]),
)
def test_order_of_the_bounds(mechanism, honest, dim, budget, neighboring):
    alphas = [2.0, 4.0, 16.0]
    bound = affine_rdp(mechanism, alphas, honest=honest, dim=dim, l2_clip=budget, neighboring=neighboring)
    assert (np.diff(bound) >= -1e-9 * bound[1:]).all()  # rises with the order
    more = affine_rdp(mechanism, alphas, honest=honest + 1, dim=dim, l2_clip=budget, neighboring=neighboring)
    wider = affine_rdp(mechanism, alphas, honest=honest, dim=dim, l2_clip=1.1 * budget, neighboring=neighboring)
    longer = affine_rdp(mechanism, alphas, honest=honest, dim=dim + 1, l2_clip=budget, neighboring=neighboring)
    assert (more <= bound * (1 + 1e-9)).all()
    assert (wider >= bound * (1 - 1e-9)).all()
    assert (longer >= bound * (1 - 1e-9)).all()
    if neighboring == "replace-one":
        zero = affine_rdp(mechanism, alphas, honest=honest, dim=dim, l2_clip=budget, neighboring="zero-out")
        assert (zero <= bound * (1 + 1e-9)).all()


def test_never_above_dimension_times_the_worst_coordinate():
    for mechanism in (StochasticRounding(levels=2, margin=3.0), RQM(levels=16, margin=40.0)):
        by_coordinate = [64 * bound.upper for bound in renyi(mechanism, [2.0, 8.0], 10)]
        for budget in (0.5, 4.0, 100.0):
            bound = affine_rdp(mechanism, [2.0, 8.0], honest=10, dim=64, l2_clip=budget)
            assert (bound <= np.array(by_coordinate) * (1 + 1e-6)).all()


def test_with_levels_inside_the_clip_every_coordinate_counts_as_the_worst():
    mechanism = RQM()
    by_coordinate = [7 * bound.upper for bound in renyi(mechanism, [2.0, 3.0], 5, distribution="sampled")]
    for l2_clip in (9.0, 0.1):
        assert Release(mechanism, 7, l2_clip).rdp([2.0, 3.0], "replace-one", 5).values.tolist() == by_coordinate


@pytest.mark.parametrize("distribution", ["paper", "sampled"])
@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(levels=2, margin=20.7), RQM(levels=16, margin=87.0)], ids=repr
)
def test_it_costs_what_the_central_gaussian_costs(mechanism, distribution):
    """Within 0.4 % of the Gaussian with the same variance at d = 2**20, n = 100, K = 4."""
    alphas = np.array([2.0, 4.0, 8.0])
    bound = affine_rdp(mechanism, alphas, honest=100, dim=2**20, l2_clip=1024 / 4, distribution=distribution)
    gaussian = alphas / 2 * (2 * 256) ** 2 / (100 * float(mechanism.variance(0.0)))
    assert (bound > gaussian).all()
    assert (bound < 1.004 * gaussian).all()


def test_groups_of_splits_are_above_the_single_ones(monkeypatch):
    ends = end_pmfs(StochasticRounding(levels=2, margin=5.0))
    exact = affine_leakage(ends, (2.0, 8.0), 60, "replace-one")
    monkeypatch.setattr(module, "splits", partial(splits, max_splits=10))
    affine_leakage.cache_clear()
    coarse = affine_leakage(ends, (2.0, 8.0), 60, "replace-one")
    affine_leakage.cache_clear()
    assert (coarse.log_kappa >= exact.log_kappa).all()
    assert (coarse.log_kappa <= exact.log_kappa + np.log(1.2)).all()
    assert (coarse.largest >= exact.largest).all()


def test_composed_losses_stay_below_the_certificate():
    """ε of the composition of d exact pairs by dp-accounting's privacy loss distributions is below ours."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.rdp import compute_epsilon

    mechanism, dim, clients = StochasticRounding(levels=2, margin=9.0), 100, 20
    base = sum_pmf(mechanism.pmf(np.array([-1.0, 1.0])), [1] * (clients - 1))
    budget = 3.0  # every coordinate at 0.3
    p, q = (np.convolve(mechanism.pmf(w), base) for w in (0.3, -0.3))
    single = pld.from_two_probability_mass_functions(
        *({z: float(np.log(w)) for z, w in enumerate(pmf)} for pmf in (q, p)), value_discretization_interval=1e-4
    )
    exact = single.self_compose(dim).get_epsilon_for_delta(1e-5)
    alphas = [float(a) for a in (2, *range(3, 65))]
    certified, _ = compute_epsilon(alphas, affine_rdp(mechanism, alphas, honest=clients, dim=dim, l2_clip=budget), 1e-5)
    assert exact <= certified < 1.5 * exact


def test_bad_values_are_named():
    mechanism = StochasticRounding(levels=2, margin=3.0)
    for changes, words in (
        ({"orders": [2.5]}, r"orders = \[2.5\]"),
        ({"orders": [1.0]}, "orders"),
        ({"honest": 0}, "honest = 0"),
        ({"dim": 0}, "dim = 0"),
        ({"l2_clip": float("nan")}, "l2_clip = nan"),
        ({"neighboring": "add"}, "neighboring = 'add'"),
    ):
        values = {"orders": [2.0], "honest": 3, "dim": 5, "l2_clip": 1.0, **changes}
        with pytest.raises(ValueError, match=words):
            affine_rdp(mechanism, values.pop("orders"), **values)
