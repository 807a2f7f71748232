"""Ten clients in Flower's simulation engine: a script, since the engine wants a process of its own."""

import json

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional
from torch.optim import SGD

from rqm.flower import PrivateClientApp, PrivateStrategy, Settings
from tests.simulation.small import federation, model

client, server = PrivateClientApp(), ServerApp()


@client.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = federation(clients=10).train[context.node_config["partition-id"]]
    functional.cross_entropy(net(x), y).backward()
    SGD(net.parameters(), lr=2.0).step()
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)


@server.main()
def main(grid, context):
    def measure(_, arrays):
        net, data = model(), federation(clients=10)
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"loss": float(functional.cross_entropy(net(data.test_inputs), data.test_labels))})

    settings = Settings(epsilon=200.0, clients=10, rounds=2, l2_clip=2.0, stage_timeout=200.0)
    strategy = PrivateStrategy(FedAvg(fraction_evaluate=0.0), settings, federation="simulated")
    result = strategy.start(grid, ArrayRecord(model().state_dict()), evaluate_fn=measure)
    outcome = {
        "loss": [m["loss"] for m in result.evaluate_metrics_serverapp.values()],
        "epsilon": [m["epsilon"] for m in result.train_metrics_clientapp.values()],
        "survivors": [m["survivors"] for m in result.train_metrics_clientapp.values()],
    }
    print("FOUND " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app=server, client_app=client, num_supernodes=10, backend_config=resources)
