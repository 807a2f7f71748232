"""Requests and answers as Flower's records: what the other side sent is checked, and refused in one way."""

import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from rqm.config.round_parameters import Link
from rqm.flower.messages import (
    NEXT_RECORD,
    PLAN_KEY,
    PLAN_RECORD,
    RECORD,
    RefusalError,
    answer_record,
    read_answer,
    read_request,
    refusal_record,
    request_message,
    request_record,
)
from rqm.flower.shared_plan import Request, read_plan
from rqm.secagg import ProtocolError
from rqm.secagg.wire import Kind
from tests.flower.local import plan_of
from tests.flower.test_strategy import PRIVATE as CONFIG

LINKS = (None, Link(b"chain", 2), Link(b"chain", 2, 4, bytes(32)))
REQUEST = Request(Kind.MASKED, b"name", 2, 3, b"message")


def reply(content):
    request = Message(RecordDict(), dst_node_id=7, message_type="train")
    return Message(content, reply_to=request)


@pytest.mark.parametrize("link", LINKS)
def test_a_request_is_read_as_it_was_written(link):
    request = Request(Kind.MASKED, b"name", 2, 3, b"message", link)
    assert read_request(request_record(request)) == request


@pytest.mark.parametrize("name", ["stage", "round", "round_index", "client", "message", "chain", "settling"])
@pytest.mark.parametrize("value", [None, -1, 2**40, 1.5, True, "x", [1], [b"x"], float("nan"), b"x" * 300])
def test_a_hostile_request_raises_the_protocols_error(name, value):
    record = request_record(REQUEST)
    if value is None:
        record.pop(name, None)
    else:
        record[name] = value
    allowed = (name == "message" and isinstance(value, bytes)) or (value is None and name in ("chain", "settling"))
    if allowed:
        return
    with pytest.raises(ProtocolError):
        read_request(record)


@pytest.mark.parametrize(
    "content",
    [
        Error(0, "no"),
        Error(0, "x\nINFO : rqm: certified"),
        RecordDict(),
        RecordDict({RECORD: MetricRecord({"message": 1})}),
        RecordDict({RECORD: ArrayRecord()}),
        RecordDict({RECORD: refusal_record("no")}),
        *(RecordDict({RECORD: ConfigRecord({"message": value})}) for value in (1, "x", True, [b"x"], 1.5)),
        RecordDict({RECORD: ConfigRecord({"refused": [1], "message": b"x"})}),
    ],
)
def test_a_hostile_reply_raises_the_protocols_error_in_one_line(content):
    with pytest.raises(ProtocolError) as error:
        read_answer(reply(content), RECORD)
    assert "\n" not in str(error.value)


def test_an_answer_and_a_refusal_are_read_as_they_were_written():
    assert read_answer(reply(RecordDict({RECORD: answer_record(b"x")})), RECORD) == b"x"
    assert read_answer(reply(RecordDict({RECORD: answer_record(b"x", "why")})), RECORD) == b"x"
    assert list(answer_record(b"x")) == ["message"]
    with pytest.raises(RefusalError, match="no policy"):
        read_answer(reply(RecordDict({RECORD: refusal_record("no policy")})), RECORD)


def test_every_message_has_the_plan_and_a_check_has_nothing_else():
    plan = plan_of(CONFIG)
    check = request_message(7, plan).content
    assert list(check) == [PLAN_RECORD]
    assert read_plan(check[PLAN_RECORD][PLAN_KEY]) == plan
    config = ConfigRecord({"lr": 0.1})
    message = request_message(7, plan, [REQUEST, REQUEST], {"config": config, RECORD: config})
    assert set(message.content) == {"config", RECORD, NEXT_RECORD, PLAN_RECORD}
    assert message.content["config"] == config
    assert read_request(message.content[RECORD]) == REQUEST  # whatever the app's configuration is called
