"""Whole vectors: what is stated holds, and what is stated of an eighth more noise is contradicted."""

from math import sqrt

import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Participation, SeededRandom, StochasticRounding, ThreatModel
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.audit.attained import attained_epsilon, loss_events, pairs
from rqm.audit.vector import audit_vector
from rqm.bounds import gaussian_epsilon
from rqm.mechanisms.additive import DiscreteGaussian
from tests.audit.test_attained import nested_events

DELTA = 1e-6
EFFORT = 40_000_000


def noise(scale):
    return DiscreteGaussian(scale=scale, steps=15, bits=13)


VECTORS = {  # a mechanism, another with about an eighth more noise, clients, coordinates, L2 clip
    "PBM": (PBM(theta=0.035), PBM(theta=0.031), 30, 1024, 8.0),
    "discrete Gaussian": (noise(0.9), noise(1.02), 200, 256, 4.0),
    "one of many coordinates": (noise(0.18), noise(0.205), 300, 16, 1.0),
}
NUMBERS = {  # of one coordinate
    "RQM, levels inside": (RQM(margin=2.04), RQM(margin=2.45), 10),
    "PBM": (PBM(theta=0.2), PBM(theta=0.175), 100),
}


def stated_epsilon(mechanism, clients, dim, l2_clip):
    return account(Release(mechanism, dim, l2_clip), Participation(clients), ThreatModel(), DELTA).epsilon


def audit(mechanism, claimed, clients, dim, l2_clip, effort=EFFORT, **options):
    release = {"clients": clients, "dim": dim, "l2_clip": l2_clip, "delta": DELTA}
    return audit_vector(mechanism, claimed, **release, effort=effort, **{"rng": SeededRandom(1)} | options)


def guessing_epsilon(mechanism, clients, dim, l2_clip):
    """ε of the Gaussian under which the best guess is right as often as of these vectors."""
    events = (loss_events(pair.high, pair.low, pair.count) for pair in pairs(mechanism, clients, dim, l2_clip))
    advantage = max((true_positive - false_positive).max() for _, true_positive, false_positive in events)
    return gaussian_epsilon(2 * norm.ppf(0.5 + advantage / 2), DELTA)


def enumerated_mu(mechanism, clients, dim, l2_clip):
    """The largest Φ⁻¹(P) − Φ⁻¹(Q) of all events of all pairs, outcome by outcome."""
    events = (nested_events(pair.high, pair.low, pair.count) for pair in pairs(mechanism, clients, dim, l2_clip))
    return max((norm.ppf(p[:-1]) - norm.ppf(q[:-1])).max() for p, q in events)


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_contradicts_a_statement_only_if_its_noise_is_an_eighth_too_small(name):
    mechanism, noisier, *release = VECTORS[name]
    stated = stated_epsilon(mechanism, *release)
    result = audit(mechanism, stated, *release)
    assert result.measure == "mu"
    assert not result.contradicted
    assert audit(mechanism, 0.85 * stated, *release).contradicted
    assert audit(mechanism, stated_epsilon(noisier, *release), *release).contradicted


@pytest.mark.parametrize("name", NUMBERS)
def test_one_coordinate_is_measured_below_what_is_attained_and_above_what_more_noise_would_state(name):
    mechanism, noisier, clients = NUMBERS[name]
    attained = attained_epsilon(mechanism, clients, 1, 1.0, DELTA)
    result = audit(mechanism, attained, clients, 1, 1.0, 4 * EFFORT)
    assert result.measure == "epsilon"
    assert not result.contradicted
    assert result.measured >= 0.8 * attained
    assert audit(mechanism, attained_epsilon(noisier, clients, 1, 1.0, DELTA), clients, 1, 1.0, 4 * EFFORT).contradicted


@pytest.mark.parametrize(("mechanism", "clients"), [(PBM(theta=0.32), 30), (PBM(theta=0.4988), 10_000)])
def test_a_skewed_pmf_reveals_more_than_guesses_show(mechanism, clients):
    """At ε = 8 or so."""
    result = audit(mechanism, stated_epsilon(mechanism, clients, 16, 1.0), clients, 16, 1.0)
    assert result.measure == "mu"
    assert not result.contradicted
    assert result.measured > 1.02 * guessing_epsilon(mechanism, clients, 16, 1.0)


@pytest.mark.parametrize(
    "mechanism",
    [PBM(theta=0.3, levels=3), StochasticRounding(levels=2, margin=0.4), RQM(levels=4, margin=0.7)],
    ids=lambda mechanism: mechanism.kind,
)
def test_no_more_audits_exceed_the_truth_than_their_confidence_allows_and_nearly_all_a_tenth_less(mechanism):
    release, repetitions = (3, 2, 1.5), 60
    truth = gaussian_epsilon(enumerated_mu(mechanism, *release), DELTA)
    results = [
        audit(mechanism, truth, *release, 100_000, confidence=0.8, rng=SeededRandom(seed))
        for seed in range(repetitions)
    ]
    assert {result.coordinates for result in results} == {2}
    assert sum(result.contradicted for result in results) <= 0.2 * repetitions
    assert sum(result.measured > 0.9 * truth for result in results) >= 0.9 * repetitions


def test_vectors_that_are_always_distinguished_are_measured_as_far_as_delta_goes():
    result = audit(StochasticRounding(levels=2, margin=1e-9), 8.0, 1, 16, 4.0)
    assert result.contradicted
    assert 60 < result.measured <= gaussian_epsilon(2 * norm.isf(DELTA), DELTA)


def test_what_is_not_claimed_by_a_gaussian_is_not_contradicted_by_mu():
    mechanism, release = PBM(theta=0.05), (2, 2, sqrt(2))  # accounted for by its losses, which are not Gaussian
    stated = stated_epsilon(mechanism, *release)
    assert audit(mechanism, stated, *release).contradicted
    result = audit(mechanism, stated, *release, gaussian=False)
    assert (result.measure, result.coordinates) == ("epsilon", 2)
    assert not result.contradicted
    assert audit(mechanism, 0.7 * stated, *release, gaussian=False).contradicted


def test_more_confidence_measures_less():
    confident, less_confident = (
        audit(PBM(theta=0.05), 5.0, 10, 64, 2.0, 10**6, confidence=confidence) for confidence in (0.999, 0.9)
    )
    assert confident.measured < less_confident.measured
    assert confident.rounds >= 20_000


@pytest.mark.parametrize(("name", "value"), [("delta", 0.0), ("clients", 0), ("effort", 10), ("confidence", 1.0)])
def test_values_out_of_range_are_named(name, value):
    options = {"clients": 10, "dim": 64, "l2_clip": 2.0, "delta": DELTA, "effort": 10**6} | {name: value}
    with pytest.raises(ValueError, match=name):
        audit_vector(PBM(), 5.0, **options)
