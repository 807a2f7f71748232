"""Training with correlated noise: in a fixed order, with dropouts, by either secure sum, and resumed."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rqm import CorrelatedNoise, StochasticRounding, account
from rqm.config.account import account_ledger
from rqm.config.plan import ServerStep, Transforms
from rqm.simulation import run_folder
from rqm.simulation.loop import CohortSampler, RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model, pictures

PLAN = make_plan(
    data="blobs",
    clients=4,
    rounds=9,
    min_separation=3,
    max_participations=3,
    delta=1e-4,
    device="cpu",
    mechanism=StochasticRounding(clip=0.5, levels=2, margin=1.0),
    noise=12.0,
    transforms=Transforms(l2_clip=1.0, rotate=True),
    server=ServerStep(rate=0.5, schedule="linear"),
    evaluate_every=9,
    checkpoint_every=4,
)


SOME_LOST = change_plan(PLAN, clients=6, min_separation=2, max_participations=5, client_dropout=0.1, min_survivors=5)

KEPT = change_plan(PLAN, noise=CorrelatedNoise(9.0, 2.0, 5))


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        change_plan(PLAN, client_dropout=0.15, min_survivors=2),
        SOME_LOST,
        change_plan(SOME_LOST, min_survivors=4),
        KEPT,
        change_plan(KEPT, client_dropout=0.15, min_survivors=2),
    ],
    ids=["all stay", "some are lost", "few may be lost", "more may be lost", "a part stays", "of the lost too"],
)
def test_the_real_protocol_gives_the_ideal_sum(plan):
    ideal, real = (RunState(change_plan(plan, secagg=kind), federation(), model()) for kind in ("ideal", "real"))
    for _ in range(plan.participation.rounds):
        run, restored = ideal.step(), real.step()
        assert (run.survivors, run.discarded) == (restored.survivors, restored.discarded)
        assert (ideal.values == real.values).all()


def test_a_restored_state_draws_the_same_noise():
    plain, restored = RunState(PLAN, federation(), model()), RunState(PLAN, federation(), model())
    for _ in range(4):
        plain.step()
    restored.values.copy_(plain.values)
    restored.optimizer.moments.copy_(plain.optimizer.moments)
    restored.rounds_done = 4
    for _ in range(3):
        plain.step()
        restored.step()
        assert (plain.values == restored.values).all()


def test_all_transient_noise_but_the_last_is_canceled():
    """The sum of all decoded means is that of a run without transient noise, but for what came last."""
    learned = {}
    for noise in (12.0, None):
        state = RunState(change_plan(PLAN, noise=noise, server=ServerStep(rate=1e-12)), federation(), model())
        means = []
        state.observer.learns = lambda round_index, mean, means=means: means.append(mean.clone())
        for _ in range(9):
            state.step()
        learned[noise] = torch.stack(means)
    one_round = (learned[12.0] - learned[None])[4].std().item()
    together = (learned[12.0] - learned[None]).sum(0).std().item()
    step = PLAN.mechanism.grid.step
    assert one_round == pytest.approx(2**0.5 * 12 * step / 2, rel=0.3)  # both halves, over √4 clients
    assert together < 0.9 * one_round  # the last round's alone; nine times that would be 2.1 times as much


def test_residual_noise_is_not_canceled():
    """Planted: who took back all of it would leave the coins and the last round alone."""
    many = change_plan(
        KEPT, clients=12, rounds=2, population=40, noise=CorrelatedNoise(0.5, 2.0, 8), server=ServerStep(rate=1e-12)
    )
    state = RunState(many, federation(), model())
    plain = RunState(replace(many, noise=None), federation(), model())
    learned = {run: [] for run in (state, plain)}
    for run, means in learned.items():
        run.observer.learns = lambda round_index, mean, means=means: means.append(mean.clone())
        run.step()
        run.step()
    noise = torch.stack(learned[state]) - torch.stack(learned[plain])
    step = PLAN.mechanism.grid.step / 12**0.5
    assert noise[0].std().item() == pytest.approx(16 * step, rel=0.3)
    assert noise.sum(0).std().item() == pytest.approx((16**2 + 2**2) ** 0.5 * step, rel=0.3)


def test_the_chain_restarts_after_a_discarded_round():
    plan = change_plan(PLAN, client_dropout=0.3, min_survivors=3, rounds=40, max_participations=14)
    cohorts = [CohortSampler(plan, 12).draw(round_index) for round_index in range(40)]
    for previous, cohort in pairwise(cohorts):
        assert cohort.settling == (previous.survivors if previous.is_large_enough else [])
    state = RunState(plan, federation(), model())
    outcomes = [state.step() for _ in range(40)]
    assert 5 < sum(bool(outcome.discarded) for outcome in outcomes) < 40
    assert state.guard.charges == dict.fromkeys(range(40), 1)


def test_the_folder_has_the_epsilon_of_the_plan(tmp_path):
    plan = change_plan(PLAN, model="linear", server=ServerStep(rate=0.5, momentum=0.5, schedule="linear"))
    summary = run_folder.carry_out(plan, pictures(clients=12), tmp_path / "run")
    guarantee, _ = account_ledger(tmp_path / "run")
    planned = account(change_plan(plan, dim=summary["parameters"], data="noise"))
    assert guarantee.epsilon == planned.epsilon
    assert guarantee.correlated_noise_ratio == planned.correlated_noise_ratio
    assert summary["bits_under_secagg"] == guarantee.bits_under_secagg > 10


def test_users_take_turns_in_a_fixed_order():
    sampler = CohortSampler(PLAN, 12)
    cohorts = [sampler.draw(round_index).clients for round_index in range(9)]
    assert cohorts[0] == cohorts[3] == cohorts[6]
    assert sorted(cohorts[0] + cohorts[1] + cohorts[2]) == list(range(12))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"min_separation": 4}, "separation = 4: must be at most 3"),
        ({"max_participations": 2}, "participations = 2"),
        ({"client_dropout": 0.1}, "survivors = None: must be given"),
        ({"mechanism": StochasticRounding(clip=0.5, levels=16)}, "two levels"),
    ],
)
def test_plans_with_a_wrong_participation_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        RunState(change_plan(PLAN, **change), federation(), model())


def test_the_noise_in_the_model_depends_on_the_server_optimizer():
    run, restored = (
        account(change_plan(PLAN, server=ServerStep(momentum=m, schedule="linear")), dim=50) for m in (0.0, 0.9)
    )
    assert run.epsilon == restored.epsilon
    assert run.correlated_noise_ratio != restored.correlated_noise_ratio
