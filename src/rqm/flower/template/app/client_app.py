"""A client: the gradient of the model on its own data, made private by one mod."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from rqm.flower import private_mod

app = ClientApp(mods=[private_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One full local gradient, as in the paper's Algorithm 1."""
    from app.task import local_data, losses, new_model  # noqa: PLC0415 (only this message needs torch)

    net = new_model(context.run_config)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = local_data(context.run_config, int(context.node_config["partition-id"]))
    losses(net, inputs, labels).mean().backward()
    gradient = ArrayRecord({name: value.grad for name, value in net.named_parameters()})
    return Message(RecordDict({"arrays": gradient}), reply_to=message)
