"""A private mean and what it guarantees survive JSON; what does not describe one is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import (
    CorrelatedNoise,
    DiscreteGaussian,
    PrivateRecordMean,
    SeededRandom,
    mean_from_dict,
    private_mean,
    private_record_mean,
)
from tests.core.exact import ONE_BIT, mean_of, mechanisms


def read_again(mean):
    """What JSON makes of a private mean."""
    return mean_from_dict(json.loads(json.dumps(mean.to_dict())))


@settings(max_examples=40)
@given(
    mechanisms,
    st.integers(1, 10**7),
    st.integers(1, 1000),
    st.one_of(st.none(), st.floats(1e-12, 0.5)),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 2**40),
)
def test_a_mean_of_users_survives_json(mechanism, dim, clients, delta, max_participations, seed):
    values = {"delta": delta, "max_participations": max_participations, "seed": seed, "honest_fraction": 0.5}
    mean = private_mean(mechanism=mechanism, dim=dim, clients=clients, rounds=5, population=5000, **values)
    again = read_again(mean)
    assert again == mean
    assert again.privacy_parameters() == mean.privacy_parameters()
    small = mean.with_values(dim=4, l2_clip=3 * mechanism.clip)
    messages = [
        described.encode_simulated(np.linspace(-1, 1, 4), SeededRandom(3), round_index=4)
        for described in (small, read_again(small))
    ]
    assert (messages[0] == messages[1]).all()


@pytest.mark.parametrize("noise", [CorrelatedNoise(20.0), CorrelatedNoise(20.0, 2.0, 5)])
def test_correlated_noise_survives_json(noise):
    mean = mean_of(ONE_BIT, 50, clients=20, rounds=6, max_participations=1, noise=noise)
    assert read_again(mean) == mean
    assert read_again(mean).fingerprint == mean.fingerprint
    changed = mean_from_dict(mean.to_dict() | {"noise": noise.to_dict() | {"transient_std": 21.0}})
    assert changed.fingerprint != mean.fingerprint


def test_a_choice_of_coordinates_survives_json():
    mean = mean_of(ONE_BIT, 1000, coordinates=64)
    assert read_again(mean) == mean
    assert read_again(mean).coordinates == 64
    assert mean_of(ONE_BIT, 1000, coordinates=1024).to_dict()["coordinates"] is None


@pytest.mark.parametrize("options", [{"sampling_rate": 0.1}, {"noise": CorrelatedNoise(8.0), "min_separation": 4}])
def test_a_mean_of_records_survives_json(options):
    silos = {"clients": 3, "rounds": 4, "delta": 1e-6, "dim": 20, "l2_clip": 9.0, "record_clip": 1.0}
    mean = private_record_mean(mechanism=DiscreteGaussian(clip=9.0, scale=0.2, steps=1001, bits=13), **silos, **options)
    assert isinstance(read_again(mean), PrivateRecordMean)
    assert read_again(mean) == mean
    with pytest.raises(ValueError, match=r"record_clip = 1\.0: must not be given with unit = 'user'"):
        mean_from_dict(mean.to_dict() | {"unit": "user", "neighboring": "replace-one", "sampling_rate": None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private_mean": 1}, "private_mean = 1: must be 2"),
        ({"clints": 3}, "did you mean clients?"),
        ({"mechanism": {"mechanism": "laplace"}}, "mechanism = 'laplace'"),
        ({"noise": {"gain": 5}}, "noise"),
        ({"dim": 2.5}, "dim = 2.5"),
        ({"sampling_rate": 0.5}, r"sampling_rate = 0\.5: must not be given with unit = 'user'"),
    ],
)
def test_other_values_are_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mean_from_dict(mean_of(ONE_BIT, 3).to_dict() | change)


def test_every_value_is_needed_and_only_a_table_is_read():
    values = mean_of(ONE_BIT, 3).to_dict()
    for name in values:
        with pytest.raises(ValueError, match=name):
            mean_from_dict({key: value for key, value in values.items() if key != name})
    with pytest.raises(TypeError, match="private_mean = 'nonsense': must be a table"):
        mean_from_dict("nonsense")
