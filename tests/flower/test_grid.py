"""Replies that nobody can read, that never come, or come in another's name: through Flower's own HttpGrid."""

import threading
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from rqm.flower.grid import IsolatingGrid
from tests.flower.local_grid import LocalGrid


def requests(node):
    return Message(RecordDict(), dst_node_id=node, message_type="train")


class Link:
    """What a SuperLink answers, when node 2 has sent nonsense, node 3 has sent half and node 4 speaks as node 1."""

    def __init__(self):
        self.objects, self.replies, self.looks, self.open = {}, {}, 0, True
        for node in (1, 2, 3, 4):
            reply = Message(
                RecordDict({"rqm": ConfigRecord({"from": node})}), reply_to=requests(1 if node == 4 else node)
            )
            parts = {entry: chunk.deflate() for entry, chunk in get_all_nested_objects(reply).items()}
            if node == 2:
                parts = dict.fromkeys(parts, b"nonsense")
            self.objects |= {entry: (data, node != 3) for entry, data in parts.items()}
            reply.metadata.__dict__["_message_id"] = reply.object_id
            proto = message_to_proto(reply)
            self.replies[node] = proto, get_object_tree(reply)

    def PushMessages(self, request):  # noqa: N802 (as Flower calls it)
        fields = [message.metadata for message in request.messages_list]
        self.replies |= {entry.message_id: self.replies[entry.dst_node_id] for entry in fields}
        return runtime_pb2.PushAppMessagesResponse(message_ids=[entry.message_id for entry in fields])

    def PushObject(self, request):  # noqa: N802
        raise AssertionError("nothing is asked for")

    def PullMessages(self, request):  # noqa: N802
        self.looks += 1
        outcome = [self.replies[entry] for entry in request.message_ids if self.looks > 5]  # nobody is that fast
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[proto for proto, _ in outcome], message_object_trees=[tree for _, tree in outcome]
        )

    def PullObject(self, request):  # noqa: N802
        data, present = self.objects[request.object_id]
        return message_pb2.PullObjectResponse(object_found=self.open, object_available=present, object_content=data)

    def ConfirmMessageReceived(self, _):  # noqa: N802
        return message_pb2.ConfirmMessageReceivedResponse()


@pytest.fixture
def grid():
    grid = HttpGrid(token="x")
    grid._client, grid._run = Link(), SimpleNamespace(run_id=1)
    yield grid
    grid._client.open = False  # the session in which parts could be uploaded is over


def test_flowers_own_grid_raises(grid):
    """So that the next test can fail."""
    grid._client.looks = 9
    with pytest.raises(ValueError, match="not enough values"):
        grid.send_and_receive([requests(1), requests(2)])


def test_what_one_node_sends_is_its_own_loss(grid):
    begin = monotonic()
    outcome = IsolatingGrid(grid).send_and_receive([requests(node) for node in (1, 2, 3, 4)], timeout=2)
    assert [reply.content["rqm"]["from"] for reply in outcome] == [1]
    assert monotonic() - begin < 100  # Flower's own waits until the upload expires, or for hours


class Omitting(LocalGrid):
    """Like Flower's grid in memory it has no id for a message that could not be sent."""

    def push_messages(self, messages):
        return [entry for entry in super().push_messages(messages) if entry]


def test_one_who_is_away_costs_nobody_else_anything():
    def app(message, _context):
        return Message(RecordDict(), reply_to=message)

    grid = Omitting(app, 4, {}, lose=lambda node, *_: node == 100)
    fields = RecordDict({"rqm": ConfigRecord({"stage": 1, "round_index": 0})})
    outcome = IsolatingGrid(grid).send_and_receive(
        [Message(fields, node, "train") for node in grid.contexts], timeout=60
    )
    assert {reply.metadata.src_node_id for reply in outcome} == {101, 102, 103}


def test_a_thread_that_does_not_start_leaves_no_others(grid, monkeypatch):
    earlier, begin = threading.active_count(), threading.Thread.start

    def start(thread):
        if threading.active_count() > earlier + 2:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    grid._client.looks = -(10**9)  # nobody ever answers
    with pytest.raises(RuntimeError, match="can't start"):
        IsolatingGrid(grid).send_and_receive([requests(node) for node in (1, 2, 3, 4)])
    while threading.active_count() > earlier:
        sleep(0.1)


def test_without_messages_nobody_waits(grid):
    assert IsolatingGrid(grid).send_and_receive([], timeout=None) == []
