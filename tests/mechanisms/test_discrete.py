"""What all channels share: the integer table, positions, the encoder and the decoder."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import PBM, RQM, SecureRandom, SeededRandom, StochasticRounding
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS
from tests.goodness import p_value

keeps = st.one_of(st.floats(1e-6, 1 - 1e-6), st.sampled_from([1e-6, 0.5, 1 - 1e-6]))


@given(levels=st.integers(2, 256), keep=keeps, margin=st.floats(0.01, 5), x=st.floats(-1, 1), data=st.data())
def test_the_integer_table_keeps_total_mean_support_and_law(levels, keep, margin, x, data):
    if data.draw(st.booleans()):
        keep = data.draw(st.lists(keeps, min_size=levels - 2, max_size=levels - 2))
    mech = RQM(levels=levels, keep=keep, margin=margin)
    table = mech.table.astype(object)
    assert (table.sum(axis=1) == 2**TABLE_BITS).all()
    assert (table @ np.arange(levels) == np.arange(levels).astype(object) * 2**TABLE_BITS).all()
    assert ((table > 0) == np.isfinite(mech.log_rows())).all()
    sampled = mech.sampled_pmf(x)
    assert sum(sampled) == 1
    assert abs(sampled.astype(float) - mech.pmf(x)).sum() / 2 <= 2**-24
    assert sum(Fraction(i) * p for i, p in enumerate(sampled)) == Fraction(int(mech.position(x)), 2**POSITION_BITS)


@given(x=st.floats(allow_nan=False, allow_infinity=False), clip=st.floats(1e-280, 1e280))
def test_every_float_lands_between_the_accounted_ends(x, clip):
    for mech in (RQM(clip=clip), StochasticRounding(clip=clip, levels=7)):
        low, high = (int(mech.position(end)) for end in (-clip, clip))
        assert low <= int(mech.position(x)) <= high
        assert low + high == (mech.levels - 1) << POSITION_BITS


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), [0.0, float("-inf")]])
def test_inputs_that_are_not_finite_are_refused(bad):
    for ask in (RQM().pmf, RQM().sampled_pmf, RQM().variance, lambda x: RQM().encode(x, SeededRandom(0))):
        with pytest.raises(ValueError, match="finite"):
            ask(bad)


def test_inputs_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match="ragged"):
        RQM().pmf([[1.0], [1.0, 2.0]])
    with pytest.raises(TypeError, match="dtype"):
        RQM().pmf(["a"])
    with pytest.raises(TypeError, match="dtype"):
        RQM().pmf([1j])


def test_shapes_are_kept():
    mech = RQM(levels=5)
    assert mech.pmf(np.zeros((2, 3))).shape == (2, 3, 5)
    assert mech.sampled_pmf(0.0).shape == (5,)
    assert mech.encode(np.zeros((2, 3)), SeededRandom(0)).shape == (2, 3)
    assert mech.encode([], SeededRandom(0)).shape == (0,)
    assert mech.encode(0.5, SeededRandom(0)).dtype == np.uint8


def test_only_the_two_sources_of_randomness_are_taken():
    for wrong in (np.random.default_rng(0), 7, None):
        with pytest.raises(TypeError, match=r"SecureRandom.*SeededRandom"):
            RQM().encode([0.1], wrong)


def test_decode_is_the_papers_formula_and_checks_its_range():
    mech = RQM(clip=1.5, margin=1.0)
    assert mech.decode(100, 40) == pytest.approx(-3.0 + 2 * 100 * 3.0 / (40 * 15))
    with pytest.raises(ValueError, match=r"z_sum contains 601.*0\.\.600"):
        mech.decode(601, 40)
    with pytest.raises(ValueError, match="clients"):
        mech.decode(1, 0)


MECHANISMS = [
    RQM(),
    RQM(margin=0.66, keep=0.33, levels=5),
    RQM(levels=6, keep=(0.9, 0.1, 0.5, 0.02)),
    PBM(theta=0.35, levels=6),
    StochasticRounding(levels=2, margin=2.0),
    RQM(levels=300, keep=0.05, margin=0.2),
]
INPUTS = [0.1234, "knot", "low", "high", 7.5, -1.0000001]


def draws(mech, x, rng, count=400_000):
    values = {"knot": mech.breakpoints[len(mech.breakpoints) // 2], "low": -mech.clip, "high": mech.clip}
    x = values.get(x, x)
    return x, np.bincount(mech.encode(np.full(count, x), rng), minlength=mech.levels)


@pytest.mark.statistical
@pytest.mark.parametrize("x", INPUTS)
@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_encoder_draws_from_the_sampled_law(mech, x):
    x, observed = draws(mech, x, SeededRandom(11))
    assert p_value(observed, mech.sampled_pmf(x)) > 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize("mech", [RQM(), RQM(levels=6, keep=(0.9, 0.1, 0.5, 0.02))], ids=repr)
def test_the_same_test_rejects_a_law_two_per_cent_off(mech):
    """The power of the test above, at the same number of draws and the same level."""
    wrong = RQM(levels=mech.levels, keep=(mech.keeps[1:-1] * 0.98).tolist())
    x, observed = draws(mech, 0.1234, SeededRandom(11))
    assert p_value(observed, wrong.sampled_pmf(x)) < 1e-6


@pytest.mark.statistical
def test_pbm_encoder_test_has_power():
    x, observed = draws(PBM(theta=0.35, levels=6), 0.9, SeededRandom(3))
    assert p_value(observed, PBM(theta=0.35 * 1.02, levels=6).sampled_pmf(x)) < 1e-6


@pytest.mark.statistical
def test_secure_randomness_draws_from_the_same_law():
    x, observed = draws(RQM(), 0.5, SecureRandom())
    assert p_value(observed, RQM().sampled_pmf(x)) > 1e-9


@pytest.mark.statistical
def test_decoded_mean_is_unbiased():
    mech, n = RQM(clip=1.5), 40
    x = np.linspace(-1.5, 1.5, n)
    rounds = 4000
    z = mech.encode(np.tile(x, (rounds, 1)), SeededRandom(5)).astype(int).sum(axis=1)
    estimates = mech.decode(z, n)
    error = np.sqrt(mech.variance(x).sum() / n**2 / rounds)
    assert abs(estimates.mean() - x.mean()) < 5 * error
    assert estimates.var() == pytest.approx(mech.variance(x).sum() / n**2, rel=0.15)
