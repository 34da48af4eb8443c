# SPDX-License-Identifier: Apache-2.0
"""The receiving side of a job: sessions with their queues and subscriptions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bmq._logging import Log
from bmq.arrow.backlog import Backlog
from bmq.arrow.consumer import ColumnConsumer, Taken
from bmq.client.internals import Drained
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.errors import Error, TimedOut
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.spark._arrow import RecordBatch
from bmq.spark._portal import ConnectionSettings
from bmq.spark._raw import Source, raw_rows, raw_schema, texts_of
from bmq.spark._standing import admin_of
from bmq.subscriptions import Expression, ExpressionInput

__all__ = ["Arrived", "SourceReceiver", "SourceSettings", "confirm_guids"]

logger = Log("bmq.spark")

_MAX_UNCONFIRMED_BYTES = 1 << 40
# Large enough to make the cost of a batch negligible, small enough to keep Spark's workers busy.
_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Settings of the source.

    Attributes:
        connection: connection to the broker.
        queues: URIs of the queues.
        subscriptions: expressions by name; "" for all messages.
        priority: consumer priority.
        max_unconfirmed: limit of delivered messages without a confirmation, for each subscription.
        receivers: number of sessions that read all queues.
        exclusive: whether other readers are refused.
        dead_letters: URI of the queue for undecodable messages; "" for none.
    """

    connection: ConnectionSettings
    queues: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...] = (("", ""),)
    priority: int = 0
    max_unconfirmed: int = 30_000
    receivers: int = 1
    exclusive: bool = False
    dead_letters: str = ""


class Arrived(NamedTuple):
    """Messages that arrived together.

    Attributes:
        messages: consumer of the messages.
        queue: queue of the messages.
        received: messages.
        batch: a row for each message, as in logs.
    """

    messages: ColumnConsumer
    queue: Queue
    received: Taken
    batch: RecordBatch

    def part(self, start: int, stop: int) -> Arrived:
        """Return a range of the messages."""
        return self._replace(
            received=self.received.part(start, stop), batch=self.batch.slice(start, stop - start)
        )

    def message(self, place: int) -> Message:
        """Return a single message."""
        (message,) = self.messages.line.messages_of(self.received, [place])
        return message


class _Consumer(NamedTuple):
    messages: ColumnConsumer
    queue: Queue
    source: int


class SourceReceiver:
    """Receives from several queues, in the portal's loop.

    Args:
        settings: settings of the source.

    Attributes:
        schema: columns of the rows.
        sessions: sessions, after opening.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        sources: list[Source] = [
            (uri, name or None) for uri in settings.queues for name, _ in settings.subscriptions
        ]
        self.schema = raw_schema(sources)
        self.sessions: list[Session] = []
        self._consumers: list[_Consumer] = []
        self._drained = Drained()
        selects = any(expression for _, expression in settings.subscriptions)
        self._backlog = Backlog(partial(admin_of, settings.connection), settings.queues, selects=selects)
        self._waiting: deque[Arrived] = deque()
        self._rows = 0

    async def open(self) -> None:
        """Connect and subscribe.

        Raises:
            ConnectionFailed: the broker cannot be reached in time.
            OpenQueueError, ConfigureQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
        """
        settings = self._settings
        for _ in range(settings.receivers):
            session = await settings.connection.open()
            self.sessions.append(session)
            source = 0
            for uri in settings.queues:
                queue = await session.open_queue(
                    uri, read=True, priority=settings.priority, default_subscription=False
                )
                for _, expression in settings.subscriptions:
                    limits = SubscriptionOptions(
                        settings.max_unconfirmed, _MAX_UNCONFIRMED_BYTES, settings.priority
                    )
                    messages = ColumnConsumer(queue, _unwarned(expression), limits)
                    messages.backlog = self._backlog
                    await messages.open()
                    self._consumers.append(_Consumer(messages, queue, source))
                    source += 1
        self._drained = Drained(*(each.queue for each in self._consumers))

    @property
    def buffered(self) -> int:
        """Number of arrived messages that wait."""
        return self._rows + sum(each.messages.buffered for each in self._consumers)

    async def take(
        self, limit: int, wait: float, *, drains: bool = False, held: Callable[[], int] = lambda: 0
    ) -> list[Arrived]:
        """Wait for messages.

        Args:
            limit: maximum number of messages.
            wait: seconds to wait for the first message.
            drains: whether the run ends with the messages that were in the queues at its start; see
                :class:`Backlog`. The wait then counts only with a connection, and with room in the windows:
                a broker delivers nothing into a full window.
            held: function that returns the number of messages taken and not confirmed.

        Returns:
            Messages in the order of arrival; none after the timeout, or at the end of the run.

        Raises:
            QueueClosed, SessionClosed: the connection is permanently lost.
        """
        now = asyncio.get_running_loop().time
        if drains:
            await self._backlog.ask(wait)
        room = self._settings.max_unconfirmed * 4 // 5  # a broker resumes below 80 % of a full window
        deadline, has_room = now() + wait, held() <= room
        while self._rows < limit:
            if not self._rows and drains and self._backlog.taken(self._drained.reconnected):
                break
            left = 0.0 if self._rows else deadline - now()
            if not await self._receive(limit - self._rows, max(left, 0.0)) and left <= 0:
                if self._rows or not drains:
                    break
                if self._drained.after_silence() and has_room:
                    self._backlog.report(self._drained.reconnected)
                    break
                deadline, has_room = now() + wait, held() <= room
        taken: list[Arrived] = []
        while self._waiting and limit:
            each = self._waiting.popleft()
            count = each.batch.num_rows
            if count > limit:
                self._waiting.appendleft(each.part(limit, count))
                each, count = each.part(0, limit), limit
            taken.append(each)
            limit -= count
            self._rows -= count
        return taken

    async def _receive(self, limit: int, timeout: float) -> bool:
        """Collect the messages of all consumers; wait only if no consumer has any."""
        ready = [each for each in self._consumers if each.messages.buffered]
        if ready:
            for each in ready:
                self._add(await each.messages.receive_columns(0.0, limit), each)
            return True
        if len(self._consumers) == 1:
            (only,) = self._consumers
            try:
                self._add(await only.messages.receive_columns(timeout, limit), only)
            except TimedOut:
                return False
            return True
        tasks = [
            asyncio.ensure_future(each.messages.receive_columns(None, limit)) for each in self._consumers
        ]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # A task that was cancelled too late has nevertheless received messages.
            results = await asyncio.gather(*tasks, return_exceptions=True)
        received = False
        for result, each in zip(results, self._consumers, strict=True):
            if isinstance(result, Exception):
                raise result
            if not isinstance(result, BaseException):
                self._add(result, each)
                received = True
        return received

    def _add(self, received: Taken, each: _Consumer) -> None:
        clock = asyncio.get_running_loop().time()
        batch = raw_rows(received, clock, each.source, self.schema)
        self._waiting.append(Arrived(each.messages, each.queue, received, batch))
        self._rows += batch.num_rows

    def confirm_taken(self) -> None:
        """Confirm all messages that :meth:`take` has returned."""
        for each in self._consumers:
            waiting = [one.batch.num_rows for one in self._waiting if one.messages is each.messages]
            each.messages.confirm(each.messages.unconfirmed - sum(waiting))

    async def settle(self) -> bool:
        """Close the queues; return whether the broker has certainly received all confirmations."""
        try:
            for queue in dict.fromkeys(each.queue for each in self._consumers):
                await queue.close()  # the broker answers after all confirmations
        except Error as error:
            logger.debug("queues were not closed in order: %s", error)
            return False
        return all(
            session.state is SessionState.STARTED and not session.stats().reconnects
            for session in self.sessions
        )

    async def close(self) -> None:
        """Send confirmations, return unconfirmed messages to the queue, and disconnect."""
        for session in self.sessions:
            await session.close(timeout=10)


async def confirm_guids(connection: ConnectionSettings, guids: Mapping[str, Collection[bytes]]) -> None:
    """Confirm messages of earlier sessions, by the URI of their queue; unknown GUIDs are harmless.

    Raises:
        ConnectionFailed: the broker cannot be reached in time.
        OpenQueueError, RequestTimeout: a queue cannot be opened or closed.
        SessionClosed: the connection is permanently lost.
    """
    session = await connection.open()
    try:
        for uri, keys in guids.items():
            if not keys:
                continue
            queue = await session.open_queue(uri, read=True, default_subscription=False)
            every = list(keys)
            for first in range(0, len(every), _ROWS):
                queue.confirm(*texts_of(every[first : first + _ROWS]))
                await asyncio.sleep(0)
            await queue.close()  # the broker answers after all confirmations
    finally:
        await session.close(timeout=10)


def _unwarned(expression: str) -> ExpressionInput:
    """Return an expression of the options, which were checked when read.

    With Spark's filters, an expression may always be true. A text beyond the limits stays text, to be split.
    """
    found = Expression(expression, strict=False) if expression else None
    return found if found is None or found.error is None else expression
