"""Rebuilt pmfs are those that are sampled, to the last unit; and blocks of sums lose nothing."""

import random
from functools import reduce
from itertools import product

import numpy as np
import pytest

from rqm import PBM, RQM, CorrelatedNoise, DiscreteGaussian, Skellam, StochasticRounding
from rqm.mechanisms.additive import Binomial
from rqm.verify.integer_pmfs import (
    end_pmfs,
    missing_from_sum,
    modular_noise,
    other_sums,
    pmf_of_sum,
    rqm_row,
    transient_noise,
    unbounded_noise,
)
from rqm.verify.verification_report import Unverifiable
from tests.verify.pmfs import modular_sum, noise_sum


@pytest.mark.parametrize("levels", [2, 4, 6, 16, 64])
@pytest.mark.parametrize("keep", [0.05, 0.42, 0.9, None])
def test_rows_of_rqm_are_those_that_are_sampled(levels, keep):
    """For one probability of keeping a level, and for one of each level."""
    draw = random.Random(levels)
    keep = tuple(draw.uniform(0.05, 0.95) for _ in range(levels - 2)) or 0.5 if keep is None else keep
    mechanism = RQM(levels=levels, margin=2.0 * levels, keep=keep)
    for level in (levels // 2 - 1, levels // 2):
        assert (rqm_row(mechanism.to_dict(), level) * 2**40).tolist() == mechanism.table[level].tolist()


@pytest.mark.parametrize(
    "mechanism",
    [
        StochasticRounding(levels=2, margin=3.0),
        StochasticRounding(levels=4, margin=3.0),
        RQM(levels=8, margin=9.0, keep=0.3),
        PBM(levels=5),
    ],
    ids=repr,
)
def test_pmfs_at_the_ends_are_those_that_are_sampled(mechanism):
    *ends, trials = end_pmfs(mechanism.to_dict())
    for x, end in zip((-mechanism.clip, mechanism.clip), ends, strict=True):
        sampled = np.array(mechanism.sampled_pmf(x), dtype=float)
        message = reduce(np.convolve, [end] * trials)
        assert message == pytest.approx(sampled[sampled > 0], rel=1e-7)  # an encoder rounds inputs


@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(levels=3, margin=9.0), StochasticRounding(levels=4, margin=1.0), RQM()], ids=repr
)
def test_levels_inside_the_clip_are_refused(mechanism):
    with pytest.raises(Unverifiable, match="a level lies inside the clip"):
        end_pmfs(mechanism.to_dict())


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam, Binomial])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_additive_noise_is_that_which_is_sampled(kind, clients):
    mechanism = kind(scale=1.3, steps=5, bits=6)
    pmf, sampled = modular_noise(mechanism.to_dict(), clients), noise_sum(mechanism, clients)
    shifts = [np.roll(sampled, k) for k in range(len(pmf))]
    assert min(abs(pmf / shifted - 1).max() for shifted in shifts) < 1e-9
    straight, missing = unbounded_noise(mechanism.to_dict(), clients)
    assert abs(straight.sum() - 1) < 1e-9 + missing


@pytest.mark.parametrize("std", [0.5, 3.3, 40.0])
def test_transient_noise_is_that_which_is_sampled(std):
    units = CorrelatedNoise(std).transient.units
    pmf, missing = transient_noise(std, 1)
    assert (pmf * 2**40).tolist() == units.tolist()
    assert missing < 1e-100
    three = reduce(np.convolve, [units / 2**40] * 3)
    assert transient_noise(std, 3)[0] == pytest.approx(three[: len(three)], rel=1e-9)


def test_a_long_sum_lacks_no_more_than_is_stated():
    pmf, tail = np.full(11, 1 / 11), 1e-12
    total = pmf_of_sum(pmf, 2000, tail)
    assert len(total) < 2000 * 10 + 1  # its tails were cut off
    assert 0 < 1 - total.sum() + 1e-10 < missing_from_sum(2000, tail) + 1e-9
    assert pmf_of_sum(pmf, 0).tolist() == [1.0]


@pytest.mark.parametrize("others", [0, 1, 3, 7, 60])
def test_every_sum_of_others_is_a_block_and_independent_noise(others):
    """For each number of others at the upper end: the sum is that of a block and of the remaining clients."""
    low, high = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])
    blocks = list(other_sums(low, high, others))
    assert len(blocks) <= others + 1
    for upper in range(others + 1):
        total = np.convolve(pmf_of_sum(high, upper), pmf_of_sum(low, others - upper))
        assert any(
            np.allclose(np.convolve(block, np.convolve(pmf_of_sum(high, a), pmf_of_sum(low, b))), total, atol=1e-13)
            for block in blocks
            if (missing := others - (len(block) - 1) // 2) <= others // 4 + 1
            for a in range(missing + 1)
            if (b := missing - a) >= 0
        )


def test_sums_modulo_are_of_the_right_numbers():
    pmf = np.array([0.5, 0.25, 0.25, 0.0])
    exact = np.zeros(4)
    for outcomes in product(range(4), repeat=3):
        exact[sum(outcomes) % 4] += np.prod(pmf[list(outcomes)])
    assert modular_sum(pmf, 3) == pytest.approx(exact)
