"""The server: sees sums, steps, evaluates on data of its own, and logs ε after every round."""

import os

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from app.task import evaluate, new_model
from rqm.flower import PrivateStrategy, Settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run's configuration says."""
    config = context.run_config

    def measure(_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = new_model(config)
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(config, net)})

    strategy = PrivateStrategy(
        Settings.from_run_config(config),
        folder=os.environ.get("RQM_LEDGER", "rqm-ledger"),  # keep it: it says what these users have spent
        stage_timeout=float(config["stage-timeout"]),
        roster=os.environ.get("RQM_ROSTER"),  # whose keys the nodes sign; their policies name the same
    )
    start = ArrayRecord(new_model(config).state_dict())
    strategy.start(grid, start, timeout=float(config["train-timeout"]), evaluate_fn=measure)
