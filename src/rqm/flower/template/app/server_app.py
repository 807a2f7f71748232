"""The server: any strategy, made private. It sees only the sum of each round."""

import os

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app import task
from rqm.flower import private

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run's configuration says, and save the model."""
    net = task.new_model()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(net)})

    strategy = private(FedAvg(fraction_evaluate=0.0), context, model=net, roster=os.environ.get("RQM_ROSTER"))
    config = ConfigRecord({"learning-rate": context.run_config["learning-rate"]})
    strategy.start(grid, ArrayRecord(net.state_dict()), train_config=config, evaluate_fn=evaluate)
