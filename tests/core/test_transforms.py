"""Rotation, clipping and the L2 budget, which holds in integers whatever floats do."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rqm.encoding import tensors
from scipy.linalg import hadamard as reference

from rqm import PBM, RQM, StochasticRounding
from rqm._util.checks import padded
from rqm.core.torch_transform import l2_clip
from rqm.core.torch_transform import signs as own_signs
from rqm.core.transform import Rotation, budget, hadamard, over_budget, prepare, usable_length


@pytest.mark.parametrize("bits", [0, 1, 3, 5, 6, 11])
def test_the_transform_is_the_hadamard_matrix(bits):
    x = torch.from_numpy(np.random.default_rng(bits).normal(size=(3, 1 << bits)))
    expected = x.numpy() @ reference(1 << bits) / 2 ** (bits / 2)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=1e-12)
    with pytest.raises(ValueError, match="power of two"):
        hadamard(torch.zeros(1, 12))


@given(st.integers(1, 300), st.integers(0, 2**40))
def test_a_rotation_keeps_lengths_and_can_be_undone(dim, seed):
    rotation = Rotation(dim, seed)
    x = torch.randn(2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = rotation.forward(x)
    assert y.shape == (2, padded(dim))
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))
    torch.testing.assert_close(rotation.inverse(y), x)
    assert (rotation.forward(x) == y).all()


@pytest.mark.parametrize("dim", [1, 3, 100, 5000])
def test_tensors_are_rotated_alike_without_the_compiler_and_so_are_arrays(dim, monkeypatch):
    rotation, mech = Rotation(dim, 9), StochasticRounding(clip=0.1, levels=2, margin=2.0)
    x = torch.randn(3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    x[1, 0] = torch.nan

    def found(x):
        rows, finite = prepare(x, 0.7, rotation)
        back = rotation.inverse(rows)
        return [np.asarray(part) for part in (rows, finite, back, hadamard(rows), over_budget(mech, rows, 0.5))]

    compiled, arrays = found(x.clone()), found(x.numpy().copy())
    monkeypatch.setattr(tensors, "_has_numba", lambda: False)
    for plain, *others in zip(found(x.clone()), compiled, arrays, strict=True):
        for other in others:
            np.testing.assert_allclose(other, plain, atol=1e-13)
    assert compiled[1].tolist() == [True, False, True]


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-160, 1e-110, 1.0, 1e110, 1e160, 1e300])
def test_arrays_of_any_size_are_clipped(size):
    x = size * np.array([[3.0, -4.0], [0.0, 0.0]])
    rows, finite = prepare(x, 1e-200, None)
    assert finite.all()
    norm = 5 * size
    np.testing.assert_allclose(rows[0], [0.6 * min(norm, 1e-200), -0.8 * min(norm, 1e-200)], rtol=1e-12)
    assert (rows[1] == 0).all()


def test_signs_are_fair_and_new_with_every_seed():
    signs = torch.stack([own_signs(seed, torch.zeros(1, 2**14)) for seed in range(20)])
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert (signs.mean(1).abs() < 5 / 2**7).all()
    close = (signs @ signs.T / 2**14 - torch.eye(20)).abs().max()
    assert close < 6 / 2**7


def test_a_spike_is_flattened_and_few_coordinates_are_beyond_the_clip():
    dim = 2**16
    spike = torch.zeros(1, dim)
    spike[0, 7] = 1.0
    assert Rotation(dim, 3).forward(spike).abs().max() == pytest.approx(2**-8)
    # The bias of clipping at K = 4 for a vector in general position: what is cut off, over its length.
    x = torch.randn(1, dim, generator=torch.Generator().manual_seed(0)).exp()  # heavy tails
    x /= x.norm()
    y = Rotation(dim, 3).forward(x)
    lost = [float((y - y.clamp(-k / 2**8, k / 2**8)).norm()) for k in (2, 3, 4)]
    assert lost[0] > lost[1] > lost[2]
    assert lost[2] < 5e-3
    assert 1e-2 < lost[1] < 4e-2 < lost[0]


def test_l2_clipping_scales_and_silences():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0], [torch.inf, 1.0], [0.0, 0.0]])
    assert l2_clip(x, 1.0).tolist() == [True, True, False, False, True]
    torch.testing.assert_close(x, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0], [0, 0], [0, 0]]), rtol=1e-4, atol=0)
    y = torch.tensor([[3.0, 4.0], [torch.nan, 1.0]])
    assert l2_clip(y, None).tolist() == [True, False]
    assert y.tolist() == [[3.0, 4.0], [0.0, 0.0]]


mechanisms = st.one_of(
    st.builds(StochasticRounding, clip=st.floats(1e-6, 10), levels=st.just(2), margin=st.floats(0.5, 100)),
    st.builds(RQM, clip=st.floats(1e-6, 10), levels=st.just(16), margin=st.floats(0.1, 100)),
    st.builds(PBM, clip=st.floats(1e-6, 10), theta=st.floats(0.01, 0.45)),
)


@settings(max_examples=60)
@given(mechanisms, st.integers(1, 40), st.floats(0.2, 5), st.integers(0, 2**32))
def test_the_budget_is_exact_in_integers(mech, dim, ratio, seed):
    """Against whole numbers of any size: the squared positions from the middle, as the encoder sees them."""
    rng = np.random.default_rng(seed)
    x = mech.clip * rng.uniform(-1.3, 1.3, size=(6, dim)) * rng.choice([1e-3, 0.5, 1.0], size=(6, 1))
    bound = ratio * mech.clip
    low, high = (int(p) for p in mech.position(np.array([-2 * mech.clip, 2 * mech.clip])))
    limit = (Fraction(ratio * mech.clip / mech.clip) * (high - low) / 2) ** 2
    assert budget(mech, bound) <= limit < budget(mech, bound) + 1
    found = over_budget(mech, torch.from_numpy(x), bound).tolist()
    for row, over in zip(x, found, strict=True):
        exact = sum((Fraction(int(p)) - Fraction(low + high, 2)) ** 2 for p in mech.position(row))
        assert over == (exact > budget(mech, bound))


def test_long_vectors_of_wide_positions_are_judged_on_the_safe_side():
    mech = StochasticRounding(clip=1.0, levels=2, margin=0.0)  # the widest span: 2**24 positions
    x = torch.full((2, 2**18), 0.01)
    length = float(x[0].double().norm())
    assert over_budget(mech, x, length * (1 - 1e-4)).all()
    assert not over_budget(mech, x, length * (1 + 1e-4)).any()


def test_floats_that_overshoot_are_caught():
    """Scaling to the bound in float32 alone overshoots now and then; with the room left for it, it never does."""
    mech, rng = StochasticRounding(clip=0.05, levels=2, margin=20.0), torch.Generator().manual_seed(0)
    x = torch.randn(300, 4096, generator=rng)
    naive = x / x.norm(dim=1, keepdim=True)
    assert over_budget(mech, naive, 1.0).any()
    l2_clip(x, usable_length(mech, 1.0, 4096))
    assert not over_budget(mech, x, 1.0).any()


def test_lengths_are_padded_to_a_power_of_two():
    assert padded(1) == 1
    assert padded(3) == 4
    assert padded(1_018_174) == 2**20
