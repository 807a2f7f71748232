"""Clipped gradients of records: the same sum as one record after the other, whatever the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm import private_record_mean
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


def per_record(model, clip=1.0, each=losses, count=5, alone=True):
    mean = private_record_mean(
        mechanism=Noiseless(), clients=2, delta=1e-6, dim=size_of(model), l2_clip=100.0, record_clip=clip
    )
    return PerRecord(model, each, mean, data(count, seed=9), alone=alone)


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


def test_a_way_is_not_tried_if_a_better_one_is_good(monkeypatch):
    """Differentiating by torch.func loads a compiler's modules, for seconds that every message would wait."""
    tried = []
    monkeypatch.setattr(PerRecord, "_by_vmap", lambda *_: tried.append(1))
    assert per_record(MODELS["linear"](10)).name == "layers"
    assert not tried
    assert per_record(Twice()).name == "one by one"
    assert tried


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


def moved(model, extra, *, alone=False, place=40, each=losses):
    """How far one record more moves the sum of 40, in clips."""
    inputs, labels = data(40)
    model.eval()
    every = per_record(model, 1.0, each, alone=alone)
    with_it = [torch.cat([part[:place], one, part[place:]]) for part, one in zip((inputs, labels), extra, strict=True)]
    return float((every.gather(*with_it).total - every.gather(inputs, labels).total).norm())


class Scaled(nn.Module):
    """Divides by the largest value of its batch, or leaves it: as many do with pictures."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x):
        return self.out((x / 255 if x.max() > 1.5 else x).flatten(1))


class Rows(nn.Module):
    """Sees 28 rows of each picture as if they were records."""

    def __init__(self):
        super().__init__()
        self.row = nn.Linear(28, 10)

    def forward(self, x):
        return self.row(x.reshape(-1, 28)).reshape(len(x), -1, 10).sum(1)


@pytest.mark.parametrize("make", [Scaled, Rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))])
@pytest.mark.parametrize("value", [1.0, 255.0, float("nan"), 3e38])
@pytest.mark.parametrize("place", [0, 40])
def test_one_record_more_moves_a_sum_by_its_clip_at_most_whatever_the_model_does(make, value, place):
    torch.manual_seed(0)
    extra = torch.full((1, 1, 28, 28), value), torch.zeros(1, dtype=torch.int64)
    assert moved(make(), extra, place=place) <= 1 + 1e-6


def test_a_record_that_cannot_be_differentiated_counts_as_zero():
    torch.manual_seed(0)
    wrong = torch.rand(1, 1, 28, 28), torch.full((1,), 77)  # no such class
    for alone in (False, True):
        assert moved(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), wrong, alone=alone) <= 1e-5


def test_layers_that_see_other_rows_than_records_are_not_taken_together():
    assert per_record(Rows(), alone=True).name == "vmap"


def test_a_model_that_remembers_is_refused():
    class Remembers(nn.Linear):
        def __init__(self):
            super().__init__(784, 10)
            self.register_buffer("seen", torch.zeros(784))

        def forward(self, x):
            x = x.flatten(1)
            self.seen.add_(1e-4 * x.mean(0).detach())
            return super().forward(x - self.seen)

    with pytest.raises(ValueError, match="remembers"):
        per_record(Remembers())


def test_what_a_model_draws_itself_does_not_depend_on_a_public_seed():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))
    every, found = per_record(model), []
    for _ in range(2):
        torch.manual_seed(7)
        model.train()
        found.append(every.gather(*data(9)).total)
    assert (found[0] != found[1]).any()
    assert (every.gather(*data(9), seed=1).total == every.gather(*data(9), seed=1).total).all()


def test_the_batch_of_a_record_is_its_own():
    inputs, labels = data(50)
    whole, less = records.own_words(inputs, labels), records.own_words(inputs[1:], labels[1:])
    assert (whole[1:] == less).all()
    assert len(set((whole % 5).tolist())) == 5


def test_lengths_of_tiny_and_huge_parts_are_not_lost():
    wide = nn.Linear(784, 10)
    with torch.no_grad():
        wide.weight.fill_(1e-30)
    each = lambda net, x, y: (net(x.flatten(1) * 1e18) * 1e-24).sum(1)  # noqa: E731
    every = per_record(nn.Sequential(wide), 0.01, each)
    inputs, labels = data(1)
    assert float(every.gather(inputs, labels).total.norm()) <= 0.01 * (1 + 1e-6)
