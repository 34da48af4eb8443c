# SPDX-License-Identifier: Apache-2.0
"""The session, client role: bytes and user calls in, bytes and events out.

:class:`ClientCore` owns the whole state of a session except I/O: the handshake, the queues, the window of
unacknowledged posts, requests and their deadlines, heartbeats. The I/O layer reports

* events of the connection: ``channel_opened``, ``receive``, ``channel_closed``,
* calls of the application: ``open_queue``, ``configure_queue``, ``post``, ``confirm``, ``close_queue``,
* the time, when ``next_deadline`` is due: ``tick``,

and takes the results: ``data_to_send`` and ``events``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, ClassVar, TypeVar

from bmq.errors import ConnectionFailed, Error, ProtocolError, SessionClosed
from bmq.protocol.client.confirmations import Confirmations
from bmq.protocol.client.events import (
    Acked,
    Astray,
    ClientDeprecated,
    CloseChannel,
    Completed,
    ConfirmedAgain,
    Connected,
    ConnectionLost,
    CredentialsNeeded,
    Disconnected,
    Outcome,
    Pushed,
    PushedColumns,
    Reconnected,
    SessionEvent,
    Signal,
    Skipped,
    StateRestored,
    Unsendable,
)
from bmq.protocol.client.handshake import (
    BrokerInfo,
    Credentials,
    Handshake,
    Renewal,
    authentication_request,
)
from bmq.protocol.client.outbox import OutputBuffer
from bmq.protocol.client.ports import Columns, QueueOwner
from bmq.protocol.client.posts import PostWindow
from bmq.protocol.client.queue import PendingCall, QueueCore, QueueState
from bmq.protocol.client.registry import QueueRegistry
from bmq.protocol.client.requests import PendingRequests, RequestKind
from bmq.protocol.client.subscription import Routes, SubscriptionCore
from bmq.protocol.client.watchdog import Watchdog
from bmq.protocol.deadlines import Deadlines
from bmq.protocol.framing import Framer
from bmq.protocol.heartbeat import Heartbeat
from bmq.protocol.machine import Machine, Transition
from bmq.wire.ack import merge_acks
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, EventType
from bmq.wire.control import (
    AdminCommand,
    ClientIdentity,
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    ControlMessage,
    Disconnect,
    MessageKind,
    OpenQueue,
    QueueFlags,
)
from bmq.wire.control_event import decode_event, request_id
from bmq.wire.event import HEARTBEAT_RSP, Event, read_event
from bmq.wire.push import GUID, Push, decode_push_runs
from bmq.wire.uri import QueueUri

__all__ = ["ClientCore", "CoreOptions", "SessionInput", "SessionState"]

# Seconds during which an error of the connection counts as the likely cause of later failures.
_RECENTLY = 60.0
# Requests, sent by brokers only by mistake, are skipped.
_REQUESTS = (OpenQueue, ConfigureStream, ConfigureQueueStream, CloseQueue, Disconnect, AdminCommand)
# Events that prove that the broker receives bytes of this client.
_ANSWERS = frozenset({EventType.ACK, EventType.CONTROL, EventType.AUTHENTICATION, EventType.HEARTBEAT_RSP})
# Seconds during which posts to reopened queues wait for the remaining queues.
_RESTORE_PATIENCE = 1.0
# Slower queues are resumed in groups, at this interval in seconds, because each resumption scans all posts.
_LATE_TOGETHER = 0.05


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Limits and timeouts of a :class:`ClientCore`, in seconds and bytes.

    Attributes:
        reopen_timeout: timeout for reopening a queue after a reconnect.
        max_incoming_event: largest event accepted.
        max_unacked_messages: number of unacknowledged posts at which the window is full.
        max_unacked_bytes: bytes of unacknowledged posts at which the window is full.
        repeat_after: time without messages after which subscriptions with expressions are repeated; 0
            disables the repetition.
        drop_confirmed_redeliveries: whether a redelivery of a confirmed message is confirmed again and not
            reported; see :mod:`bmq.protocol.client.confirmations`.
        liveness: seconds without a byte from the broker before the connection is given up; None to rely on
            the heartbeats of the broker's configuration.
    """

    reopen_timeout: float = 60.0
    max_incoming_event: int = DEFAULT_MAX_INCOMING_EVENT
    max_unacked_messages: int = 200_000
    max_unacked_bytes: int = 128 * 1024 * 1024
    repeat_after: float = 0.1
    drop_confirmed_redeliveries: bool = True
    liveness: float | None = None


class SessionState(Enum):
    """The states of a session.

    ::

        if session.state is bmq.SessionState.CLOSED:
            session = await bmq.connect(broker)
    """

    STARTING = "connecting for the first time"
    STARTED = "in use"
    RECONNECTING = "connection lost"
    DRAINING = "closing: handlers and posts in flight finish"
    DRAINING_LOST = "connection lost while closing: posts in flight wait for the next one"
    SEALED = "closing: nothing is posted any more, queues are closed"
    SEALED_LOST = "connection lost while queues are closed"
    CLOSING = "disconnect sent"
    CLOSED = "over"


class SessionInput(Enum):
    """The inputs of a session's state machine."""

    CHANNEL_UP = "negotiated"
    CHANNEL_DOWN = "connection gone"
    DRAIN = "close: no more queues are opened"
    SEAL = "handlers and posts are done, or the time is up"
    STOP = "disconnect"
    GIVE_UP = "no more attempts, or no time left"
    DISCONNECTED = "disconnectResponse or timeout"


_S, _I = SessionState, SessionInput
_OPEN = QueueState.OPEN
_STARTED, _DRAINING, _SEALED = _S.STARTED, _S.DRAINING, _S.SEALED
# In these states the application can open queues.
_IN_USE = frozenset({_S.STARTING, _S.STARTED, _S.RECONNECTING})
# In these states the session is being closed, and has not disconnected.
_CLOSES = (_S.DRAINING, _S.DRAINING_LOST, _S.SEALED, _S.SEALED_LOST)
# In these states posting is impossible.
_CLOSED_TO_POSTS = frozenset({_S.SEALED, _S.SEALED_LOST, _S.CLOSING, _S.CLOSED})


class ClientCore(Machine):
    """One session.

    Args:
        identity: the client's identity in the negotiation.
        options: limits and timeouts.

    Attributes:
        state: the session's state.
        broker: the broker's identity from the latest handshake; None before the first.
        post: accepts a post for a queue. Each post ends in one outcome (:class:`Acked`); see
            :meth:`bmq.protocol.client.posts.PostWindow.post`.
        post_many: accepts several posts; see :meth:`bmq.protocol.client.posts.PostWindow.post_many`.
        post_event: accepts the posts of an encoded event; see
            :meth:`bmq.protocol.client.posts.PostWindow.post_event`.
        posts: the posts without an outcome, for reading only.
        lost_because: the reason for the latest loss of the connection.
        new_properties: whether to write properties in the new encoding.
        unsettled: number of posts without an outcome when the session was given up.
        ended_by: the error at the end of the session; None during the session, and after an end without
            error.
        read_columns: reads a PUSH event, given the offset of the body, as columns; returns None if the
            messages should be read individually. None if no consumer takes columns.
    """

    state: SessionState
    read_columns: Callable[[bytes, int], Columns | None] | None

    def __init__(self, identity: ClientIdentity, options: CoreOptions | None = None) -> None:
        self.state = SessionState.STARTING
        self.options = options = options or CoreOptions()
        self._events: list[SessionEvent | Signal] = []
        # Reports an event: a function of the list, to save a call for each event.
        self.emit: Callable[[SessionEvent | Signal], None] = self._events.append
        self.read_columns = None
        self._identity = identity
        self.broker: BrokerInfo | None = None
        self.confirms = Confirmations(enabled=options.drop_confirmed_redeliveries)
        self.outbox = OutputBuffer(self.confirms)
        self.requests = PendingRequests(self.outbox)
        patience = options.liveness / 2 if options.liveness is not None else None
        limits = options.max_unacked_messages, options.max_unacked_bytes
        self.posts = PostWindow(self.outbox, *limits, patience)
        self._watchdog = Watchdog(self, options.liveness)
        # Bound methods, to save a call for each post.
        self.post = self.posts.post
        self.post_many = self.posts.post_many
        self.post_event = self.posts.post_event
        self.routes = Routes()
        # The deadlines of operations with waiting callers.
        self.operations: Deadlines[PendingCall] = Deadlines()
        # Queues with changed subscriptions not yet sent.
        self.changed: dict[QueueCore, None] = {}
        # Times of the next check of queues with expressions in subscriptions.
        self.watched: Deadlines[QueueCore] = Deadlines()
        # Times of the next attempt to reopen temporarily refused queues.
        self.delayed: Deadlines[QueueCore] = Deadlines()
        # Number of repetitions of subscriptions of any queue, and of messages right after a repetition.
        self.repetitions = 0
        self.revived = 0
        # Whether the broker supports configureStream, not only its older form.
        self.configure_stream = True
        self.queues = QueueRegistry(self)
        self.framer = Framer(options.max_incoming_event)
        self._reading_paused = False
        self.heartbeat_owed = False
        self._renewal = Renewal()
        self._stopping: list[PendingCall] = []
        self.lost_because = ""
        # The latest error of a connection or of an unreadable answer, and its time.
        self._trouble: Error | None = None
        self._troubled_at = 0.0
        # Time of the latest negotiation, or of the end of the latest trouble.
        self._up_at = 0.0
        self.now = 0.0
        # True without a usable connection: bytes are neither read nor written. Between a fault and the end of
        # the channel, the session's table still has the state of a session with a connection.
        self._broken = True
        self._restoring: dict[QueueCore, None] = {}
        self._patience: float | None = None
        #: Whether an answer may have moved the next deadline back; to be reset by the owner of the timer.
        self.relaxed = False
        self.new_properties = False
        self.ended_by: BaseException | None = None
        self.unsettled = 0

    # output

    def data_to_send(self, now: float, limit: float = inf) -> list[bytes]:
        """Return the events to write, in order, large ones in pieces.

        Call this method after each call below, or once after several calls.

        Args:
            now: the time.
            limit: number of bytes at which to stop; the rest remains for the next call.
        """
        if self._broken:
            return []
        if self.changed and self.connected:
            for queue in list(self.changed):
                queue.send_changes(now)
        if self.heartbeat_owed:
            self.heartbeat_owed = False
            self.outbox.event(HEARTBEAT_RSP)
        outbox = self.outbox
        if not (outbox.runs or outbox.events or self.confirms.waiting or self.confirms.held):
            return []
        data = outbox.take(limit)
        if self.confirms.sent:
            for confirming, count in self.confirms.sent:
                confirming.confirms_sent(count, now)
            self.confirms.sent.clear()
        if self.requests.fresh:
            self._watchdog.requests_sent(now)
        if self.confirms.unstamped:
            self.confirms.stamp(now)
        return data

    def events(self) -> list[SessionEvent | Signal]:
        """Return the events since the last call."""
        events = self._events.copy()
        self._events.clear()
        return events

    def next_deadline(self) -> float | None:
        """Return the time of the next :meth:`tick`, or None."""
        first: float | None = None
        watchdog = self._watchdog
        for deadline in (
            self.requests.deadlines.first,
            self.operations.first,
            self.watched.first,
            self.delayed.first,
            watchdog.heartbeat.deadline if watchdog.heartbeat else None,
            watchdog.bytes.deadline,
            watchdog.answers.deadline,
            watchdog.pulse_at,
            watchdog.deadline,
            self._renewal.due,
            self._renewal.ends,
            self.confirms.deadline,
            self._patience,
            self.posts.deadline,
            -inf if self.outbox.unsendable else None,
        ):
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first

    @property
    def connected(self) -> bool:
        """Whether the session is negotiated and in use."""
        state = self.state
        return not self._broken and (state is _STARTED or state is _DRAINING or state is _SEALED)

    @property
    def sealed(self) -> bool:
        """Whether posting has become impossible: the session is over, or closes the queues."""
        return self.state is not _STARTED and self.state in _CLOSED_TO_POSTS

    @property
    def over(self) -> bool:
        """Whether the session needs no connection any more."""
        return self.state is SessionState.CLOSING or self.state is SessionState.CLOSED

    @property
    def restored(self) -> bool:
        """Whether the session is connected, and every queue is open again or has failed."""
        late = any(queue.late_to_reopen for queue in self.queues)
        return self.connected and not self._restoring and not late

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for the broker's answer about a queue."""
        return len(self.operations) > 0

    @property
    def repeated(self) -> tuple[int, int]:
        """The number of repetitions of silent subscriptions, and of messages following at once."""
        return self.repetitions, self.revived

    def stalls(self, now: float) -> dict[str, str]:
        """Describe the current stalls, by cause; see :class:`bmq.protocol.client.events.Stalled`."""
        return dict(self._watchdog.describe(now)) if self._watchdog.causes else {}

    @property
    def stalled(self) -> bool:
        """Whether any cause has stalled."""
        return bool(self._watchdog.causes)

    @property
    def unfinished(self) -> bytes:
        """The bytes received so far of an unfinished event."""
        return self.framer.unfinished()

    def silence(self, now: float) -> float | None:
        """Seconds since the last byte from the broker; None while silence is not watched.

        Silence is watched while the session is connected and reading, unless ``liveness`` is None.
        """
        return None if self._broken else self._watchdog.silence(now)

    @property
    def trouble(self) -> Error | None:
        """The error behind a missing connection, a recent loss, or an unreadable answer; otherwise None."""
        if self._up_at >= self._troubled_at and self.now - self._up_at > _RECENTLY:
            self._trouble = None
        return self._trouble

    # the connection

    def handshake(self) -> Handshake:
        """Return a new handshake, for a candidate connection of the session."""
        return Handshake(self._identity, self.options.max_incoming_event)

    def channel_opened(self, handshake: Handshake, now: float) -> None:
        """Use a negotiated connection from now on.

        Args:
            handshake: the completed handshake of the connection.
            now: the time.

        Raises:
            SessionClosed: the session is over.
        """
        if self.state in _CLOSED_TO_POSTS:
            raise SessionClosed("the session is closed")
        self._broken = False
        self.now = self._up_at = now
        self.broker = broker = handshake.broker
        assert broker is not None
        self.framer = handshake.framer
        for what in handshake.skipped:
            self._notice(what)
        heartbeat = Heartbeat(broker.heartbeat_interval, broker.max_missed_heartbeats, now)
        self._watchdog.opened(heartbeat, now)
        self._renewal.authenticated(handshake.lifetime, now)
        self.configure_stream = broker.configure_stream
        self.new_properties = broker.new_properties
        self.fire(_I.CHANNEL_UP, now)
        self.pause_reading(self._reading_paused, now)
        self._take(handshake.rest, self.framer.feed(b"")[1], now)

    def note_trouble(self, error: Error, now: float) -> None:
        """Keep the cause of a missing connection, for the errors of calls waiting for a connection."""
        self._trouble, self._troubled_at, self.now = without_tracebacks(error), now, now

    def _note_unread(self, error: Error, now: float) -> None:
        """Keep the error of an unreadable message, which may make a request fail; the connection stays."""
        self.note_trouble(error, now)
        self._up_at = now

    def channel_closed(self, reason: str, now: float) -> None:
        """Process a lost or unusable connection. Call this once for each ``channel_opened``."""
        if not self._broken:
            self.note_trouble(ConnectionFailed(f"the connection was lost: {reason}"), now)
        self._broken = True
        # The old framer may hold half an event, or an error with a traceback referring to much memory.
        self.framer = Framer(self.options.max_incoming_event)
        self.heartbeat_owed = False
        self._watchdog.closed()
        self._renewal = Renewal()
        self._patience = None
        self.lost_because = reason
        self.outbox.clear()
        if self.state is not SessionState.CLOSED:  # After the end of the session no redeliveries arrive.
            self.confirms.lost()
        self.fire(_I.CHANNEL_DOWN, now)

    def give_up(self, reason: str, now: float, cause: BaseException | None = None) -> None:
        """End the session at once: no further connection will be tried, or the time is up.

        Args:
            reason: "" at the application's request.
            now: the time.
            cause: the error behind the reason, if any.
        """
        self.lost_because = reason
        self.ended_by = cause
        self.unsettled = len(self.posts)
        self.fire(_I.GIVE_UP, now)

    def drain(self, now: float) -> None:
        """Begin to close: no more queues are opened. :meth:`seal` and :meth:`stop` follow."""
        self.fire(_I.DRAIN, now)

    def seal(self, now: float) -> None:
        """Accept no more posts: those that had to finish are done, or the time is up."""
        self.fire(_I.SEAL, now)

    def stop(self, token: Any, now: float, deadline: float) -> None:
        """End the session: disconnect if connected; ``Completed(token)`` and ``Disconnected`` follow.

        Posts without an outcome and outstanding operations end at once.
        """
        if self.state is SessionState.CLOSED:
            self.emit(Completed(token, None))
            return
        self._stopping.append(PendingCall(token, deadline))
        self.fire(_I.STOP, now)

    def receive(self, data: bytes | memoryview, now: float) -> bool:
        """Process bytes from the broker. Never raises: ``CloseChannel`` reports a violation.

        Args:
            data: the bytes, or the filled part of the framer's :meth:`~bmq.protocol.framing.Framer.space`.
            now: the time.

        Returns:
            True if the caller need not flush output or set its timer again. This is the common case.
        """
        if self._broken:
            return False
        self.now = now
        self._watchdog.received(data, now)
        return self._take(*self.framer.feed(data), now)

    def _take(self, events: list[Event], error: ProtocolError | None, now: float) -> bool:
        quiet = error is None
        for event in merge_acks(events):
            try:
                if not self._dispatch(event, now):
                    quiet = False
            except ProtocolError as unread:
                quiet = False
                self._skip(event, unread, now)
            except Error as failure:
                quiet = False
                self.fail_channel(failure)
        if error is not None:
            self.fail_channel(error)
        if self._watchdog.causes:
            self._watchdog.look_for_progress(now)
        return quiet

    def tick(self, now: float) -> None:
        """Handle the deadlines due at ``now``."""
        self.now = now
        for request in self.requests.expire(now):
            if request.subject is None:
                self.fire(_I.DISCONNECTED, now)
            else:
                request.subject.unanswered(request, now)
        for operation in self.operations.due(now):
            if operation.queue is not None:
                operation.queue.late(operation, now)
        for queue in self.watched.due(now):
            queue.look_after(now)
        for queue in self.delayed.due(now):
            queue.try_again(now)
        if self._renewal.take_due(now):
            self.emit(CredentialsNeeded())
        if self._renewal.take_end(now):
            self.fail_channel(ConnectionFailed("the authentication has expired"))
        self.confirms.tick(now)
        if self._patience is not None and now >= self._patience:
            self._patience = None
            self._resume([queue for queue in self.queues if queue not in self._restoring], now)
        if self.posts.deadline is not None and now >= self.posts.deadline:
            self._report(self.posts.expire(now))
            if self.connected:
                self._watchdog.look(now)
        self._watchdog.tick(now)
        if not self.posts and self._watchdog.deadline is None:
            self.posts.deadline = None  # The next post is a first post again.
        unsendable, self.outbox.unsendable = self.outbox.unsendable, []
        for message, error in unsendable:
            if outcomes := self.posts.unsendable(message):
                self.emit(Unsendable(str(outcomes[0][4].uri), error))
                self._report(outcomes)

    def pause_reading(self, paused: bool, now: float) -> None:
        """Process a pause or resumption of reading: without reading, silence is no evidence."""
        self._watchdog.pause(paused, now)
        if self._reading_paused or paused:
            # A pause of the broker may be hidden by this pause.
            self.confirms.index()
        self._reading_paused = paused

    def written(self, now: float) -> None:
        """Record that the peer has accepted bytes of a backlog, as a proof of life.

        Sending a large message on a slow line takes longer than the tolerated silence.
        """
        self._watchdog.written(now)

    def reauthenticate(self, credentials: Credentials | None, now: float) -> None:
        """Renew the credentials on the live session; None if no credentials are available."""
        if not self.connected:
            return
        if credentials is None:
            self._renewal.failed(now)
        else:
            self._renewal.asked = True
            self.outbox.event(authentication_request(credentials))

    # queues

    def open_queue(
        self,
        uri: QueueUri,
        flags: QueueFlags,
        owner: QueueOwner,
        token: Any,
        now: float,
        deadline: float,
        *,
        subscriptions: Sequence[SubscriptionCore] = (),
        suspends: bool = False,
    ) -> QueueCore:
        """Begin to open a queue; ``Completed(token)`` follows.

        If an earlier opening of the queue is in progress or being undone, the new opening waits, until the
        deadline.

        Args:
            uri: the queue's URI.
            flags: READ, WRITE or both.
            owner: receiver of messages with an unknown subscription.
            token: caller's handle, returned with the outcome.
            now: the time.
            deadline: time of the timeout.
            subscriptions: initial subscriptions.
            suspends: whether to suspend the queue while the host is unhealthy.

        Raises:
            StateError: the queue is open already.
            SessionClosed: the session is closed or closing.
        """
        if self.state not in _IN_USE:
            raise SessionClosed("the session is closed" if self.over else "the session is closing")
        operation = PendingCall(token, deadline)
        return self.queues.open(uri, flags, owner, subscriptions, operation, now, suspends=suspends)

    def abandon_queue(self, queue: QueueCore, now: float, deadline: float) -> None:
        """Close an unwanted queue, after the opening if necessary, without a report."""
        queue.abandon(now, deadline)

    def configure_queue(
        self,
        queue: QueueCore,
        subscriptions: Sequence[SubscriptionCore],
        token: Any,
        deadline: float,
    ) -> None:
        """Replace a queue's subscriptions; ``Completed(token)`` follows.

        Changes made before the next :meth:`data_to_send` go out together. :class:`StreamConfigured` reports
        whether the broker agreed; after a refusal the previous subscriptions are wanted again. While the
        connection is lost, a change that only removes subscriptions is complete at once.

        Raises:
            QueueClosed: the queue is closing or closed.
        """
        queue.configure(subscriptions, PendingCall(token, deadline))

    def close_queue(
        self, queue: QueueCore, token: Any, now: float, deadline: float, *, at_once: bool = False
    ) -> None:
        """Close a queue, see :meth:`QueueCore.close`; ``Completed(token)`` follows.

        Raises:
            QueueClosed: the queue is already closing or closed.
        """
        queue.close(PendingCall(token, deadline), now, at_once=at_once)

    def host_health(self, healthy: bool) -> None:
        """Suspend or resume the queues with this option: the host health monitor has reported a change."""
        if self.state is not SessionState.CLOSED:
            self.queues.host_health(healthy)

    # confirmations

    def confirm(self, queue: QueueCore, guid: bytes) -> list[bytes] | None:
        """Confirm one message; the confirmation goes out with the next :meth:`data_to_send`.

        Returns:
            The pending GUIDs of the queue. Appending to the list confirms more messages, until the function
            given to :meth:`before_confirms_change` is called. None if the queue accepts no confirmations now.
        """
        # Nearly always the queue is open and nothing is pending: check without a call.
        if (queue.state is _OPEN and not queue.at_most_once) or queue.attached:
            waiting = self.confirms.waiting
            if waiting:
                return self.confirms.add(queue, (guid,))
            pending = waiting[queue] = [guid]
            return pending
        if not queue.at_most_once:
            self.confirms.remember(queue, (guid,))
        return None

    def before_confirms_change(self, call: Callable[[], None]) -> None:
        """Set the function to call before pending confirmations are sent, dropped or extended here."""
        self.confirms.changes = call

    def confirm_many(self, queue: QueueCore, guids: Sequence[bytes]) -> None:
        """Confirm several messages of one queue."""
        if not guids:
            return
        if queue.attached:
            self.confirms.add(queue, guids)
        elif not queue.at_most_once:
            self.confirms.remember(queue, guids)

    # reports of the queues

    def queue_settled(self, queue: QueueCore, now: float) -> None:
        """Process the end of an attempt to reopen a queue."""
        if queue in self._restoring:
            del self._restoring[queue]
            if not self._restoring:
                self._finish_restore(now)
                return
        if self._patience is None:
            if self._restoring:
                self._patience = now + _LATE_TOGETHER
            else:
                self._resume([queue], now)

    def fail_channel(self, error: Error | None) -> None:
        """Request, once, the closing of an unusable connection."""
        if not self._broken:
            self._broken = True
            if error is not None:
                self.note_trouble(error, self.now)
            self.emit(CloseChannel(error))

    def _notice(self, what: str) -> None:
        """Report skipped content, known only to newer brokers."""
        self.emit(Skipped(what))

    # incoming events

    def _dispatch(self, event: Event, now: float) -> bool:
        """Process an event; return True if the only effects are reported events."""
        kind = event.type
        if self._broken:
            return False
        if kind == EventType.HEARTBEAT_REQ:
            self.heartbeat_owed = True
            return False
        if kind == EventType.PUSH:
            return self._pushed(event, now)
        if kind in _ANSWERS:
            self._watchdog.answered(now)
        if kind == EventType.ACK:
            acked = self.posts.acked(event, now)
            if acked.outcomes or acked.accepted:
                self.emit(acked)
                for number in sorted(set(acked.strange.values())) if acked.strange else ():
                    self._notice(f"status {number} of ACK messages")
            return True
        elif kind == EventType.CONTROL:
            self._answered(event, now)
        elif kind == EventType.AUTHENTICATION:
            self._renewed(event, now)
        elif kind == EventType.HEARTBEAT_RSP:
            self._watchdog.heartbeat_answered(now)
            self.relaxed = True
        elif not event.body:
            read_event(event.data)  # raises the error of the header
        else:
            self._notice(f"events of type {kind}")
        return False

    def _skip(self, event: Event, error: ProtocolError, now: float) -> None:
        """Skip what cannot be read of an event: the length of the event leads to the next one."""
        self._note_unread(error, now)
        self._notice(f"the unreadable part of an event of type {event.type} ({error.field})")
        if error.field == "AckMessage" and error.offset is not None:  # the end of the last complete message
            self._dispatch(event._replace(data=event.data[: error.offset]), now)

    def _renewed(self, event: Event, now: float) -> None:
        """Process the answer to renewed credentials; unreadable answers leave the old credentials valid."""
        if not self._renewal.asked:
            self._notice("an authenticationResponse without a request")
            return
        try:
            self._renewal.answered(event, self._notice, now)
        except ProtocolError as error:
            self._note_unread(error, now)
            self._notice(f"an authenticationResponse that cannot be read ({error.field})")

    def _pushed(self, event: Event, now: float) -> bool:
        if self.read_columns is not None:
            event = event._replace(data=bytes(event.data))  # Columns keep the event.
            if self._pushed_columns(event, now):
                return False
        deliveries: list[tuple[QueueCore, SubscriptionCore, list[Push]]] = []
        for run in decode_push_runs(event.data, event.body, self._notice):
            q_id, ids, *_ = run[0]
            routes = self.routes.by_queue.get(q_id, _NO_ROUTES)
            if len(ids) == 1:
                route = routes.get(ids[0]) or self.queues.only_reader(q_id)
                if route is not None:
                    deliveries.append((*route, run))
                else:
                    self.emit(Astray(q_id, ids, len(run)))
                continue
            # Deliver once to each subscription, even if the broker repeats an id.
            found = dict.fromkeys(map(routes.get, ids))
            if None in found:
                found[self.queues.only_reader(q_id)] = None
            if list(found) == [None]:
                self.emit(Astray(q_id, ids, len(run)))
            deliveries += [(*route, run) for route in found if route is not None]
        quiet = True
        known = False
        for queue, _, run in deliveries:
            confirmed = queue.confirmed
            if confirmed is not None:
                if confirmed.encoded or confirmed.older_encoded:
                    confirmed.prepare(run[0][GUID], event.data, now - queue.watch.heard)
                if confirmed.recent or confirmed.older:
                    known = known or confirmed.knows_any([push[GUID] for push in run])
            if not queue.delivered(len(run), now):
                quiet = False
        if known:
            quiet = False
            deliveries = self._confirm_again(deliveries)
        if deliveries:
            self.emit(Pushed(deliveries))
        return quiet

    def _pushed_columns(self, event: Event, now: float) -> bool:
        """Deliver an event as columns, unless some messages must be processed individually."""
        assert self.read_columns is not None
        columns = self.read_columns(event.data, event.body)
        if columns is None:
            return False
        deliveries: list[tuple[QueueCore, SubscriptionCore, Columns]] = []
        for q_id, ids, some in columns.routes():
            route = self.routes.by_queue.get(q_id, _NO_ROUTES).get(ids[0])
            if route is None or not route[1].columns or len(ids) > 1:
                return False
            confirmed = route[0].confirmed
            if confirmed is not None:
                if confirmed.encoded or confirmed.older_encoded:
                    confirmed.prepare(bytes(some.guids[0]), event.data, now - route[0].watch.heard)
                if (confirmed.recent or confirmed.older) and confirmed.knows_any(some.guids.tolist()):
                    return False
            deliveries.append((*route, some))
        for queue, _, some in deliveries:
            queue.delivered(some.count, now)
        self.emit(PushedColumns(deliveries))
        return True

    def _confirm_again(
        self, deliveries: list[tuple[QueueCore, SubscriptionCore, list[Push]]]
    ) -> list[tuple[QueueCore, SubscriptionCore, list[Push]]]:
        """Confirm redelivered messages again; return the remaining messages."""
        fresh: list[tuple[QueueCore, SubscriptionCore, list[Push]]] = []
        for queue, subscription, run in deliveries:
            guids = [push[GUID] for push in run]
            if queue.confirmed is not None and (known := queue.confirmed.known(guids)):
                # The broker has the queue open, or it would not deliver; its answer may still be on the way.
                self.confirms.add(queue, [guid for guid in guids if guid in known])
                run = [push for push in run if push[GUID] not in known]
                self.emit(ConfirmedAgain(queue.uri_text, subscription.owner, len(guids) - len(run)))
            if run:
                fresh.append((queue, subscription, run))
        return fresh

    def _answered(self, event: Event, now: float) -> None:
        unread: ProtocolError | None = None
        try:
            message = decode_event(event, MessageKind.CONTROL, self._notice)
        except ProtocolError as error:
            unread = without_tracebacks(error)
            message = ControlMessage(r_id=request_id(event))
            self._note_unread(error, now)
            self._notice(f"a control message that cannot be read ({error.field})")
        if isinstance(message.body, _REQUESTS):
            self._notice(f"a request of the broker: {type(message.body).__name__}")
            return
        request = self.requests.resolve(message.r_id)
        if request is None:
            return  # brokers send no unsolicited messages; answers to forgotten requests do not matter
        if unread is not None:
            request.unexpected = f"a message that cannot be read: {unread}"
            request.cause = unread
        if request.subject is None:
            self.fire(_I.DISCONNECTED, now)
        else:
            request.subject.answered(request, message.body, now)

    # actions

    def _announce(self, now: float) -> None:
        assert self.broker is not None
        self.emit(Connected(self.broker.name))
        if self.broker.deprecates:
            self.emit(ClientDeprecated(self.broker.name))
        self.queues.channel_up(now)

    def _lose(self, now: float) -> None:
        self.requests.clear()
        self._restoring.clear()
        self.emit(ConnectionLost(self.lost_because))
        self._report(self.posts.lost())
        self.queues.channel_down(now)

    def _restore(self, now: float) -> None:
        assert self.broker is not None
        self.emit(Reconnected(self.broker.name))
        self.confirms.restored(now)
        self._restoring.update(dict.fromkeys(self.queues.channel_up(now)))
        if self._restoring:
            self._patience = now + _RESTORE_PATIENCE
        else:
            self._finish_restore(now)

    def _disconnect(self, now: float) -> None:
        self._watchdog.disconnecting()
        self._end_everything(SessionClosed("the session is closed"), now)
        self.requests.send(RequestKind.DISCONNECT, Disconnect(), None, self._stopping[0].deadline)

    def _stop(self, now: float) -> None:
        reason = "" if self._stopping else self.lost_because
        error: Error = ConnectionFailed(reason) if reason else SessionClosed("the session is closed")
        error.__cause__ = self.ended_by
        self._end_everything(error, now)
        self._renewal.clear()
        self._watchdog.closed()
        self.confirms.clear()
        self.queues.channel_down(now)
        self.fail_channel(None)
        self.emit(Disconnected(reason))
        for operation in self._stopping:
            self.emit(Completed(operation.token, None))
        self._stopping.clear()

    def _end_everything(self, error: Error, now: float) -> None:
        self.requests.clear()
        self._restoring.clear()
        self._patience = None
        self.queues.stop(error, now)
        self._report(self.posts.cancel_all())

    # helpers

    def _finish_restore(self, now: float) -> None:
        self._patience = None
        self._resume(list(self.queues), now)
        self.emit(StateRestored())

    def _resume(self, queues: Collection[QueueCore], now: float) -> None:
        """Send the posts of reopened queues, in the order of posting."""
        for queue in queues:
            queue.answered_at = now
        self.posts.send_again({queue for queue in queues if queue.resume(now)})

    def _report(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self.emit(Acked(outcomes))

    TRANSITIONS: ClassVar = {
        (_S.STARTING, _I.CHANNEL_UP): Transition(_announce, _S.STARTED),
        (_S.STARTING, _I.CHANNEL_DOWN): Transition(None, _S.STARTING),
        (_S.STARTING, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.STARTING, _I.STOP): Transition(_stop, _S.CLOSED),
        (_S.STARTING, _I.DRAIN): Transition(None, _S.DRAINING_LOST),
        (_S.STARTED, _I.CHANNEL_DOWN): Transition(_lose, _S.RECONNECTING),
        (_S.STARTED, _I.DRAIN): Transition(None, _S.DRAINING),
        (_S.STARTED, _I.STOP): Transition(_disconnect, _S.CLOSING),
        (_S.STARTED, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.RECONNECTING, _I.CHANNEL_UP): Transition(_restore, _S.STARTED),
        (_S.RECONNECTING, _I.CHANNEL_DOWN): Transition(None, _S.RECONNECTING),
        (_S.RECONNECTING, _I.DRAIN): Transition(None, _S.DRAINING_LOST),
        (_S.RECONNECTING, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.RECONNECTING, _I.STOP): Transition(_stop, _S.CLOSED),
        (_S.DRAINING, _I.CHANNEL_DOWN): Transition(_lose, _S.DRAINING_LOST),
        (_S.DRAINING, _I.SEAL): Transition(None, _S.SEALED),
        (_S.DRAINING, _I.STOP): Transition(_disconnect, _S.CLOSING),
        (_S.DRAINING, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.DRAINING_LOST, _I.CHANNEL_UP): Transition(_restore, _S.DRAINING),
        (_S.DRAINING_LOST, _I.CHANNEL_DOWN): Transition(None, _S.DRAINING_LOST),
        (_S.DRAINING_LOST, _I.SEAL): Transition(None, _S.SEALED_LOST),
        (_S.DRAINING_LOST, _I.STOP): Transition(_stop, _S.CLOSED),
        (_S.DRAINING_LOST, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.SEALED, _I.CHANNEL_DOWN): Transition(_lose, _S.SEALED_LOST),
        (_S.SEALED, _I.STOP): Transition(_disconnect, _S.CLOSING),
        (_S.SEALED, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.SEALED_LOST, _I.CHANNEL_DOWN): Transition(None, _S.SEALED_LOST),
        (_S.SEALED_LOST, _I.STOP): Transition(_stop, _S.CLOSED),
        (_S.SEALED_LOST, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.CLOSING, _I.DISCONNECTED): Transition(_stop, _S.CLOSED),
        (_S.CLOSING, _I.CHANNEL_DOWN): Transition(_stop, _S.CLOSED),
        (_S.CLOSING, _I.STOP): Transition(None, _S.CLOSING),
        (_S.CLOSING, _I.GIVE_UP): Transition(_stop, _S.CLOSED),
        (_S.CLOSED, _I.SEAL): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.STOP): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.CHANNEL_DOWN): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.GIVE_UP): Transition(None, _S.CLOSED),
        # A second close may follow a close by a cancelled task.
        **{(state, _I.DRAIN): Transition(None, state) for state in (*_CLOSES, _S.CLOSING)},
        **{(state, _I.SEAL): Transition(None, state) for state in (_S.SEALED, _S.SEALED_LOST, _S.CLOSING)},
    }


_E = TypeVar("_E", bound=BaseException)


def without_tracebacks(error: _E) -> _E:
    """Return an error for storage, without references to the frames and events of the origin."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


_NO_ROUTES: dict[int, tuple[QueueCore, SubscriptionCore]] = {}
