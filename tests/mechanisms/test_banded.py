"""A trusted server's Gaussian with banded correlated noise: what it costs, what it adds, and when it is refused."""

import numpy as np
import pytest

from rqm import Gaussian, calibrate, mechanism_from_dict, private_mean
from rqm.bounds import gaussian_deltas
from rqm.core.from_dict import mean_from_dict
from rqm.correlated.factorization import Workload, banded
from rqm.mechanisms.banded import BandedGaussian

WHO = {"clients": 10, "rounds": 60, "dim": 20, "delta": 1e-5, "population": 100}
ONCE = {"max_participations": 1}


def mean_of(mech, **changes):
    return private_mean(mechanism=mech, **{**WHO, **changes})


def test_it_costs_what_independent_noise_of_its_size_costs():
    for who in (ONCE, {"max_participations": 4, "min_separation": 8}):
        correlated = mean_of(BandedGaussian(noise_multiplier=3.0, bands=8), **who).guarantee()
        independent = mean_of(Gaussian(3.0), **who).guarantee()
        assert correlated.epsilon == independent.epsilon
        assert correlated.is_by_trusted_server
        assert "adds the noise and keeps it secret" in str(correlated)
        mu = 2 * who["max_participations"] ** 0.5 / 3.0  # the exact Gaussian of its sensitivity, users replaced
        assert gaussian_deltas(mu, np.array([correlated.epsilon]))[0] == pytest.approx(1e-5, rel=1e-4)


def test_models_are_less_noisy_by_the_stated_ratio():
    guarantee, workload = mean_of(BandedGaussian(bands=8), **ONCE).guarantee(), Workload(60)
    assert guarantee.correlated_noise_ratio == banded(workload, 8).over_independent(workload) < 0.5
    assert "Noise of the models over that of independent noise" in str(guarantee)
    assert mean_of(Gaussian(1.0)).guarantee().correlated_noise_ratio == 1
    assert mean_of(BandedGaussian(bands=1)).guarantee().correlated_noise_ratio == 1


def test_calibration_reaches_epsilon():
    who = {**WHO, "max_participations": 6, "min_separation": 10, "epsilon": 2.0}
    calibration = calibrate("banded-gaussian", **who, bands=10, momentum=0.5)
    assert calibration.mechanism == BandedGaussian(calibration.noise_multiplier, bands=10, momentum=0.5)
    assert calibration.noise_multiplier == calibrate("gaussian", **who).noise_multiplier
    assert 1.99 < calibration.guarantee.epsilon <= 2
    assert calibration.private_mean().participation.min_separation == 10


@pytest.mark.parametrize(
    ("bands", "who"),
    [
        (2, {}),
        (2, {"max_participations": 2}),
        (9, {"max_participations": 2, "min_separation": 8}),
        (9, {"max_participations": 2, "min_separation": 1}),
    ],
)
def test_participations_must_lie_as_far_apart_as_there_are_bands(bands, who):
    separation = who.get("min_separation", 1)
    with pytest.raises(ValueError, match=rf"mechanism\.bands = {bands}: must be at most min_separation = {separation}"):
        mean_of(BandedGaussian(bands=bands), **who)
    mean_of(BandedGaussian(bands=bands), **{**who, **ONCE})
    mean_of(BandedGaussian(bands=bands), max_participations=2, min_separation=bands)


def test_a_separation_alone_limits_the_participations():
    separated = mean_of(BandedGaussian(bands=8), min_separation=10)
    limited = mean_of(BandedGaussian(bands=8), min_separation=10, max_participations=6)
    assert separated.guarantee().participations == 6  # of 60 rounds
    assert separated.guarantee().epsilon == limited.guarantee().epsilon


def test_a_repeated_round_is_charged_again():
    mech = BandedGaussian(bands=8)
    mean = mean_of(mech, max_participations=3, min_separation=8)
    repeated = mean.guarantee(charges={round_index: 1 + (round_index == 5) for round_index in range(60)})
    assert repeated.epsilon == mean_of(mech, max_participations=4, min_separation=8).guarantee().epsilon
    assert mean.guarantee(charges={0: 1}).epsilon == mean_of(mech, **ONCE).guarantee().epsilon


def test_it_survives_a_dictionary():
    mech = BandedGaussian(2.0, bands=5, momentum=0.0, schedule="cosine")
    assert mechanism_from_dict(mech.to_dict()) == mech
    mean = mean_of(mech, max_participations=2, min_separation=5)
    assert mean_from_dict(mean.to_dict()) == mean
    assert mean.to_dict()["min_separation"] == 5


def test_noise_is_canceled_in_the_coordinates_it_was_added_to():
    """Noise is correlated coordinate by coordinate, so the rotation stays the same; otherwise it changes."""
    correlated, independent = mean_of(BandedGaussian(bands=8), **ONCE), mean_of(Gaussian(1.0))
    assert correlated.transform(0) == correlated.transform(7)
    assert independent.transform(0) != independent.transform(7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0"),
        ({"bands": 0}, "bands = 0"),
        ({"bands": 2.5}, "bands = 2.5"),
        ({"momentum": 1.0}, "momentum = 1"),
        ({"schedule": "steps"}, "schedule = 'steps': must be one of constant, linear, cosine"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        BandedGaussian(**options)
