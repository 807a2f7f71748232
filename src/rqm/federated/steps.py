"""The server's optimisers: how the model moves along the decoded mean."""

from typing import final

import torch

from rqm.plan.plan import Server


@final
class Steps:
    """SGD, momentum or Adam on a flat vector of parameters, in place. ``moments`` is all that it remembers."""

    def __init__(self, server: Server, rounds: int, values: torch.Tensor) -> None:
        self.server, self.rounds, self.values = server, rounds, values
        rows = 2 if server.optimizer == "adam" else 1
        self.moments = torch.zeros((rows, len(values)), device=values.device)

    def move(self, mean: torch.Tensor, turn: int) -> None:
        """One step along the mean gradient, in round ``turn`` from 0."""
        server, rate = self.server, self.server.rate_at(turn, self.rounds)
        if server.optimizer == "adam":
            first, second = self.moments[0], self.moments[1]
            first.lerp_(mean, 1 - server.momentum)
            second.lerp_(mean.square(), 0.001)
            scale = (1 - 0.999 ** (turn + 1)) ** 0.5 / (1 - server.momentum ** (turn + 1))
            self.values.sub_(first / (second.sqrt() + 1e-8), alpha=rate * scale)
            return
        if server.optimizer == "momentum":
            mean = self.moments[0].mul_(server.momentum).add_(mean)
        self.values.sub_(mean, alpha=rate)
