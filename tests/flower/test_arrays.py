"""Which arrays of a model are trained; those arrays as a vector, and back; all others bit for bit as they were."""

import numpy as np
import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from rqm.flower import private_mod
from rqm.flower.arrays import TrainedArrays
from tests.flower.local import LocalGrid, arrays, start, train_locally, training_app
from tests.simulation.small import federation

ARRAYS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3) / 7),
    "half": np.float16([1.5, -2]),
    "swapped": np.array([3.25, 4], dtype=">f8"),
    "one": np.float32(5),
    "none": np.empty((0, 3), dtype=np.float32),
}
UNTRAINED = {"count": np.array([7]), "text": np.array(["a", "b"]), "flags": np.array([True, False])}


def record(**values):
    return ArrayRecord({name: Array(np.asarray(entry)) for name, entry in values.items()})


def damaged(data):
    whole = Array(np.arange(4.0))
    return ArrayRecord({"x": Array(whole.dtype, whole.shape, whole.stype, data(whole.data))})


MIXED, TRAINED = record(**ARRAYS, **UNTRAINED), TrainedArrays(tuple(ARRAYS))


# -- vectors --------------------------------------------------------------------------------------


def test_a_vector_is_what_numpy_reads_one_array_after_the_other():
    vector = TRAINED.read(MIXED)
    expected = np.concatenate([np.asarray(values).reshape(-1).astype(np.float64) for values in ARRAYS.values()])
    assert vector.tobytes() == expected.tobytes()
    assert TRAINED.size(MIXED) == len(vector) == 17


def test_a_vector_is_a_copy_that_may_be_overwritten():
    delivered = record(x=ARRAYS["plain"].astype(np.float64))
    TrainedArrays(("x",)).read(delivered)[:] = 0
    assert delivered["x"].numpy().reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_record_moves_by_an_update_in_its_own_types():
    update = np.linspace(-1, 1, 17)
    moved, start_ = TRAINED.moved(MIXED, update), 0
    for name, values in ARRAYS.items():
        old = np.asarray(values)
        expected = (old.astype(np.float64) + update[start_ : start_ + old.size].reshape(old.shape)).astype(old.dtype)
        start_ += old.size
        assert (moved[name].numpy().dtype, moved[name].numpy().shape) == (old.dtype, old.shape)
        assert moved[name].numpy().tobytes() == np.ascontiguousarray(expected).tobytes(), name
    assert all(moved[name] == MIXED[name] for name in UNTRAINED)
    assert (TRAINED.read(MIXED) == TRAINED.read(record(**ARRAYS))).all()  # the record itself did not move


def test_what_a_strategy_changed_that_is_not_trained_is_restored_bit_for_bit():
    changed = record(**{name: np.asarray(values, np.float64) + 1 for name, values in (ARRAYS | {"count": 7}).items()})
    restored = TRAINED.restored(changed, MIXED)
    assert list(restored) == list(MIXED)
    assert all(restored[name] == MIXED[name] for name in UNTRAINED)
    for name, values in ARRAYS.items():
        assert restored[name].numpy().dtype == np.asarray(values).dtype
        assert (restored[name].numpy() == (np.asarray(values, np.float64) + 1).astype(np.asarray(values).dtype)).all()


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
        TrainedArrays(("x",)).read(damaged(data))


def test_arrays_in_another_form_are_refused():
    with pytest.raises(TypeError, match="something else"):
        TrainedArrays(("x",)).read(ArrayRecord({"x": Array("float32", (1,), "something else", bytes(200))}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"y": np.zeros(3)}, "x: is missing among the arrays"),
        ({"x": np.zeros((3, 1))}, r"x: has shape \(3, 1\): must be \(3,\)"),
        ({"x": np.zeros(3, np.complex64)}, "x: has dtype complex64: must be floats"),
        ({"x": np.zeros(3, int)}, "x: has dtype int64: must be floats"),
        ({"x": np.array(["1", "2", "3"])}, "x: has dtype <U1: must be floats"),
    ],
)
def test_arrays_of_another_name_shape_or_type_are_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        TrainedArrays(("x",)).read(record(**values), record(x=np.zeros(3)))


# -- which arrays are trained ---------------------------------------------------------------------


class Model(nn.Module):
    """A frozen layer, batch normalization, and an output layer whose weight is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.base, self.norm, self.mix = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.tied, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.tied.weight = self.mix.weight
        self.base.requires_grad_(False)
        self.base.half().float()
        self.register_buffer("scale", torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return self.head(torch.tanh(self.tied(torch.tanh(self.mix(self.norm(self.base(x)))))))


FROZEN = {"base.weight", "base.bias"}
BUFFERS = {"scale", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_of_a_model_those_parameters_are_trained_that_require_a_gradient():
    net = Model()
    trained = TrainedArrays.of(arrays(net), net)
    assert set(trained.names) == set(net.state_dict()) - FROZEN - BUFFERS - {"tied.weight"}
    assert trained.tied == (("tied.weight", "mix.weight"),)
    averaged = TrainedArrays.of(arrays(net), net, buffers=True)
    assert set(averaged.names) - set(trained.names) == BUFFERS - {"norm.num_batches_tracked"}


def test_names_of_trained_arrays_may_be_given_instead():
    assert TrainedArrays.of(MIXED, trainable=["half", "plain"]).names == ("half", "plain")
    assert TrainedArrays.of(record(**ARRAYS)).names == tuple(ARRAYS)


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        (MIXED, {}, r"count: is no trained array of floats: give model=net, or trainable=\[…\]"),
        (record(**{"norm.running_var": np.ones(2)}), {}, "norm.running_var: is no trained array"),
        (record(**{"a.num_batches_tracked": np.ones(())}), {}, "num_batches_tracked: is no trained array"),
        (MIXED, {"trainable": ["count"]}, "count: has dtype int64: must be floats to be trained"),
        (MIXED, {"trainable": ["other"]}, "other: is trained, but not among the arrays: plain, columns,"),
        (MIXED, {"trainable": []}, "has no array that is trained"),
        (MIXED, {"model": nn.Linear(2, 2), "trainable": ["one"]}, "model, trainable: must not both be given"),
        (MIXED, {"model": nn.Linear(2, 2)}, "weight: is trained, but not among the arrays"),
        (MIXED, {"model": nn.Linear(2, 2).requires_grad_(False)}, "has no array that is trained"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(values, options, reason):
    with pytest.raises(ValueError, match=reason):
        TrainedArrays.of(values, **options)


# -- through a whole run --------------------------------------------------------------------------

CONFIG = {"rqm.epsilon": 500.0, "rqm.clients": 6, "rqm.rounds": 3}


def run(tmp_path, **options):
    """Three rounds of a model with frozen layers, batch normalization and tied weights."""
    net, grid = Model(), LocalGrid(training_app(private_mod, net=Model), 6, CONFIG)
    choose = lambda record: TrainedArrays.of(record, net, **options)  # noqa: E731
    result, private = start(grid, CONFIG, tmp_path, net=net, choose=choose)
    return arrays(net), result.arrays, private, grid


def test_frozen_layers_buffers_and_types_come_back_bit_for_bit_and_the_rest_is_trained(tmp_path):
    """Clients' own batch statistics and counts stay with them; batch normalization once ended runs at round 2."""
    before, after, private, _ = run(tmp_path)
    assert list(after) == list(before)
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        assert after[name].shape == array.shape
        assert (after[name].numpy().tobytes() == array.numpy().tobytes()) == (name in FROZEN | BUFFERS), name
    assert after["tied.weight"].numpy().tobytes() == after["mix.weight"].numpy().tobytes()
    assert private.run.plan.layout.size == sum(before[name].numpy().size for name in private.run.plan.trained)
    assert private.run.released == 3


def test_buffers_of_floats_are_averaged_if_asked(tmp_path):
    before, after, _, _ = run(tmp_path, buffers=True)
    assert np.abs(after["norm.running_mean"].numpy() - before["norm.running_mean"].numpy()).max() > 0
    assert after["norm.num_batches_tracked"].numpy() == before["norm.num_batches_tracked"].numpy()
    assert after["norm.num_batches_tracked"].dtype == before["norm.num_batches_tracked"].dtype


def test_a_model_with_tied_weights_learns_as_one(tmp_path):
    """Its weight is sent once, and moves by the mean of what clients made of it."""
    _, after, private, _ = run(tmp_path)
    assert "tied.weight" not in private.run.plan.trained
    net = Model()
    net.load_state_dict(after.to_torch_state_dict())
    assert net.mix.weight is net.tied.weight
    x, y = federation(clients=6).train[0]
    assert train_locally(net, x, y, 0.1) < train_locally(Model(), x, y, 0.1)
