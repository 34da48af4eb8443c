"""A queue and its subscriptions, as the client sees them."""

from __future__ import annotations

from collections import deque
from typing import Any

from bmq.protocol.requests import Request
from bmq.protocol.tables import QueueState
from bmq.wire.control import (
    DEFAULT_APP_ID,
    ConsumerInfo,
    Expression,
    ExpressionVersion,
    QueueFlags,
    QueueHandleParameters,
    RoutingFlags,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.uri import QueueUri

__all__ = ["Operation", "QueueCore", "SubscriptionCore", "SubscriptionOptions"]


class SubscriptionOptions:
    """What a subscription asks for.

    Attributes:
        max_unconfirmed_messages: how many delivered messages may be unconfirmed.
        max_unconfirmed_bytes: how many bytes of them.
        priority: the consumer priority; the highest is served first.
    """

    __slots__ = ("max_unconfirmed_bytes", "max_unconfirmed_messages", "priority")

    def __init__(self, max_unconfirmed_messages: int, max_unconfirmed_bytes: int, priority: int) -> None:
        self.max_unconfirmed_messages = max_unconfirmed_messages
        self.max_unconfirmed_bytes = max_unconfirmed_bytes
        self.priority = priority


class SubscriptionCore:
    """One subscription of a queue.

    Attributes:
        expression: its text, "" for everything.
        options: its limits and priority.
        owner: whom its messages are for.
        queue: the queue it belongs to.
    """

    __slots__ = ("expression", "options", "owner", "queue")

    def __init__(self, queue: QueueCore, expression: str, options: SubscriptionOptions, owner: Any) -> None:
        self.queue = queue
        self.expression = expression
        self.options = options
        self.owner = owner


class Operation:
    """Something a caller waits for: the token comes back with the outcome.

    Attributes:
        token: whatever the caller gave.
        deadline: when it fails with a timeout.
        done: its outcome was reported.
    """

    __slots__ = ("deadline", "done", "token")

    def __init__(self, token: Any, deadline: float) -> None:
        self.token = token
        self.deadline = deadline
        self.done = False


class QueueCore:
    """One opened queue, or one application of a fanout queue.

    Attributes:
        uri: what it was opened as.
        q_id: its number in this session; all applications of a queue share it.
        sub_id: the application's number within the queue, 0 without an application.
        flags: what it is open for.
        state: where its state machine is.
        desired: the subscriptions it should have.
        applied: the subscriptions the broker has.
        sending: posts may be written now (else they wait in the window).
        suspended: it does not take part because the host is unhealthy.
        deduplication_time: how long the broker recognises a GUID, in seconds.
        unacked: how many posts wait for their outcome.
        owner: the object of the I/O layer.
    """

    __slots__ = (
        "applied",
        "at_most_once",
        "closing",
        "configuring",
        "deduplication_time",
        "desired",
        "dirty",
        "flags",
        "generations",
        "opening",
        "owner",
        "q_id",
        "readable",
        "releasing",
        "request",
        "sending",
        "state",
        "sub_id",
        "suspended",
        "suspends_on_bad_host_health",
        "unacked",
        "uri",
        "uri_text",
        "waiting_configure",
        "writable",
    )

    def __init__(
        self, uri: QueueUri, q_id: int, sub_id: int, flags: QueueFlags, owner: Any, *, suspends: bool = False
    ) -> None:
        self.uri = uri
        self.uri_text = str(uri)
        self.q_id = q_id
        self.sub_id = sub_id
        self.flags = flags
        self.readable = bool(flags & QueueFlags.READ)
        self.writable = bool(flags & QueueFlags.WRITE)
        self.owner = owner
        self.state = QueueState.CLOSED
        self.desired: list[SubscriptionCore] = []
        self.applied: list[SubscriptionCore] = []
        self.sending = False
        self.suspended = False
        self.suspends_on_bad_host_health = suspends
        self.at_most_once = False
        self.deduplication_time = 300.0
        self.unacked = 0
        # the operations callers wait for
        self.opening: Operation | None = None
        self.closing: Operation | None = None
        self.configuring: list[Operation] = []
        self.waiting_configure: deque[Operation] = deque()
        # what is outstanding
        self.request: Request | None = None
        self.dirty = False
        self.releasing = False
        # the sIds of the latest configurations: messages routed by the one before may still arrive
        self.generations: deque[list[int]] = deque()

    @property
    def app_id(self) -> str:
        """The application as control messages name it."""
        return self.uri.app_id if self.sub_id else DEFAULT_APP_ID

    def handle_parameters(self) -> QueueHandleParameters:
        """The queue as openQueue and closeQueue name it."""
        info = SubQueueIdInfo(sub_id=self.sub_id, app_id=self.uri.app_id) if self.sub_id else None
        return QueueHandleParameters(
            uri=str(self.uri) if self.sub_id else self.uri.canonical,
            q_id=self.q_id,
            sub_id_info=info,
            flags=int(QueueFlags.READ if self.releasing else self.flags),
            read_count=int(self.readable),
            write_count=int(self.writable and not self.releasing),
            admin_count=0,
        )

    def stream_parameters(self, numbered: list[tuple[int, SubscriptionCore]]) -> StreamParameters:
        """The subscriptions, with their sIds, as configureStream names them."""
        return StreamParameters(
            app_id=self.app_id,
            subscriptions=tuple(
                Subscription(
                    s_id=s_id,
                    expression=Expression(
                        version=ExpressionVersion.E_VERSION_1
                        if sub.expression
                        else ExpressionVersion.E_UNDEFINED,
                        text=sub.expression,
                    ),
                    consumers=(consumer_info(sub.options),),
                )
                for s_id, sub in numbered
            ),
        )

    def note_routing(self, flags: int, deduplication_time_ms: int) -> None:
        """Keep what the openQueueResponse said."""
        self.at_most_once = bool(flags & RoutingFlags.AT_MOST_ONCE)
        self.deduplication_time = deduplication_time_ms / 1000


def consumer_info(options: SubscriptionOptions) -> ConsumerInfo:
    """One consumer with these limits; a count of 1 goes with every valid priority."""
    return ConsumerInfo(
        max_unconfirmed_messages=options.max_unconfirmed_messages,
        max_unconfirmed_bytes=options.max_unconfirmed_bytes,
        consumer_priority=options.priority,
        consumer_priority_count=1,
    )
