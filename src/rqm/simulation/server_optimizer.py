"""How the server moves the model along the decoded mean."""

from collections.abc import Callable
from typing import final

import torch

from rqm.config.plan import Optimizer, ServerStep

Direction = Callable[[torch.Tensor, torch.Tensor, ServerStep, int], tuple[torch.Tensor, float]]
"""From the moments (changed in place), the mean, the plan's server and the round: a direction, and a factor on the
learning rate."""


def sgd(moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, round_index: int) -> tuple[torch.Tensor, float]:
    """Plain gradient descent; see `Direction`."""
    return mean, 1.0


def momentum(
    moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, round_index: int
) -> tuple[torch.Tensor, float]:
    """Heavy-ball momentum; see `Direction`."""
    return moments[0].mul_(server.momentum).add_(mean), 1.0


def adam(moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, round_index: int) -> tuple[torch.Tensor, float]:
    """Adam (Kingma and Ba 2015); see `Direction`."""
    first, second = moments[0], moments[1]
    first.lerp_(mean, 1 - server.momentum)
    second.lerp_(mean.square(), 0.001)
    scale = (1 - 0.999 ** (round_index + 1)) ** 0.5 / (1 - server.momentum ** (round_index + 1))
    return first / (second.sqrt() + 1e-8), scale


OPTIMIZERS: dict[Optimizer, tuple[Direction, int]] = {"sgd": (sgd, 1), "momentum": (momentum, 1), "adam": (adam, 2)}
"""By their name in a plan, with the number of moments that each keeps."""


@final
class ServerOptimizer:
    """Moves a flat vector of parameters in place.

    Args:
        server: The optimizer, its rate and its schedule.
        rounds: Number of rounds, for the schedule.
        values: The parameters.
    """

    def __init__(self, server: ServerStep, rounds: int, values: torch.Tensor) -> None:
        self.server, self.rounds, self.values = server, rounds, values
        self.direction, count = OPTIMIZERS[server.optimizer]
        self.moments = torch.zeros((count, len(values)), device=values.device)

    def step(self, mean: torch.Tensor, round_index: int) -> None:
        """Take one step.

        Args:
            mean: The mean gradient.
            round_index: The round, from 0.
        """
        direction, scale = self.direction(self.moments, mean, self.server, round_index)
        self.values.sub_(direction, alpha=self.server.rate_at(round_index, self.rounds) * scale)
