# SPDX-License-Identifier: Apache-2.0
"""The line of a consumer: messages in the order of delivery, and the life of the subscription.

The problem: the messages of one queue go to several consumers, and consumers come and go during delivery.
Each consumer must hand out messages in the order of delivery, including messages taken over from another
consumer. The cost of a message must be low: a line holds the received tuples, and stores nothing else for
each message.

Invariants:

- Each message of a session has a delivery number, counted up by 1 in the order of arrival. Within a line, the
  numbers rise. Messages put back come in front of the whole line: their numbers are lower.
- A line stores numbers and times of arrival as runs: (index of the first message among all messages since the
  start, number, arrival). A run covers messages with consecutive numbers and a common arrival. An event of a
  thousand messages is a single run. The last run is always complete; runs in front of the first message are
  dropped when the line is looked at.
- ``arrived`` counts all messages since the start. The index of the first message in line is ``arrived -
  len(messages)``: taking a message changes only the deque.
- The session's backlog counts every message in every line. A line reports taken messages by the dozen,
  because a report costs as much as taking a message.
- The subscription of the line is at the broker, or requested, in OPENING and OPEN. Messages arriving in other
  states belong to another consumer of the queue, or remain unclaimed.

Rejected designs: a number in front of each message in the line, at the cost of a tuple for each message;
sorting the line after each move, at the cost of the whole line where a few messages move at most; a common
line for the queue, from which consumers pick: a slow consumer would hold back messages of the rest.

The life of the subscription is a table, :class:`ConsumerLife`. The states hold the objects of waiting
callers: the opening task, and the future of calls during a pause.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from bmq._turn import turn_of
from bmq._waiting import WaitingLine, ended
from bmq.client._deadline import within
from bmq.client._definition import Definition, Numbered, Unread, numbered, properties_of
from bmq.client._in_hand import InHand
from bmq.client.counting import ReceiveCounts
from bmq.client.delivered import Delivered, is_stale, push_of
from bmq.errors import Error, QueueClosed, TimedOut
from bmq.protocol.client.ports import Arrival, Columns, Places
from bmq.protocol.machine import Machine, Transition
from bmq.wire.push import DATA, GUID, Push

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.protocol.client.subscription import SubscriptionOptions
    from bmq.subscriptions import Complement, Expression, ExpressionInput
    from bmq.wire.properties import Properties

__all__ = ["ConsumerInput", "ConsumerLife", "ConsumerState", "Line"]

_number = itemgetter(0)


class ConsumerState(Enum):
    """The states of a consumer."""

    NEW = "its subscription was not requested yet, or was refused"
    OPENING = "its subscription was requested from the broker"
    OPEN = "the broker has its subscription"
    PAUSED = "its subscription is withdrawn for a time"
    CLOSING = "its subscription is being withdrawn for good"
    CLOSED = "no more messages arrive"


class ConsumerInput(Enum):
    """The inputs of a consumer's state machine."""

    BEGIN = "open, resume, or the first receive"
    AGREED = "the broker has accepted the subscriptions"
    FAILED = "the broker has refused, the caller was cancelled, or no answer came in time"
    REST = "another consumer of the queue takes over from the default subscription"
    PAUSE = "pause"
    CLOSE = "close"
    GONE = "the subscription is taken back"
    SHUT = "the queue is closing or closed"


_S, _I = ConsumerState, ConsumerInput
# States are compared individually: the hash of an enumerator is a call, and this runs for each event.
_OPENING, _OPEN, _CLOSING, _CLOSED = _S.OPENING, _S.OPEN, _S.CLOSING, _S.CLOSED


class ConsumerLife(Machine):
    """The life cycle of a consumer, and the waiting callers.

    Attributes:
        state: state of the consumer.
        opening: running task that opens the consumer, or None.
        resumed: future that is done on resume; None unless the consumer is paused.
        waiting: callers waiting for a message.
    """

    __slots__ = ("_error", "opening", "resumed", "waiting")

    state: ConsumerState

    def __init__(self) -> None:
        self.state = ConsumerState.NEW
        self.opening: asyncio.Task[None] | None = None
        self.resumed: asyncio.Future[None] | None = None
        self.waiting = WaitingLine()
        self._error: Error | None = None

    @property
    def active(self) -> bool:
        """Whether the broker has the subscription, or a request for it is pending."""
        return self.state is _OPEN or self.state is _OPENING

    @property
    def over(self) -> bool:
        """Whether no more messages will arrive."""
        return self.state is _CLOSED or self.state is _CLOSING

    # actions

    def _hold(self, error: Error | None = None) -> None:
        self.resumed = asyncio.get_running_loop().create_future()

    def _go_on(self, error: Error | None = None) -> None:
        resumed, self.resumed = self.resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    def _end(self, error: Error | None = None) -> None:
        """End the receiving calls, with ``error`` if not None."""
        self._error = error
        self.waiting.wake(len(self.waiting))
        self._go_on()

    TRANSITIONS: ClassVar = {
        (_S.NEW, _I.BEGIN): Transition(None, _S.OPENING),
        (_S.NEW, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.NEW, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.NEW, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.OPENING, _I.AGREED): Transition(None, _S.OPEN),
        (_S.OPENING, _I.FAILED): Transition(None, _S.NEW),
        (_S.OPENING, _I.REST): Transition(None, _S.NEW),
        (_S.OPENING, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.OPENING, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.OPENING, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.OPEN, _I.FAILED): Transition(None, _S.NEW),
        (_S.OPEN, _I.REST): Transition(None, _S.NEW),
        (_S.OPEN, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.OPEN, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.OPEN, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.PAUSED, _I.BEGIN): Transition(_go_on, _S.OPENING),
        (_S.PAUSED, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.PAUSED, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.CLOSING, _I.CLOSE): Transition(None, _S.CLOSING),
        (_S.CLOSING, _I.GONE): Transition(None, _S.CLOSED),
        (_S.CLOSING, _I.SHUT): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.CLOSE): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.GONE): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.SHUT): Transition(None, _S.CLOSED),
    }


class Line(ConsumerLife):
    """The messages of a consumer waiting for the application.

    Args:
        queue: queue of the consumer.
        expression: expression given by the application.
        expressions: compiled form of all expressions; None for all messages.
        options: limits and priority.
        discard: complement of the expression, if unmatched messages are to be discarded; otherwise None.

    Attributes:
        consumer: public object of the consumer.
        queue: queue of the consumer.
        definition: definition of the subscription.
        counts: counters of the messages.
        messages: messages waiting for the application.
        used: whether the program has received, or tried to receive.
        loops: number of loops over the consumer. Garbage collection decreases the number in any thread and at
            any time, so only the log depends on the number.
        feeding: number of :class:`bmq.client.in_hand.Feeding` objects feeding handlers from the consumer.
        in_hand: messages in the hands of handlers; None unless handlers are fed.
        turn: turn of the event loop.
        connection: session's connection.
        workers: workers of the consumer, for reports. A mapping from consumers to workers would keep both for
            ever, because workers refer to the consumer.
    """

    consumer: Consumer

    def __init__(
        self,
        queue: Queue,
        expression: ExpressionInput,
        expressions: list[Expression | None],
        options: SubscriptionOptions,
        discard: Complement | None,
    ) -> None:
        super().__init__()
        self.queue = queue
        self.connection = queue._connection
        self._neighbours = queue._subscriptions
        self._backlog = queue._driver.backlog
        self.counts = ReceiveCounts(queue._counts)
        self.definition = Definition(self, expression, expressions, options, discard)
        self.turn = turn_of(self.connection.loop)
        self.used = False
        self.loops = 0
        self.feeding = 0
        self.in_hand: InHand | None = None
        self.workers: object | None = None
        # Messages in line, total number since the start, and runs: see the module's docstring.
        self.messages: deque[Push] = deque()
        self.arrived = 0
        self.runs: deque[tuple[int, int, Arrival]] = deque()
        # Arrival of the next messages in line, and the number of messages with this arrival.
        self._arrived_at: Arrival = (0.0, 0)
        self._together = 0
        # Bytes counted for this line in the session's backlog, and messages taken since the last report.
        self._counted_bytes = 0
        self.taken: int = 0
        self.taken_bytes: int = 0

    # attributes

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return len(self.messages)

    @property
    def in_line(self) -> tuple[int, int]:
        """Number and size of the messages waiting for the application."""
        return len(self.messages), self._counted_bytes - self.taken_bytes

    @property
    def left(self) -> bool:
        """Whether the program has received, and no receiver is waiting now."""
        return self.used and not self.waiting and self.opening is None

    @property
    def next(self) -> int:
        """The index of the next message in line among all messages since the start."""
        return self.arrived - len(self.messages)

    def put_back(self, messages: Iterable[Delivered]) -> None:
        """Return unhandled messages to the line; see :meth:`bmq.Consumer.put_back`."""
        in_hand = self.in_hand
        if in_hand is not None:
            messages = list(messages)
            in_hand.release(messages)
            # The broker redelivers stale messages.
            messages = [message for message in messages if not is_stale(message)]
        pushes = [push_of(message) for message in messages if not message.confirmed]
        # Before all messages with delivery numbers, and before messages put back earlier.
        self.line_up()
        first = (min(0, self._first_number()) if self.messages else 0) - len(pushes)
        returned: list[Numbered] = [(first + index, push) for index, push in enumerate(pushes)]
        if not self.active:
            self.counts.hold(-len(pushes))
            self._neighbours.give_back(returned)
        elif pushes:
            if in_hand is not None:
                in_hand.update(dict.fromkeys([push[GUID] for push in pushes]))
            self.count(len(pushes), self._merge(returned, self._now()))

    def hand_over(self, choose: Callable[[Properties | None], Line | None]) -> None:
        """Move all messages to other lines of the queue, in the order of delivery.

        Args:
            choose: called with the properties of each message, or with None if the properties are missing or
                malformed. None, or a line without a subscription, leaves the choice to the expressions of the
                other consumers: the message goes to the match with the highest priority, or is kept.

        Raises:
            Exception: raised by ``choose``. No message has moved.
        """
        self.line_up()
        shares: dict[Line | None, list[Numbered]] = {}
        for each in self.numbered():
            properties = properties_of(each[1])
            line = choose(None if isinstance(properties, Unread) else properties)
            shares.setdefault(line if line is not None and line.active else None, []).append(each)
        self.take_back()
        with self._backlog.moving():
            for line, share in shares.items():
                if line is None:
                    self._neighbours.give_back(share, besides=self)
                else:
                    line.take_over(share)

    def _now(self) -> Arrival:
        """The arrival for messages joining now."""
        return self.connection.loop.time(), self.queue._driver.received.losses

    # life cycle

    def start(self) -> asyncio.Task[None]:
        """Begin to receive; return a task ending with the broker's acceptance.

        Raises:
            QueueClosed, SessionClosed: no consumers can be added any more.
        """
        opening = self.opening
        if opening is None or not self.active:
            asked = self._neighbours.begin(self)
            opening = self.opening = asyncio.get_running_loop().create_task(
                self._neighbours.begun(self, asked)
            )
            opening.add_done_callback(self._opened)
        return opening

    def _opened(self, opening: asyncio.Task[None]) -> None:
        if self.opening is opening:
            self.opening = None
        if not opening.cancelled():
            opening.exception()  # waiting callers get the error; the next receiving call tries again

    async def open(self) -> None:
        """Wait until the broker has the subscription; see :meth:`bmq.Consumer.open`."""
        while self.state is not _OPEN or self.opening is not None:
            opening = self.start()
            try:
                await ended(opening)
            except asyncio.CancelledError:
                opening.cancel()
                raise
            if not opening.cancelled():
                opening.result()
                break

    def shut(self, error: Error | None) -> None:
        """Close the line: no more messages will arrive. Receivers end, with ``error`` if not None."""
        self.fire(_I.SHUT, error)

    def raise_if_closed(self) -> None:
        """Raise an error if no more messages will arrive.

        Raises:
            Error: the reason.
        """
        if self.state is _CLOSED or self.state is _CLOSING:
            raise self._error or QueueClosed(f"{self.consumer!r} is closed")

    def stop_if_closed(self) -> None:
        """End a loop over a closed consumer.

        Raises:
            StopAsyncIteration: the consumer is closed.
            Error: a failure closed the consumer.
        """
        if self.state is _CLOSED or self.state is _CLOSING:
            raise self._error or StopAsyncIteration

    async def arrival(self) -> None:
        """Wait until a message may be in line, or the consumer is closed; activate the consumer if necessary.

        Cancelling the call does not stop the activation: more callers may wait for the same activation.
        """
        if self.resumed is not None:
            await ended(self.resumed)
            return
        if self.state is not _OPEN or self.opening is not None:
            before = self.buffered
            opening = self.start()
            if self.buffered > before:
                return  # messages waiting for a matching consumer
            await ended(opening)
            if not opening.cancelled() and not self.over:
                opening.result()
            return  # messages may have arrived with the answer
        waiter = self.waiting.join()
        try:
            await waiter
        except asyncio.CancelledError:
            if self.waiting.leave(waiter) and self.buffered:
                self.waiting.wake()  # pass this caller's message on to the next caller
            raise

    # arrivals

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""
        self.counts.again(count)

    def discard(self, messages: list[Push], arrival: Arrival) -> None:
        """Confirm newly arrived messages, without handing them out."""
        self.queue._discard(messages, arrival)

    def deliver_columns(self, columns: Columns, number: int, arrival: Arrival) -> None:
        """Accept the messages of an event."""
        self.deliver(list(columns.pushes()), [(0, number)], arrival)

    def deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Accept newly arrived messages."""
        state = self.state
        if state is not _OPEN and state is not _OPENING:  # a closing queue accepts no messages
            self._neighbours.deliver(messages, places, arrival)
            return
        if self.in_hand is not None:
            guids = dict.fromkeys([message[GUID] for message in messages])
            if len(guids) < len(messages) or not self.in_hand.keys().isdisjoint(guids):
                fresh = self.in_hand.sort_out(numbered(messages, places), arrival)
                size = self._merge(fresh, arrival)
                if fresh:
                    self.counts.arrived([push for _, push in fresh], size)
                    self.count(len(fresh), size)
                return
            self.in_hand.update(guids)
        line, runs, arrived = self.messages, self.runs, self.arrived
        if not line:
            runs.clear()
        else:
            first = arrived - len(line)
            while len(runs) > 1 and runs[1][0] <= first:
                runs.popleft()
            index, number, _ = runs[-1]
            if places[0][1] < number + arrived - index:
                # Out of order: another consumer already handed us later messages of this event.
                size = self._merge(list(numbered(messages, places)), arrival)
                self.counts.arrived(messages, size)
                self.count(len(messages), size)
                return
        for index, number in places:
            index += arrived
            if not runs or runs[-1][2] is not arrival or number - index != runs[-1][1] - runs[-1][0]:
                runs.append((index, number, arrival))
        self.arrived = arrived + len(messages)
        line.extend(messages)
        size = sum([len(message[DATA]) for message in messages])
        self.counts.arrived(messages, size)
        self.count(len(messages), size)

    def take_over(self, messages: list[Numbered]) -> None:
        """Accept messages from another consumer, or unclaimed messages. Their arrival is now."""
        arrival = self._now()
        if self.in_hand is not None:
            messages = self.in_hand.sort_out(messages, arrival, counted=True)
        size = self._merge(messages, arrival)
        self.counts.took_over(len(messages), size)
        self.count(len(messages), size)

    def _merge(self, messages: list[Numbered], arrival: Arrival) -> int:
        """Insert messages into the line in the order of delivery; return their size.

        Only messages behind the first inserted message move: in most cases no message, or a few messages of
        the same event. Messages put back go before the whole line.
        """
        self.line_up()
        line, runs = self.messages, self.runs
        self._together = 0
        if not line:
            runs.clear()
        elif messages and messages[-1][0] < self._first_number():
            self._prepend(messages, arrival)
            return sum([len(push[DATA]) for _, push in messages])
        later: list[tuple[int, Push, Arrival]] = []
        while line and messages:
            index, number, came = runs[-1]
            number += self.arrived - 1 - index
            if number < messages[0][0]:
                break
            later.append((number, line.pop(), came))
            self.arrived -= 1
            if index == self.arrived:
                runs.pop()
        new = [(number, push, arrival) for number, push in messages]
        for number, push, came in heapq.merge(reversed(later), new, key=_number) if later else new:
            last = runs[-1] if runs else None
            if last is None or last[2] is not came or number - self.arrived != last[1] - last[0]:
                runs.append((self.arrived, number, came))
            line.append(push)
            self.arrived += 1
        return sum([len(push[DATA]) for _, push in messages])

    def sort_line(self, in_hand: InHand) -> None:
        """Drop messages in hand, or earlier in the line; record the remaining messages as in hand."""
        self.line_up()
        messages = list(self.numbered())
        self.clear()
        arrival = self._now()
        fresh = in_hand.sort_out(messages, arrival, counted=True)
        self.counts.repeated(len(messages) - len(fresh))
        self.count(len(fresh), self._merge(fresh, arrival))

    def line_up(self) -> None:
        """Convert all waiting data to messages in line."""

    def _first_number(self) -> int:
        """The delivery number of the next message in line; the line must not be empty."""
        first = self.arrived - len(self.messages)
        runs = self.runs
        while len(runs) > 1 and runs[1][0] <= first:
            runs.popleft()
        index, number, arrival = runs[0]
        if index != first:
            runs[0] = first, number + first - index, arrival
        return runs[0][1]

    def _prepend(self, messages: list[Numbered], arrival: Arrival) -> None:
        """Insert messages before the whole line; requires a call of :meth:`_first_number`."""
        index = self.arrived - len(self.messages)
        for number, push in reversed(messages):
            index -= 1
            first = self.runs[0]
            if first[2] is arrival and first[1] - first[0] == number - index:
                self.runs[0] = index, number, arrival
            else:
                self.runs.appendleft((index, number, arrival))
            self.messages.appendleft(push)

    def numbered(self) -> Iterator[Numbered]:
        """The messages in line, with delivery numbers."""
        index = self.arrived - len(self.messages)
        runs = list(self.runs)
        at = 0
        for push in self.messages:
            while at + 1 < len(runs) and runs[at + 1][0] <= index:
                at += 1
            first, number, _ = runs[at]
            yield number + index - first, push
            index += 1

    def count(self, count: int, size: int) -> None:
        """Count messages added to the line, and wake waiting callers."""
        self._counted_bytes += size
        self._backlog.count(count, size)
        self.waiting.wake(count)

    def take_back(self) -> list[Numbered]:
        """Remove and return the messages in line."""
        messages = list(self.numbered())
        self.counts.hold(-len(messages))
        self.clear()
        return messages

    def clear(self) -> None:
        """Drop the messages in line."""
        if self.in_hand is not None:
            for push in self.messages:
                self.in_hand.pop(push[GUID], None)
        self.taken += len(self.messages)
        self.taken_bytes = self._counted_bytes
        self.messages.clear()
        self.runs.clear()
        self._together = 0
        self.count_taken()

    # taking messages

    def _look_at_arrival(self, index: int) -> None:
        """Find the arrival of the first message left, and the number of messages with the same arrival."""
        runs = self.runs
        while len(runs) > 1 and runs[1][0] <= index:
            runs.popleft()
        self._arrived_at = runs[0][2]
        self._together = (runs[1][0] if len(runs) > 1 else self.arrived) - index

    def count_taken(self) -> None:
        if self.taken:
            self._counted_bytes -= self.taken_bytes
            self._backlog.count(-self.taken, -self.taken_bytes)
            self.taken = self.taken_bytes = 0

    async def some(self, timeout: float | None) -> None:
        """Wait for a message, and for a share of the event loop's turn to hand out the message."""
        if timeout is not None:
            try:
                async with within(timeout, f"no message of {self.queue.uri} arrived"):
                    await self.some(None)
            except TimedOut:
                if not self.buffered:
                    raise
            return
        turn = self.turn
        while True:
            if self.buffered:
                if turn.clock() < turn.until:
                    return
                await self.give_way()
                if self.buffered:
                    return  # false if another caller was faster
            else:
                self.raise_if_closed()
                await self.arrival()

    async def give_way(self) -> None:
        """Let the event loop run before another message is handed out."""
        try:
            await self.turn.wait()
        except asyncio.CancelledError:
            if self.buffered:
                self.waiting.wake()  # pass this caller's message on to the next caller
            raise
