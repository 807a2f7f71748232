"""Rounds of plain averaging in Flower's simulation engine: a script, since the engine wants a process of its own.

Every client takes one step of SGD on its pictures, with our small model; of ``cifar`` one epoch in batches of ten.
Prints the seconds of each round.

``python -m benchmarks.scale_flower small|cifar CLIENTS EACH ROUNDS``
"""

import json
import sys
from time import perf_counter
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional

from benchmarks.cifar_model import CifarCNN
from rqm.simulation.models import SmallCNN


class Timed(FedAvg):
    """Flower's averaging, with a clock."""

    def configure_train(self, *given: Any) -> Any:
        """Begin a round."""
        self.start_time = perf_counter()
        return super().configure_train(*given)

    def aggregate_train(self, *given: Any) -> Any:
        """End it."""
        found = super().aggregate_train(*given)
        print("ROUND " + json.dumps(perf_counter() - self.start_time), flush=True)
        return found


def apps(which: str, clients: int, each: int, rounds: int) -> tuple[ServerApp, ClientApp]:
    """The two sides."""
    server, client = ServerApp(), ClientApp()
    make: Any = CifarCNN if which == "cifar" else SmallCNN
    shape, classes, rate, batch = ((3, 32, 32), 10, 0.1, 10) if which == "cifar" else ((1, 28, 28), 62, 1.0, each)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        x, y = torch.rand(each, *shape, generator=rng), torch.randint(classes, (each,), generator=rng)
        step = torch.optim.SGD(model.parameters(), lr=rate)
        for some in torch.split(torch.randperm(each), batch):
            step.zero_grad()
            functional.cross_entropy(model(x[some]), y[some]).backward()  # type: ignore[no-untyped-call]
            step.step()
        metrics = MetricRecord({"num-examples": each})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
        )
        strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=rounds)

    return server, client


if __name__ == "__main__":
    _clients, _each, _rounds = map(int, sys.argv[2:])
    _server, _client = apps(sys.argv[1], _clients, _each, _rounds)
    run_simulation(
        server_app=_server,
        client_app=_client,
        num_supernodes=_clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
