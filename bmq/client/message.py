# SPDX-License-Identifier: Apache-2.0
"""Received messages, alone and in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from bmq import _checks
from bmq._live import live
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import Compression, PropertyType, PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import NO_PROPERTIES, split_application_data
from bmq.wire.options import LimitedIds
from bmq.wire.properties import (
    LAYOUTS,
    PlainValue,
    Properties,
    first_properties,
    properties_length,
    property_column,
)
from bmq.wire.push import COMPRESSION, DATA, FLAGS, GUID, SUB_IDS, Push
from bmq.wire.shape import unreadable

if TYPE_CHECKING:
    from bmq.client.buffer import ReceiveBuffer
    from bmq.client.consumer import Consumer
    from bmq.protocol.client.ports import Arrival

__all__ = ["Message", "MessageBatch"]

_HAS_PROPERTIES = int(PushFlags.MESSAGE_PROPERTIES)
_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)
# Knowledge about properties in the old encoding, and in the new encoding.
_OLD, _NEW = LAYOUTS


class _Handled:
    """``async with`` a message or a batch."""

    __slots__ = ()

    _buffer: ReceiveBuffer

    if TYPE_CHECKING:

        def confirm(self) -> None:
            """Confirm to the broker."""

    async def __aenter__(self) -> Self:
        queue = self._buffer.queue
        queue._connection.check_loop()
        queue._handlers.enter(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._buffer.queue._handlers.leave(self)


@live
class Message(_Handled):
    """A message as delivered by the broker (one PUSH message).

    The application owns the message until :meth:`confirm`. An unconfirmed message is redelivered, to this or
    another consumer, after the present consumer closes. ``async with message:`` confirms on a clean exit, and
    leaves the message unconfirmed if the block raises or is cancelled.

    ::

        async for message in queue:
            async with message:  # confirms at the end of the block
                handle(message.data, message.properties)

    Attributes:
        confirmed: whether the application has confirmed the message.
    """

    __slots__ = ("_arrival", "_buffer", "_context", "_payload", "_properties", "_push", "confirmed")

    def __init__(self, buffer: ReceiveBuffer, push: Push, arrival: Arrival) -> None:
        self._buffer = buffer
        self._push = push
        self._arrival = arrival
        self._properties: Properties | None = None
        self._payload: bytes | None = None
        self._context: dict[Any, Any]  # set on first use
        self.confirmed = False

    @property
    def data(self) -> bytes:
        """The payload, decompressed.

        Raises:
            ProtocolError: the producer's data is malformed, or decompresses to more than the session's limit.
        """
        _, _, _, flags, _, compression, data = self._push
        if not (flags & _HAS_PROPERTIES or compression):
            return data
        payload = self._payload
        if payload is None:
            if compression:
                self._inflate()
                assert self._payload is not None
                return self._payload
            properties = self._properties
            length = properties.length if properties is not None else properties_length(data)
            payload = self._payload = data[length:]
        return payload

    @property
    def properties(self) -> Properties:
        """The properties: a read-only mapping of names to values; the types are in ``.types``.

        Raises:
            ProtocolError: the producer's data is malformed, or decompresses to more than the session's limit.
        """
        properties = self._properties
        if properties is None:
            _, _, _, flags, schema_id, compression, data = self._push
            if compression:
                return self._inflate()
            if flags & _HAS_PROPERTIES:
                # Inlined from first_properties(), to save the call.
                read = (_NEW if schema_id else _OLD).usual.properties
                properties = read(data)
                if properties is None:
                    properties = first_properties(data, schema_id != 0)
            else:
                properties = NO_PROPERTIES
            self._properties = properties
        return properties

    def _inflate(self) -> Properties:
        _, _, _, flags, schema_id, compression, data = self._push
        self._properties, self._payload = split_application_data(
            data,
            has_properties=bool(flags & _HAS_PROPERTIES),
            schema_id=schema_id,
            compression=compression,
            limit=self._buffer.queue.session.options.max_message_size,
        )
        return self._properties

    @property
    def raw(self) -> bytes:
        """Properties and payload as transmitted, possibly compressed.

        ``max_unconfirmed_bytes`` counts the length of these bytes.
        """
        return self._push[DATA]

    @property
    def compression(self) -> Compression:
        """The compression of the message as transmitted; :attr:`data` is decompressed in any case.

        ``len(message.raw)`` is the transmitted size, ``len(message.data)`` the size of the payload, which
        must be decompressed first.

        Raises:
            ProtocolError: the message is malformed, or has a compression unknown to this client.
        """
        compression = self._push[COMPRESSION]
        if compression > Compression.ZLIB:
            raise unreadable(compression)
        return Compression(compression)

    @property
    def property_types(self) -> dict[str, PropertyType]:
        """The type of each property."""
        return self.properties.types

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the message."""
        from bmq.subscriptions import tags_of

        return tags_of(self.properties)

    @property
    def guid(self) -> str:
        """The GUID of the message: 32 upper-case hexadecimal digits, the same in each delivery."""
        return guid_to_text(self._push[GUID])

    @property
    def queue_uri(self) -> str:
        """The URI of the opened queue, with ``?id=`` for an application of a fanout queue."""
        return self._buffer.queue.uri

    @property
    def consumer(self) -> Consumer:
        """The consumer to which the broker routed the message."""
        return self._buffer.consumer

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked the message as out of order.

        The mark has two possible meanings: the message was delivered before, or waited for a matching
        subscription. The protocol does not distinguish the two.
        """
        return bool(self._push[FLAGS] & _OUT_OF_ORDER)

    @property
    def delivery_attempts_left(self) -> int | None:
        """Number of remaining deliveries if the message stays unconfirmed; None if unknown.

        Brokers exchange this number with each other. No known broker sends the number to clients.
        """
        ids = self._push[SUB_IDS]
        return ids.attempts_left if isinstance(ids, LimitedIds) else None

    @property
    def stale(self) -> bool:
        """Whether the message's connection was lost, or its queue closed: the broker redelivers the message
        unless it was confirmed before.

        The redelivery goes to this or another consumer. Always False for a broadcast queue: broadcast
        messages are never redelivered.
        """
        queue = self._buffer.queue
        core = queue._core
        lost = self._arrival[1] != queue._connection.received.losses or core.state is QueueState.CLOSED
        return lost and not core.at_most_once

    @property
    def age(self) -> float:
        """Seconds since the arrival of the message."""
        return max(0.0, self._buffer.connection.loop.time() - self._arrival[0])

    @property
    def context(self) -> dict[Any, Any]:
        """A dictionary for interceptors and handlers, to keep data with this message; empty at first."""
        try:
            return self._context
        except AttributeError:
            self._context = {}
            return self._context

    def confirm(self) -> None:
        """Confirm to the broker that the message is handled.

        Buffered, and sent with other confirmations at the end of the current turn of the event loop. A
        repeated call has no effect. After the queue or the session is closed, a call has no effect either:
        the broker redelivers the message, and :attr:`confirmed` stays False.
        """
        if not self.confirmed:
            buffer, guid = self._buffer, self._push[GUID]
            confirming = buffer.confirming
            # Nearly always another message with the same arrival was confirmed in this turn. Without this
            # shortcut, a loop that receives and confirms takes 1.6 times the CPU time.
            if confirming.open is self._arrival and get_ident() == confirming.thread:
                confirming.guids.append(guid)
            elif not buffer.queue._confirm_one(guid, buffer.counts, self._arrival):
                return
            self.confirmed = True
            if buffer.in_hand is not None:
                buffer.in_hand.pop(guid, None)
            if buffer.hooks.confirming:
                buffer.hooks.confirmed(buffer.consumer, (self,))

    def __repr__(self) -> str:
        return f"<bmq.Message {self.guid} from {self.queue_uri}, {len(self._push[DATA])} bytes>"


@live
class MessageBatch(_Handled, Sequence[Message]):
    """Messages received together; :meth:`confirm` confirms the whole batch at once.

    ``async with batch:`` confirms on a clean exit. :meth:`column` reads a property of all messages.

    ::

        async for batch in queue.batches(max_messages=1000, max_wait=1.0):
            await store([message.data for message in batch])
            batch.confirm()
    """

    __slots__ = ("_buffer", "_messages")

    def __init__(self, buffer: ReceiveBuffer, messages: list[Message]) -> None:
        self._buffer = buffer
        self._messages = messages

    def column(self, name: str) -> list[PlainValue | None]:
        """Return one property of all messages, in order; None for messages without the property.

        If all messages have the same schema, this is much faster than reading each message's properties.

        Args:
            name: the property's name.

        Raises:
            ProtocolError: a producer's data is malformed, or decompresses to more than the session's limit.
        """
        name = _checks.text("name", name)
        messages = self._messages
        if not messages:
            return []
        _, _, _, flags, schema_id, compression, _ = messages[0]._push
        if flags & _HAS_PROPERTIES and not compression:
            # Almost always, all messages have the same flags, schema id and compression.
            new = schema_id != 0
            found = [
                data
                for message in messages
                for _, _, _, its_flags, its_id, its_compression, data in (message._push,)
                if its_id == schema_id and its_flags == flags and its_compression == compression
            ]
            if len(found) < len(messages):
                found = [
                    data
                    for message in messages
                    for _, _, _, its_flags, its_id, its_compression, data in (message._push,)
                    if its_flags & _HAS_PROPERTIES and not its_compression and (its_id != 0) is new
                ]
            if len(found) == len(messages):
                return property_column(found, new, name)
        return [message.properties.get(name) for message in messages]

    def confirm(self) -> None:
        """Confirm each unconfirmed message of the batch, as :meth:`Message.confirm` does."""
        waiting = [message for message in self._messages if not message.confirmed]
        self._buffer.confirm_messages(waiting)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"<bmq.MessageBatch of {len(self._messages)} from {self._buffer.queue.uri}>"
