"""Records of silos by the verifier's own bound: never below what is exactly so, and hardly above what is stated."""

import json
from collections import Counter
from math import inf

import numpy as np
import pytest

from rqm import Plan
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.plan.guard import Guard
from rqm.privacy.records import record_epsilon
from rqm.verify import verify
from rqm.verify.cancel import told
from rqm.verify.laws import Unsure
from rqm.verify.silos import _drawn, epsilon
from tests.privacy.test_ordered import GOES, NONE, STAYS, at, exact, law, seen, twice
from tests.privacy.test_records import exact_epsilon, sampled_pair

NOISE = {"mechanism": "discrete-gaussian", "clip": 1.0, "scale": 0.5, "steps": 511, "bits": 12}
PLAN = {"model": "own", "dim": 500, "mechanism": NOISE, "clients": 4, "rounds": 20, "delta": 1e-6}
PLAN |= {"transforms": {"l2_clip": 22.6, "rotate": True}, "records": {"clip": 1.0, "batch": 200, "rate": 0.05}}
FIXED = {"clip": 1.0, "batch": 200, "batches": 3, "neighbours": "replace"}


def charged(folder, turns=range(6), **changes):
    plan = Plan.from_dict(PLAN | changes)
    with Guard(plan.private_mean(), folder, plan=plan, users=4) as guard:
        for turn in turns:
            guard.charge(turn)
        return guard.epsilon()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"honest": 2},
        {"survivors": 3},
        {"records": FIXED},
        {"records": {"clip": 2.0, "batch": 1}},
        {"mechanism": NOISE | {"mechanism": "skellam"}},
        {"mechanism": NOISE | {"steps": 2047, "bits": 14}},
    ],
)
def test_what_is_stated_is_confirmed_to_a_few_per_cent(tmp_path, changes):
    stated = charged(tmp_path, **changes)
    found = verify(tmp_path)
    assert found.status == "verified", (found.wrong, found.unsure)
    assert found.unit == "record"
    assert 0.995 * stated <= found.epsilon <= 1.06 * stated


@pytest.mark.parametrize(("mu", "rate", "count"), [(1.0, 0.02, 300), (2.0, 0.1, 40), (0.5, 0.5, 100), (1.7, 0.02, 120)])
def test_draws_are_accounted_for_as_published_from_above(mu, rate, count):
    published = record_epsilon(mu, rate, {1: count}, 1e-6)
    assert 0.999 * published <= _drawn(mu, rate, count, 1e-6) <= 1.02 * published + 0.03


def test_it_is_never_below_what_is_exactly_so(tmp_path):
    mech = DiscreteGaussian(scale=1.0, steps=15, bits=7)
    exact = exact_epsilon(*sampled_pair(mech, 0.4, 0.3, 2), 2, 1e-3)
    values = mech.to_dict() | {"mechanism": "discrete-gaussian"}
    table = {"clip": 0.4, "batch": 1, "rate": 0.3}
    charged(
        tmp_path, range(2), mechanism=values, clients=2, dim=1, delta=1e-3, records=table, transforms={"l2_clip": 1.0}
    )
    assert exact <= verify(tmp_path).epsilon < inf


@pytest.mark.parametrize(
    ("changes", "turns", "said"),
    [
        ({}, [0, 1, 1], "rounds were done again"),
        ({"records": FIXED}, [0, 1, 5], "rounds are missing"),
        ({"mechanism": NOISE | {"scale": 0.01}}, [0], "adds up losses below 15"),
        ({"mechanism": {"mechanism": "rounding", "clip": 5.0, "levels": 2, "margin": 9.0}}, [0], "has no bound for it"),
    ],
)
def test_what_it_has_no_bound_for_it_does_not_verify(tmp_path, changes, turns, said):
    charged(tmp_path, turns, **changes)
    found = verify(tmp_path)
    assert found.status == "cannot verify"
    assert found.epsilon is None
    assert any(said in doubt for doubt in found.unsure)


@pytest.mark.parametrize("change", [{"clip": 0.5}, {"rate": 0.01}, {"neighbours": "replace"}])
def test_a_plan_that_says_otherwise_is_wrong(tmp_path, change):
    charged(tmp_path)
    plan = Plan.from_dict(PLAN).to_dict()
    plan["records"] |= change
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert verify(tmp_path).status == "wrong"
    plan.pop("records")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert verify(tmp_path).status == "wrong"


ORDER = {"clip": 1.0, "batch": 200, "batches": 8}
HELD = {"mechanism": NOISE | {"scale": 0.2, "bits": 15}, "records": ORDER, "cancel": 200.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"honest": 3},
        {"clients": 8, "survivors": 7},
        {"records": ORDER | {"neighbours": "replace"}},
        {"records": ORDER | {"batches": 40}, "rounds": 40},
        {"dim": 10**6, "mechanism": NOISE | {"clip": 0.1, "scale": 2.0, "bits": 15}},
    ],
)
def test_noise_that_silos_take_back_is_confirmed_to_a_few_per_cent(tmp_path, changes):
    stated = charged(tmp_path, range(12), **HELD | changes)
    found = verify(tmp_path)
    assert found.status == "verified", (found.wrong, found.unsure)
    assert 0.995 * stated <= found.epsilon <= 1.06 * stated


def test_of_one_silo_alone_only_noise_that_stays_counts(tmp_path):
    found = []
    for cancel in (None, HELD["cancel"]):
        folder = tmp_path / str(cancel)
        folder.mkdir()
        found.append((charged(folder, range(12), **HELD | {"honest": 1, "cancel": cancel}), verify(folder).epsilon))
    assert found[0] == found[1]
    assert found[0][0] < found[0][1]


@pytest.mark.parametrize("change", [{"cancel": 1e-9}, {"cancel": 1e9}, {"separation": None}, {"record_rate": 0.1}])
def test_noise_that_no_encoder_has_is_not_verified(change):
    mean = Plan.from_dict(PLAN | HELD).private_mean().to_dict() | change
    with pytest.raises(Unsure, match=next(iter(change)).replace("record_rate", "cancel")):
        epsilon(mean, mean["mechanism"], Counter(range(3)))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_tells_more_of_a_step_than_the_verifiers_pair(rounds):
    """A run is enumerated, up to the next turn of the record, its last noise shown; and the pair is near to it."""
    noise = {"stays": STAYS, "goes": GOES if rounds < 3 else twice(law(1.5, 4))}
    shown = exact(*(seen([one, *[NONE] * (rounds - 1)], **noise, last=True) for one in (at(0.0), at(1.0))))
    found, _ = told(*noise.values(), rounds)
    pair = exact(np.append(found.chances, 0.0), np.append(found.chances * found.values, found.alone))
    assert (shown <= pair + 1e-12).all()
    assert shown[0] > 0.9 * pair[0]
