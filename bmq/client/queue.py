# SPDX-License-Identifier: Apache-2.0
"""Queues: posting, subscribing, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from bmq import _checks
from bmq._pace import paced
from bmq._renamed import renamed
from bmq.client._deadline import within
from bmq.client._definition import Definition, changed_options
from bmq.client._end import QueueEnd
from bmq.client._line import Line
from bmq.client._open_queue import OpenQueue
from bmq.client._posting import (
    NO_TAGS,
    ObservedPoster,
    Poster,
    PostFuture,
    as_bytes,
    checked_properties,
    completed,
)
from bmq.client._shortcuts import group_of, tables_of, typed_queue
from bmq.client.consumer import Consumer, Subscription, line_for
from bmq.client.message import Ack, GuidsOf, Message, MessageBatch, PostReport, PutMessage, line_of
from bmq.client.stats import QueueStats, queue_stats
from bmq.engine.room import Want
from bmq.errors import InvalidArgument, UsageError
from bmq.protocol.client.queue import QueueState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.constants import Compression
from bmq.wire.control import QueueFlags
from bmq.wire.guid import guid_from_text
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client._shortcuts import Codec, Group, GroupOptions, Tables, TablesOptions, TypedQueue
    from bmq.client.interceptors import Hooks
    from bmq.client.session import Session
    from bmq.engine.driver import Driver
    from bmq.subscriptions import Selector
    from bmq.wire.table import EncodedPosts

__all__ = ["DEFAULT_MAX_UNCONFIRMED_BYTES", "DEFAULT_MAX_UNCONFIRMED_MESSAGES", "Queue"]

T = TypeVar("T")

DEFAULT_MAX_UNCONFIRMED_MESSAGES = 1000
DEFAULT_MAX_UNCONFIRMED_BYTES = 33_554_432
# A deadline travels in milliseconds: this many seconds are three thousand years.
_LONGEST_REQUEST = 1e11


#: Posts a request to a queue and waits for the reply; see :meth:`Queue.request`.
Request: TypeAlias = Callable[
    ["Queue", bytes, Mapping[str, PropertyInput], float, "str | None"], Awaitable[Message]
]


@renamed
class Queue(OpenQueue):
    """An open queue. Made by :meth:`bmq.Session.open_queue`.

    Iterating over it receives everything, through its default subscription, which begins then.
    :meth:`subscribe` makes consumers that receive what their expression selects. A consumer that begins after
    the program has left a loop over the queue takes over: messages that the default subscription holds go to
    the consumers that want them, and the others wait for the next loop, see :attr:`unclaimed`.

    Attributes:
        session: the session it was opened in.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver[QueueEnd],
        hooks: Hooks,
        request: Request,
        uri: QueueUri,
        flags: QueueFlags,
        options: SubscriptionOptions,
        *,
        default_subscription: bool | None,
        subscriptions: Iterable[Subscription],
        suspends: bool,
        compression: Compression | None,
        delay_queue_uri: str,
        opened: asyncio.Future[None],
        deadline: float,
    ) -> None:
        self.session = session
        self._delay_queue_uri = delay_queue_uri
        self._end = end = QueueEnd(driver, uri, hooks, options)
        end.queue = self
        self._request = request
        if flags & QueueFlags.READ and default_subscription is not False:
            end.default = Line(end, None, [None], options, None)
            Consumer(self, end.default)
            if default_subscription:
                end.subscriptions.add(end.default)
        for subscription in subscriptions:
            line = line_for(subscription, end, options)
            Consumer(self, line)
            end.subscriptions.add(line)
        core = driver.core.open_queue(
            uri,
            flags,
            end.subscriptions,
            opened,
            end.connection.now(),
            deadline,
            subscriptions=end.subscriptions.wanted(),
            suspends=suspends,
        )
        end.opened(core)
        self._core = core
        self._driver = driver
        self._connection = driver.connection
        self._room = driver.flow.room
        self._poster = (
            ObservedPoster(driver, core, compression, self, hooks)
            if hooks.posting
            else Poster(driver, core, compression)
        )

    # what it is

    @property
    def uri(self) -> str:
        """The URI it was opened as."""
        return self._end.uri

    @property
    def delay_queue_uri(self) -> str:
        """The URI of the queue where messages posted with ``delay`` or ``not_before`` wait."""
        return self._delay_queue_uri

    @property
    def state(self) -> QueueState:
        """The state it is in."""
        return self._core.state

    @property
    def closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._end.closed

    @property
    def unacked(self) -> int:
        """How many posts have no outcome yet."""
        return self._core.unacked

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers whose subscriptions the broker has."""
        return self._end.subscriptions.committed

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

        Most often they were delivered to a consumer that has left since. The next consumer that wants them
        gets them, in front of what comes later. Otherwise they are delivered to others once this queue is
        closed. They count in ``buffered_messages`` and ``buffered_bytes`` of :meth:`stats`.
        """
        return len(self._end.subscriptions.unclaimed)

    def stats(self) -> QueueStats:
        """Return a snapshot of what was posted to the queue and received from it."""
        end = self._end
        end.confirming.finish()
        return queue_stats(end.core, end.counts, end.in_line)

    def __repr__(self) -> str:
        return f"<bmq.Queue {self.uri}, {self._core.state.value}>"

    # posting

    async def post(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = NO_TAGS,
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
        delay: float | None = None,
        not_before: datetime | float | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Post a message and wait for its acknowledgement.

        Waits for room first, while the window of unacknowledged posts is full. While the connection is down
        the message is kept, and sent once it is restored.

        One with ``delay`` or ``not_before`` is posted to the queue where it waits, see ``delay_queue_uri`` of
        :meth:`bmq.Session.open_queue`, and acknowledged when it is stored there. A mover
        (:meth:`bmq.App.mover`, or ``bmq mover``) passes it on when it is due; without one it stays there.

        Args:
            payload: 1 byte to 64 MiB.
            properties: values by name: bool, int, str, bytes, or :class:`bmq.Typed`.
            tags: tags that a :class:`bmq.TagFilter` selects by; each becomes a property.
            guid: the GUID to use instead of a generated one, as :attr:`bmq.Message.guid` has them: 32
                upper-case hexadecimal digits. The broker drops a second message with the same GUID within
                its deduplication window.
            compression: how the payload is compressed; None for the queue's default.
            key: what must stay in order: messages of one key go to one member of a consumer group, see
                :meth:`group`. It becomes the property ``bmq_bucket``.
            delay: seconds until it is due.
            not_before: when it is due: a datetime with a time zone, or seconds since 1970.
            timeout: seconds to wait for the outcome; None leaves it to the queue's deduplication time, after
                which a post that stayed unanswered fails.

        Raises:
            PostError: the broker did not accept the message, or never answered.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
            OpenQueueError, RequestTimeout: the queue where it is to wait could not be opened.
            UsageError: ``delay`` or ``not_before`` is out of its range, or beyond the session's
                ``longest_delay``.
            TimedOut: no outcome in time; the message may still be accepted.

        Cancelling it while it waits for room posts nothing; after that the message stays posted, and only its
        outcome is lost to this caller.
        """
        if timeout is not None:
            async with within(timeout, f"a post to {self.uri} had no outcome"):
                return await self.post(
                    payload,
                    properties=properties,
                    tags=tags,
                    guid=guid,
                    compression=compression,
                    key=key,
                    delay=delay,
                    not_before=not_before,
                )
        if tags is not NO_TAGS or key is not None:
            properties = completed(properties, tags, key)
        if delay is not None or not_before is not None:
            queue, properties = await self._delaying(properties, delay, not_before)
            return await queue.post(payload, properties=properties, guid=guid, compression=compression)
        connection = self._connection
        # As Driver.room() does, which is asked only when it may have to wait.
        if self._room.lines or not (connection.writable and connection.core.posts.has_room):
            await self._driver.room(self._core, Want(1, 1, len(as_bytes(payload))))
        return await self._poster.post(payload, properties, guid, compression)

    async def _delaying(
        self,
        properties: Mapping[str, PropertyInput] | None,
        delay: float | None,
        not_before: datetime | float | None,
    ) -> tuple[Queue, dict[str, PropertyInput]]:
        """Return the queue where a message waits, and the properties that the message has there."""
        from bmq.client._delaying import delayed

        self._core.check_posts()
        here = self._delay_queue_uri == self._end.parsed_uri.canonical
        destination = None if here else self._end.parsed_uri.canonical
        longest = self._driver.options.longest_delay
        added = delayed(checked_properties(properties), delay, not_before, destination, longest)
        return self if here else await self.session.open_output(self._delay_queue_uri), added

    async def _delayed(self, item: PutMessage) -> tuple[Poster, PutMessage]:
        """Return what posts an item with a delay, and the message to post instead."""
        properties = item.properties
        if item.tags is not NO_TAGS or item.key is not None:
            properties = completed(properties, item.tags, item.key)
        queue, properties = await self._delaying(properties, item.delay, None)
        return queue._poster, PutMessage(item.data, properties, item.guid, compression=item.compression)

    def post_nowait(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = NO_TAGS,
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
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
        if (self._room.lines or not self._driver.core.posts.has_room) and not self._room.is_free(self._core):
            self._core.counts.turned_away()
            raise self._driver.flow.full(self._core)
        if tags is not NO_TAGS or key is not None:
            properties = completed(properties, tags, key)
        return self._poster.post(payload, properties, guid, compression)

    async def post_many(
        self,
        items: Iterable[bytes | PutMessage] | AsyncIterable[bytes | PutMessage],
        *,
        rate: float | None = None,
    ) -> PostReport:
        """Post many messages, batched and with backpressure, and wait for every outcome.

        Args:
            items: payloads or :class:`bmq.PutMessage`, from an iterable or an async iterable.
            rate: how many a second to post at most; None for as many as there is room for.

        Returns:
            What became of them; ``report.raise_for_failures()`` raises the first failure.

        Raises:
            InvalidPayload, InvalidProperty: an item is not legal; those before it are posted.
            QueueClosed, SessionClosed: the queue was closed meanwhile.

        Cancelling it stops taking items; those already taken stay posted.
        """
        if not isinstance(items, AsyncIterable):
            _check_items(items)
        return await self._poster.post_many(items if rate is None else paced(items, rate), self._delayed)

    async def request(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message:
        """Post a message and wait for the reply to it, which a responder posts (:meth:`bmq.App.responder`).

        Replies come to a queue of this session's own, ``replies.`` and a number in the same domain, opened
        with the first request. Late replies and second ones are dropped. The responder learns from the
        properties until when somebody waits.

        Args:
            payload: the request, 1 byte to 64 MiB.
            properties: values by name.
            timeout: seconds to wait for the reply, posting included. In the handler of a responder it is at
                most what is left of the time of the request that is being handled.
            reply_to: a queue in a priority domain that requesters share, instead; each has a subscription
                there.

        Returns:
            The reply, confirmed.

        Raises:
            ResponderError: the responder has failed.
            TimedOut: no reply came in time.
            PostError, QueueClosed, SessionClosed, InvalidPayload, InvalidProperty: as for :meth:`post`.
            OpenQueueError, RequestTimeout: the queue for replies could not be opened.
            UsageError: the timeout is not above 0.

        Cancelling it tells the responder, as far as it can be reached, that nobody waits any more.
        """
        data = as_bytes(payload)
        timeout = _checks.number("timeout", timeout, 0.0, _LONGEST_REQUEST, above=True, unit="seconds")
        properties = checked_properties(properties)
        if reply_to is not None:
            QueueUri.parse(reply_to)
        return await self._request(self, data, properties, timeout, reply_to)

    async def post_table(
        self,
        table: object,
        *,
        value: str = "value",
        properties: Iterable[str] = (),
        guid: str | None = None,
    ) -> PostReport:
        """Post every row of a table, and wait for every outcome. It is the fastest way to post.

        Columns are encoded as columns, thousands of rows at a time; the messages are those that
        :meth:`post_many` would make of the rows. Needs the extra ``bmq[arrow]``.

        Args:
            table: a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas (2.2 or newer) or
                Polars, or anything else with the method ``__arrow_c_stream__``. A reader is read as messages
                are posted.
            value: the column with the payload: binary or string, 1 byte to 64 MiB.
            properties: columns that become properties of their own name: boolean (BOOL), integers of up to 16
                bits (SHORT), 32 bits (INT32) and 64 bits (INT64), string (STRING) or binary (BINARY),
                dictionary-encoded or not. Null is an absent property. A struct column becomes one property a
                field.
            guid: a column with GUIDs to use instead of generated ones, of 16 bytes or 32 upper-case
                hexadecimal digits; see :meth:`post`.

        Returns:
            What became of them, where ``index`` is the number of the row.

        Raises:
            UsageError: it is no table, or a column is missing or of a type that cannot be posted: nothing is.
            InvalidPayload, InvalidProperty, UsageError: a row is not legal, the message says which; rows
                before it may be posted.
            QueueClosed, SessionClosed: the queue was closed meanwhile.

        Cancelling it stops taking rows; those already taken stay posted.
        """
        return await self.post_encoded(
            self.encode_table(table, value=value, properties=properties, guid=guid)
        )

    def encode_table(
        self,
        table: object,
        *,
        value: str = "value",
        properties: Iterable[str] = (),
        guid: str | GuidsOf | None = None,
        name_row: Callable[[int], str] = "row {}".format,
    ) -> Iterator[EncodedPosts]:
        """Encode the rows of a table for :meth:`post_encoded`, a thousand rows or so at a time.

        Unlike everything else of a queue it may be iterated in any thread: so one thread encodes, and the
        event loop only posts. Each slice has a length, the number of its rows, and ``select(numbers)``
        returns one of some of them under the GUIDs they have, to be posted again.

        Args:
            table: as for :meth:`post_table`.
            value: as for :meth:`post_table`.
            properties: as for :meth:`post_table`.
            guid: as for :meth:`post_table`; or a function that gets what some messages are, properties and
                payload as they travel, and returns a numpy array with 16 bytes for each.
            name_row: how errors name a row, from its position.

        Raises:
            UsageError, InvalidPayload, InvalidProperty: as :meth:`post_table`, while it is iterated.
        """
        value = _checks.text("value", value)
        names = tuple(_checks.texts("properties", properties))
        if callable(guid):
            _checks.function("guid", guid, 1)
        elif guid is not None:
            guid = _checks.text("guid", guid)
        _checks.function("name_row", name_row, 1)
        return self._poster.encode_table(table, value, names, guid, name_row)

    async def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post what :meth:`encode_table` has encoded, with backpressure, and wait for every outcome.

        The window of unacknowledged posts is looked at once a slice.

        Args:
            slices: taken one by one, as there is room.

        Returns:
            What became of them, where ``index`` is the position over all slices.

        Raises:
            QueueClosed, SessionClosed: the queue was closed meanwhile.
            Exception: what ``slices`` raises; what came before is posted.

        Cancelling it stops taking slices; those already taken stay posted.
        """
        return await self._poster.post_encoded(_checked_slices(slices))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every post made so far has its outcome.

        Args:
            timeout: seconds to wait; None waits as long as it takes (a post that stays unanswered fails after
                the queue's deduplication time).

        Raises:
            TimedOut: some posts have no outcome yet.

        Cancelling it changes nothing.
        """
        timeout = _checks.timeout(timeout)
        async with within(timeout, f"posts to {self.uri} had no outcome"):
            self._connection.check_loop()
            await self._driver.flow.outcomes(self._core)

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

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of the default subscription; see :meth:`bmq.Consumer.batches`."""
        return self._default_consumer().batches(max_messages, max_wait)

    def _default_consumer(self) -> Consumer:
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        default = self._end.default
        if default is None:
            raise UsageError(
                f"queue {self.uri} was opened with default_subscription=False: receive from the consumers "
                "that queue.subscribe(...) makes, or leave default_subscription out"
            )
        default.used = True
        if len(self._end.subscriptions.members) > 1:
            self._end.subscriptions.watch_default()
        return default.consumer

    # values instead of bytes

    def typed(self, of: type[T], *, codec: str | Codec[Any] = "application/json") -> TypedQueue[T]:
        """Return this queue for values of a type: what posts and receives them instead of bytes.

        Args:
            of: the type: a dataclass, a typed dictionary, ``dict``, ``list[...]``, a struct of msgspec, a
                model of pydantic, or :class:`bmq.CloudEvent` of one of these.
            codec: what encodes values, and decodes messages that do not say what they are: a content type
                (``application/json``, ``application/msgpack``, or one of :func:`bmq.codecs.register`), or a
                :class:`bmq.Codec`.

        Raises:
            UsageError: no codec can do this type, or a field marked with :class:`bmq.Property` cannot be one.
        """
        return typed_queue(self, of, codec)

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

        Nothing is sent before ``async with``, ``await`` or receiving activates it. It does not replace the
        queue's other consumers; the default subscription is one of them once somebody has received from the
        queue itself.

        Args:
            selector: what to receive: an expression as text or :class:`bmq.Expression`, a filter built with
                ``bmq.P``, a :class:`bmq.TagFilter` or :class:`bmq.CmqTags`; None or "" for everything. One
                too big for one expression becomes several, where these can mean the same.
            priority: the highest matching priority gets a message; None for the queue's.
            max_unconfirmed_messages: how many delivered messages may be unconfirmed; None for the queue's.
            max_unconfirmed_bytes: how many bytes of them; None for the queue's.
            discard_unmatched: confirm unseen whatever does not match, instead of leaving it in the queue for
                others. This confirms *all* of that, even what other consumers want: use it only for a queue
                (or an appId) whose consumers all have this filter.
            strict: False sends an expression that does not compile as it is; the broker then delivers
                everything.

        Raises:
            UsageError: the queue was not opened for reading, or a limit is out of its range.
            InvalidExpression: the expression is not legal.
        """
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        subscription = Subscription(
            selector,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            discard_unmatched=discard_unmatched,
            strict=strict,
        )
        return Consumer(self, line_for(subscription, self._end, self._end.options))

    def tables(self, selector: Selector = None, **options: Unpack[TablesOptions]) -> Tables:
        """Receive as tables: batches of rows, with a column for the payload and one for each property.

        It is the fastest way to receive. Nothing is sent before ``async with``, ``await`` or receiving
        activates it; it is a consumer of its own, beside those that :meth:`subscribe` makes. Needs the extra
        ``bmq[arrow]``.

        Args:
            selector: what to receive, as for :meth:`subscribe`.
            options: what rows are, and how many come together, see :class:`bmq.arrow.TablesOptions`.

        Raises:
            UsageError: the queue was not opened for reading, an option is not legal, or no property can be
                read as such a column.
            InvalidExpression: the expression is not legal.
        """
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: open_queue(..., read=True)")
        return tables_of(self, selector, **options)

    def group(
        self,
        key: str | None = None,
        *,
        buckets: int = 16,
        member: str | None = None,
        weight: float = 1.0,
        selector: Selector = None,
        **options: Unpack[GroupOptions],
    ) -> Group:
        """Make this session a member of the consumer group of the queue: it gets its share of the keys.

        All messages of a key are in one bucket, and a bucket belongs to one member at a time, which gets them
        in the order in which they were posted. Nothing is sent before ``async with``, ``await`` or receiving
        makes it join. Leaving closes the queue. See :class:`bmq.groups.Group`, and the page *Groups* of the
        documentation for what is promised when members come and go.

        Args:
            key: the name of an integer property, whose remainder is the bucket; None for the bucket that
                ``post(..., key=...)`` sets.
            buckets: how many buckets there are, 1 to 256: the same for all members. A broker evaluates up
                to this many expressions a message.
            member: the member's name, not used by two at once. One that comes back under its name gets the
                buckets that it had. None makes a new one.
            weight: this member's share beside the others', 0.01 to 100.
            selector: what the group takes at all, as one expression: the same for all members.
            options: see :class:`bmq.groups.GroupOptions`.

        Raises:
            UsageError: the queue was not opened for reading, or an argument is out of its range.
            InvalidExpression: the key and the selector do not make a legal expression.
        """
        return group_of(
            self, key, buckets=buckets, member=member, weight=weight, selector=selector, **options
        )

    # confirming

    def confirm(self, *messages: Message | str) -> None:
        """Confirm messages, also ones that were delivered to another session.

        A GUID is enough: a program can confirm what its predecessor had noted as done when it died. The
        broker ignores a GUID that it does not know, or that was confirmed before.

        Args:
            messages: messages, or their GUIDs as :attr:`bmq.Message.guid` has them.

        Raises:
            UsageError: one is neither, or the queue was not opened for reading; nothing is confirmed.
        """
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: there is nothing to confirm")
        guids: list[bytes] = []
        seen: dict[Line, dict[Message, None]] = {}
        for each in messages:
            if isinstance(each, Message):
                line = line_of(each)
                if line.end is not self._end:
                    raise UsageError(f"{each!r} is of another queue: message.confirm() knows which")
                if not each.confirmed:
                    seen.setdefault(line, {})[each] = None
            else:
                guids.append(guid_from_text(each))
        for line, some in seen.items():
            self._end.confirm_messages(line, list(some))
        if guids:
            self._end.confirm_guids(guids)

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
        self._end.check_open()
        before = self._end.options
        options = changed_options(before, priority, max_unconfirmed_messages, max_unconfirmed_bytes)
        self._end.options = options
        default = self._end.default
        if default is None:
            return
        try:
            definition = Definition(default, None, [None], options, None)
            await self._end.subscriptions.redefine(default, definition)
        except Exception:
            self._end.options = default.definition.options
            raise

    # life

    async def close(self, timeout: float | None = None, *, at_once: bool = False) -> None:
        """Close the queue in good order.

        Delivery stops; handlers in flight (inside ``async with message``, other than the one that calls this)
        finish; posts get their outcomes; the queue is closed.

        Idempotent. Works while disconnected.

        Args:
            timeout: seconds for all of it; None for the session's ``close_timeout``.
            at_once: have the broker end the subscriptions and take back what is unconfirmed in one step:
                others get that before anything newer, where usually a few newer messages come first. What
                arrives while handlers finish is given back too.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed all the same. Posts that
                still have no outcome fail with :class:`bmq.PostError`.

        Cancelling it does not stop the closing: that goes on in the background.
        """
        self._connection.check_loop()
        timeout, at_once = _checks.timeout(timeout), _checks.boolean("at_once", at_once)
        await self._end.close(timeout, at_once=at_once)

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


def _checked_slices(slices: Iterable[EncodedPosts]) -> Iterator[EncodedPosts]:
    if not isinstance(slices, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"slices come from queue.encode_table(...), not {_checks.shown(slices)}")
    return _slices(slices)


def _slices(slices: Iterable[EncodedPosts]) -> Iterator[EncodedPosts]:
    for each in slices:
        if not callable(getattr(type(each), "bind", None)):
            raise InvalidArgument(f"a slice comes from queue.encode_table(...), not {_checks.shown(each)}")
        yield each


def _check_items(items: object) -> None:
    given: Any = items
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise InvalidArgument(
            f"items is an iterable of payloads and bmq.PutMessage, as in [b'...'], not {_checks.shown(items)}"
        )
