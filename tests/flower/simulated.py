"""Ten clients in Flower's simulation engine: a script, since the engine wants a process of its own."""

import json
import sys

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from torch.nn import functional

from rqm.flower import PrivateStrategy, Settings, mod_for
from tests.simulation.small import federation, model

SETTINGS = Settings.from_run_config(
    {
        "rqm.clients": 10,
        "rqm.rounds": 2,
        "rqm.mechanism.mechanism": "rqm",
        "rqm.mechanism.clip": 0.5,
        "rqm.transforms.l2-clip": 2.0,
        "rqm.server.rate": 2.0,
        "rqm.sends": "gradient",
        "rqm.device": "cpu",
    }
)
client, server = ClientApp(mods=[mod_for(SETTINGS)]), ServerApp()


@client.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = federation(clients=10).train[context.node_config["partition-id"]]
    functional.cross_entropy(net(x), y).backward()
    return Message(
        RecordDict({"arrays": ArrayRecord({name: p.grad for name, p in net.named_parameters()})}), reply_to=message
    )


@server.main()
def main(grid, context):
    def measure(_, arrays):
        net, data = model(), federation(clients=10)
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"loss": float(functional.cross_entropy(net(data.test_inputs), data.test_labels))})

    strategy = PrivateStrategy(SETTINGS, folder=sys.argv[1], stage_timeout=200)
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
