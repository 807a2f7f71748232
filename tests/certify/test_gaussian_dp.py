"""The Gaussian certificate: against exact trade-off functions of whole small releases, and mpmath."""

from itertools import product
from math import inf, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import PBM, RQM, StochasticRounding
from rqm.accounting.release import Release
from rqm.bounds import gaussian_deltas, gaussian_epsilon, gaussian_mu
from rqm.certify.gaussian_dp import affine_gdp, affine_gdp_anywhere
from tests.certify.oracle import largest_normal_gap, release_pmf, sum_pmf

AFFINE = [
    StochasticRounding(clip=1.0, levels=2, margin=0.4),
    StochasticRounding(clip=1.0, levels=2, margin=3.0),
    RQM(clip=1.0, margin=2.5, levels=4, keep=0.5),
    RQM(clip=1.0, margin=9.0, levels=4, keep=0.3),
    PBM(clip=1.0, theta=0.3, levels=4),
]


def exact_delta(mu, epsilon):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@given(st.floats(1e-3, 60), st.floats(1e-12, 0.4))
def test_conversions_of_a_gaussian_are_exact(mu, delta):
    with mpmath.workdps(60):
        epsilon = gaussian_epsilon(mu, delta)
        assert exact_delta(mu, epsilon) <= delta
        if epsilon > 1e-3:
            assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta
            converted = gaussian_mu(epsilon, delta)
            assert exact_delta(converted, epsilon) <= delta
            assert converted == pytest.approx(mu, rel=1e-5)


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
def test_no_release_is_easier_to_distinguish(mechanism, neighboring):
    rng, closest = np.random.default_rng(3), 0.0
    for honest, dim, l2_clip in product((1, 2, 4), (1, 2, 3), (0.5, 1.0, 1.5)):
        bound = affine_gdp(mechanism, honest=honest, dim=dim, l2_clip=l2_clip, failure=1e-12, neighboring=neighboring)
        for draw in range(12):
            others = rng.choice([-1.0, 1.0], (honest - 1, dim)) if draw % 2 else rng.uniform(-1, 1, (honest - 1, dim))
            x, y = rng.normal(size=(2, dim))
            y = -x if draw % 3 else y
            x, y = (np.clip(v * l2_clip / np.linalg.norm(v), -1, 1) for v in (x, y))
            if neighboring == "zero-out":
                y = 0 * y
            exact = largest_normal_gap(*(release_pmf(mechanism, v, others) for v in (x, y)))
            assert exact <= bound * (1 + 1e-9)
            closest = max(closest, exact / bound)
    assert closest > (0.75 if isinstance(mechanism, PBM) else 0.98)  # whose trials count one by one


@pytest.mark.parametrize("mechanism", AFFINE[:4], ids=repr)
def test_a_certificate_that_is_two_percent_too_small_would_be_noticed(mechanism):
    """Between the ends of the clip the bound is attained, for the worst of the others."""
    for honest in (1, 2, 5):
        bound = affine_gdp(mechanism, honest=honest, dim=1, l2_clip=1.0, failure=1e-12)
        ends = product((-1.0, 1.0), repeat=honest - 1)
        exact = max(
            largest_normal_gap(*(sum_pmf(mechanism, [x, *other_inputs]) for x in (1, -1))) for other_inputs in ends
        )
        assert 0.98 * bound < exact <= bound * (1 + 1e-9)


def test_the_failure_probability_is_charged():
    """With a large one, δ is above that of the Gaussian alone, and never above the sum of both."""
    exceeded = 0
    for margin, failure in product((0.4, 2.0), (1e-2, 1e-4)):
        mechanism = StochasticRounding(clip=1.0, levels=2, margin=margin)
        bound = affine_gdp(mechanism, honest=40, dim=1, l2_clip=1.0, failure=failure)
        for high in (0, 10, 39):
            other_inputs = [1.0] * high + [-1.0] * (39 - high)
            p, q = (sum_pmf(mechanism, [x, *other_inputs]) for x in (1, -1))
            for epsilon in np.linspace(0, 3, 31):
                delta = max(np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))
                by_mu = gaussian_deltas(bound, np.array([epsilon]))[0]
                assert delta <= by_mu + failure
                exceeded += delta > by_mu
    assert exceeded


def test_one_bit_of_a_thousand_clients_is_nearly_a_gaussian():
    mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=24.1)
    mu = affine_gdp(mechanism, honest=1000, dim=2**20, l2_clip=1.0, failure=1e-9, distribution="sampled")
    assert 1 < mu * sqrt(1000 * mechanism.variance(0.0)) / 2 < 1.0035


def test_a_smaller_failure_probability_costs_a_larger_mu():
    mechanism = StochasticRounding(clip=1.0, levels=2, margin=0.5)
    mus = [affine_gdp(mechanism, honest=200, dim=1, l2_clip=1.0, failure=failure) for failure in (1e-3, 1e-9, 1e-30)]
    assert mus == sorted(mus)
    assert mus[0] < mus[-1]


def test_where_nothing_is_known_it_is_infinite():
    assert Release(RQM(keep=0.9), 2**20, 1e3).mu("replace-one", 2, 1e-9) == inf  # nobody is protected
    assert affine_gdp(AFFINE[0], honest=3000, dim=1, l2_clip=1.0, failure=1e-300) == inf  # tails are cut at more
    with pytest.raises(ValueError, match="failure = 0"):
        affine_gdp(AFFINE[0], honest=4, dim=1, l2_clip=1.0, failure=0)


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
def test_no_release_moved_anywhere_is_easier_to_distinguish(mechanism):
    """The two vectors lie anywhere in the clip, no farther apart than the sensitivity."""
    rng, closest = np.random.default_rng(4), 0.0
    for honest, dim, sensitivity in product((1, 2, 4), (1, 2), (0.3, 1.0, 2.0)):
        bound = affine_gdp_anywhere(mechanism, honest=honest, dim=dim, sensitivity=sensitivity, failure=1e-12)
        for draw in range(12):
            others = rng.choice([-1.0, 1.0], (honest - 1, dim))
            x = rng.choice([-1.0, 1.0], dim) if draw % 2 else rng.uniform(-1, 1, dim)
            step = -np.sign(x) * np.abs(rng.normal(size=dim))
            y = np.clip(x + sensitivity * step / np.linalg.norm(step), -1, 1)
            exact = largest_normal_gap(*(release_pmf(mechanism, v, others) for v in (x, y)))
            assert exact <= bound * (1 + 1e-9)
            closest = max(closest, exact / bound)
    assert closest > (0.6 if isinstance(mechanism, PBM) else 0.9)
