# SPDX-License-Identifier: Apache-2.0
"""The session's end of an open queue: what the engine, the consumers and the messages know of the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING

from bmq.client._handlers import Handlers
from bmq.client._subscriptions import Subscriptions
from bmq.client.message import arrival_of, push_of
from bmq.engine.counting import ReceiveCounts, size_of
from bmq.errors import Error, QueueClosed
from bmq.protocol.client.ports import Arrival
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.push import GUID, Push

if TYPE_CHECKING:
    from bmq.client._line import Line
    from bmq.client.interceptors import Hooks
    from bmq.client.message import Message
    from bmq.client.queue import Queue
    from bmq.engine.driver import Driver
    from bmq.wire.uri import QueueUri

__all__ = ["QueueEnd", "drain", "left_over"]

logger = logging.getLogger("bmq.client")

# When handlers and posts have used up the time for closing, the broker still has this many seconds to answer.
_FOR_THE_ANSWER = 1.0


class QueueEnd:
    """One open queue, for everything below the public objects.

    Args:
        driver: the session.
        uri: the queue, as it was opened.
        hooks: the interceptors.
        options: the limits and the priority of consumers that say nothing else.

    Attributes:
        driver: the session.
        parsed_uri: the queue, as it was opened.
        uri: the same as text; set by the opening.
        hooks: the interceptors.
        connection: the session's connection.
        backlog: the session's account of messages that it holds.
        received: what the session counts of received messages.
        max_message_size: the largest payload that a message may have, decompressed.
        queue: the object that the application has.
        core: the protocol's queue; set by the opening.
        counts: numbers of received messages.
        confirming: counts confirmations.
        handlers: who is handling messages of the queue.
        subscriptions: the consumers.
        options: the limits and the priority of consumers that say nothing else.
        over: whether consumers receive nothing any more, because the queue closes or has failed. The
            protocol's queue begins to close later, when handlers and posts are done.
        default: the line of the default subscription; None if the queue has none.
    """

    queue: Queue
    core: QueueCore
    uri: str

    def __init__(
        self, driver: Driver[QueueEnd], uri: QueueUri, hooks: Hooks, options: SubscriptionOptions
    ) -> None:
        self.driver = driver
        self.parsed_uri = uri
        self.hooks = hooks
        self.options = options
        self.connection = driver.connection
        self.backlog = driver.backlog
        self.received = driver.received
        self.max_message_size = driver.options.max_message_size
        self.counts: ReceiveCounts = ReceiveCounts(driver.received)
        self.confirming = driver.confirming
        self.handlers = Handlers()
        self.default: Line | None = None
        self.subscriptions: Subscriptions = Subscriptions(self)
        self.over = False
        self._close_task: asyncio.Task[None] | None = None

    def opened(self, core: QueueCore) -> None:
        """The protocol has begun to open the queue."""
        self.core = core
        self.uri = core.uri_text
        self.counts.core = core

    @property
    def closed(self) -> bool:
        """Whether the queue is closed or closing."""
        return self.over or self.core.state is QueueState.CLOSED or self.core.closing

    @property
    def in_line(self) -> tuple[int, int]:
        """How many messages wait for the application, and their size."""
        waiting = [line.in_line for line in self.subscriptions.members]
        unclaimed = self.subscriptions.unclaimed
        return (
            sum(count for count, _ in waiting) + len(unclaimed),
            sum(size for _, size in waiting) + unclaimed.bytes,
        )

    def check_open(self) -> None:
        """Raise unless the queue can be used.

        Raises:
            QueueClosed, SessionClosed: it is closed.
            UsageError: this is not the event loop the session belongs to.
        """
        self.driver.check_open()
        if self.closed:
            raise QueueClosed(f"queue {self.uri} is closed")

    # confirming

    def confirm(self, guid: bytes, counts: ReceiveCounts, arrival: Arrival) -> None:
        """Confirm a message."""
        connection = self.connection
        # This is done for every message, and to ask for the running loop can take a system call. Where
        # something is scheduled in the session's loop, its thread tells as much.
        if not connection.scheduled or get_ident() != connection.thread:
            connection.check_loop()
        connection.core.confirm(self.core, guid)
        if not connection.scheduled:
            connection.transmit_soon()
        confirming = self.confirming
        if (
            confirming.arrival is arrival
            and confirming.turn is connection.turn
            and confirming.counts is counts
        ):
            confirming.count += 1
        else:
            confirming.begin(counts, arrival, connection.turn)

    def confirm_messages(self, line: Line, messages: list[Message]) -> None:
        """Confirm messages of one consumer, none of which is confirmed."""
        self.confirm_many([push_of(message)[GUID] for message in messages])
        if line.in_hand is not None:
            line.in_hand.release(messages)
        counts, confirming, turn = line.counts, self.confirming, self.connection.turn
        arrival: Arrival | None = None
        for message in messages:
            message.confirmed = True
            came = arrival_of(message)
            if came is not arrival:
                arrival = came
                confirming.begin(counts, arrival, turn, 0)
            confirming.count += 1
        if self.hooks.confirming and messages:
            self.hooks.confirmed(line.consumer, messages)

    def confirm_guids(self, guids: list[bytes]) -> None:
        """Confirm messages of which nothing is known but the GUIDs."""
        self.confirm_many(guids)
        for guid in guids:
            self.subscriptions.in_hand.pop(guid, None)
        self.confirming.begin(self.counts, None, self.connection.turn, len(guids))

    def discard(self, messages: list[Push], arrival: Arrival) -> None:
        """Confirm messages unseen that have just arrived."""
        self.counts.arrived(messages, size_of(messages))
        self.confirm_many([message[GUID] for message in messages])
        self.confirming.begin(self.counts, arrival, self.connection.turn, len(messages))

    def confirm_many(self, guids: list[bytes]) -> None:
        """Confirm several messages."""
        self.connection.check_loop()
        self.connection.core.confirm_many(self.core, guids)
        self.connection.transmit_soon()

    # life

    async def close(self, timeout: float | None, *, at_once: bool) -> None:
        """Close the queue in good order; see :meth:`bmq.Queue.close`."""
        if self._close_task is None or self._close_task.cancelled():
            if self.core.state is QueueState.CLOSED:
                return
            seconds = self.driver.options.close_timeout if timeout is None else timeout
            closing = self._close(self.connection.now() + seconds, asyncio.current_task(), at_once)
            self._close_task = self.driver.keep(closing)
            self.core.leaving = True  # an open of the same queue waits from now on
        await asyncio.shield(self._close_task)

    async def _close(self, deadline: float, closer: asyncio.Task[object] | None, at_once: bool) -> None:
        self.shut(None)
        await drain([self], deadline, closer)
        handlers = self.handlers.busy(closer)
        if self.core.unacked or handlers:
            logger.warning(
                "closing %s, and the time is up: %s",
                self.uri,
                left_over(self.core.unacked, handlers),
                extra={"queue": self.uri, "broker": self.driver.address},
            )
            deadline = max(deadline, self.connection.now() + _FOR_THE_ANSWER)
        try:
            await self.driver.close_queue(self.core, deadline, at_once=at_once)
        except QueueClosed:
            pass  # the session, or a failure, has closed it meanwhile

    def shut(self, error: Error | None) -> None:
        """The queue is closing or closed: end its consumers."""
        self.over = True
        lines = dict.fromkeys(self.subscriptions.members)
        if self.default is not None:
            lines[self.default] = None
        for line in lines:
            line.shut(error)
            line.clear()
        self.subscriptions.finish()

    def forget_delivered(self) -> None:
        """The connection is lost: messages that wait unseen will be delivered again."""
        self.subscriptions.forget_delivered()


async def drain(queues: Iterable[QueueEnd], deadline: float, closer: asyncio.Task[object] | None) -> None:
    """Wait for handlers in flight, then for the outcomes of posts: handlers may post."""
    queues = list(queues)
    try:
        async with asyncio.timeout_at(deadline):
            for queue in queues:
                await queue.handlers.idle(closer)
            for queue in queues:
                await queue.driver.flow.outcomes(queue.core)
    except TimeoutError:
        pass


def left_over(posts: int, handlers: int, queues: int = 0) -> str:
    """Say what was not done in time, for people; "" when there is nothing."""
    left = (
        (posts, "posts without outcome"),
        (handlers, "messages being handled"),
        (queues, "queues not closed"),
    )
    return ", ".join(f"{count} {what}" for count, what in left if count)
