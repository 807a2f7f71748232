"""Canaries in a whole run: the bound is valid and has power, and what is measured is below what is certified."""

from math import exp, inf

import numpy as np
import pytest
from scipy.stats import binom

from rqm import account
from rqm.audit import suite
from rqm.audit.training import audit_training, one_run_bound, p_value
from rqm.simulation.loop import Observer, RunState
from tests.plans import change_plan


@pytest.fixture(scope="module")
def audit():
    return suite.load_variants("audit")


def test_without_delta_the_p_value_is_the_tail_of_a_binomial():
    tail = binom(10, exp(1) / (1 + exp(1))).sf(7)
    assert p_value(50, 10, 8, 1.0, 0.0) == pytest.approx(tail, rel=1e-12)
    assert p_value(50, 10, 8, 1.0, 1e-3) > tail
    assert p_value(50, 10, 0, 1.0, 1e-3) == 1.0


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_randomized_response_is_rarely_overestimated_and_nearly_reached(epsilon):
    """Each coin is revealed with probability e^ε / (1 + e^ε): exactly ε-DP."""
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(40):
        coins = 2 * rng.integers(2, size=2000) - 1
        answers = np.where(rng.random(2000) < exp(epsilon) / (1 + exp(epsilon)), coins, -coins)
        bounds.append(one_run_bound(answers * rng.random(2000), coins, 0.0, 0.95)[0])
    assert np.sum(np.array(bounds) > epsilon) <= 7  # of 40, where 2 are expected at most: once in 500 runs
    assert np.median(bounds) > 0.7 * epsilon


@pytest.mark.parametrize("length", [1.0, 50.0])
def test_what_is_measured_is_below_what_is_certified_and_is_not_nothing(audit, length):
    plans, data = audit
    plan = change_plan(plans["1 bit, ε=8"], rounds=4, evaluate_every=4)
    result = audit_training(plan, data, account(plan).epsilon, canaries=400, length=length)
    assert result.canaries == 400
    assert 1.0 < result.measured < result.claimed <= 8.0
    assert not result.contradicted


def test_sums_without_noise_reveal_every_canary(audit):
    plans, data = audit
    plan = change_plan(plans["noise-free"], rounds=2, evaluate_every=2)
    result = audit_training(plan, data, inf, canaries=200)
    assert result.correct == result.guesses == 200
    assert result.to_dict()["claimed"] == "inf"
    assert audit_training(plan, data, 1.0, canaries=200).contradicted  # a false claim of ε = 1


def test_an_observer_that_plants_nothing_changes_nothing(audit):
    plans, data = audit
    plan = change_plan(plans["1 bit, ε=8"], clients=5, rounds=1, evaluate_every=1)
    means = {}
    watcher = Observer()
    watcher.learns = means.__setitem__
    plain, watched = RunState(plan, data), RunState(plan, data, observer=watcher)
    plain.step()
    watched.step()
    assert (plain.values == watched.values).all()
    assert [len(mean) for mean in means.values()] == [len(plain.values)]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"canaries": 3}, "canaries = 3"), ({"delta": 0.0}, "delta = 0"), ({"claimed": float("nan")}, "claimed = nan")],
)
def test_values_out_of_range_are_named(audit, change, words):
    plans, data = audit
    with pytest.raises(ValueError, match=words):
        audit_training(plans["noise-free"], data, **{"claimed": 1.0, **change})
