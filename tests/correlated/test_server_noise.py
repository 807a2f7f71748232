"""The noise of a trusted server: its recurrence, what it cancels, and the same bits after an interruption."""

import numpy as np
import pytest
import torch
from scipy.linalg import solve_triangular

from rqm import CorrelatedNoise, Gaussian, Noiseless, StochasticRounding, private_mean
from rqm.correlated.factorization import Workload, banded
from rqm.correlated.server_noise import BandedNoise, IndependentNoise, server_noise
from rqm.mechanisms.banded import BandedGaussian

ROUNDS, DIM = 12, 5
STRATEGY = banded(Workload(ROUNDS), 4)
ZEROS = torch.zeros(DIM, dtype=torch.float64)


def seeds(round_index):
    return 1000 * (round_index + 1)


def banded_noise(rounds):
    noise = BandedNoise(STRATEGY, seeds)
    return {round_index: noise.sample(round_index, ZEROS).clone() for round_index in rounds}


def test_banded_noise_is_the_inverse_of_the_strategy_on_independent_noise():
    independent = IndependentNoise(seeds)
    z = np.stack([independent.sample(round_index, ZEROS).numpy() for round_index in range(ROUNDS)])
    noise = np.stack([row.numpy() for row in banded_noise(range(ROUNDS)).values()])
    assert noise == pytest.approx(solve_triangular(STRATEGY.matrix, z, lower=True))


@pytest.mark.parametrize("rounds", [[11], [3, 4, 11], [0, 5, 2, 5, 5, 1, 11], [11, 10, 11]])
def test_skipped_and_repeated_rounds_have_the_same_bits(rounds):
    expected, noise = banded_noise(range(ROUNDS)), banded_noise(rounds)
    assert all((noise[round_index] == expected[round_index]).all() for round_index in rounds)


def test_a_single_band_is_independent_noise():
    noise = BandedNoise(banded(Workload(ROUNDS), 1), seeds)
    assert (noise.sample(7, ZEROS) == IndependentNoise(seeds).sample(7, ZEROS)).all()


def test_banded_noise_stores_no_more_rows_than_bands():
    noise = BandedNoise(STRATEGY, seeds)
    noise.sample(11, ZEROS)
    assert len(noise.past) == 3


@pytest.mark.parametrize(("residual_std", "gain"), [(0.0, 1), (2.0, 5)])
def test_transient_noise_is_canceled_one_round_later(residual_std, gain):
    noise = server_noise(Gaussian(2.0), CorrelatedNoise(30.0, residual_std, gain), 5, seeds)
    zeros = torch.zeros(200_000, dtype=torch.float64)
    rows = [noise.sample(round_index, zeros) for round_index in range(5)]
    transient, residual = 15**2, (residual_std / 2) ** 2  # in units of the mechanism's noise
    added, canceled = (transient + factor**2 * residual for factor in (gain, gain - 1))
    assert rows[2].std().item() == pytest.approx((1 + added + canceled) ** 0.5, rel=0.02)
    assert sum(rows).std().item() == pytest.approx((5 + 4 * residual + added) ** 0.5, rel=0.02)


def test_a_revealed_sum_has_the_noise_of_its_round():
    mean = private_mean(
        mechanism=BandedGaussian(noise_multiplier=3.0, bands=4),
        dim=DIM,
        clients=2,
        rounds=ROUNDS,
        max_participations=1,
        l2_clip=2.0,
        rotate=False,
    )
    total, noise = torch.arange(DIM, dtype=torch.float64), mean.server_noise(seeds)
    for round_index, row in banded_noise(range(ROUNDS)).items():
        revealed = mean.reveal(total.clone(), 2, noise, round_index=round_index)
        assert (revealed == total + 6.0 * row).all()


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), BandedGaussian(noise_multiplier=1.0, bands=1)])
def test_a_sum_without_the_noise_of_its_mechanism_is_not_revealed(mechanism):
    mean = private_mean(mechanism=mechanism, dim=DIM, clients=2, rounds=3, rotate=False)
    with pytest.raises(ValueError, match=r"noise = None: must be what server_noise\(\) returned"):
        mean.reveal(ZEROS.clone(), 2, None, round_index=0)


def test_a_server_adds_nothing_to_integers_or_without_noise():
    integers = private_mean(mechanism=StochasticRounding(levels=2), dim=4, clients=3)
    assert integers.server_noise(seeds) is None
    total = torch.tensor([5, 1, 0, 3], dtype=torch.int32)
    assert integers.reveal(total, 3, None, round_index=0).tolist() == [1, 1, 0, 3]  # modulo 4
    for l2_clip in (None, 1.0):
        noiseless = private_mean(mechanism=Noiseless(), dim=4, clients=3, l2_clip=l2_clip)
        assert noiseless.reveal(ZEROS + 1, 3, noiseless.server_noise(seeds), round_index=0).tolist() == [1.0] * DIM
