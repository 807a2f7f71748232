"""Noise in a server's iterates, predicted and simulated."""

import tracemalloc

import numpy as np
import pytest

from rqm import CorrelatedNoise
from rqm.correlated.factorization import Workload
from rqm.correlated.iterates import iterate_noise


def iterates_rms(workload, noise):
    """The root mean square of the noise in the models of a server that steps along this noise, a row a round."""
    model, momentum, squares = np.zeros(noise.shape[1]), np.zeros(noise.shape[1]), []
    for round_index in range(workload.rounds):
        momentum = workload.momentum * momentum + noise[round_index]
        model = model + workload.rates[round_index] * momentum
        squares.append((model**2).mean())
    return float(np.sqrt(np.mean(squares)))


def draw_sums(rng, noise, clients, shape):
    """Sums of the transient noise of some clients."""
    pmf = noise.summed(clients)[0]
    return rng.choice(np.arange(len(pmf)) - len(pmf) // 2, p=pmf, size=shape).astype(float)


def delayed(noise):
    """The noise of the previous round, in each round."""
    return np.vstack([np.zeros(noise.shape[1]), noise[:-1]])


@pytest.mark.parametrize("workload", [Workload(60), Workload(40, 0.0, "constant"), Workload(50, 0.5, "cosine")])
def test_predicted_and_simulated_noise_agree(workload):
    rng, clients, shape = np.random.default_rng(3), 30, (workload.rounds, 20_000)
    distribution, rounding_std = CorrelatedNoise(6.0).transient, 0.5
    transient = draw_sums(rng, distribution, clients, shape)
    rounding = rng.binomial(clients, 0.5, size=shape) - clients / 2
    stds = rounding_std * clients**0.5, (clients * distribution.variance) ** 0.5
    predicted = iterate_noise(workload).rms(*stds)
    assert iterates_rms(workload, rounding + transient - delayed(transient)) == pytest.approx(predicted, rel=0.02)
    never_canceled = rounding + transient
    assert iterates_rms(workload, never_canceled) > 1.5 * predicted


@pytest.mark.parametrize("workload", [Workload(60), Workload(40, 0.0, "constant")])
def test_predicted_and_simulated_noise_agree_with_residual_noise(workload):
    rng, clients, shape = np.random.default_rng(4), 30, (workload.rounds, 20_000)
    distribution = CorrelatedNoise(6.0, 1.0, 8)
    transient = draw_sums(rng, distribution.transient, clients, shape)
    residual = draw_sums(rng, distribution.residual, clients, shape)
    rounding = rng.binomial(clients, 0.5, size=shape) - clients / 2
    noise = rounding + transient + 8 * residual - delayed(transient + 7 * residual)
    stds = 0.5, CorrelatedNoise(6.0).added_variance ** 0.5, distribution.residual.variance**0.5
    predicted = iterate_noise(workload).rms(*(std * clients**0.5 for std in stds), 8)
    assert iterates_rms(workload, noise) == pytest.approx(predicted, rel=0.02)


def test_the_best_ratio_has_the_least_noise():
    noise = iterate_noise(Workload(250))
    best = noise.best_ratio(250)
    assert best == pytest.approx(50.7, rel=0.01)
    assert noise.over_independent(250, 1.0, best) == pytest.approx(0.1966, rel=0.01)
    for factor in (0.8, 1.25):
        assert noise.over_independent(250, 1.0, factor * best) > noise.over_independent(250, 1.0, best)
    assert iterate_noise(Workload(1500)).over_independent(34, 1.0, 51.4) == pytest.approx(0.194, rel=0.01)


def test_many_rounds_take_little_memory():
    tracemalloc.start()
    noise = iterate_noise(Workload(5000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert noise.transient < noise.residual
    assert peak < 2**21  # the matrix alone would take 200 MB
