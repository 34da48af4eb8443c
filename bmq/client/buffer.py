# SPDX-License-Identifier: Apache-2.0
"""The buffer of a consumer: messages in the order of delivery, from the arrival to the application.

The problem: the messages of one queue go to several consumers, and consumers come and go during delivery.
Each consumer must hand out messages in the order of delivery, including messages taken over from another
consumer. The cost of a message must be low: a buffer holds the received tuples, and stores nothing else for
each message.

Invariants:

- Each message of a session has a delivery number, counted up by 1 in the order of arrival. Within a buffer,
  the numbers rise. Messages put back come in front of the whole buffer: their numbers are lower.
- A buffer holds the messages event by event, with their numbers and arrival (:class:`Delivery`).
- The session's receive limit counts every message in every buffer. A buffer reports the messages of an event
  together, after the last one is taken: a report costs as much as taking a message.
- The subscription is at the broker, or requested, in OPENING and OPEN. Messages arriving in other states
  belong to another consumer of the queue, or remain unclaimed.

Rejected designs: a number beside each message in the buffer, at the cost of a tuple for each message; a
common buffer for the queue, from which consumers pick: a slow consumer would hold back messages of the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from bmq._loop import within
from bmq._turn import WaitingLine, turn_of, wait_done
from bmq.client._definition import Definition, Numbered, Unread, properties_of
from bmq.client.counting import ReceiveCounts, distinct, size_of
from bmq.client.message import Message, MessageBatch
from bmq.errors import Error, QueueClosed, TimedOut
from bmq.protocol.client.ports import Arrival, Sink
from bmq.protocol.client.queue import QueueState
from bmq.protocol.machine import Machine, Transition
from bmq.wire.push import DATA, GUID, Push

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.protocol.client.subscription import SubscriptionOptions
    from bmq.subscriptions import ExpressionInput
    from bmq.wire.properties import Properties

__all__ = [
    "ConsumerInput",
    "ConsumerState",
    "Delivery",
    "Feeding",
    "InHand",
    "ReceiveBuffer",
]

_number = itemgetter(0)
_arrival = itemgetter(2)


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


class Delivery:
    """Messages of one event for one consumer, waiting for the application.

    Args:
        pushes: messages in the order of delivery. The list belongs to the delivery from now on.
        numbers: their delivery numbers, rising.
        arrival: their arrival.
        size: their size as transmitted.

    Attributes:
        pushes: messages still waiting, the next one last, where taking it costs least.
        last: number of the last message.
        arrival: arrival of the messages.
        count: number of messages, with those taken since.
        size: size of these messages.
    """

    __slots__ = ("_numbers", "arrival", "count", "last", "pushes", "size")

    def __init__(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival, size: int) -> None:
        pushes.reverse()
        self.pushes: list[Push] = pushes
        self.count = len(pushes)
        self.size = size
        self.last = numbers[-1]
        # Numbers of all messages unless consecutive, to save memory if an event has a single message.
        self._numbers = None if isinstance(numbers, range) else numbers
        self.arrival = arrival

    @property
    def first(self) -> int:
        """The number of the next message."""
        return self._left()[0]

    def _left(self) -> Sequence[int]:
        """Return the numbers of the waiting messages."""
        left = len(self.pushes)
        return range(self.last - left + 1, self.last + 1) if self._numbers is None else self._numbers[-left:]

    def numbered(self) -> Iterator[Numbered]:
        """Iterate over the waiting messages with their numbers."""
        return zip(self._left(), reversed(self.pushes), strict=True)


class InHand(dict[bytes, "Message | None"]):
    """The messages of one queue in the hands of handlers, by GUID; None for a buffered message.

    The problem: a broker redelivers an unconfirmed message after a lost connection, and after the loss of a
    cluster's primary even on the same connection. A broker after a loss of memory does not mark the message
    as redelivered: only the GUID identifies a message already here. A loop in a program receives the message
    again, as documented. A handler must not: code calling handlers lets :class:`Feeding` follow the messages
    of consumers from the arrival until they are confirmed, put back or given up. A message arriving meanwhile
    with the same GUID is the same message. The new copy is dropped, and the first copy counts as arrived
    again, with a single outcome for both.

    Messages are compared on arrival. A comparison at the time of handling would sometimes find the first
    message already confirmed, and would need a separate memory of confirmations. All handler-feeding
    consumers of a queue share the record: the broker may redeliver a message to another subscription.
    """

    __slots__ = ()

    def sort_out(
        self, messages: Iterable[Numbered], arrival: Arrival, *, counted: bool = False
    ) -> list[Numbered]:
        """Return and record the new messages; all remaining messages have arrived again.

        Args:
            messages: messages for one consumer.
            arrival: arrival of the messages.
            counted: whether the queue has counted the messages.
        """
        fresh: list[Numbered] = []
        for each in messages:
            push = each[1]
            guid = push[GUID]
            if guid not in self:
                self[guid] = None
                fresh.append(each)
                continue
            held = self[guid]
            if held is not None and held.stale:
                held._arrival = distinct(arrival)  # both deliveries share the message's outcome
                counts = held._buffer.counts
                if counted:
                    counts.hold(1)
                else:
                    counts.arrived([push], len(push[DATA]))
            # Otherwise the connection is the same, and the message already counts as unconfirmed.
        return fresh

    def release(self, messages: Iterable[Message]) -> None:
        """Forget messages no longer in the hands of a handler."""
        for message in messages:
            self.pop(message._push[GUID], None)


class ReceiveBuffer(Machine, Sink):
    """The messages of a consumer waiting for the application, and the life of its subscription.

    Args:
        queue: queue of the consumer.
        expression: expression given by the application.
        options: limits and priority.
        discard: whether to discard unmatched messages.
        strict: if False, an expression that does not compile is sent unchanged.

    Attributes:
        consumer: public object of the consumer.
        queue: queue of the consumer.
        definition: definition of the subscription.
        opening: running task that opens the consumer, or None.
        resumed: future that is done on resume; None unless the consumer is paused.
        waiting: callers waiting for a message.
        counts: counters of the messages.
        hooks: interceptors.
        confirming: collects the session's confirmations.
        deliveries: messages waiting for the application, event by event.
        used: whether the program has received, or tried to receive.
        feeding: number of :class:`Feeding` objects feeding handlers from the consumer.
        in_hand: messages in the hands of handlers; None unless handlers are fed.
        turn: turn of the event loop.
        connection: session's connection.
        workers: workers of the consumer, for reports. A mapping from consumers to workers would keep both for
            ever, because workers refer to the consumer.

    Raises:
        InvalidExpression: the expression is not legal.
    """

    consumer: Consumer
    state: ConsumerState

    def __init__(
        self,
        queue: Queue,
        expression: ExpressionInput,
        options: SubscriptionOptions,
        *,
        discard: bool = False,
        strict: bool = True,
    ) -> None:
        self.definition = Definition(self, expression, options, discard=discard, strict=strict)
        self.state = ConsumerState.NEW
        self.opening: asyncio.Task[None] | None = None
        self.resumed: asyncio.Future[None] | None = None
        self.waiting = WaitingLine()
        self._error: Error | None = None
        self.queue = queue
        self.connection = queue._connection
        self._subscriptions = queue._subscriptions
        self._receive_limit = self.connection.receive_limit
        self.counts = ReceiveCounts(queue._counts)
        self.turn = turn_of(self.connection.loop)
        self.used = False
        self.feeding = 0
        self.in_hand: InHand | None = None
        self.workers: object | None = None
        self.hooks = queue._hooks
        self.confirming = self.connection.confirming
        self.deliveries: deque[Delivery] = deque()
        # What the receive limit counts for this buffer: the messages waiting, and those already taken
        # from the first delivery.
        self._counted_messages = 0
        self._counted_bytes = 0

    @property
    def messages(self) -> int:
        """Number of messages waiting for the application."""
        if not self.deliveries:
            return self._counted_messages
        first = self.deliveries[0]
        return self._counted_messages - first.count + len(first.pushes)

    @property
    def bytes(self) -> int:
        """Size of these messages as transmitted."""
        if not self.deliveries:
            return self._counted_bytes
        first = self.deliveries[0]
        return self._counted_bytes - first.size + size_of(first.pushes)

    @property
    def active(self) -> bool:
        """Whether the broker has the subscription, or a request for it is pending."""
        return self.state is _OPEN or self.state is _OPENING

    @property
    def over(self) -> bool:
        """Whether no more messages will arrive."""
        return self.state is _CLOSED or self.state is _CLOSING

    @property
    def idle(self) -> bool:
        """Whether the program has received, and no receiver is waiting now."""
        return self.used and not self.waiting and self.opening is None

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

    # life cycle

    def start(self) -> asyncio.Task[None]:
        """Begin to receive; return a task ending with the broker's acceptance.

        Raises:
            QueueClosed, SessionClosed: no consumers can be added any more.
        """
        opening = self.opening
        if opening is None or not self.active:
            asked = self._subscriptions.begin(self)
            opening = self.opening = asyncio.get_running_loop().create_task(
                self._subscriptions.begun(self, asked)
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
                await wait_done(opening)
            except asyncio.CancelledError:
                opening.cancel()
                raise
            if not opening.cancelled():
                opening.result()
                break

    def raise_if_closed(self, at_end: type[Exception] = QueueClosed) -> None:
        """Raise an error if no more messages will arrive.

        Raises:
            Exception: the error that closed the consumer, or else ``at_end``.
        """
        if self.state is _CLOSED or self.state is _CLOSING:
            raise self._error or at_end(f"{self.consumer!r} is closed")

    async def arrival(self) -> None:
        """Wait until a message may have arrived, or the consumer is closed; activate the consumer if needed.

        Cancelling the call does not stop the activation: more callers may wait for the same activation.
        """
        if self.resumed is not None:
            await wait_done(self.resumed)
            return
        if self.state is not _OPEN or self.opening is not None:
            before = self.messages
            opening = self.start()
            if self.messages > before:
                return  # messages waiting for a matching consumer
            await wait_done(opening)
            if not opening.cancelled() and not self.over:
                opening.result()
            return  # messages may have arrived with the answer
        waiter = self.waiting.join()
        try:
            await waiter
        except asyncio.CancelledError:
            if self.waiting.leave(waiter) and self.messages:
                self.waiting.wake()  # pass this caller's message on to the next caller
            raise

    # arrivals

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""
        self.counts.again(count)

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages; the list belongs to the buffer from now on."""
        state = self.state
        if state is not _OPEN and state is not _OPENING:  # a closing queue accepts no messages
            self._subscriptions.deliver(pushes, numbers, arrival)
            return
        if self.in_hand is not None:
            guids = dict.fromkeys([push[GUID] for push in pushes])
            if len(guids) < len(pushes) or not self.in_hand.keys().isdisjoint(guids):
                fresh = self.in_hand.sort_out(zip(numbers, pushes, strict=True), arrival)
                if fresh:
                    pushes = [push for _, push in fresh]
                    self.counts.arrived(pushes, size_of(pushes))
                    self.insert(fresh, arrival)
                return
            self.in_hand.update(guids)
        size = sum([len(push[DATA]) for push in pushes])
        self.counts.arrived(pushes, size)
        deliveries = self.deliveries
        if not deliveries or deliveries[-1].last < numbers[0]:
            deliveries.append(Delivery(pushes, numbers, arrival, size))
            self.count(len(numbers), size)
        else:
            # Out of order: another consumer already handed us later messages of this event.
            self.insert(list(zip(numbers, pushes, strict=True)), arrival)

    def take_over(self, messages: list[Numbered]) -> None:
        """Accept messages from another consumer, or unclaimed messages. Their arrival is now."""
        arrival = self._now()
        if self.in_hand is not None:
            messages = self.in_hand.sort_out(messages, arrival, counted=True)
        self.counts.took_over(len(messages), size_of([push for _, push in messages]))
        self.insert(messages, arrival)

    def insert(self, messages: list[Numbered], arrival: Arrival) -> None:
        """Insert messages in the order of delivery, and wake waiting callers.

        Only messages behind the first inserted message move: in most cases no message, or a few messages of
        the same event. Messages put back go before the whole buffer.
        """
        if not messages:
            return
        self.line_up()
        deliveries, first, last = self.deliveries, messages[0][0], messages[-1][0]
        if deliveries and last < deliveries[0].first:
            deliveries.appendleft(_delivery(messages, arrival))
        else:
            moved = [(*each, arrival) for each in messages]
            while deliveries and deliveries[-1].last > first:
                delivery = deliveries.pop()
                moved += [(*each, delivery.arrival) for each in delivery.numbered()]
            moved.sort(key=_number)
            for came, group in groupby(moved, _arrival):
                deliveries.append(_delivery([(number, push) for number, push, _ in group], came))
        self.count(len(messages), size_of([push for _, push in messages]))

    def drop_in_hand(self, in_hand: InHand) -> None:
        """Drop messages in hand, or earlier in the buffer; record the remaining messages as in hand."""
        messages, arrival = self.numbered(), self._now()
        self.clear()
        fresh = in_hand.sort_out(messages, arrival, counted=True)
        self.counts.repeated(len(messages) - len(fresh))
        self.insert(fresh, arrival)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return unhandled messages to the buffer; see :meth:`bmq.Consumer.put_back`."""
        in_hand = self.in_hand
        if in_hand is not None:
            messages = list(messages)
            in_hand.release(messages)
            # The broker redelivers stale messages.
            messages = [message for message in messages if not message.stale]
        pushes = [message._push for message in messages if not message.confirmed]
        # Before all messages with delivery numbers, and before messages put back earlier.
        self.line_up()
        first = (min(0, self.deliveries[0].first) if self.deliveries else 0) - len(pushes)
        returned: list[Numbered] = list(enumerate(pushes, first))
        if not self.active:
            self.counts.hold(-len(pushes))
            self._subscriptions.place(returned)
            return
        if in_hand is not None:
            in_hand.update(dict.fromkeys([push[GUID] for push in pushes]))
        self.insert(returned, self._now())

    def hand_over(self, choose: Callable[[Properties | None], Consumer | None]) -> None:
        """Move all messages to other consumers of the queue, in the order of delivery.

        Args:
            choose: called with the properties of each message, or with None if the properties are missing or
                malformed. None, or a consumer without a subscription, leaves the choice to the expressions
                of the other consumers: the message goes to the match with the highest priority, or is kept.

        Raises:
            Exception: raised by ``choose``. No message has moved.
        """
        shares: dict[ReceiveBuffer | None, list[Numbered]] = {}
        for each in self.numbered():
            properties = properties_of(each[1])
            chosen = choose(None if isinstance(properties, Unread) else properties)
            buffer = chosen._buffer if chosen is not None and chosen._buffer.active else None
            shares.setdefault(buffer, []).append(each)
        self.take_back()
        with self._receive_limit.moving():
            for buffer, share in shares.items():
                if buffer is None:
                    self._subscriptions.place(share, besides=self)
                else:
                    buffer.take_over(share)

    def line_up(self) -> None:
        """Convert all waiting data to single messages, in deliveries that no message was taken from."""
        if self.deliveries and (taken := self.deliveries[0].count - len(self.deliveries[0].pushes)):
            first = self.deliveries[0]
            size, first.size = first.size, size_of(first.pushes)
            first.count -= taken
            self.report_taken(taken, size - first.size)

    def numbered(self) -> list[Numbered]:
        """Return the waiting messages with their delivery numbers."""
        self.line_up()
        return [each for delivery in self.deliveries for each in delivery.numbered()]

    def count(self, count: int, size: int) -> None:
        """Count messages added to the buffer, and wake waiting callers."""
        self._counted_messages += count
        self._counted_bytes += size
        self._receive_limit.count(count, size)
        self.waiting.wake(count)

    def take_back(self) -> list[Numbered]:
        """Remove and return the waiting messages."""
        messages = self.numbered()
        self.counts.hold(-len(messages))
        self.clear()
        return messages

    def clear(self) -> None:
        """Drop the waiting messages."""
        if self.in_hand is not None:
            for delivery in self.deliveries:
                for push in delivery.pushes:
                    self.in_hand.pop(push[GUID], None)
        self.deliveries.clear()
        self.report_taken(self._counted_messages, self._counted_bytes)

    def _now(self) -> Arrival:
        """The arrival for messages joining now."""
        return self.connection.loop.time(), self.queue._connection.received.losses

    # taking messages

    def pop(self) -> Message:
        """Take the next message. The buffer must not be empty."""
        delivery = self.deliveries[0]
        push = delivery.pushes.pop()
        if not delivery.pushes:
            self._end_first()
        message = Message(self, push, delivery.arrival)
        if self.in_hand is not None:
            self.in_hand[push[GUID]] = message
        if self.hooks.receiving:
            self.hooks.received(self.consumer, (message,))
        return message

    def pop_many(self, limit: int) -> MessageBatch:
        """Take messages, up to a limit."""
        deliveries = self.deliveries
        taken: list[Message] = []
        while deliveries and (room := limit - len(taken)):
            arrival, pushes = deliveries[0].arrival, deliveries[0].pushes
            if len(pushes) <= room:
                taken += [Message(self, push, arrival) for push in reversed(pushes)]
                self._end_first()
            else:
                taken += [Message(self, push, arrival) for push in pushes[: -room - 1 : -1]]
                del pushes[-room:]
        batch = MessageBatch(self, taken)
        if self.in_hand is not None:
            self.in_hand.update({message._push[GUID]: message for message in taken})
        if self.hooks.receiving and taken:
            self.hooks.received(self.consumer, batch)
        return batch

    def _end_first(self) -> None:
        """Remove the first delivery: all of its messages are taken."""
        delivery = self.deliveries.popleft()
        self.report_taken(delivery.count, delivery.size)

    def report_taken(self, count: int, size: int) -> None:
        """Report taken messages to the session's receive limit."""
        self._counted_messages -= count
        self._counted_bytes -= size
        self._receive_limit.count(-count, -size)

    async def wait_for_message(
        self, at_end: type[Exception] = QueueClosed, *, timeout: float | None = None
    ) -> None:
        """Wait for a message, and for a share of the event loop's turn to hand out the message.

        Raises:
            TimedOut: no message arrived in time.
            Exception: the consumer is closed: the error that closed it, or else ``at_end``.
        """
        if timeout is not None:
            try:
                async with within(timeout, f"no message of {self.queue.uri} arrived"):
                    await self.wait_for_message(at_end)
            except TimedOut:
                if not self.messages:
                    raise
            return
        turn = self.turn
        while not self.messages or turn.clock() >= turn.until:
            if self.messages:
                await self._give_way()
                if self.messages:
                    return  # false if another caller was faster
            else:
                self.raise_if_closed(at_end)
                await self.arrival()

    async def _give_way(self) -> None:
        """Let the event loop run before another message is handed out."""
        try:
            await self.turn.wait()
        except asyncio.CancelledError:
            if self.messages:
                self.waiting.wake()  # pass this caller's message on to the next caller
            raise

    # confirming

    def confirm_messages(self, messages: list[Message]) -> None:
        """Confirm unconfirmed messages of the consumer."""
        queue = self.queue
        if queue._core.state is QueueState.CLOSED:
            self.connection.check_loop()
            return
        queue._confirm_many([message._push[GUID] for message in messages])
        if self.in_hand is not None:
            self.in_hand.release(messages)
        counts, turn = self.counts, self.connection.turn
        for arrival, count in Counter([message._arrival for message in messages]).items():
            self.confirming.add(counts, arrival, turn, count)
        for message in messages:
            message.confirmed = True
        if self.hooks.confirming and messages:
            self.hooks.confirmed(self.consumer, messages)


def _delivery(messages: list[Numbered], arrival: Arrival) -> Delivery:
    pushes = [push for _, push in messages]
    return Delivery(pushes, [number for number, _ in messages], arrival, size_of(pushes))


class Feeding:
    """Feeds handlers from consumers. No consumer hands out a message already in hand.

    A message is in hand until confirmed, put back or released.

    Args:
        consumers: consumers of queues.
    """

    def __init__(self, *consumers: Consumer) -> None:
        self._buffers: list[ReceiveBuffer] = []
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> Consumer:
        """Add a consumer; return the consumer."""
        buffer = consumer._buffer
        self._buffers.append(buffer)
        buffer.feeding += 1
        if not buffer.queue._core.at_most_once:  # in such a domain, each consumer has a separate copy
            in_hand = buffer.queue._subscriptions.in_hand
            guids = dict.fromkeys([push[GUID] for _, push in buffer.numbered()])
            if buffer.in_hand is not None:
                pass  # another caller feeds from the consumer, too
            elif len(guids) < buffer.messages or not in_hand.keys().isdisjoint(guids):
                buffer.drop_in_hand(in_hand)
            else:
                in_hand.update(guids)
            buffer.in_hand = in_hand
        return consumer

    def release(self, messages: Iterable[Message]) -> None:
        """Allow unconfirmed messages to be handed out again after their handling."""
        for message in messages:
            if not message.confirmed:
                message._buffer.queue._subscriptions.in_hand.release((message,))

    def close(self) -> None:
        """Stop feeding; restore the consumers."""
        for buffer in self._buffers:
            buffer.feeding -= 1
            in_hand = buffer.in_hand
            if buffer.feeding or in_hand is None:
                continue
            buffer.in_hand = None
            waiting = {push[GUID] for _, push in buffer.numbered()}
            for guid, held in list(in_hand.items()):
                if guid in waiting if held is None else held._buffer is buffer:
                    del in_hand[guid]
