"""The kernels for rotated vectors, on a GPU or in Triton's interpreter; skipped where Triton is missing."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from rqm import PBM, RQM, StochasticRounding  # noqa: E402
from rqm.core.quantizer import CoordinateQuantizer  # noqa: E402
from rqm.core.transform import Rotation, clip_and_rotate, hadamard  # noqa: E402
from rqm.core.transform import signs as public_signs  # noqa: E402
from rqm.kernels import cuda_rotation  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"


@pytest.mark.parametrize("bits", cuda_rotation.SUPPORTED_BITS)
def test_the_transform_is_that_of_float64(bits):
    x = torch.randn(3 if GPU else 1, 1 << bits, generator=torch.Generator().manual_seed(bits))
    x[0] *= torch.rand(1 << bits) ** 9  # many sizes in one row
    y = cuda_rotation.hadamard(x.clone().to(DEVICE)).cpu().double()
    expected = hadamard(x.double())
    assert (y - expected).norm() < 2e-6 * expected.norm()
    assert (hadamard(x) - expected).norm() < 2e-6 * expected.norm()  # no worse than the plain one


def test_rotation_scales_pads_and_silences():
    x = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0))
    rotation, factors = Rotation(x.shape[1], 5), torch.tensor([0.5, 0.0, 1.0])
    x[1, 7] = torch.nan
    signs = torch.from_numpy(public_signs(rotation.seed, rotation.padded)).float()
    y = cuda_rotation.rotate(x.to(DEVICE), signs.to(DEVICE), factors.to(DEVICE)).cpu()
    x[1] = 0
    torch.testing.assert_close(y, rotation.forward(x * factors[:, None]), atol=1e-5, rtol=0)
    assert (y[1] == 0).all()
    z = torch.full((3, 40_000), torch.nan).to(DEVICE)
    cuda_rotation.zero_rows(z, torch.tensor([True, False, True]).to(DEVICE))
    assert (z[[0, 2]] == 0).all()
    assert torch.isnan(z[1]).all()


@pytest.mark.parametrize(
    ("mech", "shift"),
    [
        *((StochasticRounding(clip=0.01, levels=2), 0), (RQM(clip=0.01), 6), (PBM(clip=0.01), 0)),
        (StochasticRounding(clip=0.01, levels=65536), 20),
    ],
    ids=repr,
)
def test_squared_positions_are_exact(mech, shift):
    x = 0.01 * np.random.default_rng(1).normal(size=(3, 20_001)).astype(np.float32)
    sampler = mech.sampler
    twice = 2 * mech.position(x).astype(object) - sampler.low - sampler.high
    if shift:
        twice = (abs(twice) >> shift) + 1
    expected = (twice**2).sum(axis=1)
    assert max(expected) < 2**63
    sums = cuda_rotation.squares(sampler, torch.from_numpy(x).to(DEVICE), shift)
    assert sums.tolist() == expected.tolist()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_the_public_names_use_the_kernels():
    x = torch.randn(5, 100_000, generator=torch.Generator().manual_seed(0))
    rotation = Rotation(x.shape[1], 3)
    on_device = rotation.forward(x.to(DEVICE))
    torch.testing.assert_close(on_device.cpu(), rotation.forward(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotation.inverse(on_device).cpu(), x, atol=1e-5, rtol=0)
    broken = x.clone()
    broken[2, 5] = torch.inf
    expected, finite = clip_and_rotate(broken.clone(), 3.0, rotation)
    rows, finite_on_device = clip_and_rotate(broken.to(DEVICE), 3.0, rotation)
    assert finite.tolist() == finite_on_device.tolist() == [True, True, False, True, True]
    torch.testing.assert_close(rows.cpu(), expected, atol=1e-5, rtol=0)
    y = torch.randn(200, 3000, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.5, 1.5, 200)[:, None]
    quantizer = CoordinateQuantizer(StochasticRounding(clip=4.0, levels=2, margin=20.0), 3000, 3000**0.5)
    exceeds = quantizer.exceeds_bound(y)
    assert 50 < exceeds.sum() < 150
    assert (quantizer.exceeds_bound(y.to(DEVICE)).cpu() == exceeds).all()
