"""Torch tensors: on the CPU the same levels as NumPy; elsewhere plain torch operations with the same law."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rqm import PBM, RQM, SeededRandom, StochasticRounding  # noqa: E402
from rqm.kernels import torch_backend  # noqa: E402
from rqm.randomness import OneEach  # noqa: E402
from tests.kernels import oracle  # noqa: E402

MECHANISMS = [RQM(), RQM(levels=300), PBM(), StochasticRounding(levels=5)]


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cpu_tensor_gives_what_its_array_gives(mech, dtype):
    x = torch.randn(5, 3000, dtype=dtype, requires_grad=True)
    array = x.detach().numpy()
    z = mech.encode(x, SeededRandom(1))
    assert isinstance(z, torch.Tensor)
    assert (z.numpy() == mech.encode(array, SeededRandom(1))).all()
    total = mech.encode_sum(x, SeededRandom(2))
    assert total.dtype == torch.int32
    assert (total.numpy() == mech.encode_sum(array, SeededRandom(2))).all()
    unchanged = total.clone()
    assert mech.encode_sum(x, SeededRandom(2), out=unchanged).data_ptr() == unchanged.data_ptr()
    assert (unchanged == 2 * total).all()
    mean = mech.decode(total, 5)
    assert mean.dtype == torch.float64
    assert (mean.numpy() == mech.decode(total.numpy(), 5)).all()


def test_half_precision_and_whole_numbers_are_widened():
    x = torch.randn(1000).bfloat16()
    assert (RQM().encode(x, SeededRandom(1)) == RQM().encode(x.float(), SeededRandom(1))).all()
    assert RQM().encode(torch.arange(-2, 3), SeededRandom(1)).shape == (5,)
    assert RQM().encode(torch.zeros(0), SeededRandom(1)).shape == (0,)
    assert RQM().encode(torch.randn(4, 6).T, SeededRandom(1)).shape == (6, 4)


@pytest.fixture
def no_compiler(monkeypatch):
    """As on a machine without numba, or a device without Triton: plain torch operations."""
    monkeypatch.setattr(torch_backend, "_has_compiled_loops", lambda _x: False)
    monkeypatch.setattr(torch_backend, "MAX_TORCH_WORDS", 1000)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("sampler", [RQM().sampler, oracle.additive(modulus=100, levels=70)])
def test_torch_operations_make_of_each_word_what_the_proof_says(sampler):
    x = torch.linspace(-1.3, 1.3, 3000)
    words = SeededRandom(4).words(3000)
    expected = oracle.outcomes(sampler, sampler.position(x.double().numpy()), words >> 40, words & np.uint64(2**40 - 1))
    assert (torch_backend.draw(sampler, x, SeededRandom(4)).numpy() == expected).all()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_rows_with_a_source_each_draw_what_they_draw_alone(mech):
    x, sources = torch.linspace(-1.3, 1.3, 7500).view(3, 2500), OneEach(SeededRandom(3, client) for client in range(3))
    rows = [mech.encode(row, SeededRandom(3, client)) for client, row in enumerate(x)]
    assert rows[0].dtype == (torch.uint8 if mech.levels <= 256 else torch.uint16)
    assert (mech.encode_sum(x, sources) == sum(row.long() for row in rows)).all()


@pytest.mark.parametrize("fallback", [False, True])
def test_bad_tensors_are_refused_and_sums_stay_as_they_were(fallback, monkeypatch):
    if fallback:
        monkeypatch.setattr(torch_backend, "_has_compiled_loops", lambda _x: False)
    mech, rng = RQM(), SeededRandom(1)
    x, total = torch.zeros(2, 3), torch.arange(3, dtype=torch.int32)
    x[1, 1] = torch.nan
    for inputs, out, error, words in (
        (x, total, ValueError, "x contains nan"),
        (torch.zeros(2, 3), torch.full((3,), 2**31 - 20, dtype=torch.int32), ValueError, r"0\.\.2147483617"),
        (torch.zeros(2, 3), torch.zeros(4, dtype=torch.int32), ValueError, "shape"),
        (torch.zeros(2, 3), torch.zeros(3), TypeError, "int32"),
        (torch.zeros(2, 3), np.zeros(3, np.int32), TypeError, "int32"),
        (torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.int32)[:, 0], TypeError, "int32"),
    ):
        with pytest.raises(error, match=words):
            mech.encode_sum(inputs, rng, out=out)
    for inputs, source, error, words in (
        (x, rng, ValueError, "x contains nan"),
        (torch.zeros(3, dtype=torch.bool), rng, TypeError, "dtype"),
        (torch.zeros(3), torch.Generator(), TypeError, "SecureRandom"),
    ):
        with pytest.raises(error, match=words):
            mech.encode(inputs, source)
    assert (total == torch.arange(3)).all()


def test_a_subclass_of_a_tensor_is_a_tensor_and_the_sum_is_the_one_given():
    class Mine(torch.Tensor):
        pass

    z = RQM().encode(torch.zeros(4).as_subclass(Mine), SeededRandom(1))
    assert isinstance(z, torch.Tensor)
    total = torch.zeros(4, dtype=torch.int32)
    assert RQM().encode_sum(torch.zeros(2, 4), SeededRandom(1), out=total) is total


def test_decode_checks_its_range():
    with pytest.raises(ValueError, match=r"z_sum contains 601.*0\.\.600"):
        RQM().decode(torch.tensor([3, 601]), 40)
    with pytest.raises(ValueError, match="z_sum contains -1"):
        RQM().decode(torch.tensor([-1, 5]), 40)


BARE = """
import sys
for name in ("numba", "llvmlite", "cryptography", "dp_accounting", "typer", "rich", "matplotlib", "flwr"):
    sys.modules[name] = None
import torch, rqm
for mech in (rqm.RQM(), rqm.PBM(), rqm.StochasticRounding()):
    for rng in (rqm.SeededRandom(1), rqm.SecureRandom()):
        x = torch.zeros(3, 1000)
        assert abs(float(mech.decode(mech.encode_sum(x, rng), 3).mean())) < 0.2
        assert mech.encode(x, rng).shape == (3, 1000)
"""


def test_torch_and_numpy_are_enough():
    subprocess.run([sys.executable, "-c", BARE], check=True)
