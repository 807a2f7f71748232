"""Clipped gradients of records: the same sum as one record after the other, whatever the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm import PrivateMean
from rqm.mechanisms.noiseless import Noiseless
from rqm.training import records
from rqm.training.models import MODELS
from rqm.training.records import PerRecord
from rqm.training.work import losses


class Twice(nn.Module):
    """A layer that is used twice, so that its gradients of a record add up before their length is known."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(784, 784), nn.Linear(784, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Sequence(nn.Module):
    """A dense layer on sequences: rows of the picture."""

    def __init__(self):
        super().__init__()
        self.row, self.out = nn.Linear(28, 9), nn.Linear(9, 10, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.row(x.squeeze(1))).mean(dim=1))


class Normalised(nn.Module):
    """A normalisation within each record."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 8, 5, stride=4), nn.GroupNorm(2, 8), nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.out(functional.relu(self.norm(self.conv(x))).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.GRU(28, 12, batch_first=True), nn.Linear(12, 10)

    def forward(self, x):
        return self.out(self.rows(x.squeeze(1))[0][:, -1])


def data(count, seed=0, classes=10):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 28, 28, generator=rng), torch.randint(classes, (count,), generator=rng)


def size_of(model):
    return sum(p.numel() for p in model.parameters())


def per_record(model, clip=1.0, each=losses, count=5):
    mean = PrivateMean(
        unit="record", mechanism=Noiseless(), clients=2, delta=1e-6, dim=size_of(model), l2_clip=100.0, record_clip=clip
    )
    return PerRecord(model, each, mean, data(count, seed=9))


def plainly(model, inputs, labels, clip):
    """One backward pass a record."""
    total = 0
    for x, y in zip(inputs, labels, strict=True):
        parts = torch.autograd.grad(losses(model, x[None], y[None]).sum(), list(model.parameters()))
        flat = torch.cat([part.reshape(-1) for part in parts]).double()
        total = total + flat * min(1.0, clip / float(flat.norm()))
    return total


WAYS = [
    (lambda: MODELS["linear"](10), "layers"),
    (lambda: MODELS["small-cnn"](10), "layers"),
    (lambda: MODELS["paper-cnn"](10), "layers"),
    (Sequence, "layers"),
    (Twice, "vmap"),
    (Normalised, "vmap"),
    (Recurrent, "one by one"),
]


@pytest.mark.parametrize(("make", "way"), WAYS)
def test_all_ways_come_to_the_same_sum(make, way, monkeypatch):
    torch.manual_seed(1)
    model = make()
    assert per_record(model).name == way
    monkeypatch.setattr(records, "RECORDS", {"cpu": 4})  # virtual batches: 4, 4, 3
    inputs, labels = data(11)
    norms = [float(plainly(model, inputs[i : i + 1], labels[i : i + 1], 1e9).norm()) for i in range(11)]
    for clip in (sorted(norms)[5], 1e-2):  # half of them, and all
        found = per_record(model, clip).gather(inputs, labels)
        truth = plainly(model, inputs, labels, clip)
        assert found.records == 11
        assert found.total.dtype == torch.float64
        assert float((found.total - truth).norm()) < 1e-4 * float(truth.norm())
        assert all(per_record_norm(model, clip, inputs[i], labels[i]) <= clip for i in range(3))


def per_record_norm(model, clip, x, y):
    return float(per_record(model, clip).gather(x[None], y[None]).total.norm())


def test_a_batch_that_is_clipped_as_one_would_be_seen():
    torch.manual_seed(2)
    model = MODELS["small-cnn"](10)
    inputs, labels = data(20)
    whole = torch.autograd.grad(losses(model, inputs, labels).sum(), list(model.parameters()))
    whole = torch.cat([part.reshape(-1) for part in whole]).double()
    found = per_record(model, 0.5).gather(inputs, labels).total
    assert float((found - whole * 10 / whole.norm()).norm()) > 0.05 * float(found.norm())


def test_what_is_not_finite_counts_as_no_record_by_all_ways():
    torch.manual_seed(3)
    for make in (lambda: MODELS["small-cnn"](10), Normalised, Recurrent):
        model = make()
        inputs, labels = data(4)
        inputs[2] = torch.inf
        one = per_record(model, 0.5)
        found = one.gather(inputs, labels).total
        others = one.gather(inputs[[0, 1, 3]], labels[[0, 1, 3]]).total
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, others)


def test_no_records_at_all_are_zero():
    assert not per_record(MODELS["linear"](10)).gather(*data(0)).total.any()


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(x - x.mean(dim=0))


@pytest.mark.parametrize(
    ("model", "each", "said"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)),
            losses,
            r"model: 1 \(batch normalisation\) mixes records",
        ),
        (Mixing(), losses, "model: the loss of a record depends on which others"),
        (MODELS["linear"](10), lambda m, x, y: losses(m, x, y).mean(), "loss: must give one number for every record"),
    ],
)
def test_models_that_mix_records_are_refused_in_one_line(model, each, said):
    with pytest.raises(ValueError, match=said):
        per_record(model, each=each)


def test_dropout_is_drawn_for_each_record_and_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10)).train()
    before = torch.get_rng_state()
    one = per_record(model)
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    assert model[1].training
    assert one.name == "layers"
    assert float(one.gather(*data(3)).total.norm()) > 0


def test_memory_is_bounded_by_the_virtual_batch():
    assert per_record(MODELS["paper-cnn"](62)).size == 128  # no gradient of one record is made
    wide = nn.Sequential(nn.Flatten(), nn.Linear(784, 2**14), nn.LayerNorm(2**14), nn.Linear(2**14, 10))
    assert per_record(wide).name != "layers"
    assert per_record(wide).size == 2**26 // size_of(wide)
