# SPDX-License-Identifier: Apache-2.0
"""The inner part of a queue, shared by the engine, the consumers and the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bmq._logging import Log
from bmq._waiting import ended
from bmq.client._handlers import Handlers
from bmq.client._subscriptions import Subscriptions
from bmq.client.counting import ReceiveCounts, size_of
from bmq.errors import Error, QueueClosed
from bmq.protocol.client.ports import Arrival
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.push import GUID, Push

if TYPE_CHECKING:
    from bmq.client._line import Line
    from bmq.client.driver import Driver
    from bmq.wire.uri import QueueUri

__all__ = ["QueueEnd", "drain", "left_over"]

logger = Log("bmq.client", later=True)

# Seconds for the broker's answer after handlers and posts have used up the time for closing.
_FOR_THE_ANSWER = 1.0


class QueueEnd:
    """An open queue, for all modules below the public objects.

    Args:
        driver: session of the queue.
        uri: URI given when opening.
        options: default limits and priority of consumers.

    Attributes:
        driver: session of the queue.
        parsed_uri: URI given when opening.
        uri: URI as text, available after opening.
        connection: session's connection.
        backlog: session's account of held messages.
        received: session's counters of received messages.
        max_message_size: maximum decompressed size of a payload.
        queue: public object of the queue, opaque here.
        core: protocol's queue, available after opening.
        counts: counters of received messages.
        confirming: counts confirmations.
        handlers: messages in the hands of handlers.
        subscriptions: consumers.
        options: default limits and priority of consumers.
        default: line of the default subscription, or None.
        eager: whether the default subscription starts with the opening of a broadcast queue. A consumer that
            starts before the program receives from the queue takes its place.
    """

    queue: object
    core: QueueCore
    uri: str

    def __init__(self, driver: Driver[Any], uri: QueueUri, options: SubscriptionOptions) -> None:
        self.driver = driver
        self.parsed_uri = uri
        self.options = options
        self.connection = driver.connection
        self.backlog = driver.backlog
        self.received = driver.received
        self.max_message_size = driver.options.max_message_size
        self.counts: ReceiveCounts = ReceiveCounts(driver.received)
        self.confirming = driver.connection.confirming
        self.handlers = Handlers()
        self.default: Line | None = None
        self.eager = False
        self.subscriptions: Subscriptions = Subscriptions(self)
        # Called with the future of each change of the subscriptions, for interceptors; None without any.
        self.on_configure: Callable[[asyncio.Future[None]], None] | None = None
        self._close_task: asyncio.Task[None] | None = None

    def opened(self, core: QueueCore) -> None:
        """Store the protocol's queue at the beginning of the opening."""
        self.core = core
        self.uri = core.uri_text
        for counts in (self.counts, *(line.counts for line in self.lines)):
            counts.core = core

    @property
    def lines(self) -> dict[Line, None]:
        """The lines of the started consumers, and of the default subscription."""
        lines = dict.fromkeys(self.subscriptions.members)
        if self.default is not None:
            lines[self.default] = None
        return lines

    @property
    def closed(self) -> bool:
        """Whether the queue is closed or closing."""
        core = self.core
        return core.leaving or core.state is QueueState.CLOSED

    @property
    def in_line(self) -> tuple[int, int]:
        """Number and size of the messages waiting for the application."""
        waiting = [line.in_line for line in self.subscriptions.members]
        unclaimed = self.subscriptions.unclaimed
        return (
            sum(count for count, _ in waiting) + len(unclaimed),
            sum(size for _, size in waiting) + unclaimed.bytes,
        )

    def check_open(self) -> None:
        """Check that the queue can be used.

        Raises:
            QueueClosed, SessionClosed: the queue or the session is closed.
            UsageError: the call is outside the session's event loop.
        """
        self.driver.check_open()
        core = self.core
        if core.leaving or core.state is QueueState.CLOSED:
            raise core.closed_error("closed")

    # confirming

    def confirm(self, guid: bytes, counts: ReceiveCounts, arrival: Arrival) -> bool:
        """Confirm a message, unless the queue is closed; return whether the message is confirmed.

        The next messages with the same arrival may join, see :class:`Confirming`.
        """
        connection = self.connection
        connection.check_loop()
        if self.core.state is QueueState.CLOSED:
            return False
        pending = connection.core.confirm(self.core, guid)
        connection.transmit_soon()
        self.confirming.add(counts, arrival, connection.turn, 1, pending)
        return True

    def confirm_guids(self, guids: list[bytes]) -> None:
        """Confirm messages known only by their GUIDs."""
        self.confirm_many(guids)
        for guid in guids:
            self.subscriptions.in_hand.pop(guid, None)
        self.confirming.add(self.counts, None, self.connection.turn, len(guids))

    def discard(self, messages: list[Push], arrival: Arrival) -> None:
        """Confirm newly arrived messages, without handing them out."""
        self.counts.arrived(messages, size_of(messages))
        self.confirm_many([message[GUID] for message in messages])
        self.confirming.add(self.counts, arrival, self.connection.turn, len(messages))

    def confirm_many(self, guids: list[bytes]) -> None:
        """Confirm several messages."""
        self.connection.check_loop()
        self.connection.core.confirm_many(self.core, guids)
        self.connection.transmit_soon()

    # life cycle

    async def close(self, timeout: float | None, *, at_once: bool) -> None:
        """Close the queue in an orderly way; see :meth:`bmq.Queue.close`."""
        if self._close_task is None or self._close_task.cancelled():
            if self.core.state is QueueState.CLOSED:
                return
            seconds = self.driver.options.close_timeout if timeout is None else timeout
            closing = self._close(self.connection.loop.time() + seconds, asyncio.current_task(), at_once)
            self._close_task = self.driver.keep(closing)
            self.core.leaving = True  # from now on, an open of the same queue waits
        task = self._close_task
        await ended(task)
        task.result()

    async def _close(self, deadline: float, closer: asyncio.Task[object] | None, at_once: bool) -> None:
        self.shut(None)
        await drain([self], deadline, closer)
        handlers = self.handlers.busy(closer)
        if self.core.unacked or handlers:
            logger.warning(
                "closing %s exceeded its timeout: %s",
                self.uri,
                left_over(self.core.unacked, handlers),
                extra={"queue": self.uri, "broker": self.driver.address},
            )
            deadline = max(deadline, self.connection.loop.time() + _FOR_THE_ANSWER)
        try:
            await self.driver.close_queue(self.core, deadline, at_once=at_once)
        except QueueClosed:
            pass  # the session, or a failure, has already closed it

    def shut(self, error: Error | None) -> None:
        """End the consumers of a queue that is closing or closed."""
        if self.driver.queues.get(self.core) is self:  # a later opening may have taken the core over
            self.core.leaving = True
        for line in self.lines:
            line.shut(error)
            line.clear()
        self.subscriptions.finish()

    def forget_delivered(self) -> None:
        """Drop messages in line after the loss of the connection: the broker redelivers them."""
        self.subscriptions.forget_delivered()


async def drain(queues: Iterable[QueueEnd], deadline: float, closer: asyncio.Task[object] | None) -> None:
    """Wait for handlers in progress, and then for the outcomes of posts, because handlers may post."""
    queues = list(queues)
    try:
        async with asyncio.timeout_at(deadline):
            for queue in queues:
                await queue.handlers.idle(closer)
            for queue in queues:
                await queue.driver.send_window.flush(queue.core)
    except TimeoutError:
        pass


def left_over(posts: int, handlers: int, queues: int = 0) -> str:
    """Return a text about the unfinished work; "" if all work is finished."""
    left = (
        (posts, "posts without outcome"),
        (handlers, "messages being handled"),
        (queues, "queues not closed"),
    )
    return ", ".join(f"{count} {what}" for count, what in left if count)
