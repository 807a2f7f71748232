"""The client's side: an app, or a mod, that encodes and masks what training returns.

    app = PrivateClientApp()

Only masked vectors and messages of the protocol leave the node: no count, norm, loss or metric. A message that
does not belong to a private run is answered with an error. A node without a policy (`rqm init --policy`) takes
part in nothing. The policy is read from a file on the node's machine, never from a message or the run's configuration.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from rqm._util.files import lock, state_folder, sync_folder
from rqm.flower.client_training import App, SecureEncoder, train
from rqm.flower.messages import (
    NEXT_RECORD,
    PLAN_KEY,
    PLAN_RECORD,
    RECORD,
    ROSTER_KEY,
    SIMULATED_KEY,
    answer_record,
    read_request,
    refusal_record,
)
from rqm.flower.shared_plan import Request, SharedPlan, read_plan
from rqm.ledger.node_policy import NodeGuard, PolicyError
from rqm.secagg import Client, ProtocolError
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind

log = logging.getLogger("flwr")

SETTLEMENT_RECORD = "rqm-settlement"
"""The record of a node's state with what it needs to settle its noise in the next round."""


class PrivateClientApp(ClientApp):
    """A `ClientApp` of Flower's from which nothing but private messages leaves.

    Use it instead of `ClientApp`, and register `train` (and `evaluate`) as before. Mods that are given here, or to
    `train`, run inside: what they change is encoded, too.

    Args:
        client_fn: Not supported: apps with a `client_fn` are refused when a run begins.
        mods: Mods of Flower's.
        config_keys: Keys that training needs from the server's configuration. Nodes refuse a run without them.
    """

    def __init__(
        self,
        client_fn: Callable[[Context], Any] | None = None,
        mods: list[Any] | None = None,
        *,
        config_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(mods=mods)
        self.has_client_fn, self.config_keys = client_fn is not None, tuple(config_keys)
        self.has_evaluate = False

    def evaluate(self, action: str = "default", *, mods: list[Any] | None = None) -> Any:
        """Register an evaluate function; see Flower's `ClientApp`.

        Args:
            action: The name of the action.
            mods: Mods of Flower's.

        Returns:
            A decorator.
        """
        self.has_evaluate = True
        return super().evaluate(action, mods=mods)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message of a private run.

        Args:
            message: The server's message.
            context: The node's context.

        Returns:
            The answer, or an error with the reason.
        """
        return _Node(context, self).reply(message, super().__call__)

    def check(self, message: Message) -> None:
        """Refuse what follows from the app and the server's configuration alone.

        Args:
            message: The message that asks for the check.

        Raises:
            ProtocolError: If this app cannot take part in the run.
        """
        if self.has_client_fn:
            raise ProtocolError(
                "the app is made of a client_fn, which cannot be private: register functions with @app.train()"
            )
        received_keys = {
            key for name, record in message.content.config_records.items() if name != PLAN_RECORD for key in record
        }
        missing = [key for key in self.config_keys if key not in received_keys]
        if missing:
            raise ProtocolError(f"{missing[0]}: is missing in the server's configuration, and training needs it")


def private_mod(message: Message, context: Context, call_next: App) -> Message:
    """Make a ClientApp private, as the first of its mods. Randomness is the operating system's.

    What a mod before this one adds to an answer is not covered by ε.

    Args:
        message: The server's message.
        context: The node's context.
        call_next: The app, or the next mod.

    Returns:
        The answer, or an error with the reason.
    """
    return _Node(context).reply(message, call_next)


@final
class _Node:
    """A node that answers a message of private rounds."""

    def __init__(self, context: Context, app: PrivateClientApp | None = None) -> None:
        self.context, self.app = context, app

    def reply(self, message: Message, call_next: App) -> Message:
        """Answer the requests in a message.

        Args:
            message: The server's message.
            call_next: The app.

        Returns:
            The answers, or an error with the reason.
        """
        records = message.content.config_records
        if message.metadata.message_type != MessageType.TRAIN or PLAN_RECORD not in records:
            return _error(
                message,
                "not a message of a private run: its answer would leave the client unprotected. Metrics are reported "
                "with training where the run's settings declare them (rqm.train-metrics, rqm.eval-metrics)",
            )
        names = [name for name in (RECORD, NEXT_RECORD) if name in records]
        answers: dict[str, Any] = {}
        try:
            plan = read_plan(str(records[PLAN_RECORD].get(PLAN_KEY)))
            guard = self._guard(plan)
            if not names:
                answers[RECORD] = self._check(plan, guard, message)
        except (ProtocolError, ValueError, TypeError, OSError) as error:
            return _error(message, str(error))
        for name in names:
            try:
                request = read_request(records[name])
                if request.stage == Kind.MASKED and len(names) > 1:
                    raise ProtocolError("a vector: must be requested alone")
                answers[name] = self._answer(plan, guard, request, message, call_next)
            except (ProtocolError, ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
                # The reason is of the protocol, of the settings or of this machine's disk, never of the data.
                if len(names) == 1:
                    return _error(message, str(error))
                answers[name] = refusal_record(f"rqm: {error}")
        return Message(RecordDict(answers), reply_to=message)

    def _check(self, plan: SharedPlan, guard: NodeGuard | None, message: Message) -> ConfigRecord:
        """What a node says before the first round. It depends on the plan, the policy and the app, on no data."""
        if self.app is not None:
            self.app.check(message)
        # A mod of training does not reach the app's evaluation.
        can_evaluate = self.app is not None and self.app.has_evaluate
        if not can_evaluate and any(metric.is_evaluation for metric in plan.layout.metrics):
            raise ProtocolError(
                "rqm.eval-metrics: need a PrivateClientApp with a function that @app.evaluate() registers"
            )
        if guard is not None:
            own_hash = guard.credentials[1].hash if guard.credentials else b""
            if message.content.config_records[PLAN_RECORD].get(ROSTER_KEY) != own_hash:
                problem = "differs from the server's" if own_hash else "is missing, and the server has one"
                raise PolicyError(
                    f"the policy of this node: its roster {problem}: give the same file to all nodes (roster, in their "
                    "policies) and to the server (RQM_ROSTER, where the SuperLink starts)"
                )
            guard.certify(plan.mean)
        return ConfigRecord({SIMULATED_KEY: guard is None})

    def _answer(
        self, plan: SharedPlan, guard: NodeGuard | None, request: Request, message: Message, call_next: App
    ) -> ConfigRecord:
        """The client's message of a stage, after all that must be on disk before it leaves."""
        is_settling = plan.mean.noise is not None and request.client >= plan.clients
        if request.stage == Kind.KEYS:
            if guard is None:
                _warn_unprotected_once()
            elif is_settling:
                guard.begin(request.round_name)
            else:
                guard.allow(plan.mean, request.round_name)
        client, previous = self._client(plan, request, guard, is_settling)
        failure = ""

        def values() -> Any:
            nonlocal failure
            encoder = SecureEncoder(plan.mean, request.round_index)
            if previous is not None:
                # The mark, after all stages of a round, that the noise which was added in it is settled.
                settled_mark = max(STAGES) + 1
                mark_answered(previous.fingerprint, settled_mark)
                return encoder.mean.settle(encoder.noise_state(previous.noise_secret))
            if guard is not None:
                guard.charge(plan.mean, request.round_index, request.link.chain if request.link else b"")
            outcome = train(plan, message, self.context, call_next)
            failure = outcome.failure if guard is None else ""  # it depends on the data
            noise = encoder.noise_state(client.noise_secret) if client.noise_secret else None
            return np.asarray(encoder.encode(outcome.vector, noise))

        answer = client.answer(request.stage, request.message, values)
        self._save(client, request, keep_others=plan.mean.noise is None)
        return answer_record(answer, failure)

    def _guard(self, plan: SharedPlan) -> NodeGuard | None:
        """The node's guard; None if its policy is `trust_server = true`."""
        named = [
            key for key in self.context.run_config if key.startswith("rqm") and ("policy" in key or "trust" in key)
        ]
        if named:
            raise PolicyError(
                f"{named[0]}: must not be in the run's configuration, which the server writes: a node's policy is a "
                "file on its own machine, which its node configuration may name (rqm-policy)"
            )
        guard = NodeGuard.of(self.context.node_config)
        if plan.is_dry_run and guard is not None:
            raise PolicyError("rqm.dry-run: this node is not simulated: its policy must be trust_server = true")
        return guard

    def _client(
        self, plan: SharedPlan, request: Request, guard: NodeGuard | None, is_settling: bool
    ) -> tuple[Client, ClientSettlement | None]:
        """The client of this round, new or as it was saved; and what it settles, if it only does that."""
        identity, roster = (guard and guard.credentials) or (None, None)
        params = plan.params(request.round_name, roster.hash if roster else b"", request.link)
        previous = self._settlement() if is_settling else None
        if request.stage == Kind.KEYS:
            next_context = b""
            if request.link is not None and not is_settling:
                next_context = request.link.next_context(plan.fingerprint)
            client = Client(params, request.client, identity, roster, previous=previous, next_context=next_context)
            return client, previous
        saved = self._saved.pop(_round_key(request), None)  # whatever happens now, it is not used again
        if not isinstance(saved, bytes):
            raise ProtocolError("this client is in no round, or was lost in it")
        client = Client.load(params, saved, identity, roster, previous=previous)
        if client.number != request.client:  # the number decides whether a vector or noise is sent
            raise ProtocolError(f"client = {request.client}: must be {client.number}, this client's number")
        mark_answered(client.fingerprint, request.stage)
        return client, previous

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
    log.warning("rqm: this node refuses: %s", reason)
    # Flower's error code for a mod that refuses a message (`ErrorCode.MOD_FAILED_PRECONDITION`).
    precondition_failed = 6
    return Message(Error(precondition_failed, f"rqm: {reason}"), reply_to=message)


@cache
def _warn_unprotected_once() -> None:
    """Warn once in a process, which is many nodes in simulations."""
    log.warning("rqm: the policy of this node is trust_server = true: nothing is checked, and nothing is counted")
