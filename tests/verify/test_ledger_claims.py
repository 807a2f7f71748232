"""What a ledger claims: every value is checked, compared with the plan and with what the auditor knows."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from math import comb, inf

import pytest

from rqm import DiscreteGaussian, Gaussian, StochasticRounding, private_mean
from rqm.config.plan import Adapt
from rqm.related.vqsgd import VQSGD
from rqm.verify.ledger_claims import read_claims
from rqm.verify.verification_report import Unverifiable
from tests.plans import make_plan
from tests.verify.ledgers import LEDGER, MEAN, change_mean, describe, ledger_bytes, plan_table, silo_plan

# -- claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mean",
    [
        MEAN,
        MEAN.with_values(rotate=False),
        replace(MEAN, l2_clip=None),
        private_mean(
            dim=5000, clients=60, mechanism=StochasticRounding(clip=0.2, levels=2), delta=1e-6, coordinates=500
        ),
        private_mean(dim=5000, clients=60, mechanism=DiscreteGaussian(clip=0.01), delta=1e-6, min_survivors=50),
    ],
)
def test_claims_are_the_values_of_the_mean(mean):
    claims, clip = read_claims(describe(mean)), mean.mechanism.clip
    assert claims.sent == mean.coordinates
    assert claims.squared_length == pytest.approx(min(mean.coordinates, (mean.l2_bound / clip) ** 2))
    assert claims.squared_distance == 4 * claims.squared_length
    zero_out = read_claims(describe(mean.with_values(neighboring="zero-out")))
    assert zero_out.squared_distance == claims.squared_length
    assert zero_out.distance_anywhere == claims.distance_anywhere == inf
    assert claims.dropouts == mean.participation.dropouts
    assert claims.window == mean.participation.window


def test_the_limit_counts_charged_rounds():
    draw = random.Random(3)
    for _ in range(300):
        rounds, limit, min_separation = (draw.randint(1, 30), draw.choice([None, 1, 2, 9]), draw.randint(1, 12))
        mean = MEAN.with_values(rounds=rounds, min_separation=min_separation)
        mean = replace(mean, participation=replace(mean.participation, max_participations=limit))
        first = draw.randrange(rounds)
        charges = Counter(range(first, draw.randint(first + 1, rounds + 3)))
        expected = mean.participation.spanning(charges).limit
        assert min(read_claims(describe(mean)).limit(charges), len(charges)) == min(expected, len(charges))


@pytest.mark.parametrize(
    ("population", "clients", "fraction"), [(20, 4, 0.5), (12, 5, 0.3), (9, 3, 1.0), (30, 9, 0.85)]
)
def test_cohorts_cover_all_numbers_of_honest_clients(population, clients, fraction):
    """The numbers of honest others are hypergeometric; those that are left out have little probability."""
    mean = MEAN.with_values(population=population, clients=clients, sampling="uniform", honest_fraction=fraction)
    honest = max(1, int(fraction * population)) - 1
    exact = Counter(
        {
            1 + k: comb(honest, k) * comb(population - 1 - honest, clients - 1 - k) / comb(population - 1, clients - 1)
            for k in range(clients)
        }
    )
    for releases, delta in product((1, 7), (1e-6, 0.3)):
        claims = read_claims(describe(replace(mean, delta=delta)))
        cohorts, left = claims.cohorts(releases)
        failure = (delta - left) / releases
        for smallest in range(1, clients + 2):  # a cohort counts for the smallest number in it
            fewer = sum(weight for number, weight in exact.items() if number < smallest)
            assert sum(weight for weight, number in cohorts if number < smallest) >= fewer - failure


# -- values that are not known, or impossible -----------------------------------------------------


def unknown_descriptions():
    """First lines that hold something that the verifier does not know, or that cannot be."""
    tables = [{}, {"clients": 20}, plan_table(more=1), plan_table(transforms={"l2_clip": 1.0})]
    tables += [{name: value for name, value in plan_table().items() if name != "records"}]
    for plan in tables:
        yield describe(plan=plan)
    yield from (describe(more=1), describe(users=19), describe(users="x"), describe(users=True), describe(seeded=True))
    yield {name: value for name, value in describe().items() if name != "plan"}
    for name, values in {
        "delta": [1, 0, -1e-6, "x", None, True],
        "rounds": ["x", 0, None, True, 8.0],
        "dim": [0, 2**41, "100"],
        "clients": [0, 2**32],
        "seed": [None, 0.0],
        "private_mean": [1, 3, True, "2"],
        "more": [1],
        "neighboring": [[], "replace", "add-or-remove-one"],
        "adversary": ["observer", None],
        "unit": ["silo", "record"],
        "sampling": ["mine", None],
        "rotate": [1, None],
        "zero_distance": [0.9, 0, 3.0, None],
        "min_separation": [0, None],
        "min_survivors": [21, 0],
        "honest_clients": [21, 0, 1.0, True],
        "honest_fraction": [0.0, 1.1],
        "population": [19],
        "coordinates": [0, 128, 0.5],
        "record_clip": [1.0],
        "sampling_rate": [0.5],
        "noise": [5.0, {}],
    }.items():
        for value in values:
            yield change_mean(describe(), **{name: value})
    yield change_mean(describe(), honest_clients=3, honest_fraction=0.5, population=20, sampling="uniform")
    yield describe(MEAN.with_values(population=20, sampling="uniform", honest_fraction=0.5), users=10**6)
    mechanism = MEAN.mechanism.to_dict()
    for value in ("x", {}, None, 1, 0.0, [0.5]):
        rqm = {"mechanism": "rqm", "clip": 1.0, "margin": 9.0, "levels": 2, "keep": value}
        yield change_mean(describe(), mechanism=rqm)
    for value in (False, [], "0"):
        yield change_mean(describe(), mechanism={**mechanism, "margin": value})
    yield change_mean(describe(), mechanism={**mechanism, "more": 1})
    yield change_mean(describe(), mechanism="rounding")


@pytest.mark.parametrize("description", list(unknown_descriptions()))
def test_what_is_not_known_is_not_verified(verify_bytes, description):
    report = verify_bytes(ledger_bytes([0], description))
    assert report.wrong == []
    assert report.status == "cannot verify"


@pytest.mark.parametrize("missing", sorted(describe()["mean"]))
def test_a_missing_value_is_not_verified(verify_bytes, missing):
    description = describe()
    del description["mean"][missing]
    assert verify_bytes(ledger_bytes([0], description)).status == "cannot verify"


@pytest.mark.parametrize("is_known_by_population", [False, True])
def test_users_return_no_later_than_the_population_allows(verify_bytes, is_known_by_population):
    """Of 100 users with 20 in a round, some return after 5 rounds."""
    for min_separation, status in ((5, "verified"), (6, "cannot verify")):
        description = change_mean(describe(), min_separation=min_separation, max_participations=None)
        if is_known_by_population:
            description = change_mean(description, population=100)
        else:
            description["users"] = 100
        report = verify_bytes(ledger_bytes(range(8), description))
        assert report.status == status, report
    assert report.unsure == ["min_separation = 6: must be at most 5 for 100 users"]


def test_seeded_messages_are_not_private(verify_bytes):
    report = verify_bytes(ledger_bytes([0], describe(seeded=True)))
    assert all("seeded randomness, which anyone can repeat: not private" in doubt for doubt in report.unsure)


def test_values_of_vqsgd_are_checked(verify_bytes):
    mean = private_mean(mechanism=VQSGD(epsilon=3.0, local=True), dim=100, clients=30, honest_clients=1, delta=1e-6)
    mechanism = mean.mechanism.to_dict()

    def doubt(**changes):
        return verify_bytes(ledger_bytes([0], change_mean(describe(mean), **changes))).unsure[0]

    assert verify_bytes(ledger_bytes([0], describe(mean))).status == "verified"
    assert "honest_clients = 2: must be 1" in doubt(honest_clients=2)
    assert "honest_clients = None: must be 1" in doubt(honest_clients=None)
    assert "epsilon = 26" in doubt(mechanism={**mechanism, "epsilon": 26.0})
    assert "local = 'yes'" in doubt(mechanism={**mechanism, "local": "yes"})
    assert "must be vqsgd only with an L2 clip" in doubt(l2_clip=None)


def test_a_gaussian_needs_an_l2_clip(verify_bytes):
    description = change_mean(describe(MEAN), mechanism=Gaussian(3.0).to_dict())
    assert verify_bytes(ledger_bytes([0], description)).status == "verified"
    report = verify_bytes(ledger_bytes([0], change_mean(description, l2_clip=None)))
    assert report.unsure == ["l2_clip = None: must be given with Gaussian noise"]


# -- the auditor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("dim", 101), ("delta", 1e-5), ("honest_clients", 19), ("honest_fraction", 0.5), ("rounds", 6)],
)
def test_what_contradicts_the_auditor_is_wrong(verify_bytes, name, value):
    report = verify_bytes(LEDGER, **{name: value})
    assert len(report.wrong) == 1
    assert str(value) in report.wrong[0]


def test_what_agrees_with_the_auditor_is_verified(verify_bytes):
    assert verify_bytes(LEDGER, dim=100, delta=1e-6, honest_clients=20, rounds=5).status == "verified"
    mean = MEAN.with_values(honest_fraction=0.5, population=1000, sampling="uniform")
    ledger = ledger_bytes([0], describe(mean))
    assert verify_bytes(ledger, honest_fraction=0.5).status == "verified"
    assert verify_bytes(ledger, honest_fraction=0.6).status == "wrong"
    assert verify_bytes(ledger, honest_clients=20).status == "wrong"


def test_one_honest_client_is_not_a_fraction_of_one(verify_bytes):
    """1 == 1.0 in Python: the mean counts on all users, the plan and the auditor on one client."""
    mean = MEAN.with_values(honest_fraction=1.0, population=1000, sampling="uniform")
    plan = plan_table(mean, honest_clients=1, honest_fraction=None)
    assert verify_bytes(ledger_bytes([0], describe(mean, plan_table(mean)))).status == "verified"
    assert verify_bytes(ledger_bytes([0], describe(mean, plan))).status == "wrong"
    assert verify_bytes(ledger_bytes([0], describe(mean)), honest_clients=1).status == "wrong"
    single = MEAN.with_values(honest_clients=1)
    assert verify_bytes(ledger_bytes([0], describe(single)), honest_fraction=1.0).status == "wrong"
    assert verify_bytes(ledger_bytes([0], describe(single, plan_table(single, honest_clients=True)))).status == "wrong"


# -- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", 21),
        ("rounds", 9),
        ("delta", 1e-05),
        ("honest_clients", 3),
        ("honest_fraction", 0.5),
        ("min_survivors", 4),
        ("max_participations", 4),
        ("min_separation", 2),
        ("population", 99),
        ("sampling", "uniform"),
        ("adversary", "outsider"),
        ("neighboring", "zero-out"),
        ("unit", "record"),
        ("mechanism", {"mechanism": "pbm"}),
        ("noise", {"transient_std": 5.0, "residual_std": 0.0, "gain": 1}),
        ("transforms", {"l2_clip": 2.0, "rotate": True, "coordinates": None}),
        ("transforms", {"l2_clip": 1.0, "rotate": False, "coordinates": None}),
        ("transforms", {"l2_clip": 1.0, "rotate": True, "coordinates": 50}),
        ("dim", 99),
        ("client_dropout", 0.1),
        ("records", {"clip": 1.0, "batch": 5.0}),
        ("adapt", Adapt().__dict__),
    ],
)
def test_a_plan_that_says_otherwise_is_wrong(verify_bytes, name, value):
    assert verify_bytes(ledger_bytes([0], describe(plan=plan_table()))).status == "verified"
    assert verify_bytes(ledger_bytes([0], describe(plan=plan_table(**{name: value})))).status == "wrong"


@pytest.mark.parametrize(
    ("delta", "population", "status"), [(1e-5, None, "verified"), (0.5, None, "wrong"), (1e-5, 10**6, "wrong")]
)
def test_a_plan_without_delta_means_the_default(verify_bytes, delta, population, status):
    mean = MEAN.with_values(delta=delta, population=population)
    plan = plan_table(mean, delta=None)
    assert verify_bytes(ledger_bytes([0], describe(mean, plan))).status == status


def test_a_plan_without_dim_says_nothing_of_it(verify_bytes):
    assert verify_bytes(ledger_bytes([0], describe(plan=plan_table(dim=None)))).status == "verified"


def test_lost_clients_mean_that_any_number_may_survive(verify_bytes):
    mean = MEAN.with_values(min_survivors=1)
    plan = plan_table(mean, client_dropout=0.1, min_survivors=None)
    assert verify_bytes(ledger_bytes([0], describe(mean, plan))).status == "verified"
    assert verify_bytes(ledger_bytes([0], describe(MEAN, {**plan_table(), "client_dropout": 0.1}))).status == "wrong"


def test_an_l2_clip_outside_of_transforms_hides_nothing(verify_bytes):
    transforms = {"l2_clip": 50.0, "rotate": True, "coordinates": None}
    hidden = plan_table(transforms=transforms, l2_clip=1.0)
    assert verify_bytes(ledger_bytes([0], describe(plan=hidden))).status == "cannot verify"
    assert verify_bytes(ledger_bytes([0], describe(plan=plan_table(transforms=transforms)))).status == "wrong"


@pytest.mark.parametrize(
    ("in_mean", "in_transforms", "status"),
    [
        ({}, {}, "verified"),
        ({"coordinates": 8}, {}, "wrong"),
        ({"coordinates": None}, {}, "wrong"),
        ({}, {"coordinates": None}, "wrong"),
        ({}, {"coordinates": 64}, "wrong"),
        ({"coordinates": None}, {"coordinates": 64}, "verified"),
        ({"coordinates": 64}, {"coordinates": 64}, "wrong"),
        ({"coordinates": 0}, {"coordinates": 0}, "cannot verify"),
        ({"coordinates": 0.5}, {"coordinates": 0.5}, "cannot verify"),
        ({"rotate": False}, {"rotate": False}, "cannot verify"),
        ({"l2_clip": None}, {"l2_clip": None}, "cannot verify"),
    ],
)
def test_the_number_of_coordinates_is_that_of_the_plan(verify_bytes, in_mean, in_transforms, status):
    """Of 64, the length of a rotated vector, all are sent."""
    mean = private_mean(
        dim=50,
        clients=20,
        mechanism=StochasticRounding(clip=1.5, levels=2, margin=9.0),
        delta=1e-6,
        rounds=8,
        coordinates=16,
    )
    plan = plan_table(mean)
    plan["transforms"] |= in_transforms
    description = change_mean(describe(mean, plan), **in_mean)
    assert verify_bytes(ledger_bytes([0, 1], description)).status == status


def methods_plan(**values):
    return make_plan(
        model="own",
        dim=51,
        mechanism=StochasticRounding(clip=0.8, margin=9.0, levels=2),
        clients=8,
        rounds=3,
        server={"optimizer": "sgd", "rate": 0.1},
        transforms={"l2_clip": 1.0, "rotate": True},
        **values,
    )


def test_a_method_that_sends_two_vectors_is_not_charged_for_one(verify_bytes):
    plan = methods_plan(client={"work": "fedaq"})
    table = json.loads(json.dumps(plan.to_dict()))
    ledger = ledger_bytes([0], describe(plan.private_mean(), table))
    assert verify_bytes(ledger).wrong == []
    assert verify_bytes(ledger, dim=51).wrong == []
    assert verify_bytes(ledger, dim=52).wrong == ["dim = 102: expected 104"]
    one_vector = methods_plan(client={"work": "local"}).private_mean()
    report = verify_bytes(ledger_bytes([0], describe(one_vector, table)))
    assert report.wrong == ["dim = 51 is charged for: the ledger's plan says 102"]


def test_an_unknown_method_is_not_verified(verify_bytes):
    plan = methods_plan()
    table = json.loads(json.dumps(plan.to_dict()))
    table["client"]["work"] = "fedprox"
    assert "client.work = 'fedprox'" in verify_bytes(ledger_bytes([0], describe(plan.private_mean(), table))).unsure[0]


# -- records of silos -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "verified"),
        ({"records": {"clip": 0.5}}, "wrong"),
        ({"records": {"sampling_rate": 0.01}}, "wrong"),
        ({"records": None}, "wrong"),
        ({"neighboring": "replace-one"}, "wrong"),
        ({"unit": "user"}, "wrong"),
        ({"records": {"batch": 100}}, "verified"),  # what is divided by is public
    ],
)
def test_a_plan_of_silos_is_compared(verify_bytes, change, status):
    plan = silo_plan()
    table = json.loads(json.dumps(plan.to_dict()))
    for name, value in change.items():
        table[name] = {**table[name], **value} if isinstance(value, dict) else value
    assert verify_bytes(ledger_bytes([0], describe(plan.private_mean(), table))).status == status


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_clip": None}, "record_clip = None: must be given for records"),
        (
            {"unit": "user", "neighboring": "replace-one"},
            "record_clip = 1.0: must be given for records, and only there",
        ),
        ({"neighboring": "zero-out"}, "neighboring = 'zero-out'"),
        ({"neighboring": "replace-one"}, "sampling_rate = 0.05: must be for records that are added or removed"),
        (
            {"max_participations": 3},
            "sampling_rate = 0.05: must be for records that are added or removed, in any round",
        ),
        ({"min_separation": 3}, "sampling_rate = 0.05: must be for records that are added or removed, in any round"),
        ({"sampling_rate": 1.5}, "sampling_rate = 1.5"),
        ({"zero_distance": 1.5}, "zero_distance = 1.5: must be 1 for records"),
        ({"l2_clip": None}, "l2_clip = None"),
        ({"coordinates": 100}, "l2_clip = 22.6: must be given, for all coordinates"),
        ({"adversary": "outsider"}, "adversary = 'outsider': must be the server"),
        ({"honest_fraction": 0.5, "population": 40, "sampling": "uniform"}, "adversary = 'server': must be the server"),
    ],
)
def test_records_with_other_values_are_not_known(changes, message):
    description = describe(silo_plan().private_mean())
    assert read_claims(description).unit == "record"
    with pytest.raises(Unverifiable) as doubt:
        read_claims(change_mean(description, **changes))
    assert message in str(doubt.value)
