"""Optimized mechanisms: certified like any other, and no worse than what the search starts with."""

import numpy as np
import pytest

from rqm import RQM, renyi
from rqm.advice.optimized_tables import (
    additive_table,
    attained_divergence,
    lattice_table,
    level_keeps,
    single_keep,
)


@pytest.mark.slow
def test_a_lattice_table_for_forty_clients_has_a_tenth_less_variance_than_rqm():
    divergence = renyi(RQM(), 2, 40).lower
    table = lattice_table(2, 40, divergence, 16)
    bound = renyi(table, 2, 40)
    assert bound.certified
    assert bound.upper <= divergence
    assert table.levels == 16
    assert table.variance_max <= 0.9 * RQM().variance_max
    # No unbiased mechanism has less variance: Hammersley, Chapman and Robbins.
    assert table.variance_max >= 4 / 40 / np.expm1(divergence)


def test_a_lattice_table_is_certified_as_written_and_as_sampled():
    table = lattice_table(2, 6, 1.0, 8)
    assert all(renyi(table, 2, 6, distribution=kind).upper <= 1.0 for kind in ("paper", "sampled"))
    assert table.variance_max >= 4 / 6 / np.expm1(1.0)


def test_a_divergence_that_no_table_reaches_is_refused():
    with pytest.raises(ValueError, match="use a larger divergence or more levels"):
        lattice_table(2, 6, 1e-9, 8)
    with pytest.raises(ValueError, match="it must be larger"):
        single_keep(2, 1, 1e-9, 4)
    with pytest.raises(ValueError, match="alpha = 1: must be a finite number above 1"):
        lattice_table(1, 6, 1.0)


def test_a_lattice_table_adds_the_same_noise_to_every_input():
    table = additive_table(2, np.array([0.25, 0.5, 0.25]), 5)
    np.testing.assert_allclose(table.pmf(0.0), [0, 0.25, 0.5, 0.25, 0], atol=1e-8)
    assert table.variance_max == pytest.approx(0.75, rel=1e-6)
    assert renyi(table, 2, 3).lower == pytest.approx(renyi(table, 2, 3).upper, rel=1e-3)


@pytest.mark.parametrize("alpha", [2, 8])
@pytest.mark.parametrize("clients", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 40))])
def test_a_keep_for_each_level_beats_a_single_one(clients, alpha):
    divergence = attained_divergence(RQM(), alpha, clients)
    single = single_keep(alpha, clients, divergence)
    mechanism = level_keeps(alpha, clients, divergence, start=single, evaluations=300)
    attained = attained_divergence(mechanism, alpha, clients)
    assert attained <= divergence * (1 + 1e-9)
    assert mechanism.variance_max < single.variance_max
    np.testing.assert_allclose(mechanism.keeps, mechanism.keeps[::-1])
    single_bound, bound = (renyi(compared, alpha, clients) for compared in (single, mechanism))
    assert attained <= bound.lower * (1 + 1e-9)
    assert bound.upper <= single_bound.upper * 1.1


def test_an_attained_divergence_is_below_the_lower_bound():
    for alpha, clients in ((2, 1), (2, 5), (8, 5)):
        assert attained_divergence(RQM(), alpha, clients) <= renyi(RQM(), alpha, clients).lower * (1 + 1e-9)
    assert attained_divergence(RQM(), 2, 40) == pytest.approx(0.5027, abs=1e-4)
