"""Matrix factorization: sensitivities by brute force, errors by simulation, optima by what others published."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.correlated.factorization import Strategy, Workload, banded

LINEAR = Workload(250)
"""Momentum .9, a rate that falls linearly to zero."""


def toeplitz(coefficients, rounds):
    """The strategy with the same bands in every round."""
    bands = np.array(coefficients, dtype=float)[:rounds]
    return Strategy(np.where(np.arange(len(bands)) <= np.arange(rounds)[:, None], bands, 0.0))


def independent(rounds):
    """Independent noise."""
    return toeplitz([1.0], rounds)


def unit_columns(strategy):
    """The strategy with columns of norm 1."""
    rows, norms = strategy.rows.copy(), np.linalg.norm(strategy.matrix, axis=0)
    for lag in range(strategy.bands):
        rows[lag:, lag] /= norms[: strategy.rounds - lag]
    return Strategy(rows)


def root_coefficients(count):
    """The coefficients of 1/√(1 − x): without momentum, at a constant rate, they are the root of the workload."""
    lags = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (lags - 0.5) / lags]))


def spread(strategy, workload):
    """The root mean square of the iterates' noise for white noise of variance 1."""
    return strategy.error(workload) / strategy.sensitivity()


def patterns(rounds, max_participations, min_separation):
    """Every choice of rounds that a user may take part in."""
    for count in range(1, max_participations + 1):
        for chosen in combinations(range(rounds), count):
            if all(b - a >= min_separation for a, b in pairwise(chosen)):
                yield chosen


def largest_sensitivity(matrix, max_participations, min_separation):
    """The sensitivity by brute force over patterns, and over the signs of one coordinate."""
    return max(
        np.linalg.norm(matrix[:, chosen] @ np.array(signs))
        for chosen in patterns(len(matrix), max_participations, min_separation)
        for signs in product((1, -1), repeat=len(chosen))
    )


def random_strategy(seed, rounds, bands):
    rows = np.random.default_rng(seed).normal(size=(rounds, bands))
    rows[:, 0] = 1 + np.abs(rows[:, 0])
    return Strategy(np.where(np.arange(bands) <= np.arange(rounds)[:, None], rows, 0.0))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_without_overlap_the_sensitivity_is_exact(seed, bands, participations, gap):
    strategy = random_strategy(seed, 8, bands)
    exact = largest_sensitivity(strategy.matrix, participations, bands + gap)
    assert strategy.sensitivity(participations, bands + gap) == pytest.approx(exact)


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 4), st.integers(1, 3))
def test_with_overlap_it_is_a_bound(seed, bands, participations, separation):
    strategy = random_strategy(seed, 8, bands)
    rng = np.random.default_rng(seed)
    sensitivity = strategy.sensitivity(participations, separation)
    assert sensitivity >= largest_sensitivity(strategy.matrix, participations, separation) * (1 - 1e-12)
    for chosen in patterns(8, participations, separation):  # vectors, which may point anywhere
        vectors = rng.normal(size=(len(chosen), 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(strategy.matrix[:, chosen] @ vectors) <= sensitivity * (1 + 1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 5))
def test_for_decreasing_bands_early_and_frequent_participation_is_the_worst(steps, participations, separation):
    strategy = toeplitz(np.cumprod(np.array([1.0, *steps])), 9)
    exact = largest_sensitivity(strategy.matrix, participations, separation)
    assert strategy.sensitivity(participations, separation) == pytest.approx(exact)


@pytest.mark.parametrize("rounds", [9, 12])
def test_strategies_have_the_stated_sensitivity(rounds):
    workload = Workload(rounds, 0.5)
    for participations, separation in ((1, 1), (2, 4), (3, 3)):
        for strategy in (banded(workload, 3), toeplitz(root_coefficients(rounds), rounds)):
            if strategy.bands == 3 and separation < 3:
                continue
            exact = largest_sensitivity(strategy.matrix, participations, separation)
            assert strategy.sensitivity(participations, separation) == pytest.approx(exact)
    assert np.linalg.norm(banded(workload, 3).matrix, axis=0) == pytest.approx(1)
    assert banded(workload, 3).sensitivity(3, 3) == pytest.approx(3**0.5)


def test_a_single_band_is_independent_noise():
    workload = Workload(20)
    assert banded(workload, 1).matrix.tolist() == np.eye(20).tolist()
    assert independent(20).over_independent(workload) == 1
    assert independent(20).sensitivity(3, 5) == pytest.approx(3**0.5)
    assert independent(20).sensitivity(30, 8) == pytest.approx(3**0.5)  # there is no room for more


def test_the_workload_is_what_a_server_does_with_noise():
    workload = Workload(7, 0.6, "cosine")
    noise = np.random.default_rng(1).normal(size=7)
    momentum = iterate = 0.0
    for round_index in range(7):
        momentum = 0.6 * momentum + noise[round_index]
        iterate += workload.rates[round_index] * momentum
        assert workload.matrix[round_index] @ noise == pytest.approx(iterate)


def simulated_spread(strategy, workload, runs=20_000):
    """The recurrence of the noise, then the server's: the root mean square of the iterates, to about a hundredth."""
    white = np.random.default_rng(3).normal(size=(workload.rounds, runs))
    noise = np.zeros_like(white)
    momentum = iterate = np.zeros(runs)
    total = 0.0
    for t in range(workload.rounds):
        past = sum(strategy.rows[t, lag] * noise[t - lag] for lag in range(1, min(strategy.bands, t + 1)))
        noise[t] = (white[t] - past) / strategy.rows[t, 0]
        momentum = workload.momentum * momentum + noise[t]
        iterate = iterate + workload.rates[t] * momentum
        total += float(np.square(iterate).mean())
    return (total / workload.rounds) ** 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["banded", "root"])
def test_errors_are_those_of_simulated_noise(kind):
    workload = Workload(40)
    strategy = banded(workload, 8) if kind == "banded" else toeplitz(root_coefficients(8), 40)
    assert spread(strategy, workload) == pytest.approx(simulated_spread(strategy, workload), rel=0.015)
    perturbed = Strategy(strategy.rows * np.where(np.arange(strategy.bands), 0.9, 1.0))
    assert spread(strategy, workload) != pytest.approx(simulated_spread(perturbed, workload), rel=0.03)
    assert strategy.error(workload, 2, 20) == pytest.approx(spread(strategy, workload) * strategy.sensitivity(2, 20))


@pytest.mark.parametrize(("bands", "optimum"), [(4, 0.5067), (8, 0.3652), (34, 0.2052), (64, 0.1765), (250, 0.1619)])
def test_the_same_bands_in_all_columns_are_nearly_optimal(bands, optimum):
    """The optima optimize every column separately; jax_privacy's optimizer reaches no better."""
    ratio = banded(LINEAR, bands).over_independent(LINEAR)
    assert optimum * 0.9995 <= ratio <= 1.015 * optimum


@pytest.mark.slow
def test_many_rounds_with_users_who_return():
    workload = Workload(1500)
    best, base = (strategy.error(workload, 45, 34) for strategy in (banded(workload, 34), independent(1500)))
    assert best / base == pytest.approx(0.179, rel=0.01)


def test_no_step_from_the_optimum_improves_it():
    workload, rng = Workload(30), np.random.default_rng(5)
    best = banded(workload, 6)
    for _ in range(20):
        changed = Strategy(best.rows * (1 + 1e-2 * rng.normal(size=(1, 6))))
        assert spread(unit_columns(changed), workload) >= spread(best, workload) * (1 - 1e-5)


def test_without_momentum_the_root_of_the_workload_is_nearly_optimal():
    """At a constant rate it is the root of the matrix of ones (Fichtenberger et al. 2023)."""
    workload = Workload(64, 0.0, "constant")
    root = toeplitz(root_coefficients(64), 64)
    assert root.matrix @ root.matrix == pytest.approx(workload.matrix)
    best = banded(workload, 64).over_independent(workload)
    assert best < root.over_independent(workload) < 1.05 * best


def test_the_same_bits_every_time():
    workload = Workload(50, 0.8)
    first = banded(workload, 12).rows
    banded.cache_clear()
    assert (banded(workload, 12).rows == first).all()


def test_values_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"momentum = 1\.0"):
        Workload(10, 1.0)
    with pytest.raises(ValueError, match="rounds = 0"):
        Workload(0)
    with pytest.raises(ValueError, match="bands = 0"):
        banded(Workload(10), 0)
