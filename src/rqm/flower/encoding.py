"""What a client sends for the model that it has trained: clipped, rotated, encoded."""

from collections.abc import Callable
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.supercore import log

from rqm.flower.records import RECORD, Asked
from rqm.flower.settings import Settings
from rqm.flower.vectors import flat
from rqm.randomness import SecureRandom, SeededRandom
from rqm.secagg import ProtocolError
from rqm.training.participants import sampled
from rqm.training.streams import NOISE

Call = Callable[[Message, Context], Message]


def levels(asked: Asked, settings: Settings, msg: Message, ctxt: Context, call_next: Call, *, seeded: bool) -> Any:
    """Train, and encode what comes of it. Whatever goes wrong with the data, a vector is sent: n tells nothing."""
    start, turn = _model(msg, asked.dim), asked.turn
    del msg.content.config_records[RECORD]
    try:
        reply = call_next(msg, ctxt)
        (after,) = reply.content.array_records.values()
        vector = flat(after)
        vector = vector if settings.sends == "gradient" else vector - start
        if vector.shape != start.shape:
            raise ValueError(f"training returned {len(vector)} values: must be {len(start)}")
    except Exception as error:
        log(WARNING, "rqm: training failed here (%s): an encoding of zero is sent", error)
        vector = torch.zeros_like(start)
    mean = settings.plan.private_mean(len(vector))
    total = torch.zeros(mean.coordinates, dtype=torch.int32)
    source = _seeded(settings, ctxt, turn) if seeded else SecureRandom()
    if not bool(mean.add(vector[None].clone(), total, source, round=turn)[0]):
        log(WARNING, "rqm: what training returned here is not finite: an encoding of zero is sent")
    return np.asarray(total)


def _model(msg: Message, dim: int) -> torch.Tensor:
    """The model that the server has sent."""
    try:
        (record,) = msg.content.array_records.values()
        values = flat(record)
    except Exception as error:  # Flower's arrays are bytes that anybody can have made
        raise ProtocolError(f"the model cannot be read ({type(error).__name__})") from None
    if len(values) != dim:
        raise ProtocolError(f"dim = {dim}: must be {len(values)}, the parameters of the model that was sent")
    return values


def _seeded(settings: Settings, ctxt: Context, turn: int) -> SeededRandom:
    total, mine = int(ctxt.node_config["num-partitions"]), int(ctxt.node_config["partition-id"])
    place = sampled(settings.plan, total, turn).index(mine)
    return SeededRandom(settings.plan.seed, NOISE, turn, place)
