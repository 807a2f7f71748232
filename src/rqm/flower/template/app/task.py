"""The model and the data, for server and clients alike. Put yours here."""

import torch
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)  # many clients share a machine
FEATURES = 20


def new_model() -> nn.Module:
    """The model, always with the same initial weights."""
    torch.manual_seed(0)
    return nn.Linear(FEATURES, 2)


def examples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up data: the label is whether the sum of the first two features is positive."""
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).long()


def local_data(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and labels of one node. Read the node's own disk here."""
    return examples(partition, 50)


def train(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, learning_rate: float) -> float:
    """Take ten steps on a node's data; return the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    """Accuracy on public data. It is released, and no ε covers it."""
    inputs, labels = examples(10**6, 1000)
    return float((net(inputs).argmax(1) == labels).float().mean())
