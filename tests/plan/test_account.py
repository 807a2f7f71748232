"""The privacy of plans."""

from dataclasses import replace

import pytest

from rqm import RQM, Noiseless, Rounding, account, calibrate
from rqm.plan.experiments import find
from rqm.plan.plan import Plan, Transforms
from rqm.plan.sweep import Sweep
from rqm.privacy.vector import vector_rdp

BUDGET = {"epsilon": 10, "delta": 1e-6, "clients": 1000, "population": 10**6, "rounds": 500}
PLAN = Plan(
    data="emnist-byclass-test",
    model="paper-cnn",
    clients=1000,
    rounds=500,
    population=10**6,
    participations=1,
    transforms=Transforms(l2_clip=0.3, rotate=True),
    mechanism=Rounding(clip=1.0, levels=2, margin=1.0),
)


def test_a_calibrated_plan_spends_what_it_was_calibrated_for():
    found = calibrate("rounding", levels=2, dim=2**20, l2_clip=0.3, **BUDGET)
    assert found.mechanism.clip == pytest.approx(4 * 0.3 / 1024)
    one = account(replace(PLAN, mechanism=found.mechanism), delta=1e-6)
    assert one.epsilon == pytest.approx(found.epsilon)
    assert 9.99 < one.epsilon <= 10
    assert one.dim == 2**20
    assert (one.observer, one.participations, one.honest, one.certified) == ("server", 1, 1000, True)
    assert (one.bits_per_coordinate, one.bits_under_secagg) == (1, 10)


def test_without_an_l2_budget_all_coordinates_count():
    plan = Plan(data="mnist-writers", model="linear", clients=5, rounds=3, mechanism=Rounding(levels=2, margin=50.0))
    one = account(plan)
    assert one.dim == 7850
    assert one.participations == 3
    release = vector_rdp(plan.mechanism, [2.0], honest=5, dim=7850, l2_clip=7850**0.5, law="sampled")[0]
    assert release == pytest.approx(7850 * one.per_coordinate, rel=1e-6)


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(TypeError, match="adds no noise"):
        account(replace(PLAN, mechanism=Noiseless()))
    with pytest.raises(ValueError, match="must come without a cap"):
        account(PLAN, observer="outsider")
    with pytest.raises(ValueError, match="population = None"):
        account(replace(PLAN, participations=None, population=None), observer="outsider")
    with pytest.raises(ValueError, match="give dim"):
        account(replace(PLAN, model="mine"))
    assert account(replace(PLAN, model="mine"), dim=1_018_174).dim == 2**20


def test_the_outsider_sees_every_round_but_not_who_took_part():
    plan = replace(PLAN, participations=None, population=None, rounds=20, clients=50, mechanism=Rounding(1.0, 40.0, 2))
    server, outsider = account(plan, 1e-5), account(plan, 1e-5, observer="outsider", population=100_000)
    assert server.participations == outsider.participations == 20
    assert outsider.epsilon < server.epsilon
    assert account(replace(plan, mechanism=RQM(clip=1.0, margin=200.0)), 1e-5).epsilon < server.epsilon


@pytest.mark.parametrize(
    ("experiment", "count", "observer", "participations", "clients"),
    [
        pytest.param("user-level", 12, "server", 1, 1000, marks=pytest.mark.slow),
        pytest.param("user-level-outsider", 9, "outsider", 1500, 100, marks=pytest.mark.slow),
        ("user-level-server", 3, "server", 45, 100),
    ],
)
def test_the_shipped_experiments_spend_what_their_variants_say(experiment, count, observer, participations, clients):
    plans = {name: plan for name, plan in Sweep.from_toml(find(experiment)).variants.items() if name != "noise-free"}
    assert len(plans) == count
    for name, plan in plans.items():
        target = float(name.split("ε=")[1])
        one = account(plan, 1 / plan.population, observer=observer)
        assert 0.999 * target < one.epsilon <= target
        assert 1 - 1e-9 <= one.noise_std_over_gaussian <= 1.025
        assert one.trusted_server == name.startswith("trusted")
        assert (one.observer, one.neighbours, one.participations) == (observer, "replace", participations)
        assert one.honest == clients
