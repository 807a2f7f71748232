"""The model and the data, for server and silos alike."""

from io import BytesIO

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


def new_model() -> nn.Module:
    """The model, always with the same initial weights."""
    torch.manual_seed(1)
    return MODELS["linear"](len(CHARACTERS))


def local_data(writers: int, silo: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures and labels of one silo: those of its writers. They are drawn once, and then read from its disk."""
    path = cache_folder() / f"glyphs-{rqm.__version__}-{writers}-writers-{silo}.pt"
    if not path.exists():
        users = glyphs(test_writers=1).train  # the test set is the server's
        chosen, file = [users[silo * writers + index] for index in range(writers)], BytesIO()
        torch.save([torch.cat([user[column] for user in chosen]) for column in (0, 1)], file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue())
    inputs, labels = torch.load(path)
    return inputs, labels


def losses(net: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each picture."""
    return functional.cross_entropy(net(to_floats(pictures)), labels, reduction="none")


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    """Accuracy on writers who take no part in training."""
    data = glyphs()
    pictures, labels = data.test_inputs[:2000], data.test_labels[:2000]
    return float((net(to_floats(pictures)).argmax(1) == labels).float().mean())
