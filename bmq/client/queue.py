"""Queues: posting, subscribing, closing."""

from __future__ import annotations

import asyncio
import heapq
import logging
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING

from bmq.client._deadline import within
from bmq.client._handlers import Handlers
from bmq.client._posting import Poster, PostFuture, tagged
from bmq.client.consumer import Consumer, Definition, Numbered, Places, numbered, properties_of
from bmq.client.message import Ack, Message, MessageBatch, PostReport, PutMessage
from bmq.errors import ConfigureQueueError, Error, QueueClosed, RequestTimeout, UsageError
from bmq.protocol.client.events import UnclaimedMessages
from bmq.protocol.client.queue import QueueCore, SubscriptionOptions
from bmq.protocol.client.tables import QueueState
from bmq.wire.guid import guid_from_text
from bmq.wire.properties import PropertyInput
from bmq.wire.push import Push
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client._driver import Driver
    from bmq.client.session import Session
    from bmq.subscriptions import Complement, Expression, Selector

__all__ = ["DEFAULT_MAX_UNCONFIRMED_BYTES", "DEFAULT_MAX_UNCONFIRMED_MESSAGES", "Queue"]

logger = logging.getLogger("bmq.client")

DEFAULT_MAX_UNCONFIRMED_MESSAGES = 1000
DEFAULT_MAX_UNCONFIRMED_BYTES = 33_554_432
# The SDKs' range: half of what the field holds, so that sums do not overflow.
_MAX_PRIORITY = 2**30
_MIN_PRIORITY = -(2**30)
# Messages nobody here wants are mentioned once they have waited this long, in seconds: not while one consumer
# makes way for the next, or everything is being closed.
_MENTION_UNCLAIMED_AFTER = 3.0

_number = itemgetter(0)


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

    Iterating over it receives everything, through its default subscription, which begins then and stays until
    the queue is closed; :meth:`subscribe` makes consumers that receive what their expression selects.

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
        default_subscription: bool | None,
    ) -> None:
        self.session = session
        self._driver = driver
        self._uri = uri
        self._options = options
        self._default_subscription = default_subscription
        self._consumers: list[Consumer] = []
        self._default: Consumer | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._syncing: set[asyncio.Future[None]] = set()
        self._over = False
        # Who is handling messages of this queue.
        self._handlers = Handlers()
        # Messages no consumer here wants, in the order of their delivery, and what mentions them.
        self._unclaimed: list[Numbered] = []
        self._mention: asyncio.TimerHandle | None = None
        self._core: QueueCore
        self._poster: Poster

    def _attach(self, core: QueueCore) -> None:
        """Take the protocol's side of this queue."""
        self._core = core
        self._poster = Poster(self._driver, core)
        if core.readable and self._default_subscription is not False:
            self._default = Consumer(self, None, [None], self._options, None)
            if self._default_subscription:
                self._add(self._default)

    # what it is

    @property
    def uri(self) -> str:
        """The URI it was opened as."""
        return str(self._uri)

    @property
    def state(self) -> QueueState:
        """Where its state machine is."""
        return self._core.state

    @property
    def closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._over or self._core.state is QueueState.CLOSED or self._core.closing is not None

    @property
    def unacked(self) -> int:
        """How many posts have no outcome yet."""
        return self._core.unacked

    @property
    def subscriptions(self) -> list[Consumer]:
        """The consumers whose subscriptions the broker has."""
        applied = set(self._core.applied)
        return [each for each in self._consumers if not applied.isdisjoint(each._definition.cores)]

    @property
    def readable(self) -> bool:
        """Whether it was opened for reading."""
        return self._core.readable

    @property
    def writable(self) -> bool:
        """Whether it was opened for writing."""
        return self._core.writable

    @property
    def unclaimed(self) -> int:
        """How many delivered messages no consumer here wants.

        They were delivered to a consumer that has left since. The next one that wants them gets them, in
        front of what comes later; else they are delivered to others once this queue is closed.
        """
        return len(self._unclaimed)

    def __repr__(self) -> str:
        return f"<bmq.Queue {self.uri}, {self._core.state.value}>"

    # posting

    async def post(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Post a message and wait for its acknowledgement.

        Waits for room first, while the window of unacknowledged posts is full. While the connection is down
        the message is kept, and sent once it is restored.

        Args:
            payload: 1 byte to 64 MiB.
            properties: values by name: bool, int, str, bytes, or :class:`bmq.Typed`.
            tags: tags that a :class:`bmq.TagFilter` selects by; each becomes a property.
            guid: the GUID to use instead of a generated one, as :attr:`bmq.Message.guid` has them: 32
                upper-case hexadecimal digits. The broker drops a second message with the same GUID within
                its deduplication window.
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
        driver = self._driver
        while not driver.takes_posts:
            await driver.room()
        return await self._poster.post(payload, tagged(properties, tags) if tags else properties, guid)

    def post_nowait(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
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
        if not self._driver.has_room:
            raise self._driver.buffer_full()
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
            await self._driver.flushed(self)

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._default_consumer().__aiter__()

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message of the default subscription; see :meth:`bmq.Consumer.receive`."""
        return await self._default_consumer().receive(timeout)

    def receive_nowait(self) -> Message | None:
        """Return the next message of the default subscription if one is there, else None.

        The first call begins the default subscription, in the background.
        """
        return self._default_consumer().receive_nowait()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for messages of the default subscription; see :meth:`bmq.Consumer.receive_many`."""
        return await self._default_consumer().receive_many(max_messages, timeout)

    def batches(self, max_messages: int = 1000) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of the default subscription; see :meth:`bmq.Consumer.batches`."""
        return self._default_consumer().batches(max_messages)

    def _default_consumer(self) -> Consumer:
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        if self._default is None:
            raise UsageError(
                f"queue {self.uri} was opened with default_subscription=False: receive from the consumers "
                "that queue.subscribe(...) makes, or leave default_subscription out"
            )
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

        Nothing is sent before ``async with``, ``await`` or receiving activates it. It stands next to the
        others of the queue, the default subscription among them if somebody has received from the queue
        itself.

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
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        options = self._derive(self._options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        selector, expressions, discard = _compile(selector, discard=discard_unmatched, strict=strict)
        return Consumer(self, selector, expressions, options, discard)

    def _begin(self, consumer: Consumer) -> asyncio.Future[None]:
        """Add a consumer's subscription to the stream; return what tells when the broker has agreed."""
        self._check_open()
        if consumer.closed:
            raise QueueClosed(f"{consumer!r} is closed; subscribe again")
        asked = self._driver.configure(self._core)
        self._add(consumer)
        self._place_unclaimed()
        return asked

    async def _begun(self, consumer: Consumer, asked: asyncio.Future[None]) -> None:
        """Wait until the broker has agreed; else take the subscription back."""
        try:
            await asked
        except BaseException as error:
            if consumer in self._consumers:
                self._remove(consumer)
            if not isinstance(error, ConfigureQueueError):
                self._sync()
            self._place(consumer._take_back())  # it may have been given messages all the same
            raise

    async def _deactivate(self, consumer: Consumer) -> None:
        """Take a consumer's subscription out of the stream; see :meth:`bmq.Consumer.close`."""
        self._driver.check_loop()
        consumer._shut(None)
        if consumer not in self._consumers:
            return
        self._remove(consumer)
        # At once: what still arrives for it was delivered later.
        self._place(consumer._take_back())
        try:
            if not self.closed:
                await self._configure()
        except QueueClosed:
            pass
        except ConfigureQueueError:
            self._sync()  # refused because of another change; this one has still to be made
        except RequestTimeout:
            self._sync()
            raise

    async def _reconfigure(
        self,
        consumer: Consumer,
        selector: Selector,
        priority: int | None,
        max_unconfirmed_messages: int | None,
        max_unconfirmed_bytes: int | None,
    ) -> None:
        """Change a consumer's subscription; see :meth:`bmq.Consumer.configure`."""
        self._check_open()
        before = consumer._definition
        options = self._derive(before.options, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        expressions, complement = before.expressions, before.discard
        if selector is None:
            selector = before.selector
        else:
            selector, expressions, complement = _compile(selector, discard=complement is not None)
        await self._redefine(consumer, consumer._define(selector, expressions, options, complement))

    async def _redefine(self, consumer: Consumer, definition: Definition) -> None:
        """Make a consumer's subscription another one; it stays as the broker has it when that fails."""
        consumer._definition = definition
        if consumer not in self._consumers:
            consumer._agreed = definition
            return
        self._want()
        self._place_unclaimed()
        try:
            await self._configure()
        except Exception as error:
            consumer._definition = consumer._agreed
            self._want()
            if not isinstance(error, ConfigureQueueError):
                self._sync()
            raise
        consumer._agreed = definition

    def _derive(
        self, base: SubscriptionOptions, priority: int | None, messages: int | None, size: int | None
    ) -> SubscriptionOptions:
        return subscription_options(
            base.max_unconfirmed_messages if messages is None else messages,
            base.max_unconfirmed_bytes if size is None else size,
            base.priority if priority is None else priority,
        )

    async def _configure(self) -> None:
        await self._driver.configure(self._core)

    def _add(self, consumer: Consumer) -> None:
        consumer._begun = True
        self._consumers.append(consumer)
        self._want()

    def _remove(self, consumer: Consumer) -> None:
        consumer._begun = False
        self._consumers.remove(consumer)
        self._want()

    def _want(self) -> None:
        """The stream is to have what the consumers say."""
        self._core.desired = [core for each in self._consumers for core in each._definition.cores]

    def _sync(self) -> None:
        """Have the stream be what the consumers say, whatever became of the last attempt."""
        if not self.closed:
            self._want()
            syncing = asyncio.ensure_future(self._configure())
            self._syncing.add(syncing)
            syncing.add_done_callback(self._synced)

    def _synced(self, syncing: asyncio.Future[None]) -> None:
        self._syncing.discard(syncing)
        if not syncing.cancelled():
            syncing.exception()  # nobody asked for it: the next change will tell

    # messages without a consumer of their own

    def _deliver(self, messages: list[Push], places: Places) -> None:
        """Take messages that have just arrived, for a consumer that has left, or for one nobody knows."""
        self._place(numbered(messages, places))

    def _place(self, messages: list[Numbered]) -> None:
        """Hand messages to consumers that want them, where they belong in their lines; keep the others.

        The protocol has no way to give one message back. Closing the reading side gives all of them back, but
        a broker delivers those first, and nothing else until somebody takes them: consumers that do not want
        them would starve. So they stay here, unconfirmed, until one wants them or the queue closes.
        """
        if self._over or not messages:
            return
        ranked = sorted(self._consumers, key=lambda each: -each.options.priority)
        limit = self._driver.options.max_message_size
        shares: dict[Consumer, list[Numbered]] = {}
        unwanted: list[bytes] = []
        left: list[Numbered] = []
        for each in messages:
            properties = properties_of(each[1], limit)
            for consumer in ranked:
                if consumer._takes(properties):
                    shares.setdefault(consumer, []).append(each)
                    break
            else:
                if any(consumer._discards(properties) for consumer in ranked):
                    unwanted.append(each[1][2])
                else:
                    left.append(each)
        for consumer, share in shares.items():
            consumer._merge(share)
        if unwanted:
            self._confirm_many(unwanted)
        if left and not self._core.at_most_once:
            self._unclaimed = list(heapq.merge(self._unclaimed, left, key=_number))
        if not self._unclaimed:
            self._mention_unclaimed(False)
        elif self._mention is None:
            self._mention_unclaimed(True)

    def _place_unclaimed(self) -> None:
        """See whether somebody wants now what nobody wanted so far."""
        messages, self._unclaimed = self._unclaimed, []
        self._place(messages)

    def _mention_unclaimed(self, later: bool) -> None:
        """Have the application told in a while that there are unclaimed messages; or not any more."""
        if self._mention is not None:
            self._mention.cancel()
            self._mention = None
        if later:
            # The event loop does not keep the queue alive.
            self._mention = self._driver.loop.call_later(
                _MENTION_UNCLAIMED_AFTER, _mention, weakref.ref[Queue](self)
            )

    def _forget_delivered(self) -> None:
        """What was delivered and not seen by the application will be delivered again: drop it."""
        if not self._core.at_most_once:
            for consumer in self._consumers:
                consumer._clear()
            self._unclaimed.clear()
            self._mention_unclaimed(False)

    # confirming

    def confirm(self, *messages: Message | str) -> None:
        """Confirm messages, also ones that were delivered to another session.

        A GUID is enough: what a program that died has noted as done can be confirmed by its successor. The
        broker ignores a GUID that it does not know, or that was confirmed before.

        Args:
            messages: messages, or their GUIDs as :attr:`bmq.Message.guid` has them.

        Raises:
            UsageError: one is neither, or the queue was not opened for reading; nothing is confirmed.
        """
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: there is nothing to confirm")
        guids: list[bytes] = []
        for each in messages:
            if isinstance(each, Message):
                if each.subscription.queue is not self:
                    raise UsageError(f"{each!r} is of another queue: message.confirm() knows which")
                if not each.confirmed:
                    guids.append(each._push[2])
            else:
                guids.append(guid_from_text(each))
        for each in messages:
            if isinstance(each, Message):
                each.confirmed = True
        self._confirm_many(guids)

    def _confirm(self, guid: bytes) -> None:
        """Confirm a message."""
        driver = self._driver
        driver.wake_here()
        driver.core.confirm(self._core, guid)

    def _confirm_many(self, guids: list[bytes]) -> None:
        """Confirm several messages."""
        self._driver.wake_here()
        self._driver.core.confirm_many(self._core, guids)

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
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: there is nothing to configure")
        self._check_open()
        before = self._options
        options = self._derive(before, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        self._options = options
        default = self._default
        if default is None:
            return
        try:
            await self._redefine(default, default._define(None, [None], options, None))
        except Exception:
            self._options = default.options
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
        self._driver.check_loop()
        if self._close_task is None or self._close_task.cancelled():
            if self._core.state is QueueState.CLOSED:
                return
            closing = self._driver.close_queue(self, timeout, asyncio.current_task())
            self._close_task = self._driver.keep(closing)
        await asyncio.shield(self._close_task)

    def _shut(self, error: Error | None) -> None:
        """The queue is closing or closed: end its consumers."""
        self._over = True
        consumers = set(self._consumers)
        if self._default is not None:
            consumers.add(self._default)
        for consumer in consumers:
            consumer._shut(error)
            consumer._clear()
        self._unclaimed.clear()
        self._mention_unclaimed(False)

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._driver.check_open()
        if self.closed:
            raise QueueClosed(f"queue {self.uri} is closed")


def _mention(queue: weakref.ref[Queue]) -> None:
    if (alive := queue()) is not None and alive.unclaimed:
        logger.warning(
            "%s holds %d messages that were delivered to a consumer which has left, and that no other "
            "consumer here wants: they stay unconfirmed until one does, or the queue is closed",
            alive.uri,
            alive.unclaimed,
        )
        alive._driver.publish(UnclaimedMessages(alive.uri, alive.unclaimed))
