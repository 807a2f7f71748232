"""The verifier's ε: at least the accountant's, at most a tenth more, and at least what attacks reach."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from math import comb, exp, inf, log, sqrt

import numpy as np
import pytest
from scipy.stats import binom

from rqm import PBM, RQM, DiscreteGaussian, Gaussian, Skellam, StochasticRounding, private_mean
from rqm.accounting.profiles import poisson_sampled_gaussian
from rqm.bounds import Bound, PrivacyProfile, compose, epsilon
from rqm.config.account import account_ledger
from rqm.ledger.budget_guard import Guard
from rqm.mechanisms.additive import Binomial
from rqm.related.randomized_response import RandomizedResponse
from rqm.related.vqsgd import VQSGD
from rqm.verify import epsilon_bound, verify
from rqm.verify.epsilon_bound import sampled_record_epsilon
from rqm.verify.ledger_claims import read_claims
from tests.verify.ledgers import MEAN, SILO_NOISE, change_mean, describe, ledger_bytes, silo_ledger, silo_plan
from tests.verify.pmfs import bernoulli_sum, delta_of, joint, message_sum, noise_sum, rounded

# -- the accountant's ε ---------------------------------------------------------------------------


def random_mechanism(draw, clip, std, clients):
    """Any mechanism that can be verified, with about so much noise of a client, in clips."""
    kind = draw.choice(["rounding", "rqm", "pbm", "additive", "additive", "gaussian"])
    std = max(std, 1.02)
    if kind == "rounding":
        levels = draw.choice([2, 2, 4])
        output_range = max(std, 1.001) * (levels - 1)
        return StochasticRounding(clip=clip, levels=levels, margin=min(output_range, 8000) - 1)
    if kind == "rqm":
        levels = draw.choice([2, 4, 8, 16])
        keep = draw.choice([0.42, draw.uniform(0.05, 0.95), tuple(draw.uniform(0.1, 0.9) for _ in range(levels - 2))])
        output_range = max(2 * std, (levels - 1) * (1 + draw.random()))
        return RQM(clip=clip, levels=levels, margin=min(output_range, 8000) - 1, keep=keep or 0.5)
    if kind == "pbm":
        levels = draw.choice([2, 4, 16])
        return PBM(clip=clip, theta=0.5 / min(std * sqrt(levels - 1), 8000), levels=levels)
    if kind == "additive":
        steps, bits = draw.choice([(3, 8), (7, 8), (15, 10), (31, 12)])
        scale = min(std, 2**bits / 7 / steps / sqrt(clients))
        return draw.choice([DiscreteGaussian, Skellam, Binomial])(clip=clip, scale=scale, steps=steps, bits=bits)
    return Gaussian(noise_multiplier=std * sqrt(clients) * clip, local=draw.random() < 0.3)


def random_run(seed, most_clients):
    """A random private mean, and the rounds that were charged."""
    draw = random.Random(seed)
    clients, dim = int(2 * (most_clients / 2) ** draw.random()), int(2 ** (24 * draw.random()))
    rotate = draw.random() < 0.7
    coordinates = 1 << (dim - 1).bit_length() if rotate else dim
    rounds = 1 + int(300 ** draw.random())
    limit = draw.choice([None, 1, 1 + int(rounds ** draw.random())])
    clip = min(draw.choice([1, 2.5, 4, 4, 8]) / sqrt(coordinates), draw.choice([1, 0.7]))
    noise = 10 ** draw.uniform(-0.7, 1.2) * sqrt(min(rounds, limit or rounds))
    mechanism = random_mechanism(draw, clip, noise / clip / sqrt(clients), clients)
    honest = draw.choice([None, None, draw.randint(1, clients), draw.uniform(0.3, 1)])
    is_fraction = isinstance(honest, float)
    mean = private_mean(
        dim=dim,
        clients=clients,
        mechanism=mechanism,
        delta=10 ** draw.uniform(-9, -4),
        l2_clip=1.0 if mechanism.needs_l2_clip or draw.random() < 0.9 else None,
        rotate=rotate,
        rounds=rounds,
        max_participations=limit,
        honest_clients=None if is_fraction else honest,
        honest_fraction=honest if is_fraction else None,
        min_survivors=draw.choice([None, None, draw.randint(max(1, clients * 2 // 3), clients)]),
        population=clients * draw.choice([1, 10, 1000]) if is_fraction else None,
        neighboring=draw.choice(["replace-one", "replace-one", "zero-out"]),
    )
    charges = list(range(draw.randint(1, rounds)))
    return mean, charges + draw.choices(charges, k=draw.choice([0, 0, 1, 5]))


def compared(path, seed, most_clients):
    """The accountant's ε of a random ledger, the verifier's report, and whether a fraction of users is honest."""
    mean, charges = random_run(seed, most_clients)
    path.write_bytes(ledger_bytes(charges, describe(mean)))
    report, stated = verify(path), mean.account(Counter(charges)).epsilon
    is_fraction = mean.threat_model.honest_fraction is not None
    is_odd = stated > 500 or max(Counter(charges).values()) > 1
    if is_fraction and is_odd and report.status == "cannot verify":
        pytest.skip("a fraction of honest clients, with repeated rounds or an ε that is too large to be computed")
    assert (report.status, report.charges) == ("verified", len(charges)), report
    return stated, report, is_fraction


def agrees(stated, report, is_fraction):
    """Whether two ε agree. Both are bounds: that of the accountant may be a little larger, or much in two cases.

    Beyond an ε of 10⁵ it may have no Gaussian bound; only the verifier mixes divergences of cohorts.
    """
    smallest = report.lower if report.epsilon > 1e5 else 0.995 * stated
    if is_fraction:
        smallest = max(report.lower, stated / 2)
    return report.lower <= stated and smallest <= report.epsilon <= 1.10 * stated


@pytest.mark.parametrize("seed", range(30))
def test_epsilon_is_the_accountants_and_at_most_a_tenth_more(tmp_path, seed):
    assert agrees(*compared(tmp_path / "some.jsonl", seed, most_clients=60))


@pytest.mark.parametrize(
    ("seed", "most_clients"), [(209, 60), (282, 60), (303, 60), (387, 60), (1136, 1000), (1227, 1000), (1921, 1000)]
)
def test_epsilon_of_ledgers_on_which_the_two_once_disagreed(tmp_path, seed, most_clients):
    """Clips that bind before the L2 clip; losses of hundreds, of a fraction; narrow noise; one coordinate and zero."""
    assert agrees(*compared(tmp_path / "some.jsonl", seed, most_clients))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_epsilon_of_many_more_ledgers(tmp_path, seed):
    assert agrees(*compared(tmp_path / "some.jsonl", seed, most_clients=1000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(levels=2, margin=3.0), PBM(theta=0.1), RQM(levels=4, margin=9.0)]
)
def test_epsilon_of_ten_thousand_clients(confirm, mechanism):
    confirm(private_mean(dim=2**20, clients=10_000, mechanism=replace(mechanism, clip=4 / 1024), delta=1e-7), [0])


def test_epsilon_of_a_ledger_of_the_guard_is_that_of_the_command(tmp_path):
    with Guard(MEAN, tmp_path) as guard:
        for round_index in (0, 1, 1, 2, 3):
            guard.charge(round_index)
    report, (guarantee, charged) = verify(tmp_path), account_ledger(tmp_path)
    assert report.status == "verified", report
    assert (report.charges, report.rounds, report.max_participations) == (5, 4, 4)
    assert report.head_hash == charged["head_hash"]
    assert guarantee.epsilon <= report.epsilon <= 1.10 * guarantee.epsilon


@pytest.mark.parametrize(
    "mechanism",
    [StochasticRounding(clip=0.2, levels=2, margin=9.0), DiscreteGaussian(clip=0.2, scale=1.5, steps=5, bits=10)],
    ids=repr,
)
@pytest.mark.parametrize("count", [500, 6000, 8100])
def test_epsilon_of_some_coordinates_counts_the_second_clip(confirm, mechanism, count):
    mean = private_mean(
        dim=5000, clients=60, mechanism=mechanism, delta=1e-6, rounds=8, max_participations=3, coordinates=count
    )
    confirm(mean, range(3))


@pytest.mark.parametrize(
    "mechanism",
    [
        StochasticRounding(clip=0.2, levels=2, margin=9.0),
        DiscreteGaussian(clip=0.2, scale=1.5, steps=5, bits=10),
        Gaussian(noise_multiplier=3.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("zero_distance", [1.005, 1.3, 1.9])
def test_epsilon_where_a_zero_update_is_no_vector_of_zeros(confirm, mechanism, zero_distance):
    mean = private_mean(dim=900, clients=40, mechanism=mechanism, delta=1e-6, rounds=4, neighboring="zero-out")
    report = confirm(mean.with_values(zero_distance=zero_distance), range(4))
    if zero_distance > 1.1:
        assert report.epsilon > 1.1 * confirm(mean, range(4)).epsilon


@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(clip=0.2, levels=2, margin=9.0), Gaussian(noise_multiplier=3.0)]
)
def test_of_some_coordinates_a_zero_update_may_be_as_far_as_any_vector(confirm, mechanism):
    """The chosen coordinates of a vector may be opposite to those of the zero update, and are scaled up."""
    mean = private_mean(
        dim=900, clients=40, mechanism=mechanism, delta=1e-6, rounds=4, coordinates=64, neighboring="zero-out"
    )
    replaced = confirm(mean.with_values(neighboring="replace-one"), range(4)).epsilon
    zeros = confirm(mean, range(4))
    report = confirm(mean.with_values(zero_distance=1.015), range(4))
    assert zeros.epsilon < 0.7 * replaced
    assert report.epsilon == replaced
    assert report.lower <= zeros.epsilon


@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("message_epsilon", [0.3, 4.0])
def test_epsilon_of_vqsgd_is_the_accountants(confirm, is_local, message_epsilon, neighboring):
    mean = private_mean(
        mechanism=VQSGD(epsilon=message_epsilon, local=is_local),
        dim=100,
        delta=1e-6,
        clients=30,
        honest_clients=1 if is_local else 20,
        rounds=4,
        neighboring=neighboring,
    )
    confirm(mean, range(4))


# -- exact values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "margin"), [(256, 0.1), (1000, 0.6)])
def test_epsilon_is_not_understated_where_its_exponential_is_no_number(verify_bytes, dim, margin):
    """Independent bits that are 1 with probability u, or all with 1 − u: ε is beyond 709."""
    mean = private_mean(
        dim=dim,
        clients=1,
        mechanism=StochasticRounding(levels=2, margin=margin),
        delta=1e-6,
        l2_clip=None,
        rotate=False,
    )
    u, ones = (2 + margin) / (2 + 2 * margin), np.arange(dim + 1)
    loss, probability = (2 * ones - dim) * log(u / (1 - u)), binom.pmf(ones, dim, u)
    report = verify_bytes(ledger_bytes([0], describe(mean)))
    assert (probability * np.maximum(0, -np.expm1(np.minimum(0, report.epsilon - loss)))).sum() <= 1e-6


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("margin", [1.0, 3.0])
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
def test_epsilon_is_at_least_that_of_two_coordinates(verify_bytes, clients, margin, neighboring):
    """The exact δ at many inputs of all clients, at the ε that is verified."""
    mechanism, delta = StochasticRounding(levels=2, margin=margin), 1e-3
    mean = private_mean(
        dim=2, clients=clients, mechanism=mechanism, delta=delta, l2_clip=1.2, rotate=False, neighboring=neighboring
    )
    verified, deltas = verify_bytes(ledger_bytes([0], describe(mean))).epsilon, []
    inputs = [x for x in product((1, 0.6, 0, -0.6, -1), repeat=2) if np.hypot(*x) <= 1.2]
    ends = list(product((-1, 1), repeat=clients - 1))

    def pmf(u, others):
        return bernoulli_sum([(1 + v / (1 + margin)) / 2 for v in (u, *others)])

    for x, y in product(inputs, inputs if neighboring == "replace-one" else [(0, 0)]):
        for first, second in product(ends, repeat=2):
            p, q = (joint([pmf(vector[0], first), pmf(vector[1], second)]) for vector in (x, y))
            deltas.append(delta_of(p, q, verified))
    assert max(deltas) <= delta


@pytest.mark.parametrize("margin", [0.5, 4.0, 40.0])
def test_epsilon_of_one_coordinate_of_one_client_is_exact(verify_bytes, margin):
    """Without others, ε is that of randomized response."""
    mean = private_mean(
        dim=1, clients=1, mechanism=StochasticRounding(levels=2, margin=margin), delta=1e-9, rotate=False, l2_clip=1.0
    )
    p = (1 + 1 / (1 + margin)) / 2
    exact = log((p - 1e-9) / (1 - p))
    assert exact <= verify_bytes(ledger_bytes([0], describe(mean))).epsilon <= 1.01 * exact


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam, Binomial])
@pytest.mark.parametrize("clients", [1, 5])
def test_epsilon_is_at_least_that_of_additive_noise(verify_bytes, kind, clients):
    """The exact δ of two coordinates at all levels, from the noise that is sampled."""
    mechanism, delta = kind(scale=2.0, steps=3, bits=6), 1e-4
    mean = private_mean(dim=2, clients=clients, mechanism=mechanism, delta=delta, l2_clip=None, rotate=False)
    verified, noise = verify_bytes(ledger_bytes([0], describe(mean))).epsilon, noise_sum(mechanism, clients)
    p = np.outer(noise, noise)
    for shifts in product(range(-3, 4), repeat=2):
        q = np.roll(p, shifts, axis=(0, 1))
        assert np.maximum(p - exp(verified) * q, 0).sum() <= delta


def test_what_an_attack_reaches_is_a_part_of_epsilon(verify_bytes):
    mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=9)
    mean = private_mean(dim=2**20, clients=1000, mechanism=mechanism, delta=1e-6, rounds=5)
    report = verify_bytes(ledger_bytes(range(5), describe(mean)))
    assert 0.2 * report.epsilon < report.lower < report.epsilon


def test_epsilon_without_noise_at_the_ends_is_infinite(verify_bytes):
    mean = private_mean(dim=4, clients=5, mechanism=StochasticRounding(levels=2, margin=0.0), delta=1e-6)
    report = verify_bytes(ledger_bytes([0], describe(mean)))
    assert (report.status, report.epsilon, report.to_dict()["epsilon"]) == ("verified", inf, "inf")


def test_epsilon_without_charges_is_zero(verify_bytes):
    report = verify_bytes(ledger_bytes([]))
    assert (report.status, report.epsilon, report.max_participations) == ("verified", 0.0, 0)


# -- a fraction of honest clients -----------------------------------------------------------------

POPULATION, CLIENTS, MARGIN, DELTA = 20, 4, 1.0, 1e-2


def releases_with_known_cohorts(others, releases):
    """Pmfs of releases that also show how many clients are honest; `others`: their inputs for each number."""
    honest_others, pair = POPULATION // 2 - 1, []
    for u in (-1, 1):
        parts = []
        for count, inputs in enumerate(others):
            weight = comb(honest_others, count) * comb(POPULATION - 1 - honest_others, CLIENTS - 1 - count)
            weight /= comb(POPULATION - 1, CLIENTS - 1)
            parts.append(weight * message_sum(StochasticRounding(levels=2, margin=MARGIN), [u, *inputs]))
        pair.append(joint([np.concatenate(parts)] * releases))
    return pair


@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("few_coordinates", [0, 1000])
def test_epsilon_is_that_of_all_numbers_of_honest_clients(verify_bytes, monkeypatch, releases, few_coordinates):
    """Also by Gaussians alone, which are less tight for so few clients."""
    monkeypatch.setattr(epsilon_bound, "FEW_COORDINATES", few_coordinates)
    mean = private_mean(
        dim=1,
        clients=CLIENTS,
        mechanism=StochasticRounding(levels=2, margin=MARGIN),
        delta=DELTA,
        rotate=False,
        l2_clip=1.0,
        rounds=releases,
        honest_fraction=0.5,
        population=POPULATION,
    )
    report = verify_bytes(ledger_bytes(range(releases), describe(mean)))
    choices = product(*([(-1,) * k + (1,) * (count - k) for k in range(count + 1)] for count in range(CLIENTS)))
    pairs = [releases_with_known_cohorts(others, releases) for others in choices]
    assert max(delta_of(p, q, report.epsilon) for p, q in pairs) <= DELTA
    if few_coordinates:
        assert max(delta_of(p, q, 0.98 * report.epsilon) for p, q in pairs) > DELTA
    assert max(delta_of(p, q, report.lower) for p, q in pairs) >= DELTA


# -- no bound -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": RQM()},
        {"mechanism": StochasticRounding(levels=4, margin=1.0)},
        {"mechanism": RandomizedResponse()},
        {"adversary": "outsider", "population": 100, "max_participations": None},
    ],
)
def test_what_has_no_bound_is_not_verified(verify_bytes, changes):
    values = {"dim": 100, "clients": 20, "mechanism": MEAN.mechanism, "delta": 1e-6, "rounds": 8}
    report = verify_bytes(ledger_bytes([0], describe(private_mean(**values | changes))))
    assert (report.status, report.epsilon) == ("cannot verify", None)


def test_a_fraction_needs_clients_who_are_sampled_uniformly(verify_bytes):
    mean = private_mean(
        dim=100, clients=20, mechanism=MEAN.mechanism, delta=1e-6, rounds=8, honest_fraction=0.5, population=1000
    )
    assert verify_bytes(ledger_bytes([0], describe(mean))).status == "verified"
    for sampling in ("available", "fixed-order"):
        report = verify_bytes(ledger_bytes([0], change_mean(describe(mean), sampling=sampling)))
        assert (report.status, report.epsilon) == ("cannot verify", None)
    assert verify_bytes(ledger_bytes([0], change_mean(describe(mean), population=None))).status == "cannot verify"


def test_a_fraction_and_repeated_rounds_have_no_bound(verify_bytes):
    mean = private_mean(
        dim=100, clients=20, mechanism=MEAN.mechanism, delta=1e-6, rounds=8, honest_fraction=0.5, population=1000
    )
    report = verify_bytes(ledger_bytes([0, 1, 1], describe(mean)))
    assert report.unsure == ["honest_fraction = 0.5: this verifier has no bound for it and repeated rounds"]


def test_a_fraction_that_is_nearly_gaussian_but_beyond_all_losses_is_not_verified(tmp_path):
    """Its μ is near to that of its variance, but no δ of an ε that is computed is enough."""
    mean, charges = random_run(916, 60)
    (tmp_path / "some.jsonl").write_bytes(ledger_bytes(charges, describe(mean)))
    assert verify(tmp_path / "some.jsonl").status == "cannot verify"


# -- records of silos -----------------------------------------------------------------------------

ORDERED = {"records": {"clip": 1.0, "batch": 200}, "min_separation": 3, "neighboring": "replace-one"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"honest_clients": 2},
        {"min_survivors": 3},
        ORDERED,
        {"records": {"clip": 2.0, "batch": 1}},
        {"records": {"clip": 2.0, "batch": 1, "sampling_rate": 1.0}},
        {"mechanism": SILO_NOISE | {"mechanism": "skellam"}},
        {"mechanism": SILO_NOISE | {"steps": 2047, "bits": 14}},
    ],
)
def test_epsilon_of_records_is_the_accountants_and_hardly_more(verify_bytes, changes):
    stated, ledger = silo_ledger(range(6), **changes)
    report = verify_bytes(ledger)
    assert report.status == "verified", (report.wrong, report.unsure)
    assert report.unit == "record"
    assert 0.995 * stated <= report.epsilon <= 1.06 * stated


@pytest.mark.parametrize(("mu", "rate", "count"), [(1.0, 0.02, 300), (2.0, 0.1, 40), (0.5, 0.5, 100), (1.7, 0.02, 120)])
def test_epsilon_of_sampled_records_is_the_published_one_and_hardly_more(mu, rate, count):
    profile = Bound(PrivacyProfile(((poisson_sampled_gaussian(mu, rate), 1),)))
    published = epsilon(compose([(profile, count)]), 1e-6)
    plan = silo_plan(records={"clip": 1.0, "batch": 200, "sampling_rate": rate})
    claims = read_claims(describe(plan.private_mean()))
    assert 0.999 * published <= sampled_record_epsilon(mu, claims, count) <= 1.02 * published + 0.03


def exact_record_epsilon(mechanism, clip, rate, silos, rounds, delta):
    """The least ε of one record beside another of the same silo, both sampled, by enumeration of all outcomes."""
    noise, steps = noise_sum(mechanism, silos), mechanism.steps / 2 / mechanism.clip

    def pmf(records):
        parts = []
        for is_included in product((0, 1), repeat=len(records)):
            probability = np.prod([rate if included else 1 - rate for included in is_included])
            value = float(np.clip(np.dot(is_included, records), -1, 1)) if records else 0.0
            total = rounded(noise, steps * (value + 1))
            for _ in range(silos - 1):  # other silos send zero
                total = rounded(total, mechanism.steps / 2)
            parts.append(probability * total)
        return joint([np.sum(parts, axis=0)] * rounds)

    p, q = pmf([clip, -clip / 2]), pmf([-clip / 2])
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(p, q, middle) > delta else (low, middle)
    return high


def test_epsilon_of_sampled_records_is_at_least_the_exact_one(verify_bytes):
    mechanism = DiscreteGaussian(scale=1.0, steps=15, bits=7)
    exact = exact_record_epsilon(mechanism, 0.4, 0.3, 2, 2, 1e-3)
    _, ledger = silo_ledger(
        range(2),
        mechanism=mechanism.to_dict(),
        clients=2,
        dim=1,
        delta=1e-3,
        records={"clip": 0.4, "batch": 1, "sampling_rate": 0.3},
        transforms={"l2_clip": 1.0},
    )
    assert exact <= verify_bytes(ledger).epsilon < 1.5 * exact


@pytest.mark.parametrize(
    ("changes", "charges", "message"),
    [
        ({}, [0, 1, 1], "rounds were repeated"),
        (ORDERED, [0, 1, 5], "rounds are missing"),
        ({"mechanism": SILO_NOISE | {"scale": 0.01}}, [0], "composes losses of μ below 15"),
        (
            {"mechanism": {"mechanism": "rounding", "clip": 5.0, "levels": 2, "margin": 9.0}},
            [0],
            "must be additive noise for records",
        ),
    ],
)
def test_records_without_a_bound_are_not_verified(verify_bytes, changes, charges, message):
    report = verify_bytes(silo_ledger(charges, **changes)[1])
    assert (report.status, report.epsilon) == ("cannot verify", None)
    assert any(message in doubt for doubt in report.unsure), report.unsure
