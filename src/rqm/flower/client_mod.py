"""The client's side: mods that encode and mask what a ClientApp's training returns.

    app = ClientApp(mods=[private_mod])

Only masked vectors and messages of the protocol leave the node: no count, norm, loss or metric. A message that
does not belong to a private round is answered with an error. A node without a policy (`rqm init --policy`) takes
part in nothing. A SuperNode starts a process for each message, so only the stage that trains loads torch.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from rqm._util.files import lock, state_folder, sync_folder
from rqm.flower.messages import NEXT_RECORD, RECORD, answer_record, read_request, refusal_record
from rqm.flower.run_settings import Request, Settings
from rqm.ledger.node_policy import NodeGuard, PolicyError
from rqm.secagg import Client, ProtocolError
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind

log = logging.getLogger("flwr")
Train = Callable[[Message, Context], Message]

SETTLEMENT_RECORD = "rqm-settlement"
"""The record of a node's state with what it needs to settle its noise in the next round."""
SETTLED_MARK = max(STAGES) + 1
"""The mark, after all stages of a round, that the noise which was added in it is settled."""
PRECONDITION_FAILED = 6
"""Flower's error code for a mod that refuses a message (`ErrorCode.MOD_FAILED_PRECONDITION`)."""


def private_mod(message: Message, context: Context, call_next: Train) -> Message:
    """Make a ClientApp private. Randomness is the operating system's.

    Args:
        message: The server's message.
        context: The node's context. The settings are those of its run configuration.
        call_next: The app, or the next mod.

    Returns:
        The answer, or an error with the reason.
    """
    return _Node(context, None, seeded=False).reply(message, call_next)


def seeded_mod(message: Message, context: Context, call_next: Train) -> Message:
    """`private_mod` with the plan's seed, for simulations: **not private**, and every answer says so.

    Equal to the in-process simulator bit for bit if every client is one partition (`partition-id`). Nodes refuse
    unless their policy is `trust_server = true`. Only a strategy with `seeded=True` accepts such answers, and it
    states no ε.

    Args:
        message: The server's message.
        context: The node's context.
        call_next: The app, or the next mod.

    Returns:
        The answer, or an error with the reason.
    """
    return _Node(context, None, seeded=True).reply(message, call_next)


def mod_for(settings: Settings, *, seeded: bool = False) -> Callable[[Message, Context, Train], Message]:
    """A mod whose settings are part of the app, and not of the run's configuration.

    Args:
        settings: The settings.
        seeded: Whether it is `seeded_mod`; by default it is `private_mod`.

    Returns:
        The mod.
    """

    def mod(message: Message, context: Context, call_next: Train) -> Message:
        return _Node(context, settings, seeded).reply(message, call_next)

    return mod


@final
class _Node:
    """A node that answers a message of private rounds."""

    def __init__(self, context: Context, settings: Settings | None, seeded: bool) -> None:
        self.context, self._settings, self.seeded = context, settings, seeded

    def reply(self, message: Message, call_next: Train) -> Message:
        """Answer the requests in a message.

        Args:
            message: The server's message.
            call_next: The app.

        Returns:
            The answers, or an error with the reason.
        """
        records = message.content.config_records
        if message.metadata.message_type != MessageType.TRAIN or RECORD not in records:
            return _error(message, "not a message of a private round: its answer would leave the client unprotected")
        names = (RECORD, NEXT_RECORD) if NEXT_RECORD in records else (RECORD,)
        answers: dict[str, Any] = {}
        for name in names:
            try:
                request = read_request(records[name])
                if request.stage == Kind.MASKED and len(names) > 1:
                    raise ProtocolError("a vector: must be requested alone")
                answers[name] = answer_record(self._answer(request, message, call_next), seeded=self.seeded)
            except (ProtocolError, ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
                # The reason is of the protocol, of the settings or of this machine's disk, never of the data.
                if len(names) == 1:
                    return _error(message, str(error))
                answers[name] = refusal_record(f"rqm: {error}")
        return Message(RecordDict(answers), reply_to=message)

    def _answer(self, request: Request, message: Message, call_next: Train) -> bytes:
        """The client's message of a stage, after all that must be on disk before it leaves."""
        settings = self._settings or Settings.from_run_config(self.context.run_config)
        guard = self._guard()
        plan = settings.plan
        is_settling = plan.noise is not None and request.client >= plan.participation.clients
        if request.stage == Kind.KEYS:
            if guard is None:
                _warn_unprotected_once(self.seeded)
            elif is_settling:
                guard.begin(request.round_name)
            else:
                guard.allow(settings.mean(request.dim), request.round_name)
        client, previous = self._client(request, settings, guard, is_settling)

        def values() -> Any:
            from rqm.flower.client_encoding import train  # noqa: PLC0415 (only this stage needs torch)

            encoder = self._encoder(request, settings)
            if previous is not None:
                mark_answered(previous.fingerprint, SETTLED_MARK)
                return encoder.mean.settle(encoder.noise_state(previous.noise_secret))
            if guard is not None:
                guard.charge(encoder.mean, request.round_index, request.link.chain if request.link else b"")
            update = train(request, settings, message, self.context, call_next)
            noise = encoder.noise_state(client.noise_secret) if client.noise_secret else None
            return np.asarray(encoder.encode(update, noise))

        answer = client.answer(request.stage, request.message, values)
        self._save(client, request, keep_others=plan.noise is None)
        return answer

    def _guard(self) -> NodeGuard | None:
        """The node's guard; None if its policy is `trust_server = true`, without which nothing is seeded."""
        guard = NodeGuard.of(self.context.node_config)
        if self.seeded and guard is not None:
            raise PolicyError(
                "the policy of this node: must be trust_server = true for seeded_mod, which is not private; or use "
                "private_mod"
            )
        return guard

    def _client(
        self, request: Request, settings: Settings, guard: NodeGuard | None, is_settling: bool
    ) -> tuple[Client, ClientSettlement | None]:
        """The client of this round, new or as it was saved; and what it settles, if it only does that."""
        identity, roster = (guard and guard.credentials) or (None, None)
        params = settings.params(request.dim, request.round_name, roster.hash if roster else b"", request.link)
        previous = self._settlement() if is_settling else None
        if request.stage == Kind.KEYS:
            secret, next_context = b"", b""
            if request.link is not None and not is_settling:
                next_context = request.link.next_context(settings.mean(request.dim).fingerprint)
                secret = self._encoder(request, settings).noise_secret if self.seeded else b""
            client = Client(
                params,
                request.client,
                identity,
                roster,
                previous=previous,
                next_context=next_context,
                noise_secret=secret,
            )
            return client, previous
        saved = self._saved.pop(_round_key(request), None)  # whatever happens now, it is not used again
        if not isinstance(saved, bytes):
            raise ProtocolError("this client is in no round, or was lost in it")
        client = Client.load(params, saved, identity, roster, previous=previous)
        if client.number != request.client:  # the number decides whether a vector or noise is sent
            raise ProtocolError(f"client = {request.client}: must be {client.number}, this client's number")
        mark_answered(client.fingerprint, request.stage)
        return client, previous

    def _encoder(self, request: Request, settings: Settings) -> Any:
        """The encoder of a round: a `SecureEncoder`, or a `SeededEncoder` in simulations."""
        mean = settings.mean(request.dim)
        if self.seeded:
            from rqm.flower.seeded_client import SeededEncoder  # noqa: PLC0415 (torch)

            return SeededEncoder(mean, request.round_index, settings.plan, self.context.node_config)
        from rqm.flower.client_encoding import SecureEncoder  # noqa: PLC0415 (torch)

        return SecureEncoder(mean, request.round_index)

    # -- the node's state -------------------------------------------------------------------------

    @property
    def _saved(self) -> ConfigRecord:
        """The clients of rounds that are not over, by round."""
        record = self.context.state.config_records.setdefault(RECORD, ConfigRecord())
        assert isinstance(record, ConfigRecord)
        return record

    def _settlement(self) -> ClientSettlement | None:
        """What this node needs to settle the noise of the sum that it was in last."""
        saved = self.context.state.config_records.get(SETTLEMENT_RECORD, ConfigRecord()).get("settlement")
        return ClientSettlement.load(saved) if isinstance(saved, bytes) else None

    def _save(self, client: Client, request: Request, *, keep_others: bool) -> None:
        """Keep a client until its last message, beside that of at most one other round."""
        if request.stage == Kind.KEYS:
            for key in list(self._saved)[: len(self._saved) - keep_others]:
                del self._saved[key]
        if request.stage != Kind.REVEAL:
            self._saved[_round_key(request)] = client.save()
        if client.settlement is not None:
            record = ConfigRecord({"settlement": client.settlement.save()})
            self.context.state.config_records[SETTLEMENT_RECORD] = record


def mark_answered(fingerprint: str, stage: int) -> None:
    """Mark on disk that a client answers a stage, so that it answers none twice.

    Flower sends a reply before it saves the node's state. A process that dies in between would be asked again with
    the old state, and send a second vector under the same masks. Marks are a few bytes each in the folder `spent`
    of the user's state; those of runs that are over may be deleted.

    Args:
        fingerprint: The client's fingerprint, which names its keys.
        stage: The stage.

    Raises:
        ProtocolError: If the client has answered this stage or a later one, or if the mark was deleted meanwhile.
    """
    folder = state_folder() / "spent"
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    path = folder / fingerprint
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        lock(file, wait=True)
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file)):
            raise ProtocolError("the mark of what this client has answered was deleted meanwhile")
        answered = os.pread(file, 256, 0)
        if any(earlier >= stage for earlier in answered):
            raise ProtocolError("this client has answered that stage already, and answers nothing twice")
        if os.pwrite(file, bytes([stage]), len(answered)) != 1:
            raise OSError(f"{path}: the disk is full")
        os.fsync(file)
    finally:
        os.close(file)
    if not answered:  # the process that created the file may have died before its name was on disk
        sync_folder(folder)


def _round_key(request: Request) -> str:
    return sha256(request.round_name).hexdigest()


def _error(message: Message, reason: str) -> Message:
    return Message(Error(PRECONDITION_FAILED, f"rqm: {reason}"), reply_to=message)


@cache
def _warn_unprotected_once(seeded: bool) -> None:
    """Warn once in a process, which is many nodes in simulations."""
    if seeded:
        log.warning("rqm: seeded randomness, NOT PRIVATE: for simulation only")
    else:
        log.warning("rqm: the policy of this node is trust_server = true: nothing is checked, and nothing is counted")
