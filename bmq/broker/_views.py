# SPDX-License-Identifier: Apache-2.0
"""Looking into an embedded broker: what its queues store, and which consumers have what. For tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from bmq.broker._app_delivery import AppDelivery
from bmq.broker._node import Node
from bmq.broker._queue import BrokerQueue
from bmq.broker._storage import MessageRecord
from bmq.errors import InvalidURI
from bmq.wire.constants import PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import Beginning, read_beginning, split_application_data
from bmq.wire.properties import Properties
from bmq.wire.uri import QueueUri

__all__ = ["AppView", "BrokerQueueStats", "MessageView", "QueueView", "QueuesView"]


@dataclass(frozen=True)
class MessageView:
    """A message as it is stored.

    Attributes:
        guid: its GUID, 32 upper-case hexadecimal digits.
        payload: its payload, decompressed.
        properties: its properties.
        size: bytes that count against quotas: properties and payload as they came.
        arrival: when it came, by the broker's clock.
        waiting_for: the applications that have not confirmed it.
    """

    guid: str
    payload: bytes
    properties: Properties
    size: int
    arrival: float
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerQueueStats:
    """What an embedded broker has counted of a queue, as :meth:`QueueView.stats` returns it.

    ``after - before`` is what was counted in between; the last four attributes are those of the later one.

    Attributes:
        posted: messages posted, duplicates not counted.
        posted_bytes: their bytes.
        acknowledged: positive acknowledgements.
        refused: negative ones.
        pushed: deliveries, redeliveries counted.
        pushed_bytes: their bytes.
        confirmed: deliveries that were confirmed.
        expired: messages that outlived their TTL.
        poisoned: messages that used up their delivery attempts for an application.
        queued_seconds: how long messages waited before they were delivered, all together, in seconds of the
            broker's clock.
        held_seconds: how long consumers had them before they confirmed them, all together.
        messages: what is stored.
        bytes: the bytes of that.
        producers: how often the queue is open for writing.
        consumers: how often it is open for reading.
    """

    posted: int
    posted_bytes: int
    acknowledged: int
    refused: int
    pushed: int
    pushed_bytes: int
    confirmed: int
    expired: int
    poisoned: int
    queued_seconds: float
    held_seconds: float
    messages: int
    bytes: int
    producers: int
    consumers: int

    def __sub__(self, earlier: BrokerQueueStats) -> BrokerQueueStats:
        changes = {name: getattr(self, name) - getattr(earlier, name) for name in _GROWING}
        return replace(self, **changes)


_GROWING = [each.name for each in fields(BrokerQueueStats)][:-4]


class AppView:
    """One application of a queue (``__default`` where there are no appIds)."""

    def __init__(self, app: AppDelivery) -> None:
        self._app = app

    @property
    def authorized(self) -> bool:
        """Whether the domain knows the application; otherwise it gets no messages."""
        return bool(self._app.bit)

    @property
    def pending(self) -> int:
        """How many stored messages it has not confirmed, delivered or not."""
        return sum(1 for message in self._app.queue.store if message.pending & self._app.bit)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """GUIDs of the messages its consumers have and have not confirmed."""
        return tuple(guid_to_text(guid) for stream in self._app.streams for guid in stream.unconfirmed)

    @property
    def redelivery(self) -> tuple[str, ...]:
        """GUIDs of the messages whose consumer has gone, and that wait for another one."""
        return tuple(guid_to_text(message.guid) for message in self._app.redelivery)

    @property
    def put_aside(self) -> tuple[str, ...]:
        """GUIDs of the messages that no consumer could take when it was their turn."""
        return tuple(guid_to_text(message.guid) for message in self._app.aside)

    @property
    def consumers(self) -> int:
        """How many clients read it."""
        return len(self._app.streams)

    def __repr__(self) -> str:
        return (
            f"<app {self._app.app_id}: {self.consumers} consumers, {self.pending} pending, "
            f"{len(self.unconfirmed)} unconfirmed>"
        )


class QueueView:
    """One queue. Its values are always the present ones; copy what should stay."""

    def __init__(self, queue: BrokerQueue) -> None:
        self._queue = queue

    @property
    def uri(self) -> str:
        """Its URI."""
        return self._queue.uri

    def __len__(self) -> int:
        """How many messages are stored."""
        return len(self._queue.store)

    @property
    def domain(self) -> str:
        """The name of its domain."""
        return self._queue.domain.config.name

    @property
    def mode(self) -> str:
        """How its messages are handed out: "priority", "fanout" or "broadcast"."""
        return self._queue.domain.config.mode.value

    @property
    def bytes(self) -> int:
        """How many bytes count against the quota."""
        return self._queue.store.usage.bytes

    @property
    def messages(self) -> list[MessageView]:
        """What is stored, oldest first."""
        return [self._stored(message) for message in self._queue.store]

    def message(self, guid: str) -> MessageView | None:
        """Return a message that is stored, by its GUID; None when it is not there."""
        try:
            found = self._queue.store.get(bytes.fromhex(guid))
        except ValueError:
            return None
        return None if found is None else self._stored(found)

    def beginning(self, guid: str, most: int, *, app_id: str = "") -> Beginning | None:
        """Return the properties and the first bytes of a stored message, decompressing no more than these.

        Args:
            guid: the message's GUID.
            most: how many bytes of the payload to return, and how many bytes the properties may take.
            app_id: return None unless this application has still to confirm the message; empty for any.

        Returns:
            The beginning; None when no such message is stored.

        Raises:
            ProtocolError: the message cannot be read.
        """
        try:
            found = self._queue.store.get(bytes.fromhex(guid))
        except ValueError:
            return None
        if found is None:
            return None
        if app_id and not any(
            found.pending & app.bit for app in self._queue.apps.values() if app.app_id == app_id
        ):
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
        properties, payload = split_application_data(
            message.data[: -message.data[-1]],
            has_properties=bool(message.flags & PutFlags.MESSAGE_PROPERTIES),
            schema_id=message.schema_id,
            compression=message.compression,
        )
        return MessageView(
            guid_to_text(message.guid),
            payload,
            properties,
            message.size,
            message.arrival,
            tuple(app.app_id for app in self._queue.apps.values() if message.pending & app.bit),
        )

    @property
    def apps(self) -> dict[str, AppView]:
        """Its applications by name."""
        return {name: AppView(app) for name, app in self._queue.apps.items()}

    @property
    def unconfirmed(self) -> int:
        """How many deliveries are unconfirmed, over all applications."""
        return sum(len(app.unconfirmed) for app in self.apps.values())

    @property
    def clients(self) -> int:
        """How many clients have it open."""
        return len(self._queue.handles)

    @property
    def posted(self) -> int:
        """How many messages were posted, duplicates not counted."""
        return self._queue.posted

    @property
    def refused(self) -> int:
        """How many posts were acknowledged negatively."""
        return self._queue.refused

    @property
    def pushed(self) -> int:
        """How many deliveries were made, redeliveries counted."""
        return self._queue.pushed

    @property
    def confirmed(self) -> int:
        """How many deliveries were confirmed."""
        return self._queue.confirmed

    @property
    def expired(self) -> int:
        """How many messages outlived their TTL."""
        return self._queue.expired

    @property
    def poisoned(self) -> int:
        """How many messages used up their delivery attempts for an application."""
        return self._queue.poisoned

    def stats(self) -> BrokerQueueStats:
        """Return a snapshot of what was counted; the admin command STAT SHOW prints the same numbers."""
        queue, apps = self._queue, self._queue.apps.values()
        streams = [stream for handle in queue.handles for stream in handle.streams.values()]
        return BrokerQueueStats(
            posted=queue.posted,
            posted_bytes=queue.posted_bytes,
            acknowledged=queue.acknowledged,
            refused=queue.refused,
            pushed=queue.pushed,
            pushed_bytes=queue.pushed_bytes,
            confirmed=queue.confirmed,
            expired=queue.expired,
            poisoned=queue.poisoned,
            queued_seconds=sum(app.queue_times.seconds for app in apps),
            held_seconds=sum(app.confirm_times.seconds for app in apps),
            messages=len(queue.store),
            bytes=queue.store.usage.bytes,
            producers=sum(stream.writers for stream in streams),
            consumers=sum(stream.readers for stream in streams),
        )

    def purge(self) -> int:
        """Delete what is stored, and forget GUIDs; return how many messages there were."""
        return self._queue.purge()[0]

    def __repr__(self) -> str:
        return f"<queue {self.uri}: {len(self)} messages, {self.unconfirmed} unconfirmed>"


class QueuesView(Mapping[str, QueueView]):
    """The queues of a broker by URI. A URI with ``?id=`` finds the queue it belongs to."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getitem__(self, uri: str) -> QueueView:
        try:
            name = QueueUri.parse(uri).canonical
        except InvalidURI:
            name = uri
        if name not in self._node.queues:
            known = ", ".join(self._node.queues) or "none"
            raise KeyError(f"no queue {name}; there are: {known}")
        return QueueView(self._node.queues[name])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._node.queues))

    def __len__(self) -> int:
        return len(self._node.queues)

    def __repr__(self) -> str:
        return f"<queues: {', '.join(self) or 'none'}>"
