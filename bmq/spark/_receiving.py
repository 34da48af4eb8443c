# SPDX-License-Identifier: Apache-2.0
"""The receiving side of a job: sessions, their queues and subscriptions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bmq.client.queue import Queue
from bmq.client.raw import RawBatch, RawMessages
from bmq.client.session import Session
from bmq.errors import Error, TimedOut
from bmq.protocol.client.core import SessionState
from bmq.spark._arrow import RecordBatch
from bmq.spark._portal import ConnectionSettings
from bmq.spark._raw import Source, raw_rows, raw_schema, texts_of
from bmq.subscriptions import Expression

__all__ = ["Arrived", "SourceReceiver", "SourceSettings", "confirm_guids"]

logger = logging.getLogger("bmq.spark")

_MAX_UNCONFIRMED_BYTES = 1 << 40
# Enough that what a batch costs does not matter, few enough that Spark's workers get going.
_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What to read.

    Attributes:
        connection: the broker.
        queues: the URIs of the queues.
        subscriptions: expressions by name; "" is everything.
        priority: the consumer priority.
        max_unconfirmed: how many messages may be delivered and unconfirmed, for each subscription.
        receivers: how many sessions read them all.
        exclusive: whether nobody else may read them.
        dead_letters: the URI of the queue for messages that cannot be decoded; "" for none.
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
    """Messages that came together.

    Attributes:
        messages: the consumer that received them.
        queue: the queue they came from.
        received: the messages.
        batch: a row for each, as logs have them.
    """

    messages: RawMessages
    queue: Queue
    received: RawBatch
    batch: RecordBatch

    def part(self, start: int, stop: int) -> Arrived:
        """Return some of the messages."""
        columns, times = self.received
        received = RawBatch(columns.part(start, stop), times[start:stop])
        return self._replace(received=received, batch=self.batch.slice(start, stop - start))


class _Consumer(NamedTuple):
    messages: RawMessages
    queue: Queue
    source: int


class SourceReceiver:
    """Receives from several queues; all of it on the portal's loop.

    Args:
        settings: what to read.

    Attributes:
        schema: the columns of what arrives.
        sessions: the sessions, once it is open.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        sources: list[Source] = [
            (uri, name or None) for uri in settings.queues for name, _ in settings.subscriptions
        ]
        self.schema = raw_schema(sources)
        self.sessions: list[Session] = []
        self._consumers: list[_Consumer] = []
        self._waiting: deque[Arrived] = deque()
        self._rows = 0

    async def open(self) -> None:
        """Connect and subscribe.

        Raises:
            ConnectionFailed: the broker cannot be reached in time.
            OpenQueueError, ConfigureQueueError: the broker refused.
            RequestTimeout: it did not answer in time.
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
                        # It was checked where the options were read; Spark's filters may always hold.
                        Expression(expression, strict=False) if expression else None,
                        max_unconfirmed_messages=settings.max_unconfirmed,
                        max_unconfirmed_bytes=_MAX_UNCONFIRMED_BYTES,
                        priority=settings.priority,
                    )
                    self._consumers.append(_Consumer(await messages.open(), queue, source))
                    source += 1

    @property
    def buffered(self) -> int:
        """How many messages have arrived and wait."""
        return self._rows + sum(each.messages.buffered for each in self._consumers)

    async def take(
        self, limit: int, wait: float, linger: float = 0.0, *, drains: bool = False
    ) -> list[Arrived]:
        """Wait for messages.

        Args:
            limit: how many to return at most.
            wait: seconds to wait for the first.
            linger: seconds to wait for more after it.
            drains: whether silence means that there are no more: then time without a connection is none.

        Returns:
            Messages in the order they arrived; none when the time is over.

        Raises:
            QueueClosed, SessionClosed: the connection is lost for good.
        """
        deadline = time.monotonic() + wait
        some = False
        while self._rows < limit:
            if self._rows and not some:
                some = True
                deadline = time.monotonic() + linger
            left = deadline - time.monotonic()
            if not await self._receive(limit - self._rows, max(left, 0.0)) and left <= 0:
                if some or not drains or self._connected:
                    break
                deadline = time.monotonic() + wait
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

    @property
    def _connected(self) -> bool:
        return all(session.state is SessionState.STARTED for session in self.sessions)

    async def _receive(self, limit: int, timeout: float) -> bool:
        """Let every consumer add what it has; wait only when none has anything."""
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
            # A task that was cancelled too late has received messages all the same.
            results = await asyncio.gather(*tasks, return_exceptions=True)
        received = False
        for result, each in zip(results, self._consumers, strict=True):
            if isinstance(result, Exception):
                raise result
            if not isinstance(result, BaseException):
                self._add(result, each)
                received = True
        return received

    def _add(self, received: RawBatch, each: _Consumer) -> None:
        batch = raw_rows(received, each.source, self.schema)
        self._waiting.append(Arrived(each.messages, each.queue, received, batch))
        self._rows += batch.num_rows

    def confirm_taken(self) -> None:
        """Confirm everything that :meth:`take` has returned."""
        for each in self._consumers:
            waiting = [one.batch.num_rows for one in self._waiting if one.messages is each.messages]
            each.messages.confirm(each.messages.unconfirmed - sum(waiting))

    async def settle(self) -> bool:
        """Close the queues, and return whether the broker has certainly taken every confirmation."""
        try:
            for queue in dict.fromkeys(each.queue for each in self._consumers):
                await queue.close()  # answered by the broker after all confirmations
        except Error as error:
            logger.debug("queues were not closed in order: %s", error)
            return False
        return self._connected and not any(session.stats().reconnects for session in self.sessions)

    async def close(self) -> None:
        """Send what is confirmed, give back what is not, disconnect."""
        for session in self.sessions:
            await session.close(timeout=10)


async def confirm_guids(connection: ConnectionSettings, guids: Mapping[str, Collection[bytes]]) -> None:
    """Confirm messages of earlier sessions, by the URI of their queue; unknown ones do no harm.

    Raises:
        ConnectionFailed: the broker cannot be reached in time.
        OpenQueueError, RequestTimeout: a queue cannot be opened or closed.
        SessionClosed: the connection is lost for good.
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
            await queue.close()  # answered by the broker after all of these
    finally:
        await session.close(timeout=10)
