"""A silo: the gradients of its records, each clipped, summed and made private by one mod."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from rqm.flower import private_mod

app = ClientApp(mods=[private_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Records are drawn in secret, their gradients clipped one by one; only the masked sum leaves."""
    from app.task import local_data, losses, new_model  # noqa: PLC0415 (only this message needs torch)
    from rqm.flower import gathered  # noqa: PLC0415

    net = new_model(context.run_config)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = local_data(context.run_config, int(context.node_config["partition-id"]))
    # A linear model, in which nothing mixes records: all of a batch may go through it together.
    return gathered(message, context, net, losses, inputs, labels, alone=True)
