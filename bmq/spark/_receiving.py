# SPDX-License-Identifier: Apache-2.0
"""The receiving side of a job: sessions with their queues and subscriptions."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bmq._logging import Log
from bmq.arrow.raw import RawBatch, RawMessages
from bmq.client.internals import Drained
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.errors import Error, TimedOut
from bmq.protocol.client.core import SessionState
from bmq.spark._arrow import RecordBatch
from bmq.spark._portal import ConnectionSettings
from bmq.spark._raw import Source, raw_rows, raw_schema, texts_of
from bmq.spark._standing import newer_messages, queue_depths
from bmq.subscriptions import Expression, ExpressionInput

__all__ = ["Arrived", "SourceReceiver", "SourceSettings", "confirm_guids"]

logger = Log("bmq.spark")

_MAX_UNCONFIRMED_BYTES = 1 << 40
# Large enough to make the cost of a batch negligible, small enough to keep Spark's workers busy.
_ROWS = 10_000
# Number of the last messages of a queue that are compared with the broker's list, and seconds between two
# comparisons.
_RECENT, _ASK = 10_000, 1.0


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

    messages: RawMessages
    queue: Queue
    received: RawBatch
    batch: RecordBatch

    def part(self, start: int, stop: int) -> Arrived:
        """Return a range of the messages."""
        columns, times = self.received
        received = RawBatch(columns.part(start, stop), times[start:stop])
        return self._replace(received=received, batch=self.batch.slice(start, stop - start))


class _Backlog:
    """The messages in the queues at the start of a run that drains them.

    Such a run ends, although producers go on, as soon as each queue has delivered as many messages as the
    broker counted at the start. Fewer of them arrive if a subscription selects some, or if there are other
    readers. So the run also ends once a message has arrived that the broker lists behind the counted ones: a
    queue delivers in order. Without figures of the broker, silence alone is the end.

    Args:
        settings: settings of the source.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        # Messages at the start, and messages delivered since, by queue; None before the first question.
        self._counted: dict[str, int] | None = None
        self._delivered: dict[str, int] = dict.fromkeys(settings.queues, 0)
        self._recent: dict[str, deque[bytes]] = {uri: deque(maxlen=_RECENT) for uri in settings.queues}
        self._passed: set[str] = set()
        self._next = 0.0

    def arrived(self, uri: str, guids: Any) -> None:
        """Note delivered messages."""
        if self._counted is not None:
            self._delivered[uri] += len(guids)
            self._recent[uri].extend(guids[-_RECENT:].tolist())

    def taken(self, reconnected: bool) -> bool:
        """Whether all messages of the start have been delivered; a reconnect delivers messages again."""
        return self._counted is not None and not reconnected and not self._left()

    def _left(self) -> list[str]:
        assert self._counted is not None
        return [
            uri
            for uri, delivered in self._delivered.items()
            if uri not in self._passed and not delivered >= self._counted.get(uri, math.inf)
        ]

    def report(self, reconnected: bool) -> None:
        """Log which messages of the start were not delivered before the silence that ends the run."""
        counted = self._counted or {}
        for uri in self._left() if counted and not reconnected else ():
            if uri in counted:
                selects = any(expression for _, expression in self._settings.subscriptions)
                logger.log(
                    logging.INFO if selects else logging.WARNING,
                    "%s: the broker counted %d messages at the start, and delivered %d before it was silent. "
                    "The rest is not selected, or other consumers have it, or it waits behind a returned "
                    "message that no consumer selects",
                    uri,
                    counted[uri],
                    self._delivered[uri],
                )

    async def ask(self, now: float, wait: float, unconfirmed: Callable[[str], int]) -> None:
        """Count the messages at the start; later look for messages behind them, once a second."""
        if now < self._next:
            return
        try:
            if self._counted is None:
                self._next, self._counted = now + wait, {}
                self._counted = await queue_depths(self._settings.connection, self._settings.queues)
                return
            self._next = now + _ASK
            for uri in self._left():
                if uri in self._counted:
                    # Messages behind the counted ones have moved up by the number of confirmed ones.
                    confirmed = self._delivered[uri] - unconfirmed(uri)
                    offset = max(0, self._counted[uri] - confirmed)
                    newer = await newer_messages(self._settings.connection, uri, offset)
                    if not newer.isdisjoint(texts_of(self._recent[uri])):
                        self._passed.add(uri)
        except (Error, TimeoutError) as error:
            logger.info("the broker does not count the messages of the queues: %r", error)


class _Consumer(NamedTuple):
    messages: RawMessages
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
        self._backlog = _Backlog(settings)
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
                    messages = RawMessages(
                        queue,
                        _unwarned(expression),
                        max_unconfirmed_messages=settings.max_unconfirmed,
                        max_unconfirmed_bytes=_MAX_UNCONFIRMED_BYTES,
                        priority=settings.priority,
                    )
                    self._consumers.append(_Consumer(await messages.open(), queue, source))
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
                :class:`_Backlog`. The wait then counts only with a connection, and with room in the windows:
                a broker delivers nothing into a full window.
            held: function that returns the number of messages taken and not confirmed.

        Returns:
            Messages in the order of arrival; none after the timeout, or at the end of the run.

        Raises:
            QueueClosed, SessionClosed: the connection is permanently lost.
        """
        now = asyncio.get_running_loop().time
        if drains:
            await self._backlog.ask(now(), wait, self._unconfirmed)
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
                self._add(await each.messages.receive(max_rows=limit), each)
            return True
        if len(self._consumers) == 1:
            (only,) = self._consumers
            try:
                self._add(await only.messages.receive(timeout, max_rows=limit), only)
            except TimedOut:
                return False
            return True
        tasks = [asyncio.ensure_future(each.messages.receive(max_rows=limit)) for each in self._consumers]
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

    def _unconfirmed(self, uri: str) -> int:
        """Return the number of delivered messages of a queue without a confirmation."""
        return sum(each.messages.unconfirmed for each in self._consumers if each.queue.uri == uri)

    def _add(self, received: RawBatch, each: _Consumer) -> None:
        self._backlog.arrived(each.queue.uri, received.columns.guids)
        batch = raw_rows(received, each.source, self.schema)
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
