"""A round's end travels with the beginning of the next: neither costs the other anything."""

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict

from rqm.flower.messages import NEXT_RECORD, REFUSAL_KEY, request_message
from rqm.flower.shared_plan import Request
from rqm.secagg.wire import Kind
from tests.flower.local import plan_of, start, survivors
from tests.flower.test_attacks import CONFIG, ODD, Tampered, answering, train


@pytest.mark.parametrize("odd", [*ODD, None], ids=str)
def test_odd_replies_to_the_next_round_cost_a_place_in_that_one(odd, tmp_path):
    def tamper(reply, node, now):
        if node != 103 or NEXT_RECORD not in reply.content:
            return None
        another = RecordDict() if odd is None else RecordDict({NEXT_RECORD: ConfigRecord({"message": odd})})
        return answering(reply, RecordDict({"rqm": reply.content["rqm"], **another}), bare=True)

    assert survivors(train(tmp_path, tamper)[0]) == [6, 5]


def test_a_refusal_of_the_next_round_is_told_and_leaves_this_one_alone(tmp_path, caplog):
    def tamper(reply, node, now):
        if node != 103 or now != Kind.ACKS or NEXT_RECORD not in reply.content:
            return None
        return answering(
            reply, RecordDict({"rqm": reply.content["rqm"], NEXT_RECORD: ConfigRecord({REFUSAL_KEY: "rqm: no"})})
        )

    result, _, _ = train(tmp_path, tamper)
    assert survivors(result) == [6, 5]
    assert "node 103 is lost in this round: it says 'rqm: no'" in caplog.text


def test_a_vector_is_asked_for_by_itself(tmp_path):
    """Beside a round that is asked for a vector, and in the place of the next one, nothing is answered."""
    observed = []

    class Both(Tampered):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for message in messages:
                fields = message.content.config_records["rqm"]
                if fields["stage"] == Kind.MASKED:
                    content = RecordDict({**message.content, NEXT_RECORD: ConfigRecord(dict(fields))})
                    pair = Message(content, dst_node_id=message.metadata.dst_node_id, message_type="train")
                    observed.extend(super().send_and_receive([pair]))
            return super().send_and_receive(messages)

    result, _ = start(Both(lambda *_: None), CONFIG, tmp_path)
    assert survivors(result) == [6, 6]  # nothing was spent by it
    assert len(observed) == 12
    for reply in observed:
        assert {name: list(entry) for name, entry in reply.content.config_records.items()} == {
            "rqm": [REFUSAL_KEY],
            NEXT_RECORD: [REFUSAL_KEY],
        }
        assert "must be requested alone" in reply.content["rqm"][REFUSAL_KEY]


def test_a_node_knows_of_two_rounds_at_most_and_of_none_that_is_over(tmp_path):
    saved_values = []

    class Watched(Tampered):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages)
            saved_values.append({len(context.state.config_records["rqm"]) for context in self.contexts.values()})
            return replies

    config = {**CONFIG, "rqm.rounds": 3}
    grid = Watched(lambda *_: None, config)
    start(grid, config, tmp_path)
    assert [entry for entry in saved_values if entry] == [{1}, {1}, {1}, {2}, {1}, {1}, {2}, {1}, {1}, {1}, {0}]
    node, name = 100, b"another round, never ended, "
    plan = plan_of(config)
    for k in range(5):
        requests = request_message(node, plan, [Request(Kind.KEYS, name + bytes([k]), 0, 0, b"")])
        assert not grid.app(requests, grid.contexts[node]).has_error()
    assert len(grid.contexts[node].state.config_records["rqm"]) == 2
