# SPDX-License-Identifier: Apache-2.0
"""The part of a blocking queue that its consumers, messages, groups and tables share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bmq.blocking._handlers import Handlers
from bmq.blocking._line import Line
from bmq.blocking._outbox import Outbox
from bmq.blocking._portal import Portal
from bmq.client.consumer import Consumer
from bmq.client.queue import Queue

__all__ = ["QueueEnd"]

C = TypeVar("C")


class QueueEnd(Generic[C]):
    """The event loop's side of one queue, as the objects of threads use it.

    Args:
        portal: the event loop.
        queue: the asyncio queue.
        consumer_of: returns the blocking consumer for an asyncio consumer.

    Attributes:
        portal: see above.
        queue: see above.
        consumer_of: see above.
        uri: the URI as opened.
        line: the messages of the default subscription.
        handlers: the messages inside ``with message``.
        outbox: confirmations and posts.
    """

    def __init__(self, portal: Portal, queue: Queue, consumer_of: Callable[[Consumer], C]) -> None:
        self.portal = portal
        self.queue = queue
        self.uri = queue.uri
        self.consumer_of = consumer_of
        self.line = Line(portal, queue)
        self.handlers = Handlers(portal)
        self.outbox = Outbox(portal, queue)
        # The lines of all consumers except for the default subscription's.
        self._lines: dict[Consumer, Line] = {}

    def line_of(self, consumer: Consumer) -> Line:
        """Return the line of a consumer; the queue's line for the default subscription."""
        return self._lines.get(consumer, self.line)

    def add_line(self, consumer: Consumer) -> None:
        """Give a consumer a line of its own."""
        self._lines = {each: line for each, line in self._lines.items() if not each.closed}
        self._lines[consumer] = Line(self.portal, consumer)

    def forget(self) -> None:
        """Drop all waiting messages: in the child of a fork they are the parent's."""
        for line in (self.line, *self._lines.values()):
            line.forget()
