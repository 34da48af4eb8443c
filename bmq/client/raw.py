# SPDX-License-Identifier: Apache-2.0
"""Received messages as they travelled, many at a time: for programs that keep them and read them later.

Nothing is decompressed or taken apart here, so a message that cannot be read is like any other. Needs numpy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bmq import _checks, _world
from bmq.client._columns import ColumnConsumer, Receipt
from bmq.client._definition import checked_options
from bmq.client.message import Message
from bmq.wire.columns import Array
from bmq.wire.push_columns import PushColumns

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["RawBatch", "RawMessages"]

# A batch has at most so many bytes, unless it is one message.
_MAX_BYTES = 64 * 1024 * 1024


class RawBatch(NamedTuple):
    """Messages that were received together.

    Attributes:
        columns: the messages.
        received: when each arrived here, in microseconds since 1970.
    """

    columns: PushColumns
    received: Array


class RawMessages:
    """What a queue delivers, undecoded. Nothing is confirmed but by :meth:`confirm`. For one task.

    Args:
        queue: the open queue.
        selector: as for :meth:`bmq.Queue.subscribe`.
        max_unconfirmed_messages: how many delivered messages may be unconfirmed.
        max_unconfirmed_bytes: how many bytes of these messages.
        priority: the highest matching priority gets a message.

    Raises:
        InvalidArgument: a limit is out of its range.
    """

    def __init__(
        self,
        queue: Queue,
        selector: Selector = None,
        *,
        max_unconfirmed_messages: int,
        max_unconfirmed_bytes: int,
        priority: int = 0,
    ) -> None:
        options = checked_options(max_unconfirmed_messages, max_unconfirmed_bytes, priority)
        self._consumer = ColumnConsumer(queue, selector, options)
        self._out: deque[Receipt] = deque()

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return self._consumer.buffered

    @property
    def unconfirmed(self) -> int:
        """How many messages were handed out and are not confirmed."""
        return sum(len(each.guids) for each in self._out)

    async def receive(self, timeout: float | None = None, *, max_rows: int) -> RawBatch:
        """Wait until there is a message, then return all that are there, up to ``max_rows``.

        Args:
            timeout: seconds to wait for the first; None waits without bound.
            max_rows: how many messages to return at most.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the queue or the session was closed.

        Cancelling it loses nothing.
        """
        timeout = _checks.timeout(timeout)
        max_rows = _checks.integer("max_rows", max_rows, 1)
        await self._consumer.wait(timeout)
        taken = self._consumer.line.take(max_rows, _MAX_BYTES)
        self._out.append(taken.receipt())
        clock = _world.time() - self._consumer.line.connection.now()
        times = [int((clock + arrived) * 1e6) for _, (arrived, _) in taken.arrivals]
        received = np.repeat(np.array(times, np.int64), [count for count, _ in taken.arrivals])
        return RawBatch(taken.columns, received)

    def message(self, batch: RawBatch, row: int) -> Message:
        """Return one of the messages of a batch, by itself."""
        (push,) = batch.columns.part(row, row + 1).pushes()
        return Message(self._consumer.line, push, (self._consumer.line.connection.now(), 0))

    def confirm(self, rows: int | None = None) -> int:
        """Confirm messages that were handed out, those first that were handed out first; return how many.

        Args:
            rows: how many; None for all.

        Raises:
            UsageError: this is not the event loop that the session belongs to.
        """
        rows = _checks.optional(_checks.integer, "rows", rows)
        confirmed, left = 0, self.unconfirmed if rows is None else rows
        while self._out and left > confirmed:
            receipt = self._out.popleft()
            count = min(left - confirmed, len(receipt.guids))
            if count < len(receipt.guids):
                self._out.appendleft(receipt.part(count, len(receipt.guids)))
                receipt = receipt.part(0, count)
            self._consumer.line.confirm_taken(receipt)
            confirmed += count
        return confirmed

    def release(self) -> None:
        """Leave it to others to confirm what was handed out: :meth:`confirm` knows these messages no more."""
        self._out.clear()

    async def open(self) -> RawMessages:
        """Tell the broker about the subscription.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is taken back.

        Cancelling it takes the subscription back.
        """
        await self._consumer.open()
        return self
