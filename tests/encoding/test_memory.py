"""A trusted server's noise that is correlated: the recurrence, and that it is the same after an interruption."""

import numpy as np
import pytest
import torch
from scipy.linalg import solve_triangular

from rqm import PrivateMean
from rqm.encoding.memory import Banded, white
from rqm.mechanisms.banded import BandedGaussian
from rqm.privacy.factorization import Workload, banded

ROUNDS, DIM = 12, 5
STRATEGY = banded(Workload(ROUNDS), 4)
LIKE = torch.zeros(DIM, dtype=torch.float64)


def seeds(turn):
    return 1000 + turn


def noises(turns):
    memory = Banded(STRATEGY, seeds)
    return {turn: memory.noise(turn, LIKE).clone() for turn in turns}


def test_it_is_the_inverse_of_the_strategy_on_white_noise():
    z = np.stack([white(LIKE, seeds(turn)).numpy() for turn in range(ROUNDS)])
    expected = solve_triangular(STRATEGY.matrix, z, lower=True)
    found = noises(range(ROUNDS))
    assert np.stack([found[turn].numpy() for turn in range(ROUNDS)]) == pytest.approx(expected)


@pytest.mark.parametrize("turns", [[11], [3, 4, 11], [0, 5, 2, 5, 5, 1, 11], [11, 10, 11]])
def test_whoever_comes_late_or_goes_back_finds_the_same_bits(turns):
    whole, found = noises(range(ROUNDS)), noises(turns)
    assert all((found[turn] == whole[turn]).all() for turn in turns)


def test_one_band_is_fresh_noise():
    memory = Banded(banded(Workload(ROUNDS), 1), seeds)
    assert (memory.noise(7, LIKE) == white(LIKE, seeds(7))).all()


def test_it_holds_no_more_than_the_bands():
    memory = Banded(STRATEGY, seeds)
    memory.noise(11, LIKE)
    assert len(memory.past) == 3


def test_a_sum_is_revealed_with_it():
    mech = BandedGaussian(noise_multiplier=3.0, bands=4)
    mean = PrivateMean(mechanism=mech, dim=DIM, clients=2, rounds=ROUNDS, participations=1, l2_clip=2.0, rotate=False)
    total = torch.arange(DIM, dtype=torch.float64)
    memory = mean.memory(seeds)
    for turn, noise in noises(range(ROUNDS)).items():
        found = mean.revealed(total.clone(), 2, 0, memory, round=turn)
        assert (found == total + 6.0 * noise).all()
    with pytest.raises(ValueError, match="memory = None"):
        mean.revealed(total.clone(), 2, 0)
