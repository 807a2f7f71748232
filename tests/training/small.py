"""A small federation for tests: two-dimensional blobs in three classes, clients of different sizes."""

import numpy as np
import torch
from torch import nn

from rqm.data.federated_data import Clients, FederatedData
from rqm.training.cohort import Cohort

torch.set_num_threads(1)  # the tests run on all cores already


def federation(clients=12, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 20, size=clients)
    labels = rng.integers(0, 3, size=sizes.sum() + 200)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    inputs = torch.from_numpy(centres[labels] + rng.normal(size=(len(labels), 2))).float()
    labels = torch.from_numpy(labels)
    train = Clients(inputs[:-200], labels[:-200], np.concatenate([[0], np.cumsum(sizes)]))
    return FederatedData("blobs", train, inputs[-200:], labels[-200:], 3)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def pictures(clients=6, each=3, classes=62):
    """Clients with a few pictures of noise, in bytes, as the convolutional models take them."""
    rng = np.random.default_rng(0)
    count = clients * each
    images = torch.from_numpy(rng.integers(0, 256, size=(count + 8, 28, 28), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, classes, size=count + 8))
    train = Clients(images[:count], labels[:count], each * np.arange(clients + 1))
    return FederatedData("noise", train, images[count:], labels[count:], classes)


def collected(state, clients, round_index):
    """The sum of some clients' messages in a round, and their losses."""
    cohort = Cohort(round_index, clients, clients, settling=[], unsettled=[], is_large_enough=True)
    revealed = state.secure_sum.reveal(state.updates, cohort)
    return revealed.total, revealed.losses
