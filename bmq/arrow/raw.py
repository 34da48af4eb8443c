# SPDX-License-Identifier: Apache-2.0
"""Received messages in transmitted form, in bulk, for storage and later reading.

Messages are neither decompressed nor parsed here, so unreadable messages need no special treatment. Needs
numpy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

from bmq import _checks, _world
from bmq.arrow.columns import Array
from bmq.arrow.consumer import ColumnConsumer, Receipt
from bmq.arrow.push import PushColumns
from bmq.client.internals import limits_of
from bmq.client.limits import ConsumerLimits, checked_limits
from bmq.client.message import Message

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import ExpressionInput

__all__ = ["RawBatch", "RawMessages"]

# Maximum bytes of a batch, unless the batch is a single message.
_MAX_BYTES = 64 * 1024 * 1024


class RawBatch(NamedTuple):
    """Messages received together.

    Attributes:
        columns: messages.
        received: arrival time of each message, in microseconds since 1970.
    """

    columns: PushColumns
    received: Array


class RawMessages:
    """The messages of a queue, undecoded. Only :meth:`confirm` confirms. For use by one task.

    Args:
        queue: open queue.
        expression: as for :meth:`bmq.Queue.subscribe`.
        limits: as for :meth:`bmq.Queue.subscribe`.

    Raises:
        UsageError: a limit is out of range.
    """

    def __init__(
        self, queue: Queue, expression: ExpressionInput = None, **limits: Unpack[ConsumerLimits]
    ) -> None:
        options = checked_limits(limits, limits_of(queue))
        self._consumer = ColumnConsumer(queue, expression, options)
        self._out: deque[Receipt] = deque()

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._consumer.buffered

    @property
    def unconfirmed(self) -> int:
        """Number of messages handed out and not yet confirmed."""
        return sum(len(each.guids) for each in self._out)

    async def receive(self, timeout: float | None = None, *, max_rows: int) -> RawBatch:
        """Wait for the first message, then return all arrived messages, up to ``max_rows``.

        Args:
            timeout: seconds to wait for the first message; None for no limit.
            max_rows: maximum number of messages.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the queue or the session was closed.

        Cancelling the call loses no message.
        """
        timeout = _checks.timeout(timeout)
        max_rows = _checks.integer("max_rows", max_rows, 1)
        await self._consumer.wait(timeout)
        taken = self._consumer.line.take(max_rows, _MAX_BYTES)
        self._out.append(taken.receipt())
        clock = _world.time() - self._consumer.line.connection.loop.time()
        times = [int((clock + arrived) * 1e6) for _, (arrived, _) in taken.arrivals]
        received = np.repeat(np.array(times, np.int64), [count for count, _ in taken.arrivals])
        return RawBatch(taken.columns, received)

    def message(self, batch: RawBatch, row: int) -> Message:
        """Return a single message of a batch."""
        (push,) = batch.columns.part(row, row + 1).pushes()
        return Message(self._consumer.line, push, (self._consumer.line.connection.loop.time(), 0))

    def confirm(self, rows: int | None = None) -> int:
        """Confirm messages handed out, the earliest first; return the number.

        Args:
            rows: number of messages; None for all.

        Raises:
            UsageError: the call is outside the session's event loop.
        """
        rows = _checks.optional(_checks.integer, "rows", rows)
        return self._consumer.line.confirm_first(self._out, self.unconfirmed if rows is None else rows)

    def release(self) -> None:
        """Leave the confirmation of handed-out messages to other code; :meth:`confirm` skips them."""
        self._out.clear()

    async def open(self) -> RawMessages:
        """Send the subscription to the broker.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn.

        Cancelling the call withdraws the subscription.
        """
        await self._consumer.open()
        return self
