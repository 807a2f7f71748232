"""Trials of a coordinate taken together: never below what tells two inputs apart, and near it."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom

from rqm import PBM
from rqm.audit.attained import attained_epsilon
from rqm.bounds import gaussian_epsilon
from rqm.certify.gaussian_dp import affine_gdp
from rqm.certify.trials import summed_trials

TAIL = 1e-200
"""A tail of hardly any outcome."""


def exact_mu(p, trials, others, u, v):
    """μ of two inputs, by all events {sum ≥ t}; each other client's trials have an input of their own."""

    def pmf(x):
        inputs = [x, *others]
        return reduce(np.convolve, [binom.pmf(np.arange(trials + 1), trials, 0.5 + y * (p - 0.5)) for y in inputs])

    def normal(x):
        inside, outside = np.cumsum(pmf(x)[::-1])[::-1][1:], np.cumsum(pmf(x))[:-1]
        return np.where(inside < outside, ndtri(np.minimum(inside, 0.5)), -ndtri(np.minimum(outside, 0.5)))

    return float(abs(normal(u) - normal(v)).max())


@settings(max_examples=60)
@given(
    st.floats(0.52, 0.97),
    st.integers(2, 5),
    st.lists(st.sampled_from([-1.0, 1.0, 0.4, 0.0]), max_size=4),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_no_two_inputs_are_told_apart_better(p, trials, others, u, v):
    bound = summed_trials((1 - p, p), trials, len(others) + 1, "replace-one", TAIL)
    mu = exact_mu(p, trials, others, u, v)
    assert mu**2 <= 2 * bound.per_square * (u * u + v * v) * (1 + 1e-9) + 1e-12
    assert mu**2 <= bound.largest * (1 + 1e-9)
    bound = summed_trials((1 - p, p), trials, len(others) + 1, "zero-out", TAIL)
    mu = exact_mu(p, trials, others, u, 0.0)
    assert mu**2 <= bound.per_square * u * u * (1 + 1e-9) + 1e-12
    assert mu**2 <= bound.largest * (1 + 1e-9)


def test_the_bound_is_near_the_worst_that_a_search_finds():
    p, trials, clients = 0.9, 4, 4
    bound = summed_trials((1 - p, p), trials, clients, "replace-one", TAIL)
    inputs = np.linspace(0.05, 1, 20)
    worst = max(
        exact_mu(p, trials, [1.0] * up + [-1.0] * (clients - 1 - up), x, -y) ** 2 / (2 * (x * x + y * y))
        for x in inputs
        for y in inputs[::4]
        for up in range(clients)
    )
    assert worst <= bound.per_square <= 1.1 * worst


def test_fewer_splits_of_the_others_loosen_the_bound():
    arguments = (0.1, 0.9), 3, 30, "replace-one", 1e-30
    exact, coarse = summed_trials(*arguments), summed_trials(*arguments, max_splits=10)
    assert exact.per_square < coarse.per_square < 1.3 * exact.per_square
    assert exact.largest < coarse.largest


@pytest.mark.parametrize(("theta", "clip", "dim"), [(0.4984, 1.0, 16), (0.49375, 8**-0.5, 128)])
def test_many_clients_who_may_all_be_at_one_end_are_bounded_near_what_is_attained(theta, clip, dim):
    mechanism = PBM(theta=theta, clip=clip)
    mu = affine_gdp(mechanism, honest=10_000, dim=dim, l2_clip=1.0, failure=1e-9, distribution="sampled")
    attained = attained_epsilon(mechanism, 10_000, dim, 1.0, 1e-6)
    assert attained <= gaussian_epsilon(mu, 0.999e-6) <= 1.15 * attained


def test_outcomes_in_the_tails_are_left_out():
    with_tail, without = (summed_trials((0.01, 0.99), 15, 300, "replace-one", tail) for tail in (1e-9, 1e-30))
    assert with_tail.per_square < without.per_square
    assert with_tail.largest < without.largest
