"""The server's optimisers: how the model moves along the decoded mean."""

from collections.abc import Callable
from typing import final

import torch

from rqm.plan.plan import Optimizer, ServerStep

Step = Callable[[torch.Tensor, torch.Tensor, ServerStep, int], tuple[torch.Tensor, float]]
"""From what is remembered (in place), the mean, the plan's server and the round: the direction, and how far to go."""


def sgd(moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, turn: int) -> tuple[torch.Tensor, float]:
    """Plain steps."""
    return mean, 1.0


def momentum(moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, turn: int) -> tuple[torch.Tensor, float]:
    """Steps that go on."""
    return moments[0].mul_(server.momentum).add_(mean), 1.0


def adam(moments: torch.Tensor, mean: torch.Tensor, server: ServerStep, turn: int) -> tuple[torch.Tensor, float]:
    """Adam (Kingma and Ba 2015)."""
    first, second = moments[0], moments[1]
    first.lerp_(mean, 1 - server.momentum)
    second.lerp_(mean.square(), 0.001)
    scale = (1 - 0.999 ** (turn + 1)) ** 0.5 / (1 - server.momentum ** (turn + 1))
    return first / (second.sqrt() + 1e-8), scale


OPTIMIZERS: dict[Optimizer, tuple[Step, int]] = {"sgd": (sgd, 1), "momentum": (momentum, 1), "adam": (adam, 2)}
"""By their name in a plan, with the vectors that each remembers."""


@final
class Optimiser:
    """An optimiser on a flat vector of parameters, in place. ``moments`` is all that it remembers."""

    def __init__(self, server: ServerStep, rounds: int, values: torch.Tensor) -> None:
        self.server, self.rounds, self.values = server, rounds, values
        self.direction, remembered = OPTIMIZERS[server.optimizer]
        self.moments = torch.zeros((remembered, len(values)), device=values.device)

    def move(self, mean: torch.Tensor, turn: int) -> None:
        """One step along the mean gradient, in round ``turn`` from 0."""
        direction, scale = self.direction(self.moments, mean, self.server, turn)
        self.values.sub_(direction, alpha=self.server.rate_at(turn, self.rounds) * scale)
