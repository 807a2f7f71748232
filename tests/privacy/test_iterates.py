"""Noise in a server's iterates, predicted and simulated."""

import tracemalloc

import numpy as np
import pytest

from rqm.mechanisms.transient import Transient
from rqm.privacy.factorization import Workload
from rqm.privacy.iterates import gain


def iterates(workload, noise):
    """The root mean square of the noise in the models of a server that steps along this noise, a row a round."""
    model, momentum, squares = np.zeros(noise.shape[1]), np.zeros(noise.shape[1]), []
    for turn in range(workload.rounds):
        momentum = workload.momentum * momentum + noise[turn]
        model = model + workload.rates[turn] * momentum
        squares.append((model**2).mean())
    return float(np.sqrt(np.mean(squares)))


@pytest.mark.parametrize("workload", [Workload(60), Workload(40, 0.0, "constant"), Workload(50, 0.5, "cosine")])
def test_predicted_and_simulated_noise_agree(workload):
    rng, clients, width = np.random.default_rng(3), 30, 20_000
    held, half = Transient(6.0), 0.5
    law = held.summed(clients)[0]
    places = np.arange(len(law)) - len(law) // 2
    taken = rng.choice(places, p=law, size=(workload.rounds, width)).astype(float)
    coins = rng.binomial(clients, 0.5, size=taken.shape) - clients / 2
    noise = coins + taken - np.vstack([np.zeros(width), taken[:-1]])
    predicted = gain(workload).noise(half * clients**0.5, (clients * held.variance) ** 0.5)
    assert iterates(workload, noise) == pytest.approx(predicted, rel=0.02)
    kept = coins + taken  # if it were never taken back
    assert iterates(workload, kept) > 1.5 * predicted


def test_the_best_ratio_has_the_least_noise():
    found = gain(Workload(250))
    best = found.best_ratio(250)
    assert best == pytest.approx(50.7, rel=0.01)
    assert found.over_independent(250, 1.0, best) == pytest.approx(0.1966, rel=0.01)
    for other in (0.8, 1.25):
        assert found.over_independent(250, 1.0, other * best) > found.over_independent(250, 1.0, best)
    assert gain(Workload(1500)).over_independent(34, 1.0, 51.4) == pytest.approx(0.194, rel=0.01)


def test_many_rounds_take_little_memory():
    tracemalloc.start()
    found = gain(Workload(5000))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.goes < found.stays
    assert most < 2**21  # the matrix alone would take 200 MB
