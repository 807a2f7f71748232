"""The model and the data, for server and silos alike."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import rqm
from rqm._util.files import write_atomically
from rqm.data.class_names import CHARACTERS
from rqm.data.datasets import cache_folder
from rqm.data.glyphs import glyphs
from rqm.simulation.models import MODELS, to_floats

torch.set_num_threads(1)  # many silos share a machine


def new_model(config: Mapping[str, Any]) -> nn.Module:
    """The model, always with the same initial weights."""
    torch.manual_seed(int(config["rqm.seed"]))
    return MODELS[str(config["rqm.model"])](len(CHARACTERS))


def local_data(config: Mapping[str, Any], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures and labels of one silo, from its disk: those of its writers, drawn when it is first asked."""
    count = int(config["writers"])
    path = cache_folder() / f"glyphs-{rqm.__version__}-{count}-writers-{number}.pt"
    if not path.exists():
        writers = glyphs(test_writers=1).train  # the test set is the server's
        users, file = [writers[number * count + index] for index in range(count)], BytesIO()
        torch.save([torch.cat([user[column] for user in users]) for column in (0, 1)], file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue())
    inputs, labels = torch.load(path)
    return inputs, labels


def losses(net: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every picture."""
    return functional.cross_entropy(net(to_floats(pictures)), labels, reduction="none")


@torch.no_grad()
def evaluate(config: Mapping[str, Any], net: nn.Module) -> float:
    """Accuracy on writers who take no part in training."""
    data = glyphs()
    pictures, labels = data.test_inputs[:2000], data.test_labels[:2000]
    return float((net(to_floats(pictures)).argmax(1) == labels).float().mean())
