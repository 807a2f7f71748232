"""Requests and answers as Flower's records. Every value from the other side is checked when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from rqm._util.checks import shown
from rqm.config.round_parameters import Link
from rqm.flower.shared_plan import Request, SharedPlan
from rqm.secagg import ProtocolError
from rqm.secagg.wire import STAGES, Kind

RECORD, NEXT_RECORD = "rqm", "rqm-next"
"""The names of the records for the current round, and for the next one beside it."""
PLAN_RECORD, PLAN_KEY, ROSTER_KEY = "rqm-plan", "plan", "roster"
"""The record with the plan of the run, which every message has. A message with it alone asks for a check."""
ANSWER_KEY, REFUSAL_KEY = "message", "refused"
"""The keys of an answer: its bytes; why there is none."""
SIMULATED_KEY, FAILURE_KEY = "simulated", "failure"
"""Further keys, of nodes that trust the server: that they do, and why their training failed."""
CHAIN_DEFAULTS: dict[str, Any] = {"chain": b"", "settling": 0, "previous_sum": b""}
"""The values that are omitted without correlated noise."""


class RefusalError(ProtocolError):
    """A node refuses to take part, and says why."""


def request_message(
    node: int,
    plan: SharedPlan,
    requests: Sequence[Request] = (),
    content: Mapping[str, Any] | None = None,
    roster_hash: bytes = b"",
) -> Message:
    """Flower's message with the plan, and up to two requests; without a request it asks for a check.

    Args:
        node: The node that is asked.
        plan: The plan of the run.
        requests: The request of the current round, and optionally that of the next one.
        content: Other records: the app's configuration, and the model for nodes that train.
        roster_hash: The hash of the server's roster, for a check.

    Returns:
        The message.
    """
    records = {name: request_record(request) for name, request in zip((RECORD, NEXT_RECORD), requests, strict=False)}
    records[PLAN_RECORD] = ConfigRecord({PLAN_KEY: plan.to_json(), ROSTER_KEY: roster_hash})
    return Message(RecordDict({**(content or {}), **records}), dst_node_id=node, message_type=MessageType.TRAIN)


def request_record(request: Request) -> ConfigRecord:
    """A request as a record."""
    values: dict[str, Any] = {
        "stage": int(request.stage),
        "round": request.round_name,
        "round_index": request.round_index,
        "client": request.client,
        "message": request.message,
    }
    if request.link is not None:
        values["chain"] = request.link.chain
        if request.link.second:
            values |= {"settling": request.link.second, "previous_sum": request.link.follows}
    return ConfigRecord(values)


def read_request(record: ConfigRecord) -> Request:
    """A request from a record that a server sent.

    Raises:
        ProtocolError: If a value is missing, or not what a server of this protocol sends.
    """
    names = ("stage", "round", "round_index", "client", "message", *CHAIN_DEFAULTS)
    stage, round_name, round_index, client, message, *link_values = (_value(record, name) for name in names)
    chain, settling, previous_sum = link_values
    if len(chain) > 255 or len(previous_sum) != (32 if settling else 0):
        raise ProtocolError(f"settling = {settling}: must come with the name of the sum that is settled")
    if stage not in STAGES or not 1 <= len(round_name) <= 255:
        raise ProtocolError(f"stage = {stage}: not what a client can be asked for")
    link = Link(chain, round_index, settling, previous_sum) if chain else None
    return Request(Kind(stage), round_name, round_index, client, message, link)


def _value(record: ConfigRecord, name: str) -> Any:
    """A value of a request, of its type and in its range."""
    # The largest value of each number in a request; the protocol has 32 bits for them.
    number_limits = {"stage": 255, "round_index": 2**31 - 1, "client": 2**31 - 1, "settling": 2**31 - 1}
    value, limit = record.get(name, CHAIN_DEFAULTS.get(name)), number_limits.get(name)
    is_valid = isinstance(value, bytes) if limit is None else type(value) is int and 0 <= value <= limit
    if not is_valid:
        allowed = "bytes" if limit is None else f"a whole number from 0 to {limit}"
        raise ProtocolError(f"{name} = {shown(value)}: must be {allowed}")
    return value


def answer_record(answer: bytes, failure: str = "") -> ConfigRecord:
    """A client's answer as a record.

    Args:
        answer: The message of the protocol.
        failure: Why training failed; only a node that trusts the server says it.

    Returns:
        The record.
    """
    return ConfigRecord({ANSWER_KEY: answer, **({FAILURE_KEY: failure} if failure else {})})


def refusal_record(reason: str) -> ConfigRecord:
    """A record that says why there is no answer."""
    return ConfigRecord({REFUSAL_KEY: reason})


def read_answer(reply: Message, name: str) -> bytes:
    """A client's answer from a node's reply, which anybody can have made.

    Args:
        reply: The reply.
        name: The name of the record.

    Returns:
        The answer.

    Raises:
        RefusalError: If the node refuses to answer.
        ProtocolError: If there is no answer.
    """
    answer = read_reply(reply, name).get(ANSWER_KEY)
    if not isinstance(answer, bytes):
        raise ProtocolError(f"an answer of type {type(answer).__name__}: must be bytes")
    return answer


def read_reply(reply: Message, name: str) -> ConfigRecord:
    """A record of a node's reply.

    Raises:
        RefusalError: If the node refuses to answer.
    """
    if reply.has_error():
        raise RefusalError(f"it says {shown(str(reply.error.reason), 400)}")
    record = reply.content.config_records.get(name, ConfigRecord())
    if REFUSAL_KEY in record:
        raise RefusalError(f"it says {shown(str(record[REFUSAL_KEY]), 400)}")
    return record
