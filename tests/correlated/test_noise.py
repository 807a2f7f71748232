"""Correlated noise: a symmetric table of integers, sampled as stated, whose sums have known pmfs."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rqm import CorrelatedNoise, SecureRandom, SeededRandom
from rqm.correlated.scheme import NoiseState
from rqm.kernels.integer_sampler import TABLE_BITS
from tests.goodness import p_value


@given(st.floats(0.5, 2048.0))
def test_its_table_is_a_symmetric_pmf_of_the_stated_deviation(deviation):
    noise = CorrelatedNoise(deviation)
    units = noise.transient.units
    assert int(units.sum()) == 2**TABLE_BITS
    assert (units > 0).all()
    assert (units == units[::-1]).all()
    assert noise.added_variance**0.5 == pytest.approx(deviation, rel=0.01 if deviation > 0.7 else 0.1)


def test_variances_of_both_messages():
    noise = CorrelatedNoise(6.0, 1.5, 8)
    transient, residual = CorrelatedNoise(6.0).added_variance, CorrelatedNoise(1.5).added_variance
    assert noise.added_variance == pytest.approx(transient + 64 * residual)
    assert noise.canceled_variance == pytest.approx(transient + 49 * residual)


@pytest.mark.parametrize("value", [0.49, 2049.0, float("nan"), "3", True])
def test_deviations_without_a_table_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="noise"):
        _ = CorrelatedNoise(value).transient
    with pytest.raises((ValueError, TypeError), match="noise"):
        _ = CorrelatedNoise(8.0, value, 2).residual


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.0,), "noise.transient_std"),
        ((8.0, -1.0, 2), "noise.residual_std"),
        ((8.0, 1.0), "noise.gain = 1"),
        ((8.0, 1.0, 2.5), "noise.gain"),
        ((8.0, 1.0, 1025), "noise.gain"),
        ((8.0, 0.0, 2), "noise.gain = 2: must be 1 without residual noise"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        CorrelatedNoise(*values)


@pytest.mark.parametrize("value", [{"transient_std": 30, "residual_std": 2, "gain": 5}, CorrelatedNoise(30, 2, 5)])
def test_it_is_built_from_a_table(value):
    noise = CorrelatedNoise.of(value)
    assert noise == CorrelatedNoise(30.0, 2.0, 5)
    assert CorrelatedNoise.of(noise.to_dict()) == noise


@pytest.mark.parametrize(
    "value", [True, "nonsense", (30.0, 2.0, 5), {"transient_std": 3.0, "goes": 1}, {"gain": 1}, {"scheme": "none"}]
)
def test_other_tables_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="noise"):
        CorrelatedNoise.of(value)


def test_the_pmf_of_a_sum_is_that_of_its_integers():
    noise = CorrelatedNoise(0.8).transient
    exact, units = [Fraction(1)], [Fraction(int(unit), 2**TABLE_BITS) for unit in noise.units]
    for _ in range(3):
        exact = [
            sum(exact[i - j] * unit for j, unit in enumerate(units) if 0 <= i - j < len(exact))
            for i in range(len(exact) + len(units) - 1)
        ]
    pmf, missing = noise.summed(3)
    middle = len(exact) // 2
    assert missing < 1e-20
    for outcome, probability in enumerate(pmf, start=-(len(pmf) // 2)):
        assert probability == pytest.approx(float(exact[middle + outcome]), rel=1e-10)


def fit(noise, values):
    """The p-value of integers as outcomes of F."""
    counts = np.bincount(values + noise.largest, minlength=len(noise.units))
    return p_value(counts, noise.units / 2.0**TABLE_BITS)


def drawn(noise, count, from_secret):
    return noise.begin(bytes(range(32)), count) if from_secret else noise.sample(count, SeededRandom(5))


@pytest.mark.parametrize("from_secret", [False, True])
def test_transient_noise_follows_the_table(from_secret):
    noise = CorrelatedNoise(3.0)
    state = drawn(noise, 400_000, from_secret)
    assert (state.added == state.canceled).all()
    assert fit(noise.transient, state.added) > 1e-6
    assert fit(CorrelatedNoise(3.03).transient, state.added) < 1e-6  # so a slightly different pmf would be noticed


@pytest.mark.parametrize("from_secret", [False, True])
def test_residual_noise_is_what_remains_of_both_messages(from_secret):
    noise = CorrelatedNoise(20.0, 2.0, 8)
    state = drawn(noise, 100_000, from_secret)
    residual = state.added - state.canceled
    assert fit(noise.residual, residual) > 1e-6
    assert fit(noise.transient, state.added - 8 * residual) > 1e-6
    assert abs(np.corrcoef(residual, state.added - 8 * residual)[0, 1]) < 0.02


@pytest.mark.parametrize("noise", [CorrelatedNoise(3.0), CorrelatedNoise(20.0, 2.0, 8)])
def test_the_noise_of_a_sum_has_the_variance_of_its_clients(noise):
    zeros = torch.zeros(50_000, dtype=torch.int32)
    state = noise.sample_sum(7, zeros, SeededRandom(5))
    assert state.added.dtype == zeros.dtype
    assert not zeros.any()
    for values, variance in ((state.added, noise.added_variance), (state.canceled, noise.canceled_variance)):
        assert values.double().var().item() == pytest.approx(7 * variance, rel=0.03)
        assert abs(values.double().mean().item()) < 5 * (7 * variance / len(zeros)) ** 0.5


def test_secure_noise_never_repeats_and_that_of_a_secret_does():
    noise = CorrelatedNoise(25.0, 2.0, 5)
    first, second = (noise.sample(1000, SecureRandom()) for _ in range(2))
    assert (first.added != second.added).any()
    first, second, third = (noise.begin(secret, 1000) for secret in (bytes(32), bytes(32), bytes(range(32))))
    assert (first.added == second.added).all()
    assert (first.canceled == second.canceled).all()
    assert (first.added != third.added).any()


@pytest.mark.parametrize("noise", [CorrelatedNoise(20.0), CorrelatedNoise(20.0, 2.0, 8)])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_settling_and_recovering_cancel_what_begin_added(noise, kind):
    """All of it, but for residual noise. Recovery needs only the secrets of clients that dropped out."""
    secrets, modulus = [bytes([index]) * 32 for index in range(3)], 2**16
    messages = [kind(np.random.default_rng(index).integers(0, modulus, 200)) for index in range(3)]
    states = [noise.begin(secret, 200) for secret in secrets]
    noisy = sum(noise.add(message, state, modulus) for message, state in zip(messages, states, strict=True)) % modulus
    settled = (np.asarray(noisy) + noise.settle(states[0], modulus)) % modulus
    recovered = noise.recover(settled, secrets[1:], modulus)
    residual = sum(state.added - state.canceled for state in states)
    assert residual.any() == bool(noise.residual_std)
    assert (recovered == (np.asarray(sum(messages)) + residual) % modulus).all()
    assert (recovered != np.asarray(noisy)).any()


@pytest.mark.parametrize("state", [None, np.zeros(64, dtype=np.int64), 3])
def test_only_a_noise_state_is_added_and_settled(state):
    noise = CorrelatedNoise(8.0)
    for use in (lambda: noise.add(np.zeros(64, dtype=np.int64), state, 2**12), lambda: noise.settle(state, 2**12)):
        with pytest.raises(TypeError, match=r"noise_state = [^:]*: must be what begin_noise\(\) returned"):
            use()


def test_noise_of_another_length_or_zero_everywhere_is_refused():
    noise, zeros = CorrelatedNoise(8.0), np.zeros(200, dtype=np.int64)
    with pytest.raises(ValueError, match="noise_state: has 63 coordinates: must have 200"):
        noise.add(zeros, noise.sample(63, SecureRandom()), 2**12)
    for use in (lambda state: noise.add(zeros, state, 2**12), lambda state: noise.settle(state, 2**12)):
        with pytest.raises(ValueError, match="zero everywhere"):
            use(NoiseState(zeros, zeros))
    assert not noise.settle(NoiseState(zeros[:1], zeros[:1]), 2**12).any()  # a single zero is not rare
