"""Loss and accuracy of a model on the server's test set."""

from collections.abc import Callable, Iterable, Sequence
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rqm.data.federated_data import FederatedData, Tensors
from rqm.simulation.models import FlatModel, Loss, cross_entropy, to_floats

TEST_BATCH = 2000
"""Examples of a pass: few enough for the activations of the paper's model to fit in memory."""

Map = Callable[[Callable[[FlatModel, Any], Any], Sequence[Any]], Iterable[Any]]
"""Applies a function to a model and each item, perhaps on several threads."""


def evaluate(map_batches: Map, data: FederatedData, loss: Loss) -> tuple[float | None, float | None]:
    """Loss and accuracy on the test set.

    Args:
        map_batches: Applies a function to the model and each batch.
        data: The test set.
        loss: What clients minimize the mean of.

    Returns:
        None for both if the test set is empty, and for the accuracy if labels are not classes.
    """
    if not len(data.test_labels):
        return None, None

    @torch.no_grad()
    def test(model: FlatModel, batch: Tensors) -> Tensor:
        inputs, labels = batch
        model.model.eval()
        scores = model.model(to_floats(inputs))
        model.model.train()
        if loss is cross_entropy:
            total = functional.cross_entropy(scores, labels, reduction="sum")
        else:
            total = loss(scores, labels).mean() * len(labels)
        return torch.stack([total, _correct(scores, labels).to(total)]).double()

    tensors = data.test_inputs, data.test_labels
    batches = list(zip(*(torch.split(tensor, TEST_BATCH) for tensor in tensors), strict=True))
    sums = torch.stack(list(map_batches(test, batches))).sum(dim=0)
    mean_loss, accuracy = (sums / len(data.test_labels)).tolist()
    return mean_loss, None if isnan(accuracy) else accuracy


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor) -> tuple[Any, Any]:
    """The most probable class of each input, and its probability.

    Args:
        model: The model.
        inputs: The inputs.

    Returns:
        Two arrays.
    """
    model.eval()
    probabilities = [torch.softmax(model(to_floats(x)), 1).cpu() for x in torch.split(inputs, TEST_BATCH)]
    model.train()
    probability, label = torch.cat(probabilities).max(dim=1)
    return label.numpy(), probability.numpy()


def _correct(scores: Tensor, labels: Tensor) -> Tensor:
    """How many examples have the best score at their label, a fraction of one with many labels; NaN if not classes."""
    for axis in (1, -1):
        without_classes = scores.shape[:axis] + scores.shape[axis:][1:]
        if not labels.is_floating_point() and scores.ndim == labels.ndim + 1 and without_classes == labels.shape:
            return (scores.argmax(axis) == labels).sum() * (len(labels) / labels.numel())
    return torch.tensor(nan)
