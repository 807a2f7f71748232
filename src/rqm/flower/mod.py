"""The client's side: a mod that clips, rotates, encodes and masks what a ClientApp's training returns.

    app = ClientApp(mods=[private_mod])

A node holds its policy (``rqm init --policy``) against the server, and without one takes part in nothing.

Nothing else leaves the client: no count, norm, loss or metric. Messages that are not part of a private round are
answered with an error. A SuperNode starts a process for each message, so only the stage that trains loads torch.
"""

from collections.abc import Callable
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from rqm.flower.marks import spend
from rqm.flower.records import RECORD, Asked, answer
from rqm.flower.settings import Settings
from rqm.plan.policy import NodeGuard
from rqm.secagg import Client, ProtocolError
from rqm.secagg.wire import Kind

Call = Callable[[Message, Context], Message]


def private_mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
    """Make a ClientApp private. Randomness is the operating system's."""
    return _answer(msg, ctxt, call_next, seeded=False)


def seeded_mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
    """The same for simulation, with the plan's seed: **not private**, and every answer says so.

    Equal to the in-process simulator bit for bit where every client is one partition (``partition-id``). Only a
    strategy that was made with ``seeded=True`` takes such answers, and that one states no ε.
    """
    return _answer(msg, ctxt, call_next, seeded=True)


def mod_for(settings: Settings, *, seeded: bool = False) -> Callable[[Message, Context, Call], Message]:
    """The same with settings that are part of the app, not of the run's configuration."""

    def mod(msg: Message, ctxt: Context, call_next: Call) -> Message:
        return _answer(msg, ctxt, call_next, seeded, settings)

    return mod


def _answer(msg: Message, ctxt: Context, call_next: Call, seeded: bool, settings: Settings | None = None) -> Message:
    if seeded:
        log(WARNING, "rqm: seeded randomness, NOT PRIVATE: for simulation only")
    try:
        if msg.metadata.message_type != MessageType.TRAIN or RECORD not in msg.content.config_records:
            raise ProtocolError("not a message of a private round: its answer would leave the client unprotected")
        asked = Asked.of(msg)
        settings = settings or Settings.from_run_config(ctxt.run_config)
        body = _step(asked, settings, msg, ctxt, call_next, seeded)
    except (ProtocolError, ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        # The reason is of the protocol, of the settings or of this machine's disk, never of the data.
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"rqm: {error}"), reply_to=msg)
    return Message(RecordDict({RECORD: answer(body, seeded=seeded)}), reply_to=msg)


def _step(asked: Asked, settings: Settings, msg: Message, ctxt: Context, call_next: Call, seeded: bool) -> bytes:
    states, stage = ctxt.state.config_records, Kind(asked.stage)
    guard = None if seeded else NodeGuard.of(ctxt.node_config)
    if stage == Kind.KEYS and guard is not None:
        guard.allow(settings.plan, asked.dim, asked.round)
    elif stage == Kind.KEYS and not seeded:
        log(WARNING, "rqm: this node's policy trusts the server with everything: that alone says how private it is")
    identity, roster = (guard and guard.credentials) or (None, None)
    params = settings.params(asked.dim, asked.round, roster.hash if roster else b"")
    if stage == Kind.KEYS:
        client = Client(params, asked.number, identity, roster)
    else:
        saved = states.pop(RECORD, None)  # spent, whatever happens now
        known = None if saved is None else saved.get("client")
        if not isinstance(known, bytes):
            raise ProtocolError("this client is in no round, or was lost in it")
        client = Client.load(params, known, identity, roster)
        spend(client.fingerprint, stage)  # … even if nobody will remember that it was

    def values() -> Any:
        from rqm.flower.encoding import levels  # noqa: PLC0415 (torch, which no other stage waits for)

        if guard is not None:
            guard.charge(settings.plan, asked.dim, asked.turn)
        return levels(asked, settings, msg, ctxt, call_next, seeded=seeded)

    message = client.answer(stage, asked.message, values)
    states[RECORD] = ConfigRecord({"client": client.save()})
    return message
