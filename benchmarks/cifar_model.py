"""The network of pfl's CIFAR-10 benchmark, with torch alone: its peers load this file in environments of their own."""

import torch
from torch import nn


class CifarCNN(nn.Module):
    """Two 3×3 convolutions with 32 and 64 channels, pooling, a dense layer of 128: 1,626,442 parameters.

    ``dropout`` is 1 as published (a quarter after pooling, a half before the last layer), or 0.
    """

    def __init__(self, dropout: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *([nn.Dropout(0.25 * dropout)] if dropout else []),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            *([nn.Dropout(0.5 * dropout)] if dropout else []),
            nn.Linear(128, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of pictures of 3 × 32 × 32."""
        return torch.as_tensor(self.body(x))


class CifarCNNSure(CifarCNN):
    """The same without dropout."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
