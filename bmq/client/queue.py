# SPDX-License-Identifier: Apache-2.0
"""Queues: posting, subscribing, closing."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import get_running_loop
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq import _checks
from bmq._live import live
from bmq._logging import Log
from bmq._loop import within
from bmq._pace import paced
from bmq._turn import wait_done
from bmq._version import install
from bmq.client._definition import Definition
from bmq.client._handlers import Handlers
from bmq.client._subscriptions import Subscriptions
from bmq.client.batches import PLAIN, WITH_PROPERTIES, PostBatch, decoded
from bmq.client.buffer import ConsumerInput, ReceiveBuffer
from bmq.client.consumer import Consumer, Subscription, consumer_of
from bmq.client.counting import ReceiveCounts, size_of
from bmq.client.interceptors import InterceptedPost, outgoing
from bmq.client.keywords import DEFAULT_LIMITS, ConsumerLimits, checked_limits
from bmq.client.message import Message, MessageBatch
from bmq.client.options import check_compression
from bmq.client.posts import (
    NO_TAGS,
    Ack,
    GuidsOf,
    PostFuture,
    PostReport,
    PutMessage,
    QueueBase,
    as_bytes,
    check_items,
    checked_properties,
    completed,
    delayed,
    wrong_size,
)
from bmq.client.send_window import Permit
from bmq.errors import Error, QueueClosed, RequestTimeout, TimedOut, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.ports import Arrival
from bmq.protocol.client.queue import QueueState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression
from bmq.wire.control import QueueFlags
from bmq.wire.guid import guid_from_text, guid_to_text
from bmq.wire.keys import Key
from bmq.wire.message import join_application_data, too_large
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import GUID, Push
from bmq.wire.put import Outgoing
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.arrow.encoding import EncodedPosts
    from bmq.arrow.tables import Tables
    from bmq.client.keywords import TablesOptions
    from bmq.client.session import Session
    from bmq.client.stats import QueueStats
    from bmq.client.typed import TypedQueue
    from bmq.codecs import Codec
    from bmq.groups import Group, GroupOptions
    from bmq.subscriptions import ExpressionInput

__all__ = [
    "DEFAULT_MAX_UNCONFIRMED_BYTES",
    "DEFAULT_MAX_UNCONFIRMED_MESSAGES",
    "Queue",
    "check_items",
    "drain",
    "left_over",
    "new_guid",
    "undecided",
]

T = TypeVar("T")

logger = Log("bmq.client", later=True)

DEFAULT_MAX_UNCONFIRMED_MESSAGES = DEFAULT_LIMITS.max_unconfirmed_messages
DEFAULT_MAX_UNCONFIRMED_BYTES = DEFAULT_LIMITS.max_unconfirmed_bytes
# About three thousand years, in seconds: deadlines are transmitted in milliseconds.
_LONGEST_REQUEST = 1e11
# Seconds for the broker's answer after handlers and posts have used up the time for closing.
_FOR_THE_ANSWER = 1.0
_STARTED = SessionState.STARTED


@live
class Queue(QueueBase):
    """An open queue. Created by :meth:`bmq.Session.open_queue`.

    Iterating over a queue receives all messages: the iteration starts the default subscription.
    :meth:`subscribe` creates consumers for the messages matching an expression. After a loop over the queue
    has ended, a new consumer takes over: messages held by the default subscription go to matching consumers,
    and the rest wait for the next loop; see :attr:`unclaimed`.

    ::

        uri = "bmq://bmq.test.mem.priority/orders"
        async with await session.open_queue(uri, read=True) as queue:
            async for message in queue:
                async with message:
                    handle(message.data)

    Attributes:
        session: session of the queue.
    """

    def __init__(
        self,
        session: Session,
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
        self._connection = connection = session._connection
        self._posts = connection.core.posts
        self._window = connection.send_window
        self._parsed_uri = uri
        self._delay_queue_uri = delay_queue_uri
        hooks = session._hooks
        self._hooks = hooks
        self._intercepted = bool(hooks.posting)
        self._compression = int(connection.options.compression if compression is None else compression)
        # Posts whose callers gave up waiting, by GUID: a later post with the GUID is the same post.
        self._undecided: dict[bytes, PostFuture] = {}

        # Default limits and priority of consumers.
        self._options = options
        self._counts: ReceiveCounts = ReceiveCounts(connection.received)
        self._handlers = Handlers()
        self._close_task: asyncio.Task[None] | None = None
        # The member of a group that reads the queue.
        self._member: weakref.ref[Group] | None = None
        self._subscriptions: Subscriptions = Subscriptions(self)
        self._default: ReceiveBuffer | None = None
        # Whether the default subscription starts with the opening of a broadcast queue. A consumer that
        # starts before the program receives from the queue takes its place.
        self._eager = False
        if flags & QueueFlags.READ and default_subscription is not False:
            self._default = ReceiveBuffer(self, None, options)
            Consumer(self, self._default)
            self._eager = default_subscription is None and not subscriptions
            if default_subscription:
                self._subscriptions.add(self._default)
        for subscription in subscriptions:
            self._subscriptions.add(consumer_of(subscription, self, options)._buffer)
        self._core = core = connection.core.open_queue(
            uri,
            flags,
            self._subscriptions,
            opened,
            connection.loop.time(),
            deadline,
            subscriptions=self._subscriptions.wanted(),
            suspends=suspends,
        )
        self._uri = core.uri_text
        for counts in (self._counts, *(buffer.counts for buffer in self._buffers)):
            counts.core = core

    # attributes

    @property
    def uri(self) -> str:
        """The URI given to ``open_queue``."""
        return self._uri

    @property
    def delay_queue_uri(self) -> str:
        """The URI of the delay queue for messages posted with ``delay`` or ``not_before``."""
        return self._delay_queue_uri

    @property
    def state(self) -> QueueState:
        """The state of the queue."""
        return self._core.state

    @property
    def closed(self) -> bool:
        """Whether the queue is closed or closing."""
        core = self._core
        return core.leaving or core.state is QueueState.CLOSED

    @property
    def unacked(self) -> int:
        """Number of posts without an outcome."""
        return self._core.unacked

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers whose subscriptions the broker has."""
        return [buffer.consumer for buffer in self._subscriptions.committed]

    @property
    def readable(self) -> bool:
        """Whether the queue was opened for reading."""
        return self._core.readable

    @property
    def writable(self) -> bool:
        """Whether the queue was opened for writing."""
        return self._core.writable

    @property
    def unclaimed(self) -> int:
        """Number of delivered messages without a matching consumer in this queue.

        Most unclaimed messages were delivered to a consumer that has since closed. The next matching consumer
        receives them before newer messages. If no consumer matches, the broker redelivers the messages
        elsewhere after this queue is closed. Unclaimed messages count in ``buffered_messages`` and
        ``buffered_bytes`` of :meth:`stats`.
        """
        return len(self._subscriptions.unclaimed)

    def stats(self) -> QueueStats:
        """Return a snapshot of the queue's counters for posted and received messages."""
        from bmq.client.stats import queue_stats  # large, and not all programs ask

        self._connection.confirming.finish()
        return queue_stats(self._core, self._counts, self._buffered)

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

        While the window of unacknowledged posts is full, the call first waits for free space. While the
        connection is down, the message is kept and sent after the reconnect.

        A message with ``delay`` or ``not_before`` is posted to the delay queue (see ``delay_queue_uri`` of
        :meth:`bmq.Session.open_queue`), and acknowledged once stored there. A mover (:meth:`bmq.App.mover`,
        or ``bmq mover``) passes the message on at the due time. Without a mover, the message stays in the
        delay queue.

        Args:
            payload: 1 byte to 64 MiB.
            properties: values by name: bool, int, str, bytes, or :class:`bmq.PropertyValue`.
            tags: tags for selection by a :class:`bmq.TagFilter`; each tag becomes a property.
            guid: GUID to use instead of a generated one, 32 upper-case hexadecimal digits, as in
                :attr:`bmq.Message.guid`. Within the deduplication window, the broker drops a second message
                with the same GUID.
            compression: compression of the payload; None for the queue's default.
            key: ordering key: messages with equal keys go to one member of a consumer group, see
                :meth:`group`. The key determines the property ``bmq_bucket``.
            delay: seconds until the message is due.
            not_before: due time: a datetime with a time zone, or seconds since 1970.
            timeout: seconds to wait for the outcome. If None, an unanswered post fails after the queue's
                deduplication time.

        Raises:
            PostError: the broker refused the message, or never answered.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
            OpenQueueError, RequestTimeout: the delay queue could not be opened.
            UsageError: ``delay`` or ``not_before`` is out of range, or exceeds the session's
                ``longest_delay``.
            TimedOut: no outcome in time; the broker may still store the message. Post it again with the
                ``guid`` of the error: the broker stores it once.

        If the call is cancelled while the window is full, nothing is posted. Later, the message remains
        posted, and only its outcome is lost to the caller.
        """
        if tags is not NO_TAGS or key is not None:
            properties = completed(properties, tags, key)
        if timeout is not None:
            guid = new_guid(self) if guid is None else guid
            try:
                async with within(_checks.timeout(timeout), f"a post to {self.uri} had no outcome"):
                    return await self.post(
                        payload,
                        properties=properties,
                        guid=guid,
                        compression=compression,
                        delay=delay,
                        not_before=not_before,
                    )
            except TimedOut as error:
                raise undecided(error, guid) from None
        if delay is not None or not_before is not None:
            queue, properties = await self._delaying(properties, delay, not_before)
            return await queue.post(payload, properties=properties, guid=guid, compression=compression)
        if guid is not None and (pending := self._pending(guid)) is not None:
            return await asyncio.shield(pending)
        posts = self._posts
        # An empty window has space.
        if self._window.lines or not self._connection.writable or (posts.batches and not posts.has_room):
            await self._wait_for_space(Permit(1, 1, len(as_bytes(payload))))
        outcome = self._post(payload, properties, guid, compression, awaited=True)
        del payload, properties  # the window has both, encoded: a waiting call keeps no second copy
        if guid is None:
            return await outcome
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not outcome.done():
                known = guid_from_text(guid)
                self._undecided[known] = outcome
                outcome.add_done_callback(partial(_decide, self._undecided, known))
            raise

    def _pending(self, guid: str) -> PostFuture | None:
        """Return the post with a GUID whose caller gave up waiting, if any.

        Raises:
            UsageError: the GUID is not legal.
        """
        return self._undecided.get(guid_from_text(guid))

    async def _delaying(
        self,
        properties: Mapping[str, PropertyInput] | None,
        delay: float | None,
        not_before: datetime | float | None,
    ) -> tuple[Queue, dict[str, PropertyInput]]:
        """Return the delay queue, and the message's properties in the delay queue."""
        self._core.check_posts()
        here = self._delay_queue_uri == self._parsed_uri.canonical
        destination = None if here else self._parsed_uri.canonical
        longest = self._connection.options.longest_delay
        added = delayed(checked_properties(properties), delay, not_before, destination, longest)
        return self if here else await self.session.open_output(self._delay_queue_uri), added

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

        All messages posted in the same turn of the event loop are sent in one event.

        Returns:
            A future with the :class:`bmq.Ack`, or the :class:`bmq.PostError`.

        Raises:
            BufferFull: the window of unacknowledged posts is full; nothing was posted.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
        """
        if (self._window.lines or not self._posts.has_room) and not self._window.is_free(self._core):
            self._core.counts.turned_away()
            raise self._window.full_error(self._core)
        if tags is not NO_TAGS or key is not None:
            properties = completed(properties, tags, key)
        if guid is not None and (pending := self._pending(guid)) is not None:
            return pending
        return self._post(payload, properties, guid, compression)

    async def post_many(
        self,
        items: Iterable[bytes | PutMessage] | AsyncIterable[bytes | PutMessage],
        *,
        rate: float | None = None,
    ) -> PostReport:
        """Post many messages, batched and with backpressure, and wait for every outcome.

        Args:
            items: payloads or :class:`bmq.PutMessage`, from an iterable or an async iterable.
            rate: maximum number of messages a second; None for no limit beyond the window.

        Returns:
            The outcomes; ``report.raise_for_failures()`` raises the first failure.

        Raises:
            InvalidPayload, InvalidProperty: an item is not legal; earlier items were posted.
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.
            Exception: any exception of ``items``; earlier items were posted. All these exceptions are raised
                after the outcomes of the earlier items, and have them in the attribute ``report``.

        Cancelling the call stops taking items; items already taken remain posted.
        """
        if not isinstance(items, AsyncIterable):
            check_items(items)
        if rate is not None:
            items = paced(items, rate)
        batch = PostBatch(self)
        if isinstance(items, AsyncIterable):
            return await batch.outcomes(batch.post_as_they_come(items))
        return await batch.outcomes(batch.post_all(items))

    async def request(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message:
        """Post a request and wait for the reply of a responder (:meth:`bmq.App.responder`).

        Replies arrive in a private queue of the session in the same domain, named ``replies.`` and a number.
        The first request opens this queue. Late and duplicate replies are dropped. The request's properties
        tell the responder the deadline.

        Args:
            payload: payload of the request, 1 byte to 64 MiB.
            properties: values by name.
            timeout: seconds to wait for the reply, posting included. In the handler of a responder, the wait
                is limited to the remaining time of the handled request.
            reply_to: a shared reply queue in a priority domain, instead of the private queue. Each requester
                subscribes to its own replies.

        Returns:
            The reply, already confirmed.

        Raises:
            RequestFailed: the responder failed.
            TimedOut: no reply came in time.
            PostError, QueueClosed, SessionClosed, InvalidPayload, InvalidProperty: as for :meth:`post`.
            OpenQueueError, RequestTimeout: the queue for replies could not be opened.
            UsageError: the timeout is not above 0.

        Cancelling the call sends a cancellation to the responder, if the connection allows.
        """
        data = as_bytes(payload)
        timeout = _checks.number("timeout", timeout, 0.0, _LONGEST_REQUEST, above=True, unit="seconds")
        properties = checked_properties(properties)
        if reply_to is not None:
            QueueUri.parse(reply_to)
        session = self.session
        if session._requests is None:
            from bmq.client.requests import Requests  # few programs need the module

            session._requests = Requests(session)
        return await session._requests.request(self, data, properties, timeout, reply_to)

    async def post_table(
        self,
        table: object,
        *,
        value: str = "value",
        properties: Iterable[str] = (),
        guid: str | None = None,
    ) -> PostReport:
        """Post each row of a table, and wait for all outcomes. This is the fastest way to post.

        Columns are encoded as columns, thousands of rows at a time. The messages are the same as those of
        :meth:`post_many` for the rows. Needs the extra ``bmq[arrow]``.

        Args:
            table: a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas (2.2 or newer) or
                Polars, or any object with the method ``__arrow_c_stream__``. A reader is consumed while
                messages are posted.
            value: payload column: binary or string, 1 byte to 64 MiB.
            properties: columns to become properties of the same name: boolean (BOOL), integers of up to 16
                bits (SHORT), 32 bits (INT32) and 64 bits (INT64), string (STRING) or binary (BINARY),
                dictionary-encoded or not. A null value omits the property. Each field of a struct column
                becomes a property.
            guid: column of GUIDs instead of generated ones: 16 bytes or 32 upper-case hexadecimal digits;
                see :meth:`post`.

        Returns:
            The outcomes; ``index`` is the number of the row.

        Raises:
            UsageError: the object is not a table, or a column is missing or of an unsupported type; nothing
                was posted.
            InvalidPayload, InvalidProperty, UsageError: a row is not legal; the error names the row. Earlier
                rows may be posted.
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.

        Cancelling the call stops taking rows; rows already taken remain posted.
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
        """Encode the rows of a table for :meth:`post_encoded`, about a thousand rows at a time.

        Unlike all other methods of a queue, the iterator may run in any thread: a thread can encode while the
        event loop only posts. The length of each slice is its number of rows. ``select(numbers)`` of a slice
        returns a slice of some of the rows with the same GUIDs, to post these rows again.

        Args:
            table: as for :meth:`post_table`.
            value: as for :meth:`post_table`.
            properties: as for :meth:`post_table`.
            guid: as for :meth:`post_table`; or a function from the properties and payloads of messages, as
                transmitted, to a numpy array of 16 bytes for each message.
            name_row: function returning the name of a row for errors, given the row's position.

        Raises:
            UsageError, InvalidPayload, InvalidProperty: as for :meth:`post_table`, during the iteration.
        """
        value = _checks.text("value", value)
        names = tuple(_checks.texts("properties", properties))
        if callable(guid):
            _checks.function("guid", guid, 1)
        elif guid is not None:
            guid = _checks.text("guid", guid)
        _checks.function("name_row", name_row, 1)
        with _importing_arrow():
            from bmq.arrow.encoding import encode_table
        options = self._connection.options
        return encode_table(
            table,
            value,
            names,
            guid,
            name_row,
            new=self._connection.core.new_properties,
            compression=self._compression,
            level=options.compression_level,
            threshold=options.compression_threshold,
        )

    async def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post the slices of :meth:`encode_table` with backpressure, and wait for all outcomes.

        The window of unacknowledged posts is checked once for each slice.

        Args:
            slices: slices, taken singly as the window allows.

        Returns:
            The outcomes; ``index`` is the position across all slices.

        Raises:
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.
            Exception: any exception of ``slices``; earlier slices were posted.

        Cancelling the call stops taking slices; slices already taken remain posted.
        """
        if self._intercepted:
            return await self.post_many(decoded(slices))  # interceptors see messages
        batch = PostBatch(self)
        return await batch.outcomes(batch.post_slices(slices))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all posts so far.

        Args:
            timeout: seconds to wait; None for no limit (an unanswered post fails after the queue's
                deduplication time).

        Raises:
            TimedOut: some posts have no outcome yet.

        Cancelling the call has no effect on the posts.
        """
        async with within(_checks.timeout(timeout), f"posts to {self.uri} had no outcome"):
            self._connection.check_loop()
            await self._window.flush(self._core)

    # the way of a post into the window: interceptors, encoding, window

    def _post(
        self,
        payload: bytes | bytearray | memoryview,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        compression: Compression | None,
        *,
        awaited: bool = False,
    ) -> PostFuture:
        """Post one message; return the future of its outcome."""
        connection = self._connection
        # Connection.check_open() is called only where an exception is possible: the check costs a call, and a
        # system call.
        if connection.core.state is not _STARTED or connection.scheduled:
            connection.check_open()
        else:
            try:
                here = get_running_loop() is connection.loop
            except RuntimeError:
                here = False
            if not here:
                connection.check_loop()
        tick = connection.turn[1] if connection.scheduled else connection.monotonic_ns() - connection.epoch
        data = payload if type(payload) is bytes else as_bytes(payload)
        future: PostFuture = connection.loop.create_future()
        token: PostFuture | InterceptedPost = future
        if self._intercepted:
            self._core.check_posts()
            post = outgoing(self, data, properties, guid, tick)
            token = InterceptedPost(self, post, future)
            properties, guid = post.properties, post.guid
        try:
            raw, data, flags, schema_id, packing = self._encode(data, properties, guid, tick, compression)
            now = connection.turn[0] if connection.scheduled else connection.loop.time()
            connection.core.post(self._core, raw, data, token, now, flags, schema_id, packing)
        except BaseException as error:
            if isinstance(token, InterceptedPost):
                token.refused(error)
            raise
        if not connection.scheduled:
            # A caller who posts one message at a time has no other post to send with it.
            if awaited and connection.one_at_a_time and len(self._posts.entries) == 1:
                connection.transmit()
            else:
                connection.transmit_soon()
        return future

    async def _wait_for_space(self, permit: Permit) -> None:
        """Wait until a post may be made; the caller must post at once."""
        self._connection.check_open()
        await self._window.acquire(self._core, permit)

    def _encode(
        self,
        data: bytes,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        tick: int,
        wanted: Compression | None,
    ) -> Outgoing:
        """Check a message, and return the form for transmission."""
        if not 0 < len(data) <= MAX_APPLICATION_DATA:
            raise wrong_size(len(data))
        connection = self._connection
        raw = connection.guids.next(tick) if guid is None else guid_from_text(guid)
        compression = self._compression
        if wanted is not None:
            check_compression(wanted)
            compression = int(wanted)
        new, area, schema_id, flags = connection.core.new_properties, b"", 0, PLAIN
        if properties is not None and (
            properties if properties.__class__ is dict else checked_properties(properties)
        ):
            flags = WITH_PROPERTIES
            if not new:
                area = encode_properties(properties, new=False)
            elif compression:
                area, schema_id = connection.schema_ids.encode(properties)
            else:
                data, schema_id = connection.schema_ids.encode(properties, data)
                if len(data) > MAX_APPLICATION_DATA:
                    raise too_large(len(data))
        if area or compression:
            options = connection.options
            data, compression = join_application_data(
                data,
                area,
                new=new,
                compression=compression,
                level=options.compression_level,
                threshold=options.compression_threshold,
            )
        return raw, data, flags, schema_id, compression

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._default_consumer().__aiter__()

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message of the default subscription, as :meth:`bmq.Consumer.receive` does.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the queue or the session was closed.

        Cancelling the call loses no message: a message not returned stays in buffer.
        """
        return await self._default_consumer().receive(timeout)

    def receive_nowait(self) -> Message | None:
        """Return the next message of the default subscription if one has arrived, otherwise None.

        The first call starts the default subscription, in the background.
        """
        return self._default_consumer().receive_nowait()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for the first message of the default subscription, then return all that have arrived.

        Args:
            max_messages: maximum number of messages to return.
            timeout: seconds to wait for the first message; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the queue or the session was closed.

        Cancelling the call loses no message: a message not returned stays in buffer.
        """
        return await self._default_consumer().receive_many(max_messages, timeout)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of messages of the default subscription, as :meth:`bmq.Consumer.batches` does.

        Args:
            max_messages: maximum number of messages of a batch.
            max_wait: seconds to wait for a full batch, from the arrival of the first message.
        """
        return self._default_consumer().batches(max_messages, max_wait)

    def _default_consumer(self) -> Consumer:
        self._check_readable()
        default = self._default
        if default is None:
            raise UsageError(
                f"queue {self.uri} was opened with default_subscription=False: receive from the consumers "
                "of queue.subscribe(...), or omit default_subscription"
            )
        default.used = True
        return default.consumer

    # typed values

    def typed(self, of: type[T], *, codec: str | Codec[Any] = "application/json") -> TypedQueue[T]:
        """Return a view of this queue for posting and receiving values of a type.

        Args:
            of: type of the values: a dataclass, a typed dictionary, ``dict``, ``list[...]``, a msgspec
                struct, a pydantic model, or a :class:`bmq.CloudEvent` of any of these types.
            codec: encodes values, and decodes messages without a content type. A content type
                (``application/json``, ``application/msgpack``, or one of :func:`bmq.codecs.register`), or a
                :class:`bmq.Codec`.

        Raises:
            UsageError: no codec supports the type, or a field marked with :class:`bmq.Property` cannot be a
                property.
        """
        from bmq.client.typed import TypedQueue  # not all programs need the codecs

        return TypedQueue(self, of, codec)

    # subscriptions

    def subscribe(
        self,
        expression: ExpressionInput = None,
        *,
        discard_unmatched: bool = False,
        strict: bool = True,
        **limits: Unpack[ConsumerLimits],
    ) -> Consumer:
        """Create a consumer for matching messages.

        The broker receives the subscription on ``async with``, ``await`` or the first receiving call. The
        consumer does not replace other consumers of the queue. A receiving call on the queue itself adds the
        default subscription to these consumers.

        Args:
            expression: an expression as text or :class:`bmq.Expression`, a filter built with ``bmq.P``, a
                :class:`bmq.TagFilter` or :class:`bmq.subscriptions.CmqTags`; None or "" for all messages. A
                filter too large for a single expression is split into several equivalent expressions, if
                possible.
            discard_unmatched: confirm *all* messages that do not match this filter, even messages that match
                other consumers. By default, unmatched messages are left for other consumers. Use this option
                only if all consumers of the queue (or of the appId) have the same filter. Opening a second
                discarding consumer with another filter is a ``UsageError``, in any session of the process;
                other processes are not seen.
            strict: if False, an expression that does not compile is sent unchanged; the broker then delivers
                all messages.
            limits: ``priority``, ``max_unconfirmed_messages`` and ``max_unconfirmed_bytes``; by default the
                queue's.

        Raises:
            UsageError: the queue was not opened for reading, or a limit is out of range.
            InvalidExpression: the expression is not legal.
        """
        self._check_readable()
        subscription = Subscription(
            expression,
            discard_unmatched=discard_unmatched,
            strict=strict,
            **limits,
        )
        return consumer_of(subscription, self, self._options)

    def tables(self, expression: ExpressionInput = None, **options: Unpack[TablesOptions]) -> Tables:
        """Receive tables: batches of rows, with a column for the payload and a column for each property.

        This is the fastest way to receive. The broker receives the subscription on ``async with``, ``await``
        or the first receiving call. The subscription is separate from the consumers of :meth:`subscribe`.
        Needs the extra ``bmq[arrow]``.

        Args:
            expression: selects messages, as for :meth:`subscribe`.
            options: columns and batch sizes; see :class:`bmq.arrow.TablesOptions`.

        Raises:
            UsageError: the queue was not opened for reading, an option is not legal, or a column has a type
                that properties do not support.
            InvalidExpression: the expression is not legal.
        """
        self._check_readable()
        with _importing_arrow():
            from bmq.arrow.tables import Tables
        return Tables(self, expression, **options)

    def group(
        self,
        key: str | None = None,
        *,
        buckets: int = 128,
        member: str | None = None,
        weight: float = 1.0,
        expression: ExpressionInput = None,
        **options: Unpack[GroupOptions],
    ) -> Group:
        """Make this session a member of the queue's consumer group, with a share of the keys.

        All messages of a key are in the same bucket. A bucket belongs to a single member at a time. The
        member receives the bucket's messages in the order of posting. The member joins on ``async with``,
        ``await`` or the first receiving call. Leaving closes the queue. See :class:`bmq.groups.Group`, and
        the page *Groups* of the documentation for the guarantees when members join and leave.

        Args:
            key: name of an integer property whose remainder is the bucket; None for the bucket set by
                ``post(..., key=...)``.
            buckets: number of buckets, 1 to 512, equal for all members. A broker evaluates up to this many
                expressions for each message.
            member: name of the member, unique at any time. A member returning under the same name receives
                its former buckets. By default, a new name.
            weight: share of this member relative to the others, 0.01 to 100.
            expression: a single expression for the whole group, equal for all members.
            options: further options; see :class:`bmq.groups.GroupOptions`.

        Raises:
            UsageError: the queue was not opened for reading, or an argument is out of range.
            InvalidExpression: the key and the expression do not form a legal expression.
        """
        from bmq.groups import Group  # stands above the client

        return Group(
            self, key, buckets=buckets, member=member, weight=weight, expression=expression, **options
        )

    # confirming

    def confirm(self, *messages: Message | str) -> None:
        """Confirm messages, including messages delivered to another session.

        A GUID is enough: after a crash, a program can confirm messages recorded as done by its predecessor.
        The broker ignores unknown and already confirmed GUIDs.

        Args:
            messages: messages, or GUIDs as in :attr:`bmq.Message.guid`.

        Raises:
            UsageError: an argument is neither, or the queue was not opened for reading; nothing was
                confirmed.
        """
        self._check_readable("it has no messages to confirm")
        guids: list[bytes] = []
        seen: dict[ReceiveBuffer, dict[Message, None]] = {}
        for each in messages:
            if isinstance(each, Message):
                buffer = each._buffer
                if buffer.queue is not self:
                    raise UsageError(f"{each!r} belongs to another queue: use message.confirm()")
                if not each.confirmed:
                    seen.setdefault(buffer, {})[each] = None
            else:
                guids.append(guid_from_text(each))
        for buffer, some in seen.items():
            buffer.confirm_messages(list(some))
        if guids:
            self._confirm_guids(guids)

    async def configure(self, **limits: Unpack[ConsumerLimits]) -> None:
        """Change the options of the queue and of its default subscription. Omitted options stay unchanged.

        Consumers of :meth:`subscribe` keep their options; see :meth:`bmq.Consumer.configure`.

        Raises:
            ConfigureQueueError: the broker refused; the previous options remain in effect.
            RequestTimeout: no answer in time; the session assumes the previous options.
            QueueClosed: the queue is closed.
            UsageError: an option is out of range, or the queue was not opened for reading.

        After a cancellation, the broker may or may not have the new options.
        """
        self._check_readable("it has no subscription")
        self._check_open()
        options = checked_limits(limits, self._options)
        self._options = options
        default = self._default
        if default is None:
            return
        try:
            await self._subscriptions.redefine(default, Definition(default, None, options))
        except Exception:
            self._options = default.definition.options
            raise

    def _confirm_one(self, guid: bytes, counts: ReceiveCounts, arrival: Arrival) -> bool:
        """Confirm a message, unless the queue is closed; return whether the message is confirmed.

        The next messages with the same arrival may join, see :class:`Confirming`.
        """
        connection = self._connection
        connection.check_loop()
        if self._core.state is QueueState.CLOSED:
            return False
        pending = connection.core.confirm(self._core, guid)
        connection.transmit_soon()
        connection.confirming.add(counts, arrival, connection.turn, 1, pending)
        return True

    def _discard(self, messages: list[Push], arrival: Arrival) -> None:
        """Confirm newly arrived messages, without handing them out."""
        self._counts.arrived(messages, size_of(messages))
        self._confirm_many([message[GUID] for message in messages])
        self._connection.confirming.add(self._counts, arrival, self._connection.turn, len(messages))

    def _confirm_guids(self, guids: list[bytes]) -> None:
        """Confirm messages by their GUIDs, including messages delivered to another session."""
        self._confirm_many(guids)
        for guid in guids:
            self._subscriptions.in_hand.pop(guid, None)
        self._connection.confirming.add(self._counts, None, self._connection.turn, len(guids))

    def _confirm_many(self, guids: list[bytes]) -> None:
        """Confirm several messages, without counting them."""
        self._connection.check_loop()
        self._connection.core.confirm_many(self._core, guids)
        self._connection.transmit_soon()

    # life cycle

    async def close(self, timeout: float | None = None, *, at_once: bool = False) -> None:
        """Close the queue in an orderly way.

        The steps: delivery stops; handlers in progress finish (inside ``async with message``, except a
        handler that calls this method); posts receive their outcomes; the queue closes.

        Idempotent. Allowed while disconnected.

        Args:
            timeout: seconds for all steps; None for the session's ``close_timeout``.
            at_once: end the subscriptions and return unconfirmed messages in a single step. The next
                consumers receive the returned messages before any newer messages; otherwise a few newer
                messages usually come first. Messages arriving while handlers finish are returned, too.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed nevertheless. Posts without
                an outcome fail with :class:`bmq.PostError`.

        Cancelling the call does not stop the closing, which continues in the background.
        """
        self._connection.check_loop()
        timeout, at_once = _checks.timeout(timeout), _checks.boolean("at_once", at_once)
        if self.closed:
            await self._end(timeout, at_once)
        else:
            with self._hooks.operation("queue.close", self.session, self.uri):
                await self._end(timeout, at_once)

    async def _end(self, timeout: float | None, at_once: bool) -> None:
        """Wait for the closing, in a task that continues if the caller is cancelled."""
        if self._close_task is None or self._close_task.cancelled():
            if self._core.state is QueueState.CLOSED:
                return
            seconds = self._connection.options.close_timeout if timeout is None else timeout
            closing = self._close(self._connection.loop.time() + seconds, asyncio.current_task(), at_once)
            self._close_task = self._connection.keep(closing)
            self._core.leaving = True  # from now on, an open of the same queue waits
        task = self._close_task
        await wait_done(task)
        task.result()

    async def _close(self, deadline: float, closer: asyncio.Task[object] | None, at_once: bool) -> None:
        self._shut(None)
        await drain([self], deadline, closer)
        handlers = self._handlers.busy(closer)
        if self._core.unacked or handlers:
            logger.warning(
                "closing %s exceeded its timeout: %s",
                self.uri,
                left_over(self._core.unacked, handlers),
                extra={"queue": self.uri, "broker": self._connection.address},
            )
            deadline = max(deadline, self._connection.loop.time() + _FOR_THE_ANSWER)
        try:
            await self._connection.close_queue(self._core, deadline, at_once=at_once)
        except QueueClosed:
            pass  # the session, or a failure, has already closed it

    def _shut(self, error: Error | None) -> None:
        """End the consumers of a queue that is closing or closed, with ``error`` if not None."""
        if self._connection.queues.get(self._core) is self:  # a later opening may have taken the core over
            self._core.leaving = True
        for buffer in self._buffers:
            buffer.fire(ConsumerInput.SHUT, error)
            buffer.clear()
        self._subscriptions.forget_unclaimed()

    @property
    def _buffers(self) -> dict[ReceiveBuffer, None]:
        """The buffers of the started consumers, and of the default subscription."""
        buffers = self._subscriptions.members.copy()
        if self._default is not None:
            buffers[self._default] = None
        return buffers

    @property
    def _buffered(self) -> tuple[int, int]:
        """Number and size of the messages waiting for the application."""
        subscriptions = self._subscriptions
        return (
            sum(buffer.messages for buffer in subscriptions.members) + len(subscriptions.unclaimed),
            sum(buffer.bytes for buffer in subscriptions.members) + subscriptions.unclaimed_bytes,
        )

    def _check_open(self) -> None:
        """Check that the queue can be used.

        Raises:
            QueueClosed, SessionClosed: the queue or the session is closed.
            UsageError: the call is outside the session's event loop.
        """
        self._connection.check_open()
        if self.closed:
            raise self._core.closed_error("closed")

    def _check_readable(self, why: str = "open_queue(..., read=True)") -> None:
        if not self._core.readable:
            raise UsageError(f"queue {self.uri} was not opened for reading: {why}")

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


async def drain(queues: Iterable[Queue], deadline: float, closer: asyncio.Task[object] | None) -> None:
    """Wait for handlers in progress, and then for the outcomes of posts, because handlers may post."""
    queues = list(queues)
    try:
        async with asyncio.timeout_at(deadline):
            for queue in queues:
                await queue._handlers.idle(closer)
            for queue in queues:
                await queue._window.flush(queue._core)
    except TimeoutError:
        pass


def left_over(posts: int, handlers: int, queues: int = 0) -> str:
    """Return a text about the unfinished work; "" if all work is finished."""
    left = (
        (posts, "posts without outcome"),
        (handlers, "messages being handled"),
        (queues, "queues not closed"),
    )
    return ", ".join(f"{count} {what}" for count, what in left if count)


def new_guid(queue: Queue) -> str:
    """Return a GUID for the next post to a queue."""
    return guid_to_text(queue._connection.guids.next(queue._connection.clock()[1]))


def undecided(error: TimedOut, guid: str) -> TimedOut:
    """Return the error for a post that has no outcome in time, but may still be stored."""
    if error.guid or isinstance(error, RequestTimeout):
        return error  # the delay queue was not opened: nothing was posted
    made = TimedOut(f"{error}; the broker may still store the message: post it again with guid={guid!r}")
    made.guid = guid
    return made


def _decide(undecided: dict[bytes, PostFuture], guid: bytes, outcome: PostFuture) -> None:
    undecided.pop(guid, None)
    if not outcome.cancelled():
        outcome.exception()  # nobody may be waiting any more


@contextmanager
def _importing_arrow() -> Generator[None]:
    """Import modules of tables in the block.

    Raises:
        ModuleNotFoundError: numpy or pyarrow is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"tables need {error.name}, which is not installed: {install('arrow')}", name=error.name
        ) from error
