"""Ledgers of vqSGD, of a clip that adapts and of methods: verified from outside, charged before anything is sent."""

import json
from dataclasses import replace

import pytest

from rqm import PrivateMean, Rounding
from rqm.mechanisms.vqsgd import VQSGD
from rqm.plan.account import account_ledger
from rqm.plan.plan import Adapt, ClientWork, Plan, ServerStep, Transforms
from rqm.privacy.ledger import LEDGER, read
from rqm.training.aggregate import Ideal, Secure
from rqm.training.run import carry_out
from rqm.training.trainer import Trainer
from rqm.verify import verify
from tests.training.small import federation, model
from tests.verify.ledgers import about, written

PLAN = Plan(
    model="own",
    mechanism=Rounding(clip=0.8, margin=9.0, levels=2),
    clients=8,
    rounds=3,
    evaluate_every=3,
    client=ClientWork(work="local", steps=2, batch=4),
    server=ServerStep(optimizer="sgd", rate=0.1),
    transforms=Transforms(l2_clip=1.0, rotate=True),
)
SYSTEMS = {
    "vqsgd": replace(PLAN, mechanism=VQSGD(epsilon=8.0)),
    "vqsgd, real": replace(PLAN, mechanism=VQSGD(epsilon=8.0), secagg="real"),
    "vqsgd, an index": replace(PLAN, mechanism=VQSGD(epsilon=3.0, local=True), honest=1),
    "adapt": replace(PLAN, adapt=Adapt(start=0.3)),
    "adapt, real": replace(PLAN, adapt=Adapt(start=0.3), secagg="real"),
    "fedcomgate": replace(PLAN, client=replace(PLAN.client, work="fedcomgate")),
    "fedaq": replace(PLAN, client=replace(PLAN.client, work="fedaq")),
    "fedaq, adapt": replace(PLAN, client=replace(PLAN.client, work="fedaq"), adapt=Adapt(start=0.3)),
}


def trained(plan, folder, **more):
    return carry_out(plan, federation(), folder, make=lambda plan, data: Trainer(plan, data, model()), **more)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_is_verified_as_it_was_charged(name, tmp_path):
    summary = trained(SYSTEMS[name], tmp_path / "run")
    found = verify(tmp_path / "run", dim=summary["parameters"])
    assert (found.wrong, found.unsure) == ([], [])
    stated = account_ledger(tmp_path / "run")[0].epsilon
    assert summary["epsilon"] == pytest.approx(stated)
    assert stated * 0.999 <= found.epsilon <= 1.1 * stated
    assert verify(tmp_path / "run", dim=summary["parameters"] + 1).wrong  # another model is noticed


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_round_is_on_the_disk_before_clients_are_asked(name, tmp_path, monkeypatch):
    """And one that the budget does not pay for is not asked for at all."""
    plan, seen = SYSTEMS[name], []
    one = plan.private_mean(51).spent({0: 1}).epsilon
    kind = Secure if plan.secagg == "real" else Ideal
    collect = kind.collect

    def looks(self, chosen, staying, turn, before=((), ())):
        seen.append(read(tmp_path / "run" / LEDGER)[1][turn])
        return collect(self, chosen, staying, turn)

    monkeypatch.setattr(kind, "collect", looks)
    summary = trained(replace(plan, budget_epsilon=1.01 * one), tmp_path / "run")
    assert seen == [1]
    assert summary["rounds"] == 1
    assert summary["budget_spent"]
    assert summary["epsilon"] == pytest.approx(one)


@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_vqsgd_by_its_own_bound(check, local, epsilon, neighbours):
    who = {"clients": 30, "honest": 1 if local else 20, "rounds": 4, "participations": 4}
    mean = PrivateMean(mechanism=VQSGD(epsilon=epsilon, local=local), dim=100, delta=1e-6, **who, neighbours=neighbours)
    found = check(written([0, 1, 2, 3], about(mean)))
    assert found.wrong == []
    assert found.unsure == []
    assert mean.guarantee.epsilon * 0.999 <= found.epsilon <= 1.1 * mean.guarantee.epsilon


def test_what_it_cannot_tell_it_says(check):
    mean = PrivateMean(mechanism=VQSGD(epsilon=3.0, local=True), dim=100, clients=30, honest=1, delta=1e-6)

    def said(**changes):
        values = about(mean)
        values["mean"] |= changes
        return check(written([0], values)).unsure

    mech = mean.mechanism.to_dict()
    assert "honest = 2: must be 1" in said(honest=2)[0]
    assert "epsilon = 26" in said(mechanism={**mech, "epsilon": 26.0})[0]
    assert "local = 'yes'" in said(mechanism={**mech, "local": "yes"})[0]
    assert "must come with an L2 clip" in said(l2_clip=None)[0]
    plan = json.loads(json.dumps(replace(PLAN, dim=51).to_dict()))
    plan["client"]["work"] = "fedprox"
    ours = about(replace(PLAN, dim=51).private_mean(), plan=plan)
    assert "client.work = 'fedprox'" in check(written([0], ours)).unsure[0]


def test_a_plan_that_sends_one_vector_is_not_charged_for_two(check):
    """A ledger that charges for the half of what FedAQ sends is wrong."""
    quick = replace(PLAN, dim=51, client=replace(PLAN.client, work="fedaq"))
    plan = json.loads(json.dumps(quick.to_dict()))
    assert check(written([0], about(quick.private_mean(), plan=plan))).wrong == []
    found = check(written([0], about(PLAN.private_mean(51), plan=plan)))
    assert found.wrong == ["dim = 51 is charged for: the ledger's plan says 102"]
