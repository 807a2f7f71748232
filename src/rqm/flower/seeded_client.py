"""The randomness of simulated clients, which follows from the plan's seed: **not private**.

It equals that of the in-process simulator. All that Flower's simulation needs from the simulator is imported here.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
import torch

from rqm.core.base import BaseMean
from rqm.correlated.noise import CorrelatedNoise, NoiseState
from rqm.flower.client_encoding import Update
from rqm.plan.plan import Plan
from rqm.randomness import SeededRandom
from rqm.secagg import ProtocolError
from rqm.training.participants import Participants, in_order, sampled
from rqm.training.streams import NOISE, TRANSIENT

SECRET_PREFIX = b"rqm, not private"
"""The first bytes of a simulated client's noise secret; a real one has them with probability 2⁻¹²⁸."""
SECRET_FORMAT = "<QII"


def position(plan: Plan, node_config: Mapping[str, Any], round_index: int) -> int:
    """The position of this node's partition among the clients of a round, as the simulator draws them.

    Args:
        plan: The plan.
        node_config: The node's configuration, with `partition-id` and `num-partitions`.
        round_index: The round.

    Returns:
        The position.

    Raises:
        ProtocolError: If the simulator does not draw this partition.
    """
    users, partition = int(node_config["num-partitions"]), int(node_config["partition-id"])
    in_turn = in_order(plan)
    clients = Participants(plan, users).choose(round_index) if in_turn else sampled(plan, users, round_index)
    if partition not in clients:
        raise ProtocolError(f"partition {partition}: the simulator draws others in round {round_index}")
    return clients.index(partition)


def noise_secret(seed: int, round_index: int, place: int) -> bytes:
    """A noise secret that anybody can compute."""
    return SECRET_PREFIX + struct.pack(SECRET_FORMAT, seed, round_index, place)


def noise_state(mean: BaseMean, secret: bytes) -> NoiseState:
    """The correlated noise of a simulated client."""
    assert mean.noise is not None
    return _noise_state(mean.noise, secret, mean.coordinates)


def encode(update: Update, mean: BaseMean, seed: int, round_index: int, place: int, secret: bytes) -> Any:
    """A simulated client's message.

    Args:
        update: The update.
        mean: What clients send.
        seed: The plan's seed.
        round_index: The round.
        place: The client's position among the clients of the round.
        secret: Its noise secret; empty for independent noise.

    Returns:
        Integers below the modulus.
    """
    noise = noise_state(mean, secret) if secret else None
    source = SeededRandom(seed, NOISE, round_index, place)
    return np.asarray(mean.encode_simulated(update, source, round_index=round_index, noise_state=noise))


@final
class SeededNoise:
    """Recovers the correlated noise of simulated clients, from their secrets.

    >>> SeededNoise(CorrelatedNoise(2.0)).recover(torch.arange(3), [], 8)
    tensor([0, 1, 2])
    """

    def __init__(self, noise: CorrelatedNoise) -> None:
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


def _noise_state(noise: CorrelatedNoise, secret: bytes, length: int) -> NoiseState:
    seed, round_index, place = struct.unpack_from(SECRET_FORMAT, secret, len(SECRET_PREFIX))
    like = torch.zeros(length, dtype=torch.int32)
    state = noise.sample_sum(1, like, SeededRandom(seed, TRANSIENT, round_index, place))
    return NoiseState(*(np.asarray(part).astype(np.int64) for part in (state.added, state.canceled)))
