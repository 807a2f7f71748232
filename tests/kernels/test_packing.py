"""Bit packing: the documented layout, every width, and errors for whatever does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.kernels.packing import TILE_COLUMNS, pack, packed_size, unpack


def layout(values, bits):
    """The documented layout, in Python integers."""
    width = 8 if bits <= 8 else 16 if bits <= 16 else 32
    columns = -(-len(values) // width)
    words = [0] * (bits * columns)
    for c in range(columns):
        stream = sum(
            int(values[row * columns + c]) << bits * row for row in range(width) if row * columns + c < len(values)
        )
        for k in range(bits):
            words[k * columns + c] = stream >> width * k & (2**width - 1)
    return b"".join(word.to_bytes(width // 8, "little") for word in words)


@given(bits=st.integers(1, 32), size=st.integers(0, 200), seed=st.integers(0, 99))
def test_the_layout_is_the_documented_one(bits, size, seed):
    values = np.random.default_rng(seed).integers(0, 2**bits, size=size, dtype=np.uint64)
    data = pack(values, bits)
    assert data.tobytes() == layout(values, bits)
    assert len(data) == packed_size(size, bits)
    assert (unpack(data, bits, size) == values).all()


@pytest.mark.parametrize("bits", range(1, 33))
@pytest.mark.parametrize("size", [31, 8 * TILE_COLUMNS + 1, 100_003])
def test_every_width_comes_back(bits, size):
    rng = np.random.default_rng(bits)
    for dtype in (np.uint8, np.uint16, np.int32, np.uint32, np.int64):
        top = min(2**bits - 1, np.iinfo(dtype).max)
        values = rng.integers(0, top, size=size, endpoint=True, dtype=np.uint64).astype(dtype)
        values[[0, -1]] = top
        unpacked = unpack(pack(values, bits).tobytes(), bits, size)
        assert unpacked.dtype.itemsize == (1 if bits <= 8 else 2 if bits <= 16 else 4)
        assert (unpacked == values).all()


def test_what_does_not_fit_is_refused():
    for values, bits, words in (
        ([3, 16, 1], 4, r"16: must lie in 0\.\.15"),
        ([3, -1], 32, "-1"),
        (np.array([2**40]), 32, str(2**40)),
        (np.array([1, -5], dtype=np.int8), 8, "-5"),
    ):
        with pytest.raises(ValueError, match=words):
            pack(np.asarray(values), bits)
    with pytest.raises(TypeError, match="float64"):
        pack([0.5], 4)
    for bits in (0, 33):
        with pytest.raises(ValueError, match="bits"):
            pack([0], bits)
    with pytest.raises(TypeError, match="bits"):
        pack([0], 4.0)
    assert pack([], 4).size == 0
    assert unpack(b"", 4, 0).size == 0


@given(data=st.binary(max_size=40), bits=st.integers(1, 32), count=st.integers(0, 60))
def test_a_message_of_the_wrong_length_is_refused(data, bits, count):
    if len(data) == packed_size(count, bits):
        assert unpack(data, bits, count).size == count
    else:
        with pytest.raises(ValueError, match=f"data has {len(data)} bytes"):
            unpack(data, bits, count)


def test_numbers_of_numpy_count_like_those_of_python():
    values = np.full(160_000, 7, dtype=np.uint8)
    for kind in (np.int8, np.uint8, np.int16):
        data = pack(values, kind(4))
        assert len(data) == 80_000
        assert (unpack(data, kind(4), np.int32(160_000)) == values).all()
    swapped = np.arange(500, dtype=">u2")
    assert (unpack(pack(swapped, 9), 9, 500) == swapped).all()


def test_any_buffer_is_read_even_from_an_odd_address():
    values = np.arange(1000, dtype=np.uint32) * 70_000
    data = b"x" + pack(values, 27).tobytes()
    assert (unpack(memoryview(data)[1:], 27, 1000) == values).all()
    assert (unpack(bytearray(data[1:]), 27, 1000) == values).all()


def test_strided_and_many_dimensional_values_are_packed_in_order():
    values = np.arange(24).reshape(4, 6)
    assert (unpack(pack(values.T, 5), 5, 24) == values.T.ravel()).all()
