"""Gradients of many clients in one pass of a GPU, with a reference in place of the Triton kernel."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rqm.simulation.cuda_graphs import CudaGradients
from rqm.simulation.models import MODELS, FlatModel, example_losses
from tests.simulation.small import LAYERED_MODELS, expected_gradient, ragged_clients


def reference_kernel(layer, inputs, errors, first, count, out):
    """What `rqm.kernels.cuda_layers.gradients` computes, by one backward pass for each run."""
    for row, start, size in zip(out, first.tolist(), count.tolist(), strict=True):
        outputs = layer(inputs[start : start + size])
        gradients = torch.autograd.grad(outputs, list(layer.parameters()), errors[start : start + size])
        row.copy_(torch.cat([gradient.reshape(-1) for gradient in gradients]))


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "rqm.kernels.cuda_layers", SimpleNamespace(gradients=reference_kernel))


def gradients(network, clients, client_ids):
    groups = CudaGradients(FlatModel(network), clients, example_losses)
    rows = torch.full((len(client_ids), len(groups.model.values)), 7.0)
    return rows, groups.compute(groups.layout(client_ids), rows)


@pytest.mark.parametrize(
    ("make", "shape"), [*LAYERED_MODELS, *((lambda m=m: m(4), (1, 28, 28)) for m in MODELS.values())]
)
def test_each_client_gets_its_own_gradient(make, shape):
    torch.manual_seed(0)
    network, clients = make(), ragged_clients(shape)
    client_ids = [2, 4, 0, 1]
    rows, losses = gradients(network, clients, client_ids)
    for row, loss, client_id in zip(rows[:3], losses, client_ids, strict=False):
        gradient, expected_loss = expected_gradient(network, clients, client_id)
        torch.testing.assert_close(row, gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss, expected_loss)
    assert (rows[3] == 0).all()  # a client without examples
    assert torch.equal(gradients(network, clients, client_ids)[0], rows)


def test_a_client_with_nan_does_not_change_the_others():
    network, clients = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), ragged_clients((6,))
    expected, _ = gradients(network, clients, [0, 2, 3])
    clients[2][0][0] = torch.nan
    rows, losses = gradients(network, clients, [0, 2, 3])
    assert torch.equal(rows[[0, 2]], expected[[0, 2]])
    assert torch.isnan(rows[1]).any()
    assert torch.isnan(losses).tolist() == [False, True, False]


def test_shapes_are_rounded_up_so_that_recordings_are_reused():
    clients = ragged_clients((6,))
    groups = CudaGradients(FlatModel(nn.Linear(6, 4)), clients, example_losses)
    shapes = [[len(groups.layout(ids)[name]) for name in ("examples", "first")] for ids in ([0, 2, 3], [2, 3, 4])]
    assert shapes[0] == shapes[1] == [256, 128]
    assert groups.split([4, 2, 0]) == [[0, 1, 2]]
