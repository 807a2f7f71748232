"""A grid of ClientApps in this process: Flower's messages without its network, and without torch."""

import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from rqm.flower.messages import RECORD

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


class LocalGrid(Grid):
    """Nodes 100, 101, …: each with its own context, as a SuperNode keeps it. ``lose`` decides who does not answer.

    The check before the first round is answered by all; what was said in it is in ``checks``.
    """

    def __init__(self, app, nodes, run_config, lose=lambda node, stage, round_index: False):
        self.app, self.lose, self.observed, self.replies, self.checks = app, lose, [], [], []
        self.now = 0  # the node that is at work
        self.contexts = {
            100 + p: Context(
                run_id=1,
                node_id=100 + p,
                node_config={"partition-id": p, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
                series_id=0,
            )
            for p in range(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def deliver(self, message):
        """A node's reply to a copy of a message, as the network makes one."""
        self.now = message.metadata.dst_node_id
        delivered = Message(
            RecordDict(dict(message.content)), dst_node_id=self.now, message_type=message.metadata.message_type
        )
        return self.app(delivered, self.contexts[self.now])

    def check(self, messages):
        """The replies to the check before the first round."""
        replies = [self.deliver(message) for message in messages]
        self.checks += replies
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        """The replies to requests of rounds."""
        replies = []
        for message in messages:
            node, fields = message.metadata.dst_node_id, message.content.config_records[RECORD]
            requests = [entry for entry in message.content.config_records.values() if "stage" in entry]
            if any(self.lose(node, entry["stage"], entry["round_index"]) for entry in requests):
                continue
            reply = self.deliver(message)
            self.observed.append((fields["stage"], reply))
            replies.append(reply)
        return replies

    def push_messages(self, messages):
        """Everybody answers at once; to those who do not, nothing could be sent."""
        messages = list(messages)
        exchange = self.send_and_receive if RECORD in messages[0].content else self.check
        replies, ids = list(exchange(messages)), []
        for message in messages:
            own = [reply for reply in replies if reply.metadata.src_node_id == message.metadata.dst_node_id]
            message.metadata.__dict__["_message_id"] = str(len(self.replies))
            ids.append(str(len(self.replies)) if own else None)
            self.replies.append(own)
        return ids

    def pull_messages(self, message_ids):
        return [reply for entry in message_ids for reply in self.replies[int(entry)]]

    set_run = run = create_message = None  # not used by a strategy
