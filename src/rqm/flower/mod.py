"""The client's side: a mod that clips, rotates, encodes and masks what a ClientApp's training returns.

    app = ClientApp(mods=[private_mod])

A node holds its policy (``rqm init --policy``) against the server, and without one takes part in nothing.

Nothing else leaves the client: no count, norm, loss or metric. Messages that are not part of a private round are
answered with an error. A SuperNode starts a process for each message, so only the stage that trains loads torch.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from rqm.flower.marks import spend
from rqm.flower.records import NEXT, RECORD, REFUSED, Asked, answer
from rqm.flower.settings import Settings
from rqm.plan.policy import NodeGuard
from rqm.secagg import Client, ProtocolError
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind

Call = Callable[[Message, Context], Message]

HELD = "rqm-held"
"""The record of a node's state with what it holds of a sum whose noise it will take back."""
TAKEN_BACK = 1 + max(STAGES)
"""The mark, after all stages of the round that it was added in, that noise is being taken back."""


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
    records = msg.content.config_records
    if msg.metadata.message_type != MessageType.TRAIN or RECORD not in records:
        told = "rqm: not a message of a private round: its answer would leave the client unprotected"
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, told), reply_to=msg)
    answers: dict[str, Any] = {}
    for name in (RECORD, NEXT) if NEXT in records else (RECORD,):
        try:
            asked = Asked.of(msg, name)
            if asked.stage == Kind.MASKED and NEXT in records:
                raise ProtocolError("a vector: must be asked for by itself")
            settings = settings or Settings.from_run_config(ctxt.run_config)
            answers[name] = answer(_step(asked, settings, msg, ctxt, call_next, seeded), seeded=seeded)
        except (ProtocolError, ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
            # The reason is of the protocol, of the settings or of this machine's disk, never of the data.
            if NEXT not in records:
                return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"rqm: {error}"), reply_to=msg)
            answers[name] = ConfigRecord({REFUSED: f"rqm: {error}"})
    return Message(RecordDict(answers), reply_to=msg)


def _step(asked: Asked, settings: Settings, msg: Message, ctxt: Context, call_next: Call, seeded: bool) -> bytes:
    states, stage = ctxt.state.config_records, Kind(asked.stage)
    saved, own = states.setdefault(RECORD, ConfigRecord()), sha256(asked.round).hexdigest()
    guard = None if seeded else NodeGuard.of(ctxt.node_config)
    # one of the last takes back what it has added to the sum before, and sends no vector
    later = settings.plan.noise is not None and asked.number >= settings.plan.participation.clients
    if stage == Kind.KEYS and guard is not None:
        guard.begin(asked.round) if later else guard.allow(settings.plan, asked.dim, asked.round)
    elif stage == Kind.KEYS and not seeded:
        _say_trusting()
    identity, roster = (guard and guard.credentials) or (None, None)
    params = settings.params(asked.dim, asked.round, roster.hash if roster else b"", asked.link)
    held = _held(states) if later else None
    if stage == Kind.KEYS:
        after, secret = _noise(asked, settings, ctxt, seeded) if asked.link and not later else (b"", b"")
        client = Client(params, asked.number, identity, roster, previous=held, next_context=after, noise_secret=secret)
    else:
        known = saved.pop(own, None)  # spent, whatever happens now
        if not isinstance(known, bytes):
            raise ProtocolError("this client is in no round, or was lost in it")
        client = Client.load(params, known, identity, roster, previous=held)
        if client.number != asked.number:  # which says what a client sends: a vector of its own, or noise
            raise ProtocolError(f"number = {asked.number}: must be {client.number}, this client's in the round")
        spend(client.fingerprint, stage)  # … even if nobody will remember that it was

    def values() -> Any:
        from rqm.flower.encoding import levels, taken_back  # noqa: PLC0415 (torch, which no other stage waits for)

        if held is not None:
            spend(held.fingerprint, TAKEN_BACK)  # noise is taken back once, or never
            return taken_back(asked, settings, held.noise_secret)
        if guard is not None:
            guard.charge(settings.plan, asked.dim, asked.turn, asked.chain)
        return levels(asked, settings, msg, ctxt, call_next, seeded=seeded, secret=client.noise_secret)

    message = client.answer(stage, asked.message, values)
    _save(client, stage, saved, own, alone=settings.plan.noise is not None)
    if client.settlement is not None:
        states[HELD] = ConfigRecord({"held": client.settlement.save()})
    return message


@cache
def _say_trusting() -> None:
    """Said once in a process, which in simulations is many nodes."""
    log(WARNING, "rqm: this node's policy trusts the server with everything: that alone says how private it is")


def _save(client: Client, stage: Kind, saved: ConfigRecord, own: str, *, alone: bool) -> None:
    """Keep what a client knows until its last message; beside it, unless it is ``alone``, that of one other round."""
    if stage == Kind.KEYS:
        for name in list(saved)[: len(saved) - (not alone)]:
            del saved[name]
    if stage != Kind.REVEAL:
        saved[own] = client.save()


def _held(states: Any) -> ClientSettlement | None:
    """What this node holds of the sum that it was in last."""
    record = states.get(HELD)
    known = None if record is None else record.get("held")
    return ClientSettlement.load(known) if isinstance(known, bytes) else None


def _noise(asked: Asked, settings: Settings, ctxt: Context, seeded: bool) -> tuple[bytes, bytes]:
    """What the round that follows must be about; and for simulation, a secret that follows from the seed."""
    assert asked.link is not None
    after = asked.link.next_context(settings.mean(asked.dim).fingerprint)
    if not seeded:
        return after, b""
    from rqm.flower.encoding import seeded_secret  # noqa: PLC0415 (torch)

    return after, seeded_secret(settings, ctxt, asked.turn)
