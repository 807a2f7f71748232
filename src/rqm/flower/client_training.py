"""What a client reports for a round: its app's training, packed into one vector. It needs NumPy alone."""

import logging
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, final

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict

from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.correlated.scheme import NoiseState
from rqm.flower.arrays import TrainedArrays
from rqm.flower.messages import PLAN_RECORD
from rqm.flower.shared_plan import SharedPlan
from rqm.flower.vector_layout import FloatVector, Metric
from rqm.randomness import SecureRandom
from rqm.secagg import ProtocolError

log = logging.getLogger("flwr")
App = Callable[[Message, Context], Message]
GATHERED_PREFIX = "rqm.gathered."
"""The name of the array with a silo's sum of clipped gradients begins so; the fingerprint of the mean follows."""
Vector = FloatVector | RecordSum
"""A user's vector, or the sum of a silo's records."""


class Outcome(NamedTuple):
    """What training made.

    Attributes:
        vector: The client's vector.
        failure: Why training failed, which depends on the data; empty if it did not. It never leaves a node that
            does not trust the server.
    """

    vector: Vector
    failure: str = ""


def train(plan: SharedPlan, message: Message, context: Context, call_next: App) -> Outcome:
    """Call the app's training, and its evaluation of the received model where metrics need it.

    Whether training fails depends on the data, so then the vector of a failure is returned.

    Args:
        plan: The plan of the run.
        message: The message with the model.
        context: The node's context.
        call_next: The app.

    Returns:
        The vector, finite and of the plan's size.

    Raises:
        ProtocolError: If the model is not that of the plan, or the app refuses it.
    """
    received = _received_arrays(message)
    trained = TrainedArrays(plan.trained)
    try:
        start = trained.read(received)  # before the app can change it
    except ValueError as error:
        raise ProtocolError(f"the model: {error}") from None
    if start.size != plan.layout.size:
        raise ProtocolError(f"the model has {start.size} trained values: must be {plan.layout.size}")
    made, as_vector = VECTORS[type(plan.mean)]
    try:
        return Outcome(as_vector(made(plan, start, message, context, call_next)))
    except ProtocolError:  # what the app refuses does not depend on data
        raise
    except Exception as error:
        log.warning("rqm: training failed here; an encoding of zero is sent:\n%s", traceback.format_exc())
        return Outcome(as_vector(plan.layout.pack_failure()), f"{type(error).__name__}: {error}")


def _user_vector(
    plan: SharedPlan, start: FloatVector, message: Message, context: Context, call_next: App
) -> FloatVector:
    """What a user reports: the change of the trained arrays, and metrics."""
    trained, received = TrainedArrays(plan.trained), ArrayRecord(dict(_received_arrays(message).items()))
    metrics = _evaluated(plan, message, context, call_next)
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(str(reply.error.reason))
    (arrays,) = reply.content.array_records.values()
    update = trained.read(arrays, received) - start
    values = _reported(reply)
    metrics |= _declared(plan.layout.metrics, values, is_evaluation=False)
    weight = float(values[plan.layout.weight]) if plan.layout.weight else 1.0
    return plan.layout.pack(update, metrics, weight)


def _silo_vector(
    plan: SharedPlan, start: FloatVector, message: Message, context: Context, call_next: App
) -> FloatVector:
    """What a silo reports: a step against the sum of its records' clipped gradients."""
    (arrays,) = call_next(message, context).content.array_records.values()
    return -_gathered_sum(arrays, plan.mean)


VECTORS: dict[type[BaseMean], tuple[Callable[..., FloatVector], Callable[[FloatVector], Vector]]] = {
    PrivateMean: (_user_vector, lambda vector: vector),
    PrivateRecordMean: (_silo_vector, lambda total: RecordSum(total.astype(np.float64), 0)),
}
"""What a client reports, and the form that is encoded, by the class of the private mean."""


def _received_arrays(message: Message) -> ArrayRecord:
    """The model that the server has sent, as bytes that anybody can have made."""
    try:
        (received,) = message.content.array_records.values()
        for array in received.values():
            array.numpy()
    except Exception as error:
        raise ProtocolError(f"the model cannot be read ({type(error).__name__})") from None
    return received


def _evaluated(plan: SharedPlan, message: Message, context: Context, call_next: App) -> dict[Metric, float]:
    """The metrics of the received model, by the app's evaluate function."""
    if not any(metric.is_evaluation for metric in plan.layout.metrics):
        return {}
    content = {name: record for name, record in message.content.items() if name != PLAN_RECORD}
    request = Message(RecordDict(content), reply_to=message)  # a message that comes from this node itself
    request.metadata.message_type = MessageType.EVALUATE
    reply = call_next(request, context)
    if reply.has_error():
        raise RuntimeError(str(reply.error.reason))
    return _declared(plan.layout.metrics, _reported(reply), is_evaluation=True)


def _reported(reply: Message) -> dict[str, Any]:
    """All metrics that the app reports."""
    records: Iterable[MetricRecord] = reply.content.metric_records.values()
    return {name: value for record in records for name, value in record.items()}


def _declared(metrics: tuple[Metric, ...], values: dict[str, Any], *, is_evaluation: bool) -> dict[Metric, float]:
    """The declared metrics of training, or of evaluation."""
    declared = [metric for metric in metrics if metric.is_evaluation == is_evaluation]
    missing = [metric.name for metric in declared if metric.name not in values]
    if missing:
        raise KeyError(f"the app reports no metric {missing[0]!r}, which the run's settings declare")
    return {metric: float(values[metric.name]) for metric in declared}


def _gathered_sum(arrays: ArrayRecord, mean: BaseMean) -> FloatVector:
    """The sum that `gathered` made for a mean; how many records it has is not known."""
    name = GATHERED_PREFIX + mean.fingerprint
    if list(arrays) != [name]:
        raise ValueError("training must return rqm.flower.gathered(…) where records are protected")
    values = arrays[name].numpy()
    if values.dtype != np.float64 or values.shape != (mean.dim,):
        raise ValueError(f"{GATHERED_PREFIX}: has shape {values.shape}, {values.dtype}: must be ({mean.dim},), float64")
    return np.array(values)


@final
class SecureEncoder:
    """Encodes vectors with the operating system's randomness."""

    def __init__(self, mean: BaseMean, round_index: int) -> None:
        self.mean, self.round_index = mean, round_index

    def noise_state(self, noise_secret: bytes) -> NoiseState:
        """The correlated noise that follows from a client's secret."""
        assert self.mean.noise is not None
        return self.mean.noise.begin(noise_secret, self.mean.coordinates)

    def encode(self, vector: Vector, noise: NoiseState | None) -> Any:
        """A client's message.

        Args:
            vector: The vector.
            noise: The client's correlated noise; None for independent noise.

        Returns:
            Integers below the modulus.
        """
        return self.mean.encode(vector, SecureRandom(), round_index=self.round_index, noise_state=noise)
