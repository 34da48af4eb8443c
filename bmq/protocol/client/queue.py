"""A queue and its subscriptions, as the client sees them."""

from __future__ import annotations

from collections import deque
from typing import Any

from bmq.protocol.client.requests import Request
from bmq.protocol.client.tables import QueueState
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

__all__ = ["Family", "Operation", "QueueCore", "SubscriptionCore", "SubscriptionOptions"]

# What a broker that does not say it means, in seconds.
_DEFAULT_DEDUPLICATION = 300.0


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


_NO_OPTIONS = SubscriptionOptions(0, 0, 0)
# As the official clients have it: half of what 32 bits hold.
_LOWEST_PRIORITY = -(2**30)


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
        queue: the queue it is about.
        done: its outcome was reported.
    """

    __slots__ = ("deadline", "done", "queue", "token")

    def __init__(self, token: Any, deadline: float) -> None:
        self.token = token
        self.deadline = deadline
        self.queue: QueueCore | None = None
        self.done = False


class Family:
    """The queues that share one URI without its appId, and with it a qId.

    Attributes:
        q_id: their number; never used for another URI in the same session.
        sub_ids: the number of each appId.
        members: the queues.
        unclear: the broker may still know a member that is gone here.
    """

    __slots__ = ("members", "q_id", "sub_ids", "unclear")

    def __init__(self, q_id: int) -> None:
        self.q_id = q_id
        self.sub_ids: dict[str, int] = {}
        self.members: set[QueueCore] = set()
        self.unclear = False

    def sub_id(self, app_id: str) -> int:
        """Return the number of an appId, 0 for none."""
        return self.sub_ids.setdefault(app_id, len(self.sub_ids) + 1) if app_id else 0

    def others_open(self, queue: QueueCore) -> bool:
        """Whether the broker has, or is being asked for, another member."""
        return any(other is not queue and other.state not in _GONE for other in self.members)


class QueueCore:
    """One opened queue, or one application of a fanout queue.

    Attributes:
        uri: what it was opened as.
        family: the queues that differ in their appId only.
        q_id: its number in this session; all applications of a queue share it.
        sub_app_id: the application it reads for, "" for none.
        sub_id: the application's number within the queue, 0 without an application.
        flags: what it is open for.
        state: where its state machine is.
        desired: the subscriptions it should have.
        applied: the subscriptions the broker has.
        sending: posts may be written now (else they wait in the window).
        attached: the broker has it open on this connection: it takes confirmations.
        suspended: it does not take part because the host is unhealthy.
        reported_suspended: the application was told so.
        deduplication_time: how long the broker recognises a GUID, in seconds.
        unacked: how many posts wait for their outcome.
        owner: the object of the I/O layer.
        anybody: stands for whichever of its subscriptions a message is for.
        nothing: what the stream has instead of no subscription at all: one without room. Nodes of a cluster
            that have not the queue themselves, and proxies, otherwise drop what is posted here without a
            word: at once, or when another node takes the queue over.
    """

    __slots__ = (
        "anybody",
        "applied",
        "at_most_once",
        "attached",
        "closing",
        "configuring",
        "deduplication_time",
        "desired",
        "family",
        "flags",
        "nothing",
        "opening",
        "owner",
        "q_id",
        "readable",
        "reported_suspended",
        "request",
        "sending",
        "state",
        "sub_app_id",
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
        self, uri: QueueUri, family: Family, app_id: str, flags: QueueFlags, owner: Any, *, suspends: bool
    ) -> None:
        self.uri = uri
        self.uri_text = str(uri)
        self.family = family
        self.q_id = family.q_id
        self.sub_app_id = app_id
        self.sub_id = family.sub_id(app_id)
        self.flags = flags
        self.readable = bool(flags & QueueFlags.READ)
        self.writable = bool(flags & QueueFlags.WRITE)
        self.owner = owner
        self.anybody = SubscriptionCore(self, "", _NO_OPTIONS, owner)
        self.nothing = SubscriptionCore(self, "", SubscriptionOptions(0, 0, _LOWEST_PRIORITY), owner)
        self.state = QueueState.CLOSED
        self.desired: list[SubscriptionCore] = []
        self.applied: list[SubscriptionCore] = []
        self.sending = False
        self.attached = False
        self.suspended = False
        self.reported_suspended = False
        self.suspends_on_bad_host_health = suspends
        self.at_most_once = False
        self.deduplication_time = _DEFAULT_DEDUPLICATION
        self.unacked = 0
        # the operations callers wait for
        self.opening: Operation | None = None
        self.closing: Operation | None = None
        self.configuring: list[Operation] = []
        self.waiting_configure: deque[Operation] = deque()
        # what is outstanding
        self.request: Request | None = None

    @property
    def app_id(self) -> str:
        """The application as control messages name it."""
        return self.uri.app_id if self.sub_id else DEFAULT_APP_ID

    @property
    def in_use(self) -> bool:
        """Whether the application has it in its hands: it is open, or being reopened."""
        return self.state in _IN_USE

    @property
    def effective(self) -> list[SubscriptionCore]:
        """The subscriptions the stream is to have: none for messages while the queue is suspended."""
        wanted = [] if self.suspended else self.desired
        return wanted or ([self.nothing] if self.readable else [])

    def handle_parameters(self) -> QueueHandleParameters:
        """What openQueue and closeQueue say of the queue."""
        info = SubQueueIdInfo(sub_id=self.sub_id, app_id=self.uri.app_id) if self.sub_id else None
        return QueueHandleParameters(
            uri=str(self.uri) if self.sub_id else self.uri.canonical,
            q_id=self.q_id,
            sub_id_info=info,
            flags=int(self.flags),
            read_count=int(self.readable),
            write_count=int(self.writable),
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
        self.deduplication_time = max(0, deduplication_time_ms) / 1000


def consumer_info(options: SubscriptionOptions) -> ConsumerInfo:
    """One consumer with these limits; a count of 1 goes with every valid priority."""
    return ConsumerInfo(
        max_unconfirmed_messages=options.max_unconfirmed_messages,
        max_unconfirmed_bytes=options.max_unconfirmed_bytes,
        consumer_priority=options.priority,
        consumer_priority_count=1,
    )


# The broker does not have a queue in these states open, or has already been asked to close it.
_GONE = frozenset({QueueState.CLOSED, QueueState.WAITING, QueueState.LOST, QueueState.CLOSING})
_IN_USE = frozenset(
    {
        QueueState.OPEN,
        QueueState.RECONFIGURING,
        QueueState.LOST,
        QueueState.REOPENING,
        QueueState.RESTORING,
    }
)
