"""The model and the data, for server and silos alike."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rqm.data.glyphs import glyphs
from rqm.data.labels import CHARACTERS
from rqm.training.models import MODELS
from rqm.training.work import images

torch.set_num_threads(1)  # many silos share a machine


def new_model(config: Mapping[str, Any]) -> nn.Module:
    """The model, always with the same initial weights."""
    torch.manual_seed(int(config["rqm.seed"]))
    return MODELS[str(config["rqm.model"])](len(CHARACTERS))


def own(config: Mapping[str, Any], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures and labels of one silo: those of its writers, made when they are asked for."""
    count, writers = int(config["writers"]), glyphs(test_writers=1).train  # the test set is the server's
    users = [writers[number * count + one] for one in range(count)]
    return torch.cat([inputs for inputs, _ in users]), torch.cat([labels for _, labels in users])


def losses(net: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every picture."""
    return functional.cross_entropy(net(images(pictures)), labels, reduction="none")


@torch.no_grad()
def evaluate(config: Mapping[str, Any], net: nn.Module) -> float:
    """Accuracy on writers who take no part in training."""
    held = glyphs()
    pictures, labels = held.test_inputs[:2000], held.test_labels[:2000]
    return float((net(images(pictures)).argmax(1) == labels).float().mean())
