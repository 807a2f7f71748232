"""The server: a strategy, made private. It sees only the sum of each round."""

import os

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

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

    # Silos return gradients, so the strategy is the optimizer.
    optimizer = FedAvgM(fraction_evaluate=0.0, server_learning_rate=8.0, server_momentum=0.7)
    strategy = private(optimizer, context, model=net, roster=os.environ.get("RQM_ROSTER"))
    strategy.start(grid, ArrayRecord(net.state_dict()), evaluate_fn=evaluate)
