"""Audits of whole vectors: what is claimed of the true law stands, and what is claimed of a little more noise falls."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Rounding, SeededRandom
from rqm.audit.vector import audit_vector
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.privacy.accountant import spent
from rqm.privacy.attained import attained_epsilon, pairs, tails
from rqm.privacy.event import Event
from rqm.privacy.gaussian import gaussian_epsilon
from rqm.privacy.setting import Setting

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


def stated(mech, clients, dim, l2_clip):
    setting = Setting(clients=clients, rounds=1, participations=1, delta=DELTA)
    return spent(Event(mech, dim, l2_clip), setting).epsilon


def audited(mech, claimed, clients, dim, l2_clip, effort=EFFORT, **options):
    release = {"clients": clients, "dim": dim, "l2_clip": l2_clip, "delta": DELTA}
    return audit_vector(mech, claimed, **release, effort=effort, **{"rng": SeededRandom(1)} | options)


def guessed(mech, clients, dim, l2_clip):
    """The ε of which a Gaussian would let as many be guessed right as of these vectors, had one all the time."""
    every = (tails(pair.high, pair.low, pair.count) for pair in pairs(mech, clients, dim, l2_clip))
    return gaussian_epsilon(2 * norm.ppf(0.5 + max((gained - paid).max() for gained, paid in every) / 2), DELTA)


def enumerated(mech, clients, dim, l2_clip):
    """The largest Φ⁻¹(P) − Φ⁻¹(Q) of all events of all pairs, outcome by outcome."""
    most = 0.0
    for pair in pairs(mech, clients, dim, l2_clip):
        low, high = (
            np.array([np.prod(one) for one in product(law, repeat=pair.count)]) for law in (pair.low, pair.high)
        )
        order = np.argsort(-high / low, kind="stable")[:-1]
        most = max(most, (norm.ppf(np.cumsum(high[order])) - norm.ppf(np.cumsum(low[order]))).max())
    return most


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_measured_below_what_is_stated_and_above_it_if_its_noise_is_an_eighth_too_small(name):
    mech, noisier, *release = VECTORS[name]
    right = stated(mech, *release)
    found = audited(mech, right, *release)
    assert found.way == "told apart"
    assert not found.contradicted
    assert audited(mech, 0.85 * right, *release).contradicted
    assert audited(mech, stated(noisier, *release), *release).contradicted


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_counted_below_what_is_attained_and_above_what_an_eighth_more_noise_would_state(name):
    mech, noisier, clients = NUMBERS[name]
    reached = attained_epsilon(mech, clients, 1, 1.0, DELTA)
    found = audited(mech, reached, clients, 1, 1.0, 4 * EFFORT)
    assert found.way == "counted"
    assert not found.contradicted
    assert found.measured >= 0.8 * reached
    assert audited(mech, attained_epsilon(noisier, clients, 1, 1.0, DELTA), clients, 1, 1.0, 4 * EFFORT).contradicted


@pytest.mark.parametrize("name", SKEWED)
def test_a_skewed_law_is_told_apart_by_more_than_any_number_of_guesses(name):
    mech, clients = SKEWED[name]
    right = stated(mech, clients, 16, 1.0)
    found = audited(mech, right, clients, 16, 1.0)
    assert found.way == "told apart"
    assert not found.contradicted
    assert found.measured > 1.02 * guessed(mech, clients, 16, 1.0)


@pytest.mark.parametrize(
    "mech",
    [PBM(theta=0.3, levels=3), Rounding(levels=2, margin=0.4), RQM(levels=4, margin=0.7)],
    ids=lambda one: one.kind,
)
def test_no_more_audits_exceed_the_truth_than_their_confidence_allows_and_nearly_all_what_is_a_tenth_less(mech):
    release, times = (3, 2, 1.5), 60
    right = gaussian_epsilon(enumerated(mech, *release), DELTA)
    found = [audited(mech, right, *release, 100_000, confidence=0.8, rng=SeededRandom(one)) for one in range(times)]
    assert {one.coordinates for one in found} == {2}
    assert sum(one.contradicted for one in found) <= 0.2 * times
    assert sum(one.measured > 0.9 * right for one in found) >= 0.9 * times


def test_vectors_that_are_always_told_apart_are_measured_as_far_as_delta_goes():
    found = audited(Rounding(levels=2, margin=1e-9), 8.0, 1, 16, 4.0)
    assert found.contradicted
    assert 60 < found.measured <= gaussian_epsilon(2 * norm.isf(DELTA), DELTA)


def test_what_is_not_claimed_by_a_gaussian_is_contradicted_only_by_what_is_counted():
    mech, release = PBM(theta=0.05), (2, 2, sqrt(2))  # accounted for by its losses, which are not a Gaussian's
    right = stated(mech, *release)
    assert audited(mech, right, *release).contradicted
    found = audited(mech, right, *release, gaussian=False)
    assert (found.way, found.coordinates) == ("counted", 2)
    assert not found.contradicted
    assert audited(mech, 0.7 * right, *release, gaussian=False).contradicted


def test_everybody_is_encoded_where_that_is_affordable():
    mech, claimed = PBM(theta=0.05), 5.0
    few, many = (audited(mech, claimed, clients, 64, 2.0) for clients in (10, 1000))
    assert few.encoded
    assert not many.encoded
    assert few.rounds >= 20_000


def test_sums_drawn_from_the_law_and_from_the_encoder_measure_the_same():
    mech = RQM(margin=1.0)
    drawn, encoded = (audited(mech, 9.0, 12, 16, 4.0, effort) for effort in (1_000_000, 60_000_000))
    assert not drawn.encoded
    assert encoded.encoded
    assert drawn.measured == pytest.approx(encoded.measured, rel=0.15)


def test_more_confidence_measures_less():
    mech = PBM(theta=0.05)
    asked = {"clients": 10, "dim": 64, "l2_clip": 2.0, "delta": DELTA, "effort": 10**6}
    sure, less = (audit_vector(mech, 5.0, **asked, confidence=one, rng=SeededRandom(3)) for one in (0.999, 0.9))
    assert sure.measured < less.measured


@pytest.mark.parametrize(("what", "value"), [("delta", 0.0), ("clients", 0), ("effort", 10), ("confidence", 1.0)])
def test_what_makes_no_sense_is_refused_by_name(what, value):
    asked = {"clients": 10, "dim": 64, "l2_clip": 2.0, "delta": DELTA, "effort": 10**6} | {what: value}
    with pytest.raises(ValueError, match=what):
        audit_vector(PBM(), 5.0, **asked)
