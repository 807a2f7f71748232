"""Goodness of fit of samplers: sound ones pass, and whatever is planted is noticed."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rqm import RQM, SeededRandom, StochasticRounding
from rqm.audit.sampler import audit_sampler, crafted_floats, goodness, serial_independence_p_value
from tests.audit import MECHANISMS, TABLES, kind


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=kind)
def test_every_shipped_sampler_passes(mechanism):
    assert audit_sampler(mechanism, draws=200_000).passed


@pytest.mark.parametrize("mechanism", [TABLES[0], *TABLES[2:5], TABLES[-1]], ids=kind)
def test_the_plain_operations_of_torch_pass_as_well(mechanism):
    audit = audit_sampler(mechanism, SeededRandom(0), draws=50_000, backend="torch")
    assert audit.passed, audit
    assert audit.backend == "torch"


@pytest.mark.parametrize("factor", [1.02, pytest.param(0.98, marks=pytest.mark.slow)])
def test_a_keep_that_is_two_percent_off_is_noticed(factor):
    audit = audit_sampler(RQM(keep=0.42 * factor), claimed=RQM())
    assert not audit.passed
    assert audit.worst.startswith("the pmf")


def test_seeded_threads_share_no_draws_and_are_not_tested_for_forks():
    audit = audit_sampler(RQM(), SeededRandom(3), draws=20_000)
    assert audit.passed
    assert audit.tests == audit_sampler(RQM(), draws=20_000).tests - 1


def test_an_outcome_that_does_not_exist_fails_the_audit():
    audit = audit_sampler(RQM(levels=32), claimed=RQM(), draws=10_000)
    assert not audit.passed
    assert "an outcome that there is not" in audit.worst or audit.p_value == 0


def test_a_pmf_that_is_stated_but_not_sampled_is_noticed():
    """As of a mechanism that was made by copying the sampler of another."""

    @dataclass(frozen=True)
    class Copied(StochasticRounding):
        kind = "copied"

        def pmf(self, x):
            return 0.9 * super().pmf(x) + 0.1 / self.levels

    assert not audit_sampler(Copied(levels=4), draws=10_000).passed
    assert audit_sampler(StochasticRounding(levels=4), draws=10_000).passed


def test_a_missing_gpu_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="device = cuda: torch finds no GPU here"):
        audit_sampler(RQM(), backend="cuda")


def test_crafted_floats_hold_the_neighbors_of_breakpoints_and_extremes():
    mechanism = RQM()
    floats = crafted_floats(mechanism)
    expected = {0.0, mechanism.clip, np.nextafter(mechanism.clip, 2), np.nextafter(mechanism.clip, 0), 5e-324, 1.7e308}
    assert expected <= set(floats.tolist())
    assert np.isfinite(floats).all()
    assert (np.abs(floats) < mechanism.clip).sum() > 800


@pytest.mark.parametrize(
    ("draw", "step"),
    [
        (lambda rng: rng.integers(0, 16, size=400_000), 50),
        (lambda rng: rng.binomial(1, 0.1, size=20_000), 2),
        (lambda rng: rng.binomial(1, 0.9, size=20_000), 2),
    ],
    ids=["uniform", "mostly 0", "mostly 1"],
)
def test_dependent_draws_are_noticed(draw, step):
    messages = draw(np.random.default_rng(0))
    assert serial_independence_p_value(messages) > 1e-6
    messages[1::step] = messages[::step]
    assert serial_independence_p_value(messages) < 1e-6


def test_impossible_outcomes_must_not_occur():
    assert goodness(np.array([5, 1, 100_000]), np.array([0.0, 0.1, 0.9])) == 0.0
    assert goodness(np.array([0, 0, 100]), np.array([0.0, 0.0, 1.0])) == 1.0
