"""What a client sends for the model that it has trained. Apart from the mod, because it needs torch."""

import logging
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message

from rqm.core.base import BaseMean
from rqm.core.record_mean import RecordSum
from rqm.correlated.noise import NoiseState
from rqm.flower.arrays import to_vector, vector_length
from rqm.flower.messages import RECORD
from rqm.flower.request import Request
from rqm.flower.run_settings import Settings
from rqm.flower.silo import read_gathered
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError

log = logging.getLogger("flwr")
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
    model = _received_model(message, request.dim)
    start = to_vector(model) if settings.sends == "update" else None  # before the app can change it
    del message.content.config_records[RECORD]
    try:
        reply = call_next(message, context)
        (trained,) = reply.content.array_records.values()
        if settings.plan.records is not None:
            records = read_gathered(trained, request.dim, settings.mean(request.dim).fingerprint)
            return RecordSum(_finite(records.total), records.records)
        vector = to_vector(trained)
        if len(vector) != request.dim:
            raise ValueError(f"training returned {len(vector)} values: must be {request.dim}")
        return _finite(vector if start is None else vector - start)
    except ProtocolError:  # the model's shape does not depend on data
        raise
    except Exception as error:
        log.warning("rqm: training failed here (%s): an encoding of zero is sent", error)
        zero = torch.zeros(request.dim)
        return zero if settings.plan.records is None else RecordSum(zero.double(), 0)


@final
class SecureEncoder:
    """Encodes updates with the operating system's randomness.

    `rqm.flower.seeded_client.SeededEncoder` has the same methods, for simulations.
    """

    def __init__(self, mean: BaseMean, round_index: int) -> None:
        self.mean, self.round_index = mean, round_index

    def encode(self, update: Update, noise_secret: bytes) -> Any:
        """A client's message.

        Args:
            update: The update.
            noise_secret: The client's secret for correlated noise; empty for independent noise.

        Returns:
            Integers below the modulus.
        """
        noise = self._noise_state(noise_secret) if noise_secret else None
        return np.asarray(self.mean.encode(update, SecureRandom(), round_index=self.round_index, noise_state=noise))

    def settle(self, noise_secret: bytes) -> Any:
        """The settlement of the noise that follows from a secret."""
        return self.mean.settle(self._noise_state(noise_secret))

    def _noise_state(self, noise_secret: bytes) -> NoiseState:
        assert self.mean.noise is not None
        return self.mean.noise.begin(noise_secret, self.mean.coordinates)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Values that can be encoded."""
    if not torch.isfinite(values).all():
        raise ValueError("training returned values that are not finite")
    return values


def _received_model(message: Message, dim: int) -> ArrayRecord:
    """The model that the server has sent, as bytes that anybody can have made."""
    try:
        (model,) = message.content.array_records.values()
        length = vector_length(model)
    except Exception as error:
        raise ProtocolError(f"the model cannot be read ({type(error).__name__})") from None
    if length != dim:
        raise ProtocolError(f"dim = {dim}: must be {length}, the parameters of the model that was sent")
    return model
