"""Who takes part: limits, separations and fixed orders, and banded noise that relies on them."""

from collections import defaultdict
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import Gaussian, StochasticRounding
from rqm.config.plan import Plan, ServerStep, Transforms
from rqm.mechanisms.banded import BandedGaussian
from rqm.simulation.loop import CohortSampler, RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model

PLAN = make_plan(
    data="blobs",
    clients=3,
    rounds=12,
    device="cpu",
    mechanism=BandedGaussian(noise_multiplier=0.1, bands=4),
    max_participations=3,
    min_separation=4,
    transforms=Transforms(l2_clip=1.0, rotate=True),
    server=ServerStep(rate=0.5, schedule="linear"),
    checkpoint_every=3,
)


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 60), st.integers(0, 5))
def test_a_fixed_order_keeps_the_separation_and_the_limit(clients, more, rounds, seed):
    users = clients + more
    period = users // clients
    plan = make_plan(clients=clients, rounds=rounds, seed=seed, min_separation=period, sampling="fixed-order")
    turns = defaultdict(list)
    for round_index in range(rounds):
        chosen = CohortSampler(plan, users).clients(round_index)  # whoever begins here finds the same
        assert len(set(chosen)) == clients
        for user in chosen:
            turns[user].append(round_index)
    assert all(b - a >= period for rounds_of_user in turns.values() for a, b in pairwise(rounds_of_user))
    assert max(map(len, turns.values())) == ceil(rounds * clients / users) <= ceil(rounds / period)


def test_the_order_is_random_and_follows_from_the_seed():
    plan = make_plan(clients=10, rounds=5, min_separation=10)
    first = CohortSampler(plan, 100).clients(0)
    assert first == CohortSampler(plan, 100).clients(0) != CohortSampler(change_plan(plan, seed=1), 100).clients(0)
    assert first != sorted(first)


def test_too_few_users_for_a_separation_are_refused():
    with pytest.raises(ValueError, match="min_separation = 5: must be at most 4, after which 3 of 12 users"):
        RunState(change_plan(PLAN, min_separation=5), federation(), model())
    with pytest.raises(ValueError, match="max_participations = 2: 12 rounds of 3 clients are more"):
        RunState(change_plan(PLAN, max_participations=2), federation(), model())
    with pytest.raises(ValueError, match="min_separation = 5: must be at most 4"):
        change_plan(PLAN, min_separation=5, population=12)


def test_a_separation_implies_a_fixed_order_and_is_read_back():
    assert (PLAN.participation.sampling, make_plan().participation.sampling) == ("fixed-order", "uniform")
    assert Plan.from_dict(PLAN.to_dict()) == PLAN
    assert PLAN.private_mean(5).participation.min_separation == 4


@pytest.mark.parametrize(
    "change",
    [{"min_separation": 4}, {"noise": 2.0, "mechanism": StochasticRounding(levels=2), "max_participations": 1}],
)
def test_uniform_sampling_with_a_separation_is_refused(change):
    with pytest.raises(ValueError, match="sampling = 'uniform': must be 'fixed-order' with min_separation"):
        make_plan(clients=3, rounds=12, sampling="uniform", **change)


def test_any_sampling_keeps_the_separation():
    plan = make_plan(clients=3, rounds=12, sampling="available", min_separation=4)
    cohorts = [set(CohortSampler(plan, 12).clients(round_index)) for round_index in range(12)]
    assert all(cohorts[i].isdisjoint(cohorts[j]) for i in range(12) for j in range(i + 1, min(i + 4, 12)))


def test_banded_noise_cancels_in_the_model():
    """No gradient is as large as the noise: models move by noise alone, and by far less than with independent noise."""

    def distance(mech):
        plan = change_plan(PLAN, mechanism=mech, rounds=60, max_participations=15, server=ServerStep(rate=1e-3), seed=1)
        state = RunState(plan, federation(), model())
        start, total = state.values.clone(), 0.0
        for _ in range(60):
            state.step()
            total += float((state.values - start).square().mean())
        return total**0.5

    mech = BandedGaussian(noise_multiplier=1e4, bands=4, schedule="constant")
    expected = change_plan(PLAN, mechanism=mech, rounds=60, max_participations=15).private_mean(5).guarantee()
    ratio = distance(mech) / distance(Gaussian(1e4))
    assert ratio == pytest.approx(expected.correlated_noise_ratio, rel=0.35)
