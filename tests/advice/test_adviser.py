"""The adviser: its winner is never dominated, its errors are what simulation finds, its refusals say what would do."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import RQM, Participation, SeededRandom, ThreatModel, advise, mechanism_from_dict, private_mean
from rqm.accounting.guarantee import guarantee
from rqm.accounting.release import Release
from rqm.advice.adviser import pareto
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.report.plots import plot_error_by_epsilon, save

MANY_BITS = {"clients": 30, "epsilon": 6, "delta": 1e-5, "dim": 256, "bits": 32}
MODEL = {"dim": 2**20, "population": 10**6, "rounds": 250}


@cache
def cached(clients):
    return advise(**MANY_BITS) if clients == 30 else advise(clients=1, epsilon=3.0)


@pytest.mark.slow
def test_one_client_and_pure_privacy():
    advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    assert advice.best.name == "optimal table"
    assert advice.best.mse == pytest.approx(advice.best.mechanism.variance_max)
    assert advice.best.mse <= 0.0480
    assert {one.name for one in advice.candidates} >= {"randomized response", "1 bit", "PBM", "RQM"}
    assert all(one.epsilon <= 5.4699 for one in advice.candidates)
    assert json.loads(json.dumps(advice.to_dict()))["candidates"][0]["mse"] == advice.best.mse


def test_a_model_against_the_server_needs_one_bit():
    advice = advise(clients=1000, epsilon=10, bits=4, **MODEL)
    names = [one.name for one in advice.candidates]
    assert names[-1] == "trusted server's Gaussian"
    candidate = next(candidate for candidate in advice.candidates if candidate.name == "1 bit")
    assert candidate.bits_per_coordinate == 1
    mean = private_mean(mechanism=candidate.mechanism, clients=1000, max_participations=1, **MODEL)
    assert mean.guarantee().epsilon == candidate.epsilon >= 0.996 * 10
    assert mean.guarantee().noise_std_over_gaussian == pytest.approx(1.021, abs=1e-3)  # at its own ε
    ratio = candidate.mse / advice.candidates[-1].mse
    assert 1.021**2 - 2e-3 <= ratio <= (1.021 / 0.996) ** 2
    assert "noise 1.0" in advice.best.reason


def test_the_certified_epsilon_is_the_accounts():
    advice = advise(clients=100, epsilon=8, delta=1e-5, dim=2**14, population=5000, rounds=20, max_participations=3)
    who = Participation(clients=100, population=5000, rounds=20, max_participations=3)
    for one in advice.candidates:
        again = mechanism_from_dict(json.loads(json.dumps(one.to_dict()))["mechanism"])
        assert guarantee(Release(again, 2**14, 1.0), who, ThreatModel(), 1e-5).epsilon == one.epsilon <= 8


@pytest.mark.slow
def test_with_many_bits_additive_noise_takes_part():
    advice = cached(30)
    names = {one.name for one in advice.candidates}
    assert {"discrete-gaussian", "skellam", "binomial", "local Gaussian"} <= names
    local = next(one for one in advice.candidates if one.name == "local Gaussian")
    trusted = next(one for one in advice.candidates if one.trusted_server)
    assert local.mse / trusted.mse == pytest.approx(30, rel=1e-3)  # nobody hides behind anybody


@pytest.mark.slow
def test_a_sum_of_few_is_best_served_by_a_table():
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
def test_the_winner_is_never_dominated(clients, log_dim, epsilon, bits, max_participations):
    advice = advise(
        clients=clients,
        dim=2**log_dim,
        epsilon=epsilon,
        bits=bits,
        population=10**5,
        rounds=3,
        max_participations=max_participations,
    )
    for one in advice.candidates:
        assert one.epsilon <= epsilon
        assert one.trusted_server or one.bits_per_coordinate <= bits
        assert one.trusted_server or one.mse >= advice.best.mse
    # Nor by one of ours that it did not propose: the same kind with less noise breaks ε.
    best = advice.best.mechanism
    if isinstance(best, RQM):
        less = RQM(clip=best.clip, margin=best.margin * 0.99, levels=best.levels)
        who = Participation(clients, 3, 10**5, max_participations=max_participations)
        again = guarantee(Release(less, 2**log_dim, 1.0), who, ThreatModel(), advice.request.delta)
        assert again.epsilon > epsilon * 0.999


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 30])
def test_predicted_errors_are_what_simulation_finds(clients):
    advice = cached(clients)
    rng = np.random.default_rng(0)
    for one in advice.candidates:
        mech = one.mechanism
        if not isinstance(
            mech, DiscreteMechanism
        ):  # the trusted Gaussian; whole vectors: tests/mechanisms/test_vqsgd.py
            continue
        # The input at which the variance is largest, found on a grid; half-way between levels for additive noise.
        grid = np.linspace(-mech.clip, mech.clip, 4001)
        worst = 0.0 if isinstance(mech, Additive) else float(grid[np.argmax(mech.variance(grid))])
        draws = 3_000_000 // clients
        seed = int(rng.integers(2**31))
        sums = mech.encode(np.full((clients, draws), worst), SeededRandom(seed)).sum(axis=0, dtype=np.int64)
        sums %= 2 ** mech.sum_bits(clients)
        found = float(((mech.decode(sums, clients) - worst) ** 2).mean()) / mech.clip**2
        assert found == pytest.approx(one.mse, rel=0.02), one.name


@pytest.mark.slow
def test_levels_are_never_exceeded_and_many_bits_end():
    assert advise(clients=1, epsilon=3.0, levels=10).request.bits == 3
    advice = advise(clients=3, epsilon=8, delta=1e-5, bits=32)  # tables stop at 64 outcomes
    assert max(one.mechanism.levels for one in advice.candidates if one.name in ("lattice table", "PBM")) <= 64


@pytest.mark.slow
def test_a_target_noise_ranks_by_epsilon():
    advice = advise(clients=1000, noise=2.0, **MODEL)
    spent = [one.epsilon for one in advice.candidates if not one.trusted_server]
    assert spent == sorted(spent)
    for one in advice.candidates:
        error = (2.0 / 1000 * 2**10 / 4) ** 2
        assert one.mse == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"clients": 40, "epsilon": 3, "honest_clients": 1}, "at least 2 honest clients.*clients = 1"),
        ({"clients": 40, "epsilon": 3, "honest_fraction": 0.01, "population": 3400}, "at least 2 honest"),
        ({"clients": 4, "epsilon": 3, "bits": 0}, "bits = 0: must be at least 1"),
        ({"clients": 2, "epsilon": 1e-6, "dim": 2**20}, "must be about .* or more"),
        ({"clients": 2}, "epsilon = None"),
        ({"clients": 2, "epsilon": 1, "noise": 1}, "must not be given with epsilon"),
        ({"clients": 2, "epsilon": float("nan")}, "epsilon = nan"),
        ({"clients": 0, "epsilon": 1}, "clients = 0"),
        ({"clients": 2, "epsilon": 1, "bits": 2, "levels": 4}, "must not be given with bits"),
        ({"clients": 5, "epsilon": 1, "population": 3}, "population = 3"),
    ],
)
def test_what_cannot_be_is_refused_and_says_what_could(request_, message):
    with pytest.raises(ValueError, match=message):
        advise(**request_)


@pytest.mark.slow
def test_lines_of_epsilon_against_error(tmp_path):
    advice = advise(clients=200, epsilon=4, delta=1e-5, dim=2**12)
    lines = pareto(advice.request, [2.0, 4.0, 8.0])
    for points in lines.values():
        errors = [error for _, error in sorted(points)]
        assert errors == sorted(errors, reverse=True)
    assert save(plot_error_by_epsilon(lines), tmp_path / "pareto.png").stat().st_size > 10_000
