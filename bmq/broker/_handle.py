# SPDX-License-Identifier: Apache-2.0
"""A client's open queue: a handle, with a stream for each application that the client reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bmq.broker._consumer_filter import passes
from bmq.broker._inflation import for_old_client
from bmq.broker._output import BrokerOutput
from bmq.broker._routing import Subscriber
from bmq.broker._storage import MessageRecord
from bmq.wire.constants import PushFlags
from bmq.wire.control import DEFAULT_APP_ID, Subscription
from bmq.wire.push import encode_push_head

if TYPE_CHECKING:
    from bmq.broker._delivery import AppDelivery
    from bmq.broker._queue import BrokerQueue

__all__ = ["QueueHandle", "SubStream"]

_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)
_RECYCLED = 1


@dataclass(slots=True, eq=False)
class SubStream:
    """One application of a queue, as opened by one client.

    Attributes:
        handle: the client's handle of the queue.
        app_id: the application id.
        sub_id: the client's number for the application.
        app: the application; None for a write-only stream.
        readers: number of times the stream is open for reading.
        writers: number of times the stream is open for writing.
        subscriptions: the client's latest configuration.
        subscribers: the subscriptions by id, including those without a part in routing.
        active: the subscriptions of the configuration that have a consumer.
        unconfirmed: delivered messages in the order of delivery, with the time of delivery.
        last_sent: time and GUID of the latest message sent out of order; None after the confirmation.
    """

    handle: QueueHandle
    app_id: str
    sub_id: int
    app: AppDelivery | None = None
    readers: int = 0
    writers: int = 0
    subscriptions: tuple[Subscription, ...] = ()
    subscribers: dict[int, Subscriber] = field(default_factory=dict[int, Subscriber])
    active: dict[int, Subscriber] = field(default_factory=dict[int, Subscriber])
    unconfirmed: dict[bytes, tuple[MessageRecord, Subscriber, float]] = field(
        default_factory=dict[bytes, tuple[MessageRecord, Subscriber, float]]
    )
    last_sent: tuple[float, bytes] | None = None

    @property
    def open(self) -> bool:
        """Whether messages may be sent: the client is connected and keeps reading."""
        return self.handle.output.accepting

    def configure(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Replace the subscriptions; call :meth:`AppDelivery.change` afterwards."""
        self.subscriptions = subscriptions
        self.active.clear()
        for subscription in subscriptions:
            s_id = subscription.s_id
            subscriber = self.subscribers.get(s_id) or Subscriber(self, s_id)
            if subscriber.configure(subscription):
                self.subscribers[s_id] = subscriber
                self.active[s_id] = subscriber

    def close(self) -> None:
        """Drop all references once the stream is closed and has no unconfirmed messages."""
        self.app = None
        self.subscribers.clear()
        self.active.clear()

    def forget_subscribers(self) -> None:
        """Drop subscribers without a configuration and without unconfirmed messages."""
        wanted = {s.s_id for s in self.subscriptions}
        for s_id, subscriber in list(self.subscribers.items()):
            if s_id not in wanted and not subscriber.messages:
                del self.subscribers[s_id]

    def take(self, subscriber: Subscriber, message: MessageRecord, now: float) -> bool:
        """Count a message as delivered to a subscriber.

        Returns:
            False if the message must not be sent: the client already has the message, or the filter drops it.
        """
        guid, unconfirmed = message.guid, self.unconfirmed
        if guid in unconfirmed:
            return False
        queue = self.handle.queue
        if queue.consumer_filter is not None and not passes(queue.consumer_filter, subscriber, message):
            assert self.app is not None
            queue.effort.dropped.append((self.app, message))
            return False
        unconfirmed[guid] = (message, subscriber, now)
        subscriber.messages += 1
        subscriber.size += message.size
        group = subscriber.group
        if subscriber.messages >= subscriber.max_messages or subscriber.size >= subscriber.max_bytes:
            subscriber.full = True
            if group is not None:
                group.withdraw(subscriber)
            return True
        subscriber.turns -= 1
        if not subscriber.turns:
            subscriber.turns = subscriber.count
            if group is not None and group.first is subscriber:
                group.ready.move_to_end(subscriber)
        return True


@dataclass(slots=True, eq=False)
class QueueHandle:
    """A queue opened by one client, under the client's number for the queue.

    Attributes:
        queue: the queue.
        q_id: the client's number, as in the binary headers.
        output: receives PUSH and ACK messages for the client.
        new_properties: whether the client reads properties in the new encoding.
        description: name of the client, for logs and admin commands.
        streams: streams by application id.
        closing: whether the client has sent the final close.
        put_schemas: the queue's schema number for each schema number of the client.
        push_schemas: the queue's schema numbers already sent to the client.
    """

    queue: BrokerQueue
    q_id: int
    output: BrokerOutput
    new_properties: bool
    description: str
    streams: dict[str, SubStream] = field(default_factory=dict[str, SubStream])
    closing: bool = False
    put_schemas: dict[int, int] = field(default_factory=dict[int, int])
    push_schemas: set[int] = field(default_factory=set[int])

    @property
    def writable(self) -> bool:
        """Whether the client may post."""
        stream = self.streams.get(DEFAULT_APP_ID)
        return stream is not None and stream.writers > 0 and not self.closing

    def push(self, message: MessageRecord, options: bytes, *, out_of_order: bool) -> None:
        """Send a message to the client; ``options`` name the matching subscriptions."""
        data, flags, schema_id = message.data, message.flags, message.schema_id
        compression = message.compression
        if schema_id:
            if not self.new_properties:
                budget = self.queue.budget
                data, schema_id, compression = for_old_client(data, schema_id, compression, budget)
            elif schema_id > 1:
                schema_id = self.schema(schema_id)
        if out_of_order:
            flags |= _OUT_OF_ORDER
        self.output.push(
            encode_push_head(self.q_id, message.guid, len(data), options, flags, schema_id, compression),
            data,
        )

    def schema(self, schema_id: int) -> int:
        """Return a schema id for the client; the first id of a schema makes the client learn the schema."""
        # The recycled bit makes a client learn a schema anew. Set the bit on the first use of the schema.
        number = schema_id >> 1
        if number in self.push_schemas:
            return number << 1
        self.push_schemas.add(number)
        return number << 1 | _RECYCLED
