"""What is recorded of layers, and which models are refused. Both reductions are tested with their users."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm.simulation.layer_gradients import clipped_sum, plain_layers, record_layers, scale_rows
from rqm.simulation.models import cross_entropy, example_losses
from tests.simulation.small import LAYERED_MODELS, LayerUsedTwice

LABELS = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(("make", "shape"), LAYERED_MODELS)
def test_columns_of_layers_cover_the_flat_vector(make, shape):
    network = make()
    columns = list(plain_layers(network).values())
    ends = [0, *(span.stop for span in columns)]
    assert [span.start for span in columns] == ends[:-1]
    assert ends[-1] == sum(parameter.numel() for parameter in network.parameters())
    _, uses = record_layers(network, example_losses, torch.zeros(2, *shape), LABELS)
    assert {use.layer for use in uses} == plain_layers(network).keys()


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(6),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Linear(6, 4).requires_grad_(False),
    ],
    ids=["normalization", "groups", "dilation", "named padding", "reflected padding", "frozen"],
)
def test_other_layers_are_not_plain(layer):
    assert plain_layers(nn.Sequential(nn.Linear(6, 6), layer)) == {}


class UnusedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.unused = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        return self.out(x)


class RowsOfExamples(nn.Module):
    def __init__(self):
        super().__init__()
        self.row, self.out = nn.Linear(3, 2), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.row(x.reshape(-1, 3)).reshape(len(x), -1))


@pytest.mark.parametrize(
    ("network", "loss", "message"),
    [
        (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), cross_entropy, "only dense layers"),
        (UnusedLayer(), cross_entropy, "and all of them"),
        (RowsOfExamples(), cross_entropy, "other rows than examples"),
        (nn.Linear(6, 4), functional.cross_entropy, "one number for every example"),
    ],
)
def test_models_that_cannot_be_recorded_are_refused(network, loss, message):
    def losses(model, inputs, labels):
        return example_losses(model, inputs, labels, loss)

    with pytest.raises(ValueError, match=message):
        record_layers(network, losses, torch.zeros(2, 6), LABELS)


def test_records_of_a_layer_that_is_used_twice_have_no_clipped_sum():
    _, uses = record_layers(LayerUsedTwice(), example_losses, torch.zeros(2, 5, 3), LABELS)
    with pytest.raises(ValueError, match="used twice"):
        clipped_sum(uses, 1.0)


def test_rows_are_scaled_to_the_clip_and_are_zero_where_not_finite():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.inf, 1.0]])
    scaled = scale_rows(rows, rows.norm(dim=1), 1.0)
    torch.testing.assert_close(scaled, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
