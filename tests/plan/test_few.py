"""Few coordinates through the house: plans, ledgers, verifier, policy, protocol, Flower's settings, training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm import PrivateMean, Rounding, account
from rqm.flower.settings import Settings
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.plan.experiments import find
from rqm.plan.guard import Guard, certificate, certified
from rqm.plan.plan import Plan, Transforms
from rqm.plan.policy import Policy
from rqm.plan.protocol import protocol
from rqm.plan.sweep import Sweep
from rqm.training.trainer import Trainer
from rqm.verify import verify
from tests.training.small import collected, federation, model
from tests.verify.ledgers import about, plan, written

DIM, FEW = 5000, 512
PLAN = Plan(
    mechanism=Rounding(clip=0.2, levels=2, margin=9.0),
    clients=40,
    rounds=6,
    population=1000,
    participations=2,
    delta=1e-6,
    model="mine",
    dim=DIM,
    transforms=Transforms(l2_clip=1.0, rotate=True, coordinates=FEW),
)


def test_a_plan_keeps_them_and_old_plans_do_not_know_them():
    values = json.loads(json.dumps(PLAN.to_dict()))
    assert values["transforms"] == {"l2_clip": 1.0, "rotate": True, "coordinates": FEW}
    assert Plan.from_dict(values) == PLAN
    assert Plan.from_dict({**values, "dim": None}).any_mean.setting == PLAN.any_mean.setting
    old = replace(PLAN, transforms=Transforms(1.0, True)).to_dict()
    assert old["transforms"] == {"l2_clip": 1.0, "rotate": True}
    assert not PLAN.goes_on(Plan.from_dict(old))


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
    with pytest.raises(ValueError, match="noise is taken back"):
        replace(PLAN, cancel=5.0, separation=2)


def test_the_account_is_of_what_is_sent():
    found = account(PLAN)
    assert (found.dim, found.chosen_of) == (FEW, 8192)
    assert found.bits_under_secagg == 6
    assert found.wire_bits_per_parameter == pytest.approx(6 * FEW / DIM)
    whole = account(replace(PLAN, transforms=Transforms(1.0, True)))
    assert whole.wire_bits_per_parameter == pytest.approx(6 * 8192 / DIM)
    assert whole.chosen_of is None


def test_a_ledger_is_charged_and_verified(tmp_path):
    mean = PLAN.private_mean()
    with Guard(mean, tmp_path, plan=PLAN) as guard:
        for turn in range(3):
            guard.charge(turn)
        spent = guard.epsilon()
    found = verify(tmp_path / "ledger.jsonl", dim=DIM, rounds=3)
    assert (found.wrong, found.unsure) == ([], [])
    assert spent <= found.epsilon <= 1.1 * spent
    again = replace(PLAN, dim=DIM + 1).private_mean()  # the promise is of what is sent
    with Guard(again, tmp_path) as guard:
        assert guard.epsilon() == spent
    with pytest.raises(ValueError, match="another"):
        Guard(mean.with_(coordinates=FEW - 1), tmp_path)


def test_a_certificate_is_of_one_number_of_coordinates(tmp_path):
    mean, path = PLAN.private_mean(), tmp_path / "certificate.json"
    path.write_text(json.dumps({"certificates_format": 1, "certificates": [certificate(mean)]}))
    assert certified(path, mean)[1] == mean.guarantee.epsilon
    with pytest.raises(ValueError, match="another plan"):
        certified(path, mean.with_(coordinates=FEW + 1))


MECHS = [Rounding(clip=0.2, levels=2, margin=9.0), DiscreteGaussian(clip=0.2, scale=1.5, steps=5, bits=10)]


@pytest.mark.parametrize("mech", MECHS, ids=repr)
@pytest.mark.parametrize("count", [500, 6000, 8100])
def test_the_verifier_counts_the_second_clip(check, mech, count):
    mean = PrivateMean(dim=DIM, clients=60, mechanism=mech, delta=1e-6, rounds=8, participations=3, coordinates=count)
    found = check(written([0, 1, 2], about(mean)))
    assert (found.wrong, found.unsure) == ([], [])
    assert mean.spent({0: 1, 1: 1, 2: 1}).epsilon <= found.epsilon <= 1.1 * mean.spent({0: 1, 1: 1, 2: 1}).epsilon
    if mech.additive is None:
        assert found.lower <= mean.spent({0: 1, 1: 1, 2: 1}).epsilon


@pytest.mark.parametrize(
    ("change", "said", "status"),
    [
        ({}, {}, "fine"),
        ({"coordinates": 300}, {}, "wrong"),
        ({"coordinates": None}, {}, "wrong"),
        ({}, {"coordinates": None}, "wrong"),
        ({"coordinates": 128}, {"coordinates": 128}, "unsure"),
        ({"coordinates": 0}, {"coordinates": 0}, "unsure"),
        ({"coordinates": 0.5}, {"coordinates": 0.5}, "unsure"),
        ({"rotate": False}, {"rotate": False}, "unsure"),
    ],
)
def test_what_a_ledger_says_of_them_must_be_so(check, change, said, status):
    mean = PrivateMean(
        dim=100, clients=20, mechanism=Rounding(clip=1.5, levels=2, margin=9.0), delta=1e-6, rounds=8, coordinates=16
    )
    begin, parts = about(mean), {"l2_clip": 1.0, "rotate": True, "coordinates": 16}
    begin["plan"] = plan(mean, transforms={key: v for key, v in {**parts, **said}.items() if v is not None})
    begin["mean"] = {
        key: v
        for key, v in {**begin["mean"], **change}.items()
        if v is not None or (key in begin["mean"] and key not in change)
    }
    found = check(written([0, 1], begin))
    assert {"fine": not found.wrong and not found.unsure, "wrong": found.wrong, "unsure": found.unsure}[status]


def test_the_protocol_and_flower_carry_few():
    params = protocol(PLAN, DIM, b"1")
    assert params.count == FEW
    assert params.about == bytes.fromhex(PLAN.private_mean().kind)
    assert params.about != protocol(replace(PLAN, transforms=Transforms(1.0, True)), DIM, b"1").about
    config = {f"rqm.{key}": value for key, value in {"clients": 40, "rounds": 6, "delta": 1e-6}.items()}
    config |= {"rqm.transforms.l2_clip": 1.0, "rqm.transforms.rotate": True, "rqm.transforms.coordinates": FEW}
    config |= {"rqm.mechanism.mechanism": "rounding", "rqm.mechanism.clip": 0.2, "rqm.mechanism.margin": 9.0}
    settings = Settings.from_run_config(config | {"rqm.mechanism.levels": 2})
    assert settings.params(DIM, b"1").count == FEW


def test_a_policy_counts_what_is_sent():
    policy = Policy(
        epsilon=8.0, delta=1e-6, release_epsilon=4.0, l2_clip=1.0, clients=40, participations=9, honest=30,
        trust_server_with_keys=True,
    )  # fmt: skip
    counted = policy.counted(PLAN.private_mean())
    assert (counted.coordinates, counted.honest, counted.few) == (FEW, 30, True)
    policy.check(replace(PLAN, honest=30), replace(PLAN, honest=30).private_mean())


def test_the_true_sum_is_the_ideal_one_and_the_model_moves():
    small = Plan(
        data="blobs", clients=8, rounds=6, device="cpu", mechanism=Rounding(clip=0.9, levels=2, margin=2.0),
        transforms=Transforms(l2_clip=1.0, rotate=True, coordinates=20),
    )  # fmt: skip
    ideal, secure = (Trainer(replace(small, secagg=kind), federation(), model()) for kind in ("ideal", "real"))
    one, other = (collected(trainer, list(range(8)), 3)[0] for trainer in (ideal, secure))
    assert one.shape == (20,)
    assert torch.equal(one, other.to(one.dtype))
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
    found = [account(plan) for plan in plans.values()]
    assert all(0.995 * 10 < one.epsilon <= 10 for one in found)
    for name, one in zip(plans, found, strict=True):
        said = float(name.split(", ")[-1].split(" bits")[0])
        assert one.wire_bits_per_parameter == pytest.approx(said, rel=0.05)
    assert found[1].wire_bits_per_parameter <= most[0]
    assert found[1].noise_std_over_gaussian <= most[1]
    assert np.all(np.diff([one.wire_bits_per_parameter for one in found]) < 0)
