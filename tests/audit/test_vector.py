"""Audits of whole vectors: what is claimed of the true law stands, and what is claimed of a little more noise falls."""

import pytest

from rqm import PBM, RQM, SeededRandom
from rqm.audit.vector import audit_vector
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.privacy.accountant import spent
from rqm.privacy.attained import attained_epsilon
from rqm.privacy.event import Event
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


def stated(mech, clients, dim, l2_clip):
    setting = Setting(clients=clients, rounds=1, participations=1, delta=DELTA)
    return spent(Event(mech, dim, l2_clip), setting).epsilon


def audited(mech, claimed, clients, dim, l2_clip, effort=EFFORT):
    return audit_vector(
        mech, claimed, clients=clients, dim=dim, l2_clip=l2_clip, delta=DELTA, effort=effort, rng=SeededRandom(1)
    )


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_measured_below_what_is_stated_and_above_it_if_its_noise_is_an_eighth_too_small(name):
    mech, noisier, *release = VECTORS[name]
    right = stated(mech, *release)
    found = audited(mech, right, *release)
    assert found.way == "guessed"
    assert not found.contradicted
    assert found.measured >= 0.85 * right
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
