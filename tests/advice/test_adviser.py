"""The adviser: no candidate dominates its winner, its errors are the simulated ones, its refusals say what would do."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import RQM, Participation, SeededRandom, ThreatModel, advise, mechanism_from_dict, private_mean
from rqm.accounting.guarantee import guarantee
from rqm.accounting.release import Release
from rqm.advice.adviser import sweep
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.related.mvu import pure_epsilon
from rqm.report.plots import plot_error_by_epsilon, save

MODEL = {"dim": 2**20, "population": 10**6, "rounds": 250}


@cache
def cached(clients):
    if clients == 1:
        return advise(clients=1, epsilon=3.0)
    return advise(clients=clients, epsilon=6, delta=1e-5, dim=256, bits=32)


@pytest.mark.slow
def test_one_client_with_pure_privacy():
    advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    candidates = {candidate.name: candidate for candidate in advice.candidates}
    assert advice.best.name == "optimal table"
    assert advice.best.mse == pytest.approx(advice.best.mechanism.variance_max)
    assert advice.best.mse <= 0.0480
    assert candidates.keys() >= {"randomized response", "1 bit", "PBM", "RQM"}
    assert all(candidate.epsilon <= 5.4699 for candidate in advice.candidates)
    assert json.loads(json.dumps(advice.to_dict()))["candidates"][0]["mse"] == advice.best.mse
    mvu = candidates["MVU, own alphabet"]
    assert mvu.bits_per_coordinate == 4
    assert pure_epsilon(mvu.mechanism) == mvu.epsilon


def test_a_model_against_the_server_needs_one_bit():
    advice = advise(clients=1000, epsilon=10, bits=4, **MODEL)
    trusted = advice.candidates[-1]
    assert trusted.name == "trusted server's Gaussian"
    candidate = next(candidate for candidate in advice.candidates if candidate.name == "1 bit")
    assert candidate.bits_per_coordinate == 1
    mean = private_mean(mechanism=candidate.mechanism, clients=1000, max_participations=1, **MODEL)
    assert mean.guarantee().epsilon == candidate.epsilon >= 0.996 * 10
    assert mean.guarantee().noise_std_over_gaussian == pytest.approx(1.021, abs=1e-3)  # at its own ε
    assert 1.021**2 - 2e-3 <= candidate.mse / trusted.mse <= (1.021 / 0.996) ** 2
    assert "noise 1.0" in advice.best.reason
    assert advice.left_out["local Gaussian"] == "bits = 4: must be at least 32"


def test_the_certified_epsilon_is_the_accountants():
    advice = advise(clients=100, epsilon=8, delta=1e-5, dim=2**14, population=5000, rounds=20, max_participations=3)
    participation = Participation(clients=100, population=5000, rounds=20, max_participations=3)
    for candidate in advice.candidates:
        mechanism = mechanism_from_dict(json.loads(json.dumps(candidate.to_dict()))["mechanism"])
        accounted = guarantee(Release(mechanism, 2**14, 1.0), participation, ThreatModel(), 1e-5)
        assert accounted.epsilon == candidate.epsilon <= 8


@pytest.mark.slow
def test_with_many_bits_additive_noise_is_a_candidate():
    candidates = {candidate.name: candidate for candidate in cached(30).candidates}
    assert candidates.keys() >= {"discrete-gaussian", "skellam", "binomial", "local Gaussian"}
    ratio = candidates["local Gaussian"].mse / candidates["trusted server's Gaussian"].mse
    assert ratio == pytest.approx(30, rel=1e-3)  # each client has the noise of a whole sum


@pytest.mark.slow
def test_a_lattice_table_wins_for_a_sum_of_few_clients():
    advice = advise(clients=40, epsilon=3, delta=1e-5, levels=16)
    assert advice.best.name == "lattice table"


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    clients=st.integers(70, 300),
    log_dim=st.integers(8, 20),
    epsilon=st.floats(1, 20),
    bits=st.sampled_from([1, 2, 4]),
    max_participations=st.integers(1, 3),
)
def test_no_candidate_dominates_the_winner(clients, log_dim, epsilon, bits, max_participations):
    values = {"clients": clients, "population": 10**5, "rounds": 3, "max_participations": max_participations}
    advice = advise(dim=2**log_dim, epsilon=epsilon, bits=bits, **values)
    for candidate in advice.candidates:
        assert candidate.epsilon <= epsilon
        assert candidate.trusted_server or candidate.bits_per_coordinate <= bits
        assert candidate.trusted_server or candidate.mse >= advice.best.mse
    best = advice.best.mechanism
    if isinstance(best, RQM):  # with less noise its ε is larger
        less = RQM(clip=best.clip, margin=best.margin * 0.99, levels=best.levels)
        release, delta = Release(less, 2**log_dim, 1.0), advice.request.delta
        assert guarantee(release, Participation(**values), ThreatModel(), delta).epsilon > epsilon * 0.999


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 30])
def test_predicted_errors_are_the_simulated_ones(clients):
    rng = np.random.default_rng(0)
    for candidate in cached(clients).candidates:
        mechanism = candidate.mechanism
        if not isinstance(mechanism, DiscreteMechanism):  # floats; whole vectors: tests/related/test_vqsgd.py
            continue
        # The input at which the variance is largest, found on a grid; half-way between levels for additive noise.
        grid = np.linspace(-mechanism.clip, mechanism.clip, 4001)
        x = 0.0 if isinstance(mechanism, Additive) else float(grid[np.argmax(mechanism.variance(grid))])
        source = SeededRandom(int(rng.integers(2**31)))
        sums = mechanism.encode(np.full((clients, 3_000_000 // clients), x), source).sum(axis=0, dtype=np.int64)
        errors = mechanism.decode(sums % 2 ** mechanism.sum_bits(clients), clients) - x
        assert float((errors**2).mean()) / mechanism.clip**2 == pytest.approx(candidate.mse, rel=0.02), candidate.name


@pytest.mark.slow
def test_a_number_of_levels_is_never_exceeded():
    assert advise(clients=1, epsilon=3.0, levels=10).request.bits == 3
    advice = advise(clients=3, epsilon=8, delta=1e-5, bits=32)  # tables stop at 64 outcomes
    tables = [candidate for candidate in advice.candidates if candidate.name in ("lattice table", "PBM")]
    assert max(candidate.mechanism.levels for candidate in tables) <= 64


@pytest.mark.slow
def test_candidates_with_a_given_noise_are_ranked_by_epsilon():
    advice = advise(clients=1000, noise=2.0, **MODEL)
    spent = [candidate.epsilon for candidate in advice.candidates if not candidate.trusted_server]
    assert spent == sorted(spent)
    for candidate in advice.candidates:
        assert candidate.mse == pytest.approx((2.0 / 1000 * 2**10 / 4) ** 2, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clients": 40, "epsilon": 3, "honest_clients": 1}, "at least 2 honest clients.*clients = 1"),
        ({"clients": 40, "epsilon": 3, "honest_fraction": 0.01, "population": 3400}, "at least 2 honest"),
        ({"clients": 4, "epsilon": 3, "bits": 0}, "bits = 0: must be at least 1"),
        ({"clients": 2, "epsilon": 1e-6, "dim": 2**20}, "allow a larger ε.*must be at least"),
        ({"clients": 2}, "epsilon = None"),
        ({"clients": 2, "epsilon": 1, "noise": 1}, "must not be given with epsilon"),
        ({"clients": 1, "noise": 1}, "delta = None: must be given with noise"),
        ({"clients": 2, "epsilon": float("nan")}, "epsilon = nan"),
        ({"clients": 0, "epsilon": 1}, "clients = 0"),
        ({"clients": 2, "epsilon": 1, "bits": 2, "levels": 4}, "must not be given with bits"),
        ({"clients": 5, "epsilon": 1, "population": 3}, "population = 3"),
    ],
)
def test_an_impossible_request_is_refused_with_a_remedy(values, message):
    with pytest.raises(ValueError, match=message):
        advise(**values)


@pytest.mark.slow
def test_errors_fall_with_epsilon_on_every_line(tmp_path):
    advice = advise(clients=200, epsilon=4, delta=1e-5, dim=2**12)
    candidates = sweep([replace(advice.request, epsilon=epsilon) for epsilon in (2.0, 4.0, 8.0)])
    for name in {candidate.name for candidate in candidates}:
        errors = [candidate.mse for candidate in candidates if candidate.name == name]
        assert errors == sorted(errors, reverse=True)
    assert save(plot_error_by_epsilon(candidates), tmp_path / "pareto.png").stat().st_size > 10_000
