# SPDX-License-Identifier: Apache-2.0
"""A queue of a session, client role: state machine, subscriptions, and the operations of callers.

The problem: three parties change a queue at any time. The application opens, configures and closes the queue,
and may cancel any call. The broker answers, refuses, answers after the timeout, or never answers. The
connection is lost and restored between any two of these events. Flags for each case ("closing", "reopening",
"abandoned") have combinations without a meaning. Hence the queue has one state and one table: (state, input)
-> (action, next state), at the end of :class:`QueueCore`. An input absent from the table is an error. The
health of the host is independent of the state (:attr:`QueueCore.suspended`).

Invariants:

- Only :meth:`QueueCore.fire` changes the state. The session and the registry call methods that fire inputs.
- Each :class:`PendingCall` ends exactly once: with success, with an error, or with the session's end. Every
  state accepts STOP: no caller waits for ever.
- The subscriptions have a separate owner and table (:mod:`bmq.protocol.client.subscription`). Changes made
  before the next write go out as one configureStream.
- A subscription keeps its sId for life, and an sId is never reused: the broker counts unconfirmed messages
  for each sId, and a new sId would give an unchanged subscription all its room once more.
- :attr:`QueueCore.leaving` is the wish of the application, not a state at the broker: while handlers and
  posts finish, the queue still passes through all states in use, including a reconnect. As states, the wish
  would double nine states and their rows. Only two questions depend on the wish: whether the application may
  still use the queue, and whether another opening waits.
- After a timeout, the broker may have the old or the new subscriptions, whose routes both stay known. It may
  also still have a queue already gone here: ``SharedQueueId.unclear``.

Designs tried and removed, with the reasons:

- *An empty stream for a reader without subscriptions.* Proxies, and nodes of a cluster that do not own the
  queue, then silently drop posts to the queue. ``_IDLE_SUBSCRIPTION``, without room, takes its place.
- *Refusing to open a queue again while the undo of a cancelled open is in progress.* The caller had no queue
  to wait for. The second open now waits here (BEHIND), and proceeds, fails, or ends with the session.
- *Raising when a request cannot be encoded.* The exception ended the session and all its queues. The request
  now fails through the transitions of a refusal (:attr:`bmq.protocol.client.requests.Request.failure`).
- *Waiting for a connection before removing subscriptions.* No broker has them while the connection is lost,
  so the operation is complete at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from bmq.errors import (
    AckStatus,
    CloseQueueError,
    ConfigureQueueError,
    ConnectionFailed,
    Error,
    OpenQueueError,
    QueueClosed,
    RequestError,
    RequestTimeout,
    StateError,
    StatusCategory,
    UsageError,
)
from bmq.protocol.client.confirmations import Confirmed
from bmq.protocol.client.counters import PostCounts
from bmq.protocol.client.events import (
    Acked,
    Completed,
    DeliveryRevived,
    QueueReopenDelayed,
    QueueReopened,
    QueueReopenFailed,
    QueueResumed,
    QueueSuspended,
    StreamConfigured,
)
from bmq.protocol.client.ports import NULL_OWNER, QueueOwner
from bmq.protocol.client.requests import Request, RequestKind
from bmq.protocol.client.subscription import (
    Numbered,
    SetInput,
    SubscriptionCore,
    SubscriptionOptions,
    SubscriptionSet,
)
from bmq.protocol.client.throttle import ThrottleWatch
from bmq.protocol.deadlines import backoff
from bmq.protocol.machine import Machine, Transition
from bmq.wire.control import (
    DEFAULT_APP_ID,
    INVALID_CONSUMER_PRIORITY,
    CloseQueue,
    CloseQueueResponse,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    ConsumerInfo,
    ControlBody,
    Expression,
    ExpressionVersion,
    OpenQueue,
    OpenQueueResponse,
    QueueFlags,
    QueueHandleParameters,
    QueueStreamParameters,
    RoutingFlags,
    Status,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
    selection_name,
)
from bmq.wire.printable import printable
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.protocol.client.core import ClientCore
    from bmq.protocol.client.registry import SharedQueueId

__all__ = [
    "PendingCall",
    "QueueCore",
    "QueueInput",
    "QueueState",
]

# Deduplication time in seconds, for brokers that report none.
_DEFAULT_DEDUPLICATION = 300.0
# Fewer messages after repetitions may have arrived by chance.
_WORTH_MENTION = 100
# First and longest pause in seconds before a temporarily refused reopening is tried again.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


# The subscription of an idle reader. Without any subscription, proxies, and nodes of a cluster that do not
# own the queue, silently drop posts to the queue: at once, or when another node takes the queue over. The
# placeholder has no room, and the lowest valid priority: half of the range of 32 bits.
_IDLE_SUBSCRIPTION = SubscriptionCore("", SubscriptionOptions(0, 0, -(2**30)), NULL_OWNER)


class PendingCall:
    """An operation with a waiting caller; the token is returned with the outcome.

    Attributes:
        token: caller's handle, returned unchanged.
        deadline: time of the timeout.
        queue: the queue of the operation.
        done: whether the outcome was reported.
    """

    __slots__ = ("deadline", "done", "queue", "token")

    def __init__(self, token: Any, deadline: float, queue: QueueCore | None = None) -> None:
        self.token = token
        self.deadline = deadline
        self.queue = queue
        self.done = False


# Six states only repeat a reopening (REOPEN_DELAYED, REOPEN_OVERDUE, RESTORE_DELAYED) or undo an opening
# (BEHIND, ABANDONED, OVERDUE). One state with a deadline cannot replace them: a deadline says when to act,
# and these states say what the broker may have. In REOPEN_DELAYED the broker has nothing, in REOPEN_OVERDUE
# it may yet open the queue, and in RESTORE_DELAYED it has the queue open without subscriptions, so that a
# close, a late answer and the next attempt each do something else. Flags would have to tell them apart.
class QueueState(Enum):
    """The states of a queue.

    ::

        if queue.state is bmq.QueueState.OPEN:
            queue.post_nowait(payload)
    """

    CLOSED = "closed"
    BEHIND = "waits until an earlier opening of the queue is closed"
    WAITING = "to be opened once connected"
    OPENING = "openQueue sent"
    CONFIGURING = "first configureStream sent"
    OPEN = "open"
    RECONFIGURING = "another configureStream sent"
    LOST = "connection lost"
    REOPENING = "openQueue sent again"
    RESTORING = "configureStream sent again"
    REOPEN_DELAYED = "openQueue refused for now, to be sent again"
    REOPEN_OVERDUE = "openQueue not answered in time, to be sent again"
    RESTORE_DELAYED = "configureStream refused for now, or not answered, to be sent again"
    REOPENED = "open again, posts wait for the other queues"
    DECONFIGURING = "empty configureStream sent"
    CLOSING = "closeQueue sent"
    ABANDONED = "no caller waits for the openQueueResponse any more"
    OVERDUE = "the openQueueResponse has not come in time"


class QueueInput(Enum):
    """The inputs of a queue's state machine."""

    OPEN = "open, connected"
    OPEN_LATER = "open, not connected"
    OPEN_BEHIND = "open, an earlier opening of the queue is not closed yet"
    TAKEN = "an earlier opening of the queue has succeeded"
    ACCEPTED = "success, a stream to configure"
    ACCEPTED_PLAIN = "success, nothing to configure"
    REFUSED = "failure"
    DELAYED = "failure for now, while reopening"
    AGAIN = "the pause after a failure for now is over"
    TIMEOUT = "no response in time"
    MISREAD = "a response that means nothing, while reopening"
    ABANDON = "the caller was cancelled"
    CONFIGURE = "subscriptions changed"
    RESUME = "posts of all queues are sent again"
    CLOSE = "close a reader"
    CLOSE_PLAIN = "close a writer, or at once"
    CHANNEL_UP = "negotiated"
    CHANNEL_DOWN = "connection gone"
    STOP = "the session ends"


_S, _I, _W = QueueState, QueueInput, SetInput
_OPEN, _RECONFIGURING = QueueState.OPEN, QueueState.RECONFIGURING
_CLOSED = QueueState.CLOSED
_ANSWERS: dict[RequestKind, tuple[type, ...]] = {
    RequestKind.OPEN: (OpenQueueResponse,),
    RequestKind.CONFIGURE: (ConfigureStreamResponse, ConfigureQueueStreamResponse),
    RequestKind.CLOSE: (CloseQueueResponse,),
}
#: The cause of a failed request: the broker's answer, or the error of an unsent request.
Refusal: TypeAlias = Status | Exception
# In these states the broker does not have the queue open, or has already received closeQueue.
_GONE = frozenset({_S.CLOSED, _S.BEHIND, _S.WAITING, _S.LOST, _S.REOPEN_DELAYED, _S.CLOSING})
# In these states the application can use the queue: it is open, or being reopened.
_IN_USE = frozenset(
    {
        _S.OPEN,
        _S.RECONFIGURING,
        _S.LOST,
        _S.REOPENING,
        _S.RESTORING,
        _S.REOPEN_DELAYED,
        _S.REOPEN_OVERDUE,
        _S.RESTORE_DELAYED,
        _S.REOPENED,
    }
)
# In these states the broker has refused for now to reopen the queue, or has not answered.
_DELAYED = frozenset({_S.REOPEN_DELAYED, _S.REOPEN_OVERDUE, _S.RESTORE_DELAYED})
# In these states no caller waits for the answer to an openQueue, and the answer may still arrive.
_UNANSWERED = frozenset({_S.ABANDONED, _S.OVERDUE})
# In these states the broker has the subscriptions, or a request with them is outstanding.
_STREAMING = frozenset({_S.OPEN, _S.RECONFIGURING, _S.RESTORING, _S.REOPENED, _S.CONFIGURING})


class QueueCore(Machine):
    """One opened queue, or one application of a fanout queue.

    Attributes:
        uri: the URI given when opening.
        uri_text: the URI as text.
        q_id: number in this session, shared by all applications of a queue.
        sub_app_id: application id of a fanout reader; "" for none.
        sub_id: number of the application within the queue; 0 without an application.
        flags: the flags given when opening.
        readable: whether the queue is open for reading.
        writable: whether the queue is open for writing.
        owner: the object of the layer above.
        state: the current state.
        suspended: whether the queue has to take no part because the host is unhealthy.
        reported_suspended: whether the application knows that the queue takes no part. While this differs
            from ``suspended``, the broker does not know yet.
        subscriptions: the subscriptions: wanted, asked, agreed and committed.
        at_most_once: whether the broker stores no messages, and needs no confirmations.
        deduplication_time: seconds during which the broker recognises a GUID.
        unacked: number of posts without an outcome.
        unacked_bytes: size of the unacknowledged payloads and properties as transmitted.
        confirmed: the messages confirmed lately, or None.
        answered_at: time of the latest acknowledgement, or of the resending of posts.
        counts: numbers of all further outcomes of posts.
        fallback: receiver of messages with an unknown subscription.
        leaving: whether the application has begun to close the queue. The request follows when handlers and
            posts are done; until the request, the queue's state remains the state at the broker.
        watch: the deliveries to subscriptions with expressions.
    """

    __slots__ = (
        "_closing",
        "_configuring",
        "_gone",
        "_opening",
        "_refusals",
        "_request",
        "_session",
        "_shared_id",
        "_suspends",
        "_waiting",
        "answered_at",
        "at_most_once",
        "confirmed",
        "counts",
        "deduplication_time",
        "fallback",
        "flags",
        "leaving",
        "owner",
        "q_id",
        "readable",
        "reported_suspended",
        "sub_app_id",
        "sub_id",
        "subscriptions",
        "suspended",
        "unacked",
        "unacked_bytes",
        "uri",
        "uri_text",
        "watch",
        "writable",
    )

    state: QueueState
    # Assigned by open(), which follows at once.
    owner: QueueOwner
    subscriptions: SubscriptionSet
    suspended: bool
    reported_suspended: bool
    leaving: bool
    _suspends: bool
    _gone: Error | None
    _opening: PendingCall | None
    _closing: PendingCall | None

    def __init__(
        self,
        session: ClientCore,
        shared_id: SharedQueueId,
        uri: QueueUri,
        app_id: str,
        flags: QueueFlags,
    ) -> None:
        self.state = QueueState.CLOSED
        self._session = session
        self._shared_id = shared_id
        shared_id.members[self] = None
        self.q_id = shared_id.q_id
        self.sub_app_id = app_id
        self.sub_id = shared_id.sub_id(app_id)
        self.uri = uri
        self.uri_text = str(uri)
        self.flags = flags
        self.readable = bool(flags & QueueFlags.READ)
        self.writable = bool(flags & QueueFlags.WRITE)
        self.fallback = SubscriptionCore("", _IDLE_SUBSCRIPTION.options, NULL_OWNER)
        self.at_most_once = False
        self.deduplication_time = _DEFAULT_DEDUPLICATION
        self.unacked = 0
        self.unacked_bytes = 0
        self.answered_at = 0.0
        self.counts = PostCounts(session.posts.counts)
        self.watch = ThrottleWatch(session.options.repeat_after)
        self.confirmed: Confirmed | None = None
        # Number of times the broker refused to reopen the queue on this connection, or did not answer.
        self._refusals = 0
        # Operations with waiting callers beside opening and closing: changes in the outstanding request, and
        # later changes.
        self._configuring: list[PendingCall] = []
        self._waiting: deque[PendingCall] = deque()
        # The outstanding request.
        self._request: Request | None = None

    # attributes

    @property
    def in_use(self) -> bool:
        """Whether the application can use the queue: it is open, or being reopened."""
        return self.state in _IN_USE

    @property
    def in_session(self) -> bool:
        """Whether the session has the queue: it is not closed."""
        return self.state is not QueueState.CLOSED

    @property
    def delayed(self) -> bool:
        """Whether the next attempt to reopen the queue waits for its time."""
        return self.state in _DELAYED

    @property
    def late_to_reopen(self) -> bool:
        """Whether an attempt to reopen the queue on this connection failed for now."""
        return self._refusals > 0

    @property
    def opened(self) -> bool:
        """Whether no caller waits for the opening."""
        return self._opening is None

    @property
    def closing(self) -> bool:
        """Whether a caller waits for the closing."""
        return self._closing is not None

    @property
    def sending(self) -> bool:
        """Whether posts are written at once; otherwise posts wait in the window."""
        return self.writable and (self.state is _OPEN or self.state is _RECONFIGURING)

    @property
    def attached(self) -> bool:
        """Whether the broker accepts confirmations: the queue is open on this connection."""
        state = self.state
        return not self.at_most_once and (
            state is _OPEN
            or state is _RECONFIGURING
            or state is QueueState.REOPENED
            or state is QueueState.DECONFIGURING
        )

    def waits_to_be_opened_as(self, flags: QueueFlags) -> bool:
        """Whether the openQueue is unanswered and abandoned by the caller, with equal flags."""
        closing = self._closing is not None and not self._closing.done
        return self.state in _UNANSWERED and not closing and self.flags == flags

    def excludes(self, app_id: str, flags: QueueFlags) -> bool:
        """Whether this queue prevents another opening with the given application id and flags."""
        return self.sub_app_id == app_id and bool(self.flags & flags)

    def handle_parameters(self) -> QueueHandleParameters:
        """The queue's parameters in openQueue and closeQueue."""
        info = SubQueueIdInfo(sub_id=self.sub_id, app_id=self.uri.app_id) if self.sub_id else None
        return QueueHandleParameters(
            uri=self.uri_text if self.sub_id else self._shared_id.uri,
            q_id=self.q_id,
            sub_id_info=info,
            flags=int(self.flags),
            read_count=int(self.readable),
            write_count=int(self.writable),
            admin_count=0,
        )

    def fire(self, event: Enum, *arguments: Any) -> None:
        """Make a transition, and notify the session if the transition may concern further queues.

        Further queues may wait behind this queue, and a closing queue leaves the session. The host counts as
        healthy again once the last suspended queue takes part again.
        """
        delayed = self.state in _DELAYED
        super().fire(event, *arguments)
        if delayed and self.state not in _DELAYED:
            self._session.delayed.discard(self)
        if self.state is _CLOSED or self._shared_id.behind or self._suspends:
            self._session.queues.moved(self)

    # requests of callers

    def open(
        self,
        owner: QueueOwner,
        subscriptions: Sequence[SubscriptionCore],
        operation: PendingCall,
        now: float,
        *,
        suspends: bool,
        behind: bool,
    ) -> None:
        """Begin opening. If ``behind`` earlier queues, :meth:`proceed` or :meth:`give_way` follows."""
        if self.confirmed is not None:
            self._session.confirms.forget(self)
        self.leaving = False
        self._gone = self._closing = None
        self.owner = self.fallback.owner = owner
        self.subscriptions = SubscriptionSet(self, self._session.routes)
        self.subscriptions.fire(_W.WANT, subscriptions)
        self._suspends = suspends
        self.suspended = suspends and not self._session.queues.healthy
        self.reported_suspended = False
        self._opening = self._watch(operation)
        if behind:
            self._shared_id.behind[self] = None
            self.fire(_I.OPEN_BEHIND, now)
        else:
            self.proceed(now)

    def proceed(self, now: float) -> None:
        """Begin an opening, or continue one no longer blocked by an earlier queue."""
        self.fire(_I.OPEN if self._session.connected else _I.OPEN_LATER, now)

    def give_way(self, error: StateError, now: float) -> None:
        """Fail the opening, because an earlier opening of the queue has succeeded."""
        self.fire(_I.TAKEN, now, None, error)

    def abandon(self, now: float, deadline: float) -> None:
        """Close an unwanted queue as soon as possible, without a report."""
        if self._opening is not None:
            self._opening.done = True
            self._session.operations.discard(self._opening)
            self._opening = None
            self.fire(_I.ABANDON, now)
        elif self._can_close:
            self.close(PendingCall(None, deadline), now)

    def configure(self, subscriptions: Sequence[SubscriptionCore], operation: PendingCall) -> None:
        """Replace the subscriptions; changes until :meth:`send_changes` go out together.

        Raises:
            QueueClosed: the queue is closing or closed.
        """
        if self._closing is not None or (self.state, _I.CONFIGURE) not in self.TRANSITIONS:
            raise self.closed_error(self.state.value)
        self.subscriptions.fire(_W.WANT, subscriptions)
        self._waiting.append(self._watch(operation))
        self._session.changed[self] = None
        if self.state is not QueueState.OPEN:
            self.fire(_I.CONFIGURE, 0.0)  # The change waits until the queue is open.
            self._take_back()

    def send_changes(self, now: float) -> None:
        """Send new subscriptions if the queue is open; otherwise keep them until the queue is open."""
        if self.state is QueueState.OPEN:
            self.fire(_I.CONFIGURE, now)

    def closed_error(self, state: str) -> QueueClosed:
        """Return the error of a call on a closed queue, with the reason of a failed reopening."""
        if self._gone is None:
            return QueueClosed(f"queue {self.uri} is {state}")
        error = QueueClosed(f"queue {self.uri} is {state}: {self._gone}")
        error.__cause__ = self._gone
        return error

    @property
    def _can_close(self) -> bool:
        return self._closing is None and (self.state, self._close_input) in self.TRANSITIONS

    @property
    def _close_input(self) -> QueueInput:
        return _I.CLOSE if self.readable else _I.CLOSE_PLAIN

    def close(self, operation: PendingCall, now: float, *, at_once: bool = False) -> None:
        """Begin closing.

        A reader first removes the subscriptions, and closes the queue afterwards. Between the two steps the
        broker delivers new messages to the remaining consumers; only in the end the broker redelivers the
        older, unconfirmed messages. With ``at_once`` the first step is skipped if no further request is
        outstanding: the broker redelivers the unconfirmed messages before any new message.

        Raises:
            QueueClosed: the queue is already closing or closed.
        """
        if not self._can_close:
            raise self.closed_error(self.state.value)
        self._closing = self._watch(operation)
        # A repetition of the subscriptions may be outstanding: no caller waits for its answer.
        repeating = self.state is _RECONFIGURING and not (self._configuring or self._waiting)
        plain = at_once and (self.state is _OPEN or repeating)
        self.fire(_I.CLOSE_PLAIN if plain else self._close_input, now)

    def admit(self, count: int) -> bool:
        """Count posts; return whether to write them now, and not after the reopening of the queue.

        Raises:
            QueueClosed, UsageError, StateError: see :meth:`check_posts`.
        """
        state = self.state
        at_once = (state is _OPEN or state is _RECONFIGURING) and self.writable
        if not at_once or self.suspended:
            self.check_posts()
        self.unacked += count
        return at_once

    def check_posts(self) -> None:
        """Raise an error unless the queue accepts posts.

        Raises:
            UsageError: the queue was not opened for writing.
            QueueClosed: the queue is closing or closed.
            StateError: the queue is suspended.
        """
        if not self.writable:
            raise UsageError(f"queue {self.uri} was not opened for writing: open_queue(..., write=True)")
        if self._closing is not None or self.state not in _IN_USE:
            raise self.closed_error(self.state.value)
        if self.suspended:
            raise StateError(f"queue {self.uri} is suspended: the host is unhealthy")

    def posts_answered(self, count: int, size: int, seconds: float) -> None:
        """Count answered posts with a common time of posting."""
        self.unacked -= count
        self.unacked_bytes -= size
        self.counts.answered(count, size, seconds)

    def posts_given_up(self, count: int, size: int, status: AckStatus) -> None:
        """Count posts ended without an answer."""
        self.unacked -= count
        self.unacked_bytes -= size
        self.counts.given_up(count, size, status)

    # events

    def channel_up(self, now: float) -> bool:
        """Use a new connection; return whether the queue is being reopened."""
        self._refusals = 0
        if self.state is QueueState.LOST or self.state is QueueState.WAITING:
            self.fire(_I.CHANNEL_UP, now)
        return self.state is QueueState.REOPENING

    def channel_down(self, now: float) -> None:
        """Note the loss of the connection: outstanding requests get no answer."""
        self._request = None
        self._refusals = 0
        self.watch.lost()
        self._session.watched.discard(self)
        self.subscriptions.fire(_W.LOSE)
        self._waiting.extendleft(reversed(self._configuring))
        self._configuring.clear()
        self.fire(_I.CHANNEL_DOWN, now)
        self._take_back()

    def _take_back(self) -> None:
        """End changes that only remove subscriptions: without a connection no broker has them."""
        if self.state is QueueState.LOST and self._waiting and self.subscriptions.removes_only:
            while self._waiting:
                self._complete(self._waiting.popleft(), None)

    def try_again(self, now: float) -> None:
        """Repeat a request that was refused for now or not answered."""
        if self.delayed:
            self.fire(_I.AGAIN, now)

    def resume(self, now: float) -> bool:
        """Allow writing posts again; return whether posts had to wait."""
        if self.state is not QueueState.REOPENED:
            return False
        self.fire(_I.RESUME, now)
        return True

    def stop(self, error: Error, now: float) -> None:
        """End the queue with the session."""
        self._fail_operations(error)
        self.fire(_I.STOP, now)

    def host_health(self, healthy: bool) -> None:
        """Suspend or resume the queue, depending on the health of the host."""
        if not self._suspends:
            return
        self.suspended = not healthy
        if self.state in _STREAMING and (self.subscriptions.wanted or self.subscriptions.committed):
            self._session.changed[self] = None
        elif self.in_use:
            self._report_suspension()

    def late(self, operation: PendingCall, now: float) -> None:
        """Fail an operation at the deadline, unless the request times out first."""
        if operation.done:
            return
        if self._opening is operation and self.state is QueueState.WAITING:
            self.fire(_I.TIMEOUT, now)
        elif self._opening is operation and self.state is QueueState.BEHIND:
            self.fire(_I.TIMEOUT, now, None, self._timed_out("close an earlier opening of"))
        elif operation in self._waiting:
            self._waiting.remove(operation)
            self._complete(operation, self._timed_out("configure"))
        elif operation in self._configuring:
            self._configuring.remove(operation)
            self._complete(operation, self._timed_out("configure"))
        elif self._closing is operation and self.state in _UNANSWERED:
            self._complete(operation, self._timed_out("close"))

    def delivered(self, count: int, now: float) -> bool:
        """Note delivered messages; return whether no action follows."""
        revived = self.watch.revived
        quiet = self.watch.delivered(count, now)
        if self.watch.revived != revived:
            self._session.revived += self.watch.revived - revived
            if revived < _WORTH_MENTION <= self.watch.revived:
                self._session.emit(DeliveryRevived(self.uri_text))
                quiet = False
        if not quiet:
            self._session.watched.set(self, self.watch.deadline)
        return quiet

    def may_confirm(self, count: int, *, everything: bool) -> int:
        """Return how many of the waiting confirmations may be sent now."""
        allowed = self.watch.may_confirm(count, everything=everything)
        if allowed < count:
            self._session.watched.set(self, self.watch.deadline)
        return allowed

    def confirms_sent(self, count: int, now: float) -> None:
        """Note confirmations sent."""
        self.watch.confirmed(count, now)
        self._session.watched.set(self, self.watch.deadline)

    def look_after(self, now: float) -> None:
        """Repeat the subscriptions if the broker has stopped delivering; release confirmations held back."""
        # While another request is under way, its answer starts the watch again.
        if self.watch.due(now, can_repeat=self.state is QueueState.OPEN):
            self._session.repetitions += 1
            self._session.changed[self] = None
        self._session.watched.set(self, self.watch.deadline)

    def _watch_streams(self, now: float) -> None:
        """Watch the agreed subscriptions; messages of a broadcast queue that waits are dropped, not late."""
        self.watch.configured(() if self.at_most_once else self.subscriptions.committed, now)
        self._session.watched.set(self, self.watch.deadline)

    def answered(self, request: Request, body: ControlBody | None, now: float) -> None:
        """Process the answer to a request; the answer to another request does not change the outcome."""
        refusal = body if isinstance(body, Status) and body.category != StatusCategory.E_SUCCESS else None
        if refusal is None and not isinstance(body, _ANSWERS[request.kind]):
            request.unexpected = request.unexpected or _in_words(body)
            self.unanswered(request, now)
            return
        present = self._request
        if present is not request:
            if refusal is not None:
                return
            # If the first openQueue timed out and a second was sent, either answer will do.
            if present is None or not request.kind is present.kind is RequestKind.OPEN:
                self._answered_late(request, now)
                return
        self._request = None
        if refusal is not None:
            passing = (self.state, _I.DELAYED) in self.TRANSITIONS and self._not_reopened(
                refusal, request
            ).retryable
            self.fire(_I.DELAYED if passing else _I.REFUSED, now, request, refusal)
            return
        if isinstance(body, OpenQueueResponse):
            self.at_most_once = bool(body.routing_configuration.flags & RoutingFlags.AT_MOST_ONCE)
            self.deduplication_time = max(0, body.deduplication_time_ms) / 1000
            self._session.posts.opened(self)
        plain = request.kind is RequestKind.OPEN and not self.readable
        self.fire(_I.ACCEPTED_PLAIN if plain else _I.ACCEPTED, now, request)

    def _answered_late(self, request: Request, now: float) -> None:
        """Process the answer to a request already timed out here."""
        if request.kind is RequestKind.OPEN:
            self._close_once(now)
        elif request.kind is RequestKind.CONFIGURE and self.state in (_OPEN, _RECONFIGURING):
            self.subscriptions.accepted_late = True
            if self.state is _OPEN:
                self._session.changed[self] = None

    def unanswered(self, request: Request, now: float) -> None:
        """Give up waiting for an answer."""
        if self._request is not request:
            return
        if request.failure is not None:
            self._request = None
            self.fire(_I.REFUSED, now, request, request.failure)
            return
        if request.kind is not RequestKind.OPEN:
            # Keep an openQueue: if a late answer opens the queue, the queue has to be closed.
            self._request = None
        misread = request.unexpected and (self.state, _I.MISREAD) in self.TRANSITIONS
        self.fire(_I.MISREAD if misread else _I.TIMEOUT, now, request)

    # actions: opening

    def _send_open(self, now: float) -> None:
        body = OpenQueue(handle_parameters=self.handle_parameters())
        deadline = self._deadline_of(self._opening, now)
        self._request = self._session.requests.send(RequestKind.OPEN, body, self, deadline)

    def _wait_again(self, now: float) -> None:
        assert self._request is not None
        assert self._opening is not None
        self._session.requests.extend(self._request, self._opening.deadline)

    def _send_open_again(self, now: float) -> None:
        self._shared_id.unclear = True  # The first openQueue may be answered after this queue is gone.
        self._send_open(now)

    def _finish_open(self, now: float, request: Request) -> None:
        self._commit(request)
        self._end_opening(None)
        self._report_suspension_if_settled()
        self._watch_streams(now)

    def _fail_open(self, now: float, request: Request | None = None, refusal: Refusal | None = None) -> None:
        self._end_opening(self._refused(OpenQueueError, "open", refusal, request))

    def _fail_behind(self, now: float, request: Request | None = None, error: Error | None = None) -> None:
        self._end_opening(error)

    def _fail_configuring(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        self._end_opening(self._refused(ConfigureQueueError, "configure", refusal, request))
        self._send_close(now)

    # actions: subscriptions

    def _send_configure(self, now: float, request: Request | None = None) -> None:
        self._configuring.extend(self._waiting)
        self._waiting.clear()
        self._session.changed.pop(self, None)
        deadlines = [operation.deadline for operation in self._configuring]
        if self._opening:
            deadlines.append(self._opening.deadline)
        deadline = max(deadlines, default=now + self._session.options.reopen_timeout)
        self.subscriptions.fire(_W.ASK)
        self.watch.asked(now)
        self._request_configure(() if self.suspended else self.subscriptions.asked, deadline)

    def _commit_configure(self, now: float, request: Request) -> None:
        self._commit(request)
        done, self._configuring = self._configuring, []
        for operation in done:
            self._complete(operation, None)
        self._report_suspension_if_settled()
        self.watch.answered(now)
        if done or self not in self._session.watched:
            self._watch_streams(now)

    def _roll_back(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        failed = [*self._configuring, *self._waiting]
        self._configuring.clear()
        self._waiting.clear()
        self._session.changed.pop(self, None)
        error = self._refused(ConfigureQueueError, "configure", refusal, request)
        if self.suspended is not self.reported_suspended:
            # No caller waits for this request. Drop the connection: the reconnect synchronises both sides.
            what = "suspend" if self.suspended else "resume"
            self._session.fail_channel(ConnectionFailed(f"could not {what} queue {self.uri}: {error}"))
        else:
            self.subscriptions.fire(_W.REFUSE, request.numbered, refusal is None)
            self._session.emit(StreamConfigured(self.owner, failed=True))
            if self._broker_differs and failed:
                self._session.changed[self] = None  # Request the agreed subscriptions once more.
            elif self._broker_differs:
                what = f"could not restore the subscriptions of queue {self.uri}: {error}"
                self._session.fail_channel(ConnectionFailed(what))
        if self not in self._session.watched:
            self._watch_streams(now)
        for operation in failed:
            self._complete(operation, error)

    # actions: reopening

    def _finish_reopen(self, now: float, request: Request) -> None:
        self._refusals = 0
        self._commit_configure(now, request)
        self._session.emit(QueueReopened(self.uri_text))
        self._session.queue_settled(self, now)

    def _fail_reopen(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        if refusal is None:
            self._shared_id.unclear = True
        self._give_up(request, refusal, now)

    def _fail_restoring(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        self._give_up(request, refusal, now)
        self._send_close(now)

    def _give_up(self, request: Request, refusal: Refusal | None, now: float) -> None:
        self._gone = error = self._not_reopened(refusal, request)
        self._session.emit(QueueReopenFailed(self.uri_text, error))
        self._let_go(error, now)

    def _delay(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        self._refusals += 1
        pause = backoff(self._refusals, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._session.delayed.set(self, now + pause)
        self._session.emit(QueueReopenDelayed(self.uri_text, self._not_reopened(refusal, request), pause))
        # The posts of the remaining queues do not wait for this queue.
        self._session.queue_settled(self, now)

    def _delay_restoring(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        self.subscriptions.fire(_W.DELAY, request.numbered, refusal is None)
        self._delay(now, request, refusal)

    def _not_reopened(self, refusal: Refusal | None, request: Request) -> Error:
        if request.kind is RequestKind.OPEN:
            return self._refused(OpenQueueError, "reopen", refusal, request)
        return self._refused(ConfigureQueueError, "configure", refusal, request)

    def _give_up_reopen(self, now: float) -> None:
        self._let_go(self._was_closed(), now)

    def _close_restoring(self, now: float) -> None:
        self._let_go(self._was_closed(), now)
        self._send_close(now)

    def _let_go(self, error: Error, now: float) -> None:
        """Give up the reopening of a queue, unwanted or failed."""
        self._fail_operations(error)
        self._give_up_posts()
        self._session.queue_settled(self, now)

    # actions: closing

    def _send_deconfigure(self, now: float) -> None:
        self._fail_operations(self._was_closed())
        self._request_configure(None, self._deadline_of(self._closing, now))

    def _send_close(self, now: float, request: Request | None = None, refusal: Refusal | None = None) -> None:
        self._request_close(self._deadline_of(self._closing, now))

    def _close_unanswered(self, now: float, request: Request) -> None:
        # The deadline has passed: do not wait for the answer.
        self._request_close(now + self._session.options.reopen_timeout)
        self._fail_close(now, request)

    def _fail_close(self, now: float, request: Request, refusal: Refusal | None = None) -> None:
        self._shared_id.unclear = True
        self._end(self._refused(CloseQueueError, "close", refusal, request))

    def _finish_close(
        self, now: float, request: Request | None = None, refusal: Refusal | None = None
    ) -> None:
        self._end(None)

    # helpers

    def _request_configure(self, subs: Sequence[SubscriptionCore] | None, deadline: float) -> None:
        """Send subscriptions; None, for an empty stream, only before closing: see ``_IDLE_SUBSCRIPTION``."""
        old = not self._session.configure_stream
        if old and (not subs or (len(subs) == 1 and not subs[0].expression)):
            # The old form has no subscription ids: messages carry the sub-queue id instead.
            sent: Numbered = [(self.sub_id, sub) for sub in subs or ()]
        elif old:
            error = ConfigureQueueError(
                f"queue {self.uri} cannot have these subscriptions: the broker does not announce the feature "
                "SUBSCRIPTIONS:CONFIGURE_STREAM, and takes one subscription without an expression. Receive "
                "everything and select here, or have the broker announce the feature (configureStream and "
                "advertiseSubscriptions in its configuration)",
                category=StatusCategory.E_NOT_SUPPORTED,
            )
            self._request = self._session.requests.send(RequestKind.CONFIGURE, error, self, deadline)
            return
        else:
            sent = self.subscriptions.number(() if subs is None else subs or (_IDLE_SUBSCRIPTION,))
        numbered = sent if subs else []
        self.subscriptions.add_routes(numbered)
        body: ControlBody
        if old:
            body = ConfigureQueueStream(q_id=self.q_id, stream_parameters=self._old_parameters(subs))
        else:
            body = ConfigureStream(q_id=self.q_id, stream_parameters=self._stream_parameters(sent))
        self._request = self._session.requests.send(RequestKind.CONFIGURE, body, self, deadline, numbered)

    def _stream_parameters(self, numbered: Numbered) -> StreamParameters:
        return StreamParameters(
            app_id=self.uri.app_id if self.sub_id else DEFAULT_APP_ID,
            subscriptions=tuple(
                Subscription(
                    s_id=s_id,
                    expression=Expression(
                        version=ExpressionVersion.E_VERSION_1
                        if sub.expression
                        else ExpressionVersion.E_UNDEFINED,
                        text=sub.expression,
                    ),
                    consumers=(
                        ConsumerInfo(
                            max_unconfirmed_messages=sub.options.max_unconfirmed_messages,
                            # A proxy answers a request that changes nothing without asking the primary.
                            max_unconfirmed_bytes=max(0, sub.options.max_unconfirmed_bytes - self.watch.odd),
                            consumer_priority=sub.options.priority,
                            consumer_priority_count=1,
                        ),
                    ),
                )
                for s_id, sub in numbered
            ),
        )

    def _old_parameters(self, subs: Sequence[SubscriptionCore] | None) -> QueueStreamParameters:
        info = SubQueueIdInfo(sub_id=self.sub_id, app_id=self.uri.app_id) if self.sub_id else None
        options = subs[0].options if subs else None
        return QueueStreamParameters(
            sub_id_info=info,
            max_unconfirmed_messages=options.max_unconfirmed_messages if options else 0,
            max_unconfirmed_bytes=options.max_unconfirmed_bytes if options else 0,
            consumer_priority=options.priority if options else INVALID_CONSUMER_PRIORITY,
            consumer_priority_count=1 if options else 0,
        )

    def _request_close(self, deadline: float) -> None:
        others = any(other is not self and other.state not in _GONE for other in self._shared_id.members)
        body = CloseQueue(handle_parameters=self.handle_parameters(), is_final=not others)
        self._request = self._session.requests.send(RequestKind.CLOSE, body, self, deadline)

    def _close_once(self, now: float) -> None:
        """Send a second closeQueue if two openQueues were answered: a broker counts openings."""
        here = self.state not in _GONE
        others = [each for each in self._shared_id.members if each is not self and each.state not in _GONE]
        if not here and any(each.sub_id == self.sub_id and each.flags & self.flags for each in others):
            return  # Closing now would close the queue opened since. The broker's count stays one too high.
        body = CloseQueue(handle_parameters=self.handle_parameters(), is_final=not here and not others)
        self._session.requests.send(RequestKind.CLOSE, body, self, now + self._session.options.reopen_timeout)

    def _commit(self, request: Request) -> None:
        """Record the broker's present subscriptions: none for a stream without a configuration."""
        if request.kind is RequestKind.CONFIGURE:
            self.subscriptions.fire(_W.AGREE, request.numbered)
            self._session.emit(StreamConfigured(self.owner, failed=False))
        else:
            self.subscriptions.committed = ()

    @property
    def _broker_differs(self) -> bool:
        """Whether the broker is known to have other subscriptions than the agreed subscriptions."""
        subs = self.subscriptions
        return subs.accepted_late or list(subs.committed) != ([] if self.suspended else list(subs.agreed))

    def _deadline_of(self, operation: PendingCall | None, now: float) -> float:
        return operation.deadline if operation else now + self._session.options.reopen_timeout

    def _report_suspension_if_settled(self) -> None:
        """Report a suspension or resumption to the application once confirmed by the broker."""
        has, wants = self.subscriptions.committed, self.subscriptions.wanted
        if not has if self.suspended else (has or not wants):
            self._report_suspension()

    def _report_suspension(self) -> None:
        if self.suspended is not self.reported_suspended:
            self.reported_suspended = self.suspended
            event = QueueSuspended if self.suspended else QueueResumed
            self._session.emit(event(self.uri_text))

    def _watch(self, operation: PendingCall) -> PendingCall:
        """Register an operation for a timeout at the deadline."""
        operation.queue = self
        self._session.operations.set(operation, operation.deadline)
        return operation

    def _complete(self, operation: PendingCall | None, error: Error | None) -> None:
        """Report the outcome of an operation to the caller, once."""
        if operation is not None and not operation.done:
            operation.done = True
            self._session.operations.discard(operation)
            self._session.emit(Completed(operation.token, error))

    def _end_opening(self, error: Error | None) -> None:
        operation, self._opening = self._opening, None
        self._complete(operation, error)

    def _fail_operations(self, error: Error) -> None:
        """End all operations with waiting callers, except closing."""
        operations = (self._opening, *self._configuring, *self._waiting)
        self._opening = None
        self._configuring.clear()
        self._waiting.clear()
        for operation in operations:
            self._complete(operation, error)

    def _give_up_posts(self) -> None:
        outcomes = self._session.posts.cancel(self)
        if outcomes:
            self._session.emit(Acked(outcomes))

    def _end(self, error: Error | None) -> None:
        self._request = None
        self.subscriptions.committed = ()
        self._fail_operations(self._was_closed())
        self._give_up_posts()
        self._complete(self._closing, error)

    def _timed_out(self, what: str) -> RequestTimeout:
        trouble = self._session.trouble
        why = f"; {trouble}" if trouble is not None else ""
        error = RequestTimeout(
            f"the broker did not answer the request to {what} queue {self.uri} in time{why}"
        )
        error.__cause__ = trouble
        return error

    def _was_closed(self) -> QueueClosed:
        return QueueClosed(f"queue {self.uri} was closed")

    def _refused(
        self, cls: type[RequestError], what: str, refusal: Refusal | None, request: Request | None
    ) -> Error:
        """Return the error of a failed request; without a refusal the answer was missing or unreadable."""
        if refusal is None:
            if request is None or not request.unexpected:
                return self._timed_out(what)
            strange = cls(
                f"the request to {what} queue {self.uri} ({request.kind.value}) was answered with "
                f"{request.unexpected}"
            )
            strange.__cause__ = request.cause
            return strange
        if isinstance(refusal, RequestError):
            return refusal
        if isinstance(refusal, Exception):
            error = UsageError(f"the request to {what} queue {self.uri} cannot be sent: {_text_of(refusal)}")
            error.__cause__ = refusal
            return error
        text = printable(refusal.message) or "no reason given"
        return cls(
            f"the broker refused to {what} queue {self.uri}: {text} "
            f"({refusal.category.name}, code {refusal.code})",
            category=refusal.category,
            code=refusal.code,
            broker_message=refusal.message,
        )

    TRANSITIONS: ClassVar = {
        (_S.CLOSED, _I.OPEN): Transition(_send_open, _S.OPENING),
        (_S.CLOSED, _I.OPEN_LATER): Transition(None, _S.WAITING),
        (_S.CLOSED, _I.OPEN_BEHIND): Transition(None, _S.BEHIND),
        (_S.BEHIND, _I.OPEN): Transition(_send_open, _S.OPENING),
        (_S.BEHIND, _I.OPEN_LATER): Transition(None, _S.WAITING),
        (_S.BEHIND, _I.TAKEN): Transition(_fail_behind, _S.CLOSED),
        (_S.BEHIND, _I.TIMEOUT): Transition(_fail_behind, _S.CLOSED),
        (_S.BEHIND, _I.ABANDON): Transition(None, _S.CLOSED),
        (_S.BEHIND, _I.CHANNEL_DOWN): Transition(None, _S.BEHIND),
        (_S.WAITING, _I.CHANNEL_UP): Transition(_send_open, _S.OPENING),
        (_S.WAITING, _I.CHANNEL_DOWN): Transition(None, _S.WAITING),
        (_S.WAITING, _I.TIMEOUT): Transition(_fail_open, _S.CLOSED),
        (_S.WAITING, _I.ABANDON): Transition(None, _S.CLOSED),
        (_S.OPENING, _I.ACCEPTED): Transition(_send_configure, _S.CONFIGURING),
        (_S.OPENING, _I.ACCEPTED_PLAIN): Transition(_finish_open, _S.OPEN),
        (_S.OPENING, _I.REFUSED): Transition(_fail_open, _S.CLOSED),
        (_S.OPENING, _I.TIMEOUT): Transition(_fail_open, _S.OVERDUE),
        (_S.OPENING, _I.ABANDON): Transition(None, _S.ABANDONED),
        (_S.OPENING, _I.CHANNEL_DOWN): Transition(None, _S.WAITING),
        (_S.CONFIGURING, _I.ACCEPTED): Transition(_finish_open, _S.OPEN),
        (_S.CONFIGURING, _I.REFUSED): Transition(_fail_configuring, _S.CLOSING),
        (_S.CONFIGURING, _I.TIMEOUT): Transition(_fail_configuring, _S.CLOSING),
        (_S.CONFIGURING, _I.ABANDON): Transition(_send_close, _S.CLOSING),
        (_S.CONFIGURING, _I.CHANNEL_DOWN): Transition(None, _S.WAITING),
        (_S.OPEN, _I.CONFIGURE): Transition(_send_configure, _S.RECONFIGURING),
        (_S.OPEN, _I.CLOSE): Transition(_send_deconfigure, _S.DECONFIGURING),
        (_S.OPEN, _I.CLOSE_PLAIN): Transition(_send_close, _S.CLOSING),
        (_S.OPEN, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.RECONFIGURING, _I.ACCEPTED): Transition(_commit_configure, _S.OPEN),
        (_S.RECONFIGURING, _I.REFUSED): Transition(_roll_back, _S.OPEN),
        (_S.RECONFIGURING, _I.TIMEOUT): Transition(_roll_back, _S.OPEN),
        (_S.RECONFIGURING, _I.CONFIGURE): Transition(None, _S.RECONFIGURING),
        (_S.RECONFIGURING, _I.CLOSE): Transition(_send_deconfigure, _S.DECONFIGURING),
        (_S.RECONFIGURING, _I.CLOSE_PLAIN): Transition(_send_close, _S.CLOSING),
        (_S.RECONFIGURING, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.LOST, _I.CHANNEL_UP): Transition(_send_open, _S.REOPENING),
        (_S.LOST, _I.CONFIGURE): Transition(None, _S.LOST),
        (_S.LOST, _I.CLOSE): Transition(_finish_close, _S.CLOSED),
        (_S.LOST, _I.CLOSE_PLAIN): Transition(_finish_close, _S.CLOSED),
        (_S.REOPENING, _I.ACCEPTED): Transition(_send_configure, _S.RESTORING),
        (_S.REOPENING, _I.ACCEPTED_PLAIN): Transition(_finish_reopen, _S.REOPENED),
        (_S.REOPENING, _I.REFUSED): Transition(_fail_reopen, _S.CLOSED),
        (_S.REOPENING, _I.DELAYED): Transition(_delay, _S.REOPEN_DELAYED),
        (_S.REOPENING, _I.TIMEOUT): Transition(_delay, _S.REOPEN_OVERDUE),
        (_S.REOPENING, _I.MISREAD): Transition(_fail_reopen, _S.OVERDUE),
        (_S.REOPENING, _I.CONFIGURE): Transition(None, _S.REOPENING),
        (_S.REOPENING, _I.CLOSE): Transition(_give_up_reopen, _S.ABANDONED),
        (_S.REOPENING, _I.CLOSE_PLAIN): Transition(_give_up_reopen, _S.ABANDONED),
        (_S.REOPENING, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.RESTORING, _I.ACCEPTED): Transition(_finish_reopen, _S.REOPENED),
        (_S.RESTORING, _I.REFUSED): Transition(_fail_restoring, _S.CLOSING),
        (_S.RESTORING, _I.DELAYED): Transition(_delay_restoring, _S.RESTORE_DELAYED),
        (_S.RESTORING, _I.TIMEOUT): Transition(_delay_restoring, _S.RESTORE_DELAYED),
        (_S.RESTORING, _I.MISREAD): Transition(_fail_restoring, _S.CLOSING),
        (_S.RESTORING, _I.CONFIGURE): Transition(None, _S.RESTORING),
        (_S.RESTORING, _I.CLOSE): Transition(_close_restoring, _S.CLOSING),
        (_S.RESTORING, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.REOPEN_DELAYED, _I.AGAIN): Transition(_send_open, _S.REOPENING),
        (_S.REOPEN_DELAYED, _I.CONFIGURE): Transition(None, _S.REOPEN_DELAYED),
        (_S.REOPEN_DELAYED, _I.CLOSE): Transition(_finish_close, _S.CLOSED),
        (_S.REOPEN_DELAYED, _I.CLOSE_PLAIN): Transition(_finish_close, _S.CLOSED),
        (_S.REOPEN_DELAYED, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.REOPEN_OVERDUE, _I.AGAIN): Transition(_send_open_again, _S.REOPENING),
        (_S.REOPEN_OVERDUE, _I.ACCEPTED): Transition(_send_configure, _S.RESTORING),
        (_S.REOPEN_OVERDUE, _I.ACCEPTED_PLAIN): Transition(_finish_reopen, _S.REOPENED),
        (_S.REOPEN_OVERDUE, _I.REFUSED): Transition(_fail_reopen, _S.CLOSED),
        (_S.REOPEN_OVERDUE, _I.MISREAD): Transition(_fail_reopen, _S.OVERDUE),
        (_S.REOPEN_OVERDUE, _I.DELAYED): Transition(None, _S.REOPEN_DELAYED),
        (_S.REOPEN_OVERDUE, _I.CONFIGURE): Transition(None, _S.REOPEN_OVERDUE),
        (_S.REOPEN_OVERDUE, _I.CLOSE): Transition(_close_restoring, _S.CLOSING),
        (_S.REOPEN_OVERDUE, _I.CLOSE_PLAIN): Transition(_close_restoring, _S.CLOSING),
        (_S.REOPEN_OVERDUE, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.RESTORE_DELAYED, _I.AGAIN): Transition(_send_configure, _S.RESTORING),
        (_S.RESTORE_DELAYED, _I.CONFIGURE): Transition(None, _S.RESTORE_DELAYED),
        (_S.RESTORE_DELAYED, _I.CLOSE): Transition(_close_restoring, _S.CLOSING),
        (_S.RESTORE_DELAYED, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.REOPENED, _I.RESUME): Transition(None, _S.OPEN),
        (_S.REOPENED, _I.CONFIGURE): Transition(None, _S.REOPENED),
        (_S.REOPENED, _I.CLOSE): Transition(_send_deconfigure, _S.DECONFIGURING),
        (_S.REOPENED, _I.CLOSE_PLAIN): Transition(_send_close, _S.CLOSING),
        (_S.REOPENED, _I.CHANNEL_DOWN): Transition(None, _S.LOST),
        (_S.DECONFIGURING, _I.ACCEPTED): Transition(_send_close, _S.CLOSING),
        (_S.DECONFIGURING, _I.REFUSED): Transition(_send_close, _S.CLOSING),
        (_S.DECONFIGURING, _I.TIMEOUT): Transition(_close_unanswered, _S.CLOSED),
        (_S.DECONFIGURING, _I.CHANNEL_DOWN): Transition(_finish_close, _S.CLOSED),
        (_S.CLOSING, _I.ACCEPTED): Transition(_finish_close, _S.CLOSED),
        (_S.CLOSING, _I.REFUSED): Transition(_fail_close, _S.CLOSED),
        (_S.CLOSING, _I.TIMEOUT): Transition(_fail_close, _S.CLOSED),
        (_S.CLOSING, _I.CHANNEL_DOWN): Transition(_finish_close, _S.CLOSED),
        (_S.ABANDONED, _I.OPEN): Transition(_wait_again, _S.OPENING),
        (_S.ABANDONED, _I.OPEN_LATER): Transition(None, _S.WAITING),
        (_S.ABANDONED, _I.ACCEPTED): Transition(_send_close, _S.CLOSING),
        (_S.ABANDONED, _I.ACCEPTED_PLAIN): Transition(_send_close, _S.CLOSING),
        (_S.ABANDONED, _I.TIMEOUT): Transition(None, _S.OVERDUE),
        (_S.ABANDONED, _I.REFUSED): Transition(_finish_close, _S.CLOSED),
        (_S.ABANDONED, _I.CHANNEL_DOWN): Transition(_finish_close, _S.CLOSED),
        (_S.OVERDUE, _I.OPEN): Transition(_send_open_again, _S.OPENING),
        (_S.OVERDUE, _I.OPEN_LATER): Transition(None, _S.WAITING),
        (_S.OVERDUE, _I.ACCEPTED): Transition(_send_close, _S.CLOSING),
        (_S.OVERDUE, _I.ACCEPTED_PLAIN): Transition(_send_close, _S.CLOSING),
        (_S.OVERDUE, _I.REFUSED): Transition(_finish_close, _S.CLOSED),
        (_S.OVERDUE, _I.CHANNEL_DOWN): Transition(_finish_close, _S.CLOSED),
        **dict.fromkeys(((state, _I.STOP) for state in _S), Transition(_finish_close, _S.CLOSED)),
    }


def _in_words(body: ControlBody | None) -> str:
    """Describe a message received instead of an answer."""
    if body is None:
        return "a message that this version does not know"
    return "a status of success" if isinstance(body, Status) else selection_name(type(body))


def _text_of(error: Exception) -> str:
    """Return the type and the text of an error, even if ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
