"""A small federation for tests: two-dimensional blobs in three classes, clients of different sizes."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rqm.data.federated_data import Clients, FederatedData
from rqm.simulation.loop import Cohort

torch.set_num_threads(1)  # the tests run on all cores already


def federation(clients=12, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 20, size=clients)
    labels = rng.integers(0, 3, size=sizes.sum() + 200)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    inputs = torch.from_numpy(centres[labels] + rng.normal(size=(len(labels), 2))).float()
    labels = torch.from_numpy(labels)
    train = Clients(inputs[:-200], labels[:-200], np.concatenate([[0], np.cumsum(sizes)]))
    return FederatedData("blobs", train, inputs[-200:], labels[-200:], 3)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def pictures(clients=6, each=3, classes=62):
    """Clients with a few pictures of noise, in bytes, as the convolutional models take them."""
    rng = np.random.default_rng(0)
    count = clients * each
    images = torch.from_numpy(rng.integers(0, 256, size=(count + 8, 28, 28), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, classes, size=count + 8))
    train = Clients(images[:count], labels[:count], each * np.arange(clients + 1))
    return FederatedData("noise", train, images[count:], labels[count:], classes)


def collected(state, clients, round_index):
    """The sum of some clients' messages in a round, and their losses."""
    cohort = Cohort(round_index, clients, clients, settling=[], unsettled=[], is_large_enough=True)
    revealed = state.secure_sum.reveal(state.updates, cohort)
    return revealed.total, revealed.losses


# -- models of dense layers and convolutions, and clients of different sizes ----------------------


class LayerUsedTwice(nn.Module):
    """A dense layer that is used twice, on sequences."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(3, 3), nn.Linear(3, 4, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.layer(torch.tanh(self.layer(x))))).mean(1)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(0, 1)),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2, bias=False),
        nn.Flatten(),
        nn.Linear(2 * 2 * 7, 4),
    )


LAYERED_MODELS = [
    (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), (6,)),
    (LayerUsedTwice, (5, 3)),
    (convolutions, (2, 8, 7)),
]
"""Models, and the shape of an example."""


def ragged_clients(shape, sizes=(5, 0, 41, 9, 1), classes=4):
    generator = torch.Generator().manual_seed(3)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    inputs = torch.randn(int(offsets[-1]), *shape, generator=generator)
    return Clients(inputs, torch.randint(classes, (len(inputs),), generator=generator), offsets)


def expected_gradient(network, clients, client_id):
    """A client's gradient and mean loss, by a backward pass."""
    inputs, labels = clients[client_id]
    loss = functional.cross_entropy(network(inputs), labels)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([gradient.reshape(-1) for gradient in gradients]), loss.detach()
