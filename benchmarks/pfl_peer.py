"""A round of Apple's pfl with its central Gaussian mechanism: a script for an environment where pfl is installed.

It is started with the path of our ``models.py``, the number of clients and of examples each, and the model: ``plain``,
as one writes it in torch, ``ours``, with our pooling, or the ``small`` one; or with that of ``cifar_model.py`` and
``cifar`` or ``cifar-sure``. It carries out one round for every line on its standard input and answers with a line.
Local training is one step of SGD on all of a client's examples, which sends the same gradient as Algorithm 1; of
``cifar`` one epoch in batches of ten, as published.
"""
# mypy: ignore-errors

import importlib.util
import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from plain_paper_cnn import PlainPaperCNN  # beside this script
from torch.nn import functional


class OnDemand(TrainingProcessCallback):
    """Answers after each round, and lets the next begin when it is asked for."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Say that a round is over, and wait."""
        print("done", flush=True)
        return not sys.stdin.readline(), Metrics()


def main(models: str, clients: int, each: int, which: str) -> None:
    """Train until the standard input ends."""
    spec = importlib.util.spec_from_file_location("models", models)
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)

    names = {"ours": "PaperCNN", "small": "SmallCNN"}
    names |= {"cifar": "CifarCNN", "cifar-sure": "CifarCNNSure"}
    cifar = which.startswith("cifar")
    shape, classes = ((3, 32, 32), 10) if cifar else ((1, 28, 28), 62)

    class Net(PlainPaperCNN if which == "plain" else getattr(ours, names[which])):
        def loss(self, x, y):
            return functional.cross_entropy(self(x), y)

        def metrics(self, x, y):
            return {}

    rng, device = np.random.default_rng(0), get_default_device()  # the GPU, where there is one
    users = [
        Dataset(
            (torch.rand(each, *shape).to(device), torch.from_numpy(rng.integers(0, classes, size=each)).to(device)),
            user_id=str(user),
        )
        for user in range(2 * clients)
    ]
    order = iter(lambda: int(rng.integers(len(users))), None)
    data = FederatedDataset(lambda user: users[user], lambda: next(order))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(clipping_bound=0.03, relative_noise_stddev=1.0))
    net = Net().to(device)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=None
        ),
        SimulatedBackend(data, data, postprocessors=[noise]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.1 if cifar else 1.0, local_batch_size=10 if cifar else None
        ),
        callbacks=[OnDemand()],
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
