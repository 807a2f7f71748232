"""RQM's law against the definition: all kept sets enumerated, in fractions."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import log, mp, mpf

from rqm import RQM
from tests.mechanisms.oracle import exact_rqm, exact_rqm_at


def brute_force(mech: RQM, x: Fraction) -> list[Fraction]:
    """Algorithm 2 itself: every set of kept levels with its probability, then randomized rounding."""
    m = mech.levels
    extent = Fraction(mech.clip) * (1 + Fraction(mech.margin))
    level = [-extent + 2 * extent * i / (m - 1) for i in range(m)]
    keep = [Fraction(q) for q in mech.keeps]
    law = [Fraction(0)] * m
    for choice in product((False, True), repeat=m - 2):
        kept = [0, *(i for i in range(1, m - 1) if choice[i - 1]), m - 1]
        chance = Fraction(1)
        for i in range(1, m - 1):
            chance *= keep[i] if choice[i - 1] else 1 - keep[i]
        low = max(i for i in kept if level[i] <= x and i < m - 1)
        high = min(i for i in kept if i > low)
        up = (x - level[low]) / (level[high] - level[low])
        law[high] += chance * up
        law[low] += chance * (1 - up)
    return law


CASES = [
    (2, 1.0, 0.42),
    (3, 0.5, 0.1),
    (4, 2.0, (0.3, 0.9)),
    (6, 0.66, 0.33),
    (7, 1.0, (0.01, 0.5, 0.99, 0.2, 0.7)),
    (9, 4.0, 0.5),
    (10, 1.0, 0.42),
    (10, 0.25, tuple(0.05 + 0.1 * k for k in range(8))),
]


@pytest.mark.parametrize(("levels", "margin", "keep"), CASES)
def test_law_equals_enumeration_of_all_kept_sets(levels, margin, keep):
    mech = RQM(clip=1.5, margin=margin, levels=levels, keep=keep)
    for x in (Fraction(-3, 2), Fraction(-1, 7), Fraction(0), Fraction(3, 10), Fraction(1), Fraction(3, 2)):
        truth = brute_force(mech, x)
        assert exact_rqm(mech, x) == truth  # in fractions: equal, not close
        assert sum(truth) == 1
        extent = Fraction(mech.clip) * (1 + Fraction(margin))
        assert sum(p * (-extent + 2 * extent * i / (levels - 1)) for i, p in enumerate(truth)) == x
        np.testing.assert_allclose(mech.pmf(float(x)), [float(p) for p in truth], rtol=1e-12, atol=1e-15)


def test_a_law_that_is_slightly_off_is_told_apart():
    """The comparison above has power: two per cent in q is seen."""
    truth = brute_force(RQM(levels=6, keep=0.42), Fraction(1, 3))
    wrong = exact_rqm(RQM(levels=6, keep=0.42 * 1.02), Fraction(1, 3))
    assert wrong != truth
    assert max(abs(a - b) for a, b in zip(truth, wrong, strict=True)) > 1e-3


@pytest.mark.parametrize("keep", [1e-6, 0.01, 0.42, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("levels", [3, 16, 64])
def test_log_law_is_accurate_where_floats_underflow(levels, keep):
    mech = RQM(levels=levels, keep=keep, margin=0.5)
    rows = mech.log_rows()
    for j in range(0, levels, 5):
        exact = exact_rqm_at(mech, Fraction(j))
        assert [p == 0 for p in exact] == np.isneginf(rows[j]).tolist()
        for p, logarithm in zip(exact, rows[j], strict=True):
            with mp.workdps(40):
                assert p == 0 or abs(logarithm - log(mpf(p.numerator)) + log(mpf(p.denominator))) < 1e-11


@pytest.mark.parametrize("keep", [1e-6, 1e-3, 0.42, 1 - 1e-3, 1 - 1e-6])
def test_law_is_stable_at_1024_levels(keep):
    mech = RQM(levels=1024, keep=keep, margin=0.3)
    pmf = mech.pmf(mech.breakpoints[::100])
    assert np.isfinite(pmf).all()
    np.testing.assert_allclose(pmf.sum(axis=-1), 1, rtol=1e-11)
    np.testing.assert_allclose(pmf @ mech.grid.values, mech.breakpoints[::100], atol=1e-9)
    inner = mech.log_rows()[1:-1]  # the end levels are always kept: theirs are point masses
    assert np.isfinite(inner).all()


@given(
    levels=st.integers(2, 40),
    keep=st.floats(1e-6, 1 - 1e-6),
    margin=st.floats(0.01, 10),
    x=st.floats(-1, 1),
)
def test_law_is_affine_within_a_cell_and_unbiased(levels, keep, margin, x):
    mech = RQM(levels=levels, keep=keep, margin=margin)
    law = mech.pmf(x)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert law @ mech.grid.values == pytest.approx(x, abs=1e-11 * (1 + margin))
    cell = np.clip(np.searchsorted(mech.grid.values, x) - 1, 0, levels - 2)
    low = max(mech.grid.values[cell], -1.0)
    high = min(mech.grid.values[cell + 1], 1.0)
    t = (x - low) / (high - low)
    np.testing.assert_allclose(law, (1 - t) * mech.pmf(low) + t * mech.pmf(high), atol=1e-12)


@pytest.mark.parametrize(
    ("margin", "keep", "at_zero", "at_clip"),
    [(1.0, 0.42, 0.2435, 0.2154), (2.0, 0.57, 0.2509, 0.2086), (0.66, 0.33, 0.2839, 0.2091)],
)
def test_variances_of_the_papers_settings(margin, keep, at_zero, at_clip):
    mech = RQM(clip=1.5, margin=margin, keep=keep)
    assert mech.variance(0.0) / 1.5**2 == pytest.approx(at_zero, abs=5e-5)
    assert mech.variance(1.5) / 1.5**2 == pytest.approx(at_clip, abs=5e-5)


def test_variance_max_is_the_largest_on_a_fine_grid():
    for mech in (RQM(), RQM(margin=0.1, levels=5, keep=0.9), RQM(margin=3, keep=0.2)):
        fine = mech.variance(np.linspace(-1, 1, 20_001)).max()
        assert fine <= mech.variance_max * (1 + 1e-12)
        assert mech.variance_max == pytest.approx(fine, rel=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("levels", 1),
        ("levels", 0),
        ("levels", 1025),
        ("keep", 0.0),
        ("keep", 1.0),
        ("keep", -0.1),
        ("keep", float("nan")),
        ("margin", 0.0),
        ("margin", -1.0),
        ("margin", float("inf")),
        ("margin", float("nan")),
        ("clip", 0.0),
        ("clip", float("inf")),
        ("keep", (0.5, 0.5)),
        ("keep", (0.5,) * 13 + (1.5,)),
    ],
)
def test_parameters_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        RQM(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("levels", 4.0), ("levels", "16"), ("keep", "a"), ("margin", None)])
def test_parameters_of_the_wrong_type_are_named(field, value):
    with pytest.raises(TypeError, match=field):
        RQM(**{field: value})


def test_value_semantics():
    mech = RQM(clip=1.5, levels=4, keep=[0.25, 0.5])
    assert mech == RQM(clip=1.5, levels=4, keep=(0.25, 0.5)) != RQM(clip=1.5, levels=4, keep=(0.25, 0.6))
    assert repr(mech) == "RQM(clip=1.5, margin=1.0, levels=4, keep=(0.25, 0.5))"
    assert RQM.from_dict(mech.to_dict()) == mech
    assert hash(mech) == hash(RQM.from_dict(mech.to_dict()))
    with pytest.raises(AttributeError):
        mech.clip = 2.0
