"""Training of a silo whose records are protected. Apart from other clients' training, because it needs torch."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

from rqm.core.record_mean import PrivateRecordMean
from rqm.flower.client_training import GATHERED_PREFIX
from rqm.flower.messages import PLAN_KEY, PLAN_RECORD
from rqm.flower.shared_plan import read_plan
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError

if TYPE_CHECKING:
    from rqm.simulation.layer_gradients import ExampleLosses


def gathered(
    message: Message,
    net: nn.Module,
    losses: "ExampleLosses",
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    alone: bool = False,
) -> Message:
    """The answer of a silo's training, where the run protects records (`rqm.record-clip`).

    Return it unchanged: the mod encodes it. Records are drawn with the operating system's randomness, anew for
    each message. How many were drawn is in no answer.

    Args:
        message: The server's message.
        net: The model, with the received parameters.
        losses: Returns the loss of each record: `losses(net, inputs, labels)`.
        inputs: All records of the silo.
        labels: Their labels.
        alone: Whether the loss of a record does not depend on the other records of its batch. Then
            gradients are computed for whole batches, many times faster.

    Returns:
        The answer.

    Raises:
        ProtocolError: If the run does not protect records, other arrays are trained than the plan says, or the model
            mixes records.
    """
    from rqm.simulation.record_gradients import RecordGradients, records_of_round  # noqa: PLC0415 (silos only)

    record = message.content.config_records.get(PLAN_RECORD)
    if record is None:
        raise ProtocolError("the message has no plan: the app must be private, by PrivateClientApp or private_mod")
    plan = read_plan(str(record[PLAN_KEY]))
    mean = plan.mean
    if not isinstance(mean, PrivateRecordMean):
        raise ProtocolError("rqm.record-clip: must be given in the run's configuration, or no record is clipped")
    names = tuple(name for name, parameter in net.named_parameters() if parameter.requires_grad)
    if names != plan.trained:
        raise ProtocolError(
            f"the model trains {', '.join(names[:3])}, …: the plan says {', '.join(plan.trained[:3])}, …"
        )
    try:
        gradients = RecordGradients(net, losses, mean, (inputs, labels), is_separable=alone)
    except ValueError as error:  # the model mixes records, which was tried on made-up ones: it depends on no data
        raise ProtocolError(str(error)) from None
    rate = mean.sampling_rate
    drawn = torch.from_numpy(np.flatnonzero(records_of_round(rate, 1, len(labels), 0, SecureRandom().words)))
    total = gradients.clipped_sum(inputs[drawn], labels[drawn]).total
    arrays = ArrayRecord({GATHERED_PREFIX + mean.fingerprint: Array(total.cpu().numpy())})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)
