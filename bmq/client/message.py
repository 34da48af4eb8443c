# SPDX-License-Identifier: Apache-2.0
"""Messages: received messages, messages to post, and the outcomes of posts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from bmq import _checks
from bmq._renamed import renamed
from bmq.errors import AckStatus, PostError
from bmq.wire.constants import Compression, PropertyType, PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.keys import Key
from bmq.wire.message import NO_PROPERTIES, Beginning, read_beginning, split_application_data
from bmq.wire.options import LimitedIds
from bmq.wire.properties import (
    LAYOUTS,
    PlainValue,
    Properties,
    PropertyInput,
    first_properties,
    properties_length,
    property_column,
)
from bmq.wire.push import DATA, FLAGS, GUID, SUB_IDS, Push

if TYPE_CHECKING:
    from bmq.client._line import Line
    from bmq.client.consumer import Consumer
    from bmq.protocol.client.ports import Arrival

__all__ = [
    "Ack",
    "FailedPost",
    "GuidsOf",
    "Message",
    "MessageBatch",
    "PostReport",
    "PutMessage",
    "arrival_of",
    "arrived_anew",
    "beginning_of",
    "line_of",
    "push_of",
]

#: Function deriving GUIDs from content: takes application data, returns an array of 16 bytes for each.
GuidsOf = Callable[[list[bytes]], Any]

_HAS_PROPERTIES = int(PushFlags.MESSAGE_PROPERTIES)
_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)
# Knowledge about properties in the old encoding, and in the new encoding.
_OLD, _NEW = LAYOUTS


def beginning_of(message: Message, most: int) -> Beginning:
    """Return the properties and the first bytes of the payload, and decompress no more than these.

    Args:
        message: the message.
        most: maximum number of bytes, of the payload and of the properties.

    Raises:
        ProtocolError: the message cannot be read.
    """
    _, _, _, flags, schema_id, compression, data = push_of(message)
    return read_beginning(
        data,
        has_properties=bool(flags & _HAS_PROPERTIES),
        schema_id=schema_id,
        compression=compression,
        most=most,
    )


@renamed
class Message:
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

    __slots__ = ("_arrival", "_context", "_line", "_payload", "_properties", "_push", "confirmed")

    confirmed: bool

    def __init__(self, line: Line, push: Push, arrival: Arrival) -> None:
        self._line = line
        self._push = push
        self._arrival = arrival
        self._properties: Properties | None = None
        self._payload: bytes | None = None
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
                properties = (_NEW if schema_id else _OLD).usual.properties(data)
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
            limit=self._line.max_message_size,
        )
        return self._properties

    @property
    def raw(self) -> bytes:
        """Properties and payload as transmitted, possibly compressed.

        ``max_unconfirmed_bytes`` counts the length of these bytes.
        """
        return self._push[DATA]

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
        return self._line.end.uri

    @property
    def consumer(self) -> Consumer:
        """The consumer to which the broker routed the message."""
        return self._line.consumer

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
        """Whether the message's connection was lost: the message is redelivered unless confirmed.

        The redelivery goes to this or another consumer. Always False for a broadcast queue: broadcast
        messages are never redelivered.
        """
        end = self._line.end
        return self._arrival[1] != end.received.losses and not end.core.at_most_once

    @property
    def age(self) -> float:
        """Seconds since the arrival of the message."""
        return max(0.0, self._line.connection.loop.time() - self._arrival[0])

    @property
    def context(self) -> dict[Any, Any]:
        """A dictionary for interceptors and handlers, to keep data with this message; empty at first."""
        try:
            return self._context
        except AttributeError:
            self._context: dict[Any, Any] = {}
            return self._context

    def confirm(self) -> None:
        """Confirm to the broker that the message is handled.

        Buffered, and sent with other confirmations at the end of the current turn of the event loop. A
        repeated call has no effect. After the queue or the session is closed, a call has no effect either:
        the broker redelivers the message.
        """
        if not self.confirmed:
            line, guid = self._line, self._push[GUID]
            end = line.end
            end.confirm(guid, line.counts, self._arrival)
            self.confirmed = True
            if line.in_hand is not None:
                line.in_hand.pop(guid, None)
            if end.hooks.confirming:
                end.hooks.confirmed(line.consumer, (self,))

    async def __aenter__(self) -> Message:
        end = self._line.end
        end.connection.check_loop()
        end.handlers.enter(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._line.end.handlers.leave(self)

    def __repr__(self) -> str:
        return f"<bmq.Message {self.guid} from {self.queue_uri}, {len(self._push[DATA])} bytes>"


#: Accessors for the modules of the client: the PUSH message, its arrival, its line.
push_of: Callable[[Message], Push] = attrgetter("_push")
arrival_of: Callable[[Message], Arrival] = attrgetter("_arrival")
line_of: Callable[[Message | MessageBatch], Line] = attrgetter("_line")


def arrived_anew(message: Message, arrival: Arrival) -> None:
    """Count a message as arrived again: its outcome is the outcome of both deliveries."""
    setattr(message, "_arrival", arrival)  # noqa: B010


class MessageBatch(Sequence[Message]):
    """Messages received together; :meth:`confirm` confirms the whole batch at once.

    ``async with batch:`` confirms on a clean exit. :meth:`column` reads a property of all messages.

    ::

        async for batch in queue.batches(max_messages=1000, max_wait=1.0):
            await store([message.data for message in batch])
            batch.confirm()
    """

    __slots__ = ("_line", "_messages")

    def __init__(self, line: Line, messages: list[Message]) -> None:
        self._line = line
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
        _, _, _, flags, schema_id, compression, _ = push_of(messages[0])
        if flags & _HAS_PROPERTIES and not compression:
            # Almost always, all messages have the same flags, schema id and compression.
            new = schema_id != 0
            found = [
                data
                for message in messages
                for _, _, _, its_flags, its_id, its_compression, data in (push_of(message),)
                if its_id == schema_id and its_flags == flags and its_compression == compression
            ]
            if len(found) < len(messages):
                found = [
                    data
                    for message in messages
                    for _, _, _, its_flags, its_id, its_compression, data in (push_of(message),)
                    if its_flags & _HAS_PROPERTIES and not its_compression and (its_id != 0) is new
                ]
            if len(found) == len(messages):
                return property_column(found, new, name)
        return [message.properties.get(name) for message in messages]

    def confirm(self) -> None:
        """Confirm each unconfirmed message of the batch, as :meth:`Message.confirm` does."""
        waiting = [message for message in self._messages if not message.confirmed]
        self._line.end.confirm_messages(self._line, waiting)

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

    async def __aenter__(self) -> MessageBatch:
        end = self._line.end
        end.connection.check_loop()
        end.handlers.enter(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._line.end.handlers.leave(self)

    def __repr__(self) -> str:
        return f"<bmq.MessageBatch of {len(self._messages)} from {self._line.end.uri}>"


@dataclass(slots=True)
class PutMessage:
    """A message to post with :meth:`bmq.Queue.post_many`.

    The class is mutable: creating a frozen object takes longer than posting the message. Changes after
    ``post_many`` has taken the item have no effect.

    ::

        report = await queue.post_many(
            [bmq.PutMessage(b"one", {"CustomerId": 7}), bmq.PutMessage(b"two", delay=60)]
        )

    Attributes:
        data: payload, 1 byte to 64 MiB.
        properties: values by name.
        guid: GUID to use in place of a generated one, 32 upper-case hexadecimal digits, as in
            :attr:`Message.guid`. Within the deduplication window, the broker drops a second message with the
            same GUID. Use equal GUIDs only for equal messages.
        tags: tags for selection by a :class:`bmq.TagFilter`; each tag becomes a property.
        compression: compression of the payload; None for the queue's default.
        key: ordering key, as for :meth:`bmq.Queue.post`.
        delay: seconds until the message is due, as for :meth:`bmq.Queue.post`.
    """

    data: bytes | bytearray | memoryview
    properties: Mapping[str, PropertyInput] | None = None
    guid: str | None = None
    tags: Iterable[str] = ()
    compression: Compression | None = None
    key: Key | None = None
    delay: float | None = None


class Ack:
    """The broker's acceptance of a message, stored now, or earlier under the same GUID.

    ::

        ack = await queue.post(b"...")
        print(ack.guid)

    Attributes:
        status: always SUCCESS; other outcomes raise :class:`bmq.PostError`.
        queue_uri: URI of the queue.
    """

    __slots__ = ("_guid", "queue_uri")

    status = AckStatus.SUCCESS

    def __init__(self, guid: bytes, queue_uri: str) -> None:
        self._guid = guid
        self.queue_uri = queue_uri

    @property
    def guid(self) -> str:
        """The GUID of the message: 32 upper-case hexadecimal digits."""
        return guid_to_text(self._guid)

    def __repr__(self) -> str:
        return f"Ack(guid={self.guid!r}, queue_uri={self.queue_uri!r})"


@dataclass(frozen=True, slots=True)
class FailedPost:
    """A message of :meth:`bmq.Queue.post_many` that was not accepted.

    ::

        report = await queue.post_many(payloads)
        for failed in report.failures:
            print(failed.index, failed.error)

    Attributes:
        index: position among the items, from 0.
        error: reason for the failure.
    """

    index: int
    error: PostError


@dataclass(slots=True)
class PostReport:
    """The outcomes of :meth:`bmq.Queue.post_many`.

    ::

        report = await queue.post_many(payloads)
        report.raise_for_failures()
        print(report.acknowledged)

    Attributes:
        posted: number of posted messages.
        acknowledged: number of accepted messages.
        bytes: total size of the payloads.
        failures: messages without an acceptance, in the order of the outcomes.
    """

    posted: int = 0
    acknowledged: int = 0
    bytes: int = 0
    failures: list[FailedPost] = field(default_factory=list["FailedPost"])

    def raise_for_failures(self) -> PostReport:
        """Raise the first failure, if any; otherwise return the report.

        Raises:
            PostError: a message was not accepted.
        """
        if self.failures:
            raise self.failures[0].error
        return self
