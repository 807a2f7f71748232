"""The randomness of simulated clients, which follows from the plan's seed: **not private**.

It equals that of the in-process simulator. All that Flower's simulation needs from the simulator is imported here.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
import torch

from rqm.config.plan import Plan
from rqm.core.base import BaseMean
from rqm.correlated.scheme import NoiseScheme, NoiseState
from rqm.correlated.simulated_chain import TRANSIENT_STREAM
from rqm.flower.client_encoding import Update
from rqm.randomness import SeededRandom
from rqm.secagg import ProtocolError
from rqm.simulation.loop import CohortSampler
from rqm.simulation.streams import NOISE

SECRET_PREFIX = b"rqm, not private"
"""The first bytes of a simulated client's noise secret; a real one has them with probability 2⁻¹²⁸."""
SECRET_FORMAT = "<QII"


@final
class SeededEncoder:
    """Encodes updates as the simulator does, for the partition of this node."""

    def __init__(self, mean: BaseMean, round_index: int, plan: Plan, node_config: Mapping[str, Any]) -> None:
        self.mean, self.round_index, self.plan, self.node_config = mean, round_index, plan, node_config

    @property
    def position(self) -> int:
        """The position of this partition (`partition-id` of `num-partitions`) among the clients of the round."""
        users, partition = int(self.node_config["num-partitions"]), int(self.node_config["partition-id"])
        clients = CohortSampler(self.plan, users).clients(self.round_index)
        if partition not in clients:
            raise ProtocolError(f"partition {partition}: the simulator draws others in round {self.round_index}")
        return clients.index(partition)

    @property
    def noise_secret(self) -> bytes:
        """A noise secret that anybody can compute."""
        return SECRET_PREFIX + struct.pack(SECRET_FORMAT, self.plan.seed, self.round_index, self.position)

    def noise_state(self, noise_secret: bytes) -> NoiseState:
        """The correlated noise that follows from a simulated client's secret."""
        assert self.mean.noise is not None
        return _noise_state(self.mean.noise, noise_secret, self.mean.coordinates)

    def encode(self, update: Update, noise: NoiseState | None) -> Any:
        """A simulated client's message.

        Args:
            update: The update.
            noise: The client's correlated noise; None for independent noise.

        Returns:
            Integers below the modulus.
        """
        source = SeededRandom(self.plan.seed, NOISE, self.round_index, self.position)
        return self.mean.encode_simulated(update, source, round_index=self.round_index, noise_state=noise)


@final
class SeededNoise:
    """Recovers the correlated noise of simulated clients, from their secrets.

    >>> SeededNoise(NoiseScheme.of(2.0)).recover(torch.arange(3), [], 8)
    tensor([0, 1, 2])
    """

    def __init__(self, noise: NoiseScheme) -> None:
        self.noise = noise

    def recover(self, total: Any, secrets: Iterable[bytes], modulus: int) -> Any:
        """Add the settlements that dropouts would have sent.

        Args:
            total: The sum.
            secrets: The secrets of the clients that dropped out.
            modulus: The modulus of the sum.

        Returns:
            The sum modulo `modulus`.
        """
        for secret in secrets:
            state = _noise_state(self.noise, secret, len(total))
            settlement = NoiseState(self.noise.settle(state, modulus), state.canceled)
            total = self.noise.add(total, settlement, modulus)
        return total


def _noise_state(noise: NoiseScheme, secret: bytes, length: int) -> NoiseState:
    seed, round_index, position = struct.unpack_from(SECRET_FORMAT, secret, len(SECRET_PREFIX))
    source = SeededRandom(seed, TRANSIENT_STREAM, round_index, position)
    state = noise.sample_sum(1, torch.zeros(length, dtype=torch.int32), source)
    return NoiseState(*(np.asarray(values).astype(np.int64) for values in (state.added, state.canceled)))
