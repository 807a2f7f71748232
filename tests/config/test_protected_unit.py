"""Plans of silos: the unit of privacy in plan, guard, ledger and account; and what is refused."""

import json

import pytest

from rqm import Plan, account
from rqm.config.account import account_ledger
from rqm.ledger.budget_guard import Guard, certificate
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.verify import verify
from tests.commands import rqm

NOISE = {"mechanism": "discrete-gaussian", "clip": 1.0, "scale": 0.5, "steps": 511, "bits": 12}
PLAN = {
    "data": "mnist-writers",
    "model": "linear",
    "mechanism": NOISE,
    "clients": 4,
    "rounds": 20,
    "delta": 1e-6,
    "transforms": {"l2_clip": 22.6, "rotate": True},
    "records": {"clip": 1.0, "batch": 200, "sampling_rate": 0.05, "silos": 4},
}


RECORDS = {"clip": 1.0, "batch": 200, "silos": 4}
IN_ORDER = {"records": RECORDS, "min_separation": 10}


def plan(**changes):
    return Plan.from_dict(PLAN | changes)


def test_a_plan_of_silos_protects_a_record():
    found = account(plan())
    threat = found.threat_model
    assert (threat.unit, threat.neighboring) == ("record", "add-or-remove-one")
    assert (found.release.record_clip, found.release.sampling_rate) == (1.0, 0.05)
    assert found.accountant == "pld"
    assert 0 < found.epsilon < 8
    assert found.sentence.startswith("Certified for every record (ε = ")
    assert "whatever the server and other silos computes" in found.sentence
    assert "all 4 silos of every round are honest" in str(found)
    alone = account(plan(), honest_clients=1)
    assert alone.epsilon > found.epsilon
    assert "the record's own silo is honest" in alone.sentence or alone.epsilon > 100


def test_it_is_read_back_as_it_was_written():
    for one in (
        plan(),
        plan(records={"clip": 1.0, "batch": 200}, min_separation=20, neighboring="replace-one"),
        plan(records=PLAN["records"] | {"sampling_rate": 1.0}),
    ):
        assert Plan.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert Plan().to_dict()["records"] is None


def test_a_fixed_order_counts_epochs():
    fixed = plan(records={"clip": 1.0, "batch": 200}, min_separation=10, neighboring="replace-one")
    assert account(fixed).participations == 2
    assert account(fixed).accountant == "gaussian"


@pytest.mark.slow
def test_a_fixed_order_with_noise_that_cancels_says_so_and_its_ledger_too(tmp_path):
    noise = NOISE | {"scale": 0.2, "bits": 15}
    alone, both = (account(plan(**IN_ORDER, mechanism=noise, noise=std)) for std in (None, 400.0))
    assert both.epsilon < 0.6 * alone.epsilon
    assert (both.participations, both.participation.min_separation) == (2, 10)
    assert both.bits_under_secagg == 15  # one message a round
    assert both.correlated_noise_ratio < 1
    assert "at most 2 of the 20 rounds" in both.sentence
    assert "at least 10 rounds apart" in both.sentence
    assert "in each of the 10 rounds from a participation on" in str(both)
    one = plan(**IN_ORDER, mechanism=noise, noise=400.0, dim=7850)
    with Guard(one.private_mean(), tmp_path, plan=one, users=4, budget=100.0) as guard:
        for turn in range(12):
            assert guard.allows(turn)
            guard.charge(turn)
        assert guard.epsilon() == pytest.approx(account(one).epsilon)  # a record may have come twice
    assert account_ledger(tmp_path)[0].epsilon == pytest.approx(account(one).epsilon)
    report = verify(tmp_path)
    assert (report.status, report.unit, report.max_participations) == ("verified", "record", 2)
    assert 0.995 * both.epsilon <= report.epsilon <= 1.05 * both.epsilon


def test_a_silo_that_may_be_away_is_missing_in_the_noise_of_two_rounds():
    noise = NOISE | {"scale": 0.2, "bits": 15}
    of = IN_ORDER | {"records": RECORDS | {"silos": 8}, "mechanism": noise, "noise": 400.0, "clients": 8}
    once = {0: 1}
    lost, fewer, all_there = (
        plan(**of, **more).private_mean().account(once).epsilon
        for more in ({"min_survivors": 7}, {"honest_clients": 6}, {})
    )
    assert lost == fewer > all_there


def test_the_ledger_of_silos_is_accounted_for_and_verified(tmp_path):
    one = plan(dim=7850)
    with Guard(one.private_mean(), tmp_path, plan=one, users=4, budget=50.0) as guard:
        for turn in range(3):
            assert guard.allows(turn)
            guard.charge(turn)
        spent = guard.epsilon()
    found, charged = account_ledger(tmp_path)
    assert charged["charges"] == 3
    assert found.threat_model.unit == "record"
    assert found.epsilon == spent < account(one).epsilon
    report = verify(tmp_path)
    assert (report.status, report.unit, report.max_participations) == ("verified", "record", 3)
    assert spent <= report.epsilon <= 1.05 * spent


def test_a_round_that_is_charged_twice_costs_more(tmp_path):
    mean = plan().private_mean()
    assert mean.account({0: 1, 1: 1}).epsilon < mean.account({0: 2}).epsilon


def test_no_certificate_is_written_for_sampled_records():
    with pytest.raises(ValueError, match="sampling_rate: ε of sampled records does not follow"):
        certificate(plan().private_mean())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": {"clip": 1.0}}, "batch"),
        ({"records": {"clip": 0, "batch": 1}}, "records.clip = 0"),
        ({"records": {"clip": 1.0, "batch": 1, "epochs": 3}}, "records.epochs"),
        ({"min_separation": 3}, "records.sampling_rate: must be given without max_participations and min_separation"),
        ({"neighboring": "replace-one"}, r"neighboring = 'replace-one'"),
        ({"records": RECORDS, "neighboring": "zero-out"}, "neighboring = 'zero-out'"),
        ({"records": RECORDS, "unit": "user", "neighboring": "replace-one"}, "record"),
        ({"records": {"clip": 100.0, "batch": 1}}, "transforms.l2_clip = 22.6: must be from 1 to 16384"),
        ({"adapt": {}}, "adapt: must not be given with"),
        ({"delta": None}, "delta = None: must be given"),
        ({"population": 40}, "population = 40: must not be given with"),
        ({"records": RECORDS, "max_participations": 4}, "max_participations = 4: must not be given with"),
        ({"client": {"work": "local"}}, "client.work = 'local': must be 'gradient'"),
        ({"noise": 2.0}, "records.sampling_rate: must not be given with correlated noise"),
        (
            IN_ORDER | {"noise": 2.0, "mechanism": {"mechanism": "rounding", "levels": 2, "margin": 30.0}},
            "mechanism = 'rounding': must be integer noise",
        ),
        ({"noise": 2.0, "records": RECORDS, "min_separation": 1}, "min_separation = 1: must be larger"),
        (IN_ORDER | {"noise": 0.1}, "noise.transient_std = 0.1: must be from 0.5"),
        (IN_ORDER | {"noise": {"transient_std": 9.0, "residual_std": 1.0, "gain": 4}}, "residual_std: must be 0"),
        ({"mechanism": {"mechanism": "rqm"}}, "mechanism = 'rqm': no bound is known for records"),
    ],
)
def test_plans_that_no_bound_is_known_for_are_refused(changes, said):
    with pytest.raises((ValueError, TypeError), match=said):
        plan(**changes)


def test_account_says_it_in_one_sentence_for_records(tmp_path):
    path = tmp_path / "silos.toml"
    mech = ", ".join(f"{k} = {json.dumps(v)}" for k, v in NOISE.items())
    path.write_text(
        f"data = 'mnist-writers'\nmodel = 'linear'\nclients = 4\nrounds = 20\ndelta = 1e-6\nmechanism = {{ {mech} }}\n"
        "transforms = { l2_clip = 22.6, rotate = true }\n"
        "records = { clip = 1.0, batch = 200, sampling_rate = 0.05, silos = 4 }\n"
    )
    said = json.loads(rqm("account", str(path), "--json").stdout)
    assert (said["unit"], said["sampling_rate"]) == ("record", 0.05)
    printed = rqm("account", str(path)).stdout
    assert "record-level (add-or-remove-one), against the server and other silos" in " ".join(printed.split())
    sentence = " ".join(printed.split())  # one that can be quoted, with all of its conditions
    for part in (
        "all 4 silos of every round are honest",
        "each record is included in a round independently with probability 0.05 (Poisson sampling)",
    ):
        assert part in sentence
    assert said["sentence"].startswith("Certified for every record (ε = ")
    assert DiscreteGaussian.kind in path.read_text()
