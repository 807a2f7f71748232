"""Nodes that encode as the simulator's clients do, with seeded randomness: not private, and in tests alone.

A node's encoder is replaced by one that draws from the simulator's streams, and correlated noise follows from the
simulator's stream whatever the secret is, so that the model of a run on Flower must be that of the simulator.
"""

import numpy as np
import torch

from rqm.correlated.noise import CorrelatedNoise
from rqm.correlated.scheme import NoiseState
from rqm.correlated.simulated_chain import TRANSIENT_STREAM
from rqm.flower import client_mod
from rqm.flower.client_training import SecureEncoder
from rqm.randomness import SeededRandom
from rqm.simulation.loop import CohortSampler
from rqm.simulation.streams import NOISE


def seed_nodes(monkeypatch, grid, plan):
    """Let the nodes of a grid encode as the clients of a simulation.

    Args:
        monkeypatch: Pytest's fixture, which undoes it.
        grid: The grid. It knows which node is at work.
        plan: The simulator's plan; its seed is that of all streams.
    """
    cohorts, states, latest = CohortSampler(plan, len(grid.contexts)), {}, []

    class SeededEncoder:
        """See `SecureEncoder`."""

        noise_state = SecureEncoder.noise_state

        def __init__(self, mean, round_index):
            self.mean, self.round_index = mean, round_index
            latest[:] = [self]

        @property
        def position(self):
            """The position of the node at work among the clients of the round."""
            return cohorts.clients(self.round_index).index(grid.now - 100)

        def encode(self, vector, noise):
            source = SeededRandom(plan.seed, NOISE, self.round_index, self.position)
            return self.mean.encode_simulated(vector, source, round_index=self.round_index, noise_state=noise)

    def begin(noise, secret, length):
        """The noise of the participation whose secret it is: when it is first used, that of the node at work."""
        if secret not in states:
            encoder = latest[0]
            source = SeededRandom(plan.seed, TRANSIENT_STREAM, encoder.round_index, encoder.position)
            state = noise.sample_sum(1, torch.zeros(length, dtype=torch.int32), source)
            states[secret] = NoiseState(*(np.asarray(x).astype(np.int64) for x in (state.added, state.canceled)))
        return states[secret]

    monkeypatch.setattr(client_mod, "SecureEncoder", SeededEncoder)
    monkeypatch.setattr(CorrelatedNoise, "begin", begin)
