# SPDX-License-Identifier: Apache-2.0
"""The receiving side of a job: one session, its queues and subscriptions."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bmq.client.consumer import Consumer
from bmq.client.message import MessageBatch
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.spark._portal import ConnectionSettings
from bmq.spark._rows import Received

__all__ = ["SourceReceiver", "SourceSettings"]

_MAX_UNCONFIRMED_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What to read.

    Attributes:
        connection: the broker.
        queues: the URIs of the queues.
        subscriptions: expressions by name; "" is everything.
        priority: the consumer priority.
        max_unconfirmed: how many messages may be delivered and unconfirmed, for each subscription.
    """

    connection: ConnectionSettings
    queues: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...] = (("", ""),)
    priority: int = 0
    max_unconfirmed: int = 30_000


class SourceReceiver:
    """Receives from several queues; all of it on the portal's loop."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._consumers: list[tuple[Consumer, str | None]] = []
        self._waiting: list[Received] = []

    async def open(self) -> None:
        """Connect and subscribe.

        Raises:
            ConnectionFailed: the broker cannot be reached in time.
            OpenQueueError, ConfigureQueueError: the broker refused.
            RequestTimeout: it did not answer in time.
        """
        settings = self._settings
        self._session = await settings.connection.open()
        for uri in settings.queues:
            queue = await self._session.open_queue(
                uri,
                read=True,
                priority=settings.priority,
                max_unconfirmed_messages=settings.max_unconfirmed,
                max_unconfirmed_bytes=_MAX_UNCONFIRMED_BYTES,
                default_subscription=False,
            )
            for name, expression in settings.subscriptions:
                consumer = queue.subscribe(expression or None)
                self._consumers.append((await consumer.open(), name or None))

    @property
    def reconnects(self) -> int:
        """How often the connection was restored."""
        return self._session.stats().reconnects if self._session is not None else 0

    @property
    def buffered(self) -> int:
        """How many messages have arrived and wait."""
        return len(self._waiting) + sum(consumer.buffered for consumer, _ in self._consumers)

    async def take(self, limit: int, wait: float, linger: float = 0.0) -> list[Received]:
        """Wait for messages.

        Args:
            limit: how many to return at most.
            wait: seconds to wait for the first.
            linger: seconds to wait for more after it.

        Returns:
            Messages in the order they arrived; none when the time is over.

        Raises:
            QueueClosed, SessionClosed: the connection is lost for good.
        """
        deadline = time.monotonic() + wait
        some = False
        while len(self._waiting) < limit:
            if self._waiting and not some:
                some = True
                deadline = time.monotonic() + linger
            left = deadline - time.monotonic()
            if not await self._receive(limit, max(left, 0.0)) and left <= 0:
                break
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken

    async def _receive(self, limit: int, timeout: float) -> bool:
        """Let every consumer add what it has; wait only when none has anything."""
        ready = [(consumer, name) for consumer, name in self._consumers if consumer.buffered]
        if ready:
            for consumer, name in ready:
                self._add(await consumer.receive_many(limit), name)
            return True
        tasks = {
            asyncio.ensure_future(consumer.receive_many(limit)): name for consumer, name in self._consumers
        }
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # A task that was cancelled too late has received messages all the same.
            results = await asyncio.gather(*tasks, return_exceptions=True)
        received = False
        for result, name in zip(results, tasks.values(), strict=True):
            if isinstance(result, MessageBatch):
                self._add(result, name)
                received = True
            elif isinstance(result, Exception):
                raise result
        return received

    def _add(self, messages: MessageBatch, name: str | None) -> None:
        at = time.time_ns() // 1000
        self._waiting.extend(Received(message, name, at) for message in messages)

    async def confirm(self, guids: dict[Queue, list[str]]) -> None:
        """Confirm messages."""
        for queue, each in guids.items():
            if not queue.closed:
                queue.confirm(*each)

    async def close(self) -> None:
        """Send what is confirmed, give back what is not, disconnect."""
        if self._session is not None:
            await self._session.close(timeout=10)
