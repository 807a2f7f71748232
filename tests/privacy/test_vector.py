"""The bound for vectors against brute force, exhaustive maxima and composed privacy losses."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, Rounding, renyi
from rqm.privacy.vector import gain, vector_rdp

one_cell = st.one_of(
    st.builds(Rounding, levels=st.just(2), margin=st.floats(0.2, 60)),
    st.builds(RQM, levels=st.just(2), margin=st.floats(0.2, 60), keep=st.just(0.5)),
    st.builds(RQM, levels=st.sampled_from([4, 6]), margin=st.floats(6, 90), keep=st.floats(0.05, 0.95)),
    st.builds(RQM, levels=st.just(16), margin=st.floats(15, 90), keep=st.floats(0.1, 0.9)),
)
orders = st.one_of(st.sampled_from([2.0, 3.0, 4.0, 8.0, 32.0]), st.floats(1.05, 2), st.floats(3, 40))
units = st.floats(-1, 1)


def total(laws, signs):
    out = np.ones(1)
    for sign in signs:
        out = np.convolve(out, laws[int(sign > 0)])
    return out


def divergence(p, q, alpha):
    keep = p > 0
    logs = alpha * np.log(p[keep]) + (1 - alpha) * np.log(q[keep])
    return (logs.max() + np.log(np.exp(logs - logs.max()).sum())) / (alpha - 1)


def coordinate(mech, u, v, signs, alpha):
    """D_α of one coordinate, the others at ±clip as ``signs`` say, by plain convolution."""
    base = total(mech.pmf(np.array([-mech.clip, mech.clip])), signs)
    return divergence(*(np.convolve(mech.pmf(w * mech.clip), base) for w in (u, v)), alpha)


def laws_of(mech):
    return tuple(map(tuple, mech.pmf(np.array([-mech.clip, mech.clip])).tolist()))


@settings(max_examples=120)
@given(one_cell, orders, st.integers(0, 6), units, units, st.data())
def test_no_pair_leaks_more_than_its_distance_allows(mech, alpha, others, u, v, data):
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=others, max_size=others))
    if abs(u - v) > 1e-3:
        value = np.expm1((alpha - 1) * coordinate(mech, u, v, signs, alpha))
        kappa = gain(laws_of(mech), (alpha,), others, "replace").kappa[0]
        assert value <= kappa * (u - v) ** 2 * (1 + 1e-6) + 1e-12
    if abs(u) > 1e-3:
        kappa = gain(laws_of(mech), (alpha,), others, "zero-out").kappa[0]
        for pair in ((u, 0), (0, u)):
            value = np.expm1((alpha - 1) * coordinate(mech, *pair, signs, alpha))
            assert value <= kappa * u**2 * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("alpha", [2.0, 5.0, 16.0])
@pytest.mark.parametrize("mech", [Rounding(levels=2, margin=2.0), RQM(levels=16, margin=20.0)], ids=repr)
def test_the_constant_is_the_smallest(mech, alpha):
    kappa = gain(laws_of(mech), (alpha,), 3, "replace").kappa[0]
    grid = [-1.0, -0.999, 0.999, 1.0]
    found = max(
        np.expm1((alpha - 1) * coordinate(mech, u, v, signs, alpha)) / (u - v) ** 2
        for u, v in product(grid, grid)
        if u != v
        for signs in product([-1, 1], repeat=3)
    )
    assert found == pytest.approx(kappa, rel=5e-3)


@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    "mech", [Rounding(levels=2, margin=1.0), RQM(levels=4, margin=8.0, keep=0.3), PBM(levels=3, theta=0.2)], ids=repr
)
def test_never_below_the_exhaustive_maximum(mech, dim, neighbours):
    """All vectors on a grid within the budget, all others at ±clip."""
    grid, clients, budget = np.linspace(-1, 1, 7), 3, 1.2
    signs = list(product([-1, 1], repeat=clients - 1))
    vectors = [x for x in product(grid, repeat=dim) if np.hypot.reduce(np.array([*x, 0.0])) <= budget]
    for alpha in (2.0, 3.0, 8.0):
        table = {(u, v): max(coordinate(mech, u, v, s, alpha) for s in signs) for u in grid for v in grid if u != v} | {
            (u, u): 0.0 for u in grid
        }
        zero = (0.0,) * dim
        pairs = (
            product(vectors, vectors)
            if neighbours == "replace"
            else [pair for x in vectors for pair in ((x, zero), (zero, x))]
        )
        near = {u: min(grid, key=lambda g: abs(g - u)) for u in (*grid, 0.0)}
        worst = max(sum(table[near[u], near[v]] for u, v in zip(x, y, strict=True)) for x, y in pairs)
        (bound,) = vector_rdp(mech, [alpha], honest=clients, dim=dim, l2_clip=budget, neighbours=neighbours)
        assert worst <= bound * (1 + 1e-9)


@settings(max_examples=30)
@given(st.floats(0.01, 0.4), st.integers(2, 6), orders, st.integers(1, 4), units, units)
def test_pbm_never_leaks_more(theta, levels, alpha, clients, u, v):
    mech = PBM(theta=theta, levels=levels)
    if abs(u - v) > 1e-3:
        exact = max(coordinate(mech, u, v, [s] * (clients - 1), alpha) for s in (-1, 1))
        budget = max(abs(u), abs(v))
        (bound,) = vector_rdp(mech, [alpha], honest=clients, dim=1, l2_clip=budget)
        assert exact <= bound * (1 + 1e-6) + 1e-12


@settings(max_examples=40)
@given(
    one_cell, st.integers(1, 40), st.integers(1, 10**6), st.floats(0.01, 100), st.sampled_from(["replace", "zero-out"])
)
def test_order_of_the_bounds(mech, honest, dim, budget, neighbours):
    alphas = [2.0, 4.0, 16.0]
    bound = vector_rdp(mech, alphas, honest=honest, dim=dim, l2_clip=budget, neighbours=neighbours)
    assert (np.diff(bound) >= -1e-9 * bound[1:]).all()  # rises with the order
    more = vector_rdp(mech, alphas, honest=honest + 1, dim=dim, l2_clip=budget, neighbours=neighbours)
    wider = vector_rdp(mech, alphas, honest=honest, dim=dim, l2_clip=1.1 * budget, neighbours=neighbours)
    longer = vector_rdp(mech, alphas, honest=honest, dim=dim + 1, l2_clip=budget, neighbours=neighbours)
    assert (more <= bound * (1 + 1e-9)).all()
    assert (wider >= bound * (1 - 1e-9)).all()
    assert (longer >= bound * (1 - 1e-9)).all()
    if neighbours == "replace":
        zero = vector_rdp(mech, alphas, honest=honest, dim=dim, l2_clip=budget, neighbours="zero-out")
        assert (zero <= bound * (1 + 1e-9)).all()


def test_never_above_dimension_times_the_worst_coordinate():
    for mech in (Rounding(levels=2, margin=3.0), RQM(levels=16, margin=40.0)):
        naive = [64 * bound.upper for bound in renyi(mech, [2.0, 8.0], 10)]
        for budget in (0.5, 4.0, 100.0):
            bound = vector_rdp(mech, [2.0, 8.0], honest=10, dim=64, l2_clip=budget)
            assert (bound <= np.array(naive) * (1 + 1e-6)).all()
    knots = RQM()  # levels inside the clip: under a budget at low orders alone
    naive = [7 * bound.upper for bound in renyi(knots, [2.0, 3.0], 5)]
    assert vector_rdp(knots, [2.0, 3.0], honest=5, dim=7, l2_clip=9.0).tolist() == naive
    low, high = vector_rdp(knots, [2.0, 3.0], honest=5, dim=7, l2_clip=0.1)
    assert low < 0.01 * naive[0]
    assert high == naive[1]


@pytest.mark.parametrize("law", ["paper", "sampled"])
@pytest.mark.parametrize("mech", [Rounding(levels=2, margin=20.7), RQM(levels=16, margin=87.0)], ids=repr)
def test_it_costs_what_the_central_gaussian_costs(mech, law):
    """theory: within 0.4 % of the Gaussian with the same variance at d = 2**20, n = 100, K = 4."""
    alphas = np.array([2.0, 4.0, 8.0])
    bound = vector_rdp(mech, alphas, honest=100, dim=2**20, l2_clip=1024 / 4, law=law)
    gaussian = alphas / 2 * (2 * 256) ** 2 / (100 * float(mech.variance(0.0)))
    assert (bound > gaussian).all()
    assert (bound < 1.004 * gaussian).all()


def test_blocks_of_splits_are_above_the_single_ones(monkeypatch):
    laws = laws_of(Rounding(levels=2, margin=5.0))
    exact = gain(laws, (2.0, 8.0), 60, "replace")
    monkeypatch.setattr("rqm.privacy.vector.SPLITS", 10)
    gain.cache_clear()
    coarse = gain(laws, (2.0, 8.0), 60, "replace")
    gain.cache_clear()
    assert (coarse.kappa >= exact.kappa).all()
    assert (coarse.kappa <= 1.2 * exact.kappa).all()


def test_composed_losses_stay_below():
    """ε of the composition of d exact pairs by dp-accounting's privacy loss distributions is below ours."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.rdp import compute_epsilon

    mech, dim, clients = Rounding(levels=2, margin=9.0), 100, 20
    base = total(mech.pmf(np.array([-1.0, 1.0])), [1] * (clients - 1))
    budget = 3.0  # every coordinate at 0.3
    p, q = (np.convolve(mech.pmf(w), base) for w in (0.3, -0.3))
    one = pld.from_two_probability_mass_functions(
        *({z: float(np.log(w)) for z, w in enumerate(law)} for law in (q, p)), value_discretization_interval=1e-4
    )
    exact = one.self_compose(dim).get_epsilon_for_delta(1e-5)
    alphas = [float(a) for a in (2, *range(3, 65))]
    ours, _ = compute_epsilon(alphas, vector_rdp(mech, alphas, honest=clients, dim=dim, l2_clip=budget), 1e-5)
    assert exact <= ours < 1.5 * exact


def test_bad_values_are_named():
    mech = Rounding(levels=2, margin=3.0)
    for changes, words in (
        ({"orders": [2.5]}, r"orders = \[2.5\]"),
        ({"orders": [1.0]}, "orders"),
        ({"honest": 0}, "honest = 0"),
        ({"dim": 0}, "dim = 0"),
        ({"l2_clip": float("nan")}, "l2_clip = nan"),
        ({"neighbours": "add"}, "neighbours = 'add'"),
    ):
        values = {"orders": [2.0], "honest": 3, "dim": 5, "l2_clip": 1.0, **changes}
        with pytest.raises(ValueError, match=words):
            vector_rdp(mech, values.pop("orders"), **values)
