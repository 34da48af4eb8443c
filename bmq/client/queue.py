"""Queues: posting, subscribing, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from bmq.client._deadline import within
from bmq.client.consumer import Consumer, properties_of
from bmq.client.handlers import Handlers
from bmq.client.message import Ack, Message, MessageBatch, PostReport, PutMessage
from bmq.client.posting import Poster, PostFuture, tagged
from bmq.errors import ConfigureQueueError, Error, QueueClosed, UsageError
from bmq.protocol.queue import QueueCore, SubscriptionOptions
from bmq.protocol.tables import QueueState
from bmq.wire.properties import PropertyInput
from bmq.wire.push import Push
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.driver import Driver
    from bmq.client.session import Session
    from bmq.subscriptions import Complement, Expression, Selector

__all__ = ["DEFAULT_MAX_UNCONFIRMED_BYTES", "DEFAULT_MAX_UNCONFIRMED_MESSAGES", "Queue"]

DEFAULT_MAX_UNCONFIRMED_MESSAGES = 1000
DEFAULT_MAX_UNCONFIRMED_BYTES = 33_554_432
# The SDKs' range: half of what the field holds, so that sums do not overflow.
_MAX_PRIORITY = 2**30
_MIN_PRIORITY = -(2**30)


def _compile(
    selector: Selector, *, discard: bool, strict: bool = True
) -> tuple[Selector, list[Expression | None], Complement | None]:
    """Return a selector, the expressions that mean it, and how to get what it does not want, if asked."""
    if isinstance(selector, str) and not selector:
        selector = None
    if selector is None and not discard:
        return None, [None], None
    # Imported by the first subscription with a filter, not by everybody who only posts.
    from bmq.subscriptions import Expression, complement, subscriptions_for

    if isinstance(selector, str):
        selector = Expression(selector, strict=strict)
    return selector, subscriptions_for(selector), complement(selector) if discard else None


def subscription_options(messages: int, size: int, priority: int) -> SubscriptionOptions:
    """Check limits and priority.

    Raises:
        UsageError: one is out of its range.
    """
    if messages < 0 or size < 0:
        raise UsageError("max_unconfirmed_messages and max_unconfirmed_bytes cannot be negative")
    if not _MIN_PRIORITY <= priority <= _MAX_PRIORITY:
        raise UsageError(f"a priority is {_MIN_PRIORITY} to {_MAX_PRIORITY}, not {priority}")
    return SubscriptionOptions(messages, size, priority)


class Queue:
    """An open queue. Made by :meth:`bmq.Session.open_queue`.

    Iterating over it receives everything, through its default subscription; :meth:`subscribe` makes
    consumers that receive what their expression selects.

    Attributes:
        session: the session it was opened in.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        uri: QueueUri,
        options: SubscriptionOptions,
        *,
        default_subscription: bool,
    ) -> None:
        self.session = session
        self.driver = driver
        self._uri = uri
        self._options = options
        self._default_subscription = default_subscription
        self._consumers: list[Consumer] = []
        self._default: Consumer | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._syncing: set[asyncio.Future[None]] = set()
        self._shut = False
        #: Who is handling messages of this queue.
        self.handlers = Handlers()
        #: Messages delivered and neither confirmed nor handed back.
        self.outstanding = 0
        # Of those, the ones no consumer is left for.
        self._stranded = 0
        self.core: QueueCore
        self._poster: Poster

    def attach(self, core: QueueCore) -> None:
        """Take the protocol's side of this queue."""
        self.core = core
        self._poster = Poster(self.driver, core)
        if core.readable:
            self._default = Consumer(self, None, [None], self._options, None)
            if self._default_subscription:
                self._consumers.append(self._default)
                self._set_desired()

    # what it is

    @property
    def uri(self) -> str:
        """The URI it was opened as."""
        return str(self._uri)

    @property
    def state(self) -> QueueState:
        """Where its state machine is."""
        return self.core.state

    @property
    def closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._shut or self.core.state is QueueState.CLOSED or self.core.closing is not None

    @property
    def unacked(self) -> int:
        """How many posts have no outcome yet."""
        return self.core.unacked

    @property
    def subscriptions(self) -> list[Consumer]:
        """The consumers whose subscriptions the broker has."""
        applied = set(self.core.applied)
        return [consumer for consumer in self._consumers if not applied.isdisjoint(consumer.cores)]

    def __repr__(self) -> str:
        return f"<bmq.Queue {self.uri}, {self.core.state.value}>"

    # posting

    async def post(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: bytes | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Post a message and wait for its acknowledgement.

        Waits for room first, while the window of unacknowledged posts is full. While the connection is down
        the message is kept, and sent once it is restored.

        Args:
            payload: 1 byte to 64 MiB.
            properties: values by name: bool, int, str, bytes, or :class:`bmq.Typed`.
            tags: tags that a :class:`bmq.TagFilter` selects by; each becomes a property.
            guid: 16 bytes to use as the GUID instead of generated ones; the broker drops a second message
                with the same GUID within its deduplication window.
            timeout: seconds to wait for the outcome; None leaves it to the queue's deduplication time, after
                which a post that stayed unanswered fails.

        Raises:
            PostError: the broker did not accept the message, or never answered.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
            TimedOut: no outcome in time; the message may still be accepted.

        Cancelling it while it waits for room posts nothing; after that the message stays posted, and only its
        outcome is lost to this caller.
        """
        if timeout is not None:
            async with within(timeout, f"a post to {self.uri} had no outcome"):
                return await self.post(payload, properties=properties, tags=tags, guid=guid)
        driver = self.driver
        while not driver.takes_posts:
            await driver.room()
        return await self._poster.post(payload, tagged(properties, tags) if tags else properties, guid)

    def post_nowait(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: bytes | None = None,
    ) -> PostFuture:
        """Post a message without waiting.

        It leaves with everything else posted in the same turn of the event loop, in one event.

        Returns:
            A future with the :class:`bmq.Ack`, or the :class:`bmq.PostError`.

        Raises:
            BufferFull: the window of unacknowledged posts is full; nothing was posted.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
        """
        if not self.driver.has_room:
            raise self.driver.buffer_full()
        return self._poster.post(payload, tagged(properties, tags) if tags else properties, guid)

    async def post_many(
        self,
        items: Iterable[bytes | PutMessage] | AsyncIterable[bytes | PutMessage],
    ) -> PostReport:
        """Post many messages, batched and with backpressure, and wait for every outcome.

        Args:
            items: payloads or :class:`bmq.PutMessage`, from an iterable or an async iterable.

        Returns:
            What became of them; ``report.raise_for_failures()`` raises the first failure.

        Raises:
            InvalidPayload, InvalidProperty: an item is not legal; those before it are posted.
            QueueClosed, SessionClosed: the queue was closed meanwhile.

        Cancelling it stops taking items; those already taken stay posted.
        """
        return await self._poster.post_many(items)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every post made so far has its outcome.

        Args:
            timeout: seconds to wait; None waits as long as it takes (a post that stays unanswered fails after
                the queue's deduplication time).

        Raises:
            TimedOut: some posts have no outcome yet.

        Cancelling it changes nothing.
        """
        async with within(timeout, f"posts to {self.uri} had no outcome"):
            await self.driver.flushed(self)

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._default_consumer().__aiter__()

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message of the default subscription; see :meth:`bmq.Consumer.receive`."""
        return await self._default_consumer().receive(timeout)

    def receive_nowait(self) -> Message | None:
        """Return the next message of the default subscription if one is there, else None."""
        return self._default_consumer().receive_nowait()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for messages of the default subscription; see :meth:`bmq.Consumer.receive_many`."""
        return await self._default_consumer().receive_many(max_messages, timeout)

    def batches(self, max_messages: int = 1000) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of the default subscription; see :meth:`bmq.Consumer.batches`."""
        return self._default_consumer().batches(max_messages)

    def _default_consumer(self) -> Consumer:
        if not self.core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        assert self._default is not None
        return self._default

    # subscriptions

    def subscribe(
        self,
        selector: Selector = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        discard_unmatched: bool = False,
        strict: bool = True,
    ) -> Consumer:
        """Make a consumer for the messages that match.

        Nothing is sent before ``async with``, ``await`` or receiving activates it. While the queue itself is
        not being iterated over, its default subscription steps aside for this one; iterating over the queue
        brings it back, next to the others.

        Args:
            selector: what to receive: an expression as text or :class:`bmq.Expression`, a filter built with
                ``bmq.P``, a :class:`bmq.TagFilter` or :class:`bmq.CmqTags`; None or "" for everything. One
                that exceeds the limits of an expression becomes several where that means the same.
            priority: the highest matching priority gets a message; None for the queue's.
            max_unconfirmed_messages: how many delivered messages may be unconfirmed; None for the queue's.
            max_unconfirmed_bytes: how many bytes of them; None for the queue's.
            discard_unmatched: confirm unseen whatever does not match, instead of leaving it in the queue for
                others. It takes *all* of that, what other consumers want included: only for a queue (or an
                appId) whose consumers all have this filter.
            strict: False sends an expression that does not compile as it is; the broker then delivers
                everything.

        Raises:
            UsageError: the queue was not opened for reading, or a limit is out of its range.
            InvalidExpression: the expression is not legal.
        """
        if not self.core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        options = self._derive(self._options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        selector, expressions, discard = _compile(selector, discard=discard_unmatched, strict=strict)
        return Consumer(self, selector, expressions, options, discard)

    async def activate(self, consumer: Consumer) -> None:
        """Add a consumer's subscription to the stream; see :meth:`bmq.Consumer.open`."""
        self.driver.check_loop()
        if consumer in self._consumers:
            return
        self._check_open()
        if consumer.closed:
            raise QueueClosed(f"{consumer!r} is closed; subscribe again")
        aside = self._default if consumer is not self._default else None
        if aside is not None and (aside.in_use or aside not in self._consumers):
            aside = None
        self._consumers.append(consumer)
        if aside is not None:
            self._consumers.remove(aside)
        self._set_desired()
        try:
            await self._configure()
        except BaseException as error:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            if aside is not None and aside not in self._consumers:
                self._consumers.append(aside)
            consumer.active = False
            self._set_desired()
            if not isinstance(error, ConfigureQueueError):
                self._sync()
            if not self.closed:  # it may have been given messages all the same
                self.reroute(consumer.take_back())
            raise
        if aside is not None:
            self.reroute(aside.take_back())

    async def deactivate(self, consumer: Consumer) -> None:
        """Take a consumer's subscription out of the stream; see :meth:`bmq.Consumer.close`."""
        self.driver.check_loop()
        if consumer not in self._consumers:
            consumer.shut(None)
            return
        self._consumers.remove(consumer)
        try:
            if not self.closed:
                self._set_desired()
                await self._configure()
        except (QueueClosed, ConfigureQueueError):
            pass  # closed, or refused: what the broker still sends for it is handed to others
        finally:
            self._retire(consumer)

    async def reconfigure(
        self,
        consumer: Consumer,
        selector: Selector,
        priority: int | None,
        max_unconfirmed_messages: int | None,
        max_unconfirmed_bytes: int | None,
    ) -> None:
        """Change a consumer's subscription; see :meth:`bmq.Consumer.configure`."""
        self._check_open()
        before = consumer.definition
        old_selector, old_expressions, old_options, old_discard = before
        options = self._derive(old_options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        if selector is None:
            consumer.redefine(old_selector, old_expressions, options, old_discard)
        else:
            selector, expressions, discard = _compile(selector, discard=old_discard is not None)
            consumer.redefine(selector, expressions, options, discard)
        if consumer not in self._consumers:
            return
        self._set_desired()
        try:
            await self._configure()
        except Exception:
            consumer.redefine(*before)
            self._sync()
            raise

    def _derive(
        self, base: SubscriptionOptions, priority: int | None, messages: int | None, size: int | None
    ) -> SubscriptionOptions:
        return subscription_options(
            base.max_unconfirmed_messages if messages is None else messages,
            base.max_unconfirmed_bytes if size is None else size,
            base.priority if priority is None else priority,
        )

    async def _configure(self) -> None:
        await self.driver.configure(self.core)
        if self._stranded:  # handing back had to wait for this
            self._hand_back()

    def _set_desired(self) -> None:
        if self._default is not None:
            self._default.active = False
        for consumer in self._consumers:
            consumer.active = True
        self.core.desired = [core for consumer in self._consumers for core in consumer.cores]

    def _sync(self) -> None:
        """The stream is to have what the consumers say, whatever became of the last attempt."""
        if not self.closed:
            self._set_desired()
            syncing = asyncio.ensure_future(self._configure())
            self._syncing.add(syncing)
            syncing.add_done_callback(self._synced)

    def _synced(self, syncing: asyncio.Future[None]) -> None:
        self._syncing.discard(syncing)
        if not syncing.cancelled():
            syncing.exception()  # nobody asked for it: the next change will tell

    # messages whose consumer has left

    def _retire(self, consumer: Consumer) -> None:
        consumer.shut(None)
        left = consumer.take_back()
        if left and not self.closed:
            self.reroute(left)

    def reroute(self, messages: list[Push]) -> None:
        """Hand messages of a consumer that has left to another one that wants them, or back to the broker.

        The protocol knows no other way to give a message back than to close the reading side and open it
        again; that waits until the application holds no message of this queue. A queue that is being closed
        hands everything back anyway.
        """
        if self._shut:
            return
        self.outstanding -= len(messages)
        ranked = sorted(self._consumers, key=lambda consumer: -consumer.options.priority)
        limit = self.driver.options.max_message_size
        for message in messages:
            properties = properties_of(message, limit)
            for consumer in ranked:
                if not consumer.closed and consumer.takes(properties):
                    consumer.deliver([message])
                    break
            else:
                self.outstanding += 1
                self._stranded += 1
        self._hand_back()

    def _hand_back(self) -> None:
        if self._shut:
            return
        buffered = sum(consumer.buffered for consumer in self._consumers)
        idle = self.outstanding - buffered <= self._stranded
        if self._stranded and idle and not self.core.at_most_once and self.driver.release(self.core):
            self.forget_delivered()

    def forget_delivered(self) -> None:
        """What was delivered and not seen by the application will be delivered again: drop it."""
        self.outstanding = self._stranded = 0
        if not self.core.at_most_once:
            for consumer in self._consumers:
                consumer.take_back()

    def confirm(self, guid: bytes) -> None:
        """Confirm a message."""
        driver = self.driver
        driver.wake_here()
        self.outstanding -= 1
        driver.core.confirm(self.core, guid)
        if self._stranded:
            self._hand_back()

    def confirm_many(self, guids: list[bytes]) -> None:
        """Confirm several messages."""
        self.driver.wake_here()
        self.outstanding -= len(guids)
        self.driver.core.confirm_many(self.core, guids)
        if self._stranded:
            self._hand_back()

    async def configure(
        self,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change the options of the queue and of its default subscription; None leaves one as it is.

        Consumers made by :meth:`subscribe` keep theirs; see :meth:`bmq.Consumer.configure`.

        Raises:
            ConfigureQueueError: the broker refused; the previous options stand.
            RequestTimeout: no answer in time; the previous options are assumed.
            QueueClosed: the queue is closed.
            UsageError: an option is out of its range, or the queue was not opened for reading.

        Cancelling it leaves the outcome open: the broker may or may not have the new options.
        """
        if not self.core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: there is nothing to configure")
        self._check_open()
        before = self._options
        options = self._derive(before, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        self._options = options
        default = self._default
        if default is None:
            return
        definition = default.definition
        default.redefine(None, [None], options, None)
        if default not in self._consumers:
            return
        self._set_desired()
        try:
            await self._configure()
        except Exception:
            self._options = before
            default.redefine(*definition)
            self._set_desired()
            raise

    # life

    async def close(self, timeout: float | None = None) -> None:
        """Close the queue in good order.

        Delivery stops; handlers in flight (inside ``async with message``, other than the one that calls this)
        finish; posts get their outcomes; the queue is closed.

        Idempotent. Works while disconnected.

        Args:
            timeout: seconds for all of it; None for the session's ``close_timeout``.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed all the same. Posts that
                still have no outcome fail with :class:`bmq.PostError`.

        Cancelling it leaves the closing going on in the background.
        """
        self.driver.check_loop()
        if self._close_task is None or self._close_task.cancelled():
            if self.core.state is QueueState.CLOSED:
                return
            closing = self.driver.close_queue(self, timeout, asyncio.current_task())
            self._close_task = self.driver.keep(closing)
        await asyncio.shield(self._close_task)

    def shut(self, error: Error | None) -> None:
        """The queue is closing or closed: end its consumers."""
        self._shut = True
        consumers = set(self._consumers)
        if self._default is not None:
            consumers.add(self._default)
        for consumer in consumers:
            consumer.shut(error)
            consumer.take_back()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self.driver.check_open()
        if self.closed:
            raise QueueClosed(f"queue {self.uri} is closed")
