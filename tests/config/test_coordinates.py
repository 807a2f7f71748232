"""Clients that send few of the rotated coordinates: plans, ledgers, verifier, policy, protocol, Flower, training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm import PrivateMean, StochasticRounding, ThreatModel, account
from rqm.config.experiments import find
from rqm.config.plan import Plan, Transforms
from rqm.config.round_parameters import protocol
from rqm.config.sweep import Sweep
from rqm.flower.run_settings import Settings
from rqm.flower.shared_plan import SharedPlan
from rqm.ledger.budget_guard import Guard, certificate, certified
from rqm.ledger.node_policy import Policy
from rqm.simulation.loop import RunState
from rqm.verify import verify
from tests.plans import change_plan, make_plan
from tests.simulation.small import collected, federation, model

DIM, FEW = 5000, 512
PLAN = make_plan(
    mechanism=StochasticRounding(clip=0.2, levels=2, margin=9.0),
    clients=40,
    rounds=6,
    population=1000,
    max_participations=2,
    delta=1e-6,
    model="mine",
    dim=DIM,
    transforms=Transforms(l2_clip=1.0, rotate=True, coordinates=FEW),
)


def test_a_plan_keeps_the_number_of_coordinates():
    values = json.loads(json.dumps(PLAN.to_dict()))
    assert values["transforms"] == {"l2_clip": 1.0, "rotate": True, "coordinates": FEW}
    assert Plan.from_dict(values) == PLAN
    without_dim = Plan.from_dict({**values, "dim": None}).any_mean
    assert without_dim.release == PLAN.any_mean.release
    full = replace(PLAN, transforms=Transforms(1.0, True)).to_dict()
    assert full["transforms"] == {"l2_clip": 1.0, "rotate": True, "coordinates": None}
    assert not PLAN.can_continue(Plan.from_dict(full))


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ({"coordinates": 9000}, r"transforms\.coordinates = 9000: must be a whole number from 1 to 8192"),
        ({"coordinates": 0}, r"transforms\.coordinates = 0"),
        ({"rotate": False}, r"transforms\.coordinates = 512: must come with an L2 clip and a rotation"),
        ({"l2_clip": None}, r"transforms\.coordinates = 512: must come with an L2 clip"),
    ],
)
def test_what_does_not_go_together_is_refused(transforms, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAN, transforms=replace(PLAN.transforms, **transforms))
    with pytest.raises(ValueError, match="must not be given with correlated noise"):
        change_plan(PLAN, noise=5.0, min_separation=2)


def test_the_account_is_of_what_is_sent():
    guarantee = account(PLAN)
    assert (guarantee.dim, guarantee.subset.total) == (FEW, 8192)
    assert guarantee.to_dict()["coordinates_of"] == 8192
    assert guarantee.bits_under_secagg == 6
    assert guarantee.wire_bits_per_parameter == pytest.approx(6 * FEW / DIM)
    full = account(replace(PLAN, transforms=Transforms(1.0, True)))
    assert full.wire_bits_per_parameter == pytest.approx(6 * 8192 / DIM)
    assert full.subset is None


def test_a_ledger_is_charged_and_verified(tmp_path):
    mean = PLAN.private_mean()
    with Guard(mean, tmp_path, plan=PLAN) as guard:
        for round_index in range(3):
            guard.charge(round_index)
        privacy_spent = guard.epsilon()
    larger = replace(PLAN, dim=DIM + 1).private_mean()  # the promise is of what is sent
    with Guard(larger, tmp_path) as guard:
        assert guard.epsilon() == privacy_spent
    with pytest.raises(ValueError, match="another"):
        Guard(mean.with_values(coordinates=FEW - 1), tmp_path)
    report = verify(tmp_path / "ledger.jsonl", dim=DIM, rounds=3)
    assert (report.wrong, report.unsure) == ([], [])
    assert privacy_spent <= report.epsilon <= 1.1 * privacy_spent


def test_a_certificate_is_of_one_number_of_coordinates(tmp_path):
    mean, path = PLAN.private_mean(), tmp_path / "certificate.json"
    path.write_text(json.dumps({"certificates_format": 1, "certificates": [certificate(mean)]}))
    assert certified(path, mean)[1] == mean.guarantee().epsilon
    with pytest.raises(ValueError, match="another plan"):
        certified(path, mean.with_values(coordinates=FEW + 1))


def test_the_protocol_and_flower_carry_the_number_of_coordinates():
    params = protocol(PLAN, DIM, b"1")
    assert params.count == FEW
    assert params.context == bytes.fromhex(PLAN.private_mean().fingerprint)
    assert params.context != protocol(replace(PLAN, transforms=Transforms(1.0, True)), DIM, b"1").context
    mechanism = StochasticRounding(clip=0.2, margin=9.0, levels=2)
    settings = Settings(1e6, 40, 6, delta=1e-6, coordinates=FEW, mechanism=mechanism, failure_share=0.0)
    shared = settings.plan(("w",), DIM)
    assert shared.params(b"1").count == FEW
    assert SharedPlan.from_json(shared.to_json()).mean.coordinates == FEW


def test_a_policy_counts_what_is_sent():
    policy = Policy(
        epsilon=8.0, delta=1e-6, release_epsilon=4.0, l2_clip=1.0, clients=40, max_participations=9,
        honest_clients=30, trust_server_with_keys=True,
    )  # fmt: skip
    counted = policy.counted(PLAN.private_mean())
    assert (counted.coordinates, counted.threat_model.honest_clients, counted.is_subset) == (FEW, 30, True)
    plan = change_plan(PLAN, honest_clients=30)
    policy.check(plan.private_mean())


def test_the_true_sum_is_the_ideal_one_and_the_model_moves():
    small = make_plan(
        data="blobs", clients=8, rounds=6, device="cpu", mechanism=StochasticRounding(clip=0.9, levels=2, margin=2.0),
        transforms=Transforms(l2_clip=1.0, rotate=True, coordinates=20),
    )  # fmt: skip
    ideal, secure = (RunState(replace(small, secagg=kind), federation(), model()) for kind in ("ideal", "real"))
    ideal_sum, secure_sum = (collected(trainer, list(range(8)), 3)[0] for trainer in (ideal, secure))
    assert ideal_sum.shape == (20,)
    assert torch.equal(ideal_sum, secure_sum.to(ideal_sum.dtype))
    before = ideal.values.clone()
    record = ideal.step()
    assert record.bits_up == 8 * 20
    assert (ideal.values != before).any()


@pytest.mark.parametrize(
    ("experiment", "names", "most"),
    [("few-coordinates", 5, (0.2, 1.05)), ("few-coordinates-3400", 4, (0.03, 1.06))],
)
def test_the_shipped_experiments_spend_ten_and_send_what_they_say(experiment, names, most):
    plans = Sweep.from_toml(find(experiment)).variants
    assert len(plans) == names
    guarantees = [account(plan) for plan in plans.values()]
    assert all(0.995 * 10 < guarantee.epsilon <= 10 for guarantee in guarantees)
    for name, guarantee in zip(plans, guarantees, strict=True):
        bits = float(name.split(", ")[-1].split(" bits")[0])
        assert guarantee.wire_bits_per_parameter == pytest.approx(bits, rel=0.05)
    assert guarantees[1].wire_bits_per_parameter <= most[0]
    assert guarantees[1].noise_std_over_gaussian <= most[1]
    assert np.all(np.diff([guarantee.wire_bits_per_parameter for guarantee in guarantees]) < 0)


def test_beside_an_adaptive_clip_a_zero_update_is_as_far_away_as_any_other_vector():
    """The choice scales the count bit of a zero update, too: two encoded vectors may be farther apart than stated."""
    values = {"dim": DIM, "mechanism": PLAN.mechanism, "participation": PLAN.participation, "delta": 1e-6}
    mean = PrivateMean(**values, threat_model=ThreatModel(neighboring="zero-out"), coordinates=FEW, zero_distance=1.02)
    assert mean.release.sensitivity("zero-out") == mean.release.sensitivity("replace-one") == 2 * mean.l2_bound
    replaced = replace(mean, threat_model=ThreatModel(neighboring="replace-one"))
    assert mean.guarantee().epsilon == pytest.approx(replaced.guarantee().epsilon, rel=1e-9)
