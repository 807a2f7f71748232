"""Correlated noise: a symmetric table of integers, sampled as stated, whose sums have known pmfs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import CorrelatedNoise, SecureRandom, SeededRandom
from rqm.kernels.integer_sampler import TABLE_BITS
from tests.goodness import p_value


@given(st.floats(0.5, 2048.0))
def test_its_table_is_a_symmetric_pmf_of_the_stated_deviation(deviation):
    noise = CorrelatedNoise(deviation)
    units = noise.units
    assert int(units.sum()) == 2**TABLE_BITS
    assert (units > 0).all()
    assert (units == units[::-1]).all()
    assert noise.added_variance**0.5 == pytest.approx(deviation, rel=0.01 if deviation > 0.7 else 0.1)


def test_variances_of_both_messages():
    noise = CorrelatedNoise(6.0, 1.5, 8)
    transient, residual = CorrelatedNoise(6.0).added_variance, CorrelatedNoise(1.5).added_variance
    assert noise.added_variance == pytest.approx(transient + 64 * residual)
    assert noise.canceled_variance == pytest.approx(transient + 49 * residual)


@pytest.mark.parametrize("value", [0.49, 2049.0, float("nan"), "3", True])
def test_deviations_without_a_table_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="noise"):
        _ = CorrelatedNoise(value).units
    with pytest.raises((ValueError, TypeError), match="noise"):
        _ = CorrelatedNoise(8.0, value, 2).residual.units


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.0,), "noise.transient_std"),
        ((8.0, -1.0, 2), "noise.residual_std"),
        ((8.0, 1.0), "noise.gain = 1"),
        ((8.0, 1.0, 2.5), "noise.gain"),
        ((8.0, 1.0, 1025), "noise.gain"),
        ((8.0, 0.0, 2), "noise.gain = 2: must be 1 without residual noise"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        CorrelatedNoise(*values)


@pytest.mark.parametrize("value", [{"transient_std": 30, "residual_std": 2, "gain": 5}, CorrelatedNoise(30, 2, 5)])
def test_it_is_built_from_a_table(value):
    noise = CorrelatedNoise.of(value)
    assert noise == CorrelatedNoise(30.0, 2.0, 5)
    assert CorrelatedNoise.of(noise.to_dict()) == noise


@pytest.mark.parametrize("value", [True, "nonsense", (30.0, 2.0, 5), {"transient_std": 3.0, "goes": 1}, {"gain": 1}])
def test_other_tables_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="noise"):
        CorrelatedNoise.of(value)


def test_the_pmf_of_a_sum_is_that_of_its_integers():
    noise = CorrelatedNoise(0.8)
    exact, units = [Fraction(1)], [Fraction(int(unit), 2**TABLE_BITS) for unit in noise.units]
    for _ in range(3):
        exact = [
            sum(exact[i - j] * unit for j, unit in enumerate(units) if 0 <= i - j < len(exact))
            for i in range(len(exact) + len(units) - 1)
        ]
    pmf, missing = noise.summed(3)
    middle = len(exact) // 2
    assert missing < 1e-20
    for outcome, probability in enumerate(pmf, start=-(len(pmf) // 2)):
        assert probability == pytest.approx(float(exact[middle + outcome]), rel=1e-10)


def test_draws_follow_the_table_and_a_pmf_slightly_off_is_noticed():
    noise = CorrelatedNoise(3.0)
    drawn = noise.draw(400_000, SeededRandom(5))
    counts = np.bincount(drawn + noise.largest, minlength=len(noise.units))
    assert p_value(counts, noise.units / 2.0**TABLE_BITS) > 1e-6
    different = CorrelatedNoise(3.03)
    excess = different.largest - noise.largest
    pmf = (different.units[excess : len(different.units) - excess] if excess else different.units).astype(float)
    assert p_value(counts, pmf / pmf.sum()) < 1e-6


def test_draws_from_a_secret_follow_the_table_and_are_reproducible():
    noise, secret = CorrelatedNoise(3.0), bytes(range(32))
    drawn = noise.draw_from_secret(secret, 200_000)
    assert (drawn == noise.draw_from_secret(secret, 200_000)).all()
    assert (drawn != noise.draw_from_secret(bytes(32), 200_000)).any()
    counts = np.bincount(drawn + noise.largest, minlength=len(noise.units))
    assert p_value(counts, noise.units / 2.0**TABLE_BITS) > 1e-6


@pytest.mark.parametrize("from_secret", [False, True])
def test_residual_noise_is_what_remains_of_both_messages(from_secret):
    noise, count = CorrelatedNoise(20.0, 2.0, 8), 100_000
    drawn = noise.draw_from_secret(bytes(32), count) if from_secret else noise.draw(count, SeededRandom(6))
    residual = noise.added(drawn) - noise.canceled(drawn)
    counts = np.bincount(residual + noise.residual.largest, minlength=len(noise.residual.units))
    assert p_value(counts, noise.residual.units / 2.0**TABLE_BITS) > 1e-6
    transient = noise.added(drawn) - 8 * residual
    counts = np.bincount(transient + noise.largest, minlength=len(noise.units))
    assert p_value(counts, noise.units / 2.0**TABLE_BITS) > 1e-6
    assert (noise.checked(drawn, count) == drawn).all()


def test_secure_draws_never_repeat():
    noise = CorrelatedNoise(25.0)
    first, second = (noise.draw(1000, SecureRandom()) for _ in range(2))
    assert (first != second).any()
    assert abs(first).max() <= noise.largest
