"""The trusted server's Gaussian that remembers: what it costs, what it adds, and for whom it is not allowed."""

import pytest

from rqm import Gaussian, PrivateMean, calibrate, mechanism_from_dict
from rqm.mechanisms.banded import BandedGaussian
from rqm.privacy.factorization import Workload, banded
from rqm.privacy.gaussian import gaussian_delta

WHO = {"clients": 10, "rounds": 60, "dim": 20, "delta": 1e-5, "population": 100}


def mean(mech, **changes):
    return PrivateMean(mechanism=mech, **{**WHO, **changes})


def test_it_costs_what_independent_noise_of_its_size_costs():
    for who in ({"participations": 1}, {"participations": 4, "separation": 8}):
        one = mean(BandedGaussian(noise_multiplier=3.0, bands=8), **who).guarantee
        other = mean(Gaussian(3.0), **who).guarantee
        assert one.epsilon == other.epsilon
        assert one.trusted_server
        assert "not the server's memory" in str(one)
        far = 2 * who["participations"] ** 0.5 / 3.0  # the exact Gaussian of its sensitivity, users replaced
        assert gaussian_delta(far, one.epsilon) == pytest.approx(1e-5, rel=1e-4)


def test_models_are_less_noisy_and_it_says_how_much():
    found = mean(BandedGaussian(bands=8), participations=1).guarantee
    work = Workload(60)
    assert found.iterate_noise_over_independent == banded(work, 8).over_independent(work) < 0.5
    assert "times independent noise's" in str(found)
    assert mean(Gaussian(1.0)).guarantee.iterate_noise_over_independent == 1
    assert mean(BandedGaussian(bands=1)).guarantee.iterate_noise_over_independent == 1


def test_calibration_reaches_epsilon():
    who = {**WHO, "participations": 6, "separation": 10, "epsilon": 2.0}
    found = calibrate("banded-gaussian", **who, bands=10, momentum=0.5)
    assert found.mechanism == BandedGaussian(found.noise_multiplier, bands=10, momentum=0.5)
    assert found.noise_multiplier == calibrate("gaussian", **who).noise_multiplier
    assert 1.99 < found.guarantee.epsilon <= 2
    assert found.private_mean().separation == 10


@pytest.mark.parametrize(
    ("bands", "who"),
    [
        (2, {}),
        (2, {"participations": 2}),
        (9, {"participations": 2, "separation": 8}),
        (9, {"participations": 2, "separation": 1}),
    ],
)
def test_participations_must_lie_as_far_apart_as_there_are_bands(bands, who):
    with pytest.raises(ValueError, match=rf"mechanism\.bands = {bands}: must be at most {who.get('separation', 1)}"):
        mean(BandedGaussian(bands=bands), **who)
    mean(BandedGaussian(bands=bands), **{**who, "participations": 1})
    mean(BandedGaussian(bands=bands), participations=2, separation=bands)


def test_whoever_is_told_only_a_separation_counts_the_turns_that_it_leaves():
    told = mean(BandedGaussian(bands=8), separation=10)
    assert told.guarantee.participations == 6  # of 60 rounds
    assert told.guarantee.epsilon == mean(BandedGaussian(bands=8), separation=10, participations=6).guarantee.epsilon


def test_a_round_that_was_done_again_is_charged_again():
    made = mean(BandedGaussian(bands=8), participations=3, separation=8)
    again = made.guarantee_of({turn: 1 + (turn == 5) for turn in range(60)})
    assert again.epsilon == mean(BandedGaussian(bands=8), participations=4, separation=8).guarantee.epsilon
    assert made.guarantee_of({0: 1}).epsilon == mean(BandedGaussian(bands=8), participations=1).guarantee.epsilon


def test_what_is_written_is_what_is_read():
    mech = BandedGaussian(2.0, bands=5, momentum=0.0, schedule="cosine")
    assert mechanism_from_dict(mech.to_dict()) == mech
    made = mean(mech, participations=2, separation=5)
    assert PrivateMean.from_dict(made.to_dict()) == made
    assert made.to_dict()["separation"] == 5
    assert "separation" not in mean(Gaussian(1.0)).to_dict()


def test_noise_that_is_taken_back_lies_where_it_was_put():
    """Noise is correlated coordinate by coordinate, so the rotation stays; with independent noise it need not."""
    correlated, fresh = mean(BandedGaussian(bands=8), participations=1), mean(Gaussian(1.0))
    assert correlated.rotation(0) == correlated.rotation(7)
    assert fresh.rotation(0) != fresh.rotation(7)


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
