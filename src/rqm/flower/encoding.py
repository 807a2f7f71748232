"""What a client sends for the model that it has trained: clipped, rotated, encoded."""

import struct
from collections.abc import Callable
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.supercore import log

from rqm.core.base import BaseMean
from rqm.core.record_mean import RecordSum
from rqm.correlated.simulated_chain import TRANSIENT_STREAM
from rqm.flower.records import RECORD, Asked
from rqm.flower.settings import Settings
from rqm.flower.silo import read_gathered
from rqm.flower.vectors import flat, size
from rqm.randomness import SecureRandom, SeededRandom
from rqm.secagg import ProtocolError
from rqm.training.cohort import CohortSampler
from rqm.training.streams import NOISE

Call = Callable[[Message, Context], Message]
SEEDED = b"rqm, not private"
"""How the secrets of simulations begin; of others, one in 2¹²⁸."""


def levels(
    asked: Asked, settings: Settings, msg: Message, ctxt: Context, call_next: Call, *, seeded: bool, secret: bytes = b""
) -> Any:
    """Train, and encode what comes of it. Whatever goes wrong with the data, a vector is sent: n tells nothing.

    Noise that will be taken back comes from the ``secret``.
    """
    model, turn = _model(msg, asked.dim), asked.turn
    start = flat(model) if settings.sends == "update" else None  # before anybody can change it
    del msg.content.config_records[RECORD]
    try:
        reply = call_next(msg, ctxt)
        (after,) = reply.content.array_records.values()
        if settings.plan.records is not None:
            return _silo(
                read_gathered(after, asked.dim, settings.mean(asked.dim).fingerprint), settings, ctxt, turn, seeded
            )
        vector = flat(after)
        if len(vector) != asked.dim:
            raise ValueError(f"training returned {len(vector)} values: must be {asked.dim}")
        vector = vector if start is None else vector - start
    except ProtocolError:  # of the model's shape, which no data decide
        raise
    except Exception as error:
        log(WARNING, "rqm: training failed here (%s): an encoding of zero is sent", error)
        vector = torch.zeros(asked.dim)
        if settings.plan.records is not None:
            return _silo(RecordSum(vector.double(), 0), settings, ctxt, turn, seeded)
    mean = settings.mean(asked.dim)
    total = torch.zeros(mean.coordinates, dtype=torch.int32)
    source = _seeded(settings, ctxt, turn) if seeded else SecureRandom()
    if not bool(mean.add_messages(vector[None], total, source, round_index=turn)[0]):
        log(WARNING, "rqm: what training returned here is not finite: an encoding of zero is sent")
    found = np.asarray(total)
    return found if mean.noise is None else (found + noise(mean, secret)[0]) % mean.modulus


def _silo(found: RecordSum, settings: Settings, ctxt: Context, turn: int, seeded: bool) -> Any:
    """What a silo sends for the sum of its records."""
    mean = settings.mean(len(found.total))
    total = torch.zeros(mean.coordinates, dtype=torch.int32)
    mean.add_messages([found], total, _seeded(settings, ctxt, turn) if seeded else SecureRandom(), round_index=turn)
    return np.asarray(total)


def taken_back(asked: Asked, settings: Settings, secret: bytes) -> Any:
    """The second message: the noise of the first, negated."""
    mean = settings.mean(asked.dim)
    return -noise(mean, secret)[1] % mean.modulus  # whatever it is, even zero: who is lost must not depend on it


def noise(mean: BaseMean, secret: bytes) -> tuple[Any, Any]:
    """What a client adds by its secret, and what it takes back; in simulations alone the secret is a seed."""
    assert mean.noise is not None
    if not secret.startswith(SEEDED):
        state = mean.noise.begin(secret, mean.coordinates)
        return state.added, state.canceled
    seed, turn, place = struct.unpack_from("<QII", secret, len(SEEDED))
    like = torch.zeros(mean.coordinates, dtype=torch.int32)
    state = mean.noise.sample_sum(1, like, SeededRandom(seed, TRANSIENT_STREAM, turn, place))
    return np.asarray(state.added).astype(np.int64), np.asarray(state.canceled).astype(np.int64)


def seeded_secret(settings: Settings, ctxt: Context, turn: int) -> bytes:
    """A secret that everybody knows, for simulations: not private."""
    path = settings.plan.seed, turn, _place(settings, ctxt, turn)
    return SEEDED + struct.pack("<QII", *path)


def _model(msg: Message, dim: int) -> ArrayRecord:
    """The model that the server has sent."""
    try:
        (record,) = msg.content.array_records.values()
        found = size(record)
    except Exception as error:  # Flower's arrays are bytes that anybody can have made
        raise ProtocolError(f"the model cannot be read ({type(error).__name__})") from None
    if found != dim:
        raise ProtocolError(f"dim = {dim}: must be {found}, the parameters of the model that was sent")
    return record


def _place(settings: Settings, ctxt: Context, turn: int) -> int:
    """Where the simulator has this partition among the clients of a round."""
    total, mine = int(ctxt.node_config["num-partitions"]), int(ctxt.node_config["partition-id"])
    chosen = CohortSampler(settings.plan, total).clients(turn)
    if mine not in chosen:
        raise ProtocolError(f"partition {mine}: the simulator has others in round {turn + 1}")
    return chosen.index(mine)


def _seeded(settings: Settings, ctxt: Context, turn: int) -> SeededRandom:
    return SeededRandom(settings.plan.seed, NOISE, turn, _place(settings, ctxt, turn))
