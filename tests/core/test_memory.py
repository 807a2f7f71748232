"""Correlated noise of a trusted server: its recurrence, and the same noise after an interruption."""

import numpy as np
import pytest
import torch
from scipy.linalg import solve_triangular

from rqm import private_mean
from rqm.core.server_noise import Banded, white
from rqm.correlated.factorization import Workload, banded
from rqm.mechanisms.banded import BandedGaussian

ROUNDS, DIM = 12, 5
STRATEGY = banded(Workload(ROUNDS), 4)
LIKE = torch.zeros(DIM, dtype=torch.float64)


def seeds(round_index):
    return 1000 + round_index


def noise_of_rounds(rounds):
    memory = Banded(STRATEGY, seeds)
    return {round_index: memory.noise(round_index, LIKE).clone() for round_index in rounds}


def test_it_is_the_inverse_of_the_strategy_on_white_noise():
    z = np.stack([white(LIKE, seeds(round_index)).numpy() for round_index in range(ROUNDS)])
    expected = solve_triangular(STRATEGY.matrix, z, lower=True)
    noise = noise_of_rounds(range(ROUNDS))
    assert np.stack([noise[round_index].numpy() for round_index in range(ROUNDS)]) == pytest.approx(expected)


@pytest.mark.parametrize("rounds", [[11], [3, 4, 11], [0, 5, 2, 5, 5, 1, 11], [11, 10, 11]])
def test_later_and_earlier_rounds_have_the_same_bits(rounds):
    expected, noise = noise_of_rounds(range(ROUNDS)), noise_of_rounds(rounds)
    assert all((noise[round_index] == expected[round_index]).all() for round_index in rounds)


def test_a_single_band_is_independent_noise():
    memory = Banded(banded(Workload(ROUNDS), 1), seeds)
    assert (memory.noise(7, LIKE) == white(LIKE, seeds(7))).all()


def test_it_stores_no_more_than_the_bands():
    memory = Banded(STRATEGY, seeds)
    memory.noise(11, LIKE)
    assert len(memory.past) == 3


def test_a_sum_is_revealed_with_it():
    mech = BandedGaussian(noise_multiplier=3.0, bands=4)
    mean = private_mean(
        mechanism=mech, dim=DIM, clients=2, rounds=ROUNDS, max_participations=1, l2_clip=2.0, rotate=False
    )
    total = torch.arange(DIM, dtype=torch.float64)
    memory = mean.memory(seeds)
    for round_index, noise in noise_of_rounds(range(ROUNDS)).items():
        revealed = mean.revealed(total.clone(), 2, 0, memory, round_index=round_index)
        assert (revealed == total + 6.0 * noise).all()
    with pytest.raises(ValueError, match="memory = None"):
        mean.revealed(total.clone(), 2, 0)
