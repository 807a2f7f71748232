"""Rounds of secure aggregation in Flower's simulation engine, ours or Flower's: a script, since the engine wants a
process of its own. Clients return a constant, so that only aggregation is measured. Prints the seconds of each round.

``python -m benchmarks.flower_rounds ours|theirs CLIENTS COORDINATES SHARES ROUNDS``
"""

import json
import sys
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as MeanStrategy
from flwr.simulation import run_simulation

from rqm import RQM
from rqm.config import round_parameters
from rqm.flower import Settings, private_mod

LEVELS = 16


@cache
def vector(count: int) -> Any:
    """What every client's training returns; made once in a process, since making it is not to be measured."""
    values = np.linspace(-1.0, 1.0, count, dtype=np.float32)
    values.setflags(write=False)
    return values


def sparse_mod(message: Message, context: Context, call_next: Any) -> Message:
    """A mod, and a setting of the server's: neighbors are drawn, as in rounds of more than 128 clients."""
    round_parameters.MAX_COMPLETE_CLIENTS = 0
    reply: Message = call_next(message, context)
    return reply


def ours(clients: int, count: int, shares: int, rounds: int) -> tuple[ServerApp, ClientApp]:
    """Our mod and strategy around a ClientApp that returns a constant.

    With fewer shares than there are others neighbors are drawn, so many as suffice if 5 % are corrupt and 5 % lost.
    """
    from rqm.flower import PrivateStrategy  # noqa: PLC0415 (the clients do without)

    is_sparse, survivors = shares < clients - 1, clients - clients // 20
    if is_sparse:
        round_parameters.MAX_COMPLETE_CLIENTS = 0
    settings = Settings(
        epsilon=1e9,
        clients=clients,
        rounds=rounds,
        min_survivors=survivors if is_sparse else None,
        honest_clients=survivors if is_sparse else None,
        mechanism=RQM(clip=1.0, levels=LEVELS),
        failure_share=0.0,
        stage_timeout=600.0,
    )
    server, client = ServerApp(), ClientApp(mods=[*([sparse_mod] if is_sparse else []), private_mod])

    class Timed(MeanStrategy):
        def configure_train(self, *arguments: Any) -> Any:
            self.start_time = perf_counter()
            return super().configure_train(*arguments)

        def aggregate_train(self, *arguments: Any) -> Any:
            print_seconds(perf_counter() - self.start_time)
            assert strategy.run is not None
            assert strategy.run.machine.survivors == clients, "a client dropped out"
            assert strategy.run.plan.params(b"any").degree == shares
            return super().aggregate_train(*arguments)

    strategy = PrivateStrategy(Timed(fraction_evaluate=0.0), settings, federation="benchmark")

    @client.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord({"x": Array(vector(count))})}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord({"x": Array(np.zeros(count, np.float32))}))

    return server, client


class Constant(NumPyClient):
    """A client in the old shape, which is the only one that Flower's SecAgg+ knows."""

    def __init__(self, count: int) -> None:
        self.count = count

    def fit(self, parameters: Any, config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        """Return the constant."""
        return [vector(self.count)], 1, {}


class TimedPlus(SecAggPlusWorkflow):
    """Flower's workflow, with a clock."""

    def __call__(self, grid: Grid, context: Context) -> None:
        """Carry out one round."""
        start = perf_counter()
        super().__call__(grid, context)
        print_seconds(perf_counter() - start)


def theirs(clients: int, count: int, shares: int, rounds: int) -> tuple[ServerApp, ClientApp]:
    """Flower's SecAgg+ workflow and mod, as its example sets them up; values of 4 bits as ours."""
    server = ServerApp()
    client = ClientApp(client_fn=lambda context: Constant(count).to_client(), mods=[secaggplus_mod])

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_available_clients=clients,
            min_fit_clients=clients,
            initial_parameters=ndarrays_to_parameters([np.zeros(count, np.float32)]),
        )
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
        secure = TimedPlus(
            shares, max(2, 2 * shares // 3), max_weight=1.0, clipping_range=1.0, quantization_range=LEVELS
        )
        DefaultWorkflow(fit_workflow=secure)(grid, legacy)

    return server, client


def print_seconds(seconds: float) -> None:
    """Print a round's time for whoever started this."""
    print("ROUND " + json.dumps(seconds), flush=True)


def main() -> None:
    """Run the rounds that the command line asks for."""
    make, numbers = {"ours": ours, "theirs": theirs}[sys.argv[1]], list(map(int, sys.argv[2:]))
    server, client = make(*numbers)
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=numbers[0],
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )


if __name__ == "__main__":
    import_module("benchmarks.flower_rounds").main()  # workers find its functions by that name
