"""Torch tensors: on the CPU the same levels as NumPy; elsewhere plain torch operations with the same law."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rqm import PBM, RQM, SecureRandom, SeededRandom, StochasticRounding  # noqa: E402
from rqm.kernels import torch_backend  # noqa: E402
from rqm.randomness import OneEach  # noqa: E402
from tests.goodness import p_value  # noqa: E402
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
@pytest.mark.parametrize("rng", [SecureRandom(), pytest.param(SeededRandom(1), marks=pytest.mark.slow)], ids=repr)
@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_torch_operations_follow_the_sampled_law(mech, rng):
    x = torch.full((200_000,), 0.37)
    z = mech.encode(x, rng)
    assert z.dtype == (torch.uint8 if mech.levels <= 256 else torch.uint16)
    pmf = mech.sampled_pmf(np.float32(0.37))
    assert p_value(np.bincount(z.numpy(), minlength=mech.levels), pmf) > 1e-6
    sums = mech.decode(mech.encode_sum(x.view(200, 1000), rng), 200).numpy()
    error = np.sqrt(mech.variance(0.37) / 200_000)
    assert abs(sums.mean() - np.float32(0.37)) < 5.5 * error


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("sampler", [RQM().sampler, oracle.additive(modulus=100, levels=70)])
def test_torch_operations_make_of_each_word_what_the_proof_says(sampler):
    x = torch.linspace(-1.3, 1.3, 3000)
    words = SeededRandom(4).words(3000)
    expected = oracle.outcomes(sampler, sampler.position(x.double().numpy()), words >> 40, words & np.uint64(2**40 - 1))
    assert (torch_backend.draw(sampler, x, SeededRandom(4)).numpy() == expected).all()


@pytest.mark.usefixtures("no_compiler")
def test_rows_with_a_source_each_draw_what_they_draw_alone():
    x, sources = torch.linspace(-1.3, 1.3, 3000).view(3, 1000), OneEach(SeededRandom(3, client) for client in range(3))
    expected = sum(RQM().encode(row, SeededRandom(3, client)).long() for client, row in enumerate(x))
    assert (RQM().encode_sum(x, sources) == expected).all()


@pytest.mark.usefixtures("no_compiler")
def test_the_power_of_the_test_of_torch_operations():
    z = RQM().encode(torch.full((400_000,), 0.37), SeededRandom(1)).numpy()
    for keep in (0.42 * 0.98, 0.42 * 1.02):
        assert p_value(np.bincount(z, minlength=16), RQM(keep=keep).sampled_pmf(np.float32(0.37))) < 1e-6


@pytest.mark.parametrize("fallback", [False, True])
def test_bad_tensors_are_refused_and_sums_stay_as_they_were(fallback, monkeypatch):
    if fallback:
        monkeypatch.setattr(torch_backend, "_has_compiled_loops", lambda _x: False)
    mech, rng = RQM(), SeededRandom(1)
    x, total = torch.zeros(2, 3), torch.arange(3, dtype=torch.int32)
    x[1, 1] = torch.nan
    with pytest.raises(ValueError, match="x contains nan"):
        mech.encode(x, rng)
    with pytest.raises(ValueError, match="x contains nan"):
        mech.encode_sum(x, rng, out=total)
    with pytest.raises(ValueError, match=r"0\.\.2147483617"):
        mech.encode_sum(torch.zeros(2, 3), rng, out=torch.full((3,), 2**31 - 20, dtype=torch.int32))
    with pytest.raises(ValueError, match="shape"):
        mech.encode_sum(torch.zeros(2, 3), rng, out=torch.zeros(4, dtype=torch.int32))
    for wrong in (torch.zeros(3), np.zeros(3, np.int32), torch.zeros(3, 2, dtype=torch.int32)[:, 0]):
        with pytest.raises(TypeError, match="int32"):
            mech.encode_sum(torch.zeros(2, 3), rng, out=wrong)
    with pytest.raises(TypeError, match="dtype"):
        mech.encode(torch.zeros(3, dtype=torch.bool), rng)
    with pytest.raises(TypeError, match="SecureRandom"):
        mech.encode(torch.zeros(3), torch.Generator())
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
