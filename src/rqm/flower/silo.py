"""A silo's part of a private round: records are drawn, their gradients clipped, and the sum handed to the mod."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import nn

from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.flower.settings import Settings
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError
from rqm.training.layer_gradients import ExampleLosses
from rqm.training.record_gradients import RecordGradients, records_of_round

GATHERED = "rqm.gathered."
"""The array of an answer that holds the sum of clipped gradients, in float64; it does not leave the node as it is."""


def gathered(
    message: Message,
    context: Context,
    net: nn.Module,
    losses: ExampleLosses,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    alone: bool = False,
    settings: Settings | None = None,
) -> Message:
    """The answer of a silo's training, where the run's configuration has ``rqm.records``: return it as it is.

    ``net`` holds the model that was sent, ``losses(net, inputs, labels)`` gives one number for every record. Draws are
    the operating system's, anew for every message; how many came of them is in no answer. ``alone``: you know that the
    model and the loss treat every record by itself, whatever is beside it in a batch; many times faster.

    The server must have sent what is trained and nothing else, since noise comes on all of it. Of a model with frozen
    parameters, or buffers of floats, it begins with ``ArrayRecord({name: p for name, p in net.named_parameters() if
    p.requires_grad})``, and both sides load that with ``strict=False``.
    """
    settings = settings or Settings.from_run_config(context.run_config)
    if settings.plan.records is None:
        raise ProtocolError("rqm.records: must be given in the run's configuration, or nobody's record is clipped")
    _check_sent(message, net)
    dim = sum(one.numel() for one in net.parameters() if one.requires_grad)
    mean = settings.mean(dim)
    assert isinstance(mean, PrivateRecordMean)
    try:
        every = RecordGradients(net, losses, mean, (inputs, labels), is_separable=alone)
    except ValueError as error:  # a model that mixes records, tried on some that are made up: no data decide that
        raise ProtocolError(str(error)) from None
    some = torch.from_numpy(
        np.flatnonzero(records_of_round(settings.plan.records.sampling_rate, 1, len(labels), 0, SecureRandom().words))
    )
    total = every.clipped_sum(inputs[some], labels[some]).total
    return Message(
        RecordDict({"arrays": ArrayRecord({GATHERED + mean.fingerprint: Array(total.cpu().numpy())})}), reply_to=message
    )


def _check_sent(message: Message, net: nn.Module) -> None:
    """Refuse a model of which the server has sent other numbers than those that are trained; no data decide that."""
    given = [np.asarray(one.numpy()) for part in message.content.array_records.values() for one in part.values()]
    sent = [one.shape for one in given if one.dtype.kind == "f"]
    trained = [tuple(one.shape) for one in net.parameters() if one.requires_grad]
    if sent == trained:
        return
    names = [name for name, one in net.named_parameters() if not one.requires_grad]
    names += [name for name, one in net.named_buffers() if one.is_floating_point()]
    what = f"{', '.join(names[:2])}: not trained" if names else "other arrays came than are trained"
    raise ProtocolError(f"model: {what}; the server must send what is trained, and only that")


def read_gathered(answer: ArrayRecord, dim: int, kind: str) -> RecordSum:
    """The sum in an answer; ValueError if it is anything else than what ``gathered`` makes for a mean of this kind."""
    if list(answer) != [GATHERED + kind]:
        raise ValueError(
            "training must return rqm.flower.gathered(…), of the same settings, where rqm.records is given"
        )
    values = np.asarray(answer[GATHERED + kind].numpy())
    if values.dtype != np.float64 or values.shape != (dim,):
        raise ValueError(f"{GATHERED}: has shape {values.shape}, {values.dtype}: must be ({dim},), float64")
    return RecordSum(torch.from_numpy(values.copy()), 0)
