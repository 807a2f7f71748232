"""The public transform: the rotation, the L2 clip, and the choice of coordinates, of arrays and of tensors."""

from itertools import combinations
from math import erfc, exp, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard as reference

from rqm import StochasticRounding
from rqm._util.checks import padded
from rqm.core import torch_transform
from rqm.core.quantizer import CoordinateQuantizer
from rqm.core.transform import (
    CoordinateChoice,
    Rotation,
    Transform,
    choose_indices,
    clip_and_rotate,
    hadamard,
    max_clipped_length,
    second_clip,
    signs,
)

# -- the rotation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 1, 3, 5, 6, 11])
def test_the_transform_is_the_hadamard_matrix(bits):
    x = torch.from_numpy(np.random.default_rng(bits).normal(size=(3, 1 << bits)))
    expected = x.numpy() @ reference(1 << bits) / 2 ** (bits / 2)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=1e-12)
    with pytest.raises(ValueError, match="power of two"):
        hadamard(torch.zeros(1, 12))


@given(st.integers(1, 300), st.integers(0, 2**40))
def test_a_rotation_keeps_lengths_and_has_an_inverse(dim, seed):
    rotation = Rotation(dim, seed)
    x = torch.randn(2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = rotation.forward(x)
    assert y.shape == (2, padded(dim))
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))
    torch.testing.assert_close(rotation.inverse(y), x)
    assert (rotation.forward(x) == y).all()


@pytest.mark.parametrize("dim", [1, 3, 100, 5000])
def test_arrays_and_tensors_with_and_without_the_compiler_agree(dim, monkeypatch):
    rotation = Rotation(dim, 9)
    quantizer = CoordinateQuantizer(StochasticRounding(clip=0.1, levels=2, margin=2.0), padded(dim), 0.5)
    x = torch.randn(3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    x[1, 0] = torch.nan

    def outputs(x):
        rows, finite = clip_and_rotate(x, 0.7, rotation)
        values = rows, finite, rotation.inverse(rows), hadamard(rows), quantizer.exceeds_bound(rows)
        return [np.asarray(value) for value in values]

    compiled, arrays = outputs(x.clone()), outputs(x.numpy().copy())
    monkeypatch.setattr(torch_transform, "_has_numba", lambda: False)
    for expected, *other_outputs in zip(outputs(x.clone()), compiled, arrays, strict=True):
        for output in other_outputs:
            np.testing.assert_allclose(output, expected, atol=1e-13)
    assert compiled[1].tolist() == [True, False, True]


def test_signs_are_fair_and_differ_between_seeds():
    rows = torch.stack([torch_transform.signs(seed, torch.zeros(1, 2**14)) for seed in range(20)])
    assert set(rows.unique().tolist()) == {-1.0, 1.0}
    assert (rows.mean(1).abs() < 5 / 2**7).all()
    assert (rows @ rows.T / 2**14 - torch.eye(20)).abs().max() < 6 / 2**7
    assert (rows[3].numpy() == signs(3, 2**14)).all()


def test_a_spike_becomes_flat_and_few_coordinates_exceed_the_clip():
    dim = 2**16
    spike = torch.zeros(1, dim)
    spike[0, 7] = 1.0
    assert Rotation(dim, 3).forward(spike).abs().max() == pytest.approx(2**-8)
    # What a clip at k root mean squares cuts off a vector with heavy tails, over its length.
    x = torch.randn(1, dim, generator=torch.Generator().manual_seed(0)).exp()
    y = Rotation(dim, 3).forward(x / x.norm())
    cut_off = [float((y - y.clamp(-k / 2**8, k / 2**8)).norm()) for k in (2, 3, 4)]
    assert cut_off[0] > 0.04
    assert 0.01 < cut_off[1] < 0.04
    assert cut_off[2] < 0.005


@pytest.mark.parametrize(("dim", "expected"), [(1, 1), (3, 4), (1_018_174, 2**20)])
def test_vectors_are_padded_to_a_power_of_two(dim, expected):
    assert Rotation(dim, 0).padded == expected


# -- the L2 clip ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-160, 1e-110, 1.0, 1e110, 1e160, 1e300])
def test_arrays_of_any_size_are_clipped(size):
    rows, finite = clip_and_rotate(size * np.array([[3.0, -4.0], [0.0, 0.0]]), 1e-200, None)
    assert finite.all()
    length = min(5 * size, 1e-200)
    np.testing.assert_allclose(rows, [[0.6 * length, -0.8 * length], [0, 0]], rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_rows_are_scaled_down_and_rows_that_are_not_finite_become_zero(kind):
    x = [[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0]]
    for length, first_row in ((1.0, [0.6, 0.8]), (None, [3.0, 4.0])):
        rows, finite = clip_and_rotate(kind(x), length, None)
        assert finite.tolist() == [True, True, False, False, True]
        np.testing.assert_allclose(rows, [first_row, [0.3, 0.4], [0, 0], [0, 0], [0, 0]], rtol=1e-4)


# -- the choice of coordinates --------------------------------------------------------------------


@pytest.mark.parametrize(("count", "total"), [(1, 2), (1, 8), (3, 8), (5, 8), (7, 8), (40, 64), (2**12, 2**16)])
def test_chosen_indices_are_distinct_sorted_and_reproducible(count, total):
    indices = choose_indices(1, 2, count, total)
    assert len(indices) == count
    assert (np.diff(indices) > 0).all()
    assert 0 <= indices[0] <= indices[-1] < total
    choose_indices.cache_clear()
    assert (choose_indices(1, 2, count, total) == indices).all()


@pytest.mark.statistical
@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_all_sets_of_indices_are_equally_likely(count):
    sets = dict.fromkeys(combinations(range(8), count), 0)
    for round_index in range(50 * len(sets)):
        sets[tuple(choose_indices(5, round_index, count, 8).tolist())] += 1
    counts = np.array(list(sets.values()))

    def deviation():
        return abs(((counts - 50) ** 2 / 50).sum() - len(sets)) / (2 * len(sets)) ** 0.5

    assert deviation() < 6
    counts[0] += 60  # one set that came twice as often would be seen
    assert deviation() > 6


def test_arrays_and_tensors_choose_the_same_coordinates():
    rotation, choice = Rotation(1000, 4), CoordinateChoice(1000, 64, seed=3, round_index=1)
    transform, x = Transform(1.0, rotation, choice, 0.8), np.random.default_rng(0).normal(size=(1, 1000))
    rows, tensors = transform.forward(x.copy())[0], transform.forward(torch.from_numpy(x))[0]
    assert rows.shape == (1, 64)
    assert np.linalg.norm(rows) == pytest.approx(0.8)  # the second clip
    np.testing.assert_allclose(tensors.numpy(), rows, atol=1e-13)
    np.testing.assert_allclose(transform.inverse(tensors[0]).numpy(), transform.inverse(rows[0].copy()), atol=1e-13)
    unclipped, expected, indices = (
        Transform(None, rotation, choice),
        np.zeros((1, 1024)),
        choose_indices(3, 1, 64, 1024),
    )
    expected[:, indices] = 16 * rotation.forward(x)[:, indices]  # (√(1024/64))², or E[MᵀM] would not be I
    inverse = unclipped.inverse(unclipped.forward(x)[0][0])
    np.testing.assert_allclose(inverse, rotation.inverse(expected)[0], atol=1e-12)


def mean_clipped_length(count):
    """The fraction by which the second clip shortens a vector of norm C on average, if coordinates are Gaussian."""
    deviation, tail = 1 / sqrt(2 * count), erfc(3 / sqrt(2)) / 2
    return deviation * (exp(-(3**2) / 2) / sqrt(2 * pi) - 3 * tail)


@pytest.mark.statistical
@pytest.mark.parametrize("count", [16, 256])
def test_the_second_clip_shortens_vectors_by_no_more_than_stated(count):
    rng, shortened = np.random.default_rng(3), []
    for round_index in range(2000):
        x = rng.normal(size=(1, 1024)) if round_index % 2 else np.eye(1024)[:2].sum(axis=0)[None]
        rotated = Rotation(1024, round_index).forward(x / np.linalg.norm(x))
        chosen = CoordinateChoice(1024, count, 0, round_index).forward(rotated)
        shortened.append(max(0.0, 1 - second_clip(count) / np.linalg.norm(chosen)))
    assert np.mean(shortened) <= max_clipped_length(count)
    assert np.mean(shortened[1::2]) < 10 * mean_clipped_length(count) + 1e-5  # of Gaussian vectors
    assert 0 < mean_clipped_length(count) < max_clipped_length(count) < 0.1
