"""The session, client role: bytes and user calls in, bytes and events out.

:class:`ClientCore` owns everything that belongs to a session and is not I/O: the handshake, the queues, the
window of unacknowledged posts, requests and their deadlines, heartbeats. It is driven by

* ``channel_opened``, ``receive``, ``channel_closed``: what happens on the connection,
* the calls of the application (``open_queue``, ``post``, ``confirm``, ...),
* ``tick`` at :meth:`ClientCore.next_deadline`,

and answers with ``data_to_send`` and ``events``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from bmq.errors import ConnectionFailed, Error, ProtocolError, SessionClosed
from bmq.protocol.client.events import (
    Acked,
    CloseChannel,
    Completed,
    Connected,
    ConnectionLost,
    CredentialsNeeded,
    Disconnected,
    Outcome,
    Pushed,
    Reconnected,
    SessionEvent,
    Signal,
    StateRestored,
)
from bmq.protocol.client.handshake import Credentials, Handshake, not_a_broker
from bmq.protocol.client.outbox import Outbox
from bmq.protocol.client.posts import Producer
from bmq.protocol.client.queue import Operation, QueueCore, SubscriptionCore
from bmq.protocol.client.redelivery import Confirmed
from bmq.protocol.client.registry import Queues
from bmq.protocol.client.renewal import Renewal
from bmq.protocol.client.requests import Request, RequestKind, Requests
from bmq.protocol.client.tables import (
    SESSION_TRANSITIONS,
    HandshakeState,
    QueueState,
    SessionInput,
    SessionState,
    step,
)
from bmq.protocol.client.window import Window
from bmq.protocol.framing import Framer
from bmq.protocol.heartbeat import Heartbeat, Pulse
from bmq.wire.confirm import encode_confirm, encode_queue_confirms, split_confirms
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, EventType
from bmq.wire.control import (
    ClientIdentity,
    Codec,
    ControlBody,
    ControlMessage,
    Disconnect,
    MessageKind,
    QueueFlags,
    decode_event,
    encode_event,
)
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, Event
from bmq.wire.push import Push, decode_push_runs
from bmq.wire.uri import QueueUri

__all__ = ["ClientCore", "CoreOptions"]

# While nothing is read: how often something is written. The broker hears that somebody is there although its
# own heartbeats go unread, and a lost connection is noticed, which then only a write can do.
_PULSE_WHILE_PAUSED = 1.0
# A queue that takes longer to reopen does not hold back the posts of the others.
_RESTORE_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Limits and timeouts of a :class:`ClientCore`, in seconds and bytes."""

    handshake_timeout: float = 30.0
    reopen_timeout: float = 60.0
    max_incoming_event: int = DEFAULT_MAX_INCOMING_EVENT
    drop_confirmed_redeliveries: bool = True


class ClientCore:
    """One session.

    Args:
        identity: how the client introduces itself.
        options: limits and timeouts.

    Attributes:
        state: where the session is.
        queues: its queues.
        producer: its posts, until they have their outcome.
        reading_paused: nothing is read on purpose: silence says nothing about the broker.
    """

    def __init__(self, identity: ClientIdentity, options: CoreOptions | None = None) -> None:
        self.options = options or CoreOptions()
        self.state = SessionState.STOPPED
        self.handshake = Handshake(identity)
        self.outbox = Outbox()
        self.producer = Producer(self.outbox)
        self.queues = Queues(self, self.options.reopen_timeout)
        self.reading_paused = False
        self._requests = Requests()
        self._framer = Framer(self.options.max_incoming_event)
        self._heartbeat: Heartbeat | None = None
        self._pulse_owed = False
        self._pulse_at: float | None = None
        self._renewal = Renewal()
        self._confirmed = Confirmed(enabled=self.options.drop_confirmed_redeliveries)
        self._events: list[SessionEvent | Signal] = []
        self._stopping: list[Operation] = []
        self._lost_because = ""
        # The connection has failed: nothing more is taken from it or given to it.
        self._broken = True
        self._restoring: set[QueueCore] = set()
        self._patience: float | None = None

    # what goes out

    def data_to_send(self, now: float, limit: float = inf) -> list[bytes]:
        """Return the events to write, in order, large ones in pieces.

        To be called once a turn, and after every call below.

        Args:
            now: the time.
            limit: return no more once this many bytes are reached; the rest keeps.
        """
        if self._broken:
            return []
        if self.connected:
            self.queues.flush(now)
        if self._pulse_owed:
            self._pulse_owed = False
            self.outbox.event(HEARTBEAT_RSP)
        return self.outbox.take(limit)

    def events(self) -> list[SessionEvent | Signal]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` wants to be called, or None."""
        first: float | None = None
        for deadline in (
            self.handshake.deadline,
            self._requests.next_deadline(),
            self.queues.next_deadline(),
            self._heartbeat.deadline if self._heartbeat else None,
            self._pulse_at,
            self._renewal.due,
            self._renewal.ends,
            self._confirmed.deadline,
            self._patience,
            self.producer.deadline,
        ):
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first

    # the connection

    def start(self) -> None:
        """Begin the life of the session."""
        self._fire(SessionInput.START, 0.0)

    def channel_opened(self, credentials: Credentials | None, now: float) -> None:
        """A connection is there: begin the handshake.

        Raises:
            SessionClosed: nobody wants it any more.
        """
        if self.state is SessionState.CLOSED:
            raise SessionClosed("the session is closed")
        self._framer = Framer(self.options.max_incoming_event)
        self._broken = False
        deadline = now + self.options.handshake_timeout
        self.outbox.event(self.handshake.connected(credentials, deadline))

    def channel_closed(self, reason: str, now: float) -> None:
        """The connection is gone (or could not be used); report it once for each ``channel_opened``."""
        self._broken = True
        self._pulse_owed = False
        self._pulse_at = None
        self.handshake.channel_down()
        self._heartbeat = None
        self._renewal.clear()
        self._patience = None
        self._lost_because = reason
        self._confirmed.remember(self.outbox.clear())
        self._confirmed.lost()
        self._fire(SessionInput.CHANNEL_DOWN, now)

    def give_up(self, reason: str, now: float) -> None:
        """End the session at once: no further connection will be tried, or there is no time for more.

        Args:
            reason: "" when the application wanted it.
            now: the time.
        """
        self._lost_because = reason
        self._fire(SessionInput.GIVE_UP, now)

    def stop(self, token: Any, now: float, deadline: float) -> None:
        """End the session: disconnect if connected; ``Completed(token)`` and ``Disconnected`` follow.

        Posts without outcome and outstanding operations end at once.
        """
        if self.state is SessionState.CLOSED:
            self.emit(Completed(token, None))
            return
        self._stopping.append(Operation(token, deadline))
        self._fire(SessionInput.STOP, now)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the broker. Never raises: a violation is reported with ``CloseChannel``."""
        if self._broken:
            return
        if self._heartbeat is not None:
            # Not only whole events: one of 64 MiB can take longer than a few heartbeats.
            self._heartbeat.received()
        events, error = self._framer.feed(data)
        try:
            for event in events:
                self._dispatch(event, now)
        except Error as failure:
            self.fail_channel(failure)
        if error is not None:
            done = self.handshake.state is HandshakeState.DONE
            self.fail_channel(error if done else not_a_broker(error))

    def tick(self, now: float) -> None:
        """Do what is due at ``now``."""
        if self.handshake.deadline is not None and now >= self.handshake.deadline:
            self.handshake.timed_out()
            assert self.handshake.error is not None
            self.fail_channel(self.handshake.error)
        for request in self._requests.expire(now):
            if request.kind is RequestKind.DISCONNECT:
                self._fire(SessionInput.DISCONNECTED, now)
            else:
                self.queues.timed_out(request, now)
        self.queues.tick(now)
        self._beat(now)
        if self._renewal.take_due(now):
            self.emit(CredentialsNeeded())
        if self._renewal.take_end(now):
            self.fail_channel(ConnectionFailed("the authentication has expired"))
        self._confirmed.tick(now)
        if self._patience is not None and now >= self._patience:
            self._patience = None
            self.producer.resume([q for q in self.queues if q not in self._restoring])
        if self.producer.deadline is not None and now >= self.producer.deadline:
            self._report(self.producer.expire(now))

    def pause_reading(self, paused: bool, now: float) -> None:
        """Tell that nothing is read from now on, or that reading goes on."""
        self.reading_paused = paused
        self._pulse_at = now + _PULSE_WHILE_PAUSED if paused and self.connected else None

    def reauthenticate(self, credentials: Credentials | None, now: float) -> None:
        """Renew the credentials on the live session; None when there are none to be had."""
        if not self.connected:
            return
        if credentials is None:
            self._renewal.failed(now)
        else:
            self.outbox.event(self.handshake.authentication_request(credentials))

    # queues

    def open_queue(
        self,
        uri: QueueUri,
        flags: QueueFlags,
        owner: Any,
        token: Any,
        deadline: float,
        *,
        suspends: bool = False,
    ) -> QueueCore:
        """Register a queue to be opened; set its ``desired`` subscriptions, then :meth:`begin_open`.

        Raises:
            StateError: the queue is open already.
            SessionClosed: the session is.
        """
        if self._stopping or self.state is SessionState.CLOSED:
            raise SessionClosed("the session is closed")
        return self.queues.open(uri, flags, owner, Operation(token, deadline), suspends=suspends)

    def begin_open(self, queue: QueueCore, now: float) -> None:
        """Open a registered queue; ``Completed(token)`` follows."""
        self.queues.begin_open(queue, now)

    def abandon_queue(self, queue: QueueCore, now: float, deadline: float) -> None:
        """Nobody will use this queue: close it, once it is open if need be, and report nothing."""
        self.queues.abandon(queue, now, deadline)

    def configure_queue(self, queue: QueueCore, token: Any, deadline: float) -> None:
        """Bring the broker up to the queue's ``desired`` subscriptions; ``Completed(token)`` follows.

        Raises:
            QueueClosed: the queue is closing or closed.
        """
        self.queues.configure(queue, Operation(token, deadline))

    def close_queue(self, queue: QueueCore, token: Any, now: float, deadline: float) -> None:
        """Close a queue; ``Completed(token)`` follows.

        Raises:
            QueueClosed: it is closing or closed already.
        """
        self.queues.close(queue, Operation(token, deadline), now)

    def host_health(self, healthy: bool) -> None:
        """Tell what the host health monitor says: queues that want it are suspended, or resume."""
        if self.state is not SessionState.CLOSED:
            self.queues.host_health(healthy)

    # confirmations

    def confirm(self, queue: QueueCore, guid: bytes) -> None:
        """Confirm one message; it goes out with the next :meth:`data_to_send`."""
        if queue.attached:
            self.outbox.confirm(encode_confirm(queue.q_id, guid, queue.sub_id))
        elif not queue.at_most_once and queue.state is not QueueState.CLOSED:
            self._confirmed.remember((encode_confirm(queue.q_id, guid, queue.sub_id),))

    def confirm_many(self, queue: QueueCore, guids: Sequence[bytes]) -> None:
        """Confirm several messages of one queue."""
        confirms = encode_queue_confirms(queue.q_id, guids, queue.sub_id)
        if queue.attached:
            self.outbox.confirm(confirms)
        elif not queue.at_most_once and queue.state is not QueueState.CLOSED:
            self._confirmed.remember(split_confirms(confirms))

    # what the parts need (see ``bmq.protocol.client.queue_steps.Link``)

    @property
    def window(self) -> Window:
        """Every post that has no outcome yet."""
        return self.producer.window

    @property
    def connected(self) -> bool:
        """The session is negotiated and in use."""
        return self.state is SessionState.STARTED and not self._broken

    @property
    def settled(self) -> bool:
        """The session is connected, and every queue is open again or has failed."""
        return self.connected and not self._restoring

    @property
    def uses_configure_stream(self) -> bool:
        """The broker announces configureStream."""
        return self.handshake.broker is None or self.handshake.broker.configure_stream

    @property
    def new_properties(self) -> bool:
        """Properties are to be written in the new encoding."""
        return self.handshake.broker is not None and self.handshake.broker.new_properties

    def request(
        self, kind: RequestKind, body: ControlBody, subject: Any, deadline: float, detail: Any = None
    ) -> Request:
        """Send a request behind everything that waits to be sent."""
        request = self._requests.add(kind, subject, deadline, detail)
        self.outbox.event(encode_event(ControlMessage(r_id=request.r_id, body=body), Codec.JSON))
        return request

    def extend_request(self, request: Request, deadline: float) -> None:
        """Wait longer for a response."""
        self._requests.extend(request, deadline)

    def emit(self, event: SessionEvent | Signal) -> None:
        """Report something."""
        self._events.append(event)

    def queue_settled(self, queue: QueueCore, now: float) -> None:
        """A queue that was being reopened is open again, or never will be."""
        if queue in self._restoring:
            self._restoring.discard(queue)
            if not self._restoring:
                self._finish_restore(now)
                return
        if self._patience is None:
            self.producer.resume([queue])

    def queue_answered(self, queue: QueueCore) -> None:
        """The broker said what kind of queue this is."""
        self.producer.opened(queue)

    def give_up_posts(self, queue: QueueCore) -> None:
        """The queue is closed: its posts end here."""
        self._report(self.producer.cancel(queue))

    def fail_channel(self, error: Error | None) -> None:
        """The connection is of no more use: ask for it to be closed, once."""
        if not self._broken:
            self._broken = True
            self.emit(CloseChannel(error))

    # incoming events

    def _dispatch(self, event: Event, now: float) -> None:
        kind = event.type
        if self._broken:
            return
        if kind == EventType.HEARTBEAT_REQ:
            self._pulse_owed = True
        elif self.handshake.state is not HandshakeState.DONE:
            self._handshake(event, now)
        elif kind == EventType.PUSH:
            self._pushed(event)
        elif kind == EventType.ACK:
            self._report(self.producer.acked(event))
        elif kind == EventType.CONTROL:
            self._answered(event, now)
        elif kind == EventType.AUTHENTICATION:
            lifetime = self.handshake.renewal_answered(event)
            self._renewal.authenticated(lifetime, now)
        elif kind != EventType.HEARTBEAT_RSP:
            raise ProtocolError(
                f"a broker sends no events of type {kind} to a client", field="EventHeader.type"
            )

    def _handshake(self, event: Event, now: float) -> None:
        answer = self.handshake.receive(event)
        if answer:
            self.outbox.event(answer)
        if self.handshake.error is not None:
            self.fail_channel(self.handshake.error)
        elif self.handshake.state is HandshakeState.DONE:
            broker = self.handshake.broker
            assert broker is not None
            self._heartbeat = Heartbeat(broker.heartbeat_interval, broker.max_missed_heartbeats, now)
            self._renewal.authenticated(self.handshake.lifetime, now)
            self._fire(SessionInput.CHANNEL_UP, now)
            self.pause_reading(self.reading_paused, now)

    def _pushed(self, event: Event) -> None:
        deliveries: list[tuple[SubscriptionCore, list[Push]]] = []
        for run in decode_push_runs(event.data, event.body):
            q_id, ids, *_ = run[0]
            routes = self.queues.routes.get(q_id, _NO_ROUTES)
            if len(ids) == 1:
                sub = routes.get(ids[0]) or self.queues.fallback(q_id)
                if sub is not None:
                    deliveries.append((sub, run))
                continue
            # To each subscription once, however often a broker names it.
            subs = dict.fromkeys(map(routes.get, ids))
            if None in subs:
                subs[self.queues.fallback(q_id)] = None
            deliveries += [(sub, run) for sub in subs if sub is not None]
        if self._confirmed:
            deliveries = [(sub, self._drop_confirmed(sub, messages)) for sub, messages in deliveries]
        if deliveries:
            self.emit(Pushed(deliveries))

    def _drop_confirmed(self, sub: SubscriptionCore, messages: list[Push]) -> list[Push]:
        """Confirm again what was confirmed before the connection was lost; return the rest."""
        queue = sub.queue
        fresh: list[Push] = []
        for message in messages:
            confirm = encode_confirm(queue.q_id, message[2], queue.sub_id)
            if self._confirmed.take(confirm):
                self.outbox.confirm(confirm)
            else:
                fresh.append(message)
        return fresh

    def _answered(self, event: Event, now: float) -> None:
        message = decode_event(event, MessageKind.CONTROL)
        request = self._requests.resolve(message.r_id)
        if request is None:
            return  # brokers send nothing unasked; answers to forgotten requests do not matter
        if request.kind is RequestKind.DISCONNECT:
            self._fire(SessionInput.DISCONNECTED, now)
        else:
            self.queues.response(request, message.body, now)

    # running the table

    def _fire(self, event: SessionInput, now: float) -> None:
        action, self.state = step(SESSION_TRANSITIONS, self.state, event)
        if action:
            getattr(self, f"_{action}")(now)

    def _announce(self, now: float) -> None:
        assert self.handshake.broker is not None
        self.emit(Connected(self.handshake.broker.name))
        self.queues.channel_up(now)

    def _lose(self, now: float) -> None:
        self._requests.clear()
        self._restoring.clear()
        self.emit(ConnectionLost(self._lost_because))
        self._report(self.producer.lost())
        self.queues.channel_down(now)

    def _restore(self, now: float) -> None:
        assert self.handshake.broker is not None
        self.emit(Reconnected(self.handshake.broker.name))
        self._confirmed.restored(now)
        self._restoring.update(self.queues.channel_up(now))
        if self._restoring:
            self._patience = now + _RESTORE_PATIENCE
        else:
            self._finish_restore(now)

    def _disconnect(self, now: float) -> None:
        self._end_everything(SessionClosed("the session is closed"), now)
        self.request(RequestKind.DISCONNECT, Disconnect(), None, self._stopping[0].deadline)

    def _stop(self, now: float) -> None:
        reason = "" if self._stopping else self._lost_because
        self._end_everything(
            ConnectionFailed(reason) if reason else SessionClosed("the session is closed"), now
        )
        self._renewal.clear()
        self._pulse_at = None
        self._confirmed.clear()
        self.fail_channel(None)
        self.emit(Disconnected(reason))
        for operation in self._stopping:
            self.emit(Completed(operation.token, None))
        self._stopping.clear()

    def _end_everything(self, error: Error, now: float) -> None:
        self._requests.clear()
        self._restoring.clear()
        self._patience = None
        self.queues.stop(error, now)
        self._report(self.producer.cancel_all())

    # helpers

    def _finish_restore(self, now: float) -> None:
        self._patience = None
        self.producer.resume(list(self.queues))
        self.emit(StateRestored())

    def _beat(self, now: float) -> None:
        if self._pulse_at is not None and now >= self._pulse_at:
            self._pulse_at = now + _PULSE_WHILE_PAUSED
            self._pulse_owed = True
        heartbeat = self._heartbeat
        if heartbeat is None:
            return
        if self.reading_paused:
            heartbeat.received()
        pulse = heartbeat.poll(now)
        if pulse is Pulse.SEND:
            self.outbox.event(HEARTBEAT_REQ)
        elif pulse is Pulse.DEAD:
            self.fail_channel(ConnectionFailed("the broker is silent: it missed too many heartbeats"))

    def _report(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self.emit(Acked(outcomes))


_NO_ROUTES: dict[int, SubscriptionCore] = {}
