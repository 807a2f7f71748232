"""Flower's messages and apps without its network: a grid of ClientApps in this process."""

import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch.nn import functional

from rqm.flower import PrivateStrategy, Settings
from tests.simulation.small import federation, model

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


class LocalGrid(Grid):
    """Nodes 100, 101, …: each with its own context, as a SuperNode keeps it. ``lose`` decides who does not answer."""

    def __init__(self, app, nodes, run_config, lose=lambda node, stage, round_index: False):
        self.app, self.lose, self.observed, self.replies = app, lose, [], []
        self.contexts = {
            100 + p: Context(
                run_id=1,
                node_id=100 + p,
                node_config={"partition-id": p, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
                series_id=0,
            )
            for p in range(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node, fields = message.metadata.dst_node_id, message.content.config_records["rqm"]
            requests = [entry for entry in message.content.config_records.values() if "stage" in entry]
            if any(self.lose(node, entry["stage"], entry["round_index"]) for entry in requests):
                continue
            delivered = Message(
                RecordDict(dict(message.content)), dst_node_id=node, message_type=message.metadata.message_type
            )
            reply = self.app(delivered, self.contexts[node])
            self.observed.append((fields["stage"], reply))
            replies.append(reply)
        return replies

    def push_messages(self, messages):
        """Everybody answers at once; to those who do not, nothing could be sent."""
        messages = list(messages)
        replies, ids = list(self.send_and_receive(messages)), []
        for message in messages:
            node_ledgers = [reply for reply in replies if reply.metadata.src_node_id == message.metadata.dst_node_id]
            message.metadata.__dict__["_message_id"] = str(len(self.replies))
            ids.append(str(len(self.replies)) if node_ledgers else None)
            self.replies.append(node_ledgers)
        return ids

    def pull_messages(self, message_ids):
        return [reply for entry in message_ids for reply in self.replies[int(entry)]]

    set_run = run = create_message = None  # not used by a strategy


def start(grid, config, folder, **options):
    """Train a new model by a private strategy; its result, and the strategy."""
    private = PrivateStrategy(Settings.from_run_config(config), folder=folder, **{"stage_timeout": 0.2, **options})
    return private.start(grid, arrays(model())), private


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


def gradient_app(mod, data=None):
    """A ClientApp that returns the gradient on its partition: Algorithm 1 of the paper."""
    data, app = data or federation(clients=6), ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data.train[context.node_config["partition-id"]]
        functional.cross_entropy(net(x), y).backward()
        outcome = ArrayRecord({name: p.grad for name, p in net.named_parameters()})
        return Message(
            RecordDict({"arrays": outcome, "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=message
        )

    return app


def training_app(mod, data=None, rate=0.3):
    """A ClientApp in the shape of Flower's quickstart: trains, and returns weights, a loss and a count."""
    data, app = data or federation(clients=6), ClientApp(mods=[mod] if mod else [])

    @app.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data.train[context.node_config["partition-id"]]
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for _ in range(3):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(y)})
        return Message(RecordDict({"arrays": arrays(net), "metrics": metrics}), reply_to=message)

    return app


def accuracy(record, data=None):
    data, net = data or federation(clients=6), model()
    net.load_state_dict(record.to_torch_state_dict())
    with torch.no_grad():
        return float((net(data.test_inputs).argmax(1) == data.test_labels).float().mean())
