# SPDX-License-Identifier: Apache-2.0
"""Consumers: where the messages of one subscription arrive."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING

from bmq import _checks
from bmq._turn import turn_of
from bmq._waiting import WaitingLine
from bmq.client._deadline import within
from bmq.client._definition import (
    Definition,
    Numbered,
    Places,
    changed_options,
    check_selector,
    compile_selector,
    numbered,
)
from bmq.client.in_hand import InHand
from bmq.client.message import Message, MessageBatch
from bmq.client.stats import ConsumerStats, consumer_stats
from bmq.engine.counting import Arrival
from bmq.errors import Error, QueueClosed, TimedOut, UsageError
from bmq.protocol.client.queue import SubscriptionOptions
from bmq.wire.push import DATA, GUID, Push

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import Complement, Expression, Selector

__all__ = ["Consumer", "Subscription"]

_COUNT_EVERY = 64
_ANY = SubscriptionOptions(0, 0, 0)

_number = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What to receive, and how: for :meth:`bmq.Session.open_queue`.

    Attributes:
        selector: what to receive, as for :meth:`bmq.Queue.subscribe`; None or "" for everything.
        priority: the highest matching priority gets a message; None for the queue's.
        max_unconfirmed_messages: how many delivered messages may be unconfirmed; None for the queue's.
        max_unconfirmed_bytes: how many bytes of them; None for the queue's.
        discard_unmatched: confirm unseen whatever does not match.
        strict: False sends an expression that does not compile as it is.

    Raises:
        InvalidArgument: an attribute has another type, or is out of its range.
    """

    selector: Selector = field(default=None, kw_only=False)
    priority: int | None = None
    max_unconfirmed_messages: int | None = None
    max_unconfirmed_bytes: int | None = None
    discard_unmatched: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        check_selector(self.selector)
        boolean, set_value = _checks.boolean, object.__setattr__
        set_value(self, "discard_unmatched", boolean("discard_unmatched", self.discard_unmatched))
        set_value(self, "strict", boolean("strict", self.strict))
        changed_options(_ANY, self.priority, self.max_unconfirmed_messages, self.max_unconfirmed_bytes)

    def _consumer(self, queue: Queue, options: SubscriptionOptions) -> Consumer:
        """Make a consumer of it; what is left out is as in ``options``."""
        changed = changed_options(
            options, self.priority, self.max_unconfirmed_messages, self.max_unconfirmed_bytes
        )
        selector, expressions, discard = compile_selector(
            self.selector, discard=self.discard_unmatched, strict=self.strict
        )
        return Consumer(queue, selector, expressions, changed, discard)


class Consumer:
    """One subscription of a queue, with its own messages.

    Made by :meth:`bmq.Queue.subscribe`; ``async with`` (or ``await``) activates it::

        async with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            async for message in consumer:
                ...

    Receiving activates it too. Several tasks may receive from one consumer; each message goes to one of them.

    Attributes:
        queue: the queue whose messages it receives.
    """

    def __init__(
        self,
        queue: Queue,
        selector: Selector,
        expressions: list[Expression | None],
        options: SubscriptionOptions,
        discard: Complement | None,
    ) -> None:
        #: The queue it belongs to.
        self.queue = queue
        self._connection = queue._driver.connection
        self._backlog = queue._driver.backlog
        self._hooks = queue._driver.hooks
        self._counts = queue._consumer_counts()
        self._max_message_size = queue._driver.options.max_message_size
        self._subscriptions = queue._subscriptions
        # The task that tells the broker of this consumer, while it runs.
        self._opening: asyncio.Task[None] | None = None
        self._definition = Definition(self, selector, expressions, options, discard)
        # Whether the program has received, or tried to.
        self._used = False
        # How many loops over it there are. Garbage collection counts down in any thread and at any time, so
        # nothing but the log depends on it.
        self._loops = 0
        # The messages that wait for the application, how many ever joined this line, and their delivery
        # numbers, as runs that count up by one and arrived together: (index of the first among those that
        # ever joined, its number, when it arrived).
        self._messages: deque[Push] = deque()
        self._arrived = 0
        self._runs: deque[tuple[int, int, Arrival]] = deque()
        # When the next messages in line arrived, and how many of them did so together.
        self._arrived_at: Arrival = (0.0, 0)
        self._together = 0
        # The bytes that the session's Backlog counts as waiting here, and what has left the line since it was
        # told: it is told of several at once, since telling costs as much as taking a message out.
        self._counted_bytes = 0
        self._taken = 0
        self._taken_bytes = 0
        self._waiting = WaitingLine()
        self._turn = turn_of(self._connection.loop)
        self._closed = False
        self._error: Error | None = None
        # How often :class:`Feeding` feeds handlers from it, and the messages that handlers have meanwhile.
        self._feeding = 0
        self._in_hand: InHand | None = None
        # The workers that handle its messages, for reports about them. A mapping from consumers to workers
        # would keep both for ever, since workers refer to their consumer.
        self._workers: object | None = None
        # While it is paused: what receivers wait for.
        self._resumed: asyncio.Future[None] | None = None

    # what it is

    @property
    def selector(self) -> Selector:
        """What the subscription was made from; None or "" for everything."""
        return self._definition.selector

    @property
    def expressions(self) -> list[str]:
        """The expressions the broker evaluates; a filter too big for one has several. "" is everything."""
        return [str(each or "") for each in self._definition.expressions]

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority, all expressions together."""
        return self._definition.options

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return len(self._messages)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._closed

    def stats(self) -> ConsumerStats:
        """Return a snapshot of what the consumer has received."""
        self.queue._confirming.finish()
        return consumer_stats(self._counts, self._in_line)

    @property
    def _in_line(self) -> tuple[int, int]:
        """How many messages wait for the application, and their size."""
        return len(self._messages), self._counted_bytes - self._taken_bytes

    @property
    def _left(self) -> bool:
        """Whether the program has received, and no receiver waits now."""
        return self._used and not self._waiting and self._opening is None

    @property
    def _next(self) -> int:
        """The index of the next message in line among those that ever joined the line."""
        return self._arrived - len(self._messages)

    @property
    def paused(self) -> bool:
        """Whether :meth:`pause` was called, and :meth:`resume` was not since."""
        return self._resumed is not None

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.Consumer of {what!r} on {self.queue.uri}, {len(self._messages)} waiting>"

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Messages(self)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> AsyncIterator[MessageBatch]:
        """Iterate over batches: whatever has arrived, up to ``max_messages`` at a time.

        Args:
            max_messages: how many to return at most.
            max_wait: seconds to wait for that many, from when the first one was there. It is not waited for
                more than the limits let the broker deliver.

        Raises:
            InvalidArgument: an argument is out of its range.
        """
        return _Batches(
            self, _checks.integer("max_messages", max_messages, 1), _checks.seconds("max_wait", max_wait)
        )

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling it loses nothing: a message that is not returned stays in line.
        """
        self._connection.check_loop()
        if timeout is not None:
            timeout = _checks.timeout(timeout)
        if not self._messages or self._turn.clock() >= self._turn.until:
            await self._some(timeout)
        return self._pop()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait until there is a message, then return all that are there, up to ``max_messages``.

        Args:
            max_messages: how many to return at most.
            timeout: seconds to wait for the first; None waits without bound.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling it loses nothing.
        """
        self._connection.check_loop()
        max_messages = _checks.integer("max_messages", max_messages, 1)
        if timeout is not None:
            timeout = _checks.timeout(timeout)
        if not self._messages or self._turn.clock() >= self._turn.until:
            await self._some(timeout)
        return self._pop_many(max_messages)

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, else None.

        It activates the consumer, as every way to receive does; the broker is told in the background.
        """
        self._connection.check_loop()
        if self._messages:
            return self._pop()
        if self not in self._subscriptions and not (self._closed or self.paused or self.queue.closed):
            self._start()
        return None

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until a message is there for :meth:`receive_nowait`, and take none.

        It gives the event loop its turn first, as all ways to receive do.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            InvalidArgument: the timeout is no such number.
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling it loses nothing.
        """
        self._connection.check_loop()
        if timeout is not None:
            timeout = _checks.seconds("timeout", timeout)
        if not self.buffered or self._turn.clock() >= self._turn.until:
            await self._some(timeout)
        self._waiting.wake()  # the message is still there for another caller

    def put_back(self, messages: Iterable[Message]) -> None:
        """Give back messages that were taken and not handled: they are received again, in front of others.

        If the consumer is closed or paused they go to the queue's other consumers that want them, as what
        waited unseen does. Confirmed messages are left out.

        Args:
            messages: messages of this consumer, in the order of their delivery.
        """
        self._connection.check_loop()
        messages = _checks.items("messages", messages, "bmq.Message")
        for each in messages:
            if _checks.choice("a message to put back", each, Message)._consumer.queue is not self.queue:
                raise UsageError(f"{each!r} is of another queue, and cannot be put back here")
        in_hand = self._in_hand
        if in_hand is not None:
            in_hand.release(messages)
            messages = [message for message in messages if not message.stale]  # they are delivered again
        pushes = [message._push for message in messages if not message.confirmed]
        # In front of all that has a number of its own, and of what was put back before.
        self._line_up()
        first = (min(0, self._first_number()) if self._messages else 0) - len(pushes)
        numbered: list[Numbered] = [(first + index, push) for index, push in enumerate(pushes)]
        if self._closed or self not in self._subscriptions:
            self._counts.hold(-len(pushes))
            self._subscriptions.give_back(numbered)
        elif pushes:
            if in_hand is not None:
                in_hand.update(dict.fromkeys([push[GUID] for push in pushes]))
            size = self._merge(numbered, (self._connection.now(), self.queue._driver.received.losses))
            self._count(len(pushes), size)

    # life

    async def pause(self) -> None:
        """Take the subscription back for a time; who receives waits until :meth:`resume`.

        The broker delivers to other consumers meanwhile, also in other processes. Messages that wait unseen
        go where :meth:`close` lets them go; those that no consumer here wants wait for this one.

        Raises:
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the subscription is taken back in the background.

        Idempotent. Cancelling it leaves the consumer paused.
        """
        self._raise_if_closed()
        if self._resumed is None:
            self._resumed = asyncio.get_running_loop().create_future()
            await self._subscriptions.pause(self)

    async def resume(self) -> None:
        """Go on after :meth:`pause`: tell the broker of the subscription again.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the next who receives asks again.

        Cancelling it leaves the consumer resumed; the next who receives tells the broker.
        """
        self._raise_if_closed()
        await self.open()

    async def open(self) -> Consumer:
        """Tell the broker about this subscription; ``async with`` and ``await`` do the same.

        Messages of this queue that no consumer wanted so far (see :attr:`bmq.Queue.unclaimed`) and that match
        come first. A consumer that is paused goes on.

        Raises:
            ConfigureQueueError: the broker refused; the other subscriptions stand as before.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is taken back.

        Cancelling it takes the subscription back.
        """
        self._go_on()
        while self not in self._subscriptions or self._opening is not None:
            opening = self._start()
            try:
                await asyncio.wait((opening,))
            except asyncio.CancelledError:
                opening.cancel()
                raise
            if not opening.cancelled():
                opening.result()
                break
        return self

    async def close(self) -> None:
        """Take the subscription back; receivers end.

        Messages that wait unseen go to other consumers of this queue that want them, in front of what was
        delivered later. Those that nobody here wants stay with the queue, see :attr:`bmq.Queue.unclaimed`.

        Idempotent. It waits for the broker's answer, but not for a broker that is away. Cancelling it leaves
        the subscription taken back, at the latest when the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """
        await self._subscriptions.end(self)

    def __await__(self) -> Generator[object, None, Consumer]:
        return self.open().__await__()

    async def __aenter__(self) -> Consumer:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def configure(
        self,
        selector: Selector = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change the subscription while messages flow; what is not given stays.

        Messages that were routed before the change arrive all the same, each once.

        Raises:
            InvalidExpression, UsageError: the new subscription is not legal.
            ConfigureQueueError: the broker refused; the previous subscription stands.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the previous subscription is asked for again.

        Cancelling it leaves the outcome open: the broker may or may not have the change.
        """
        self.queue._check_open()
        before = self._definition
        expressions, complement = before.expressions, before.discard
        check_selector(selector)
        options = changed_options(before.options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        if selector is None:
            selector = before.selector
        else:
            selector, expressions, complement = compile_selector(selector, discard=complement is not None)
        definition = Definition(self, selector, expressions, options, complement)
        await self._subscriptions.redefine(self, definition)

    # what the queue and its messages call

    def _start(self) -> asyncio.Task[None]:
        """Begin to receive; return the task that is done when the broker has agreed."""
        if self._opening is None:
            asked = self._subscriptions.begin(self)
            self._opening = asyncio.get_running_loop().create_task(self._subscriptions.begun(self, asked))
            self._opening.add_done_callback(self._opened)
        return self._opening

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # those who wait for the task get the error; the next receiver tries again

    def _deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Take in messages that have just arrived."""
        if self._closed or self not in self._subscriptions:  # a queue that closes takes nothing any more
            self._subscriptions.deliver(messages, places, arrival)
            return
        if self._in_hand is not None:
            guids = dict.fromkeys([message[GUID] for message in messages])
            if len(guids) < len(messages) or not self._in_hand.keys().isdisjoint(guids):
                fresh = self._in_hand.sort_out(numbered(messages, places), arrival)
                size = self._merge(fresh, arrival)
                if fresh:
                    self._counts.arrived([push for _, push in fresh], size)
                    self._count(len(fresh), size)
                return
            self._in_hand.update(guids)
        line, runs, arrived = self._messages, self._runs, self._arrived
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
                self._counts.arrived(messages, size)
                self._count(len(messages), size)
                return
        for index, number in places:
            index += arrived
            if not runs or runs[-1][2] is not arrival or number - index != runs[-1][1] - runs[-1][0]:
                runs.append((index, number, arrival))
        self._arrived = arrived + len(messages)
        line.extend(messages)
        size = sum([len(message[DATA]) for message in messages])
        self._counts.arrived(messages, size)
        self._count(len(messages), size)

    def _take_over(self, messages: list[Numbered]) -> None:
        """Take in messages that others had, or nobody. They count as arriving now."""
        arrival = self._connection.now(), self.queue._driver.received.losses
        if self._in_hand is not None:
            messages = self._in_hand.sort_out(messages, arrival, counted=True)
        size = self._merge(messages, arrival)
        self._counts.took_over(len(messages), size)
        self._count(len(messages), size)

    def _merge(self, messages: list[Numbered], arrival: Arrival) -> int:
        """Put messages into the line, each at its place in the order of delivery; return their size.

        Only what comes later than the first of them moves. Nearly always that is nothing, or a few messages
        of the same event; what was put back comes in front of everything.
        """
        self._line_up()
        line, runs = self._messages, self._runs
        self._together = 0
        if not line:
            runs.clear()
        elif messages and messages[-1][0] < self._first_number():
            self._prepend(messages, arrival)
            return sum([len(push[DATA]) for _, push in messages])
        later: list[tuple[int, Push, Arrival]] = []
        while line and messages:
            index, number, came = runs[-1]
            number += self._arrived - 1 - index
            if number < messages[0][0]:
                break
            later.append((number, line.pop(), came))
            self._arrived -= 1
            if index == self._arrived:
                runs.pop()
        new = [(number, push, arrival) for number, push in messages]
        for number, push, came in heapq.merge(reversed(later), new, key=_number):
            last = runs[-1] if runs else None
            if last is None or last[2] is not came or number - self._arrived != last[1] - last[0]:
                runs.append((self._arrived, number, came))
            line.append(push)
            self._arrived += 1
        return sum([len(push[DATA]) for _, push in messages])

    def _sort_line(self, in_hand: InHand) -> None:
        """Drop messages from the line that are in hand, or in the line before; note the others."""
        self._line_up()
        messages = list(self._numbered())
        self._clear()
        arrival = self._connection.now(), self.queue._driver.received.losses
        fresh = in_hand.sort_out(messages, arrival, counted=True)
        self._counts.repeated(len(messages) - len(fresh))
        self._count(len(fresh), self._merge(fresh, arrival))

    def _line_up(self) -> None:
        """Have all that waits in the line of messages."""

    def _first_number(self) -> int:
        """The delivery number of the next message in line; there must be one."""
        first = self._arrived - len(self._messages)
        runs = self._runs
        while len(runs) > 1 and runs[1][0] <= first:
            runs.popleft()
        index, number, arrival = runs[0]
        if index != first:
            runs[0] = first, number + first - index, arrival
        return runs[0][1]

    def _prepend(self, messages: list[Numbered], arrival: Arrival) -> None:
        """Put messages in front of all others; :meth:`_first_number` was called."""
        index = self._arrived - len(self._messages)
        for number, push in reversed(messages):
            index -= 1
            first = self._runs[0]
            if first[2] is arrival and first[1] - first[0] == number - index:
                self._runs[0] = index, number, arrival
            else:
                self._runs.appendleft((index, number, arrival))
            self._messages.appendleft(push)

    def _numbered(self) -> Iterator[Numbered]:
        """What waits, with its delivery numbers."""
        index = self._arrived - len(self._messages)
        runs = list(self._runs)
        at = 0
        for push in self._messages:
            while at + 1 < len(runs) and runs[at + 1][0] <= index:
                at += 1
            first, number, _ = runs[at]
            yield number + index - first, push
            index += 1

    def _count(self, count: int, size: int) -> None:
        """Count messages that joined the line, and let those who wait take them."""
        self._counted_bytes += size
        self._backlog.count(count, size)
        self._waiting.wake(count)

    def _take_back(self) -> list[Numbered]:
        """Remove and return the messages that wait unseen."""
        messages = list(self._numbered())
        self._counts.hold(-len(messages))
        self._clear()
        return messages

    def _clear(self) -> None:
        """Drop the messages that wait unseen."""
        if self._in_hand is not None:
            for push in self._messages:
                self._in_hand.pop(push[GUID], None)
        self._taken += len(self._messages)
        self._taken_bytes = self._counted_bytes
        self._messages.clear()
        self._runs.clear()
        self._together = 0
        self._count_taken()

    def _shut(self, error: Error | None) -> None:
        """No more messages will arrive; receivers end, with ``error`` if there is one."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._waiting.wake(len(self._waiting))
            self._go_on()

    def _go_on(self) -> None:
        """Be paused no longer."""
        if self._resumed is not None:
            resumed, self._resumed = self._resumed, None
            if not resumed.done():
                resumed.set_result(None)

    # how messages are taken out

    def _pop(self) -> Message:
        """Take the next message out of the line; there must be one."""
        messages = self._messages
        push = messages.popleft()
        self._taken += 1
        self._taken_bytes += len(push[DATA])
        if self._taken >= _COUNT_EVERY or not messages:
            self._count_taken()
        if not self._together:
            self._look_at_arrival(self._arrived - len(messages) - 1)
        self._together -= 1
        message = Message(self, push, self._arrived_at)
        if self._in_hand is not None:
            self._in_hand[push[GUID]] = message
        if self._hooks.receiving:
            self._hooks.received(self, (message,))
        return message

    def _pop_many(self, limit: int) -> MessageBatch:
        """Take messages out of the line."""
        messages = self._messages
        first = self._arrived - len(messages)
        if len(messages) <= limit:
            taken = self._made(list(messages), first)
            self._clear()
        else:
            pushes = [messages.popleft() for _ in range(limit)]
            taken = self._made(pushes, first)
            self._taken += limit
            self._taken_bytes += sum([len(push[DATA]) for push in pushes])
            self._count_taken()
        batch = MessageBatch(self, taken)
        if self._in_hand is not None:
            self._in_hand.update({message._push[GUID]: message for message in taken})
        if self._hooks.receiving and taken:
            self._hooks.received(self, batch)
        return batch

    def _made(self, pushes: list[Push], index: int) -> list[Message]:
        """Make messages of the first in line; ``index`` is the first one's among those that ever joined."""
        made: list[Message] = []
        while (at := len(made)) < len(pushes):
            if not self._together:
                self._look_at_arrival(index + at)
            some = pushes[at : at + self._together]
            arrival = self._arrived_at
            made += [Message(self, push, arrival) for push in some]
            self._together -= len(some)
        return made

    def _look_at_arrival(self, index: int) -> None:
        """See when a message arrived, the first that is left, and how many of the next ones did so too."""
        runs = self._runs
        while len(runs) > 1 and runs[1][0] <= index:
            runs.popleft()
        self._arrived_at = runs[0][2]
        self._together = (runs[1][0] if len(runs) > 1 else self._arrived) - index

    def _count_taken(self) -> None:
        if self._taken:
            self._counted_bytes -= self._taken_bytes
            self._backlog.count(-self._taken, -self._taken_bytes)
            self._taken = self._taken_bytes = 0

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise self._error or QueueClosed(f"{self!r} is closed")

    def _stop_if_closed(self) -> None:
        """End a loop over a closed consumer.

        Raises:
            StopAsyncIteration: the consumer is closed.
            Error: it was closed by a failure.
        """
        if self._closed:
            raise self._error or StopAsyncIteration

    async def _some(self, timeout: float | None) -> None:
        """Wait until there is a message, and a share of the event loop's turn to hand it out in."""
        if timeout is not None:
            try:
                async with within(timeout, f"no message of {self.queue.uri} arrived"):
                    await self._some(None)
            except TimedOut:
                if not self.buffered:
                    raise
            return
        turn = self._turn
        while True:
            if self.buffered:
                if turn.clock() < turn.until:
                    return
                await self._give_way()
                if self.buffered:
                    return  # not when another caller was faster
            else:
                self._raise_if_closed()
                await self._arrival()

    async def _give_way(self) -> None:
        """Let the event loop have its turn before another message is handed out."""
        try:
            await self._turn.wait()
        except asyncio.CancelledError:
            if self.buffered:
                self._waiting.wake()  # the message that this caller was to take is for the next one
            raise

    async def _arrival(self) -> None:
        """Wait until there may be a message, or the consumer is closed; activate it first if need be.

        Cancelling it does not stop the activation: others may wait for that, or the same caller again.
        """
        if self._resumed is not None:
            await asyncio.shield(self._resumed)
            return
        if self not in self._subscriptions or self._opening is not None:
            before = self.buffered
            opening = self._start()
            if self.buffered > before:
                return  # messages that had waited for such a consumer
            await asyncio.wait((opening,))
            if not opening.cancelled() and not self._closed:
                opening.result()
            return  # messages may have come with the answer
        waiter = self._waiting.join()
        try:
            await waiter
        except asyncio.CancelledError:
            if self._waiting.leave(waiter) and self.buffered:
                self._waiting.wake()  # the message that this caller was to take is for the next one
            raise


class _Messages:
    """One loop over the messages of a consumer."""

    __slots__ = ("_consumer", "_turn")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._turn = consumer._turn
        consumer._loops += 1
        consumer._connection.check_loop()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    def __del__(self) -> None:
        self._consumer._loops -= 1

    async def __anext__(self) -> Message:
        consumer, turn = self._consumer, self._turn
        while not consumer._messages or turn.clock() >= turn.until:
            if consumer._messages:
                await consumer._give_way()
                if consumer._messages:
                    break  # not when another loop was faster
            else:
                consumer._stop_if_closed()
                await consumer._arrival()
        return consumer._pop()


class _Batches:
    """One loop over batches of a consumer."""

    __slots__ = ("_consumer", "_limit", "_max_wait")

    def __init__(self, consumer: Consumer, limit: int, max_wait: float) -> None:
        self._consumer = consumer
        self._limit = limit
        self._max_wait = max_wait
        consumer._loops += 1
        consumer._connection.check_loop()

    def __aiter__(self) -> AsyncIterator[MessageBatch]:
        return self

    def __del__(self) -> None:
        self._consumer._loops -= 1

    async def __anext__(self) -> MessageBatch:
        consumer, turn = self._consumer, self._consumer._turn
        filled = not self._max_wait
        while not consumer._messages or not filled or turn.clock() >= turn.until:
            if not consumer._messages:
                consumer._stop_if_closed()
                await consumer._arrival()
                filled = not self._max_wait
            elif not filled:
                await self._fill()
                filled = True
            else:
                await consumer._give_way()
                if consumer._messages:
                    break  # not when another loop was faster
        return consumer._pop_many(self._limit)

    async def _fill(self) -> None:
        """Wait until a batch is full, its time is over, or somebody else has taken everything."""
        consumer = self._consumer
        wanted = min(self._limit, consumer.options.max_unconfirmed_messages)
        try:
            async with asyncio.timeout(self._max_wait):
                while 0 < len(consumer._messages) < wanted and not consumer.closed:
                    await consumer._arrival()
        except TimeoutError:
            pass
