# SPDX-License-Identifier: Apache-2.0
"""Queues for threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq._live import live
from bmq.blocking._calls import QueueCalls
from bmq.blocking._consumer import Consumer, Group, ReceivingCalls, Tables, in_a_thread
from bmq.blocking._message import Message
from bmq.blocking._portal import FOR_THE_END
from bmq.blocking._posts import ItemFeed, PostFuture, SendBuffer, settle
from bmq.blocking._receive import HeldMessages, Prefetch, waiting_for
from bmq.client.consumer import Consumer as _Consumer
from bmq.client.message import Message as _Message
from bmq.client.posts import Ack, PostReport, PutMessage, check_items
from bmq.client.queue import Queue as _Queue
from bmq.client.queue import new_guid, undecided
from bmq.errors import TimedOut
from bmq.wire.constants import Compression
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput, encode_properties

if TYPE_CHECKING:
    from bmq.blocking._session import Session
    from bmq.blocking._typed import TypedQueue
    from bmq.client.keywords import TablesOptions
    from bmq.codecs import Codec
    from bmq.groups import GroupOptions
    from bmq.subscriptions import ExpressionInput

__all__ = ["Post", "Queue"]

T = TypeVar("T")

#: Posts a message with a GUID; None for a generated one.
Post = Callable[[str | None], Coroutine[Any, Any, Ack]]

_COMPRESSIONS = (None, *Compression)


@live
class Queue(QueueCalls, ReceivingCalls):
    """An open queue, like :class:`bmq.Queue`. Created by :meth:`Session.open_queue`.

    Iterating over a queue receives all messages through the default subscription. :meth:`subscribe` creates
    consumers that receive the messages matching their expression. Several threads may post and receive at the
    same time.

    Attributes:
        session: session of the queue.
    """

    def __init__(self, session: Session, queue: _Queue, subscriptions: int = 0) -> None:
        self.session = session
        self._inner = queue
        self._portal = portal = session._portal
        # The messages of the default subscription.
        self._prefetch = Prefetch(portal, queue)
        self._messages_of = self
        self._held = HeldMessages(portal)
        self._sends = SendBuffer(portal, queue)
        self._consumers: dict[_Consumer, Consumer] = {}
        if subscriptions:
            for consumer in queue.consumers[-subscriptions:]:
                self._add(consumer)

    def _add(self, consumer: _Consumer) -> Consumer:
        """Return the blocking side of a new consumer, which has messages of its own."""
        for each in [each for each in list(self._consumers) if each.closed]:
            self._consumers.pop(each, None)
        made = self._consumers[consumer] = Consumer(self, consumer, Prefetch(self._portal, consumer))
        return made

    def _consumer_of(self, consumer: _Consumer) -> Consumer:
        """Return the blocking side of a consumer; the default one is not among those that were added."""
        return self._consumers.get(consumer) or Consumer(self, consumer, self._prefetch)

    def _message_of(self, message: _Message) -> Message:
        """Return the blocking side of a message of any queue."""
        return Message(self.session._queue_of(message.consumer.queue), message)

    def _forget(self) -> None:
        """Drop all waiting messages: in the child of a fork they are the parent's."""
        self._prefetch.clear()
        for consumer in self._consumers.values():
            consumer._prefetch.clear()

    # posting

    def _post(self, post: Post, guid: str | None, timeout: float | None) -> Ack:
        """Wait for the outcome of a post; the error of this thread's own deadline has the GUID, too."""

        def with_guid() -> Coroutine[Any, Any, Ack]:
            nonlocal guid
            if timeout is not None and guid is None:
                guid = new_guid(self._inner)
            return post(guid)

        try:
            return self._portal.wait(with_guid, timeout=timeout)
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
        if guid is None and key is None and not tags and self._is_legal(payload, properties, compression):
            self._sends.put((bytes(payload), dict(properties) if properties else None, compression, future))
            return future

        def post() -> None:
            self._inner.post_nowait(
                payload, properties=properties, tags=tags, guid=guid, compression=compression, key=key
            ).add_done_callback(lambda outcome: settle(future, outcome))

        self._portal.call(post)
        return future

    def _is_legal(
        self, payload: object, properties: Mapping[str, PropertyInput] | None, compression: object
    ) -> bool:
        """Whether a post is certainly legal, so that this thread need not wait for the loop's checks."""
        if not isinstance(payload, bytes) or not payload or compression not in _COMPRESSIONS:
            return False
        size = len(payload)
        if properties:
            size += len(encode_properties(properties, new=True))  # raises what is wrong with them
        return self._sends.has_room(size, self.session.options) and not (
            self._inner.closed or self.session.interceptors
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
            return self._portal.wait(lambda: self._inner.post_many(items, rate=rate))
        check_items(items)
        feed = ItemFeed(self._portal, self._inner)
        return self._portal.wait(lambda: feed.post(rate), meanwhile=lambda: feed.fill(items))

    # views and consumers

    def typed(self, of: type[T], *, codec: str | Codec[Any] = "application/json") -> TypedQueue[T]:
        """Return a view of this queue for values of a type, as :meth:`bmq.Queue.typed` does.

        Raises:
            UsageError: no codec supports the type, or a field marked with :class:`bmq.Property` cannot be a
                property.
        """
        from bmq.blocking._typed import TypedQueue

        return TypedQueue(self, of, codec)

    def tables(self, expression: ExpressionInput = None, **options: Unpack[TablesOptions]) -> Tables:
        """Receive tables: batches of rows, as :meth:`bmq.Queue.tables` does. Needs the extra ``bmq[arrow]``.

        ``dead_letters`` is a queue of :mod:`bmq.blocking` in the same session.

        Raises:
            UsageError: the queue was not opened for reading, an option is not legal, or a column has a type
                that properties do not support.
            InvalidExpression: the expression is not legal.
        """
        given: dict[str, Any] = dict(options)
        if isinstance(letters := given.get("dead_letters"), Queue):
            given["dead_letters"] = letters._inner
        return Tables(self._portal, self._portal.call(lambda: self._inner.tables(expression, **given)))

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
        if (on_assigned := options.get("on_assigned")) is not None:
            options["on_assigned"] = in_a_thread(on_assigned)
        if (on_revoked := options.get("on_revoked")) is not None:
            options["on_revoked"] = in_a_thread(on_revoked)
        strays: Any = options.get("strays")
        if callable(strays) and not inspect.iscoroutinefunction(strays):
            options["strays"] = in_a_thread(lambda message: strays(Message(self, message)))
        group = self._portal.call(
            lambda: self._inner.group(
                key, buckets=buckets, member=member, weight=weight, expression=expression, **options
            )
        )
        return Group(self, group)

    def confirm(self, *messages: Message | str) -> None:
        """Confirm messages, or GUIDs of messages, as :meth:`bmq.Queue.confirm` does.

        Raises:
            UsageError: an argument is neither, or the queue was not opened for reading; nothing was
                confirmed.
        """
        given = [message._inner if isinstance(message, Message) else message for message in messages]
        self._portal.call(lambda: self._inner.confirm(*given))
        for message in messages:
            if isinstance(message, Message):
                message.confirmed = message._inner.confirmed

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
            async with waiting_for([self._held], closer):
                await self._inner.close(timeout, at_once=at_once)

        limit = self.session.options.close_timeout if timeout is None else timeout
        self._portal.finish(close, limit + FOR_THE_END)
