"""The privacy of plans."""

from dataclasses import replace

import pytest

from rqm import RQM, Noiseless, StochasticRounding, account, calibrate
from rqm.certify.affine_rdp import affine_rdp
from rqm.config.experiments import find
from rqm.config.plan import Transforms
from rqm.config.sweep import Sweep
from tests.plans import change_plan, make_plan

BUDGET = {"epsilon": 10, "delta": 1e-6, "clients": 1000, "population": 10**6, "rounds": 500}
PLAN = make_plan(
    data="emnist-byclass-test",
    model="paper-cnn",
    clients=1000,
    rounds=500,
    population=10**6,
    max_participations=1,
    transforms=Transforms(l2_clip=0.3, rotate=True),
    mechanism=StochasticRounding(clip=1.0, levels=2, margin=1.0),
)


def test_a_calibrated_plan_spends_what_it_was_calibrated_for():
    calibration = calibrate("rounding", levels=2, dim=2**20, l2_clip=0.3, **BUDGET)
    assert calibration.mechanism.clip == pytest.approx(4 * 0.3 / 1024)
    guarantee = account(replace(PLAN, mechanism=calibration.mechanism), delta=1e-6)
    assert guarantee.epsilon == pytest.approx(calibration.epsilon)
    assert 9.96 <= guarantee.epsilon <= 10
    assert guarantee.dim == 2**20
    assert guarantee.threat_model.adversary == "server"
    assert (guarantee.participations, guarantee.min_honest, guarantee.certified) == (1, 1000, True)
    assert (guarantee.bits_per_coordinate, guarantee.bits_under_secagg) == (1, 10)


def test_without_an_l2_clip_all_coordinates_count():
    plan = make_plan(
        data="mnist-writers", model="linear", clients=5, rounds=3, mechanism=StochasticRounding(levels=2, margin=50.0)
    )
    guarantee = account(plan)
    assert guarantee.dim == 7850
    assert guarantee.participations == 3
    rdp = affine_rdp(plan.mechanism, [2.0], honest=5, dim=7850, l2_clip=7850**0.5, distribution="sampled")[0]
    assert rdp == pytest.approx(7850 * guarantee.per_coordinate, rel=1e-6)


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(TypeError, match="adds no noise"):
        account(replace(PLAN, mechanism=Noiseless()))
    with pytest.raises(
        ValueError, match="max_participations = 1: must not be given where the adversary is an outsider"
    ):
        account(PLAN, adversary="outsider")
    with pytest.raises(ValueError, match="population = None"):
        account(change_plan(PLAN, max_participations=None, population=None), adversary="outsider")
    with pytest.raises(ValueError, match="give dim"):
        account(replace(PLAN, model="mine"))
    assert account(replace(PLAN, model="mine"), dim=1_018_174).dim == 2**20


def test_the_outsider_sees_every_round_but_not_who_took_part():
    changes = {"max_participations": None, "population": None, "rounds": 20, "clients": 50}
    plan = change_plan(PLAN, mechanism=StochasticRounding(1.0, 40.0, 2), **changes)
    server, outsider = account(plan, 1e-5), account(plan, 1e-5, adversary="outsider", population=100_000)
    assert server.participations == outsider.participations == 20
    assert outsider.epsilon < server.epsilon
    assert account(replace(plan, mechanism=RQM(clip=1.0, margin=200.0)), 1e-5).epsilon < server.epsilon


@pytest.mark.parametrize(
    ("experiment", "count", "adversary", "participations", "clients"),
    [
        pytest.param("user-level", 12, "server", 1, 1000, marks=pytest.mark.slow),
        pytest.param("user-level-outsider", 9, "outsider", 1500, 100, marks=pytest.mark.slow),
        ("user-level-server", 3, "server", 45, 100),
    ],
)
def test_the_shipped_experiments_spend_what_their_variants_say(experiment, count, adversary, participations, clients):
    plans = {name: plan for name, plan in Sweep.from_toml(find(experiment)).variants.items() if name != "noise-free"}
    assert len(plans) == count
    for name, plan in plans.items():
        target = float(name.split("ε=")[1])
        guarantee = account(plan, 1 / plan.participation.population, adversary=adversary)
        assert 0.999 * target < guarantee.epsilon <= target
        assert 1 - 1e-9 <= guarantee.noise_std_over_gaussian <= 1.025
        assert guarantee.is_by_trusted_server == name.startswith("trusted")
        threat = guarantee.threat_model
        assert (threat.adversary, threat.neighboring) == (adversary, "replace-one")
        assert (guarantee.participations, guarantee.min_honest) == (participations, clients)
