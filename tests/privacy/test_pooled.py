"""Trials of a coordinate taken together: never below what two inputs are told apart by, and near it."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom

from rqm import PBM
from rqm.privacy.attained import attained_epsilon
from rqm.privacy.gaussian import gaussian_epsilon, vector_gdp
from rqm.privacy.pooled import pooled

NOTHING = 1e-200


def apart(p, trials, others, u, v):
    """μ of two inputs, by all events {sum ≥ t}; each other client's trials have a chance of their own."""

    def law(x):
        own = binom.pmf(np.arange(trials + 1), trials, 0.5 + x * (p - 0.5))
        return reduce(np.convolve, [binom.pmf(np.arange(trials + 1), trials, 0.5 + y * (p - 0.5)) for y in others], own)

    def normal(x):
        found, missed = np.cumsum(law(x)[::-1])[::-1][1:], np.cumsum(law(x))[:-1]
        return np.where(found < missed, ndtri(np.minimum(found, 0.5)), -ndtri(np.minimum(missed, 0.5)))

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
    found = pooled((1 - p, p), trials, len(others) + 1, "replace", NOTHING)
    mu = apart(p, trials, others, u, v)
    assert mu**2 <= 2 * found.per_square * (u * u + v * v) * (1 + 1e-9) + 1e-12
    assert mu**2 <= found.most * (1 + 1e-9)
    zero = pooled((1 - p, p), trials, len(others) + 1, "zero-out", NOTHING)
    mu = apart(p, trials, others, u, 0.0)
    assert mu**2 <= zero.per_square * u * u * (1 + 1e-9) + 1e-12
    assert mu**2 <= zero.most * (1 + 1e-9)


def test_it_is_near_the_worst_that_a_search_finds():
    p, trials, clients = 0.9, 4, 4
    found = pooled((1 - p, p), trials, clients, "replace", NOTHING)
    inputs = np.linspace(0.05, 1, 20)
    worst = max(
        apart(p, trials, [1.0] * up + [-1.0] * (clients - 1 - up), x, -y) ** 2 / (2 * (x * x + y * y))
        for x in inputs
        for y in inputs[::4]
        for up in range(clients)
    )
    assert worst <= found.per_square <= 1.1 * worst


@pytest.mark.parametrize(("theta", "clip", "dim"), [(0.4984, 1.0, 16), (0.49375, 8**-0.5, 128)])
def test_many_clients_who_may_all_stand_at_one_end_are_stated_near_what_is_attained(theta, clip, dim):
    mech = PBM(theta=theta, clip=clip)
    mu = vector_gdp(mech, honest=10_000, dim=dim, l2_clip=1.0, lost=1e-9, law="sampled")
    reached = attained_epsilon(mech, 10_000, dim, 1.0, 1e-6)
    assert reached <= gaussian_epsilon(mu, 0.999e-6) <= 1.15 * reached


def test_outcomes_in_the_tails_are_left_out():
    few, all_of_it = (pooled((0.01, 0.99), 15, 300, "replace", tail) for tail in (1e-9, 1e-30))
    assert few.per_square < all_of_it.per_square
    assert few.most < all_of_it.most
