"""Flower's grid, with every reply pulled on its own: what one node sends, or never sends, is that node's loss alone.

Flower's own ``send_and_receive`` pulls all replies at once. One that cannot be read raises out of it, with the replies
that were pulled before; one whose parts never arrive holds it up until the SuperLink gives that upload up, minutes
later, whatever the timeout. In its simulation engine replies are objects of this process: there one look is for all.
"""

import sys
from collections.abc import Iterable, Iterator
from logging import WARNING
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from rqm._util.checks import shown

SOON, LATE, PART = 0.05, 3.0, 0.1
"""Seconds between two looks for a reply: at first, and at most; in between such a part of what one has waited."""
BESIDE = 0.02
"""The same where one look is for all replies, in the memory of this process."""


class PatientGrid(Grid):
    """Another grid, whose replies come one by one and in time, each from the node that was asked."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages; return the replies that can be read and come before the timeout (in seconds).

        In the simulation engine they are returned as they come, and may be worked on while others are awaited.
        """
        messages, end = list(messages), None if timeout is None else monotonic() + timeout
        sent = set(self._grid.push_messages(messages)) if messages else set()
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}  # known by now
        asked = {one: node for one, node in nodes.items() if one in sent}
        if in_memory(self._grid):
            return self._together(asked, end)
        return self._apart(asked, end)

    def _together(self, asked: dict[str, int], end: float | None) -> Iterator[Message]:
        """Look for all replies at once until they are there, or time is over; apart, if that cannot be done."""
        while asked:
            try:
                found = list(self._grid.pull_messages(list(asked)))
            except Exception as error:  # as when a message has expired: whose it was shows if each is looked for apart
                log(WARNING, "rqm: replies are looked for one by one: %s", shown(str(error)))
                yield from self._apart(asked, end)
                break
            for reply in found:
                yield from _own(reply, asked.pop(reply.metadata.reply_to_message_id, None))
            if end is not None and monotonic() >= end:
                break
            if asked:
                sleep(BESIDE)

    def _apart(self, asked: dict[str, int], end: float | None) -> list[Message]:
        """Look for every reply on its own until it is there, or time is over."""
        replies: SimpleQueue[list[Message]] = SimpleQueue()
        over, found = Event(), list[Message]()
        try:
            for one, node in asked.items():
                Thread(target=self._pull, args=(node, one, replies, over), daemon=True).start()
            for _ in asked:
                found += replies.get(timeout=None if end is None else max(0.0, end - monotonic()))
        except Empty:
            pass  # too late
        finally:
            over.set()
        return found

    def _pull(self, node: int, one: str, replies: "SimpleQueue[list[Message]]", over: Event) -> None:
        """Look for the reply to one message until it is there, or all is over."""
        begun, good = monotonic(), []
        try:
            while not over.is_set():
                found = list(self._grid.pull_messages([one]))
                if found:
                    good = [own for reply in found for own in _own(reply, node if not over.is_set() else None)]
                    break
                over.wait(min(max(SOON, PART * (monotonic() - begun)), LATE))
        except Exception as error:  # a reply is bytes that anybody can have made
            log(WARNING, "rqm: the reply of node %d cannot be read: %s", node, shown(str(error)))
        replies.put(good)

    # -- as ever ----------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Who is there."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Look for replies."""
        return self._grid.pull_messages(message_ids)


def in_memory(grid: Grid) -> bool:
    """Whether a grid is that of Flower's simulation engine, whose replies lie in this process."""
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return module is not None and isinstance(grid, module.InMemoryGrid)


def _own(reply: Message, node: int | None) -> list[Message]:
    """The reply, if it is that of the node that was asked."""
    if reply.metadata.src_node_id == node:
        return [reply]
    if node is not None:
        log(WARNING, "rqm: the reply of node %d is not there, or in another's name", node)
    return []
