# SPDX-License-Identifier: Apache-2.0
"""One client of a broker: its requests about queues, and its open queues.

An open queue is a handle, with a stream for each application that the client reads.

Checks, their order, statuses and texts follow a real broker (openQueue, configureStream, closeQueue).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from bmq.broker._consumer_filter import passes
from bmq.broker._domain import Refused
from bmq.broker._inflation import Exhausted, for_old_client
from bmq.broker._output import BrokerOutput
from bmq.broker._queue import BrokerQueue
from bmq.broker._routing import Subscriber
from bmq.broker._storage import MessageRecord
from bmq.broker.domain_config import Mode
from bmq.errors import InvalidURI, StatusCategory
from bmq.wire.constants import FIRST_RESERVED_QUEUE_ID, PushFlags
from bmq.wire.control import (
    DEFAULT_APP_ID,
    INVALID_CONSUMER_PRIORITY,
    OpenQueue,
    OpenQueueResponse,
    QueueFlags,
    QueueHandleParameters,
    RoutingConfiguration,
    RoutingFlags,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.padding import padding
from bmq.wire.printable import printable
from bmq.wire.properties import properties_length
from bmq.wire.push import encode_push_head
from bmq.wire.put import Put
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.broker._delivery import AppDelivery
    from bmq.broker._node import BrokerNode

__all__ = ["ConnectedClient", "QueueHandle", "SubStream"]

_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)
_RECYCLED = 1
_DEFAULT = SubQueueIdInfo()
_MAX_COUNT = 2**31 - 1
_INVALID = StatusCategory.E_INVALID_ARGUMENT
_REFUSED = StatusCategory.E_REFUSED
_UNKNOWN = StatusCategory.E_UNKNOWN
_REFUSED_ACK = 5
_NEGATIVE = "No [read|write|admin] Count must be <0"
#: How a client learns the mode of a queue.
_ROUTING = {
    Mode.PRIORITY: RoutingFlags(0),
    Mode.FANOUT: RoutingFlags.HAS_MULTIPLE_SUB_STREAMS,
    Mode.BROADCAST: RoutingFlags.AT_MOST_ONCE | RoutingFlags.DELIVER_ALL,
}
#: The qId and the subId of a confirmation.
_STREAM: Final = itemgetter(0, 2)


class ConnectedClient:
    """The broker's side of one session.

    Args:
        node: the broker.
        output: receives messages and acknowledgements for the client.
        new_properties: whether the client reads properties in the new encoding.
        description: name of the client, for logs and admin commands.
    """

    def __init__(
        self, node: BrokerNode, output: BrokerOutput, *, new_properties: bool, description: str
    ) -> None:
        self.node = node
        self.output = output
        self.new_properties = new_properties
        self.description = description
        # By qId, and by qId and subId, as in the binary headers.
        self.handles: dict[int, QueueHandle] = {}
        self._streams: dict[tuple[int, int], SubStream] = {}
        # How many bytes were decompressed for a queue and not posted yet.
        self._ahead: dict[int, int] = {}
        # Number of open streams.
        self._opened = 0
        output.flow = self._flow
        node.clients[self] = None

    # ---- requests

    def open_queue(self, request: OpenQueue, now: float) -> OpenQueueResponse:
        """Open a queue, or a further application of a queue.

        Raises:
            Refused: the queue cannot be opened.
        """
        wanted = request.handle_parameters
        try:
            uri = QueueUri.parse(wanted.uri)
        except InvalidURI as error:
            known = wanted.uri.startswith("bmq://")
            text = str(error) if known else 'Invalid scheme: uri must start with "bmq://"'
            raise Refused(_REFUSED, text) from error
        _check_parameters(wanted)
        self.node.faults.check_open(wanted)
        if self.node.stopping:
            raise Refused(_REFUSED, "Node is stopping", -11)
        domain = self.node.domain(uri.qualified_domain)
        if domain.removing:
            raise Refused(_REFUSED, "Domain is removing or removed", -10)
        info = wanted.sub_id_info or _DEFAULT
        queue = self.node.queue(domain, uri)
        try:
            self._check(queue, wanted, info.app_id)
        except Refused:
            self.node.discard_unused(queue)
            raise
        self._open(queue, wanted, info)
        routing = RoutingFlags.DELIVER_CONSUMER_PRIORITY | _ROUTING[domain.config.mode]
        return OpenQueueResponse(
            original_request=request,
            routing_configuration=RoutingConfiguration(flags=routing),
            deduplication_time_ms=domain.config.deduplication_time_ms,
        )

    def _check(self, queue: BrokerQueue, wanted: QueueHandleParameters, app_id: str) -> None:
        handle, most = self.handles.get(_signed(wanted.q_id)), self.node.bounds.queues_per_connection
        stream = handle.streams.get(app_id) if handle is not None else None
        if self._opened >= most and stream is None:
            raise Refused(_REFUSED, f"This connection has {most} queues open, the limit of this broker", -1)
        if wanted.read_count:
            if queue.fanout and app_id == DEFAULT_APP_ID:
                raise Refused(_UNKNOWN, "Reader of a fanout queue requires an appId to be specified.", -1)
            if not queue.fanout and app_id != DEFAULT_APP_ID:
                raise Refused(_UNKNOWN, "AppId should not be specified when opening a non-fanout queue", -1)
        if handle is not None and handle.queue is not queue:
            raise Refused(_INVALID, "queueId is already in use for a different queue", -1)
        if wanted.flags & QueueFlags.ADMIN:
            raise Refused(_INVALID, "Invalid handle parameters specified", -1)
        _check_limits(queue, wanted, app_id)
        readers, writers = (stream.readers, stream.writers) if stream is not None else (0, 0)
        if max(readers + wanted.read_count, writers + wanted.write_count) > _MAX_COUNT:
            raise Refused(_REFUSED, "Reached maximum read/write/admin counters for a queue", -1)

    def _open(self, queue: BrokerQueue, wanted: QueueHandleParameters, info: SubQueueIdInfo) -> None:
        q_id = _signed(wanted.q_id)
        handle = self.handles.get(q_id)
        if handle is None:
            handle = self.handles[q_id] = QueueHandle(self, queue, q_id)
            queue.handles[handle] = None
            self.node.in_use(queue)
        stream = handle.streams.get(info.app_id)
        if stream is None:
            stream = handle.streams[info.app_id] = SubStream(handle, info.app_id, info.sub_id)
            self._streams[q_id, info.sub_id] = stream
            self._opened += 1
        stream.readers += wanted.read_count
        stream.writers += wanted.write_count
        if wanted.read_count and stream.app is None:
            stream.app = queue.app_for(info.app_id)
            stream.app.streams[stream] = None
            if not stream.app.bit:
                self.node.limited.warning(
                    ("appId", self.description),
                    "%s reads %s as '%s', an appId that the domain does not have. The client receives no "
                    "messages until the appId is added to the domain",
                    self.description,
                    queue.uri,
                    printable(info.app_id),
                )

    def configure(self, q_id: int, parameters: StreamParameters) -> None:
        """Replace a stream's subscriptions.

        No message is delivered before the next :meth:`Node.deliver`, so that the answer goes out first.

        Raises:
            Refused: the stream is unknown, or the subscriptions are not possible.
        """
        handle = self._known(q_id)
        stream = handle.streams.get(parameters.app_id)
        if stream is None:
            raise Refused(_UNKNOWN, "No queue with specified appId")
        app = stream.app
        if app is None or not stream.readers:
            return
        for subscription in parameters.subscriptions:
            for consumer in subscription.consumers:
                valid = consumer.consumer_priority != INVALID_CONSUMER_PRIORITY
                if valid is not (consumer.consumer_priority_count > 0):
                    raise Refused(_UNKNOWN, "Attempting to configure stream with invalid priority.", -1)
        count = sum(max(1, len(each.consumers)) for each in parameters.subscriptions)
        most = self.node.bounds.subscriptions
        if count > most:
            text = f"{count} subscriptions of a consumer are more than the {most} of this broker"
            raise Refused(_REFUSED, text, -1)
        stream.configure(parameters.subscriptions)
        app.changed = True
        self.node.touch(handle.queue, app)

    def _known(self, q_id: int) -> QueueHandle:
        handle = self.handles.get(_signed(q_id))
        if handle is None:
            raise Refused(_UNKNOWN, "No queue with specified Id")
        return handle

    def close_queue(self, wanted: QueueHandleParameters, now: float, *, final: bool) -> None:
        """Close a queue, or one application of a queue.

        Raises:
            Refused: the queue is not open.
        """
        if max(wanted.read_count, wanted.write_count, wanted.admin_count) <= 0:
            raise Refused(_INVALID, "At least one of [read|write|admin]Count must be > 0")
        if min(wanted.read_count, wanted.write_count, wanted.admin_count) < 0:
            raise Refused(_INVALID, _NEGATIVE)
        handle = self._known(wanted.q_id)
        stream = self._streams.get((handle.q_id, (wanted.sub_id_info or _DEFAULT).sub_id))
        if stream is None:
            raise Refused(_UNKNOWN, "No subStream of the queue with specified subId")
        if not final:
            if wanted.read_count > stream.readers or wanted.write_count > stream.writers:
                raise Refused(_UNKNOWN, "Failed to release handle.")
            stream.readers -= wanted.read_count
            stream.writers -= wanted.write_count
            if not stream.readers:
                self._stop_reading(stream)
            if not stream.readers and not stream.writers:
                self._release(stream)
        if final or not handle.streams:
            self._close(handle, now)

    def _release(self, stream: SubStream, *, lost: bool = False) -> None:
        """Close a stream; unconfirmed messages go to other clients with the next :meth:`Node.deliver`."""
        self._stop_reading(stream, lost=lost)
        del stream.handle.streams[stream.app_id]
        self._streams.pop((stream.handle.q_id, stream.sub_id), None)
        self._opened -= 1

    def _stop_reading(self, stream: SubStream, *, lost: bool = False) -> None:
        queue, app = stream.handle.queue, stream.app
        if app is not None:
            stream.app = None
            app.leave(stream, lost=lost)
            self.node.touch(queue, app)
            if not app.bit and not app.streams:
                del queue.apps[app.app_id]

    def _close(self, handle: QueueHandle, now: float, *, lost: bool = False) -> None:
        for stream in list(handle.streams.values()):
            self._release(stream, lost=lost)
        del self.handles[handle.q_id], handle.queue.handles[handle]
        if not handle.queue.handles:
            self.node.idle(handle.queue, now)

    # ---- messages

    def post(self, q_id: int, puts: list[Put], now: float) -> None:
        """Post messages to one queue; see :meth:`BrokerQueue.post`."""
        self._ahead.clear()
        handle = self.handles.get(q_id)
        if handle is None:
            self.refuse(q_id, puts)
            return
        handle.queue.post(handle, self.node.faults.kept_posts(handle, puts), now)
        self.node.touch(handle.queue, None)

    def inflate(self, now: float, q_id: int, data: bytes) -> bytes | None:
        """Decompress a message with properties in the old encoding; data includes the padding.

        Returns:
            The data, or None: without room for the message, or if the data becomes too large.

        Raises:
            ProtocolError: the data cannot be decompressed, or does not begin with properties.
        """
        handle, ahead = self.handles.get(q_id), self._ahead.get(q_id, 0)
        if handle is None or not handle.writable:
            return None
        if not handle.queue.broadcast and handle.queue.store.usage.full(ahead):
            return None
        self.node.budget.tick(now)
        try:
            plain = self.node.budget.inflate(data[: -data[-1]])
        except Exhausted:
            return None
        self._ahead[q_id] = ahead + len(plain)
        properties_length(plain)
        return plain + padding(len(plain))

    def refuse(self, q_id: int, puts: Iterable[Put]) -> None:
        """Acknowledge messages negatively (status 5), requested or not."""
        for _, correlation_id, guid, *_ in puts:
            self.output.ack(_REFUSED_ACK, correlation_id, guid, q_id)

    def confirm(self, confirms: Iterable[tuple[int, bytes, int]], now: float) -> None:
        """Confirm messages by (qId, GUID, subId); unknown messages are ignored without an answer."""
        for ids, run in groupby(confirms, key=_STREAM):
            stream = self._streams.get(ids)
            if stream is not None and stream.app is not None and not stream.handle.queue.broadcast:
                self.node.touch(stream.handle.queue, None)
                guids = self.node.faults.kept_confirms(stream, [guid for _, guid, _ in run])
                stream.app.confirm(stream, guids, now)

    # ---- the end

    def drop(self, now: float, *, lost: bool) -> None:
        """Close all queues.

        Args:
            now: the time.
            lost: whether the connection broke; each unconfirmed message then loses a delivery attempt.
        """
        del self.node.clients[self]
        self.output.accepting = False
        for handle in list(self.handles.values()):
            self._close(handle, now, lost=lost)

    def _flow(self, accepting: bool) -> None:
        """Take part in routing only while the connection accepts data."""
        for handle in self.handles.values():
            for stream in handle.streams.values():
                for subscriber in stream.subscribers.values():
                    group = subscriber.group
                    if group is None or stream.app is None or stream.app.changed:
                        continue
                    if not accepting:
                        group.withdraw(subscriber)
                    elif group.admit(subscriber):
                        self.node.touch(handle.queue, stream.app)


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
        return self.handle.client.output.accepting

    def configure(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Replace the subscriptions; set :attr:`AppDelivery.changed` afterwards."""
        self.subscriptions = subscriptions
        self.active = {}
        for subscription in subscriptions:
            s_id = subscription.s_id
            subscriber = self.subscribers.get(s_id) or Subscriber(self, s_id)
            if subscriber.configure(subscription):
                self.subscribers[s_id] = subscriber
                self.active[s_id] = subscriber
        self.forget_subscribers()  # here, too: without messages the routing table is never rebuilt

    def clear(self) -> None:
        """Forget subscriptions and unconfirmed messages, after the last reader."""
        for subscriber in self.subscribers.values():
            subscriber.group = None  # breaks a cycle of references, to free memory at once
        self.subscriptions = ()
        self.active.clear()
        self.subscribers.clear()
        self.unconfirmed.clear()

    def forget_subscribers(self) -> None:
        """Drop withdrawn subscribers whose messages have been confirmed since."""
        for s_id, subscriber in list(self.subscribers.items()):
            if s_id not in self.active and not subscriber.messages:
                self.subscribers.pop(s_id).group = None

    def take(self, subscriber: Subscriber, message: MessageRecord, now: float) -> bool:
        """Count a message as delivered to a subscriber.

        Returns:
            False if the message must not be sent: the client already has the message, or the filter drops it.
        """
        guid, unconfirmed = message.guid, self.unconfirmed
        if guid in unconfirmed:
            return False
        consumer_filter = self.handle.queue.domain.config.consumer_filter
        if consumer_filter is not None and not passes(consumer_filter, subscriber, message):
            assert self.app is not None
            self.app.drop(message)
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
        client: the client.
        queue: the queue.
        q_id: the client's number, as in the binary headers.
        streams: streams by application id.
        put_schemas: the queue's schema number for each schema number of the client.
        push_schemas: the queue's schema numbers already sent to the client.
    """

    client: ConnectedClient
    queue: BrokerQueue
    q_id: int
    streams: dict[str, SubStream] = field(default_factory=dict[str, SubStream])
    put_schemas: dict[int, int] = field(default_factory=dict[int, int])
    push_schemas: set[int] = field(default_factory=set[int])

    @property
    def writable(self) -> bool:
        """Whether the client may post."""
        stream = self.streams.get(DEFAULT_APP_ID)
        return stream is not None and stream.writers > 0

    def push(self, message: MessageRecord, options: bytes, *, out_of_order: bool) -> None:
        """Send a message to the client; ``options`` name the matching subscriptions."""
        data, flags, schema_id = message.data, message.flags, message.schema_id
        compression = message.compression
        if schema_id:
            if not self.client.new_properties:
                budget = self.client.node.budget
                data, schema_id, compression = for_old_client(data, schema_id, compression, budget)
            elif schema_id > 1:
                schema_id = self.schema(schema_id)
        if out_of_order:
            flags |= _OUT_OF_ORDER
        self.client.output.push(
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


def _signed(q_id: int) -> int:
    """Return a qId as in the binary headers: queue ids are unsigned in requests, and signed there."""
    return q_id - 2**32 if q_id >= 2**31 else q_id


def _check_parameters(wanted: QueueHandleParameters) -> None:
    reads, writes, info = wanted.read_count, wanted.write_count, wanted.sub_id_info
    if max(reads, writes, wanted.admin_count) <= 0:
        raise Refused(_INVALID, "At least one of ([read|write]) Count must be >0")
    if min(reads, writes) < 0:
        raise Refused(_INVALID, _NEGATIVE)
    if wanted.admin_count:
        raise Refused(_INVALID, "adminCount must be 0")
    if bool(wanted.flags & QueueFlags.READ) is not (reads > 0):
        raise Refused(_INVALID, "Read flag and readCount must both be set accordingly")
    if bool(wanted.flags & QueueFlags.WRITE) is not (writes > 0):
        raise Refused(_INVALID, "Write flag and writeCount must both be set accordingly")
    if wanted.q_id >= FIRST_RESERVED_QUEUE_ID:
        raise Refused(_INVALID, "qId must not be set from the reserved queue ids range")
    if writes and info is not None and info.app_id != DEFAULT_APP_ID:
        text = "AppId should not be specified in the URI if queue is opened in write mode"
        raise Refused(_INVALID, text)


def _check_limits(queue: BrokerQueue, wanted: QueueHandleParameters, app_id: str) -> None:
    config, app = queue.domain.config, queue.apps.get(app_id)
    problems: list[str] = []
    most = config.max_producers
    if most and wanted.write_count > 0 and queue.writers + wanted.write_count > most:
        problems.append(f"{most} producer(s)")
    most = config.max_consumers
    if most and wanted.read_count > 0 and (app.readers if app else 0) + wanted.read_count > most:
        problems.append(f"{most} consumer(s)")
    if problems:
        text = f"Client would exceed the limit of {' and the limit of '.join(problems)}"
        raise Refused(_UNKNOWN, text, -1)
