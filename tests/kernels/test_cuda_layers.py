"""The kernel of weights' gradients, on a GPU or in Triton's interpreter; skipped where Triton is missing."""

import os

import pytest

torch = pytest.importorskip("torch")
GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
from torch import nn  # noqa: E402

from rqm.kernels import cuda_layers  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
LAYERS = {
    "dense": (nn.Linear(70, 33), (9, 70)),
    "dense, sequences, no bias": (nn.Linear(5, 70, bias=False), (9, 3, 5)),
    "convolution": (nn.Conv2d(3, 20, 3), (9, 3, 6, 7)),
    "strided, padded": (nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(1, 0), bias=False), (9, 2, 7, 6)),
    "one channel": (nn.Conv2d(1, 4, 5, stride=2, padding=2), (9, 1, 8, 8)),
}


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_gradients_are_those_of_backward_passes(layer, shape, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    layer, inputs = layer.to(DEVICE), torch.randn(shape, device=DEVICE)
    error = torch.randn_like(layer(inputs))
    runs = [(0, 3), (3, 5), (8, 1), (0, 0)]
    first, count = (torch.tensor(column, dtype=torch.int32, device=DEVICE) for column in zip(*runs, strict=True))
    size = sum(p.numel() for p in layer.parameters())
    out = torch.full((4, size + 2), 7.0, device=DEVICE)
    cuda_layers.gradients(layer, inputs, error, first, count, out[:, 1:-1])
    for row, (start, many) in zip(out, runs, strict=True):
        layer.zero_grad()
        layer(inputs[start : start + many]).backward(error[start : start + many])
        expected = torch.cat([p.grad.reshape(-1) for p in layer.parameters()])
        torch.testing.assert_close(row[1:-1], expected, rtol=1e-4, atol=1e-5)
        assert row[0] == row[-1] == 7.0
