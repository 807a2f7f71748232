"""Apps for a grid of ClientApps in this process, private strategies, and where their state is."""

import re

import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch.nn import functional

from rqm._util.files import state_folder
from rqm.flower import PrivateStrategy, Settings
from rqm.flower.arrays import TrainedArrays
from rqm.flower.federation_folder import FEDERATIONS, PLAN_FILE
from tests.flower.local_grid import LocalGrid  # noqa: F401 (as part of this module)
from tests.simulation.small import federation, model


def settings_of(config):
    return Settings.from_run_config({"rqm.stage-timeout": 0.2, **config})


def plan_of(config, net=None, earlier=None):
    """The plan that a server derives for a model of which all is trained."""
    record = arrays(net or model())
    trained = TrainedArrays.of(record)
    return settings_of(config).plan(trained.names, trained.size(record), earlier)


def private_strategy(config, folder, strategy=None, **options):
    """A strategy made private; its state is kept by the name of a folder, which it does not use itself."""
    return PrivateStrategy(
        strategy or FedAvg(fraction_evaluate=0.0), settings_of(config), federation=federation_of(folder), **options
    )


def start(grid, config, folder, strategy=None, net=None, **options):
    """Train a new model by a private strategy; its result, and the strategy."""
    private = private_strategy(config, folder, strategy, **options)
    return private.start(grid, arrays(net or model())), private


def federation_of(folder):
    """The name of a federation for each folder of a test."""
    return re.sub(r"[^\w.-]", "-", str(folder))[-90:]


def plan_folders(folder):
    """The folders of the plans of a federation."""
    return sorted(path.parent for path in (state_folder() / FEDERATIONS / federation_of(folder)).glob(f"*/{PLAN_FILE}"))


def plan_folder(folder):
    """The folder of the only plan of a federation."""
    (path,) = plan_folders(folder)
    return path


def survivors(result):
    """The number of vectors in the sum of each round."""
    return [metrics["survivors"] for metrics in result.train_metrics_clientapp.values()]


def give_policies(grid, folder, text):
    """Give each node a policy in a folder of its own."""
    for node, context in grid.contexts.items():
        path = folder / str(node) / "policy.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        context.node_config["rqm-policy"] = str(path)


def arrays(net):
    return ArrayRecord(net.state_dict())


def gradient_app(mod, data=None, rate=1.0):
    """A ClientApp that takes one step of gradient descent on its partition: Algorithm 1 of the paper."""
    data, app = data or federation(clients=6), ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data.train[context.node_config["partition-id"]]
        functional.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(rate * parameter.grad)
        return Message(
            RecordDict({"arrays": arrays(net), "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=message
        )

    return app


def train_locally(net, x, y, rate):
    """Three steps of gradient descent; the last loss."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=rate)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def training_app(mod, data=None, rate=0.3, app=None, net=model):
    """A ClientApp in the shape of Flower's quickstart: trains, and returns weights, a loss and a count.

    It also measures the received model. The learning rate may come from the server, as ``lr``.
    """
    data = data or federation(clients=6)
    app = ClientApp(mods=[mod] if mod else []) if app is None else app

    def received(message, context):
        loaded, (arrays_name,) = net(), message.content.array_records
        loaded.load_state_dict(message.content[arrays_name].to_torch_state_dict())
        return loaded, *data.train[context.node_config["partition-id"]]

    @app.train()
    def train(message, context):
        trained, x, y = received(message, context)
        given = {key: value for record in message.content.config_records.values() for key, value in record.items()}
        loss = train_locally(trained, x, y, given.get("lr", rate))
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
        return Message(RecordDict({"arrays": arrays(trained), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        loaded, x, y = received(message, context)
        with torch.no_grad():
            right = float((loaded.eval()(x).argmax(1) == y).float().mean())
        metrics = MetricRecord({"accuracy": right, "num-examples": len(y)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def accuracy(record, data=None):
    data, net = data or federation(clients=6), model()
    net.load_state_dict(record.to_torch_state_dict())
    with torch.no_grad():
        return float((net(data.test_inputs).argmax(1) == data.test_labels).float().mean())
