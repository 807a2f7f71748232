"""Candidates: correlated noise with its conditions, and sums of some coordinates with their error and bits."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

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
from rqm.advice.adviser import sweep
from rqm.advice.candidates import CORRELATED_NAME, MAX_CORRELATED_ROUNDS, MAX_CORRELATED_WINDOW, Request, searches
from rqm.core.base import choice_error
from rqm.report.plots import pareto_front, plot_error_by_bits, save
from tests.commands import rqm

LARGE = {"clients": 1000, "population": 10**5, "rounds": 30}
SMALL = {"clients": 100, "population": 10**4, "epsilon": 4, "dim": 4096}
SUBSET = {"clients": 50, "dim": 5000, "epsilon": 3.0, "delta": 1e-5}
SUBSET_REQUEST = Request(
    participation=Participation(clients=50), threat_model=ThreatModel(), delta=1e-5, dim=5000, epsilon=3.0, bits=16
)


@cache
def advice_for_many_clients():
    return advise(epsilon=1, dim=2**16, **LARGE)


@cache
def advice_for_some_coordinates():
    return advise(**SUBSET, max_bits_per_parameter=0.3, mean_length=0.4)


def named(advice, name=CORRELATED_NAME):
    return next(candidate for candidate in advice.candidates if candidate.name == name)


def correlated_alone(request):
    """The candidate with correlated noise, without its rivals; None if the request has none."""
    search = dict(searches(request)).get(CORRELATED_NAME)
    return None if search is None else search()


# -- correlated noise -----------------------------------------------------------------------------


@pytest.mark.slow
def test_correlated_noise_wins_by_the_noise_in_the_models_though_each_round_is_noisier():
    best, *rivals = advice_for_many_clients().candidates
    assert best.name == CORRELATED_NAME
    assert best.iterate_noise == pytest.approx(0.431, abs=0.003)
    assert all(best.mse > 4 * rival.mse for rival in rivals if rival.name != "vqSGD")
    trusted = rivals[-1]
    assert trusted.trusted_server
    assert trusted.iterate_noise == 1
    values = [candidate.iterate_noise for candidate in advice_for_many_clients().candidates[:-1]]
    assert values == sorted(values)
    for rival in rivals:  # independent noise: the models have the noise of the rounds
        assert rival.iterate_noise == pytest.approx((rival.mse / trusted.mse) ** 0.5)
        assert rival.messages == 1
        assert rival.noise is None


@pytest.mark.slow
def test_the_values_of_correlated_noise_are_those_of_its_private_mean():
    values = json.loads(json.dumps(advice_for_many_clients().to_dict()))["candidates"][0]
    noise, participation = CorrelatedNoise.of(values["noise"]), Participation(**LARGE, max_participations=1)
    mechanism = mechanism_from_dict(values["mechanism"])
    guarantee = PrivateMean(dim=2**16, mechanism=mechanism, noise=noise, participation=participation).guarantee()
    assert 0.98 < guarantee.epsilon == values["epsilon"] <= 1
    assert guarantee.correlated_noise_ratio == values["iterate_noise"]
    assert guarantee.bits_under_secagg == values["bits_under_secagg"] == values["bits_per_coordinate"] == 26
    assert values["messages"] == 2


def test_the_reason_states_the_conditions_of_correlated_noise():
    for text in (
        "one round later",
        "26 bits for both messages",
        "a fixed order, each once",
        "assumes 1,000 honest clients in each of 30 consecutive rounds",
        "momentum 0.9, a learning rate that falls to zero over 30 rounds",
        "PBM needs 4 instead of 26 bits for 2.3 times as much",
    ):
        assert text in named(advice_for_many_clients()).reason
    assert "noise in the models" in advice_for_many_clients().candidates[1].reason


def test_the_error_of_correlated_noise_is_that_of_a_round_with_both_messages():
    candidate, clients, draws = named(advice_for_many_clients()), 1000, 2000
    mechanism, noise = candidate.mechanism, candidate.noise
    rounded = mechanism.encode(np.zeros((clients, draws)), SeededRandom(1)).sum(axis=0, dtype=np.int64)
    states = [noise.sample(clients * draws, SeededRandom(seed)) for seed in (2, 3)]  # of this round and the last one
    added, canceled = (
        values.reshape(clients, draws).sum(axis=0, dtype=np.int64) for values in (states[0].added, states[1].canceled)
    )
    mean = mechanism.decode(rounded, clients) + (added - canceled) * mechanism.grid.step / clients
    assert float((mean**2).mean()) / mechanism.clip**2 == pytest.approx(candidate.mse, rel=0.1)


def test_the_limit_of_bits_is_for_both_messages():
    advice = advise(epsilon=1, dim=2**16, bits=4, **LARGE)
    assert CORRELATED_NAME not in {candidate.name for candidate in advice.candidates}
    assert advice.left_out[CORRELATED_NAME] == "bits = 4: must be at least 24, for both messages"
    request = advice_for_many_clients().request
    assert request.to_dict()["two_message_bits"] == 32
    with pytest.raises(ValueError, match="bits = 23: must be at least 24"):
        correlated_alone(replace(request, two_message_bits=23))
    candidate = correlated_alone(replace(request, two_message_bits=24))
    # Without residual noise.
    assert (candidate.bits_per_coordinate, candidate.iterate_noise) == (24, pytest.approx(0.449, abs=0.003))
    assert CORRELATED_NAME not in advice_for_many_clients().left_out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds": 5, "adversary": "outsider"}, "adversary = 'server'"),
        ({"rounds": 5, "max_participations": 1, "honest_fraction": 0.8}, "honest_fraction = 0.8: must be a number"),
        ({"rounds": 5, "max_participations": 2}, "min_separation = 1: must be larger"),
        ({"rounds": 101, "max_participations": 1}, "population = 10000: must be at least 10100"),
        ({"rounds": MAX_CORRELATED_WINDOW + 1, "max_participations": 1, "population": 10**6}, "takes minutes"),
        ({"rounds": MAX_CORRELATED_ROUNDS + 1, "min_separation": 100}, "takes minutes"),
    ],
)
def test_the_reason_why_noise_cannot_be_correlated_is_given(changes, reason):
    values = {"clients": 100, "population": 10**4, **changes}
    threat_model = ThreatModel(values.pop("adversary", "server"), honest_fraction=values.pop("honest_fraction", None))
    sampling = "available" if threat_model == ThreatModel() else "uniform"
    request = Request(
        participation=Participation(**values, sampling=sampling),
        threat_model=threat_model,
        delta=1e-5,
        dim=4096,
        epsilon=4.0,
        two_message_bits=32,
    )
    with pytest.raises(ValueError, match=reason):
        correlated_alone(request)


@pytest.mark.slow
def test_correlated_noise_is_considered_only_for_sums_of_several_rounds():
    advice = advise(**SMALL, rounds=5, max_participations=2)
    assert CORRELATED_NAME not in {candidate.name for candidate in advice.candidates}
    assert "min_separation = 1: must be larger" in advice.to_dict()["left_out"][CORRELATED_NAME]
    for changes in ({"rounds": 1}, {"epsilon": None, "noise": 2.0, "rounds": 5}):
        assert CORRELATED_NAME not in advise(**{**SMALL, **changes}).left_out
    participation = Participation(clients=1, rounds=5, max_participations=1)
    for pure in (True, False):
        request = replace(SUBSET_REQUEST, participation=participation, dim=1, two_message_bits=32, pure=pure)
        assert correlated_alone(request) is None


@pytest.mark.slow
def test_correlated_noise_does_not_win_where_rounding_is_too_coarse():
    advice = advise(clients=100, population=3400, rounds=2, dim=2**15, epsilon=10)
    candidate = named(advice)
    assert candidate.iterate_noise > 1.1 > advice.best.iterate_noise
    assert advice.best.name != CORRELATED_NAME
    assert "% more noise in the models" in candidate.reason


@pytest.mark.slow
def test_correlated_noise_with_users_who_return_and_clients_who_collude():
    advice = advise(**SMALL, rounds=40, min_separation=10, honest_clients=80)
    assert advice.request.releases == advice.request.to_dict()["max_participations"] == 4
    candidate = named(advice)
    assert "each at least 10 rounds apart" in candidate.reason
    assert "80 honest clients in each of 10 consecutive rounds" in candidate.reason
    values = {"clients": 100, "population": 10**4, "rounds": 40, "min_separation": 10, "dim": 4096}
    values |= {"mechanism": candidate.mechanism, "noise": candidate.noise}
    assert private_mean(**values, honest_clients=80).guarantee().epsilon == candidate.epsilon <= 4
    assert private_mean(**values).guarantee().epsilon < 0.95 * candidate.epsilon


def test_a_sweep_is_without_correlated_noise():
    candidates = sweep([advice_for_many_clients().request])
    assert candidates
    assert CORRELATED_NAME not in {candidate.name for candidate in candidates}


# -- some coordinates -----------------------------------------------------------------------------


@pytest.mark.slow
def test_all_candidates_for_some_coordinates_keep_to_the_bits_and_to_epsilon():
    advice = advice_for_some_coordinates()
    candidates = [candidate for candidate in advice.candidates if not candidate.trusted_server]
    assert len(candidates) > 4
    for candidate in candidates:
        assert candidate.epsilon <= 3.0
        assert 0.25 < candidate.wire_bits_per_parameter <= 0.3
        bits = candidate.bits_under_secagg * candidate.coordinates / 5000
        assert candidate.wire_bits_per_parameter == pytest.approx(bits)
        assert candidate.wraps < 1e-4
    assert json.loads(json.dumps(advice.to_dict()))["request"]["max_bits_per_parameter"] == 0.3
    errors = [candidate.mse for candidate in candidates]
    assert errors == sorted(errors)


@pytest.mark.statistical
@pytest.mark.slow
def test_the_error_of_some_coordinates_is_the_simulated_one():
    advice = advice_for_some_coordinates()
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
    vectors = rng.normal(size=(50, 5000)) * 3 + 1.3 * rng.normal(size=5000)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    vectors += (0.4 / np.linalg.norm(vectors.mean(axis=0)) - 1) * vectors.mean(axis=0)  # to a mean of this length
    vectors /= max(1.0, np.linalg.norm(vectors, axis=1).max())
    errors = []
    for round_index in range(60):
        total = torch.zeros(mean.coordinates, dtype=torch.int32)
        rows = torch.from_numpy(vectors).float()
        mean.add_messages(rows, total, SeededRandom(2, round_index), round_index=round_index)
        revealed = mean.reveal(total, 50, None, round_index=round_index)
        decoded = np.asarray(mean.decode(revealed, 50, round_index=round_index))
        errors.append(np.square(decoded - vectors.mean(axis=0)).mean())
    assert np.mean(errors) == pytest.approx(best.mse * clip**2, rel=0.06)
    assert np.mean(errors) != pytest.approx(1.2 * best.mse * clip**2, rel=0.06)


@pytest.mark.slow
def test_a_mean_length_alone_lets_the_choice_add_a_tenth_of_the_error():
    advice = advise(**{**SUBSET, "epsilon": None}, noise=2.0, mean_length=0.2)
    count, noise_error = advice.best.coordinates, (2.0 / 50) ** 2
    assert choice_error(count, 8192, 0.2) <= 0.1 * noise_error < choice_error(count - 1, 8192, 0.2)
    best = advise(**SUBSET, mean_length=0.2)
    assert best.best.coordinates < 5000
    assert choice_error(best.best.coordinates, 8192, 0.2) / best.request.clip**2 < 0.1 * best.best.mse


@pytest.mark.slow
def test_on_the_front_more_bits_have_less_error(tmp_path):
    limits = [0.02, 0.1, 0.5, 4.0]
    tried = sweep([replace(SUBSET_REQUEST, max_bits_per_parameter=limit) for limit in limits])
    assert save(plot_error_by_bits(tried), tmp_path / "front.png").stat().st_size > 10_000
    candidates = pareto_front(tried)
    bits = [candidate.wire_bits_per_parameter for candidate in candidates]
    errors = [candidate.mse for candidate in candidates]
    assert len(candidates) >= 4
    assert bits == sorted(bits)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 3 * errors[-1]


@pytest.mark.parametrize(
    "changes", [{"max_bits_per_parameter": 0.0}, {"mean_length": -1.0}, {"max_bits_per_parameter": 1.0, "clients": 1}]
)
def test_an_impossible_choice_of_coordinates_is_refused(changes):
    with pytest.raises(ValueError, match=r"max_bits_per_parameter|mean_length"):
        advise(**{**SUBSET, **changes})


def test_no_coordinates_fit_too_few_bits():
    with pytest.raises(ValueError, match="epsilon = 3"):
        advise(**SUBSET, max_bits_per_parameter=1e-4)
    names = dict(searches(replace(SUBSET_REQUEST, dim=100, max_bits_per_parameter=1e-6)))
    assert list(names) == ["trusted server's Gaussian"]


@pytest.mark.slow
def test_the_command_shows_bits_per_parameter():
    flags = ("--clients", 20, "--dim", 2000, "--epsilon", 5, "--max-bits-per-parameter", 0.5)
    printed = json.loads(rqm("advise", *flags, "--json").stdout)
    assert printed["candidates"][0]["wire_bits_per_parameter"] <= 0.5
    assert "bits per parameter" in rqm("advise", *flags).stdout
