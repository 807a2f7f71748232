"""What a client sends for the model that it has trained. Apart from the mod, because it needs torch."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from torch import nn

from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.correlated.scheme import NoiseState
from rqm.flower.arrays import to_vector
from rqm.flower.messages import RECORD
from rqm.flower.run_settings import Request, Settings
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError

if TYPE_CHECKING:
    from rqm.simulation.layer_gradients import ExampleLosses

log = logging.getLogger("flwr")
GATHERED_PREFIX = "rqm.gathered."
"""The name of the array with a silo's sum of clipped gradients begins so; the fingerprint of the mean follows."""
Update = torch.Tensor | RecordSum
"""A user's vector, or the sum of a silo's records."""


def train(
    request: Request,
    settings: Settings,
    message: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
) -> Update:
    """Call the app's training. Whether it fails depends on the data, so then an update of zero is returned.

    Args:
        request: The server's request.
        settings: The settings of the run.
        message: The message with the model; the request's record is removed from it.
        context: The node's context.
        call_next: The app.

    Returns:
        The update, finite and of the model's size.

    Raises:
        ProtocolError: If the model has another size than the request says, or training refuses the model.
    """
    mean = settings.mean(request.dim)
    read, as_update = UPDATES[type(mean)]
    start = _received_model(message, request.dim)  # before the app can change it
    del message.content.config_records[RECORD]
    try:
        reply = call_next(message, context)
        (trained,) = reply.content.array_records.values()
        values = read(trained, mean)
        if settings.sends == "update":
            values = values - start
        if not torch.isfinite(values).all():
            raise ValueError("training returned values that are not finite")
    except ProtocolError:  # the model's shape does not depend on data
        raise
    except Exception as error:
        log.warning("rqm: training failed here (%s): an encoding of zero is sent", error)
        values = torch.zeros(request.dim)
    return as_update(values)


@final
class SecureEncoder:
    """Encodes updates with the operating system's randomness.

    `rqm.flower.seeded_client.SeededEncoder` has the same methods, for simulations.
    """

    def __init__(self, mean: BaseMean, round_index: int) -> None:
        self.mean, self.round_index = mean, round_index

    def noise_state(self, noise_secret: bytes) -> NoiseState:
        """The correlated noise that follows from a client's secret."""
        assert self.mean.noise is not None
        return self.mean.noise.begin(noise_secret, self.mean.coordinates)

    def encode(self, update: Update, noise: NoiseState | None) -> Any:
        """A client's message.

        Args:
            update: The update.
            noise: The client's correlated noise; None for independent noise.

        Returns:
            Integers below the modulus.
        """
        return self.mean.encode(update, SecureRandom(), round_index=self.round_index, noise_state=noise)


def _received_model(message: Message, dim: int) -> torch.Tensor:
    """The model that the server has sent, as bytes that anybody can have made."""
    try:
        (model,) = message.content.array_records.values()
        vector = to_vector(model)
    except Exception as error:
        raise ProtocolError(f"the model cannot be read ({type(error).__name__})") from None
    if len(vector) != dim:
        raise ProtocolError(f"dim = {dim}: must be {len(vector)}, the parameters of the model that was sent")
    return vector


def _read_vector(trained: ArrayRecord, mean: BaseMean) -> torch.Tensor:
    """A user's vector."""
    vector = to_vector(trained)
    if len(vector) != mean.dim:
        raise ValueError(f"training returned {len(vector)} values: must be {mean.dim}")
    return vector


def _read_gathered(trained: ArrayRecord, mean: BaseMean) -> torch.Tensor:
    """The sum that `gathered` made for a mean; how many records it has is not known."""
    name = GATHERED_PREFIX + mean.fingerprint
    if list(trained) != [name]:
        raise ValueError(
            "training must return rqm.flower.gathered(…), with the same settings, where rqm.records is given"
        )
    values = np.asarray(trained[name].numpy())
    if values.dtype != np.float64 or values.shape != (mean.dim,):
        raise ValueError(f"{GATHERED_PREFIX}: has shape {values.shape}, {values.dtype}: must be ({mean.dim},), float64")
    return torch.from_numpy(values.copy())


UPDATES: dict[type[BaseMean], tuple[Callable[[ArrayRecord, BaseMean], torch.Tensor], Callable[[Any], Update]]] = {
    PrivateMean: (_read_vector, torch.Tensor.float),
    PrivateRecordMean: (_read_gathered, lambda total: RecordSum(total.double(), 0)),
}
"""How to read what training returns, and what its values are as an update, by the class of the private mean."""


def gathered(
    message: Message,
    context: Context,
    net: nn.Module,
    losses: "ExampleLosses",
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
    from rqm.simulation.record_gradients import RecordGradients, records_of_round  # noqa: PLC0415 (silos only)

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
