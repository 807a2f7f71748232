"""Tensor files: the safetensors library reads them, and forged ones are refused."""

import json
from hashlib import sha256

import numpy as np
import pytest

from rqm._util.tensor_file import dump, parse

ARRAYS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 3), np.float32)}


def signed(data):
    """The same bytes with a right checksum."""
    start = data.index(b'"sha256": "') + len(b'"sha256": "')
    blank = data[:start] + b"0" * 64 + data[start + 64 :]
    return blank.replace(b"0" * 64, sha256(blank).hexdigest().encode(), 1)


def test_the_library_reads_the_same_arrays():
    safetensors = pytest.importorskip("safetensors.numpy")
    data = dump(ARRAYS, {"note": "ε"})
    arrays, texts = parse(data)
    assert texts == {"note": "ε"}
    for loaded in (arrays, safetensors.load(data)):
        assert loaded.keys() == ARRAYS.keys()
        assert all(np.array_equal(loaded[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize("shape", [[-1], [2, -3], [1e300], [2.5], ["3"], [[3]], None, {}, [2**62, 4], [10**400]])
def test_a_shape_that_no_tensor_has_is_refused(shape):
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"__metadata__": {"sha256": "0" * 64}, "x": entry}).encode()
    with pytest.raises(ValueError, match="x is "):
        parse(signed(len(header).to_bytes(8, "little") + header))


def test_every_changed_byte_is_noticed():
    data = dump(ARRAYS, {})
    for index in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            parse(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
