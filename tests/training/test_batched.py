"""Gradients of many clients at once against plain backward passes, one client at a time."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm.data.federated_data import Clients
from rqm.training.batched import Batched
from rqm.training.models import MODELS, flatten


def ragged(shape, sizes=(5, 0, 41, 9, 1), classes=4):
    rng = torch.Generator().manual_seed(3)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    inputs = torch.randn(int(offsets[-1]), *shape, generator=rng)
    return Clients(inputs, torch.randint(classes, (len(inputs),), generator=rng), offsets)


def batched(net, clients):
    values, _ = flatten(net)
    return Batched(net, values, clients, lambda net, x, y: functional.cross_entropy(net(x), y, reduction="none"))


def plain(net, clients, client):
    net.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(net(clients[client][0]), clients[client][1])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))]), loss.detach()


class Twice(nn.Module):
    """One layer used twice, on sequences."""

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


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), (6,)),
        (Twice, (5, 3)),
        (convolutions, (2, 8, 7)),
        *((lambda m=m: m(4), (1, 28, 28)) for m in MODELS.values()),
    ],
)
def test_every_client_gets_its_own_gradient(make, shape):
    torch.manual_seed(0)
    net, clients = make(), ragged(shape)
    many = batched(net, clients)
    assert many.agrees()
    chosen = [2, 4, 0, 1]
    gradients, losses = many.gradients(chosen)
    for row, client in enumerate(chosen[:3]):
        gradient, loss = plain(net, clients, client)
        torch.testing.assert_close(gradients[row], gradient, rtol=1e-4, atol=1e-6)
        assert losses[row] == pytest.approx(float(loss), rel=1e-5)
    assert (gradients[3] == 0).all()  # a client without examples
    again, _ = many.gradients(chosen)
    assert (again == gradients).all()  # the same bits every time


def test_clients_of_one_chunk_are_not_summed():
    torch.manual_seed(0)
    net, clients = convolutions(), ragged((2, 8, 7), sizes=(5, 1, 11, 3))
    many = batched(net, clients)
    assert many.whole
    gradients, _ = many.gradients([2, 1, 0])
    for row, client in enumerate([2, 1, 0]):
        torch.testing.assert_close(gradients[row], plain(net, clients, client)[0], rtol=1e-4, atol=1e-6)


def test_a_broken_client_spoils_nobody_else():
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    clients = ragged((6,))
    many = batched(net, clients)
    before = many.gradients([0, 2, 3])[0].clone()
    clients[2][0][0] = torch.nan
    after, losses = many.gradients([0, 2, 3])
    assert (after[[0, 2]] == before[[0, 2]]).all()
    assert torch.isnan(after[1]).any()
    assert torch.isnan(losses).tolist() == [False, True, False]


class Tied(nn.Module):
    """A weight that is also used outside its layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.out(self.layer(x) @ self.layer.weight)


@pytest.mark.parametrize(
    "make",
    [
        Tied,
        lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 4)),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0), nn.Linear(6, 4)),
    ],
    ids=["tied weight", "in-place activation", "another kind of layer", "examples that are mixed"],
)
def test_models_it_cannot_handle_are_found_out(make):
    torch.manual_seed(0)
    assert not batched(make(), ragged((6,))).agrees()
