"""The client's side: a mod that clips, rotates, encodes and masks what a ClientApp's training returns.

    app = ClientApp(mods=[private_mod])

Nothing else leaves the client: no count, norm, loss or metric. Messages that are not part of a private round are
answered with an error.
"""

import os
from collections.abc import Callable
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from rqm.channel import Channel
from rqm.federated.loop import NOISE, sampled
from rqm.flower.settings import Settings
from rqm.flower.vectors import flat
from rqm.randomness import SecureRandom, SeededRandom
from rqm.secagg import Client, ProtocolError
from rqm.secagg.wire import Kind
from rqm.transforms import Rotation, l2_clip, over_budget, silence

RECORD = "rqm"
"""The record of a message that belongs to the protocol, and of a node's state."""

Call = Callable[[Message, Context], Message]
Source = Callable[[Settings, Context, int], SecureRandom | SeededRandom]


def private_mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
    """Make a ClientApp private. Randomness is the operating system's."""
    return _answer(msg, ctxt, call_next, _secure)


def seeded_mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
    """The same for simulation, with the plan's seed: **not private**, and logged as such.

    Equal to the in-process simulator bit for bit where every client is one partition (``partition-id``).
    """
    log(WARNING, "rqm: seeded randomness, NOT PRIVATE: for simulation only")
    return _answer(msg, ctxt, call_next, _seeded)


def mod_for(settings: Settings, *, seeded: bool = False) -> Callable[[Message, Context, Call], Message]:
    """The same with settings that are part of the app, not of the run's configuration."""
    source: Source = _seeded if seeded else _secure

    def mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
        if seeded:
            log(WARNING, "rqm: seeded randomness, NOT PRIVATE: for simulation only")
        return _answer(msg, ctxt, call_next, source, settings)

    return mod


def _secure(settings: Settings, ctxt: Context, turn: int) -> SecureRandom:
    return SecureRandom()


def _seeded(settings: Settings, ctxt: Context, turn: int) -> SeededRandom:
    total, mine = int(ctxt.node_config["num-partitions"]), int(ctxt.node_config["partition-id"])
    place = sampled(settings.plan, total, turn).index(mine)
    return SeededRandom(settings.plan.seed, NOISE, turn, place)


def _answer(msg: Message, ctxt: Context, call_next: Call, source: Source, settings: Settings | None = None) -> Message:
    try:
        if msg.metadata.message_type != MessageType.TRAIN or RECORD not in msg.content.config_records:
            raise ProtocolError("not a message of a private round: its answer would leave the client unprotected")
        told: dict[str, Any] = dict(msg.content.config_records[RECORD])
        settings = settings or Settings.from_run_config(ctxt.run_config)
        body = _step(Kind(told["stage"]), told, settings, msg, ctxt, call_next, source)
    except (ProtocolError, ValueError, TypeError, KeyError) as error:
        # The reason is of the protocol or of the settings, never of the data.
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"rqm: {error}"), reply_to=msg)
    return Message(RecordDict({RECORD: ConfigRecord({"message": body})}), reply_to=msg)


def _step(
    stage: Kind, told: dict[str, Any], settings: Settings, msg: Message, ctxt: Context, call_next: Call, source: Source
) -> bytes:
    states = ctxt.state.config_records
    params = settings.params(int(told["dim"]), bytes(told["round"]))
    if stage == Kind.KEYS:
        client = Client(params, int(told["number"]))
        message = client.keys()
    else:
        saved = states.pop(RECORD, None)  # spent, whatever happens now
        if saved is None:
            raise ProtocolError("this client is in no round, or was lost in it")
        client = Client.load(params, bytes(saved["client"]))  # type: ignore[arg-type]
        data = bytes(told["message"])
        if stage == Kind.SHARES:
            message = client.share(data)
        elif stage == Kind.MASKED:
            message = client.mask(data, _levels(told, settings, msg, ctxt, call_next, source))
        elif stage == Kind.ACKS:
            message = client.acknowledge(data)
        else:
            message = client.reveal(data)
    states[RECORD] = ConfigRecord({"client": client.save()})
    return message


def _levels(
    told: dict[str, Any], settings: Settings, msg: Message, ctxt: Context, call_next: Call, source: Source
) -> Any:
    """Train, and encode what comes of it. Whatever goes wrong with the data, a vector is sent: n tells nothing."""
    mechanism, transforms = settings.plan.mechanism, settings.plan.transforms
    assert isinstance(mechanism, Channel)
    (before,) = msg.content.array_records.values()
    start, turn = flat(before), int(told["turn"])
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
    rows = vector[None].clone()
    if transforms.rotate:
        rows, finite = Rotation(len(vector), int(told["rotation"])).clip_and_forward(rows, transforms.l2_clip)
    else:
        finite = l2_clip(rows, transforms.l2_clip)
    if not bool(finite[0]):
        log(WARNING, "rqm: what training returned here is not finite: an encoding of zero is sent")
    if transforms.l2_clip is not None:
        silence(rows, over_budget(mechanism, rows, transforms.l2_clip))
    total = torch.zeros(rows.shape[1], dtype=torch.int32)
    mechanism.encode_sum(rows, source(settings, ctxt, turn), out=total)
    return np.asarray(total)


def new_round() -> bytes:
    """A name for a round that never repeats."""
    return os.urandom(16)
