"""The Gaussian certificate: against exact trade-off functions of whole small releases, and mpmath."""

from itertools import product
from math import inf, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rqm import PBM, RQM, Rounding
from rqm.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, vector_gdp

AFFINE = [
    Rounding(clip=1.0, levels=2, margin=0.4),
    Rounding(clip=1.0, levels=2, margin=3.0),
    RQM(clip=1.0, margin=2.5, levels=4, keep=0.5),
    RQM(clip=1.0, margin=9.0, levels=4, keep=0.3),
    PBM(clip=1.0, theta=0.3, levels=4),
]


def exact_delta(mu, epsilon):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@given(st.floats(1e-3, 60), st.floats(1e-12, 0.4))
def test_the_gaussians_own_account_is_exact(mu, delta):
    with mpmath.workdps(60):
        epsilon = gaussian_epsilon(mu, delta)
        assert exact_delta(mu, epsilon) <= delta
        if epsilon > 1e-3:
            assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta
            back = gaussian_mu(epsilon, delta)
            assert exact_delta(back, epsilon) <= delta
            assert back == pytest.approx(mu, rel=1e-5)


def law_of(mech, inputs):
    """The law of a sum of clients with these inputs of a coordinate."""
    found = np.ones(1)
    for x in inputs:
        found = np.convolve(found, mech.pmf(x))
    return found


def told_apart(p, q):
    """The largest Φ⁻¹(power) − Φ⁻¹(level) of all best tests, both ways."""
    most = 0.0
    for one, other in ((p, q), (q, p)):
        order = np.argsort(-one / other, kind="stable")
        power, level = np.cumsum(one[order])[:-1], np.cumsum(other[order])[:-1]
        rest, left = np.cumsum(one[order][::-1])[-2::-1], np.cumsum(other[order][::-1])[-2::-1]
        z = [np.where(a < b, norm.ppf(a), -norm.ppf(b)) for a, b in ((power, rest), (level, left))]
        most = max(most, float((z[0] - z[1]).max()))
    return most


def released(mech, own, others):
    """The law of a whole release: a product over coordinates."""
    found = np.ones(1)
    for j, x in enumerate(own):
        found = np.multiply.outer(found, law_of(mech, [x, *others[:, j]])).ravel()
    return found


@pytest.mark.parametrize("mech", AFFINE, ids=repr)
@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
def test_no_release_is_easier_to_tell_apart(mech, neighbours):
    rng, closest = np.random.default_rng(3), 0.0
    for honest, dim, l2_clip in product((1, 2, 4), (1, 2, 3), (0.5, 1.0, 1.5)):
        bound = vector_gdp(mech, honest=honest, dim=dim, l2_clip=l2_clip, lost=1e-12, neighbours=neighbours)
        for turn in range(12):
            others = rng.choice([-1.0, 1.0], (honest - 1, dim)) if turn % 2 else rng.uniform(-1, 1, (honest - 1, dim))
            x, y = rng.normal(size=(2, dim))
            y = -x if turn % 3 else y
            x, y = (np.clip(v * l2_clip / np.linalg.norm(v), -1, 1) for v in (x, y))
            if neighbours == "zero-out":
                y = 0 * y
            found = told_apart(*(released(mech, v, others) for v in (x, y)))
            assert found <= bound * (1 + 1e-9)
            closest = max(closest, found / bound)
    assert closest > (0.75 if isinstance(mech, PBM) else 0.98)  # of whom every trial is shown


@pytest.mark.parametrize("mech", AFFINE[:4], ids=repr)
def test_a_certificate_that_is_two_per_cent_too_small_would_be_caught(mech):
    """Between the ends of the clip it is what it must be, for the worst of the others."""
    for honest in (1, 2, 5):
        bound = vector_gdp(mech, honest=honest, dim=1, l2_clip=1.0, lost=1e-12)
        ends = product((-1.0, 1.0), repeat=honest - 1)
        found = max(told_apart(law_of(mech, [1, *rest]), law_of(mech, [-1, *rest])) for rest in ends)
        assert 0.98 * bound < found <= bound * (1 + 1e-9)


def test_what_is_lost_is_charged():
    """With a large part lost, δ is above the Gaussian's alone, and never above what is stated."""
    over = 0
    for margin, lost in product((0.4, 2.0), (1e-2, 1e-4)):
        mech = Rounding(clip=1.0, levels=2, margin=margin)
        bound = vector_gdp(mech, honest=40, dim=1, l2_clip=1.0, lost=lost)
        for high in (0, 10, 39):
            rest = [1.0] * high + [-1.0] * (39 - high)
            p, q = (law_of(mech, [x, *rest]) for x in (1, -1))
            for epsilon in np.linspace(0, 3, 31):
                delta = max(np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))
                alone = gaussian_delta(bound, epsilon)
                assert delta <= alone + lost
                over += delta > alone
    assert over


def test_a_bit_of_a_thousand_clients_is_nearly_a_gaussian():
    mech = Rounding(clip=4 / 1024, levels=2, margin=24.1)
    found = vector_gdp(mech, honest=1000, dim=2**20, l2_clip=1.0, lost=1e-9, law="sampled")
    assert 1 < found * sqrt(1000 * mech.variance(0.0)) / 2 < 1.0035


def test_less_is_lost_for_a_larger_mu():
    mech = Rounding(clip=1.0, levels=2, margin=0.5)
    found = [vector_gdp(mech, honest=200, dim=1, l2_clip=1.0, lost=lost) for lost in (1e-3, 1e-9, 1e-30)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_what_is_refused():
    assert vector_gdp(RQM(keep=0.9), honest=2, dim=2**20, l2_clip=1e3, lost=1e-9) == inf  # nobody is protected
    assert vector_gdp(AFFINE[0], honest=3000, dim=1, l2_clip=1.0, lost=1e-300) == inf  # less than can be told apart
    with pytest.raises(ValueError, match="delta = 0"):
        vector_gdp(AFFINE[0], honest=4, dim=1, l2_clip=1.0, lost=0)
