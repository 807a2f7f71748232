"""Plans of silos: the unit of privacy in plan, guard, ledger and account; and what is refused."""

import json

import pytest

from rqm import Plan, account
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.plan.account import account_ledger
from rqm.plan.guard import Guard, certificate
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
    "records": {"clip": 1.0, "batch": 200, "rate": 0.05, "silos": 4},
}


IN_ORDER = {"clip": 1.0, "batch": 200, "batches": 10, "silos": 4}


def plan(**changes):
    return Plan.from_dict(PLAN | changes)


def test_a_plan_of_silos_protects_a_record():
    found = account(plan())
    assert (found.unit, found.neighbours, found.record_clip, found.record_rate) == ("record", "add-remove", 1.0, 0.05)
    assert found.accountant == "pld"
    assert 0 < found.epsilon < 8
    assert found.sentence.startswith("Certified for every record: whatever the server and other silos make")
    assert "4 of 4 silos of a round honest" in str(found)
    assert found.fixed_order_noise > 1
    assert "That takes less: in a fixed order" in str(found)
    alone = account(plan(), honest=1)
    assert alone.epsilon > found.epsilon
    assert "if its own silo is honest" in alone.sentence or alone.epsilon > 100


def test_it_is_read_back_as_it_was_written():
    for one in (
        plan(),
        plan(records={"clip": 1.0, "batch": 200, "batches": 20, "neighbours": "replace"}),
        plan(records=PLAN["records"] | {"rate": 1.0}),
    ):
        assert Plan.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert "records" not in Plan().to_dict()


def test_a_fixed_order_counts_epochs():
    fixed = plan(records={"clip": 1.0, "batch": 200, "batches": 10, "neighbours": "replace"})
    assert account(fixed).participations == 2
    assert account(fixed).accountant == "gaussian"


@pytest.mark.slow
def test_a_fixed_order_with_noise_that_cancels_says_so_and_its_ledger_too(tmp_path):
    noise = NOISE | {"scale": 0.2, "bits": 15}
    alone, both = (account(plan(records=IN_ORDER, mechanism=noise, cancel=cancel)) for cancel in (None, 400.0))
    assert both.epsilon < 0.6 * alone.epsilon
    assert (both.participations, both.separation, both.bits_under_secagg) == (2, 10, 15)  # one message a round
    assert both.iterate_noise_over_independent < 1
    assert "2 of the 20 rounds, 10 apart" in both.sentence
    assert "so many are there, in each of the 10 rounds" in str(both)
    one = plan(records=IN_ORDER, mechanism=noise, cancel=400.0, dim=7850)
    with Guard(one.private_mean(), tmp_path, plan=one, users=4, budget=100.0) as guard:
        for turn in range(12):
            assert guard.allows(turn)
            guard.charge(turn)
        assert guard.epsilon() == pytest.approx(account(one).epsilon)  # a record may have come twice
    assert account_ledger(tmp_path)[0].epsilon == pytest.approx(account(one).epsilon)
    report = verify(tmp_path)
    assert (report.status, report.unit, report.participations) == ("verified", "record", 2)
    assert 0.995 * both.epsilon <= report.epsilon <= 1.05 * both.epsilon


def test_a_silo_that_may_be_away_is_missing_in_the_noise_of_two_rounds():
    noise = NOISE | {"scale": 0.2, "bits": 15}
    of = {"records": IN_ORDER | {"silos": 8}, "mechanism": noise, "cancel": 400.0, "clients": 8}
    once = {0: 1}
    lost, fewer, all_there = (
        plan(**of, **more).private_mean().spent(once).epsilon for more in ({"survivors": 7}, {"honest": 6}, {})
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
    assert found.unit == "record"
    assert found.epsilon == spent < account(one).epsilon
    report = verify(tmp_path)
    assert (report.status, report.unit, report.participations) == ("verified", "record", 3)
    assert spent <= report.epsilon <= 1.05 * spent


def test_a_round_that_is_charged_twice_costs_more(tmp_path):
    mean = plan().private_mean()
    assert mean.spent({0: 1, 1: 1}).epsilon < mean.spent({0: 2}).epsilon


def test_no_certificate_is_written_for_sampled_records():
    with pytest.raises(ValueError, match="record_rate: ε of sampled records does not follow"):
        certificate(plan().private_mean())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": {"clip": 1.0}}, "batch"),
        ({"records": {"clip": 0, "batch": 1}}, "records.clip = 0"),
        ({"records": {"clip": 1.0, "batch": 1, "epochs": 3}}, "records.epochs"),
        ({"records": {"clip": 1.0, "batch": 1, "rate": 0.1, "batches": 3}}, "records.batches = 3: must come without"),
        (
            {"records": {"clip": 1.0, "batch": 1, "rate": 0.1, "neighbours": "replace"}},
            "must be add-remove with a record_rate",
        ),
        ({"records": {"clip": 1.0, "batch": 1, "neighbours": "zero-out"}}, "records.neighbours = 'zero-out'"),
        ({"records": {"clip": 100.0, "batch": 1}}, "transforms.l2_clip = 22.6: must be from 1 to 16384"),
        ({"adapt": {}}, "adapt: must not be given with"),
        ({"delta": None}, "delta = None: must be given"),
        ({"population": 40}, "population = 40: must not be given with"),
        ({"participations": 4}, "participations = 4: must not be given with"),
        ({"client": {"work": "local"}}, "client.work = 'local': must be 'gradient'"),
        ({"cancel": 2.0}, "records.batches = None: must be given where noise cancels"),
        (
            {"cancel": 2.0, "records": IN_ORDER, "mechanism": {"mechanism": "rounding", "levels": 2, "margin": 30.0}},
            "mechanism = 'rounding': must be integer noise",
        ),
        ({"cancel": 2.0, "records": IN_ORDER | {"batches": 1}}, "separation = None: must be given"),
        ({"cancel": 0.1, "records": IN_ORDER}, "cancel = 0.1: must be from 0.5"),
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
        "records = { clip = 1.0, batch = 200, rate = 0.05, silos = 4 }\n"
    )
    said = json.loads(rqm("account", str(path), "--json").stdout)
    assert (said["unit"], said["record_rate"]) == ("record", 0.05)
    printed = rqm("account", str(path)).stdout
    assert "for every record against the server and other silos" in printed
    sentence = " ".join(printed.split())  # one that can be quoted, with all of its conditions
    for part in ("Certified for every record: whatever the server and other silos make of all the rounds", "with this"):
        assert part in sentence
    assert "if all 4 silos of every round, its own among them, are honest and the record is drawn for each" in sentence
    assert DiscreteGaussian.kind in path.read_text()
