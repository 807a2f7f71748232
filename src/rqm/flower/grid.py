"""Flower's grid, with each reply pulled on its own, so that a node's reply can only harm that node.

Flower's `send_and_receive` pulls all replies at once. If one cannot be read, it raises, and the replies that were
pulled before are lost. If the parts of one never arrive, it waits until the SuperLink gives that upload up, minutes
later, whatever the timeout.
"""

import logging
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any, final

from flwr.app import Message
from flwr.serverapp import Grid

from rqm._util.checks import shown

log = logging.getLogger("flwr")


@final
class IsolatingGrid:
    """A grid that returns the replies that can be read, are in time, and come from the node that was asked.

    Everything but `send_and_receive` is the other grid's.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, and return replies as they come.

        Args:
            messages: The messages, at most one for each node.
            timeout: Seconds after which no more replies are returned; None: no limit.

        Returns:
            The replies. They are awaited while they are read.
        """
        messages, end = list(messages), None if timeout is None else monotonic() + timeout
        if not messages:
            return []
        sent = set(self._grid.push_messages(messages))
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        awaited = {message_id: node for message_id, node in nodes.items() if message_id in sent}
        replies, is_over = SimpleQueue[Message | None](), Event()
        try:
            for message_id, node in awaited.items():
                Thread(target=self._pull, args=(node, message_id, replies, is_over), daemon=True).start()
        except BaseException:
            is_over.set()
            raise
        return _received(replies, is_over, len(awaited), end)

    def _pull(self, node: int, message_id: str, replies: "SimpleQueue[Message | None]", is_over: Event) -> None:
        """Look for the reply to a message until it arrives, or the exchange is over."""
        start, reply = monotonic(), None
        try:
            while not is_over.is_set():
                pulled = list(self._grid.pull_messages([message_id]))
                if pulled:
                    reply = pulled[0] if pulled[0].metadata.src_node_id == node else None
                    if reply is None and not is_over.is_set():
                        log.warning("rqm: the reply of node %d is missing, or in another node's name", node)
                    break
                # Short waits for quick replies, and few looks for slow ones; Flower itself looks every 3 seconds.
                is_over.wait(min(max(0.02, 0.1 * (monotonic() - start)), 3.0))
        except Exception as error:  # a reply is bytes that anybody can have made
            log.warning("rqm: the reply of node %d cannot be read: %s", node, shown(str(error)))
        replies.put(reply)


def _received(
    replies: "SimpleQueue[Message | None]", is_over: Event, count: int, end: float | None
) -> Iterator[Message]:
    """The replies that come before the end."""
    try:
        for _ in range(count):
            reply = replies.get(timeout=None if end is None else max(0.0, end - monotonic()))
            if reply is not None:
                yield reply
    except Empty:
        pass  # the others are too late
    finally:
        is_over.set()
