"""Correlated noise: sensitivities by brute force, errors by simulation, optima by what others found."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.privacy.factorization import (
    Strategy,
    Workload,
    banded,
    banded_columns,
    buffered,
    independent,
    inverse_root,
    same_bands,
    unit_columns,
)

ONCE = Workload(250)
"""Momentum .9, a rate that falls linearly to zero."""


def patterns(rounds, times, separation):
    """Every choice of rounds that a user may take part in."""
    for count in range(1, times + 1):
        for chosen in combinations(range(rounds), count):
            if all(b - a >= separation for a, b in pairwise(chosen)):
                yield chosen


def worst(matrix, times, separation):
    """The sensitivity by brute force over patterns, and over the signs of one coordinate."""
    return max(
        np.linalg.norm(matrix[:, chosen] @ np.array(signs))
        for chosen in patterns(len(matrix), times, separation)
        for signs in product((1, -1), repeat=len(chosen))
    )


def random_strategy(seed, rounds, bands):
    rows = np.random.default_rng(seed).normal(size=(rounds, bands))
    rows[:, 0] = 1 + np.abs(rows[:, 0])
    return Strategy(np.where(np.arange(bands) <= np.arange(rounds)[:, None], rows, 0.0))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_without_overlap_the_sensitivity_is_exact(seed, bands, times, more):
    made = random_strategy(seed, 8, bands)
    assert made.sensitivity(times, bands + more) == pytest.approx(worst(made.matrix, times, bands + more))


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 4), st.integers(1, 3))
def test_with_overlap_it_is_a_bound(seed, bands, times, separation):
    made = random_strategy(seed, 8, bands)
    rng = np.random.default_rng(seed)
    found = made.sensitivity(times, separation)
    assert found >= worst(made.matrix, times, separation) * (1 - 1e-12)
    for chosen in patterns(8, times, separation):  # vectors, which may point anywhere
        vectors = rng.normal(size=(len(chosen), 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(made.matrix[:, chosen] @ vectors) <= found * (1 + 1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 5))
def test_falling_bands_are_worst_at_once_and_as_often_as_possible(steps, times, separation):
    bands = np.cumprod(np.array([1.0, *steps]))
    made = same_bands(bands, 9)
    assert made.sensitivity(times, separation) == pytest.approx(worst(made.matrix, times, separation))


@pytest.mark.parametrize("rounds", [9, 12])
def test_strategies_have_the_sensitivity_that_is_stated(rounds):
    work = Workload(rounds, 0.5)
    for times, separation in ((1, 1), (2, 4), (3, 3)):
        for made in (
            banded(work, 3),
            banded_columns(work, 3),
            inverse_root(work, 3),
            buffered(work, times, separation),
        ):
            if made.bands == 3 and separation < 3:
                continue
            assert made.sensitivity(times, separation) == pytest.approx(worst(made.matrix, times, separation))
    assert np.linalg.norm(banded(work, 3).matrix, axis=0) == pytest.approx(1)
    assert banded(work, 3).sensitivity(3, 3) == pytest.approx(3**0.5)


def test_one_band_is_independent_noise():
    work = Workload(20)
    assert banded(work, 1).matrix.tolist() == np.eye(20).tolist()
    assert independent(20).over_independent(work, 3, 5) == 1
    assert independent(20).sensitivity(3, 5) == pytest.approx(3**0.5)
    assert independent(20).sensitivity(30, 8) == pytest.approx(3**0.5)  # no more fit


def test_the_workload_is_what_a_server_does_with_noise():
    work = Workload(7, 0.6, "cosine")
    noise = np.random.default_rng(1).normal(size=7)
    moment = place = 0.0
    for turn in range(7):
        moment = 0.6 * moment + noise[turn]
        place += work.rates[turn] * moment
        assert work.matrix[turn] @ noise == pytest.approx(place)


def simulated(made, work, runs=20_000):
    """The recurrence of the noise, then the server's: the root mean square of the iterates, to about a hundredth."""
    white = np.random.default_rng(3).normal(size=(work.rounds, runs))
    noise = np.zeros_like(white)
    moment = place = np.zeros(runs)
    total = 0.0
    for turn in range(work.rounds):
        past = sum(made.rows[turn, lag] * noise[turn - lag] for lag in range(1, min(made.bands, turn + 1)))
        noise[turn] = (white[turn] - past) / made.rows[turn, 0]
        moment = work.momentum * moment + noise[turn]
        place = place + work.rates[turn] * moment
        total += float(np.square(place).mean())
    return (total / work.rounds) ** 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["banded", "buffered", "inverse root"])
def test_errors_are_those_of_simulated_noise(kind):
    work = Workload(40)
    made = {
        "banded": banded(work, 8),
        "buffered": buffered(work, 4, 10),
        "inverse root": inverse_root(work, 8),
    }[kind]
    assert made.spread(work) == pytest.approx(simulated(made, work), rel=0.015)
    other = Strategy(made.rows * np.where(np.arange(made.bands), 0.9, 1.0))
    assert made.spread(work) != pytest.approx(simulated(other, work), rel=0.03)
    assert made.error(work, 2, 20) == pytest.approx(made.spread(work) * made.sensitivity(2, 20))


@pytest.mark.parametrize(("bands", "found"), [(4, 0.5067), (8, 0.3652), (34, 0.2052), (64, 0.1765), (250, 0.1619)])
def test_bands_that_are_alike_are_nearly_as_good_as_any(bands, found):
    """``found``: every column its own, by ``banded_columns``; jax_privacy's optimiser finds no better."""
    over = banded(ONCE, bands).over_independent(ONCE)
    assert found * 0.9995 <= over <= 1.015 * found


@pytest.mark.slow
def test_many_rounds_with_users_who_come_back():
    work = Workload(1500)
    best = banded(work, 34).over_independent(work, 45, 34)
    assert best == pytest.approx(0.179, rel=0.01)
    assert best < buffered(work, 45, 34, 2).over_independent(work, 45, 34) < 1.06 * best


def test_columns_of_their_own_gain_a_little():
    work = Workload(60)
    alike, own = (make(work, 20).over_independent(work) for make in (banded, banded_columns))
    assert 0.97 * alike < own < alike


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "found"), [(8, 0.3652), (34, 0.2052), (250, 0.162)])
def test_the_best_of_all_is_what_others_found(bands, found):
    assert banded_columns(ONCE, bands).over_independent(ONCE) == pytest.approx(found, rel=0.005)


def test_slopes_are_those_of_the_loss():
    """A step in any direction from the optimum makes it worse."""
    work, rng = Workload(30), np.random.default_rng(5)
    for make in (banded, banded_columns):
        best = make(work, 6)
        for _ in range(20):
            moved = best.rows * (1 + 1e-2 * rng.normal(size=best.rows.shape if make is banded_columns else (1, 6)))
            assert unit_columns(Strategy(moved)).spread(work) >= best.spread(work) * (1 - 1e-5)


def test_the_closed_form_is_the_root_of_the_workload():
    """Without momentum, the rate constant, C is the root of the matrix of ones, and hard to beat."""
    work = Workload(64, 0.0, "constant")
    root = inverse_root(work, 64)
    assert root.matrix @ root.matrix == pytest.approx(work.matrix)
    assert root.rows[-1][:4] == pytest.approx([1, 1 / 2, 3 / 8, 5 / 16])
    best = banded(work, 64).over_independent(work)
    assert best < root.over_independent(work) < 1.05 * best
    work = Workload(64, 0.7, "constant")
    assert inverse_root(work, 64).matrix @ inverse_root(work, 64).matrix == pytest.approx(work.matrix)


def test_few_bands_of_the_inverse_do_well_too():
    over = inverse_root(ONCE, 64).over_independent(ONCE)
    assert banded(ONCE, 250).over_independent(ONCE) < over < 1.02 * banded(ONCE, 250).over_independent(ONCE)


def test_the_same_bits_every_time():
    work = Workload(50, 0.8)
    first = banded(work, 12).rows
    banded.cache_clear()
    assert (banded(work, 12).rows == first).all()


def test_values_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"momentum = 1\.0"):
        Workload(10, 1.0)
    with pytest.raises(ValueError, match="rounds = 0"):
        Workload(0)
    with pytest.raises(ValueError, match="bands = 0"):
        banded(Workload(10), 0)
