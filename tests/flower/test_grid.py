"""Replies that nobody can read, that never come, or come in another's name: through Flower's own HttpGrid."""

from time import monotonic
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from rqm.flower.grid import PatientGrid
from tests.flower import local  # noqa: F401 (names this process as Flower wants it)


def asked(node):
    return Message(RecordDict(), dst_node_id=node, message_type="train")


class Link:
    """What a SuperLink answers, when node 2 has sent nonsense, node 3 has sent half and node 4 speaks as node 1."""

    def __init__(self):
        self.objects, self.replies, self.looks, self.open = {}, {}, 0, True
        for node in (1, 2, 3, 4):
            reply = Message(RecordDict({"rqm": ConfigRecord({"from": node})}), reply_to=asked(1 if node == 4 else node))
            parts = {one: part.deflate() for one, part in get_all_nested_objects(reply).items()}
            if node == 2:
                parts = dict.fromkeys(parts, b"nonsense")
            self.objects |= {one: (data, node != 3) for one, data in parts.items()}
            reply.metadata.__dict__["_message_id"] = reply.object_id
            proto = message_to_proto(reply)
            self.replies[str(node)] = proto, get_object_tree(reply)

    def PushMessages(self, request):  # noqa: N802 (as Flower calls it)
        nodes = [message.metadata.dst_node_id for message in request.messages_list]
        return runtime_pb2.PushAppMessagesResponse(message_ids=[str(node) for node in nodes])

    def PushObject(self, request):  # noqa: N802
        raise AssertionError("nothing is asked for")

    def PullMessages(self, request):  # noqa: N802
        self.looks += 1
        found = [self.replies[one] for one in request.message_ids if self.looks > 5]  # nobody is that fast
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request):  # noqa: N802
        data, there = self.objects[request.object_id]
        return message_pb2.PullObjectResponse(object_found=self.open, object_available=there, object_content=data)

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
        grid.send_and_receive([asked(1), asked(2)])


def test_what_one_node_sends_is_its_own_loss(grid):
    begin = monotonic()
    found = PatientGrid(grid).send_and_receive([asked(node) for node in (1, 2, 3, 4)], timeout=2)
    assert [reply.content["rqm"]["from"] for reply in found] == [1]
    assert monotonic() - begin < 100  # Flower's own waits until the upload expires, or for hours


def test_without_messages_nobody_waits(grid):
    assert PatientGrid(grid).send_and_receive([], timeout=None) == []
