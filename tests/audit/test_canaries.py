"""Canaries among a silo's records, in one run (Steinke, Nasr and Jagielski 2023): no better found than ε allows.

Half of the canaries, by fair coins, are among the records of a silo. Whoever sees all decoded sums guesses of each
whether it was; of r guesses about which a mechanism is (ε, 0)-private, a share of e^ε/(1 + e^ε) is right at most, by
chance more. A δ of 10⁻⁶ changes nothing here.
"""

from math import exp, inf, log

import numpy as np
import pytest
from scipy.stats import beta

from rqm import SeededRandom, private_record_mean
from rqm.encoding.records import Gathered

DIM, CANARIES, ROUNDS = 256, 120, 10
SILOS = {"clients": 3, "delta": 1e-6, "dim": DIM, "rounds": ROUNDS}
SILOS |= {"l2_clip": 64.0, "record_clip": 1.0}
DIRECTIONS = np.linalg.qr(np.random.default_rng(7).normal(size=(DIM, DIM)))[0][:CANARIES]


def epsilon_at_least(right, guesses, sure=0.95):
    """The ε below which so many right guesses are unlikely."""
    share = beta.ppf(1 - sure, right, guesses - right + 1) if right else 0.0
    return log(share / (1 - share)) if 0 < share < 1 else -inf if share == 0 else inf


def clipped_each(mean, records):
    return mean.gather(records)


def clipped_together(mean, records):
    """A mutant: the sum is clipped, and not the records."""
    return Gathered(records.sum(axis=0), len(records))


def attack(mean, gathered=clipped_each, size=20.0, rate=None, seed=0):
    """ε that the canaries of one run show."""
    rng = np.random.default_rng(seed)
    there = rng.random(CANARIES) < 0.5
    scores = np.zeros(CANARIES)
    for turn in range(ROUNDS):
        drawn = there if rate is None else there & (rng.random(CANARIES) < rate)
        sent = mean.simulated(gathered(mean, size * DIRECTIONS[drawn]), SeededRandom(seed, turn, 0), round_index=turn)
        for silo in (1, 2):
            nothing = mean.gather(np.empty((0, DIM)))
            sent = sent + mean.simulated(nothing, SeededRandom(seed, turn, silo), round_index=turn)
        scores += DIRECTIONS @ mean.decode(sent % mean.modulus, 3, round_index=turn)
    order = np.argsort(scores)
    third = CANARIES // 3  # nothing is guessed of those in the middle
    right = int((~there[order[:third]]).sum() + there[order[-third:]].sum())
    return epsilon_at_least(right, 2 * third)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_canaries_among_the_records_are_found_no_better_than_is_stated(rate):
    mean = private_record_mean(epsilon=1.0, sampling_rate=rate, **SILOS)
    shown = [attack(mean, rate=rate, seed=seed) for seed in range(3)]
    assert max(shown) <= mean.guarantee().epsilon <= 1.0


def test_a_clip_of_the_sum_instead_of_the_records_is_found_out():
    mean = private_record_mean(epsilon=1.0, **SILOS)
    shown = [attack(mean, clipped_together, seed=seed) for seed in range(3)]
    assert min(shown) > 1.5 * mean.guarantee().epsilon


@pytest.mark.slow
def test_hardly_any_noise_is_found_out():
    quiet = private_record_mean(epsilon=200.0, **SILOS)
    assert attack(quiet) > 2.0  # of an ε of 1 it would be more than is stated
    assert epsilon_at_least(80, 80) == pytest.approx(log(0.05 ** (1 / 80) / (1 - 0.05 ** (1 / 80))))
    assert exp(epsilon_at_least(0, 80)) == 0
