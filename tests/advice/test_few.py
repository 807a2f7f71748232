"""Advice for few coordinates: within the bits, certified, with the error that is measured; and the front."""

import json

import numpy as np
import pytest
import torch

from rqm import Participation, PrivateMean, SeededRandom, ThreatModel, advise
from rqm.advice.candidates import Request
from rqm.advice.few import enough, few, front
from rqm.core.transform import choice_error
from tests.commands import rqm

ASKED = {"clients": 50, "dim": 5000, "epsilon": 3.0, "delta": 1e-5}
WHO = {"participation": Participation(clients=50), "threat_model": ThreatModel(), "delta": 1e-5}


@pytest.fixture(scope="module")
def advice():
    return advise(**ASKED, max_bits_per_parameter=0.3, mean_length=0.4)


@pytest.mark.slow
def test_all_keep_to_the_bits_and_to_epsilon(advice):
    assert len(advice.candidates) > 4
    for one in advice.candidates:
        assert one.epsilon <= 3.0
        if not one.trusted_server:
            assert 0.25 < one.wire_bits_per_parameter <= 0.3
            assert one.wire_bits_per_parameter == pytest.approx(one.bits_under_secagg * one.coordinates / 5000)
    assert json.loads(json.dumps(advice.to_dict()))["request"]["max_bits_per_parameter"] == 0.3
    assert all(one.wraps < 1e-4 for one in advice.candidates if not one.trusted_server)
    errors = [one.mse for one in advice.candidates if not one.trusted_server]
    assert errors == sorted(errors)


@pytest.mark.statistical
@pytest.mark.slow
def test_the_error_is_the_one_that_is_measured(advice):
    best, clip = advice.best, advice.request.clip
    mean = PrivateMean(
        dim=5000,
        participation=Participation(clients=50, rounds=60, max_participations=1),
        mechanism=best.mechanism,
        coordinates=best.coordinates,
        delta=1e-5,
    )
    assert mean.guarantee().epsilon == pytest.approx(best.epsilon)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 5000)) * 3 + 1.3 * rng.normal(size=5000)
    x /= np.linalg.norm(x, axis=1)[:, None]
    x += (0.4 / np.linalg.norm(x.mean(axis=0)) - 1) * x.mean(axis=0)  # so long is their mean
    x /= max(1.0, np.linalg.norm(x, axis=1).max())
    middle, errors = x.mean(axis=0), []
    for turn in range(60):
        total = torch.zeros(mean.coordinates, dtype=torch.int32)
        mean.add_messages(torch.from_numpy(x).float(), total, SeededRandom(2, turn), round_index=turn)
        found = np.asarray(mean.decode(mean.revealed(total, 50, 0), 50, round_index=turn))
        errors.append(np.square(found - middle).mean())
    assert np.mean(errors) == pytest.approx(best.mse * clip**2, rel=0.06)
    assert np.mean(errors) != pytest.approx(1.2 * best.mse * clip**2, rel=0.06)


@pytest.mark.slow
def test_as_many_as_make_the_choice_a_tenth_of_the_noise():
    count = enough(2.0, 100, 5000, 0.5)
    assert choice_error(count, 8192, 0.5) <= 0.1 * (2.0 / 100) ** 2 < choice_error(count - 1, 8192, 0.5)
    found = advise(**ASKED, mean_length=0.2)
    one = found.best
    assert one.coordinates < 5000
    added = choice_error(one.coordinates, 8192, 0.2) / found.request.clip**2
    assert added < 0.1 * one.mse


@pytest.mark.slow
def test_more_bits_never_have_more_error_and_few_are_not_free():
    request = Request(**WHO, dim=5000, epsilon=3.0, bits=16)
    found = front(request, [0.02, 0.1, 0.5, 4.0])
    bits, errors = [one.wire_bits_per_parameter for one in found], [one.mse for one in found]
    assert len(found) >= 4
    assert bits == sorted(bits)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 3 * errors[-1]


@pytest.mark.parametrize(
    "change", [{"max_bits_per_parameter": 0.0}, {"mean_length": -1.0}, {"max_bits_per_parameter": 1.0, "clients": 1}]
)
def test_what_cannot_be_asked_is_refused(change):
    with pytest.raises(ValueError, match=r"max_bits_per_parameter|mean_length"):
        advise(**{**ASKED, **change})


def test_nothing_fits_no_bits():
    with pytest.raises(ValueError, match="epsilon = 3"):
        advise(**ASKED, max_bits_per_parameter=1e-4)
    request = Request(**WHO, dim=100, epsilon=3.0, bits=16, max_bits_per_parameter=1e-6)
    assert [name for name, _ in few(request)] == ["trusted server's Gaussian"]


@pytest.mark.slow
def test_the_command(tmp_path):
    asked = ("--clients", 20, "--dim", 2000, "--epsilon", 5, "--max-bits-per-parameter", 0.5)
    facts = json.loads(rqm("advise", *asked, "--json").stdout)
    assert facts["candidates"][0]["wire_bits_per_parameter"] <= 0.5
    assert "a parameter" in rqm("advise", *asked).stdout
