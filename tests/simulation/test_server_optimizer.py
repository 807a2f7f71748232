"""The optimizers of the server equal those of torch."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from rqm.config.plan import Optimizer, ServerStep
from rqm.simulation.server_optimizer import ServerOptimizer

ROUNDS = 5
ORACLES = {
    "sgd": lambda values, server: torch.optim.SGD([values], lr=server.rate),
    "momentum": lambda values, server: torch.optim.SGD([values], lr=server.rate, momentum=server.momentum),
    "adam": lambda values, server: torch.optim.Adam([values], lr=server.rate, betas=(server.momentum, 0.999)),
}
"""By name: the same optimizer in torch."""


def values_after(name, server, means):
    """Where the values are after steps along these means: ours, and the oracle's."""
    ours, theirs = torch.ones(8), torch.nn.Parameter(torch.ones(8))
    optimizer, oracle = ServerOptimizer(server, ROUNDS, ours), ORACLES[name](theirs, server)
    for round_index, mean in enumerate(means):
        optimizer.step(mean, round_index)
        theirs.grad = mean.clone()
        oracle.step()
    return ours, theirs.detach()


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_an_optimizer_equals_that_of_torch(name):
    means = torch.randn((ROUNDS, 8), generator=torch.Generator().manual_seed(0))
    server = ServerStep(name, rate=0.1, momentum=0.9)
    ours, theirs = values_after(name, server, means)
    torch.testing.assert_close(ours, theirs)
    off, _ = values_after(name, replace(server, rate=0.101), means)
    assert not torch.allclose(off, theirs)  # a rate that is off by a hundredth would be noticed
