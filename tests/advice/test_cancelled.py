"""Correlated noise among the candidates: ranked by the noise in the models, with its costs, where it applies."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rqm import (
    CorrelatedNoise,
    Participation,
    PrivateMean,
    SeededRandom,
    ThreatModel,
    advise,
    mechanism_from_dict,
    private_mean,
)
from rqm.advice.adviser import pareto
from rqm.advice.cancelled import MAX_ROUNDS, MAX_WINDOW, NAME, cancelled
from rqm.advice.candidates import Request

MANY = {"clients": 1000, "population": 10**5, "rounds": 30}
FEW = {"clients": 100, "population": 10**4, "epsilon": 4, "dim": 4096}


@cache
def advice_for_many():
    return advise(epsilon=1, dim=2**16, **MANY)


def correlated_candidate(advice):
    return next(candidate for candidate in advice.candidates if candidate.name == NAME)


@pytest.mark.slow
def test_it_comes_first_by_the_noise_in_the_models_though_single_rounds_are_noisier():
    first, *others = advice_for_many().candidates
    assert first.name == NAME
    assert first.iterate_noise == pytest.approx(0.431, abs=0.003)
    assert all(first.mse > 4 * other.mse for other in others if other.name != "vqSGD")
    trusted = others[-1]
    assert trusted.trusted_server
    assert trusted.iterate_noise == 1
    values = [candidate.iterate_noise for candidate in advice_for_many().candidates[:-1]]
    assert values == sorted(values)
    for other in others:  # independent noise: the models have the noise of the rounds
        assert other.iterate_noise == pytest.approx((other.mse / trusted.mse) ** 0.5)
        assert other.messages == 1
        assert other.noise is None


@pytest.mark.slow
def test_its_numbers_are_those_of_the_account_of_both_messages():
    values = json.loads(json.dumps(advice_for_many().to_dict()))["candidates"][0]
    noise, who = CorrelatedNoise.of(values["noise"]), Participation(**MANY, max_participations=1)
    mean = PrivateMean(dim=2**16, mechanism=mechanism_from_dict(values["mechanism"]), noise=noise, participation=who)
    guarantee = mean.guarantee()
    assert 0.98 < guarantee.epsilon == values["epsilon"] <= 1
    assert guarantee.correlated_noise_ratio == values["iterate_noise"]
    assert guarantee.bits_under_secagg == values["bits_under_secagg"] == values["bits_per_coordinate"] == 26
    assert values["messages"] == 2


def test_its_cost_is_part_of_the_reason():
    candidate = correlated_candidate(advice_for_many())
    for words in (
        "one round later",
        "26 bits for both messages",
        "a fixed order, each once",
        "1,000 honest clients in each of the 30 rounds",
        "momentum 0.9, a rate that falls to zero over 30 rounds",
        "PBM needs 4 instead of 26 bits for 2.3 times as much",
    ):
        assert words in candidate.reason
    assert "noise in the models" in advice_for_many().candidates[1].reason


def test_its_error_is_that_of_one_round_with_both_messages():
    candidate, clients, draws = correlated_candidate(advice_for_many()), 1000, 2000
    mechanism, noise = candidate.mechanism, candidate.noise
    rounded = mechanism.encode(np.zeros((clients, draws)), SeededRandom(1)).sum(axis=0, dtype=np.int64)
    drawn = [
        noise.added(noise.draw(clients * draws, SeededRandom(2))),
        noise.canceled(noise.draw(clients * draws, SeededRandom(3))),
    ]
    added, canceled = (values.reshape(clients, draws).sum(axis=0, dtype=np.int64) for values in drawn)
    mean = mechanism.decode(rounded, clients) + (added - canceled) * mechanism.grid.step / clients
    assert float((mean**2).mean()) / mechanism.clip**2 == pytest.approx(candidate.mse, rel=0.1)


def test_bits_count_for_both_messages():
    few = advise(epsilon=1, dim=2**16, bits=4, **MANY)
    assert NAME not in {candidate.name for candidate in few.candidates}
    assert few.left_out[NAME] == "bits = 4: must be at least 24, for both messages"
    with pytest.raises(ValueError, match="bits = 23: must be at least 24"):
        without_rivals(replace(advice_for_many().request, bits_of_both=23))
    plain = without_rivals(replace(advice_for_many().request, bits_of_both=24))
    assert (plain.bits_per_coordinate, plain.iterate_noise) == (24, pytest.approx(0.449, abs=0.003))  # no residual
    assert advice_for_many().request.to_dict()["bits_of_both"] == 32
    assert not advice_for_many().left_out


def without_rivals(request):
    """Correlated noise without its rivals; None where it is not even looked for."""
    return next((make() for _, make in cancelled(request)), None)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ({"rounds": 5, "adversary": "outsider"}, "adversary = 'server'"),
        (
            {"rounds": 5, "max_participations": 1, "honest_fraction": 0.8},
            "honest_fraction = 0.8: must be a number",
        ),
        ({"rounds": 5, "max_participations": 2}, "min_separation = 1: must be larger"),
        ({"rounds": 101, "max_participations": 1}, "population = 10000: must be at least 10100"),
        ({"rounds": MAX_WINDOW + 1, "max_participations": 1, "population": 10**6}, "takes minutes"),
        ({"rounds": MAX_ROUNDS + 1, "min_separation": 100}, "takes minutes"),
    ],
)
def test_where_it_cannot_be_the_reason_is_given(who, reason):
    values = {"clients": 100, "population": 10**4, **who}
    threat_model = ThreatModel(values.pop("adversary", "server"), honest_fraction=values.pop("honest_fraction", None))
    is_sampled = threat_model != ThreatModel()
    participation = Participation(**values, sampling="uniform" if is_sampled else "available")
    request = Request(
        participation=participation,
        threat_model=threat_model,
        delta=1e-5,
        dim=4096,
        epsilon=4.0,
        bits_of_both=32,
    )
    with pytest.raises(ValueError, match=reason):
        without_rivals(request)


@pytest.mark.slow
def test_a_reason_is_part_of_the_advice_where_noise_could_be_canceled():
    advice = advise(**FEW, rounds=5, max_participations=2)
    assert NAME not in {candidate.name for candidate in advice.candidates}
    assert "min_separation = 1: must be larger" in advice.to_dict()["left_out"][NAME]
    for change in ({"rounds": 1}, {"epsilon": None, "noise": 2.0, "rounds": 5}):
        assert not advise(**{**FEW, **change}).left_out
    for clients, pure in ((1, True), (1, False)):
        who = Participation(clients=clients, rounds=5, max_participations=1)
        request = Request(
            participation=who, threat_model=ThreatModel(), delta=1e-5, epsilon=4.0, bits_of_both=32, pure=pure
        )
        assert without_rivals(request) is None


@pytest.mark.slow
def test_where_rounding_is_too_coarse_it_is_not_the_best():
    advice = advise(clients=100, population=3400, rounds=2, dim=2**15, epsilon=10)
    candidate = correlated_candidate(advice)
    assert candidate.iterate_noise > 1.1 > advice.best.iterate_noise
    assert advice.best.name != NAME
    assert "% more noise in the models" in candidate.reason


@pytest.mark.slow
def test_users_who_return_and_clients_who_collude():
    advice = advise(**FEW, rounds=40, min_separation=10, honest_clients=80)
    assert advice.request.releases == 4
    assert advice.request.to_dict()["max_participations"] == 4
    candidate = correlated_candidate(advice)
    assert "each 10 rounds apart" in candidate.reason
    assert "80 honest clients in each of the 10 rounds" in candidate.reason
    values = {"clients": 100, "population": 10**4, "rounds": 40, "min_separation": 10, "dim": 4096}
    values |= {"mechanism": candidate.mechanism, "noise": candidate.noise}
    assert private_mean(**values, honest_clients=80).guarantee().epsilon == candidate.epsilon <= 4
    assert private_mean(**values).guarantee().epsilon < 0.95 * candidate.epsilon


def test_lines_of_errors_of_single_rounds_are_without_it():
    assert NAME not in pareto(advice_for_many().request, [1.0])
