# SPDX-License-Identifier: Apache-2.0
"""Messages: received ones, those to post, and what became of posts."""

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
    Properties,
    PropertyInput,
    PropertyValue,
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

#: Makes GUIDs of what messages are: given the application data of some, it returns an array of 16 bytes each.
GuidsOf = Callable[[list[bytes]], Any]

_HAS_PROPERTIES = int(PushFlags.MESSAGE_PROPERTIES)
_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)
# What is known of properties in the old encoding, and in the new one.
_OLD, _NEW = LAYOUTS


def beginning_of(message: Message, most: int) -> Beginning:
    """Return the properties and the first bytes of a received message, decompressing no more than these.

    Args:
        message: the message.
        most: how many bytes of the payload to return, and how many bytes the properties may take.

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
    """A message as the broker delivered it (one PUSH message).

    It stays the application's until :meth:`confirm`; a message never confirmed is delivered again, to this
    or another consumer, once this one closes. ``async with message:`` confirms on a clean exit and leaves
    the message unconfirmed when the block raises or is cancelled.

    Attributes:
        confirmed: whether the application has confirmed it.
    """

    __slots__ = ("_arrival", "_line", "_payload", "_properties", "_push", "_state", "confirmed")

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
            ProtocolError: the producer's data is malformed or decompresses to more than the session allows.
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
        """The properties: a read-only mapping of names to values, with their types in ``.types``.

        Raises:
            ProtocolError: the producer's data is malformed or decompresses to more than the session allows.
        """
        properties = self._properties
        if properties is None:
            _, _, _, flags, schema_id, compression, data = self._push
            if compression:
                return self._inflate()
            if flags & _HAS_PROPERTIES:
                # As first_properties() does it first, without the call.
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
        """Properties and payload as they travelled, compressed or not.

        Its length is what the message counts against ``max_unconfirmed_bytes``.
        """
        return self._push[DATA]

    @property
    def property_types(self) -> dict[str, PropertyType]:
        """The type of each property."""
        return self.properties.types

    @property
    def tags(self) -> frozenset[str]:
        """The tags it was posted with."""
        from bmq.subscriptions import tags_of

        return tags_of(self.properties)

    @property
    def guid(self) -> str:
        """The message's GUID: 32 upper-case hexadecimal digits, the same on every delivery."""
        return guid_to_text(self._push[GUID])

    @property
    def queue_uri(self) -> str:
        """The URI of the queue as it was opened, with ``?id=`` for an application of a fanout queue."""
        return self._line.end.uri

    @property
    def consumer(self) -> Consumer:
        """The consumer whose subscription the broker routed this message to."""
        return self._line.consumer

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked the message as out of order.

        It does so for messages that were delivered before, and for those that waited for a matching
        subscription; the protocol does not tell the two apart.
        """
        return bool(self._push[FLAGS] & _OUT_OF_ORDER)

    @property
    def delivery_attempts_left(self) -> int | None:
        """How many more times it is delivered if it is not confirmed; None where the broker does not say.

        Brokers tell each other; none is known yet that tells clients.
        """
        ids = self._push[SUB_IDS]
        return ids.attempts_left if isinstance(ids, LimitedIds) else None

    @property
    def stale(self) -> bool:
        """Whether the connection it came over was lost since: unless it was confirmed, it is delivered again.

        To this consumer or another one. Never for a broadcast queue, which delivers nothing twice.
        """
        end = self._line.end
        return self._arrival[1] != end.received.losses and not end.core.at_most_once

    @property
    def age(self) -> float:
        """How long ago the message arrived here, in seconds."""
        return max(0.0, self._line.connection.now() - self._arrival[0])

    @property
    def state(self) -> dict[Any, Any]:
        """A place to keep what belongs to this message, for interceptors and handlers; empty at first."""
        try:
            return self._state
        except AttributeError:
            self._state: dict[Any, Any] = {}
            return self._state

    def confirm(self) -> None:
        """Tell the broker that the message is done with.

        Buffered, and sent with other confirmations at the end of the current turn of the event loop. Calling
        it again does nothing. After the queue or the session is closed it has no effect: the message will be
        delivered again.
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


#: What a message is made of, for the modules of the client: the message as it came, its arrival, its line.
push_of: Callable[[Message], Push] = attrgetter("_push")
arrival_of: Callable[[Message], Arrival] = attrgetter("_arrival")
line_of: Callable[[Message | MessageBatch], Line] = attrgetter("_line")


def arrived_anew(message: Message, arrival: Arrival) -> None:
    """Let a message count as having arrived again: its outcome is the outcome of both deliveries."""
    setattr(message, "_arrival", arrival)  # noqa: B010


class MessageBatch(Sequence[Message]):
    """Messages that were received together; :meth:`confirm` confirms them all at once.

    ``async with batch:`` does so on a clean exit. :meth:`column` reads a property of all of them.
    """

    __slots__ = ("_line", "_messages")

    def __init__(self, line: Line, messages: list[Message]) -> None:
        self._line = line
        self._messages = messages

    def column(self, name: str) -> list[PropertyValue | None]:
        """Return one property of all messages, in their order; None where a message does not have it.

        Where the messages have one schema, that takes a fraction of what asking each message takes.

        Args:
            name: the property's name.

        Raises:
            ProtocolError: a producer's data is malformed or decompresses to more than the session allows.
        """
        name = _checks.text("name", name)
        messages = self._messages
        if not messages:
            return []
        _, _, _, flags, schema_id, compression, _ = push_of(messages[0])
        if flags & _HAS_PROPERTIES and not compression:
            # Nearly always all have the same flags, schema id and compression.
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
        """Confirm every message of the batch that is not confirmed yet, as :meth:`Message.confirm` does."""
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

    It is not frozen, since that takes more time than posting it. What is changed after it was taken from the
    items changes nothing.

    Attributes:
        data: the payload, 1 byte to 64 MiB.
        properties: values by name.
        guid: the GUID to use instead of a generated one: 32 upper-case hexadecimal digits, as
            :attr:`Message.guid` has them. The broker drops a second message with the same GUID within its
            deduplication window, so equal GUIDs must mean equal messages.
        tags: tags that a :class:`bmq.TagFilter` selects by; each becomes a property.
        compression: how the payload is compressed; None for the queue's default.
        key: what must stay in order, as for :meth:`bmq.Queue.post`.
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
    """The broker accepted a message: it is stored, or was stored before under the same GUID.

    Attributes:
        status: SUCCESS; anything else is raised as :class:`bmq.PostError`.
        queue_uri: the queue it was posted to.
    """

    __slots__ = ("_guid", "queue_uri")

    status = AckStatus.SUCCESS

    def __init__(self, guid: bytes, queue_uri: str) -> None:
        self._guid = guid
        self.queue_uri = queue_uri

    @property
    def guid(self) -> str:
        """The message's GUID: 32 upper-case hexadecimal digits."""
        return guid_to_text(self._guid)

    def __repr__(self) -> str:
        return f"Ack(guid={self.guid!r}, queue_uri={self.queue_uri!r})"


@dataclass(frozen=True, slots=True)
class FailedPost:
    """One message of a :meth:`bmq.Queue.post_many` that was not accepted.

    Attributes:
        index: its position among the items, from 0.
        error: why.
    """

    index: int
    error: PostError


@dataclass(slots=True)
class PostReport:
    """What became of a :meth:`bmq.Queue.post_many`.

    Attributes:
        posted: how many messages were posted.
        acknowledged: how many of them the broker accepted.
        bytes: the sum of their payloads' sizes.
        failures: the others, in the order their outcomes came.
    """

    posted: int = 0
    acknowledged: int = 0
    bytes: int = 0
    failures: list[FailedPost] = field(default_factory=list["FailedPost"])

    def raise_for_failures(self) -> PostReport:
        """Raise the first failure, if there is one; else return the report.

        Raises:
            PostError: a message was not accepted.
        """
        if self.failures:
            raise self.failures[0].error
        return self
