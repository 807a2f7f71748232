"""Canaries among the records of a silo that trains: in one whole run no better found than ε allows, mistakes are.

A canary is a picture of one bright pixel, which no other canary has. Each belongs to a batch of its own, by its hash,
beside another record of the same pixel that the attacker knows; a coin decides whether the canary is there. Whoever
sees all that the server decodes guesses from its round, along its gradient.
"""

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Plan, private_record_mean
from rqm.data.federated_data import Clients, FederatedData
from rqm.encoding.records import Gathered
from rqm.training.observer import Observer
from rqm.training.records import PerRecord, own_words
from rqm.training.trainer import Trainer
from tests.audit.test_canaries import epsilon_at_least

CANARIES, CLASSES, PUBLIC = 120, 3, 20.0
SILOS = {"clients": 3, "delta": 1e-6, "dim": CLASSES * CANARIES}
SILOS |= {"l2_clip": 64.0, "record_clip": 1.0, "rounds": CANARIES, "min_separation": CANARIES}
ALONG = torch.tensor([-2.0, 1.0, 1.0]) / 6**0.5  # what a canary's gradient moves, in the weights of its pixel


def of_batch(number, label):
    """A record of one bright pixel whose hash puts it into that pixel's batch."""
    tries = torch.zeros((2000, CANARIES))
    tries[:, number] = 50 + torch.arange(2000) / 1000
    words = own_words(tries, torch.full((2000,), label))
    return tries[int(np.flatnonzero(words % CANARIES == number)[0])]


CANARY, BESIDE = ([of_batch(number, label) for number in range(CANARIES)] for label in (0, 1))


class Attacker(Observer):
    """Sees every decoded mean, and looks at the weights of that round's pixel."""

    def __init__(self):
        self.scores = np.zeros(CANARIES)

    def learns(self, turn, mean):
        self.scores[turn] = float(mean.view(CLASSES, CANARIES)[:, turn] @ ALONG)


def shown(epsilon, seed=0):
    """The ε that one run shows, and the ε that it states."""
    there = np.random.default_rng(seed).random(CANARIES) < 0.5
    mean = private_record_mean(epsilon=epsilon, **SILOS)
    records = [(one, 1) for one in BESIDE] + [(CANARY[number], 0) for number in np.flatnonzero(there)]
    others = [(torch.ones(CANARIES), 2)] * 2  # of two other silos
    inputs = torch.stack([x for x, _ in records + others])
    labels = torch.tensor([y for _, y in records + others])
    train = Clients(inputs, labels, np.array([0, len(records), len(records) + 1, len(records) + 2]))
    plan = Plan.from_dict(
        {
            "mechanism": mean.mechanism.to_dict(),
            "model": "own",
            "clients": 3,
            "rounds": CANARIES,
            "min_separation": CANARIES,
            "delta": 1e-6,
            "seed": seed,
            "transforms": {"l2_clip": 64.0, "rotate": True},
            "records": {"clip": 1.0, "batch": PUBLIC},
            "server": {"rate": 1e-3, "momentum": 0.0},
        }
    )
    net, attacker = nn.Linear(CANARIES, CLASSES, bias=False), Attacker()
    nn.init.zeros_(net.weight)
    trainer = Trainer(plan, FederatedData("pixels", train, inputs[:2], labels[:2], CLASSES), net, observer=attacker)
    while trainer.done < CANARIES:
        trainer.step()
    order, third = np.argsort(attacker.scores), CANARIES // 3
    right = int((~there[order[:third]]).sum() + there[order[-third:]].sum())
    stated = trainer.guard.epsilon()
    return epsilon_at_least(right, 2 * third), stated


@pytest.mark.slow
def test_a_whole_run_shows_no_more_than_it_states():
    for seed in range(2):
        found, stated = shown(1.0, seed)
        assert found <= stated <= 1.0


@pytest.mark.slow
def test_without_much_noise_canaries_are_found():
    found, stated = shown(100.0)
    assert 3 < found <= stated


@pytest.mark.parametrize("mistake", ["the true number of records", "a clip of the batch"])
def test_a_mistake_in_the_silo_is_found_out(monkeypatch, mistake):
    sound = PerRecord.gather

    def wrong(self, inputs, labels, seed=None):
        if mistake == "a clip of the batch":  # which the encoder scales down to G
            return Gathered(self.way(inputs, labels, 1e9), len(labels))
        found = sound(self, inputs, labels, seed)
        return Gathered(PUBLIC * found.total / max(1, found.records), found.records)

    monkeypatch.setattr(PerRecord, "gather", wrong)
    found, stated = shown(1.0)
    assert stated <= 1.0
    assert found > 2 * stated
