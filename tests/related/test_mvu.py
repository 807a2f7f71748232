"""Private tables: unbiased and private in the integers that are sampled, and never worse than what they include."""

from fractions import Fraction
from math import exp, inf, log, sqrt

import mpmath
import numpy as np
import pytest

from rqm import RQM, SeededRandom, renyi
from rqm.mechanisms.table import Table
from rqm.mechanisms.table_mechanism import integer_row
from rqm.related.mvu import average_variance, mvu_table, private_table, pure_epsilon, solve_rows, symmetric_alphabet
from rqm.related.randomized_response import RandomizedResponse
from tests.goodness import p_value

SETTINGS = [(1.0, 8), (3.0, 8), (3.0, 5), (5.4699, 6)]


def check_means(table):
    """Every row of the integer table has exactly the mean of its input level."""
    for j, row in enumerate(table.table.tolist()):
        assert sum(row) == 2**40
        mean = Fraction(sum(i * units for i, units in enumerate(row)), 2**40)
        assert table.output_range * (2 * mean / (table.levels - 1) - 1) == Fraction(2 * j, table.input_levels - 1) - 1


def outcomes(table):
    return table.grid.values[list(table.outcomes)]


@pytest.mark.slow
def test_the_linear_program_has_a_fifth_of_the_variance_of_rqm_at_the_same_epsilon():
    epsilon = renyi(RQM(), inf).upper
    assert epsilon == pytest.approx(5.4699, abs=1e-4)
    table = private_table(epsilon, 16)
    assert table.variance_max <= 0.0480
    assert RQM().variance_max == pytest.approx(0.2435, abs=1e-4)
    for column in table.table.T.tolist():  # inputs between two levels only mix their rows
        assert mpmath.log(mpmath.mpf(max(column)) / min(column)) <= epsilon
    assert pure_epsilon(table) <= epsilon
    assert renyi(table, inf, distribution="sampled").upper <= epsilon * (1 + 1e-9)
    check_means(table)


@pytest.mark.parametrize(("epsilon", "levels"), [(0.5, 2), (0.5, 16), (1.0, 4), (2.0, 16), (3.0, 8), (8.0, 16)])
def test_the_linear_program_is_never_worse_than_randomized_response(epsilon, levels):
    table = private_table(epsilon, levels, rows=17)
    assert pure_epsilon(table) <= epsilon
    for size in range(2, levels + 1):
        assert table.variance_max <= RandomizedResponse(levels=size, epsilon=epsilon).variance_max * 1.001


def test_the_least_average_variance_needs_another_table():
    worst, average = private_table(2.0, 8, rows=17), private_table(2.0, 8, rows=17, average=True)
    assert pure_epsilon(average) <= 2.0
    assert average.variance_max >= worst.variance_max
    assert average_variance(average) <= average_variance(worst) + 1e-9


def test_a_table_that_rules_out_an_input_has_no_epsilon():
    assert pure_epsilon(Table(margin=0.0, rows=((1.0, 0.0), (0.0, 1.0)))) == inf
    with pytest.raises(ValueError, match="within the clip"):
        pure_epsilon(RQM())


@pytest.mark.parametrize("find", [private_table, mvu_table])
@pytest.mark.parametrize(("epsilon", "levels"), [(0.0, 4), (12.5, 4), (1.0, 1), (1.0, 65)])
def test_a_table_out_of_range_is_refused(find, epsilon, levels):
    with pytest.raises(ValueError, match="must be"):
        find(epsilon, levels)


@pytest.mark.parametrize(("epsilon", "levels"), SETTINGS)
def test_mvu_is_unbiased_and_private_in_integers_and_not_worse_on_average(epsilon, levels):
    table = mvu_table(epsilon, levels, rows=9)
    assert len(table.outcomes) == levels
    assert table.bits == (levels - 1).bit_length()
    assert outcomes(table) == pytest.approx(-outcomes(table)[::-1])
    check_means(table)
    columns = [column for column in table.table.T.tolist() if max(column)]
    exact = max(log(Fraction(max(column), min(column))) for column in columns)
    assert 0.999 * epsilon < exact <= pure_epsilon(table) <= epsilon
    assert renyi(table, inf, distribution="sampled").upper == pytest.approx(exact, abs=1e-9)
    assert average_variance(table) <= average_variance(private_table(epsilon, levels, rows=9, average=True))


def test_two_outcomes_are_the_one_bit_mechanism():
    table = mvu_table(1.0, 2, rows=9)
    outermost = (exp(1) + 1) / (exp(1) - 1)
    assert outcomes(table) == pytest.approx([-outermost, outermost], rel=1e-6)
    assert table.variance(0.5) == pytest.approx(outermost**2 - 0.25, rel=1e-6)


@pytest.mark.slow
def test_uneven_outcomes_have_less_average_variance():
    table = mvu_table(3.0, 8, rows=17)
    gaps = np.diff(outcomes(table))
    assert gaps.max() > 1.2 * gaps.min()
    assert average_variance(table) < 0.997 * average_variance(private_table(3.0, 8, rows=17, average=True))


@pytest.mark.parametrize("levels", [5, 6])
def test_the_slopes_are_derivatives_of_the_least_variance(levels):
    gaps, gap_matrix = np.array([0.6, 0.55, 0.5])[: levels // 2], symmetric_alphabet(levels)
    assert np.diff(gap_matrix @ gaps)[-(levels // 2) :] == pytest.approx(gaps)
    slopes = solve_rows(3.0, gap_matrix @ gaps, 9, True).slopes @ gap_matrix
    for j, step in enumerate(1e-6 * np.eye(len(gaps))):
        low, high = (solve_rows(3.0, gap_matrix @ (gaps + sign * step), 9, True).variance for sign in (-1, 1))
        assert slopes[j] == pytest.approx((high - low) / 2e-6, rel=1e-3, abs=1e-6)


def test_draws_have_the_pmf_and_the_variance():
    table, draws, x = mvu_table(3.0, 8, clip=2.0, rows=9), 200_000, 0.7
    levels = table.encode(np.full(draws, x), SeededRandom(3))
    observed = np.bincount(levels, minlength=table.levels)
    assert p_value(observed, table.sampled_pmf(x).astype(float)) > 1e-6
    assert p_value(observed, table.sampled_pmf(0.75).astype(float)) < 1e-6
    values = table.grid.values[levels]
    squares = (values - x) ** 2
    error = 5 * squares.std() / sqrt(draws)
    assert abs(squares.mean() - table.variance(x)) < error
    assert abs(squares.mean() - 1.05 * table.variance(x)) > error
    assert abs(values.mean() - x) < 5 * values.std() / sqrt(draws)


def test_a_row_of_distant_outcomes_has_its_mean_in_integers():
    """No two of these outcomes are one step apart: several moves are needed."""
    pmf = np.zeros(32)
    pmf[[0, 10, 25, 31]] = 0.1, 0.2, 0.3, 0.4
    with np.errstate(divide="ignore"):
        logs = np.log(pmf)
    for extra in range(32):
        mean = Fraction(int(Fraction(219, 10) * 2**40) + extra, 2**40)
        units = integer_row(logs, mean)
        assert units.sum() == 2**40
        assert Fraction(int(sum(i * n for i, n in enumerate(units.tolist()))), 2**40) == mean
        assert (units[pmf == 0] == 0).all()
        assert np.abs(units / 2**40 - pmf).max() < 1e-9
    pmf[:] = 0
    pmf[[0, 16, 24]] = 0.25, 0.5, 0.25
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="cannot have its mean in integers"):
        integer_row(np.log(pmf), 14 + Fraction(1, 2**40))
