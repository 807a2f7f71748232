"""MVU with an alphabet of its own: unbiased and private in the deployed integers, and what moving outcomes buys."""

from fractions import Fraction
from math import exp, log, sqrt

import numpy as np
import pytest

from rqm import SeededRandom, advise, renyi
from rqm.advice.design import private_table, program, pure_loss
from rqm.advice.mvu import _slopes, _spread, alphabet, average_variance, from_histogram, own_alphabet
from rqm.mechanisms.table_mechanism import integer_row
from tests.goodness import p_value

CASES = [(1.0, 8), (3.0, 8), (3.0, 5), (5.4699, 6)]


@pytest.mark.parametrize(("epsilon", "levels"), CASES)
def test_its_integers_are_unbiased_and_private(epsilon, levels):
    mech = own_alphabet(epsilon, levels, rows=9)
    assert len(mech.outcomes) == levels
    assert mech.bits == (levels - 1).bit_length()
    assert alphabet(mech) == pytest.approx(-alphabet(mech)[::-1])
    table = [[int(units) for units in row] for row in mech.table]
    for j, row in enumerate(table):
        assert sum(row) == 2**40
        mean = Fraction(sum(i * units for i, units in enumerate(row)), 2**40)
        assert mech.output_range * (2 * mean / (mech.levels - 1) - 1) == Fraction(2 * j, 8) - 1
    columns = [column for column in zip(*table, strict=True) if max(column)]
    worst = max(log(Fraction(max(column), min(column))) for column in columns)
    assert 0.999 * epsilon < worst <= epsilon
    assert renyi(mech, float("inf"), distribution="sampled").upper == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(("epsilon", "levels"), CASES)
def test_it_is_never_worse_on_average_than_evenly_spaced_outcomes(epsilon, levels):
    own, even = own_alphabet(epsilon, levels, rows=9), private_table(epsilon, levels, rows=9, average=True)
    assert average_variance(own) <= average_variance(even)


def test_two_outcomes_are_the_one_bit_mechanism():
    mech = own_alphabet(1.0, 2, rows=9)
    far = (exp(1) + 1) / (exp(1) - 1)
    assert alphabet(mech) == pytest.approx([-far, far], rel=1e-6)
    assert mech.variance(0.5) == pytest.approx(far**2 - 0.25, rel=1e-6)


@pytest.mark.slow
def test_outcomes_do_move_and_that_buys_something():
    mech = own_alphabet(3.0, 8, rows=17)
    gaps = np.diff(alphabet(mech))
    assert gaps.max() > 1.2 * gaps.min()
    assert average_variance(mech) < 0.997 * average_variance(private_table(3.0, 8, rows=17, average=True))


def test_the_slopes_are_those_of_the_program():
    free = np.log([0.6, 0.55, 0.5])

    def value(free):
        return program(3.0, _spread(free, 6), 9, True)

    slopes = _slopes(free, 6, value(free).slopes)
    for j in range(3):
        step = 1e-6 * np.eye(3)[j]
        numeric = (value(free + step).value - value(free - step).value) / 2e-6
        assert slopes[j] == pytest.approx(numeric, rel=1e-3, abs=1e-6)


def test_draws_have_its_law_and_its_variance():
    mech, draws, x = own_alphabet(3.0, 8, clip=2.0, rows=9), 200_000, 0.7
    levels = mech.encode(np.full(draws, x), SeededRandom(3))
    observed = np.bincount(levels, minlength=mech.levels)
    assert p_value(observed, mech.sampled_pmf(x).astype(float)) > 1e-6
    assert p_value(observed, mech.sampled_pmf(0.75).astype(float)) < 1e-6
    found = mech.grid.values[levels]
    spread = (found - x) ** 2
    error = 5 * spread.std() / sqrt(draws)
    assert abs(spread.mean() - mech.variance(x)) < error
    assert abs(spread.mean() - 1.05 * mech.variance(x)) > error
    assert abs(found.mean() - x) < 5 * found.std() / sqrt(draws)


def test_a_histogram_tells_what_the_sum_of_lattice_points_tells():
    mech, x = own_alphabet(3.0, 8, rows=9), np.linspace(-1, 1, 300)
    levels = mech.encode(x, SeededRandom(1))
    counts = np.bincount(levels, minlength=mech.levels)[list(mech.outcomes)]
    assert counts.sum() == 300
    mean = from_histogram(mech, counts)
    assert mean == pytest.approx(float(mech.decode(levels.astype(np.int64).sum(), 300)), abs=1e-12)


def test_a_row_of_far_outcomes_has_its_mean_in_integers():
    """No two of these outcomes are one step apart: several moves are needed."""
    law = np.zeros(32)
    law[[0, 10, 25, 31]] = 0.1, 0.2, 0.3, 0.4
    with np.errstate(divide="ignore"):
        logs = np.log(law)
    for extra in range(32):
        mean = Fraction(219, 10)
        mean = Fraction(int(mean * 2**40) + extra, 2**40)
        units = integer_row(logs, mean)
        assert units.sum() == 2**40
        assert Fraction(int(sum(i * n for i, n in enumerate(units.tolist()))), 2**40) == mean
        assert (units[law == 0] == 0).all()
        assert np.abs(units / 2**40 - law).max() < 1e-9
    law[:] = 0
    law[[0, 16, 24]] = 0.25, 0.5, 0.25
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="cannot have its mean in integers"):
        integer_row(np.log(law), 14 + Fraction(1, 2**40))


@pytest.mark.slow
def test_the_adviser_tries_it():
    advice = advise(clients=1, epsilon=2.0, levels=4)
    found = next(one for one in advice.candidates if one.name == "MVU, own alphabet")
    assert found.epsilon <= 2.0
    assert found.bits_per_coordinate == 2
    assert pure_loss(found.mechanism) == found.epsilon
