# SPDX-License-Identifier: Apache-2.0
"""The receiving side of a job: sessions, their queues and subscriptions."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.client.tables import Tables
from bmq.errors import TimedOut
from bmq.protocol.client.core import SessionState
from bmq.spark._arrow import RecordBatch
from bmq.spark._portal import ConnectionSettings
from bmq.subscriptions import Expression

__all__ = ["GUID", "RECEIVED_AT", "REDELIVERED", "VALUE", "Arrived", "SourceReceiver", "SourceSettings"]

_MAX_UNCONFIRMED_BYTES = 1 << 40
# Enough that what a batch costs does not matter, few enough that Spark's workers get going.
_ROWS = 10_000
#: The columns of what arrives, besides properties: no property has such a name.
VALUE, GUID, REDELIVERED, RECEIVED_AT = ":value", ":guid", ":redelivered", ":received_at"
_METADATA = {"guid": GUID, "redelivered": REDELIVERED, "received_at": RECEIVED_AT}


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
    """

    connection: ConnectionSettings
    queues: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...] = (("", ""),)
    priority: int = 0
    max_unconfirmed: int = 30_000
    receivers: int = 1


class Arrived(NamedTuple):
    """Messages that came together.

    Attributes:
        tables: the consumer that received them.
        queue: the queue they came from.
        subscription: the name of the subscription they came by; None for everything.
        batch: a row for each: the columns named above, and the properties.
    """

    tables: Tables
    queue: Queue
    subscription: str | None
    batch: RecordBatch


class SourceReceiver:
    """Receives from several queues; all of it on the portal's loop.

    Args:
        settings: what to read.
        properties: the properties that become columns, and their types; None for a map of all.
    """

    def __init__(self, settings: SourceSettings, properties: Mapping[str, Any] | None) -> None:
        self._settings = settings
        self._properties = properties
        self._sessions: list[Session] = []
        self._tables: list[tuple[Tables, Queue, str | None]] = []
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
            self._sessions.append(session)
            for uri in settings.queues:
                queue = await session.open_queue(
                    uri, read=True, priority=settings.priority, default_subscription=False
                )
                for name, expression in settings.subscriptions:
                    tables = queue.tables(
                        # It was checked where the options were read; Spark's filters may always hold.
                        Expression(expression, strict=False) if expression else None,
                        properties=self._properties,
                        value=VALUE,
                        metadata=_METADATA,
                        max_rows=_ROWS,
                        max_unconfirmed_messages=settings.max_unconfirmed,
                        max_unconfirmed_bytes=_MAX_UNCONFIRMED_BYTES,
                        on_invalid="fail",
                    )
                    self._tables.append((await tables, queue, name or None))

    @property
    def buffered(self) -> int:
        """How many messages have arrived and wait."""
        return self._rows + sum(tables.buffered for tables, _, _ in self._tables)

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
            ProtocolError: a message is malformed; the error names it.
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
                self._waiting.appendleft(each._replace(batch=each.batch.slice(limit)))
                each, count = each._replace(batch=each.batch.slice(0, limit)), limit
            taken.append(each)
            limit -= count
            self._rows -= count
        return taken

    @property
    def _connected(self) -> bool:
        return all(session.state is SessionState.STARTED for session in self._sessions)

    async def _receive(self, limit: int, timeout: float) -> bool:
        """Let every consumer add what it has; wait only when none has anything."""
        ready = [each for each in self._tables if each[0].buffered]
        if ready:
            for each in ready:
                self._add(await each[0].receive(max_rows=limit), each)
            return True
        if len(self._tables) == 1:
            try:
                self._add(await self._tables[0][0].receive(timeout, max_rows=limit), self._tables[0])
            except TimedOut:
                return False
            return True
        tasks = [asyncio.ensure_future(each[0].receive(max_rows=limit)) for each in self._tables]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # A task that was cancelled too late has received messages all the same.
            results = await asyncio.gather(*tasks, return_exceptions=True)
        received = False
        for result, each in zip(results, self._tables, strict=True):
            if isinstance(result, Exception):
                raise result
            if not isinstance(result, BaseException):
                self._add(result, each)
                received = True
        return received

    def _add(self, batch: RecordBatch, each: tuple[Tables, Queue, str | None]) -> None:
        self._waiting.append(Arrived(*each, batch))
        self._rows += batch.num_rows

    async def confirm_taken(self) -> None:
        """Confirm everything that :meth:`take` has returned."""
        for tables, _, _ in self._tables:
            waiting = [each.batch.num_rows for each in self._waiting if each.tables is tables]
            tables.confirm(tables.unconfirmed - sum(waiting))

    async def close(self) -> None:
        """Send what is confirmed, give back what is not, disconnect."""
        for session in self._sessions:
            await session.close(timeout=10)
