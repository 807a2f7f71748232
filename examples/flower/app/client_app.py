"""A silo: each record's gradient is clipped; only the masked, noisy sum leaves the node."""

from flwr.app import Context, Message

from rqm.flower import PrivateClientApp

app = PrivateClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Draw records at random, clip their gradients one by one, and return the sum."""
    from app import task  # noqa: PLC0415 (only this message needs torch)
    from rqm.flower import gathered  # noqa: PLC0415

    net = task.new_model()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = task.local_data(int(context.run_config["writers"]), int(context.node_config["partition-id"]))
    # In a linear model the loss of a record does not depend on other records.
    return gathered(message, net, task.losses, inputs, labels, alone=True)
