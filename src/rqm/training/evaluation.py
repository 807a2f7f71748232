"""The server's look at its model, on data of its own."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rqm.data.clients import FederatedData
from rqm.training.work import Work, images
from rqm.training.workers import Worker

TEST_BATCH = 2000


def evaluate(work: Work, data: FederatedData) -> tuple[float, float]:
    """Loss and accuracy on the test set."""
    parts = (torch.split(part, TEST_BATCH) for part in (data.test_inputs, data.test_labels))
    batches = list(zip(*parts, strict=True))
    workers = work.workers if work.plan.client.work == "gradient" else None  # else their parameters are their own
    found = [_test(work.worker, batch) for batch in batches] if workers is None else list(workers.map(_test, batches))
    loss, accuracy = (torch.stack(found).sum(dim=0) / len(data.test_labels)).tolist()
    return loss, accuracy


@torch.no_grad()
def predict(model: nn.Module, inputs: torch.Tensor) -> tuple[Any, Any]:
    """The class that the model says for every input, and how sure it is."""
    model.eval()
    parts = [torch.softmax(model(images(x)), 1).cpu() for x in torch.split(inputs, TEST_BATCH)]
    model.train()
    sure, said = torch.cat(parts).max(dim=1)
    return said.numpy(), sure.numpy()


@torch.no_grad()  # of this thread
def _test(worker: Worker, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    worker.model.eval()
    scores = worker.model(images(batch[0]))
    loss = functional.cross_entropy(scores, batch[1], reduction="sum")
    hits = (scores.argmax(1) == batch[1]).sum()
    worker.model.train()
    return torch.stack([loss, hits.to(loss)]).double()
