"""The paper's CNN as one writes it in torch, for comparisons. It needs nothing but torch, so peers can load it too."""

import torch
from torch import nn
from torch.nn import functional


class PlainPaperCNN(nn.Module):
    """The model of `rqm.simulation.models.PaperCNN`, with the same parameters and torch's own pooling."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * 11 * 11, 128)
        self.out = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.relu(self.second(x)).flatten(1)
        return torch.as_tensor(self.out(functional.relu(self.hidden(x))))
