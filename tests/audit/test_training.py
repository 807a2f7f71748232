"""Canaries in a whole run: the bound is valid, has power, and what is measured stays below what is certified."""

from math import comb, exp, inf

import numpy as np
import pytest

from rqm import account
from rqm.audit import jobs
from rqm.audit.training import Megaphone, audit_training, one_run_bound, p_value
from rqm.training.observer import Observer
from rqm.training.trainer import Trainer
from tests.plans import change_plan


@pytest.fixture(scope="module")
def audit():
    return jobs.variants("audit")


def test_the_tail_without_delta_is_a_binomials():
    right = exp(1) / (1 + exp(1))
    total = sum(comb(10, k) * right**k * (1 - right) ** (10 - k) for k in (8, 9, 10))
    assert p_value(50, 10, 8, 1.0, 0.0) == pytest.approx(total, rel=1e-12)
    assert p_value(50, 10, 8, 1.0, 1e-3) > total
    assert p_value(50, 10, 0, 1.0, 1e-3) == 1.0


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.5, *(pytest.param(e, marks=pytest.mark.slow) for e in (2.0, 4.0))])
def test_randomized_response_is_rarely_overestimated_and_nearly_reached(epsilon):
    """Each coin is told rightly with e^ε / (1 + e^ε): exactly ε-DP. The bound holds in 95 % of runs, and is close."""
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(40):
        coins = 2 * rng.integers(2, size=2000) - 1
        said = np.where(rng.random(2000) < exp(epsilon) / (1 + exp(epsilon)), coins, -coins)
        bounds.append(one_run_bound(said * rng.random(2000), coins, 0.0, 0.95)[0])
    assert np.sum(np.array(bounds) > epsilon) <= 7  # of 40, where 2 are expected at most: once in 500 runs
    assert np.median(bounds) > 0.7 * epsilon


def test_what_is_measured_stays_below_what_is_certified_and_is_not_nothing(audit):
    plans, data = audit
    plan = change_plan(plans["1 bit, ε=8"], rounds=4, evaluate_every=4)
    found = audit_training(plan, data, account(plan).epsilon, canaries=400)
    assert found.canaries == 400
    assert 1.0 < found.measured < found.claimed <= 8.0
    assert not found.contradicted


def test_noise_free_sums_give_every_canary_away(audit):
    plans, data = audit
    plan = change_plan(plans["noise-free"], rounds=2, evaluate_every=2)
    found = audit_training(plan, data, inf, canaries=200)
    assert found.correct == found.guesses == 200
    assert found.to_dict()["claimed"] == "inf"
    assert audit_training(plan, data, 1.0, canaries=200).contradicted  # a false claim of ε = 1


def test_a_vector_that_is_too_long_arrives_no_longer_than_the_clip(audit):
    plans, data = audit
    low, allowed = Megaphone(change_plan(plans["1 bit, ε=8"], rounds=4, evaluate_every=4), data, 50.0).loudness(0.95)
    assert allowed == pytest.approx(1.0, rel=1e-4)
    assert 0.8 < low <= allowed


def test_canaries_change_nothing_when_there_are_none(audit):
    plans, data = audit
    plan = change_plan(plans["1 bit, ε=8"], clients=5, rounds=1, evaluate_every=1)
    seen = []

    class Watcher(Observer):
        def learns(self, turn, mean):
            seen.append((turn, mean))

    plain, watched = Trainer(plan, data), Trainer(plan, data, observer=Watcher())
    plain.step()
    watched.step()
    assert (plain.values == watched.values).all()
    assert [turn for turn, _ in seen] == [0]
    assert len(seen[0][1]) == len(plain.values)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"canaries": 3}, "canaries = 3"), ({"delta": 0.0}, "delta = 0"), ({"claimed": float("nan")}, "claimed = nan")],
)
def test_bad_values_are_named(audit, change, words):
    plans, data = audit
    with pytest.raises(ValueError, match=words):
        audit_training(plans["noise-free"], data, **{"claimed": 1.0, **change})
