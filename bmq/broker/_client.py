# SPDX-License-Identifier: Apache-2.0
"""One client of a broker: its requests about queues, and its open queues.

An open queue is a handle, with a stream for each application that the client reads.

Checks, their order, statuses and texts follow a real broker (openQueue, configureStream, closeQueue).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from bmq.broker._consumer_filter import passes
from bmq.broker._domain import Unavailable
from bmq.broker._inflation import Exhausted, for_old_client
from bmq.broker._output import BrokerOutput
from bmq.broker._queue import BrokerQueue
from bmq.broker._routing import Subscriber
from bmq.broker._storage import MessageRecord
from bmq.errors import InvalidURI, StatusCategory
from bmq.wire.constants import FIRST_RESERVED_QUEUE_ID, PushFlags
from bmq.wire.control import (
    DEFAULT_APP_ID,
    INVALID_CONSUMER_PRIORITY,
    CloseQueueResponse,
    OpenQueue,
    OpenQueueResponse,
    QueueFlags,
    QueueHandleParameters,
    RoutingConfiguration,
    RoutingFlags,
    Status,
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
#: The qId and the subId of a confirmation.
_STREAM: Final = itemgetter(0, 2)

_SCHEME = "bmq://"
_ILLEGAL_IN_DOMAIN = re.compile(r"[^-a-zA-Z0-9._]")
_ILLEGAL_IN_TIER = re.compile(r"[^-a-zA-Z0-9]")
_ILLEGAL_IN_NAME = re.compile(r"[^-a-zA-Z0-9_.]")
_LONGEST_QUEUE_NAME = 64


def _status(category: StatusCategory, message: str, code: int = 0) -> Status:
    return Status(category=category, code=code, message=message)


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

    def open_queue(self, request: OpenQueue, now: float) -> OpenQueueResponse | Status:
        """Open a queue, or a further application of a queue."""
        wanted = request.handle_parameters
        try:
            uri = QueueUri.parse(wanted.uri)
        except InvalidURI as error:
            return _status(_REFUSED, _uri_problem(wanted.uri) or str(error))
        problem = _check_parameters(wanted)
        if problem:
            return _status(_INVALID, problem)
        if refusal := self.node.faults.refused_open(wanted):
            return refusal
        if self.node.stopping:
            return _status(_REFUSED, "Node is stopping", -11)
        try:
            domain = self.node.domain(uri.qualified_domain)
        except Unavailable as error:
            return error.status
        if domain.removing:
            return _status(_REFUSED, "Domain is removing or removed", -10)
        info = wanted.sub_id_info or _DEFAULT
        handle, most = self.handles.get(_signed(wanted.q_id)), self.node.bounds.queues_per_connection
        stream = handle.streams.get(info.app_id) if handle is not None else None
        if self._opened >= most and stream is None:
            return _status(_REFUSED, f"This connection has {most} queues open, the limit of this broker", -1)
        queue = self.node.queue(domain, uri)
        if queue is None:
            return _status(_REFUSED, "maximum number of queues reached", -205)
        refusal = _check_queue(queue, handle, stream, wanted, info.app_id)
        if refusal is not None:
            self.node.discard_unused(queue)
            return refusal
        self._open(handle or self._handle(queue, wanted), wanted, info)
        return OpenQueueResponse(
            original_request=request,
            routing_configuration=RoutingConfiguration(flags=_routing_flags(queue)),
            deduplication_time_ms=domain.config.deduplication_time_ms,
        )

    def _handle(self, queue: BrokerQueue, wanted: QueueHandleParameters) -> QueueHandle:
        handle = QueueHandle(queue, _signed(wanted.q_id), self.output, self.new_properties, self.description)
        self.handles[handle.q_id] = handle
        queue.handles[handle] = None
        self.node.in_use(queue)
        return handle

    def _open(self, handle: QueueHandle, wanted: QueueHandleParameters, info: SubQueueIdInfo) -> None:
        queue = handle.queue
        stream = handle.streams.get(info.app_id)
        if stream is None:
            stream = handle.streams[info.app_id] = SubStream(handle, info.app_id, info.sub_id)
            self._streams[handle.q_id, info.sub_id] = stream
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

    def configure(self, q_id: int, parameters: StreamParameters, now: float) -> Status | None:
        """Replace a stream's subscriptions; None means success.

        No message is delivered before the next :meth:`Node.deliver`, so that the answer goes out first.
        """
        handle = self.handles.get(_signed(q_id))
        if handle is None:
            return _status(_UNKNOWN, "No queue with specified Id")
        stream = handle.streams.get(parameters.app_id)
        if stream is None:
            return _status(_UNKNOWN, "No queue with specified appId")
        app = stream.app
        if app is None or not stream.readers:
            return None
        for subscription in parameters.subscriptions:
            for consumer in subscription.consumers:
                valid = consumer.consumer_priority != INVALID_CONSUMER_PRIORITY
                if valid is not (consumer.consumer_priority_count > 0):
                    return _status(_UNKNOWN, "Attempting to configure stream with invalid priority.", -1)
        count = sum(max(1, len(each.consumers)) for each in parameters.subscriptions)
        most = self.node.bounds.subscriptions
        if count > most:
            return _status(
                _REFUSED, f"{count} subscriptions of a consumer are more than the {most} of this broker", -1
            )
        stream.configure(parameters.subscriptions)
        app.changed = True
        self.node.touch(handle.queue, app)
        return None

    def close_queue(
        self, wanted: QueueHandleParameters, now: float, *, final: bool
    ) -> CloseQueueResponse | Status:
        """Close a queue, or one application of a queue."""
        if wanted.read_count <= 0 and wanted.write_count <= 0 and wanted.admin_count <= 0:
            return _status(_INVALID, "At least one of [read|write|admin]Count must be > 0")
        if min(wanted.read_count, wanted.write_count, wanted.admin_count) < 0:
            return _status(_INVALID, _NEGATIVE)
        handle = self.handles.get(_signed(wanted.q_id))
        if handle is None:
            return _status(_UNKNOWN, "No queue with specified Id")
        sub_id = (wanted.sub_id_info or _DEFAULT).sub_id
        stream = self._streams.get((handle.q_id, sub_id))
        if stream is None:
            return _status(_UNKNOWN, "No subStream of the queue with specified subId")
        if final:
            self._close([handle], now)
        elif wanted.read_count > stream.readers or wanted.write_count > stream.writers:
            return _status(_UNKNOWN, "Failed to release handle.")
        else:
            self._release(stream, wanted.read_count, wanted.write_count, now)
            if not handle.streams:
                self._close([handle], now)
        return CloseQueueResponse()

    def _release(self, stream: SubStream, readers: int, writers: int, now: float) -> None:
        handle = stream.handle
        stream.readers -= readers
        stream.writers -= writers
        if readers and not stream.readers:
            handle.queue.detach([stream], now=now)
            stream.app = None
        if not stream.readers and not stream.writers:
            stream.close()
            del handle.streams[stream.app_id]
            self._forget(stream)

    def _forget(self, stream: SubStream) -> None:
        self._opened -= 1
        self._streams.pop((stream.handle.q_id, stream.sub_id), None)

    def _close(self, handles: list[QueueHandle], now: float) -> None:
        """Close handles; afterwards unconfirmed messages go to other clients, queue by queue."""
        left: dict[BrokerQueue, list[SubStream]] = {}
        for handle in handles:
            handle.closing = True
            left.setdefault(handle.queue, []).extend(handle.streams.values())
            handle.queue.handles.pop(handle, None)
            self.handles.pop(handle.q_id, None)
            for stream in handle.streams.values():
                self._forget(stream)
        for queue, streams in left.items():
            queue.detach(streams, now=now)
            for stream in streams:
                stream.close()
            if not queue.handles:
                self.node.idle(queue, now)
        for handle in handles:
            handle.streams.clear()

    # ---- messages

    def post(self, q_id: int, puts: list[Put], now: float) -> None:
        """Post messages to one queue; see :meth:`BrokerQueue.post`."""
        if self._ahead:
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
        if handle is None or not handle.queue.room(handle, ahead):
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
        handles = list(self.handles.values())
        if lost:
            for handle in handles:
                for stream in handle.streams.values():
                    if stream.app is not None:
                        stream.app.reject(stream)
        self._close(handles, now)

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
        return self.handle.output.accepting

    def configure(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Replace the subscriptions; set :attr:`AppDelivery.changed` afterwards."""
        self.subscriptions = subscriptions
        before, self.active = self.active, {}
        for subscription in subscriptions:
            s_id = subscription.s_id
            subscriber = self.subscribers.get(s_id) or Subscriber(self, s_id)
            if subscriber.configure(subscription):
                self.subscribers[s_id] = subscriber
                self.active[s_id] = subscriber
        # Here, not in forget_subscribers: without messages the routing table is never rebuilt.
        for s_id, subscriber in before.items():
            if s_id not in self.active and not subscriber.messages:
                subscriber.group = None
                del self.subscribers[s_id]

    def close(self) -> None:
        """Drop all references once the stream is closed and has no unconfirmed messages."""
        self.app = None
        self.subscribers.clear()
        self.active.clear()

    def forget_subscribers(self) -> None:
        """Drop withdrawn subscribers whose messages have been confirmed since."""
        for s_id, subscriber in list(self.subscribers.items()):
            if s_id not in self.active and not subscriber.messages:
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


def _signed(q_id: int) -> int:
    """Return a qId as in the binary headers: queue ids are unsigned in requests, and signed there."""
    return q_id - 2**32 if q_id >= 2**31 else q_id


def _uri_problem(uri: str) -> str:
    """Return the text for a bad queue URI; "" when it finds nothing wrong."""
    if not uri.startswith(_SCHEME):
        return f'Invalid scheme: uri must start with "{_SCHEME}"'
    authority, slash, path = uri[len(_SCHEME) :].partition("/")
    domain, has_tier, tier = authority.partition(".~")
    if not domain:
        return "Missing domain"
    if bad := _ILLEGAL_IN_DOMAIN.search(domain):
        return f"Domain parsing failed: unsupported char (int){ord(bad[0])}"
    if has_tier and not tier:
        return "Empty tier"
    if bad := _ILLEGAL_IN_TIER.search(tier):
        return f"Tier parsing failed: unsupported char (int){ord(bad[0])}"
    queue, question, query = path.partition("?")
    if not slash or not queue:
        return "Missing queue"
    if bad := _ILLEGAL_IN_NAME.search(queue):
        return f"Path parsing failed: unsupported char (int){ord(bad[0])}"
    if question:
        key, equals, app_id = query.partition("=")
        if not equals:
            return "Query parsing failed: no separator found"
        if not app_id:
            return 'Query parsing failed: missing value after "="'
        if key != "id":
            return f'Query parsing failed: unsupported query "{key}"'
        if bad := _ILLEGAL_IN_NAME.search(app_id):
            return f"Query parsing failed: unsupported char (int){ord(bad[0])}"
    if len(queue) > _LONGEST_QUEUE_NAME:
        return f"Queue name exceeds {_LONGEST_QUEUE_NAME} characters"
    return ""


def _check_parameters(wanted: QueueHandleParameters) -> str:
    if wanted.read_count <= 0 and wanted.write_count <= 0 and wanted.admin_count <= 0:
        return "At least one of ([read|write]) Count must be >0"
    if min(wanted.read_count, wanted.write_count) < 0:
        return _NEGATIVE
    if wanted.admin_count:
        return "adminCount must be 0"
    if bool(wanted.flags & QueueFlags.READ) is not (wanted.read_count > 0):
        return "Read flag and readCount must both be set accordingly"
    if bool(wanted.flags & QueueFlags.WRITE) is not (wanted.write_count > 0):
        return "Write flag and writeCount must both be set accordingly"
    if wanted.q_id >= FIRST_RESERVED_QUEUE_ID:
        return "qId must not be set from the reserved queue ids range"
    info = wanted.sub_id_info
    if wanted.flags & QueueFlags.WRITE and info is not None and info.app_id != DEFAULT_APP_ID:
        return "AppId should not be specified in the URI if queue is opened in write mode"
    return ""


def _check_queue(
    queue: BrokerQueue,
    handle: QueueHandle | None,
    stream: SubStream | None,
    wanted: QueueHandleParameters,
    app_id: str,
) -> Status | None:
    if wanted.read_count:
        if queue.fanout and app_id == DEFAULT_APP_ID:
            return _status(_UNKNOWN, "Reader of a fanout queue requires an appId to be specified.", -1)
        if not queue.fanout and app_id != DEFAULT_APP_ID:
            return _status(_UNKNOWN, "AppId should not be specified when opening a non-fanout queue", -1)
    if handle is not None and handle.queue is not queue:
        return _status(_INVALID, "queueId is already in use for a different queue", -1)
    if wanted.flags & QueueFlags.ADMIN:
        return _status(_INVALID, "Invalid handle parameters specified", -1)
    if problem := _check_limits(queue, wanted, app_id):
        return _status(_UNKNOWN, problem, -1)
    readers, writers = (stream.readers, stream.writers) if stream is not None else (0, 0)
    if max(readers + wanted.read_count, writers + wanted.write_count) > _MAX_COUNT:
        return _status(_REFUSED, "Reached maximum read/write/admin counters for a queue", -1)
    return None


def _check_limits(queue: BrokerQueue, wanted: QueueHandleParameters, app_id: str) -> str:
    config, app = queue.domain.config, queue.apps.get(app_id)
    problems: list[str] = []
    most = config.max_producers
    if most and wanted.write_count > 0 and queue.writers + wanted.write_count > most:
        problems.append(f"{most} producer(s)")
    most = config.max_consumers
    if most and wanted.read_count > 0 and (app.readers if app else 0) + wanted.read_count > most:
        problems.append(f"{most} consumer(s)")
    return "Client would exceed the limit of " + " and the limit of ".join(problems) if problems else ""


def _routing_flags(queue: BrokerQueue) -> int:
    if queue.broadcast:
        return RoutingFlags.AT_MOST_ONCE | RoutingFlags.DELIVER_CONSUMER_PRIORITY | RoutingFlags.DELIVER_ALL
    if queue.fanout:
        return RoutingFlags.DELIVER_CONSUMER_PRIORITY | RoutingFlags.HAS_MULTIPLE_SUB_STREAMS
    return RoutingFlags.DELIVER_CONSUMER_PRIORITY
