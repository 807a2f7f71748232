"""The compiled rotation against sums and differences written plainly, to the last bit."""

import numpy as np
import pytest

from rqm import StochasticRounding
from rqm.core.quantizer import CoordinateQuantizer
from rqm.core.transform import sign_bits, signs
from rqm.kernels import rotation


def plainly(x, first_factor=1.0, last_factor=1.0):
    """Level after level, the nearest numbers first."""
    x, stride = (x * first_factor).astype(x.dtype), 1
    while stride < x.shape[1]:
        pairs = x.reshape(len(x), -1, 2, stride)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(x), -1)
        stride *= 2
    return x * last_factor


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [*range(18), 20])
def test_it_is_sums_and_differences_in_their_order_on_any_number_of_threads(bits, kind):
    x = np.random.default_rng(bits).normal(size=(3 if bits < 18 else 1, 1 << bits)).astype(kind)
    expected = plainly(x, kind(1 / np.sqrt(1 << bits)))
    for threads in (1, 2, 3):
        out = np.full_like(x, np.nan)
        rotation.rotate(x, out, threads=threads)
        assert (out == expected).all()
    rotation.rotate(x, x)
    assert (x == expected).all()


@pytest.mark.parametrize(
    ("dim", "bits"), [(1, 0), (3, 2), (50, 6), (64, 6), (1000, 10), (40_000, 16), (200_001, 18), (300_000, 19)]
)
def test_signs_go_before_or_after_it_and_the_rest_is_padded(dim, bits):
    x, sign_words = np.random.default_rng(dim).normal(size=(2, dim)), signs(7, 1 << bits)
    padded_rows = np.zeros((2, 1 << bits))
    padded_rows[:, :dim] = x
    factors, scale = np.array([0.25, 3.0]), 1 / np.sqrt(1 << bits)
    out = np.empty_like(padded_rows)
    rotation.rotate(x, out, factors=factors, signs=sign_bits(7, 1 << bits))
    assert (out == plainly(padded_rows, (factors * scale)[:, None] * sign_words)).all()
    rotation.rotate(padded_rows, out, signs=sign_bits(7, 1 << bits), signs_last=True)
    assert (out == plainly(padded_rows, scale, sign_words)).all()


def test_floats_of_32_bits_are_widened_where_the_result_is():
    x = np.random.default_rng(0).normal(size=(1, 300)).astype(np.float32)
    out = np.empty((1, 512))
    rotation.rotate(x, out)
    assert (out == plainly(np.pad(x.astype(np.float64), ((0, 0), (0, 212))), 1 / np.sqrt(512))).all()


def test_more_columns_than_two_passes_reach_take_a_third():
    x = np.random.default_rng(0).normal(size=(1, 2**22)).astype(np.float32)
    out = np.empty_like(x)
    rotation.rotate(x, out, threads=2)
    assert (out == plainly(x, np.float32(2.0**-11))).all()


def test_a_row_without_a_factor_is_zero_whatever_it_holds():
    x = np.array([[np.nan, np.inf, 1.0], [1.0, 0.0, 0.0]])
    out = np.empty((2, 4))
    rotation.rotate(x, out, factors=np.array([0.0, 1.0]))
    assert out.tolist() == [[0.0] * 4, [0.5] * 4]


def test_twelve_columns_are_refused():
    with pytest.raises(ValueError, match="12 columns: must be a power of two"):
        rotation.rotate(np.zeros((1, 12)), np.zeros((1, 12)))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [0, 1, 1000, 100_000])
def test_squares_are_summed_up(dim, kind):
    x = np.random.default_rng(0).normal(size=(3, dim)).astype(kind)
    sums = [rotation.square_sums(x, threads) for threads in (1, 2)]
    np.testing.assert_allclose(sums[0], (x.astype(float) ** 2).sum(axis=1), rtol=1e-12)
    assert (sums[0] == sums[1]).all()
    if dim:
        x[1, -1] = np.nan
        assert np.isfinite(rotation.square_sums(x)).tolist() == [True, False, True]


@pytest.mark.parametrize("dim", [1, 1000, 100_000])
def test_squares_of_positions_are_those_of_whole_numbers_of_any_size(dim):
    mech = StochasticRounding(clip=1.0, levels=2, margin=0.5)
    x = np.random.default_rng(dim).uniform(-1.5, 1.5, size=(2, dim))
    shift, sampler = CoordinateQuantizer(mech, dim, 1.0).dropped_bits, mech.sampler
    for row, sums in zip(x, rotation.squares(sampler, x, shift), strict=True):
        twice = [abs(2 * int(p) - sampler.low - sampler.high) for p in sampler.position(row)]
        assert int(sums) == sum(((t >> shift) + 1 if shift else t) ** 2 for t in twice)
