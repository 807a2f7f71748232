"""Arrays of Flower's records as one vector, read where they lie; and bytes that are pickled where they lie."""

import pickle
import sys

import numpy as np
import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from rqm.flower.large import LEAST, Large, _fetched, large, of_large, share
from rqm.flower.records import answer
from rqm.flower.vectors import flat, size, unflat

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
    return ArrayRecord({name: Array(np.asarray(one)) for name, one in arrays.items()})


def damaged(data):
    whole = Array(np.arange(4.0))
    return ArrayRecord({"x": Array(whole.dtype, whole.shape, whole.stype, data(whole.data))})


def test_a_vector_is_what_numpy_reads_one_array_after_the_other():
    given = record(**ARRAYS)
    parts = [one.numpy().reshape(-1) for name, one in given.items() if name != "count"]
    assert flat(given).numpy().tobytes() == np.concatenate(parts).astype(np.float32).tobytes()
    assert size(given) == len(flat(given)) == 17


def test_a_vector_is_a_copy_that_may_be_overwritten():
    given = record(x=ARRAYS["plain"])
    flat(given).zero_()
    assert flat(given).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_record_comes_back_with_the_parts_of_a_vector_in_its_own_types():
    given = record(**ARRAYS)
    again = unflat(2 * flat(given), given)
    for name, one in given.items():
        expected = one.numpy() if name == "count" else (2 * one.numpy().astype(np.float32)).astype(one.numpy().dtype)
        assert again[name].numpy().dtype == one.numpy().dtype
        assert (again[name].numpy() == expected).all(), name


def test_a_record_of_a_vector_does_not_change_with_it():
    given, values = record(x=ARRAYS["plain"]), torch.ones(6)
    again = unflat(values, given)
    values.zero_()
    assert flat(again).tolist() == [1] * 6


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
    for read in (flat, size):
        with pytest.raises((ValueError, TypeError, EOFError)):
            read(damaged(data))


def test_arrays_in_another_form_are_refused():
    given = ArrayRecord({"x": Array("float32", (1,), "something else", bytes(200))})
    with pytest.raises(TypeError, match="something else"):
        flat(given)


def test_a_record_without_floats_is_no_vector():
    with pytest.raises(ValueError, match="nothing to train"):
        size(record(count=ARRAYS["count"]))


def test_large_bytes_are_pickled_in_their_place_and_arrive_as_plain_ones():
    given = record(x=np.arange(LEAST, dtype=np.float32), small=ARRAYS["plain"])
    places = []
    data = pickle.dumps(of_large(given), protocol=5, buffer_callback=places.append)
    assert len(data) < LEAST
    assert len(places) == 1
    again = pickle.loads(data, buffers=places)
    assert {type(one.data) for one in again.values()} == {bytes}
    assert again == given


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_any_pickler_takes_large_bytes(protocol):
    again = pickle.loads(pickle.dumps(Large(b"12"), protocol=protocol))
    assert (type(again), again) == (bytes, b"12")


def test_to_flower_large_bytes_are_bytes():
    given = record(x=np.arange(LEAST, dtype=np.float32))
    assert of_large(given).object_id == given.object_id
    told = answer(bytes(LEAST), seeded=False)
    assert isinstance(told["message"], Large)
    assert told.deflate() == ConfigRecord({"message": bytes(LEAST)}).deflate()
    assert type(ConfigRecord.inflate(told.deflate())["message"]) is bytes
    assert type(large(b"few")) is bytes


class Ray:
    """What is used of Ray, in this process: a memory of arrays, and how a type is pickled by it."""

    def __init__(self):
        self.util, self.stored, self.known, self.up = self, [], {}, True

    def is_initialized(self):
        return self.up

    def register_serializer(self, kind, *, serializer, deserializer):
        self.known[kind] = serializer, deserializer

    def put(self, array):
        self.stored.append(array)
        return len(self.stored) - 1

    def get(self, place):
        return self.stored[place]

    def sent(self, value):
        """The same value at a worker."""
        serializer, deserializer = self.known[type(value)]
        return deserializer(serializer(value))


@pytest.fixture
def ray(monkeypatch):
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    _fetched.cache_clear()
    return found


def model(*values):
    return RecordDict({"arrays": of_large(record(**{f"x{n}": np.full(LEAST, one) for n, one in enumerate(values)}))})


def test_a_model_is_put_into_rays_memory_once_and_fetched_once_by_a_worker(ray):
    one, other = model(1.0, 2.0), model(3.0)
    share(one)
    share(other)
    assert [len(arrays) for arrays in ray.stored] == [2, 1]
    for content in (one, one, other, one):
        sent = {name: ray.sent(array.data) for name, array in content["arrays"].items()}
        assert sent == {name: bytes(array.data) for name, array in content["arrays"].items()}
        assert {type(data) for data in sent.values()} == {bytes}
    again = [ray.sent(one["arrays"]["x0"].data) for _ in range(2)]
    assert again[0] is again[1]


def test_what_is_small_or_was_not_shared_is_sent_itself(ray):
    few = RecordDict({"arrays": of_large(record(x=ARRAYS["plain"])), "config": ConfigRecord({"a": 1})})
    share(few)
    assert not ray.stored
    assert ray.sent(Large(b"12")) == b"12"


def test_without_ray_nothing_is_shared(ray, monkeypatch):
    content = model(1.0)
    ray.up = False
    share(content)
    assert not ray.known
    ray.up = True
    share(content)
    ray.up = False  # the engine has ended; the process goes on
    assert ray.sent(content["arrays"]["x0"].data) == bytes(content["arrays"]["x0"].data)
    monkeypatch.delitem(sys.modules, "ray")
    share(content)
