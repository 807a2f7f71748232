"""PBM, rounding and the noise-free baseline."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from rqm import PBM, RQM, Noiseless, SeededRandom, StochasticRounding, mechanism_from_dict
from rqm.mechanisms.table_mechanism import TableMechanism


@pytest.mark.parametrize("theta", [0.05, 0.25, 0.4, 0.49])
@pytest.mark.parametrize("levels", [2, 16, 300])
def test_pbm_is_the_binomial(theta, levels):
    mech = PBM(clip=2.0, theta=theta, levels=levels)
    for x in (-2.0, 0.3, 2.0):
        p = Fraction(1, 2) + Fraction(theta) * Fraction(x) / 2
        n = levels - 1
        truth = [float(comb(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n + 1)]
        np.testing.assert_allclose(mech.pmf(x), truth, rtol=1e-11, atol=1e-300)
        assert mech.pmf(x) @ mech.grid.values == pytest.approx(x, abs=1e-10)
        assert mech.variance(x) == pytest.approx(mech.pmf(x) @ (mech.grid.values - x) ** 2, rel=1e-9)


def test_pbm_variances_of_the_papers_setting():
    assert PBM().variance(0.0) == pytest.approx(0.2667, abs=5e-5)
    assert PBM().variance(1.0) == pytest.approx(0.2, abs=5e-5)
    assert PBM().variance_max == PBM().variance(0.0)


def test_pbm_sampled_law_is_exact_and_close():
    mech = PBM(theta=0.25, levels=16)
    for x in (-1.0, 0.123, 1.0):
        sampled = mech.sampled_pmf(x)
        assert sum(sampled) == 1
        mean = sum(k * p for k, p in enumerate(sampled))
        assert float(mean) == pytest.approx(15 * (0.5 + 0.25 * x), abs=1e-6)
        assert abs(sampled.astype(float) - mech.pmf(x)).sum() / 2 < 2**-21


def test_pbm_is_not_a_table():
    assert not isinstance(PBM(), TableMechanism)  # its law is not affine in x between levels
    assert not hasattr(PBM(), "log_rows")
    assert PBM().is_affine  # but trial by trial it is


@pytest.mark.parametrize("theta", [0.0, 0.5, -0.1, float("nan")])
def test_pbm_theta_out_of_range(theta):
    with pytest.raises(ValueError, match=r"theta.*between 0 and 1/2"):
        PBM(theta=theta)


def test_rounding_uses_the_two_neighbours():
    mech = StochasticRounding(clip=1.0, levels=5)
    assert mech.pmf(0.6).round(12).tolist() == [0, 0, 0, 0.8, 0.2]
    assert mech.variance(0.6) == pytest.approx(0.16 * 0.25)
    np.testing.assert_allclose(np.exp(mech.log_rows()), np.eye(5))
    assert sum(mech.sampled_pmf(0.6)) == 1


def test_one_bit_is_rounding_with_a_margin():
    mech = StochasticRounding(levels=2, margin=3.0)
    np.testing.assert_allclose(mech.pmf([-1.0, 1.0]), [[0.625, 0.375], [0.375, 0.625]])
    assert mech.bits == 1
    assert mech.breakpoints.tolist() == [-1.0, 1.0]


def test_many_levels_cost_nothing():
    mech = StochasticRounding(levels=65_536)
    z = mech.encode(np.linspace(-1, 1, 1001), SeededRandom(0))
    assert z.dtype == np.uint16
    assert abs(mech.decode(z, 1) - np.linspace(-1, 1, 1001)).max() <= mech.grid.step
    assert "table" not in mech.__dict__  # the identity was never built


def test_noiseless_has_no_pmf():
    mech = Noiseless(clip=2.0)
    assert mech.encode([5.0, -1.0]).tolist() == [2.0, -1.0]
    assert mech.decode(mech.encode([5.0]), 2).tolist() == [1.0]
    assert mech.variance([0.5]).tolist() == [0.0]
    for ask in (mech.pmf, mech.sampled_pmf, mech.log_pmf_at):
        with pytest.raises(TypeError, match="no pmf"):
            ask(0.0)


@pytest.mark.parametrize(
    "mech", [RQM(keep=0.3), PBM(theta=0.1, levels=5), StochasticRounding(levels=2, margin=4.0), Noiseless(clip=0.5)]
)
def test_dicts_go_there_and_back(mech):
    assert mechanism_from_dict(mech.to_dict()) == mech
    assert mech.kind in mech.to_dict().values()


def test_unknown_mechanisms_are_named():
    with pytest.raises(ValueError, match=r"'gauss'.*rqm"):
        mechanism_from_dict({"mechanism": "gauss"})
    with pytest.raises(ValueError, match="must be 'rqm'"):
        RQM.from_dict({"mechanism": "pbm"})
