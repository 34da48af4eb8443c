# SPDX-License-Identifier: Apache-2.0
"""What the client core reports: session events for the application, and signals for the I/O layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from bmq.errors import AckStatus, Error
from bmq.protocol.client.ports import Handle, PostTarget, QueueOwner, Sink, Waiter
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.wire.push_columns import PushColumns

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
    """The base of everything that :meth:`bmq.Session.events` yields."""


@dataclass(frozen=True, slots=True)
class Connected(SessionEvent):
    """The session is established for the first time.

    Attributes:
        broker: how the broker names itself.
    """

    broker: str


@dataclass(frozen=True, slots=True)
class ClientDeprecated(SessionEvent):
    """The broker serves this version of the client, but calls it deprecated: it should be upgraded.

    Attributes:
        broker: how the broker names itself.
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
        attempt: 1 for the first one after the loss.
        delay: seconds until it is made.
        address: the address that will be tried.
    """

    attempt: int
    delay: float
    address: str


@dataclass(frozen=True, slots=True)
class Reconnected(SessionEvent):
    """There is a connection again; queues are being reopened."""

    broker: str


@dataclass(frozen=True, slots=True)
class StateRestored(SessionEvent):
    """Every queue was reopened, was delayed or has failed, and the unacknowledged posts were sent again.

    The posts of delayed queues (:class:`QueueReopenDelayed`) follow after their reopening.
    """


@dataclass(frozen=True, slots=True)
class QueueReopened(SessionEvent):
    """A queue is usable again after a reconnect."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class QueueReopenDelayed(SessionEvent):
    """The broker refused for now to reopen a queue, or did not answer in time; the session tries again.

    The queue keeps posts and consumers. Reported for each attempt that failed. The next attempt follows on
    this connection after ``delay``, or on the next connection.

    Attributes:
        queue_uri: the queue.
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
    """A queue does not take part while the host is unhealthy."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class QueueResumed(SessionEvent):
    """A suspended queue takes part again."""

    queue_uri: str


@dataclass(frozen=True, slots=True)
class HostUnhealthy(SessionEvent):
    """The host health monitor reports trouble."""


@dataclass(frozen=True, slots=True)
class HostHealthRestored(SessionEvent):
    """The host is healthy again, and every suspended queue has resumed."""


@dataclass(frozen=True, slots=True)
class SlowConsumer(SessionEvent):
    """The application does not keep up: reading from the connection has paused.

    Attributes:
        messages: how many messages wait for the application.
        bytes: their size.
    """

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SlowConsumerRecovered(SessionEvent):
    """The application has caught up: reading goes on."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class UnclaimedMessages(SessionEvent):
    """A queue holds messages that no consumer of it wants: most often their consumer has left.

    They stay unconfirmed until a consumer of the queue wants them, or the queue is closed; see
    :attr:`bmq.Queue.unclaimed`. Reported once, until there are none any more.

    Attributes:
        queue_uri: the queue.
        messages: how many.
    """

    queue_uri: str
    messages: int


@dataclass(frozen=True, slots=True)
class DeliveryRevived(SessionEvent):
    """The broker had stopped delivering to a queue, and went on when its subscriptions were repeated.

    Reported once a queue; see :attr:`bmq.SessionOptions.repeat_subscriptions_after`.
    """

    queue_uri: str


#: The things that can stand still: the line itself, posts, requests for queues.
StallCause: TypeAlias = Literal["silence", "posts", "requests"]


@dataclass(frozen=True, slots=True)
class Stalled(SessionEvent):
    """The session is connected, but for half of ``liveness`` something has not moved that should.

    Reported once for each cause, until :class:`StallOver` or the loss of the connection.

    Attributes:
        cause: ``"silence"``: the broker sends nothing, although it was asked. ``"posts"``: the broker
            acknowledges no post of a queue. ``"requests"``: the broker does not answer a request to open,
            configure or close a queue.
        reason: a sentence for people.
    """

    cause: StallCause
    reason: str


@dataclass(frozen=True, slots=True)
class StallOver(SessionEvent):
    """Something that had stalled moves again.

    Attributes:
        cause: see :class:`Stalled`.
        seconds: the time since :class:`Stalled` was reported.
    """

    cause: StallCause
    seconds: float


@dataclass(frozen=True, slots=True)
class Disconnected(SessionEvent):
    """The session is over.

    Attributes:
        reason: "" when it was closed by the application.
    """

    reason: str


class Signal:
    """The base of what only the I/O layer sees."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Completed(Signal):
    """An operation ended: with ``error``, or successfully if that is None."""

    token: Waiter | None
    error: Error | None


#: What became of one post: its token and tag, its GUID, the status, the queue.
Outcome: TypeAlias = tuple[object, int, bytes, AckStatus, PostTarget]


#: Posts of one token that were accepted, where nobody asks which: the token, and how many.
Accepted: TypeAlias = tuple[object, int]


@dataclass(slots=True)  # not frozen: one is made for each event that comes, and that would take longer
class Acked(Signal):
    """Posts got their outcome: one by one, and as numbers of accepted ones.

    Attributes:
        outcomes: the outcomes that came one by one.
        accepted: the numbers of accepted posts.
        strange: numbers of the broker that are no status here, by GUID; the outcome is UNKNOWN.
    """

    outcomes: list[Outcome]
    accepted: list[Accepted] = field(default_factory=list["Accepted"])
    strange: Mapping[bytes, int] | None = None


@dataclass(slots=True)
class Pushed(Signal):
    """Messages arrived: (queue, subscription, its messages in order) each.

    A message has the fields of :class:`bmq.wire.push.PushMessage`, in that order.
    """

    deliveries: Sequence[tuple[Handle, SubscriptionCore, list[Push]]]


@dataclass(frozen=True, slots=True)
class PushedColumns(Signal):
    """Messages arrived for subscriptions that take columns: (queue, subscription, the columns) each.

    They are what :attr:`bmq.protocol.client.core.ClientCore.read_columns` has made of an event.
    """

    deliveries: Sequence[tuple[Handle, SubscriptionCore, PushColumns]]


@dataclass(frozen=True, slots=True)
class ConfirmedAgain(Signal):
    """Messages arrived that were confirmed before: they are confirmed again, and not reported as arrived.

    Attributes:
        queue_uri: their queue.
        owner: the owner of the subscription they came for.
        messages: how many.
    """

    queue_uri: str
    owner: Sink
    messages: int


@dataclass(frozen=True, slots=True)
class StreamConfigured(Signal):
    """The broker has agreed to a queue's subscriptions or not; reported before the callers' outcomes.

    Attributes:
        owner: the queue's owner.
        failed: it has not. All changes under way have failed; the queue wants what was agreed before.
    """

    owner: QueueOwner
    failed: bool


@dataclass(frozen=True, slots=True)
class Astray(Signal):
    """Messages arrived for a queue or subscription that is not open here; they stay unconfirmed.

    Attributes:
        q_id: the queue's number.
        s_ids: the numbers of the subscriptions.
        messages: how many.
    """

    q_id: int
    s_ids: tuple[int, ...]
    messages: int


@dataclass(frozen=True, slots=True)
class Unsendable(Signal):
    """A post could not be encoded, because of a mistake in this library; its outcome is INVALID_ARGUMENT.

    Attributes:
        queue_uri: the queue that the post was for.
        error: the error of the encoder.
    """

    queue_uri: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Skipped(Signal):
    """The broker sent a thing that this version does not know; nothing else follows from it.

    Attributes:
        what: the thing, in words; equal for equal things.
    """

    what: str


@dataclass(frozen=True, slots=True)
class CloseChannel(Signal):
    """The connection is to be closed, because of ``error`` unless that is None."""

    error: Error | None


@dataclass(frozen=True, slots=True)
class CredentialsNeeded(Signal):
    """The authentication is about to expire: renew it with :meth:`ClientCore.reauthenticate`."""
