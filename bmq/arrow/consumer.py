# SPDX-License-Identifier: Apache-2.0
"""A consumer with messages taken as columns. Needs numpy."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import chain, compress, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bmq import _world
from bmq.arrow.columns import Array
from bmq.arrow.push import PushColumns, read_push_columns
from bmq.client.buffer import Delivery, ReceiveBuffer
from bmq.client.consumer import Consumer
from bmq.client.counting import size_of
from bmq.client.message import Message
from bmq.protocol.client.ports import Arrival, Columns
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.constants import PushFlags
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.arrow.backlog import InitialBacklog
    from bmq.client.queue import Queue
    from bmq.subscriptions import ExpressionInput

# Smaller events are read message by message, equally fast.
_WORTH_IT = 100
#: Maximum bytes of a batch, unless the batch is a single message.
MAX_BYTES = 64 * 1024 * 1024


class Receipt(NamedTuple):
    """The data needed to confirm messages, without content.

    Attributes:
        guids: GUIDs of the messages.
        arrivals: for each group of messages that arrived together, their number and arrival, in order.
        messages: the messages, if interceptors observe confirmations.
    """

    guids: Array
    arrivals: list[tuple[int, Arrival]]
    messages: list[Message]

    def part(self, start: int, stop: int) -> Receipt:
        """Return the receipt of a range of rows."""
        rows = slice(start, stop)
        return Receipt(self.guids[rows], _chosen(self.arrivals, rows), self.messages[rows])

    def where(self, wanted: Array) -> Receipt:
        """Return the receipt of the rows for which ``wanted``, a boolean for each row, is true."""
        messages = [*compress(self.messages, wanted)]
        return Receipt(self.guids[wanted], _chosen(self.arrivals, wanted), messages)


class Taken(NamedTuple):
    """Messages that were taken.

    Attributes:
        columns: the messages as columns.
        arrivals: for each group of messages that arrived together, their number and arrival, in order.
        messages: the messages, if interceptors observe confirmations.
    """

    columns: PushColumns
    arrivals: list[tuple[int, Arrival]]
    messages: list[Message]

    def receipt(self) -> Receipt:
        """Return the receipt of the messages."""
        return Receipt(self.columns.guids.copy(), self.arrivals, self.messages)

    def received_at(self, clock: float) -> Array:
        """Return the arrival time of each message, in microseconds since 1970.

        Args:
            clock: the present time of the event loop.
        """
        since = _world.time() - clock
        times = [int((since + arrived) * 1e6) for _, (arrived, _) in self.arrivals]
        return np.repeat(np.array(times, np.int64), [count for count, _ in self.arrivals])

    def part(self, start: int, stop: int) -> Taken:
        """Return a range of the messages."""
        rows = slice(start, stop)
        return Taken(self.columns.select(rows), _chosen(self.arrivals, rows), self.messages[rows])


def _chosen(arrivals: list[tuple[int, Arrival]], rows: Array | slice) -> list[tuple[int, Arrival]]:
    """Return the arrivals of some rows."""
    arrival_of_row = np.arange(len(arrivals)).repeat([count for count, _ in arrivals])[rows]
    counts = np.bincount(arrival_of_row, minlength=len(arrivals)).tolist()
    return [(count, arrival) for count, (_, arrival) in zip(counts, arrivals, strict=True) if count]


class _Event(NamedTuple):
    """Messages in line that arrived together: as columns or, if few, as messages."""

    messages: PushColumns | list[Push]
    numbers: Sequence[int]
    arrival: Arrival

    @property
    def rows(self) -> int:
        return len(self.numbers)

    def pushes(self) -> list[Push]:
        return self.messages if isinstance(self.messages, list) else list(self.messages.pushes())


class ColumnLine(ReceiveBuffer):
    """A buffer with messages taken as columns.

    Arrivals wait event by event, behind any single messages passed on by other consumers. With interceptors
    observing messages, columns are built after the interceptors' calls.

    Args:
        queue: queue of the line.
        expression: as for :meth:`bmq.Queue.subscribe`.
        options: limits and priority.
    """

    def __init__(self, queue: Queue, expression: ExpressionInput, options: SubscriptionOptions) -> None:
        super().__init__(queue, expression, options)
        self._events: deque[_Event] = deque()
        self._message_by_message = bool(self.hooks.receiving or self.hooks.confirming)
        if not self._message_by_message:
            self.connection.core.read_columns = partial(read_push_columns, least=_WORTH_IT)
            for subscription in self.definition.subscriptions:
                subscription.columns = True

    # arrivals

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages."""
        if not self.active or self._message_by_message or (self.deliveries and not self._events):
            super().deliver(pushes, numbers, arrival)
        else:
            size = size_of(pushes)
            self.counts.arrived(pushes, size)
            self._wait(_Event(pushes, numbers, arrival), size)

    def deliver_columns(self, columns: Columns, number: int, arrival: Arrival) -> None:
        """Accept the messages of a newly arrived event."""
        assert isinstance(columns, PushColumns)
        numbers = range(number, number + columns.count)
        if not self.active:
            super().deliver(list(columns.pushes()), numbers, arrival)
            return
        size = columns.size
        self.counts.came(columns.count, size, int(np.count_nonzero(columns.flags & PushFlags.OUT_OF_ORDER)))
        self._wait(_Event(columns, numbers, arrival), size)

    def _wait(self, event: _Event, size: int) -> None:
        self._events.append(event)
        self.count(event.rows, size)

    def line_up(self) -> None:
        """Convert events into single messages, for callers taking single messages."""
        super().line_up()
        for event in self._events:
            pushes = event.pushes()
            self.deliveries.append(Delivery(pushes, event.numbers, event.arrival, size_of(pushes)))
        self._events.clear()

    def clear(self) -> None:
        """Drop the waiting messages."""
        self._events.clear()
        super().clear()

    # taking

    def take(self, rows: int, size: int) -> Taken:
        """Take messages from the line.

        Args:
            rows: maximum number of messages.
            size: maximum number of bytes, unless the result is a single message.

        Raises:
            QueueClosed: the line is empty, and the consumer is closed.
        """
        if not self.messages:
            self.raise_if_closed()
        if self.deliveries:
            return self._take_messages(rows, size)
        parts: list[PushColumns] = []
        arrivals: list[tuple[int, Arrival]] = []
        pushes: list[Push] = []
        taken_rows = taken_size = 0
        while self._events and taken_rows < rows:
            event = self._events[0]
            some = event.messages
            count, length = event.rows, size_of(some) if isinstance(some, list) else some.size
            if taken_rows + count > rows or taken_size + length > size:
                left = rows - taken_rows
                if isinstance(some, list):
                    lengths = np.fromiter([len(push[-1]) for push in some[:left]], np.int64)
                else:
                    lengths = (some.stops - some.starts)[:left]
                count = int(np.searchsorted(np.cumsum(lengths), size - taken_size, side="right"))
                if not count and parts + pushes:
                    break
                count = max(count, 1)
                length = int(lengths[:count].sum())
            if isinstance(some, list):
                pushes += some[:count]
            else:
                if pushes:
                    parts.append(PushColumns.of(pushes))
                    pushes = []
                parts.append(some if count == some.count else some.part(0, count).trimmed())
            arrivals.append((count, event.arrival))
            taken_rows += count
            taken_size += length
            self._events.popleft()
            if count < event.rows:
                self._events.appendleft(_after(event, count))
                break
        if pushes:
            parts.append(PushColumns.of(pushes))
        self.report_taken(taken_rows, taken_size)
        return Taken(PushColumns.concat(parts or [PushColumns.of([])]), arrivals, [])

    def _take_messages(self, rows: int, size: int) -> Taken:
        """Take single messages from the line."""
        count = total = 0
        for _, push in chain.from_iterable(delivery.numbered() for delivery in self.deliveries):
            total += len(push[-1])
            if count == rows or (count and total > size):
                break
            count += 1
        batch = [self.pop() for _ in range(count)]
        together = [[*some] for _, some in groupby((message._arrival for message in batch), key=id)]
        arrivals = [(len(some), some[0]) for some in together]
        columns = PushColumns.of([message._push for message in batch])
        return Taken(columns, arrivals, batch if self._message_by_message else [])

    def messages_of(self, taken: Taken, rows: Sequence[int]) -> list[Message]:
        """Return some of the taken messages; the rows must be ascending."""
        if taken.messages:
            return [taken.messages[row] for row in rows]
        messages: list[Message] = []
        arrivals = iter(taken.arrivals)
        end, arrival = next(arrivals)
        for row, push in zip(rows, taken.columns.select(np.array(rows, np.int64)).pushes(), strict=True):
            while row >= end:
                count, arrival = next(arrivals)
                end += count
            messages.append(Message(self, push, arrival))
        return messages

    def confirm_taken(self, receipt: Receipt) -> None:
        """Confirm taken messages.

        Raises:
            UsageError: the call is outside the session's event loop.
        """
        if receipt.messages:
            self.confirm_messages([each for each in receipt.messages if not each.confirmed])
            return
        self.queue._confirm_many(receipt.guids.tolist())
        confirming, turn = self.confirming, self.connection.turn
        for count, arrival in receipt.arrivals:
            confirming.add(self.counts, arrival, turn, count)


class ColumnConsumer(Consumer):
    """A consumer whose messages are taken as columns, undecoded. Only :meth:`confirm` confirms. For one task.

    Args:
        queue: queue of the consumer.
        expression: as for :meth:`bmq.Queue.subscribe`.
        options: limits and priority.

    Attributes:
        line: line of the consumer.
        backlog: counts the messages of the consumer, if set.
    """

    def __init__(self, queue: Queue, expression: ExpressionInput, options: SubscriptionOptions) -> None:
        self.line = ColumnLine(queue, expression, options)
        self.backlog: InitialBacklog | None = None
        self._out: deque[Receipt] = deque()
        super().__init__(queue, self.line)

    @property
    def unconfirmed(self) -> int:
        """Number of messages handed out and not yet confirmed."""
        return sum(len(each.guids) for each in self._out)

    def take(self, rows: int) -> Taken:
        """Take arrived messages, up to 64 MiB unless the result is a single message.

        The messages count as handed out only after :meth:`hand_out`.

        Raises:
            QueueClosed: no message has arrived, and the consumer is closed.
        """
        taken = self.line.take(rows, MAX_BYTES)
        if self.backlog is not None:
            self.backlog.arrived(self.queue.uri, taken.columns.guids)
        return taken

    def hand_out(self, receipt: Receipt) -> None:
        """Leave messages to the application, which confirms them later."""
        self._out.append(receipt)

    def confirm(self, rows: int | None = None) -> int:
        """Confirm messages handed out, the earliest first; return the number.

        Args:
            rows: number of messages; None for all.

        Raises:
            UsageError: the call is outside the session's event loop.
        """
        limit = self.unconfirmed if rows is None else rows
        confirmed = 0
        while self._out and confirmed < limit:
            receipt = self._out.popleft()
            count = min(limit - confirmed, len(receipt.guids))
            if count < len(receipt.guids):
                self._out.appendleft(receipt.part(count, len(receipt.guids)))
                receipt = receipt.part(0, count)
            self.line.confirm_taken(receipt)
            confirmed += count
        if self.backlog is not None:
            self.backlog.confirmed(self.queue.uri, confirmed)
        return confirmed

    def release(self) -> None:
        """Leave the confirmation of handed-out messages to other code; :meth:`confirm` skips them."""
        self._out.clear()


def _after(event: _Event, count: int) -> _Event:
    """Return the rest of an event after the first messages."""
    some = event.messages
    rest = some[count:] if isinstance(some, list) else some.part(count, some.count)
    return _Event(rest, event.numbers[count:], event.arrival)
