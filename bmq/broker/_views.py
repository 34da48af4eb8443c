# SPDX-License-Identifier: Apache-2.0
"""A view into an embedded broker, for tests: posts, contents of queues, and deliveries to consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bmq.errors import InvalidURI, ProtocolError
from bmq.wire.constants import PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import NO_PROPERTIES, Beginning, read_beginning, split_application_data
from bmq.wire.properties import Properties, PropertyInput, PropertyValue
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.broker._delivery import AppDelivery
    from bmq.broker._node import BrokerNode
    from bmq.broker._queue import BrokerQueue
    from bmq.broker._storage import MessageRecord
    from bmq.wire.put import Put

__all__ = ["AppView", "BrokerQueueStats", "MessageView", "PostedMessage", "QueueView", "QueuesView", "listed"]


_SHOWN: Final = 10
_SHOWN_BYTES: Final = 60


def _decoded(data: bytes, flags: int, schema_id: int, compression: int) -> tuple[Properties, bytes]:
    """Return the properties and the payload of a message's data without padding."""
    return split_application_data(
        data,
        has_properties=bool(flags & PutFlags.MESSAGE_PROPERTIES),
        schema_id=schema_id,
        compression=compression,
    )


@dataclass(frozen=True)
class PostedMessage:
    """A message as posted.

    Attributes:
        queue_uri: URI of the queue.
        guid: GUID, 32 upper-case hexadecimal digits.
        payload: decompressed payload; for an unreadable message, the bytes as transmitted.
        properties: properties; empty for an unreadable message.
    """

    queue_uri: str
    guid: str
    payload: bytes
    properties: Properties

    def __str__(self) -> str:
        shown = self.payload[:_SHOWN_BYTES]
        more = "..." if len(self.payload) > len(shown) else ""
        return f"{self.guid} {shown!r}{more} {dict(self.properties)}"

    @classmethod
    def _read(cls, queue_uri: str, put: Put) -> PostedMessage:
        flags, _, guid, schema_id, compression, _, size, data = put
        try:
            properties, payload = _decoded(data[:size], flags, schema_id, compression)
        except ProtocolError:  # a broker stores an unreadable message all the same
            properties, payload = NO_PROPERTIES, bytes(data[:size])
        return cls(queue_uri, guid_to_text(guid), payload, properties)

    def has(self, payload: bytes | None, properties: Mapping[str, PropertyInput]) -> bool:
        """Whether the message has this payload, if given, and at least these properties."""
        if payload is not None and self.payload != payload:
            return False
        return all(
            name in self.properties
            and self.properties[name] == (value.value if isinstance(value, PropertyValue) else value)
            for name, value in properties.items()
        )


def listed(messages: Sequence[PostedMessage]) -> str:
    """Describe messages, a line each, for the text of a failure."""
    lines = [f"    {each}" for each in messages[:_SHOWN]]
    if len(messages) > _SHOWN:
        lines.append(f"    ... and {len(messages) - _SHOWN} more")
    return "\n".join(lines) or "    nothing"


@dataclass(frozen=True)
class MessageView(PostedMessage):
    """A stored message.

    Attributes:
        size: bytes that count against quotas: properties and payload as received.
        arrival: time of arrival, by the broker's clock.
        waiting_for: applications without a confirmation.
    """

    size: int
    arrival: float
    waiting_for: tuple[str, ...]


@dataclass(slots=True)
class BrokerQueueStats:
    """An embedded broker's counts of a queue, from :meth:`QueueView.stats`.

    The last four attributes are levels.

    Attributes:
        posted: messages posted, without duplicates.
        posted_bytes: bytes posted.
        acknowledged: positive acknowledgements.
        refused: negative acknowledgements.
        pushed: deliveries, redeliveries included.
        pushed_bytes: bytes delivered.
        confirmed: deliveries confirmed.
        expired: messages deleted at the end of their TTL.
        poisoned: messages that used up their delivery attempts for an application.
        queued_seconds: sum of the times from arrival to delivery, in seconds of the broker's clock.
        held_seconds: sum of the times from delivery to confirmation.
        messages: stored messages.
        bytes: stored bytes.
        producers: number of openings for writing.
        consumers: number of openings for reading.
    """

    posted: int = 0
    posted_bytes: int = 0
    acknowledged: int = 0
    refused: int = 0
    pushed: int = 0
    pushed_bytes: int = 0
    confirmed: int = 0
    expired: int = 0
    poisoned: int = 0
    queued_seconds: float = 0.0
    held_seconds: float = 0.0
    messages: int = 0
    bytes: int = 0
    producers: int = 0
    consumers: int = 0


class AppView:
    """One application of a queue (``__default`` without appIds)."""

    def __init__(self, app: AppDelivery) -> None:
        self._app = app

    @property
    def pending(self) -> int:
        """Number of stored messages without a confirmation, delivered or not."""
        return sum(1 for message in self._app.queue.store if message.pending & self._app.bit)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """GUIDs of delivered, unconfirmed messages."""
        return tuple(guid_to_text(guid) for stream in self._app.streams for guid in stream.unconfirmed)

    @property
    def redelivery(self) -> tuple[str, ...]:
        """GUIDs of messages that wait for redelivery after their consumer has gone."""
        return tuple(guid_to_text(message.guid) for message in self._app.redelivery)

    @property
    def put_aside(self) -> tuple[str, ...]:
        """GUIDs of messages put aside because no consumer could take them."""
        return tuple(guid_to_text(message.guid) for message in self._app.aside)

    @property
    def consumers(self) -> int:
        """Number of clients that read the application."""
        return len(self._app.streams)

    def __repr__(self) -> str:
        return (
            f"<app {self._app.app_id}: {self.consumers} consumers, {self.pending} pending, "
            f"{len(self.unconfirmed)} unconfirmed>"
        )


class QueueView:
    """One queue. The values are always current; copy values to keep them."""

    def __init__(self, queue: BrokerQueue) -> None:
        self._queue = queue

    @property
    def uri(self) -> str:
        """URI of the queue."""
        return self._queue.uri

    def __len__(self) -> int:
        """How many messages are stored."""
        return len(self._queue.store)

    @property
    def domain(self) -> str:
        """Name of the domain."""
        return self._queue.domain.config.name

    @property
    def mode(self) -> str:
        """Mode of the domain: "priority", "fanout" or "broadcast"."""
        return self._queue.domain.config.mode.value

    @property
    def bytes(self) -> int:
        """How many bytes count against the quota."""
        return self._queue.store.usage.bytes

    @property
    def messages(self) -> list[MessageView]:
        """The stored messages, oldest first."""
        return [self._stored(message) for message in self._queue.store]

    def beginning(self, guid: str, most: int, *, app_id: str = "") -> Beginning | None:
        """Return the properties and the first bytes of a stored message, decompressing no more.

        Args:
            guid: the message's GUID.
            most: bytes of the payload to return, at most; limit for the bytes of the properties.
            app_id: return None if this application has confirmed the message; empty for any.

        Returns:
            The beginning; None if the message is not stored.

        Raises:
            ProtocolError: the message cannot be read.
        """
        try:
            found = self._queue.store.messages.get(bytes.fromhex(guid))
        except ValueError:
            return None
        if found is None:
            return None
        app = self._queue.apps.get(app_id)
        if app_id and (app is None or not found.pending & app.bit):
            return None
        data = memoryview(found.data)
        return read_beginning(
            data[: len(data) - data[-1]],
            has_properties=bool(found.flags & PutFlags.MESSAGE_PROPERTIES),
            schema_id=found.schema_id,
            compression=found.compression,
            most=most,
        )

    def _stored(self, message: MessageRecord) -> MessageView:
        data = message.data[: -message.data[-1]]
        properties, payload = _decoded(data, message.flags, message.schema_id, message.compression)
        return MessageView(
            self.uri,
            guid_to_text(message.guid),
            payload,
            properties,
            message.size,
            message.arrival,
            tuple(app.app_id for app in self._queue.apps.values() if message.pending & app.bit),
        )

    @property
    def apps(self) -> dict[str, AppView]:
        """The applications by name."""
        return {name: AppView(app) for name, app in self._queue.apps.items()}

    @property
    def unconfirmed(self) -> int:
        """How many deliveries are unconfirmed, over all applications."""
        return sum(len(app.unconfirmed) for app in self.apps.values())

    @property
    def clients(self) -> int:
        """Number of clients of the queue."""
        return len(self._queue.handles)

    @property
    def posted(self) -> int:
        """How many messages were posted, duplicates not counted."""
        return self._queue.counts.posted

    @property
    def refused(self) -> int:
        """How many posts were acknowledged negatively."""
        return self._queue.counts.refused

    @property
    def pushed(self) -> int:
        """How many deliveries were made, redeliveries counted."""
        return self._queue.counts.pushed

    @property
    def confirmed(self) -> int:
        """How many deliveries were confirmed."""
        return self._queue.counts.confirmed

    @property
    def expired(self) -> int:
        """Number of messages deleted at the end of their TTL."""
        return self._queue.counts.expired

    @property
    def poisoned(self) -> int:
        """Number of messages that used up their delivery attempts for an application."""
        return self._queue.counts.poisoned

    def stats(self) -> BrokerQueueStats:
        """Return a snapshot of the counts; the admin command STAT SHOW prints the same numbers."""
        return self._queue.stats()

    def purge(self) -> int:
        """Delete all messages, and forget GUIDs; return the number of messages."""
        return self._queue.purge()[0]

    def __repr__(self) -> str:
        return f"<queue {self.uri}: {len(self)} messages, {self.unconfirmed} unconfirmed>"


class QueuesView(Mapping[str, QueueView]):
    """The queues of a broker by URI. A URI with ``?id=`` finds the same queue."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def __getitem__(self, uri: str) -> QueueView:
        try:
            name = QueueUri.parse(uri).canonical
        except InvalidURI:
            name = uri
        if name not in self._node.queues:
            known = ", ".join(self._node.queues) or "none"
            raise KeyError(f"the broker has no queue {name}; its queues: {known}")
        return QueueView(self._node.queues[name])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._node.queues))

    def __len__(self) -> int:
        return len(self._node.queues)

    def __repr__(self) -> str:
        return f"<queues: {', '.join(self) or 'none'}>"
