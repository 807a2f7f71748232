"""Audits of whole vectors: what is stated of the true pmf stands, what is stated of a little more noise is caught."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Participation, Rounding, SeededRandom, ThreatModel
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.audit.attained import attained_epsilon, pairs, tails
from rqm.audit.vector import audit_vector
from rqm.bounds import gaussian_epsilon
from rqm.mechanisms.additive import DiscreteGaussian

DELTA = 1e-6
EFFORT = 40_000_000

VECTORS = {  # a mechanism, another with about an eighth more noise, clients, coordinates, L2 clip
    "PBM": (PBM(theta=0.035), PBM(theta=0.031), 30, 1024, 8.0),
    "discrete Gaussian": (
        DiscreteGaussian(scale=0.9, steps=15, bits=13),
        DiscreteGaussian(scale=1.02, steps=15, bits=13),
        200,
        256,
        4.0,
    ),
    "one of many coordinates": (
        DiscreteGaussian(scale=0.18, steps=15, bits=13),
        DiscreteGaussian(scale=0.205, steps=15, bits=13),
        300,
        16,
        1.0,
    ),
}
NUMBERS = {  # of one coordinate
    "RQM, levels inside": (RQM(margin=2.04), RQM(margin=2.45), 10),
    "PBM": (PBM(theta=0.2), PBM(theta=0.175), 100),
}


SKEWED = {  # at ε = 8 or so; clients
    "PBM": (PBM(theta=0.32), 30),
    "PBM, many clients": (PBM(theta=0.4988), 10_000),
}


def stated_epsilon(mech, clients, dim, l2_clip):
    return account(Release(mech, dim, l2_clip), Participation(clients), ThreatModel(), DELTA).epsilon


def audit(mech, claimed, clients, dim, l2_clip, effort=EFFORT, **options):
    release = {"clients": clients, "dim": dim, "l2_clip": l2_clip, "delta": DELTA}
    return audit_vector(mech, claimed, **release, effort=effort, **{"rng": SeededRandom(1)} | options)


def guessing_epsilon(mech, clients, dim, l2_clip):
    """ε of the Gaussian under which the best guess is right as often as of these vectors."""
    rates = (tails(pair.high, pair.low, pair.count) for pair in pairs(mech, clients, dim, l2_clip))
    advantage = max((true_positive - false_positive).max() for true_positive, false_positive in rates)
    return gaussian_epsilon(2 * norm.ppf(0.5 + advantage / 2), DELTA)


def enumerated_mu(mech, clients, dim, l2_clip):
    """The largest Φ⁻¹(P) − Φ⁻¹(Q) of all events of all pairs, outcome by outcome."""
    largest = 0.0
    for pair in pairs(mech, clients, dim, l2_clip):
        low, high = (
            np.array([np.prod(outcome) for outcome in product(pmf, repeat=pair.count)]) for pmf in (pair.low, pair.high)
        )
        order = np.argsort(-high / low, kind="stable")[:-1]
        largest = max(largest, (norm.ppf(np.cumsum(high[order])) - norm.ppf(np.cumsum(low[order]))).max())
    return largest


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_contradicts_a_statement_only_if_its_noise_is_an_eighth_too_small(name):
    mech, noisier, *release = VECTORS[name]
    right = stated_epsilon(mech, *release)
    result = audit(mech, right, *release)
    assert result.way == "told apart"
    assert not result.contradicted
    assert audit(mech, 0.85 * right, *release).contradicted
    assert audit(mech, stated_epsilon(noisier, *release), *release).contradicted


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_counted_below_what_is_attained_and_above_what_an_eighth_more_noise_would_state(name):
    mech, noisier, clients = NUMBERS[name]
    reached = attained_epsilon(mech, clients, 1, 1.0, DELTA)
    result = audit(mech, reached, clients, 1, 1.0, 4 * EFFORT)
    assert result.way == "counted"
    assert not result.contradicted
    assert result.measured >= 0.8 * reached
    assert audit(mech, attained_epsilon(noisier, clients, 1, 1.0, DELTA), clients, 1, 1.0, 4 * EFFORT).contradicted


@pytest.mark.parametrize("name", SKEWED)
def test_a_skewed_pmf_reveals_more_than_guesses_show(name):
    mech, clients = SKEWED[name]
    right = stated_epsilon(mech, clients, 16, 1.0)
    result = audit(mech, right, clients, 16, 1.0)
    assert result.way == "told apart"
    assert not result.contradicted
    assert result.measured > 1.02 * guessing_epsilon(mech, clients, 16, 1.0)


@pytest.mark.parametrize(
    "mech",
    [PBM(theta=0.3, levels=3), Rounding(levels=2, margin=0.4), RQM(levels=4, margin=0.7)],
    ids=lambda mech: mech.kind,
)
def test_no_more_audits_exceed_the_truth_than_their_confidence_allows_and_nearly_all_what_is_a_tenth_less(mech):
    release, times = (3, 2, 1.5), 60
    right = gaussian_epsilon(enumerated_mu(mech, *release), DELTA)
    results = [audit(mech, right, *release, 100_000, confidence=0.8, rng=SeededRandom(seed)) for seed in range(times)]
    assert {result.coordinates for result in results} == {2}
    assert sum(result.contradicted for result in results) <= 0.2 * times
    assert sum(result.measured > 0.9 * right for result in results) >= 0.9 * times


def test_vectors_that_are_always_distinguished_are_measured_as_far_as_delta_goes():
    result = audit(Rounding(levels=2, margin=1e-9), 8.0, 1, 16, 4.0)
    assert result.contradicted
    assert 60 < result.measured <= gaussian_epsilon(2 * norm.isf(DELTA), DELTA)


def test_what_is_not_claimed_by_a_gaussian_is_contradicted_only_by_what_is_counted():
    mech, release = PBM(theta=0.05), (2, 2, sqrt(2))  # accounted for by its losses, which are not a Gaussian's
    right = stated_epsilon(mech, *release)
    assert audit(mech, right, *release).contradicted
    result = audit(mech, right, *release, gaussian=False)
    assert (result.way, result.coordinates) == ("counted", 2)
    assert not result.contradicted
    assert audit(mech, 0.7 * right, *release, gaussian=False).contradicted


def test_all_clients_are_encoded_where_that_is_affordable():
    mech, claimed = PBM(theta=0.05), 5.0
    few, many = (audit(mech, claimed, clients, 64, 2.0) for clients in (10, 1000))
    assert few.encoded
    assert not many.encoded
    assert few.rounds >= 20_000


def test_sums_drawn_from_the_pmf_and_from_the_encoder_measure_the_same():
    mech = RQM(margin=1.0)
    drawn, encoded = (audit(mech, 9.0, 12, 16, 4.0, effort) for effort in (1_000_000, 60_000_000))
    assert not drawn.encoded
    assert encoded.encoded
    assert drawn.measured == pytest.approx(encoded.measured, rel=0.15)


def test_more_confidence_measures_less():
    mech = PBM(theta=0.05)
    options = {"clients": 10, "dim": 64, "l2_clip": 2.0, "delta": DELTA, "effort": 10**6}
    sure, unsure = (
        audit_vector(mech, 5.0, **options, confidence=confidence, rng=SeededRandom(3)) for confidence in (0.999, 0.9)
    )
    assert sure.measured < unsure.measured


@pytest.mark.parametrize(("name", "value"), [("delta", 0.0), ("clients", 0), ("effort", 10), ("confidence", 1.0)])
def test_values_that_make_no_sense_are_refused_by_name(name, value):
    options = {"clients": 10, "dim": 64, "l2_clip": 2.0, "delta": DELTA, "effort": 10**6} | {name: value}
    with pytest.raises(ValueError, match=name):
        audit_vector(PBM(), 5.0, **options)
