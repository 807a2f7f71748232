"""Transient noise: a table of integers, symmetric, drawn as it says, of known sums."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import SecureRandom, SeededRandom
from rqm.kernels.recipe import TABLE_BITS
from rqm.mechanisms.transient import Transient
from tests.goodness import p_value


@given(st.floats(0.5, 2048.0))
def test_its_table_is_a_law_symmetric_and_as_wide_as_asked(deviation):
    noise = Transient(deviation)
    units = noise.units
    assert int(units.sum()) == 2**TABLE_BITS
    assert (units > 0).all()
    assert (units == units[::-1]).all()
    assert noise.variance**0.5 == pytest.approx(deviation, rel=0.01 if deviation > 0.7 else 0.1)


@pytest.mark.parametrize("value", [0.49, 2049.0, float("nan"), "3", True])
def test_other_deviations_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="cancel"):
        Transient(value)


def test_the_law_of_a_sum_is_that_of_its_integers():
    noise = Transient(0.8)
    exact, parts = [Fraction(1)], [Fraction(int(unit), 2**TABLE_BITS) for unit in noise.units]
    for _ in range(3):
        exact = [
            sum(exact[i - j] * one for j, one in enumerate(parts) if 0 <= i - j < len(exact))
            for i in range(len(exact) + len(parts) - 1)
        ]
    law, lacks = noise.summed(3)
    middle = len(exact) // 2
    ours = dict(zip(range(-(len(law) // 2), len(law) // 2 + 1), law, strict=True))
    assert lacks < 1e-20
    for place, chance in ours.items():
        assert chance == pytest.approx(float(exact[middle + place]), rel=1e-10)


def test_it_is_drawn_as_it_says_and_a_law_slightly_off_is_noticed():
    noise = Transient(3.0)
    drawn = noise.draw(400_000, SeededRandom(5))
    counts = np.bincount(drawn + noise.reach, minlength=len(noise.units))
    assert p_value(counts, noise.units / 2.0**TABLE_BITS) > 1e-6
    other = Transient(3.03)
    law = np.zeros(len(noise.units))
    gap = other.reach - noise.reach
    law[:] = other.units[gap : len(other.units) - gap] if gap else other.units
    assert p_value(counts, law / law.sum()) < 1e-6


def test_secure_draws_never_repeat():
    noise = Transient(25.0)
    one, other = (noise.draw(1000, SecureRandom()) for _ in range(2))
    assert (one != other).any()
    assert abs(one).max() <= noise.reach
