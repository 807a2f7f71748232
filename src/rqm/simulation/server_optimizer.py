"""How the server moves the model along the decoded mean."""

from typing import final

import torch
from torch import Tensor

from rqm.config.plan import ServerStep


@final
class ServerOptimizer:
    """Moves a flat vector of parameters in place.

    Args:
        server: The optimizer, its rate and its schedule.
        rounds: Number of rounds, for the schedule.
        values: The parameters.

    Attributes:
        moments: What the optimizer remembers from round to round: one vector, or two of Adam.
    """

    def __init__(self, server: ServerStep, rounds: int, values: Tensor) -> None:
        self.server, self.rounds, self.values = server, rounds, values
        self.moments = torch.zeros((2 if server.optimizer == "adam" else 1, len(values)), device=values.device)

    def step(self, mean: Tensor, round_index: int) -> None:
        """Take one step.

        Args:
            mean: The mean gradient.
            round_index: The round, from 0.
        """
        server, direction, scale = self.server, mean, 1.0
        if server.optimizer == "momentum":  # heavy-ball
            direction = self.moments[0].mul_(server.momentum).add_(mean)
        elif server.optimizer == "adam":  # Kingma and Ba 2015
            first, second = self.moments[0], self.moments[1]
            first.lerp_(mean, 1 - server.momentum)
            second.lerp_(mean.square(), 0.001)
            direction = first / (second.sqrt() + 1e-8)
            scale = (1 - 0.999 ** (round_index + 1)) ** 0.5 / (1 - server.momentum ** (round_index + 1))
        self.values.sub_(direction, alpha=server.rate_at(round_index, self.rounds) * scale)
