"""A silo's part of a private round: it draws records, clips their gradients, and hands the sum to the mod.

The per-record gradients are those of the simulator, which is imported here alone.
"""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import nn

from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.flower.run_settings import Settings
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError
from rqm.simulation.layer_gradients import ExampleLosses
from rqm.simulation.record_gradients import RecordGradients, records_of_round

GATHERED_PREFIX = "rqm.gathered."
"""The name of the array with the sum of clipped gradients begins so; the fingerprint of the mean follows."""


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
    """The answer of a silo's training, where the run's configuration has `rqm.records`.

    Return it unchanged: the mod encodes it. Records are drawn with the operating system's randomness, anew for
    each message. How many were drawn is in no answer.

    The server must send what is trained and nothing else, because noise is added to all of it. For a model with
    frozen parameters, or with buffers of floats, begin with `ArrayRecord({name: p for name, p in
    net.named_parameters() if p.requires_grad})`, and load it on both sides with `strict=False`.

    Args:
        message: The server's message.
        context: The node's context.
        net: The model, with the received parameters.
        losses: Returns the loss of each record: `losses(net, inputs, labels)`.
        inputs: All records of the silo.
        labels: Their labels.
        alone: Whether the loss of a record does not depend on the other records of its batch. Then
            gradients are computed for whole batches, many times faster.
        settings: The settings; None: those of the run's configuration.

    Returns:
        The answer.

    Raises:
        ProtocolError: If `rqm.records` is not given, the server sent other arrays than are trained, or the model
            mixes records.
    """
    settings = settings or Settings.from_run_config(context.run_config)
    if settings.plan.records is None:
        raise ProtocolError("rqm.records: must be given in the run's configuration, or no record is clipped")
    _check_received(message, net)
    mean = settings.mean(sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad))
    assert isinstance(mean, PrivateRecordMean)
    try:
        gradients = RecordGradients(net, losses, mean, (inputs, labels), is_separable=alone)
    except ValueError as error:  # the model mixes records, which was tried on made-up ones: it depends on no data
        raise ProtocolError(str(error)) from None
    drawn = torch.from_numpy(
        np.flatnonzero(records_of_round(settings.plan.records.sampling_rate, 1, len(labels), 0, SecureRandom().words))
    )
    total = gradients.clipped_sum(inputs[drawn], labels[drawn]).total
    arrays = ArrayRecord({GATHERED_PREFIX + mean.fingerprint: Array(total.cpu().numpy())})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def _check_received(message: Message, net: nn.Module) -> None:
    """Refuse a model if the server has sent other arrays than are trained; this depends on no data."""
    records = message.content.array_records.values()
    arrays = [np.asarray(array.numpy()) for record in records for array in record.values()]
    received = [array.shape for array in arrays if array.dtype.kind == "f"]
    if received == [tuple(parameter.shape) for parameter in net.parameters() if parameter.requires_grad]:
        return
    untrained = [name for name, parameter in net.named_parameters() if not parameter.requires_grad]
    untrained += [name for name, buffer in net.named_buffers() if buffer.is_floating_point()]
    problem = f"{', '.join(untrained[:2])}: not trained" if untrained else "other arrays were received than are trained"
    raise ProtocolError(f"model: {problem}; the server must send what is trained, and only that")


def read_gathered(arrays: ArrayRecord, dim: int, fingerprint: str) -> RecordSum:
    """The sum that `gathered` made for a mean.

    Args:
        arrays: What training returned.
        dim: Parameters of the model.
        fingerprint: The fingerprint of the mean.

    Returns:
        The sum; how many records it has is not known.

    Raises:
        ValueError: If it is anything else.
    """
    if list(arrays) != [GATHERED_PREFIX + fingerprint]:
        raise ValueError(
            "training must return rqm.flower.gathered(…), with the same settings, where rqm.records is given"
        )
    values = np.asarray(arrays[GATHERED_PREFIX + fingerprint].numpy())
    if values.dtype != np.float64 or values.shape != (dim,):
        raise ValueError(f"{GATHERED_PREFIX}: has shape {values.shape}, {values.dtype}: must be ({dim},), float64")
    return RecordSum(torch.from_numpy(values.copy()), 0)
