"""Optimised mechanisms: never worse than what they began with, and certified like any other."""

from fractions import Fraction
from math import inf

import mpmath
import numpy as np
import pytest

from rqm import RQM, renyi
from rqm.advice.design import known_mechanisms, level_keeps, private_table, pure_loss, single_keep
from rqm.advice.lattice import attained, lattice, summed_table
from rqm.mechanisms.table import Table
from rqm.related.randomized_response import RandomizedResponse

EPSILON = 5.4699  # that of RQM(Δ=c, q=.42, m=16)


@pytest.mark.slow
def test_the_linear_program_beats_rqm_five_times_at_its_own_epsilon():
    rqm_loss = renyi(RQM(), inf).upper
    assert rqm_loss == pytest.approx(EPSILON, abs=1e-4)
    mech = private_table(rqm_loss, 16)
    assert mech.variance_max <= 0.0480
    assert RQM().variance_max == pytest.approx(0.2435, abs=1e-4)
    # ε from the integers themselves, in mpmath; inputs between two rows only mix them.
    for column in mech.table.T.tolist():
        assert mpmath.log(mpmath.mpf(max(column)) / min(column)) <= rqm_loss
    assert pure_loss(mech) <= rqm_loss
    assert renyi(mech, inf, distribution="sampled").upper <= rqm_loss * (1 + 1e-9)
    for j, row in enumerate(mech.table.tolist()):  # and the mean, exactly
        mean = Fraction(sum(i * n for i, n in enumerate(row)), 2**40)
        assert mech.output_range * (2 * mean / 15 - 1) == Fraction(2 * j, mech.input_levels - 1) - 1


@pytest.mark.parametrize(("epsilon", "levels"), [(0.5, 2), (0.5, 16), (1.0, 4), (2.0, 16), (3.0, 8), (8.0, 16)])
def test_the_linear_program_is_never_worse_than_randomized_response(epsilon, levels):
    mech = private_table(epsilon, levels, rows=17)
    assert pure_loss(mech) <= epsilon
    for rival in range(2, levels + 1):
        assert mech.variance_max <= RandomizedResponse(levels=rival, epsilon=epsilon).variance_max * 1.001


def test_minimum_variance_on_average_is_another_table():
    worst, average = private_table(2.0, 8, rows=17), private_table(2.0, 8, rows=17, average=True)
    assert pure_loss(average) <= 2.0
    assert average.variance_max >= worst.variance_max
    x = np.linspace(-1, 1, 17)
    assert average.variance(x).mean() <= worst.variance(x).mean() + 1e-9


def test_a_table_that_rules_out_an_input_has_no_epsilon():
    assert pure_loss(Table(margin=0.0, rows=((1.0, 0.0), (0.0, 1.0)))) == inf
    with pytest.raises(ValueError, match="within the clip"):
        pure_loss(RQM())


@pytest.mark.slow
def test_forty_clients_order_two_more_than_a_tenth_less_variance():
    target = renyi(RQM(), 2, 40).lower
    mech = summed_table(2, 40, target, 16)
    bound = renyi(mech, 2, 40)
    assert bound.certified
    assert bound.upper <= target
    assert mech.levels == 16
    assert mech.variance_max <= 0.9 * RQM().variance_max
    # No unbiased mechanism does better than this: Hammersley, Chapman and Robbins.
    assert mech.variance_max >= 4 / 40 / np.expm1(target)


def test_it_is_never_worse_than_what_it_begins_with():
    start = known_mechanisms(2, 6, 1.0, 8)
    assert len(start) == 3
    mech = summed_table(2, 6, 1.0, 8, start=start)
    assert renyi(mech, 2, 6).upper <= 1.0
    assert mech.variance_max <= min(one.variance_max for one in start)
    impossible = 1e-9
    with pytest.raises(ValueError, match="must be larger, or the levels more"):
        summed_table(2, 6, impossible, 8)


def test_a_lattice_adds_the_same_noise_everywhere():
    noise = np.array([0.25, 0.5, 0.25])
    mech = lattice(2, noise, 5)
    np.testing.assert_allclose(mech.pmf(0.0), [0, 0.25, 0.5, 0.25, 0], atol=1e-8)
    assert mech.variance_max == pytest.approx(0.75, rel=1e-6)
    assert renyi(mech, 2, 3).lower == pytest.approx(renyi(mech, 2, 3).upper, rel=1e-3)


@pytest.mark.parametrize("alpha", [2, 8])
@pytest.mark.parametrize("clients", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 40))])
def test_a_keep_for_each_level_beats_the_best_single_one(clients, alpha):
    target = attained(RQM(), alpha, clients)
    single = single_keep(alpha, clients, target)
    mech = level_keeps(alpha, clients, target, start=single, evaluations=300)
    assert attained(mech, alpha, clients) <= target * (1 + 1e-9)
    assert mech.variance_max < single.variance_max
    np.testing.assert_allclose(mech.keeps, mech.keeps[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [2, 8])
@pytest.mark.parametrize("clients", [10, 40])
def test_keeps_for_each_level_compared_by_what_is_certified(clients, alpha):
    target = attained(RQM(), alpha, clients)
    single = single_keep(alpha, clients, target)
    mech = level_keeps(alpha, clients, target, start=single)
    bounds = [renyi(one, alpha, clients) for one in (single, mech)]
    assert all(bound.lower <= bound.upper for bound in bounds)
    # At the same attained divergence less variance; what can be certified is within a few per cent of each other.
    assert bounds[1].upper <= bounds[0].upper * 1.1
    assert attained(mech, alpha, clients) <= renyi(mech, alpha, clients).lower * (1 + 1e-9)


def test_attained_is_attained():
    for alpha, clients in ((2, 1), (2, 5), (8, 5)):
        assert attained(RQM(), alpha, clients) <= renyi(RQM(), alpha, clients).lower * (1 + 1e-9)
    assert attained(RQM(), 2, 40) == pytest.approx(0.5027, abs=1e-4)
