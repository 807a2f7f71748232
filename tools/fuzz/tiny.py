"""A run of next to nothing: for what needs a trainer, or a model to send."""

import numpy as np
import torch
from torch import nn

from rqm.accounting.participation import Participation
from rqm.config.plan import Plan
from rqm.data.federated_data import Clients, FederatedData
from rqm.simulation.loop import RunState


def data(clients: int = 6) -> FederatedData:
    """Two numbers and three classes."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(3 * clients, 2))).float()
    labels = torch.from_numpy(rng.integers(0, 3, size=3 * clients))
    return FederatedData("tiny", Clients(inputs, labels, 3 * np.arange(clients + 1)), inputs, labels, 3)


def model() -> nn.Module:
    """Nine parameters."""
    torch.manual_seed(0)
    return nn.Linear(2, 3)


def trainer() -> RunState:
    """A run that has not begun."""
    torch.set_num_threads(1)
    who = Participation(4, 5, sampling="uniform")
    return RunState(Plan(data="tiny", model="own", participation=who, device="cpu"), data(), model())
