"""Flower's records of arrays as one vector, and back."""

import numpy as np
import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import Array, ArrayRecord

from rqm.flower.arrays import from_vector, to_vector

ARRAYS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3) / 7),
    "half": np.float16([1.5, -2]),
    "swapped": np.array([3.25, 4], dtype=">f8"),
    "one": np.float32(5),
    "none": np.empty((0, 3), dtype=np.float32),
    "count": np.array([7]),
}


def record(**arrays):
    return ArrayRecord({name: Array(np.asarray(entry)) for name, entry in arrays.items()})


def damaged(data):
    whole = Array(np.arange(4.0))
    return ArrayRecord({"x": Array(whole.dtype, whole.shape, whole.stype, data(whole.data))})


def test_a_vector_is_what_numpy_reads_one_array_after_the_other():
    delivered = record(**ARRAYS)
    parts = [entry.numpy().reshape(-1) for name, entry in delivered.items() if name != "count"]
    assert to_vector(delivered).numpy().tobytes() == np.concatenate(parts).astype(np.float32).tobytes()
    assert len(to_vector(delivered)) == 17


def test_a_vector_is_a_copy_that_may_be_overwritten():
    delivered = record(x=ARRAYS["plain"])
    to_vector(delivered).zero_()
    assert to_vector(delivered).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_record_comes_back_with_the_parts_of_a_vector_in_its_own_types():
    delivered = record(**ARRAYS)
    again = from_vector(2 * to_vector(delivered), delivered)
    for name, entry in delivered.items():
        expected = (
            entry.numpy() if name == "count" else (2 * entry.numpy().astype(np.float32)).astype(entry.numpy().dtype)
        )
        assert again[name].numpy().dtype == entry.numpy().dtype
        assert (again[name].numpy() == expected).all(), name


def test_a_record_of_a_vector_does_not_change_with_it():
    delivered, values = record(x=ARRAYS["plain"]), torch.ones(6)
    again = from_vector(values, delivered)
    values.zero_()
    assert to_vector(again).tolist() == [1] * 6


@pytest.mark.parametrize(
    "data",
    [
        lambda data: b"",
        lambda data: b"nonsense" * 9,
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data.replace(b"(4,)", b"(-4,)"),
        lambda data: data.replace(b"'<f8'", b"'|O8'"),
        lambda data: data[:6] + bytes([9]) + data[7:],
    ],
)
def test_bytes_that_are_no_array_are_refused(data):
    with pytest.raises((ValueError, TypeError, EOFError)):
        to_vector(damaged(data))


def test_arrays_in_another_form_are_refused():
    delivered = ArrayRecord({"x": Array("float32", (1,), "something else", bytes(200))})
    with pytest.raises(TypeError, match="something else"):
        to_vector(delivered)


def test_a_record_without_floats_is_no_vector():
    with pytest.raises(ValueError, match="nothing to train"):
        to_vector(record(count=ARRAYS["count"]))
