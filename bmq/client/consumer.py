# SPDX-License-Identifier: Apache-2.0
"""Consumers: where the messages of one subscription arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING

from bmq import _checks
from bmq.client._definition import Definition, changed_options, check_selector, compile_selector
from bmq.client._line import ConsumerState, Line
from bmq.client.message import Message, MessageBatch
from bmq.client.stats import ConsumerStats, consumer_stats
from bmq.errors import UsageError
from bmq.protocol.client.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from bmq.client._end import QueueEnd
    from bmq.client.queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["Consumer", "Subscription", "line_for", "line_of"]

_ANY = SubscriptionOptions(0, 0, 0)


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


def line_for(subscription: Subscription, end: QueueEnd, options: SubscriptionOptions) -> Line:
    """Make the line of a subscription; what is left out is as in ``options``."""
    each = subscription
    changed = changed_options(
        options, each.priority, each.max_unconfirmed_messages, each.max_unconfirmed_bytes
    )
    selector, expressions, discard = compile_selector(
        each.selector, discard=each.discard_unmatched, strict=each.strict
    )
    return Line(end, selector, expressions, changed, discard)


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

    def __init__(self, queue: Queue, line: Line) -> None:
        #: The queue it belongs to.
        self.queue = queue
        self._line = line
        line.consumer = self

    # what it is

    @property
    def selector(self) -> Selector:
        """What the subscription was made from; None or "" for everything."""
        return self._line.definition.selector

    @property
    def expressions(self) -> list[str]:
        """The expressions the broker evaluates; a filter too big for one has several. "" is everything."""
        return [str(each or "") for each in self._line.definition.expressions]

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority, all expressions together."""
        return self._line.definition.options

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return self._line.buffered

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._line.over

    def stats(self) -> ConsumerStats:
        """Return a snapshot of what the consumer has received."""
        line = self._line
        line.end.confirming.finish()
        return consumer_stats(line.counts, line.in_line)

    @property
    def paused(self) -> bool:
        """Whether :meth:`pause` was called, and :meth:`resume` was not since."""
        return self._line.state is ConsumerState.PAUSED

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.Consumer of {what!r} on {self.queue.uri}, {len(self._line.messages)} waiting>"

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Messages(self._line)

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
            self._line,
            _checks.integer("max_messages", max_messages, 1),
            _checks.seconds("max_wait", max_wait),
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
        line = self._line
        line.connection.check_loop()
        if timeout is not None:
            timeout = _checks.timeout(timeout)
        if not line.messages or line.turn.clock() >= line.turn.until:
            await line.some(timeout)
        return line.pop()

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
        line = self._line
        line.connection.check_loop()
        max_messages = _checks.integer("max_messages", max_messages, 1)
        if timeout is not None:
            timeout = _checks.timeout(timeout)
        if not line.messages or line.turn.clock() >= line.turn.until:
            await line.some(timeout)
        return line.pop_many(max_messages)

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, else None.

        It activates the consumer, as every way to receive does; the broker is told in the background.
        """
        line = self._line
        line.connection.check_loop()
        if line.messages:
            return line.pop()
        if line.state is ConsumerState.NEW and not line.end.closed:
            line.start()
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
        line = self._line
        line.connection.check_loop()
        if timeout is not None:
            timeout = _checks.seconds("timeout", timeout)
        if not line.buffered or line.turn.clock() >= line.turn.until:
            await line.some(timeout)
        line.waiting.wake()  # the message is still there for another caller

    def put_back(self, messages: Iterable[Message]) -> None:
        """Give back messages that were taken and not handled: they are received again, in front of others.

        If the consumer is closed or paused they go to the queue's other consumers that want them, as what
        waited unseen does. Confirmed messages are left out.

        Args:
            messages: messages of this consumer, in the order of their delivery.
        """
        line = self._line
        line.connection.check_loop()
        messages = _checks.items("messages", messages, "bmq.Message")
        for each in messages:
            if _checks.choice("a message to put back", each, Message).consumer.queue is not self.queue:
                raise UsageError(f"{each!r} is of another queue, and cannot be put back here")
        line.put_back(messages)

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
        line = self._line
        line.raise_if_closed()
        if line.state is not ConsumerState.PAUSED:
            await line.subscriptions.pause(line)

    async def resume(self) -> None:
        """Go on after :meth:`pause`: tell the broker of the subscription again.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the next who receives asks again.

        Cancelling it leaves the consumer resumed; the next who receives tells the broker.
        """
        self._line.raise_if_closed()
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
        await self._line.open()
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
        await self._line.subscriptions.end(self._line)

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
        line = self._line
        line.end.check_open()
        before = line.definition
        expressions, complement = before.expressions, before.discard
        check_selector(selector)
        options = changed_options(before.options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        if selector is None:
            selector = before.selector
        else:
            selector, expressions, complement = compile_selector(selector, discard=complement is not None)
        definition = Definition(line, selector, expressions, options, complement)
        await line.subscriptions.redefine(line, definition)

    # what the queue and its messages call


#: The line of a consumer, for the modules of the client.
line_of: Callable[[Consumer], Line] = attrgetter("_line")


class _Messages:
    """One loop over the messages of a consumer."""

    __slots__ = ("_line", "_turn")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._turn = line.turn
        line.loops += 1
        line.connection.check_loop()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    def __del__(self) -> None:
        self._line.loops -= 1

    async def __anext__(self) -> Message:
        line, turn = self._line, self._turn
        while not line.messages or turn.clock() >= turn.until:
            if line.messages:
                await line.give_way()
                if line.messages:
                    break  # not when another loop was faster
            else:
                line.stop_if_closed()
                await line.arrival()
        return line.pop()


class _Batches:
    """One loop over batches of a consumer."""

    __slots__ = ("_limit", "_line", "_max_wait")

    def __init__(self, line: Line, limit: int, max_wait: float) -> None:
        self._line = line
        self._limit = limit
        self._max_wait = max_wait
        line.loops += 1
        line.connection.check_loop()

    def __aiter__(self) -> AsyncIterator[MessageBatch]:
        return self

    def __del__(self) -> None:
        self._line.loops -= 1

    async def __anext__(self) -> MessageBatch:
        line, turn = self._line, self._line.turn
        filled = not self._max_wait
        while not line.messages or not filled or turn.clock() >= turn.until:
            if not line.messages:
                line.stop_if_closed()
                await line.arrival()
                filled = not self._max_wait
            elif not filled:
                await self._fill()
                filled = True
            else:
                await line.give_way()
                if line.messages:
                    break  # not when another loop was faster
        return line.pop_many(self._limit)

    async def _fill(self) -> None:
        """Wait until a batch is full, its time is over, or somebody else has taken everything."""
        line = self._line
        wanted = min(self._limit, line.definition.options.max_unconfirmed_messages)
        try:
            async with asyncio.timeout(self._max_wait):
                while 0 < len(line.messages) < wanted and not line.over:
                    await line.arrival()
        except TimeoutError:
            pass
