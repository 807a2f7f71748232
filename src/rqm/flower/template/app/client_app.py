"""A client: ordinary training on its own data. Only masked, noisy integers leave the node."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from rqm.flower import PrivateClientApp

app = PrivateClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the node's data, and return the trained weights."""
    from app import task  # noqa: PLC0415 (only this message needs torch)

    net = task.new_model()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = task.local_data(int(context.node_config["partition-id"]))
    rate = message.content.config_records["config"]["learning-rate"]
    loss = task.train(net, inputs, labels, rate)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
