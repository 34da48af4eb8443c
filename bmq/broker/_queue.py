# SPDX-License-Identifier: Apache-2.0
"""A queue: a single copy of each message, and the applications with a need for the message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from bmq.broker._consumer_filter import passes
from bmq.broker._delivery import AppDelivery
from bmq.broker._routing import Subscriber, compile_expression
from bmq.broker._storage import MessageRecord, MessageStore, compact, property_lookup
from bmq.broker._views import BrokerQueueStats, PostedMessage
from bmq.broker.domain_config import DomainConfig, Mode
from bmq.subscriptions import Evaluator
from bmq.wire.constants import PutFlags
from bmq.wire.control import DEFAULT_APP_ID, ExpressionVersion
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.broker._client import QueueHandle
    from bmq.broker._domain import Domain
    from bmq.broker._node import BrokerNode
    from bmq.wire.put import Put

__all__ = ["NEVER", "BrokerQueue"]

#: The deadline of a queue without expiry.
NEVER = float("inf")

_ACK_REQUESTED = int(PutFlags.ACK_REQUESTED)
_PROPERTIES = int(PutFlags.MESSAGE_PROPERTIES)
_REFUSED = 5
_LIMIT_BYTES = 2
_MAX_SCHEMA = 2**15 - 1
_NO_SCHEMA = 1


class BrokerQueue:
    """A queue: the stored messages, the applications, and the clients' handles.

    Attributes:
        uri: canonical URI.
        domain: the domain.
        apps: applications by name, including opened applications unknown to the domain.
        authorized: applications of the domain.
        handles: clients of the queue, in the order of opening.
        store: the messages.
        position: first message not considered by any application; None if every message was considered.
        node: the broker.
        idle_since: time when the last client left; None while a client has the queue open.
        deadline: time of the node's next look at the queue.
        counts: what happened so far; :meth:`stats` adds what there is at present.
    """

    def __init__(self, uri: QueueUri, domain: Domain, node: BrokerNode) -> None:
        self.uri = uri.canonical
        self.domain = domain
        self.node = node
        self.apps: dict[str, AppDelivery] = {}
        self.authorized: list[AppDelivery] = []
        self.handles: dict[QueueHandle, None] = {}
        self.position: MessageRecord | None = None
        self.idle_since: float | None = None
        self.deadline = NEVER
        self.counts = BrokerQueueStats()
        self._schemas = 0
        self._next_bit = 1
        self._filters: list[tuple[int, Evaluator]] = []
        self._mask = 0
        config = domain.config
        self.broadcast = config.mode is Mode.BROADCAST
        self.fanout = config.mode is Mode.FANOUT
        window = config.deduplication_time_ms / 1000
        self.store: MessageStore = MessageStore(config.queue_limits, domain.usage, window, node.history_limit)
        self.configure(config)

    # ---- configuration

    def configure(self, config: DomainConfig) -> None:
        """Use another configuration of the domain, for messages posted from now on."""
        names = config.app_ids if self.fanout else (DEFAULT_APP_ID,)
        for app_id in names:
            app = self.app_for(app_id)
            if not app.bit:
                app.bit = self._next_bit
                self._next_bit <<= 1
        for app_id, app in list(self.apps.items()):
            if app_id not in names and app.bit:
                self.purge(app)
                app.bit = 0
                if not app.streams:
                    del self.apps[app_id]
        # A separate list: opening unknown applications must not slow down known applications.
        self.authorized = [app for app in self.apps.values() if app.bit]
        texts = {
            (s.app_id if self.fanout else DEFAULT_APP_ID): s.text for s in config.subscriptions
        }  # Of several subscriptions of an application, the last counts.
        self._filters = []
        for app in self.authorized:
            matcher = compile_expression(ExpressionVersion.E_VERSION_1, texts.get(app.app_id, ""))
            if matcher is not None:
                self._filters.append((app.bit, matcher))
        self._mask = sum(app.bit for app in self.authorized)
        self.store.usage.limits = config.queue_limits
        self.store.window = config.deduplication_time_ms / 1000

    def app_for(self, app_id: str) -> AppDelivery:
        """Return an application, even if unknown to the domain."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = AppDelivery(self, app_id)
        return app

    # ---- posting

    def post(self, handle: QueueHandle, puts: Iterable[Put], now: float) -> None:
        """Store and acknowledge messages of one client. :meth:`deliver` delivers the messages."""
        writable, output = handle.writable, handle.client.output
        for put in puts:
            status = self._take(handle, put, now) if writable else _REFUSED
            flags, correlation_id, guid = put[:3]
            if status:
                self.counts.refused += 1
                output.ack(status, correlation_id, guid, handle.q_id)
            elif flags & _ACK_REQUESTED:
                self.counts.acknowledged += 1
                output.ack(0, correlation_id, guid, handle.q_id)

    def _take(self, handle: QueueHandle, put: Put, now: float) -> int:
        """Store or broadcast a message unless its GUID is known; return the status of its acknowledgement."""
        store = self.store
        flags, _, guid, schema_id, compression, _, size, data = put
        if guid in store:
            return 0
        properties = flags & _PROPERTIES
        if compression and properties and not schema_id:
            # Still compressed, because the decompressed data had no room.
            return store.usage.full() or _LIMIT_BYTES
        pending = self._mask
        if self._filters:
            lookup = property_lookup(data, properties, schema_id)
            for bit, matcher in self._filters:
                if matcher(lookup) is not True:
                    pending &= ~bit
        if pending:
            status = store.usage.full()
            if status:
                return status
            if schema_id > 1:
                schema_id = self._schema(handle, schema_id)
            message = MessageRecord(guid, data, size, properties, schema_id, compression, now, pending)
            if self.broadcast:
                self._broadcast(message)
            else:
                store.append(message)
                if self.position is None:
                    self.position = message
        self.counts.posted += 1
        self.counts.posted_bytes += size
        if self.node.posts is not None:
            self.node.posts.append(PostedMessage._read(self.uri, put))
        return 0

    def _broadcast(self, message: MessageRecord) -> None:
        """Push a message to the present consumers."""
        app = self.apps[DEFAULT_APP_ID]
        consumer_filter = self.domain.config.consumer_filter
        for subscriber in app.routing.candidates(message):
            if consumer_filter is None or passes(consumer_filter, subscriber, message):
                self.count_push(app, message, 0.0)
                subscriber.stream.handle.push(message, subscriber.option, out_of_order=False)

    def _schema(self, handle: QueueHandle, schema_id: int) -> int:
        """Return the queue's own schema id for a client's schema id.

        Every client numbers its schemas independently; for consumers the numbers of a queue must be unique.
        """
        number, recycled = schema_id >> 1, schema_id & 1
        own = handle.put_schemas.get(number)
        if own is None or recycled:
            if self._schemas >= _MAX_SCHEMA:
                return _NO_SCHEMA
            self._schemas += 1
            own = handle.put_schemas[number] = self._schemas
        return own << 1

    # ---- delivering

    def deliver(self, now: float) -> None:
        """Deliver new messages to all applications at the queue's position."""
        if self.position is None:
            return
        apps, node = self.authorized, self.node
        selecting = [(app, app.routing.select) for app in apps]
        cost = sum(app.routing.cost for app in apps)
        while (message := self.position) is not None:
            if cost and node.effort > node.enough:
                node.pause(self, None)
                return
            node.effort += cost
            # Confirmed for the last application by its filter, the message has no neighbours any more.
            following, stopped = message.next, 0
            targets: list[tuple[AppDelivery, Subscriber]] = []
            for app, select in selecting:
                if app.behind:
                    if app.resume is None:
                        app.resume = message
                    stopped += 1
                elif message.pending & app.bit:
                    selected = select(message)
                    if selected is None:
                        app.resume = message
                        stopped += 1
                    elif isinstance(selected, tuple):
                        app.aside.wait(message, selected)
                    elif selected.stream.take(selected, message, now):
                        self.count_push(app, message, now - message.arrival)
                        targets.append((app, selected))
            if stopped == len(apps):
                return
            self._push(message, targets)
            self.position = following

    def _push(self, message: MessageRecord, targets: list[tuple[AppDelivery, Subscriber]]) -> None:
        """Push a message once to each client, with the ids of all matching subscriptions of the client."""
        if len(targets) == 1:
            subscriber = targets[0][1]
            subscriber.stream.handle.push(message, subscriber.option, out_of_order=False)
            return
        by_handle: dict[QueueHandle, list[int]] = {}
        for _, subscriber in targets:
            by_handle.setdefault(subscriber.stream.handle, []).append(subscriber.s_id)
        for handle, s_ids in by_handle.items():
            handle.push(message, encode_sub_queue_ids(tuple(s_ids)), out_of_order=False)

    def count_push(self, app: AppDelivery, message: MessageRecord, waited: float) -> None:
        """Count a delivery that took ``waited`` seconds."""
        counts = self.counts
        counts.pushed += 1
        counts.pushed_bytes += message.size
        counts.queued_seconds += waited
        app.queue_times.add(waited)

    def serve(self, app: AppDelivery, now: float) -> None:
        """Deliver one application's waiting messages, then new messages; later if the queue is paused."""
        if self in self.node.paused:
            self.node.touch(self, app)
            return
        app.deliver(now)
        if not app.behind:
            self.deliver(now)

    # ---- taking out

    def remove(self, message: MessageRecord) -> None:
        """Delete a message after the last application's confirmation."""
        following = message.next
        if message is self.position:
            self.position = following
        for app in self.authorized:
            if app.resume is message:
                app.resume = following
        self.store.remove(message)

    def drop(self, message: MessageRecord) -> None:
        """Delete a message, even if applications still need it."""
        for app in self.authorized:
            app.drop(message)

    def expire(self, now: float, limit: int = 1000) -> int:
        """Delete messages older than the domain's TTL, oldest first; return the number of deletions."""
        ttl, count = self.domain.config.message_ttl, 0
        while count < limit and (message := self.store.expired(now, ttl)) is not None:
            self.drop(message)
            count += 1
        self.counts.expired += count
        return count

    def purge(self, app: AppDelivery | None = None) -> tuple[int, int]:
        """Delete all messages, or all of one application; return the number of messages and bytes."""
        purged = [each for each in self.store if app is None or each.pending & app.bit]
        for message in purged:
            if app is None:
                self.drop(message)
            else:
                app.drop(message)
        if app is None:
            self.store.forget_remembered()
        else:
            app.clear()
        return len(purged), sum(each.size for each in purged)

    def dispose(self) -> None:
        """Drop all references, to free memory without the garbage collector."""
        self.purge()
        self.apps.clear()
        self.authorized.clear()

    def recover(self) -> None:
        """Treat all stored messages as never delivered, with all delivery attempts left.

        GUIDs of deleted messages are forgotten; GUIDs of stored messages stay known.
        """
        for app in self.apps.values():
            app.clear()
            self.node.deadlines.discard(app)
        for message in self.store:
            message.attempts = None
        self.position = self.store.first
        self.store.forget_remembered()

    def tidy(self, now: float) -> None:
        """Forget GUIDs older than the deduplication window, and release unused memory."""
        self.store.forget(now)
        for app in self.apps.values():
            for stream in app.streams:
                stream.unconfirmed = compact(stream.unconfirmed)

    # ---- clients

    @property
    def writers(self) -> int:
        """Number of openings for writing."""
        return sum(stream.writers for handle in self.handles for stream in handle.streams.values())

    def stats(self) -> BrokerQueueStats:
        """Return a snapshot of the counts."""
        usage = self.store.usage
        return replace(
            self.counts,
            messages=usage.messages,
            bytes=usage.bytes,
            producers=self.writers,
            consumers=sum(app.readers for app in self.apps.values()),
        )
