"""Loss and accuracy of a model on the server's test set."""

from math import isnan, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rqm.data.federated_data import FederatedData
from rqm.training.client_updates import ClientUpdates, ModelThreads, cross_entropy, to_floats
from rqm.training.models import FlatModel

TEST_BATCH = 2000
"""Examples of a pass: few enough for the activations of the paper's model to fit in memory."""


def evaluate(updates: ClientUpdates, data: FederatedData) -> tuple[float | None, float | None]:
    """Loss and accuracy on the test set.

    Args:
        updates: What clients compute: the model, and the loss that they minimize.
        data: The test set.

    Returns:
        None for both if the test set is empty, and for the accuracy if labels are not classes.
    """
    if not len(data.test_labels):
        return None, None

    @torch.no_grad()
    def test(model: FlatModel, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        model.model.eval()
        scores = model.model(to_floats(inputs))
        model.model.train()
        if updates.loss is cross_entropy:
            loss = functional.cross_entropy(scores, labels, reduction="sum")
        else:
            loss = updates.loss(scores, labels).mean() * len(labels)
        return torch.stack([loss, torch.as_tensor(_correct(scores, labels)).to(loss)]).double()

    # Threads whose clients take local steps have other parameters.
    threads = updates.threads if updates.method is None else ModelThreads(updates.model, 1, shares_values=True)
    batches = zip(torch.split(data.test_inputs, TEST_BATCH), torch.split(data.test_labels, TEST_BATCH), strict=True)
    sums = torch.stack(list(threads.map(test, batches))).sum(dim=0)
    loss, accuracy = (sums / len(data.test_labels)).tolist()
    return loss, None if isnan(accuracy) else accuracy


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


def _correct(scores: Tensor, labels: Tensor) -> Tensor | float:
    """How many examples have the best score at their label, a fraction of one with many labels; NaN if not classes."""
    if labels.is_floating_point() or scores.ndim != labels.ndim + 1:
        return nan
    axis = 1 if scores.shape[:1] + scores.shape[2:] == labels.shape else -1
    if axis == -1 and scores.shape[:-1] != labels.shape:
        return nan
    return (scores.argmax(axis) == labels).sum() * (len(labels) / labels.numel())
