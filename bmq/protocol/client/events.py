# SPDX-License-Identifier: Apache-2.0
"""The output of the client core: session events for the application, and signals for the I/O layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bmq.errors import AckStatus, Error
from bmq.protocol.client.ports import Columns, QueueOwner, Sink
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.protocol.client.queue import QueueCore

__all__ = [
    "Accepted",
    "Acked",
    "Astray",
    "ClientDeprecated",
    "CloseChannel",
    "Completed",
    "ConfirmedAgain",
    "Connected",
    "ConnectionLost",
    "CredentialsNeeded",
    "DeliveryRevived",
    "Disconnected",
    "HostHealthRestored",
    "HostUnhealthy",
    "Outcome",
    "Pushed",
    "PushedColumns",
    "QueueReopenDelayed",
    "QueueReopenFailed",
    "QueueReopened",
    "QueueResumed",
    "QueueSuspended",
    "Reconnected",
    "Reconnecting",
    "SessionEvent",
    "Signal",
    "Skipped",
    "SlowConsumer",
    "SlowConsumerRecovered",
    "StallCause",
    "StallOver",
    "Stalled",
    "StateRestored",
    "StreamConfigured",
    "UnclaimedMessages",
    "Unsendable",
]


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Base class of the events of :meth:`bmq.Session.events`: immutable values."""


@dataclass(frozen=True, slots=True)
class Connected(SessionEvent):
    """The session is established for the first time.

    Attributes:
        broker: name of the broker.
    """

    broker: str


@dataclass(frozen=True, slots=True)
class ClientDeprecated(SessionEvent):
    """The broker supports this version of the client, but deprecates it: upgrade the client.

    Attributes:
        broker: name of the broker.
    """

    broker: str


@dataclass(frozen=True, slots=True)
class ConnectionLost(SessionEvent):
    """The connection is gone; unless the session is closing, reconnecting starts at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reconnecting(SessionEvent):
    """An attempt to reconnect is due.

    Attributes:
        attempt: number of the attempt after the loss, from 1.
        delay: seconds until the attempt.
        address: address of the attempt.
    """

    attempt: int
    delay: float
    address: str


@dataclass(frozen=True, slots=True)
class Reconnected(SessionEvent):
    """The connection is restored; the queues are being reopened."""

    broker: str


@dataclass(frozen=True, slots=True)
class StateRestored(SessionEvent):
    """All queues were reopened, delayed or failed, and the unacknowledged posts were sent again.

    The posts of delayed queues (:class:`QueueReopenDelayed`) follow after the reopening.
    """


@dataclass(frozen=True, slots=True)
class QueueReopened(SessionEvent):
    """A queue is usable again after a reconnect."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class QueueReopenDelayed(SessionEvent):
    """The broker refused for now to reopen a queue, or did not answer in time; the session tries again.

    The queue keeps its posts and consumers. The event is reported for each failed attempt. The next attempt
    follows on this connection after ``delay``, or on the next connection.

    Attributes:
        queue_uri: URI of the queue.
        error: the refusal, or a :class:`bmq.RequestTimeout`.
        delay: seconds until the next attempt on this connection.
    """

    queue_uri: str
    error: Error
    delay: float


@dataclass(frozen=True, slots=True)
class QueueReopenFailed(SessionEvent):
    """A queue could not be reopened after a reconnect; it is closed and its posts have failed."""

    queue_uri: str
    error: Error


@dataclass(frozen=True, slots=True)
class QueueSuspended(SessionEvent):
    """A queue is suspended while the host is unhealthy."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class QueueResumed(SessionEvent):
    """A suspended queue is active again."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class HostUnhealthy(SessionEvent):
    """The host health monitor reports the host as unhealthy."""


@dataclass(frozen=True, slots=True)
class HostHealthRestored(SessionEvent):
    """The host is healthy again, and every suspended queue has resumed."""


@dataclass(frozen=True, slots=True)
class SlowConsumer(SessionEvent):
    """The application is too slow: reading from the connection has paused.

    Attributes:
        messages: number of messages that wait for the application.
        bytes: size of these messages.
    """

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SlowConsumerRecovered(SessionEvent):
    """The application has caught up: reading continues."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class UnclaimedMessages(SessionEvent):
    """A queue holds messages without a matching consumer; most often, the consumer has closed.

    The messages stay unconfirmed until a matching consumer starts, or until the queue is closed; see
    :attr:`bmq.Queue.unclaimed`. Reported once, until no unclaimed messages are left.

    Messages for a queue that is not open in this session are reported once, without a URI. ``unmatched`` of
    :meth:`bmq.Session.stats` counts them, too.

    Attributes:
        queue_uri: URI of the queue; "" for a queue that is not open here.
        messages: number of messages.
    """

    queue_uri: str
    messages: int


@dataclass(frozen=True, slots=True)
class DeliveryRevived(SessionEvent):
    """Messages follow repeated subscriptions of a queue: a busy broker limits expressions.

    Reported once for each queue; see :attr:`bmq.SessionOptions.repeat_subscriptions_after`.
    """

    queue_uri: str


#: Causes of a stall: the connection itself, answers to heartbeats, posts, or requests for queues.
StallCause: TypeAlias = Literal["silence", "answers", "posts", "requests"]


@dataclass(frozen=True, slots=True)
class Stalled(SessionEvent):
    """The session is connected, but has made no progress for half of ``liveness``.

    Reported once for each cause, until :class:`StallOver` or the loss of the connection.

    Attributes:
        cause: ``"silence"``: the broker is silent, and does not answer a heartbeat. ``"answers"``: the broker
            may send messages, and does not answer a heartbeat. ``"posts"``: the broker acknowledges no post
            of a queue. ``"requests"``: the broker does not answer a request to open, configure or close a
            queue.
        reason: description in words.
    """

    cause: StallCause
    reason: str


@dataclass(frozen=True, slots=True)
class StallOver(SessionEvent):
    """A stall has ended.

    Attributes:
        cause: see :class:`Stalled`.
        seconds: the time since :class:`Stalled` was reported.
    """

    cause: StallCause
    seconds: float


@dataclass(frozen=True, slots=True)
class Disconnected(SessionEvent):
    """The session has ended.

    Attributes:
        reason: reason for the end; "" if the application closed the session.
    """

    reason: str


class Signal:
    """Base class of signals to the I/O layer.

    Signals are not frozen: some are created for each incoming event, and a frozen object takes longer to
    create. A frozen class also takes twice as long to import.
    """

    __slots__ = ()


@dataclass(slots=True)
class Completed(Signal):
    """An operation ended, with ``error`` or, if None, successfully.

    Attributes:
        token: the caller's handle, returned unchanged.
        error: the failure, or None.
    """

    token: Any
    error: Error | None


#: The outcome of a post: token, tag, GUID, status, queue.
Outcome: TypeAlias = "tuple[object, int, bytes, AckStatus, QueueCore]"


#: Accepted posts of one token whose individual outcomes are not needed: the token, and their number.
Accepted: TypeAlias = tuple[object, int]


@dataclass(slots=True)
class Acked(Signal):
    """Outcomes of posts: individual outcomes, and counts of accepted posts.

    Attributes:
        outcomes: individual outcomes.
        accepted: counts of accepted posts.
        strange: unknown status numbers of the broker, by GUID; the outcome is UNKNOWN.
    """

    outcomes: list[Outcome]
    accepted: list[Accepted] = field(default_factory=list["Accepted"])
    strange: dict[bytes, int] = field(default_factory=dict[bytes, int])


@dataclass(slots=True)
class Pushed(Signal):
    """Messages arrived: a tuple (queue, subscription, messages in order) for each subscription.

    A message has the fields of :class:`bmq.wire.push.PushMessage`, in that order.
    """

    deliveries: Sequence[tuple[QueueCore, SubscriptionCore, list[Push]]]


@dataclass(slots=True)
class PushedColumns(Signal):
    """Messages arrived for subscriptions with columns: a tuple (queue, subscription, columns) for each.

    :attr:`bmq.protocol.client.core.ClientCore.read_columns` creates the columns from an event.
    """

    deliveries: Sequence[tuple[QueueCore, SubscriptionCore, Columns]]


@dataclass(slots=True)
class ConfirmedAgain(Signal):
    """Confirmed messages arrived again: they are confirmed once more, and not reported as arrived.

    Attributes:
        queue_uri: URI of the queue.
        owner: owner of the subscription.
        messages: number of messages.
    """

    queue_uri: str
    owner: Sink
    messages: int


@dataclass(slots=True)
class StreamConfigured(Signal):
    """The broker has accepted or refused a queue's subscriptions. Reported before the callers' outcomes.

    Attributes:
        owner: owner of the queue.
        failed: whether the broker refused. All pending changes have failed; the queue returns to the previous
            subscriptions.
    """

    owner: QueueOwner
    failed: bool


@dataclass(slots=True)
class Astray(Signal):
    """Messages arrived for a queue or subscription not open here; they stay unconfirmed.

    Attributes:
        q_id: number of the queue.
        s_ids: numbers of the subscriptions.
        messages: number of messages.
    """

    q_id: int
    s_ids: tuple[int, ...]
    messages: int


@dataclass(slots=True)
class Unsendable(Signal):
    """A post could not be encoded, because of a mistake in this library; its outcome is INVALID_ARGUMENT.

    Attributes:
        queue_uri: URI of the post's queue.
        error: the error of the encoder.
    """

    queue_uri: str
    error: Exception


@dataclass(slots=True)
class Skipped(Signal):
    """The broker sent an element unknown to this version; the element is ignored.

    Attributes:
        what: description of the element; equal for equal elements.
    """

    what: str


@dataclass(slots=True)
class CloseChannel(Signal):
    """The connection must be closed, because of ``error`` unless None."""

    error: Error | None


@dataclass(slots=True)
class CredentialsNeeded(Signal):
    """The authentication is about to expire: renew it with :meth:`ClientCore.reauthenticate`."""
