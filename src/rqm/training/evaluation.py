"""The server's look at its model, on data of its own."""

from math import isnan, nan
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rqm.data.federated_data import FederatedData
from rqm.training.work import Work, images
from rqm.training.workers import Worker

TEST_BATCH = 2000


def evaluate(work: Work, data: FederatedData) -> tuple[float | None, float | None]:
    """Loss and accuracy on the test set: neither if there is none, and accuracy only where labels are classes."""
    if not len(data.test_labels):
        return None, None
    parts = (torch.split(part, TEST_BATCH) for part in (data.test_inputs, data.test_labels))
    batches = list(zip(*parts, strict=True))
    workers = work.workers if work.plan.client.work == "gradient" else None  # else their parameters are their own

    def test(worker: Worker, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return _test(work, worker, *batch)

    found = [test(work.worker, batch) for batch in batches] if workers is None else list(workers.map(test, batches))
    loss, accuracy = (torch.stack(found).sum(dim=0) / len(data.test_labels)).tolist()
    return loss, None if isnan(accuracy) else accuracy


@torch.no_grad()
def predict(model: nn.Module, inputs: torch.Tensor) -> tuple[Any, Any]:
    """The class that the model says for every input, and how sure it is."""
    model.eval()
    parts = [torch.softmax(model(images(x)), 1).cpu() for x in torch.split(inputs, TEST_BATCH)]
    model.train()
    sure, said = torch.cat(parts).max(dim=1)
    return said.numpy(), sure.numpy()


@torch.no_grad()  # of this thread
def _test(work: Work, worker: Worker, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a batch, and how many of its labels the model says; NaN if it says none."""
    worker.model.eval()
    scores = worker.model(images(inputs))
    own = work.own
    loss = functional.cross_entropy(scores, labels, reduction="sum") if own is None else own(scores, labels).mean()
    loss = loss if own is None else loss * len(labels)
    worker.model.train()
    return torch.stack([loss, torch.as_tensor(_hits(scores, labels)).to(loss)]).double()


def _hits(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | float:
    """Examples whose class has the best score, a part of one where it has many labels."""
    if labels.is_floating_point() or scores.ndim != labels.ndim + 1:
        return nan
    axis = 1 if scores.shape[:1] + scores.shape[2:] == labels.shape else -1
    if axis == -1 and scores.shape[:-1] != labels.shape:
        return nan
    return (scores.argmax(axis) == labels).sum() * (len(labels) / labels.numel())
