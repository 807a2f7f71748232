"""Canaries among a silo's records, in one run: no better detected than ε allows, and mistakes are noticed.

Half of the canaries, by fair coins, are among the records of a silo. The attacker sees all decoded sums and guesses
of each canary whether it is. First without training, then in a training run.
"""

from math import log

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Plan, SeededRandom, private_record_mean
from rqm.audit.measurement import event_bounds
from rqm.core.record_mean import RecordSum
from rqm.data.federated_data import Clients, FederatedData
from rqm.simulation.loop import Observer, RunState
from rqm.simulation.record_gradients import RecordGradients, record_hashes

CANARIES, DIM, ROUNDS, DELTA = 120, 256, 10, 1e-6
RECORDS = {"clients": 3, "delta": DELTA, "l2_clip": 64.0, "record_clip": 1.0}
DIRECTIONS = np.linalg.qr(np.random.default_rng(7).normal(size=(DIM, DIM)))[0][:CANARIES]


def flip_coins(seed):
    return np.random.default_rng(seed).random(CANARIES) < 0.5


def measured_epsilon(scores, is_present):
    """Under ε a fraction of at most e^ε/(1 + e^ε) of the guesses is right, but for chance. δ changes nothing here."""
    order, third = np.argsort(scores), CANARIES // 3  # nothing is guessed of those in the middle
    right = int((~is_present[order[:third]]).sum() + is_present[order[-third:]].sum())
    fraction, _ = event_bounds(right, 0, 2 * third, 0.05)
    return log(fraction / (1 - fraction))


def clip_sum(mean, records):
    """A mistake: the sum is clipped, and not the records."""
    return RecordSum(records.sum(axis=0), len(records))


def attack(mean, gather=lambda mean, records: mean.sum_records(records), rate=None, seed=0):
    """The ε that the canaries of one run show."""
    rng, is_present = np.random.default_rng([seed, 1]), flip_coins(seed)
    scores = np.zeros(CANARIES)
    for round_index in range(ROUNDS):
        drawn = is_present & (rng.random(CANARIES) < (rate or 1.0))
        gathered = [gather(mean, 20.0 * DIRECTIONS[drawn]), *[mean.sum_records(np.empty((0, DIM)))] * 2]
        total = sum(
            mean.encode_simulated(records, SeededRandom(seed, round_index, silo), round_index=round_index)
            for silo, records in enumerate(gathered)
        )
        scores += DIRECTIONS @ mean.decode(total % mean.modulus, 3, round_index=round_index)
    return measured_epsilon(scores, is_present)


def record_mean(**options):
    return private_record_mean(**RECORDS, **{"epsilon": 1.0, "dim": DIM, "rounds": ROUNDS} | options)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_canaries_are_detected_no_better_than_stated(rate):
    mean = record_mean(sampling_rate=rate)
    assert max(attack(mean, rate=rate, seed=seed) for seed in range(3)) <= mean.guarantee().epsilon <= 1.0


def test_a_clip_of_the_sum_instead_of_the_records_is_noticed():
    mean = record_mean()
    assert min(attack(mean, clip_sum, seed=seed) for seed in range(3)) > 1.5 * mean.guarantee().epsilon


@pytest.mark.slow
def test_little_noise_is_noticed():
    assert attack(record_mean(epsilon=200.0)) > 2.0  # more than would be stated of an ε of 1


# -- a training run -------------------------------------------------------------------------------
# A canary is a picture of one bright pixel, which no other canary has. By its hash it belongs to a batch of its own,
# with another record of the same pixel that the attacker knows.

CLASSES, PUBLIC = 3, 20.0
DIRECTION = torch.tensor([-2.0, 1.0, 1.0]) / 6**0.5  # of a canary's gradient, in the weights of its pixel


def record_of_batch(pixel, label):
    """A record of one bright pixel whose hash puts it into the batch of that pixel."""
    candidates = torch.zeros((2000, CANARIES))
    candidates[:, pixel] = 50 + torch.arange(2000) / 1000
    words = record_hashes(candidates, torch.full((2000,), label))
    return candidates[int(np.flatnonzero(words % CANARIES == pixel)[0])]


class Attacker(Observer):
    """Sees every decoded mean, and looks at the weights of that round's pixel."""

    def __init__(self):
        self.scores = np.zeros(CANARIES)

    def learns(self, round_index, mean):
        self.scores[round_index] = float(mean.view(CLASSES, CANARIES)[:, round_index] @ DIRECTION)


def train(epsilon=1.0, seed=0):
    """The ε that the canaries of one training run show, and the ε that it states."""
    is_present = flip_coins(seed)
    mean = record_mean(epsilon=epsilon, dim=CLASSES * CANARIES, rounds=CANARIES, min_separation=CANARIES)
    records = [(record_of_batch(pixel, 1), 1) for pixel in range(CANARIES)]
    records += [(record_of_batch(pixel, 0), 0) for pixel in np.flatnonzero(is_present)]
    size = len(records)
    records += [(torch.ones(CANARIES), 2)] * 2  # of two other silos
    inputs, labels = torch.stack([x for x, _ in records]), torch.tensor([y for _, y in records])
    silos = Clients(inputs, labels, np.array([0, size, size + 1, size + 2]))
    plan = {
        "mechanism": mean.mechanism.to_dict(),
        "model": "own",
        "clients": 3,
        "rounds": CANARIES,
        "min_separation": CANARIES,
        "delta": DELTA,
        "seed": seed,
        "transforms": {"l2_clip": 64.0, "rotate": True},
        "records": {"clip": 1.0, "batch": PUBLIC},
        "server": {"rate": 1e-3, "momentum": 0.0},
    }
    model, attacker = nn.Linear(CANARIES, CLASSES, bias=False), Attacker()
    nn.init.zeros_(model.weight)
    data = FederatedData("pixels", silos, inputs[:2], labels[:2], CLASSES)
    trainer = RunState(Plan.from_dict(plan), data, model, observer=attacker)
    while trainer.rounds_done < CANARIES:
        trainer.step()
    return measured_epsilon(attacker.scores, is_present), trainer.guard.epsilon()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_training_run_shows_no_more_than_it_states(seed):
    measured, stated = train(seed=seed)
    assert measured <= stated <= 1.0


@pytest.mark.slow
def test_without_much_noise_canaries_of_a_training_run_are_detected():
    measured, stated = train(100.0)
    assert 3 < measured <= stated


def true_count(self, inputs, labels, seed=None, clipped_sum=RecordGradients.clipped_sum):
    """A mistake: the sum is divided by the true number of records."""
    silo = clipped_sum(self, inputs, labels, seed)
    return RecordSum(PUBLIC * silo.total / max(1, silo.records), silo.records)


def batch_clip(self, inputs, labels, seed=None):
    """A mistake: the batch is clipped, by the encoder, and not the records."""
    return RecordSum(self.method(inputs, labels, 1e9), len(labels))


@pytest.mark.parametrize("mistake", [true_count, batch_clip])
def test_a_mistake_in_the_silo_is_noticed(monkeypatch, mistake):
    monkeypatch.setattr(RecordGradients, "clipped_sum", mistake)
    measured, stated = train()
    assert stated <= 1.0
    assert measured > 2 * stated
