# SPDX-License-Identifier: Apache-2.0
"""Queues for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq import _checks
from bmq._live import live
from bmq.blocking._consumer import Batches, Consumer, Messages, received_many, received_nowait
from bmq.blocking._end import QueueEnd
from bmq.blocking._handlers import waiting_for
from bmq.blocking._message import Message, MessageBatch
from bmq.blocking._outbox import SMALL
from bmq.blocking._portal import FOR_THE_END, Portal
from bmq.blocking._posts import Feed, PostFuture, settle
from bmq.client.consumer import Consumer as _Consumer
from bmq.client.posts import Ack, PostReport, PutMessage
from bmq.client.queue import Queue as _Queue
from bmq.client.queue import check_items, new_guid, undecided
from bmq.client.stats import QueueStats
from bmq.errors import BufferFull, TimedOut
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import Compression
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput, encode_properties

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from bmq.arrow.encoding import EncodedPosts
    from bmq.blocking._group import Group
    from bmq.blocking._session import Session
    from bmq.blocking._tables import Tables
    from bmq.blocking._typed import TypedQueue
    from bmq.client.keywords import TablesOptions
    from bmq.client.limits import ConsumerLimits
    from bmq.client.posts import GuidsOf
    from bmq.codecs import Codec
    from bmq.groups import GroupOptions
    from bmq.subscriptions import ExpressionInput

__all__ = ["Queue"]

T = TypeVar("T")

_COMPRESSIONS = (None, *Compression)


@live
class Queue:
    """An open queue, like :class:`bmq.Queue`. Created by :meth:`Session.open_queue`.

    Iterating over a queue receives all messages through the default subscription. :meth:`subscribe` creates
    consumers that receive the messages matching their expression. Several threads may post and receive at the
    same time.

    Attributes:
        session: session of the queue.
    """

    def __init__(
        self,
        session: Session,
        portal: Portal,
        queue: _Queue,
        end_of: Callable[[_Queue], QueueEnd[Consumer]],
        subscriptions: int = 0,
    ) -> None:
        self.session = session
        self._queue = queue
        self._portal = portal
        # The ends of the session's queues.
        self._end_of = end_of
        self._end: QueueEnd[Consumer] = QueueEnd(portal, queue, self._consumer_of)
        # All consumers except the default one: opened with the queue, or created by subscribe().
        self._consumers: dict[_Consumer, Consumer] = {}
        if subscriptions:
            for consumer in queue.consumers[-subscriptions:]:
                self._own(consumer)

    def _own(self, consumer: _Consumer) -> Consumer:
        self._end.add_line(consumer)
        made = self._consumers[consumer] = Consumer(self, self._end, consumer)
        return made

    def _consumer_of(self, consumer: _Consumer) -> Consumer:
        """Return the blocking side of a consumer."""
        return self._consumers.get(consumer) or Consumer(self, self._end, consumer)

    # attributes

    @property
    def uri(self) -> str:
        """The URI given to ``open_queue``."""
        return self._queue.uri

    @property
    def delay_queue_uri(self) -> str:
        """The URI of the delay queue for messages posted with ``delay`` or ``not_before``."""
        return self._queue.delay_queue_uri

    @property
    def state(self) -> QueueState:
        """The state of the queue."""
        return self._queue.state

    @property
    def closed(self) -> bool:
        """Whether the queue is closed or closing."""
        return self._queue.closed

    @property
    def unacked(self) -> int:
        """Number of posts without an outcome."""
        return self._queue.unacked

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers whose subscriptions the broker has."""
        return [self._consumer_of(consumer) for consumer in self._queue.consumers]

    @property
    def readable(self) -> bool:
        """Whether the queue was opened for reading."""
        return self._queue.readable

    @property
    def writable(self) -> bool:
        """Whether the queue was opened for writing."""
        return self._queue.writable

    @property
    def unclaimed(self) -> int:
        """Number of delivered messages that match no consumer here, like :attr:`bmq.Queue.unclaimed`."""
        return self._queue.unclaimed

    def stats(self) -> QueueStats:
        """Return a snapshot of the queue's counters, as :meth:`bmq.Queue.stats` does."""
        return self._portal.call(self._queue.stats)

    def __repr__(self) -> str:
        return f"<bmq.blocking.Queue {self.uri}, {self.state.value}>"

    # posting

    def post(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
        delay: float | None = None,
        not_before: datetime | float | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Post a message and wait for its acknowledgement, as :meth:`bmq.Queue.post` does.

        Raises:
            PostError: the broker refused the message, or never answered.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
            OpenQueueError, RequestTimeout: the delay queue could not be opened.
            UsageError: ``delay`` or ``not_before`` is out of range.
            TimedOut: no outcome in time; the broker may still store the message. Post it again with the
                ``guid`` of the error: the broker stores it once.

        If interrupted while the window is full, nothing is posted. After that the message remains posted, and
        only its outcome is lost to the caller.
        """
        queue = self._queue

        def post() -> Awaitable[Ack]:
            nonlocal guid
            if timeout is None and delay is None and not_before is None:
                try:  # most posts need no task
                    return queue.post_nowait(
                        payload,
                        properties=properties,
                        tags=tags,
                        guid=guid,
                        compression=compression,
                        key=key,
                    )
                except BufferFull:
                    pass  # queue.post() waits for free space
            if timeout is not None and guid is None:
                guid = new_guid(queue)
            return queue.post(
                payload,
                properties=properties,
                tags=tags,
                guid=guid,
                compression=compression,
                key=key,
                delay=delay,
                not_before=not_before,
                timeout=timeout,
            )

        try:
            return self._portal.run(post, timeout=timeout)
        except TimedOut as error:
            raise (error if guid is None else undecided(error, guid)) from None

    def post_nowait(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
    ) -> PostFuture:
        """Post a message without waiting for its acknowledgement, as :meth:`bmq.Queue.post_nowait` does.

        Returns:
            A :class:`PostFuture` with the :class:`bmq.Ack`, or the :class:`bmq.PostError`.

        Raises:
            BufferFull: the window of unacknowledged posts is full; nothing was posted.
            InvalidPayload, InvalidProperty: nothing was posted.
            QueueClosed, SessionClosed: nothing was posted.
        """

        future = PostFuture(self._portal)
        if (
            isinstance(payload, bytes)
            and guid is None
            and key is None
            and not tags
            and self._is_safe(payload, properties, compression)
        ):
            self._end.outbox.put((payload, dict(properties) if properties else None, compression, future))
            return future

        def post() -> None:
            self._queue.post_nowait(
                payload, properties=properties, tags=tags, guid=guid, compression=compression, key=key
            ).add_done_callback(lambda outcome: settle(future, outcome))

        self._portal.call(post)
        return future

    def _is_safe(
        self,
        payload: bytes,
        properties: Mapping[str, PropertyInput] | None,
        compression: Compression | None,
    ) -> bool:
        """Whether a post is certainly legal, so that this thread need not wait for the loop's checks."""
        size = len(payload)
        if properties:
            size += len(encode_properties(properties, new=True))  # raises what is wrong with them
        return (
            0 < size <= SMALL
            and compression in _COMPRESSIONS
            and self._end.outbox.has_room(self.session.options)
            and not (self._queue.closed or self.session.interceptors)
        )

    def post_many(self, items: Iterable[bytes | PutMessage], *, rate: float | None = None) -> PostReport:
        """Post many messages, batched and with backpressure, as :meth:`bmq.Queue.post_many` does.

        The items are taken in the calling thread, unless they are in a list or a tuple.

        Returns:
            The outcomes; ``report.raise_for_failures()`` raises the first failure.

        Raises:
            InvalidPayload, InvalidProperty: an item is not legal; earlier items were posted.
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.
            Exception: any exception of ``items``; earlier items were posted. All these exceptions are raised
                after the outcomes of the earlier items, and have them in the attribute ``report``.

        Interrupting the call stops taking items; items already taken remain posted.
        """
        if isinstance(items, list | tuple):
            return self._portal.run(lambda: self._queue.post_many(items, rate=rate))
        check_items(items)
        feed = Feed(self._portal, self._queue)
        return self._portal.run(lambda: feed.post(rate), meanwhile=lambda: feed.fill(items))

    def request(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message:
        """Post a request and wait for the reply, as :meth:`bmq.Queue.request` does.

        Returns:
            The reply, already confirmed.

        Raises:
            RequestFailed: the responder failed.
            TimedOut: no reply came in time.
            PostError, QueueClosed, SessionClosed, InvalidPayload, InvalidProperty: as for :meth:`post`.
            OpenQueueError, RequestTimeout: the queue for replies could not be opened.
            UsageError: the timeout is not above 0.

        Interrupting the call sends a cancellation to the responder, if the connection allows.
        """
        reply = self._portal.run(
            lambda: self._queue.request(payload, properties=properties, timeout=timeout, reply_to=reply_to),
            timeout=_checks.number("timeout", timeout, unit="seconds"),
        )
        message = Message(self._end_of(reply.consumer.queue), reply)
        message.confirmed = True
        return message

    def post_table(
        self,
        table: object,
        *,
        value: str = "value",
        properties: Iterable[str] = (),
        guid: str | None = None,
    ) -> PostReport:
        """Post each row of a table, and wait for all outcomes, as :meth:`bmq.Queue.post_table` does.

        Returns:
            The outcomes; ``index`` is the number of the row.

        Raises:
            UsageError: the object is not a table, or a column is missing or of an unsupported type; nothing
                was posted.
            InvalidPayload, InvalidProperty, UsageError: a row is not legal; the error names the row. Earlier
                rows may be posted.
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.

        Interrupting the call stops taking rows; rows already taken remain posted.
        """
        return self._portal.run(
            lambda: self._queue.post_table(table, value=value, properties=properties, guid=guid)
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
        """Encode the rows of a table for :meth:`post_encoded`, as :meth:`bmq.Queue.encode_table` does."""
        return self._queue.encode_table(
            table, value=value, properties=properties, guid=guid, name_row=name_row
        )

    def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post the slices of :meth:`encode_table`, as :meth:`bmq.Queue.post_encoded` does.

        The slices are taken in the session's thread.

        Raises:
            QueueClosed, SessionClosed: the queue or the session was closed meanwhile.
            Exception: any exception of ``slices``; earlier slices were posted.

        Interrupting the call stops taking slices; slices already taken remain posted.
        """
        return self._portal.run(lambda: self._queue.post_encoded(slices))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all posts so far have their outcomes, as :meth:`bmq.Queue.flush` does.

        Raises:
            TimedOut: some posts have no outcome after ``timeout`` seconds.
        """
        self._portal.run(lambda: self._queue.flush(timeout), timeout=timeout)

    # receiving

    def __iter__(self) -> Iterator[Message]:
        return Messages(self._end, self._end.line)

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message of the default subscription, as :meth:`Consumer.receive` does.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the queue or the session was closed.

        Interrupting the call (Ctrl-C) loses no message.
        """
        return Message(self._end, self._end.line.receive(timeout))

    def receive_nowait(self) -> Message | None:
        """Return the next message of the default subscription if one has arrived, otherwise None.

        The first call starts the default subscription, in the background.
        """
        return received_nowait(self._end, self._end.line)

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for the first message of the default subscription, then return all that have arrived.

        Args:
            max_messages: maximum number of messages to return.
            timeout: seconds to wait for the first message; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the queue or the session was closed.

        Interrupting the call (Ctrl-C) loses no message.
        """
        return received_many(self._end, self._end.line, max_messages, timeout)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[MessageBatch]:
        """Iterate over batches of messages of the default subscription, as :meth:`Consumer.batches` does.

        Args:
            max_messages: maximum number of messages of a batch.
            max_wait: seconds to wait for a full batch, from the arrival of the first message.
        """
        return Batches(self._end, self._end.line, self._queue, max_messages, max_wait)

    # typed values

    def typed(self, of: type[T], *, codec: str | Codec[Any] = "application/json") -> TypedQueue[T]:
        """Return a view of this queue for values of a type, as :meth:`bmq.Queue.typed` does.

        Raises:
            UsageError: no codec supports the type, or a field marked with :class:`bmq.Property` cannot be a
                property.
        """
        from bmq.blocking._typed import TypedQueue

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
        """Create a consumer for matching messages, as :meth:`bmq.Queue.subscribe` does.

        The broker receives the subscription on ``with`` or the first receiving call.

        Raises:
            UsageError: the queue was not opened for reading, or a limit is out of range.
            InvalidExpression: the expression is not legal.
        """
        consumer = self._queue.subscribe(
            expression,
            discard_unmatched=discard_unmatched,
            strict=strict,
            **limits,
        )
        self._consumers = {each: made for each, made in self._consumers.items() if not each.closed}
        return self._own(consumer)

    def tables(self, expression: ExpressionInput = None, **options: Unpack[TablesOptions]) -> Tables:
        """Receive tables: batches of rows, as :meth:`bmq.Queue.tables` does. Needs the extra ``bmq[arrow]``.

        ``dead_letters`` is a queue of :mod:`bmq.blocking` in the same session.

        Raises:
            UsageError: the queue was not opened for reading, an option is not legal, or a column has a type
                that properties do not support.
            InvalidExpression: the expression is not legal.
        """
        from bmq.blocking._tables import Tables

        given: dict[str, Any] = dict(options)
        if isinstance(letters := given.get("dead_letters"), Queue):
            given["dead_letters"] = letters._queue
        return Tables(self._portal, self._portal.call(self._queue.tables, expression, **given))

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
        """Make this session a member of the queue's consumer group, as :meth:`bmq.Queue.group` does.

        ``on_assigned``, ``on_revoked`` and a function ``strays`` are called in separate threads,
        ``on_event`` in the session's thread. ``strays`` receives :class:`bmq.blocking.Message`, unless it
        is a coroutine function.

        Raises:
            UsageError: the queue was not opened for reading, or an argument is out of range.
            InvalidExpression: the key and the expression do not form a legal expression.
        """
        from bmq.blocking._group import Group, in_a_thread, of_messages

        if (on_assigned := options.get("on_assigned")) is not None:
            options["on_assigned"] = in_a_thread(on_assigned)
        if (on_revoked := options.get("on_revoked")) is not None:
            options["on_revoked"] = in_a_thread(on_revoked)
        strays = options.get("strays", "hold")
        if callable(strays):
            options["strays"] = of_messages(self._end, strays)
        group = self._portal.call(
            self._queue.group,
            key,
            buckets=buckets,
            member=member,
            weight=weight,
            expression=expression,
            **options,
        )
        return Group(self, self._end, group)

    # confirming

    def confirm(self, *messages: Message | str) -> None:
        """Confirm messages, or GUIDs of messages, as :meth:`bmq.Queue.confirm` does.

        Raises:
            UsageError: an argument is neither, or the queue was not opened for reading; nothing was
                confirmed.
        """
        given = [message._message if isinstance(message, Message) else message for message in messages]
        self._portal.call(self._queue.confirm, *given)
        for message in messages:
            if isinstance(message, Message):
                message.confirmed = message._message.confirmed

    def configure(self, **limits: Unpack[ConsumerLimits]) -> None:
        """Change the options of the queue, as :meth:`bmq.Queue.configure` does.

        Raises:
            ConfigureQueueError: the broker refused; the previous options remain in effect.
            RequestTimeout: no answer in time; the session assumes the previous options.
            QueueClosed: the queue is closed.
            UsageError: an option is out of range, or the queue was not opened for reading.
        """
        self._portal.run(
            lambda: self._queue.configure(
                **limits,
            )
        )

    # life cycle

    def close(self, timeout: float | None = None, *, at_once: bool = False) -> None:
        """Close the queue in an orderly way, as :meth:`bmq.Queue.close` does. Idempotent.

        Threads inside ``with message`` finish first, except for the calling thread.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed nevertheless. Posts without
                an outcome fail with :class:`bmq.PostError`.

        Interrupting the call does not stop the closing, which continues in the background.
        """
        closer = get_ident()

        async def close() -> None:
            async with waiting_for([self._end.handlers], closer):
                await self._queue.close(timeout, at_once=at_once)

        if not (self._portal.forked or self._portal.over):
            limit = self.session.options.close_timeout if timeout is None else timeout
            self._portal.run(close, timeout=limit + FOR_THE_END)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
