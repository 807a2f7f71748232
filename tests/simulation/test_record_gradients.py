"""The sum of records' clipped gradients against one backward pass for each record."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm import private_record_mean
from rqm.mechanisms.noiseless import Noiseless
from rqm.simulation.models import MODELS, example_losses
from rqm.simulation.record_gradients import RecordGradients, record_hashes


class LayerUsedTwice(nn.Module):
    """A layer that is used twice, so that its gradients of a record add up before their length is known."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(784, 784), nn.Linear(784, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class DenseOnSequences(nn.Module):
    """A dense layer on sequences: rows of the picture."""

    def __init__(self):
        super().__init__()
        self.row, self.out = nn.Linear(28, 9), nn.Linear(9, 10, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.row(x.squeeze(1))).mean(dim=1))


class Normalized(nn.Module):
    """A normalization within each record."""

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
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, 1, 28, 28, generator=generator)
    return inputs, torch.randint(classes, (count,), generator=generator)


def parameters_of(model):
    return sum(p.numel() for p in model.parameters())


def gradients_of(model, clip=1.0, losses=example_losses, count=5, is_separable=True):
    mean = private_record_mean(
        mechanism=Noiseless(), clients=2, delta=1e-6, dim=parameters_of(model), l2_clip=100.0, record_clip=clip
    )
    return RecordGradients(model, losses, mean, data(count, seed=9), is_separable=is_separable)


def expected_sum(model, inputs, labels, clip):
    """One backward pass for each record."""
    total = 0
    for x, y in zip(inputs, labels, strict=True):
        gradients = torch.autograd.grad(example_losses(model, x[None], y[None]).sum(), list(model.parameters()))
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).double()
        total = total + flat * min(1.0, clip / float(flat.norm()))
    return total


METHODS = [
    (lambda: MODELS["linear"](10), "_by_layers"),
    (lambda: MODELS["small-cnn"](10), "_by_layers"),
    (lambda: MODELS["paper-cnn"](10), "_by_layers"),
    (DenseOnSequences, "_by_layers"),
    (LayerUsedTwice, "_by_vmap"),
    (Normalized, "_by_vmap"),
    (Recurrent, "_one_by_one"),
]


@pytest.mark.parametrize(("make", "method"), METHODS)
def test_all_methods_compute_the_same_sum(make, method):
    torch.manual_seed(1)
    model = make()
    assert gradients_of(model).method.__name__ == method
    inputs, labels = data(11)
    norms = [float(expected_sum(model, inputs[i : i + 1], labels[i : i + 1], 1e9).norm()) for i in range(11)]
    for clip in (sorted(norms)[5], 1e-2):  # clips half of them, and all
        gradients = gradients_of(model, clip)
        gradients.batch_size = 4  # batches of 4, 4 and 3
        silo, expected = gradients.clipped_sum(inputs, labels), expected_sum(model, inputs, labels, clip)
        assert silo.records == 11
        assert silo.total.dtype == torch.float64
        assert float((silo.total - expected).norm()) < 1e-4 * float(expected.norm())
        for i in range(3):
            assert float(gradients.clipped_sum(inputs[i : i + 1], labels[i : i + 1]).total.norm()) <= clip


def test_vmap_is_tried_only_if_layers_do_not_agree(monkeypatch):
    """Importing torch.func takes seconds, for which every message would wait."""
    calls = []
    monkeypatch.setattr(RecordGradients, "_by_vmap", lambda *_: calls.append(1))
    assert gradients_of(MODELS["linear"](10)).method.__name__ == "_by_layers"
    assert not calls
    assert gradients_of(LayerUsedTwice()).method.__name__ == "_one_by_one"
    assert calls


def test_a_clip_of_the_whole_batch_would_be_noticed():
    torch.manual_seed(2)
    model = MODELS["small-cnn"](10)
    inputs, labels = data(20)
    gradients = torch.autograd.grad(example_losses(model, inputs, labels).sum(), list(model.parameters()))
    batch = torch.cat([gradient.reshape(-1) for gradient in gradients]).double()
    total = gradients_of(model, 0.5).clipped_sum(inputs, labels).total
    assert float((total - batch * 10 / batch.norm()).norm()) > 0.05 * float(total.norm())


@pytest.mark.parametrize("make", [lambda: MODELS["small-cnn"](10), Normalized, Recurrent])
def test_a_gradient_that_is_not_finite_counts_as_zero(make):
    torch.manual_seed(3)
    gradients = gradients_of(make(), 0.5)
    inputs, labels = data(4)
    inputs[2] = torch.inf
    total = gradients.clipped_sum(inputs, labels).total
    expected = gradients.clipped_sum(inputs[[0, 1, 3]], labels[[0, 1, 3]]).total
    assert torch.isfinite(total).all()
    torch.testing.assert_close(total, expected)


def test_the_sum_of_no_records_is_zero():
    assert not gradients_of(MODELS["linear"](10)).clipped_sum(*data(0)).total.any()


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(x - x.mean(dim=0))


class WithState(nn.Linear):
    def __init__(self):
        super().__init__(784, 10)
        self.register_buffer("average", torch.zeros(784))

    def forward(self, x):
        x = x.flatten(1)
        self.average.add_(1e-4 * x.mean(0).detach())
        return super().forward(x - self.average)


def mean_loss(model, inputs, labels):
    return example_losses(model, inputs, labels).mean()


@pytest.mark.parametrize(
    ("make", "losses", "message"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), example_losses, r"1 \(batch normalization\)"),
        (Mixing, example_losses, "the loss of a record depends on which others"),
        (WithState, example_losses, "a buffer changes"),
        (lambda: MODELS["linear"](10), mean_loss, "loss: must give one number for every record"),
    ],
)
def test_models_and_losses_that_mix_records_are_refused(make, losses, message):
    with pytest.raises(ValueError, match=message):
        gradients_of(make(), losses=losses)


def test_dropout_is_drawn_for_each_record_and_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10)).train()
    generator_state = torch.get_rng_state()
    gradients = gradients_of(model)
    assert torch.equal(generator_state, torch.get_rng_state())
    assert model.training
    assert model[1].training
    assert gradients.method.__name__ == "_by_layers"
    assert float(gradients.clipped_sum(*data(3)).total.norm()) > 0


def test_memory_is_bounded_by_the_batch_size():
    assert gradients_of(MODELS["paper-cnn"](62)).batch_size == 128  # forms no dense gradient of one record
    wide = nn.Sequential(nn.Flatten(), nn.Linear(784, 2**14), nn.LayerNorm(2**14), nn.Linear(2**14, 10))
    assert gradients_of(wide).batch_size == 2**26 // parameters_of(wide)


def sensitivity(model, record, *, is_separable=False, position=40):
    """How far one more record moves the sum of 40, in clips."""
    inputs, labels = data(40)
    model.eval()
    gradients = gradients_of(model, is_separable=is_separable)
    x, y = record
    more_inputs = torch.cat([inputs[:position], x, inputs[position:]])
    more_labels = torch.cat([labels[:position], y, labels[position:]])
    more = gradients.clipped_sum(more_inputs, more_labels).total
    return float((more - gradients.clipped_sum(inputs, labels).total).norm())


class Scaled(nn.Module):
    """Scales by the largest value of its batch, as is common with pictures."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x):
        return self.out((x / 255 if x.max() > 1.5 else x).flatten(1))


class Rows(nn.Module):
    """Applies its layer to the 28 rows of each picture as if they were records."""

    def __init__(self):
        super().__init__()
        self.row = nn.Linear(28, 10)

    def forward(self, x):
        return self.row(x.reshape(-1, 28)).reshape(len(x), -1, 10).sum(1)


@pytest.mark.parametrize("make", [Scaled, Rows, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))])
@pytest.mark.parametrize("value", [1.0, 255.0, float("nan"), 3e38])
@pytest.mark.parametrize("position", [0, 40])
def test_one_more_record_moves_the_sum_by_at_most_its_clip(make, value, position):
    torch.manual_seed(0)
    record = torch.full((1, 1, 28, 28), value), torch.zeros(1, dtype=torch.int64)
    assert sensitivity(make(), record, position=position) <= 1 + 1e-6


@pytest.mark.parametrize("is_separable", [False, True])
def test_a_record_that_cannot_be_differentiated_counts_as_zero(is_separable):
    torch.manual_seed(0)
    record = torch.rand(1, 1, 28, 28), torch.full((1,), 77)  # no such class
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    assert sensitivity(model, record, is_separable=is_separable) <= 1e-5


def test_layers_that_see_other_rows_than_records_are_not_recorded():
    assert gradients_of(Rows()).method.__name__ == "_by_vmap"


def test_the_draws_of_a_model_depend_on_no_public_seed():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10)).train()
    gradients, sums = gradients_of(model), []
    for seed in (None, None, 1, 1):
        torch.manual_seed(7)
        sums.append(gradients.clipped_sum(*data(9), seed).total)
    assert not torch.equal(sums[0], sums[1])
    assert torch.equal(sums[2], sums[3])


def test_the_hash_of_a_record_depends_on_no_other_record():
    inputs, labels = data(50)
    hashes, fewer = record_hashes(inputs, labels), record_hashes(inputs[1:], labels[1:])
    assert (hashes[1:] == fewer).all()
    assert len(set((hashes % 5).tolist())) == 5


def test_lengths_are_exact_where_inputs_are_huge_and_errors_tiny():
    wide = nn.Linear(784, 10)
    with torch.no_grad():
        wide.weight.fill_(1e-30)

    def tiny_losses(model, inputs, labels):
        return (model(inputs.flatten(1) * 1e18) * 1e-24).sum(1)

    total = gradients_of(nn.Sequential(wide), 0.01, tiny_losses).clipped_sum(*data(1)).total
    assert float(total.norm()) <= 0.01 * (1 + 1e-6)
