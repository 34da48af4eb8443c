"""The session, client role: bytes and user calls in, bytes and events out.

:class:`ClientCore` owns everything that belongs to a session and is not I/O: the handshake, the queues, the
window of unacknowledged posts, requests and their deadlines, heartbeats. It is driven by

* ``channel_opened``, ``receive``, ``channel_closed``: what happens on the connection,
* the calls of the application (``open_queue``, ``post``, ``confirm``, ...),
* ``tick`` at :meth:`ClientCore.next_deadline`,

and answers with ``data_to_send`` and ``events``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bmq.errors import (
    AckStatus,
    ConnectionFailed,
    Error,
    ProtocolError,
    SessionClosed,
)
from bmq.protocol.events import (
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
from bmq.protocol.framing import Framer
from bmq.protocol.handshake import Credentials, Handshake
from bmq.protocol.heartbeat import Heartbeat, Pulse
from bmq.protocol.outbox import Outbox
from bmq.protocol.producer import Producer
from bmq.protocol.queue import Operation, QueueCore, SubscriptionCore
from bmq.protocol.queues import Queues
from bmq.protocol.requests import Request, RequestKind, Requests
from bmq.protocol.tables import (
    SESSION_TRANSITIONS,
    HandshakeState,
    SessionInput,
    SessionState,
    step,
)
from bmq.wire.confirm import encode_confirm
from bmq.wire.constants import (
    DEFAULT_MAX_INCOMING_EVENT,
    MAX_PUT_EVENT,
    EventType,
)
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
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.uri import QueueUri

__all__ = ["ClientCore", "CoreOptions"]

# Renew credentials at 90 % of their lifetime, or five seconds before its end if that comes first.
_RENEW_AT = 0.9
_RENEW_MARGIN = 5.0
# A queue that takes longer to reopen does not hold back the posts of the others.
_RESTORE_PATIENCE = 1.0
# How long after a reconnect redeliveries of messages that were already confirmed are recognised.
_REDELIVERY_WINDOW = 300.0


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Limits and timeouts of a :class:`ClientCore`, in seconds and bytes."""

    handshake_timeout: float = 30.0
    reopen_timeout: float = 60.0
    max_incoming_event: int = DEFAULT_MAX_INCOMING_EVENT
    max_put_event: int = MAX_PUT_EVENT
    drop_confirmed_redeliveries: bool = True


class ClientCore:
    """One session.

    Args:
        identity: how the client introduces itself.
        options: limits and timeouts.

    Attributes:
        state: where the session is.
        queues: its queues.
        producer: its unacknowledged posts.
    """

    def __init__(self, identity: ClientIdentity, options: CoreOptions | None = None) -> None:
        self.options = options or CoreOptions()
        self.state = SessionState.STOPPED
        self.handshake = Handshake(identity)
        self.queues = Queues(self, self.options.reopen_timeout)
        self.outbox = Outbox(self.options.max_put_event)
        self.producer = Producer(self.outbox)
        self.window = self.producer.window
        self._requests = Requests()
        self._framer = Framer(self.options.max_incoming_event)
        self._heartbeat: Heartbeat | None = None
        self._events: list[SessionEvent | Signal] = []
        self._stop_token: Operation | None = None
        self._stop_reason = ""
        self._renew_at: float | None = None
        self._lifetime_ends: float | None = None
        self._restoring: set[QueueCore] = set()
        self._patience: float | None = None
        # Confirmations that may not have reached the broker before the connection was lost.
        self._confirmed: set[bytes] = set()
        self._confirmed_until = 0.0

    # what goes out

    def data_to_send(self, now: float) -> list[bytes]:
        """Return the events to write, in order; call it once a turn and after every call below."""
        if self.connected:
            self.queues.flush(now)
        return self.outbox.take()

    def events(self) -> list[SessionEvent | Signal]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` wants to be called, or None."""
        deadlines = [
            self.handshake.deadline,
            self._requests.next_deadline(),
            self.queues.next_deadline(),
            self._heartbeat.deadline if self._heartbeat else None,
            self._renew_at,
            self._lifetime_ends,
            self._patience,
            self.producer.deadline,
        ]
        return min((d for d in deadlines if d is not None), default=None)

    # the connection

    def start(self) -> None:
        """Begin the life of the session."""
        self._fire(SessionInput.START, 0.0)

    def channel_opened(self, credentials: Credentials | None, now: float) -> None:
        """A connection is there: begin the handshake."""
        self._framer = Framer(self.options.max_incoming_event)
        deadline = now + self.options.handshake_timeout
        self.outbox.event(self.handshake.connected(credentials, deadline))

    def channel_closed(self, reason: str, now: float) -> None:
        """The connection is gone (or could not be used); report it once for each ``channel_opened``."""
        self.handshake.channel_down()
        self._heartbeat = None
        self._renew_at = self._lifetime_ends = self._patience = None
        self._stop_reason = reason
        if self.options.drop_confirmed_redeliveries:
            self._confirmed |= self.outbox.clear()
        else:
            self.outbox.clear()
        self._fire(SessionInput.CHANNEL_DOWN, now)

    def give_up(self, reason: str, now: float) -> None:
        """No further connection will be tried: the session is over."""
        self._stop_reason = reason
        self._fire(SessionInput.GIVE_UP, now)

    def stop(self, token: Any, now: float, deadline: float) -> None:
        """End the session: disconnect if connected; ``Completed(token)`` and ``Disconnected`` follow."""
        operation = Operation(token, deadline)
        if self.state is SessionState.CLOSED:
            self.emit(Completed(token, None))
            return
        if self._stop_token is None:
            self._stop_token = operation
            self._stop_reason = ""
        self._fire(SessionInput.STOP, now)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the broker. Never raises: a violation is reported with ``CloseChannel``."""
        events, error = self._framer.feed(data)
        heartbeat = self._heartbeat
        if heartbeat is not None and events:
            heartbeat.received()
        for event in events:
            try:
                self._dispatch(event, now)
            except Error as failure:
                self._fail_channel(failure)
                return
        if error is not None:
            self._fail_channel(error)

    def note_alive(self) -> None:
        """Nothing is being read on purpose: silence says nothing about the broker."""
        if self._heartbeat is not None:
            self._heartbeat.received()

    def tick(self, now: float) -> None:
        """Do what is due at ``now``."""
        if self.handshake.deadline is not None and now >= self.handshake.deadline:
            self.handshake.timed_out()
            self._fail_channel(self.handshake.error)
        for request in self._requests.expire(now):
            if request.kind is RequestKind.DISCONNECT:
                self._fire(SessionInput.DISCONNECTED, now)
            else:
                self.queues.timed_out(request, now)
        self.queues.tick(now)
        if self._heartbeat is not None:
            pulse = self._heartbeat.poll(now)
            if pulse is Pulse.SEND:
                self.outbox.event(HEARTBEAT_REQ)
            elif pulse is Pulse.DEAD:
                self._fail_channel(ConnectionFailed("the broker is silent: it missed too many heartbeats"))
        if self._renew_at is not None and now >= self._renew_at:
            self._renew_at = None
            self.emit(CredentialsNeeded())
        if self._lifetime_ends is not None and now >= self._lifetime_ends:
            self._lifetime_ends = None
            self._fail_channel(ConnectionFailed("the authentication has expired"))
        if self._patience is not None and now >= self._patience:
            self._patience = None
            self.producer.resume([q for q in self.queues if q not in self._restoring])
        if self.producer.deadline is not None and now >= self.producer.deadline:
            self._settle(self.producer.expire(now))

    def reauthenticate(self, credentials: Credentials) -> None:
        """Renew the credentials on the live session."""
        if self.connected:
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
        self._check_open()
        return self.queues.open(uri, flags, owner, Operation(token, deadline), suspends=suspends)

    def begin_open(self, queue: QueueCore, now: float) -> None:
        """Open a registered queue; ``Completed(token)`` follows."""
        self.queues.begin_open(queue, now)

    def abandon_open(self, queue: QueueCore, now: float) -> None:
        """The caller of ``open_queue`` was cancelled: close the queue again once it is open."""
        self.queues.abandon(queue, now)

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

    def release_queue(self, queue: QueueCore, now: float) -> bool:
        """Hand every unconfirmed message of a queue back to the broker."""
        return self.queues.release(queue, now)

    # confirmations; posts go to ``producer``

    def confirm(self, queue: QueueCore, guid: bytes) -> None:
        """Confirm one message; it goes out with the next :meth:`data_to_send`."""
        if queue.at_most_once:
            return
        message = encode_confirm(queue.q_id, guid, queue.sub_id)
        if self.state is SessionState.STARTED:
            self.outbox.confirm(message)
        elif self.options.drop_confirmed_redeliveries:
            self._confirmed.add(message)

    def confirm_many(self, queue: QueueCore, guids: Iterable[bytes]) -> None:
        """Confirm several messages of one queue."""
        if queue.at_most_once:
            return
        q_id, sub_id = queue.q_id, queue.sub_id
        messages = [encode_confirm(q_id, guid, sub_id) for guid in guids]
        if self.connected:
            self.outbox.confirm_many(messages)
        elif self.options.drop_confirmed_redeliveries:
            self._confirmed.update(messages)

    # what the parts need (see ``bmq.protocol.queues.Link``)

    @property
    def connected(self) -> bool:
        """The session is negotiated and in use."""
        return self.state is SessionState.STARTED

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

    def emit(self, event: SessionEvent | Signal) -> None:
        """Report something."""
        self._events.append(event)

    def queue_settled(self, queue: QueueCore, now: float) -> None:
        """A queue that was being reopened is open again, or never will be."""
        if queue not in self._restoring:
            return
        self._restoring.discard(queue)
        if not self._restoring:
            self._finish_restore()
        elif self._patience is None:
            self.producer.resume([queue])

    def give_up_posts(self, queue: QueueCore) -> None:
        """The queue is closed: its posts end here."""
        if queue.unacked:
            self._settle(self.producer.give_up(lambda pending: pending.queue is queue, AckStatus.CANCELED))

    # incoming events

    def _dispatch(self, event: Event, now: float) -> None:
        kind = event.type
        if self.handshake.state is not HandshakeState.DONE:
            if kind == EventType.HEARTBEAT_REQ:
                self.outbox.event(HEARTBEAT_RSP)
            else:
                self._handshake(event, now)
        elif kind == EventType.PUSH:
            self._pushed(event, now)
        elif kind == EventType.ACK:
            self._settle(self.producer.acked(event))
        elif kind == EventType.CONTROL:
            self._answered(event, now)
        elif kind == EventType.HEARTBEAT_REQ:
            self.outbox.event(HEARTBEAT_RSP)
        elif kind == EventType.AUTHENTICATION:
            self._reauthenticated(event, now)
        elif kind != EventType.HEARTBEAT_RSP:
            raise ProtocolError(
                f"a broker sends no events of type {kind} to a client", field="EventHeader.type"
            )

    def _handshake(self, event: Event, now: float) -> None:
        if self.handshake.state is HandshakeState.IDLE:
            return  # it has failed, and the connection is being closed
        answer = self.handshake.receive(event)
        if answer:
            self.outbox.event(answer)
        if self.handshake.error is not None:
            self._fail_channel(self.handshake.error)
        elif self.handshake.state is HandshakeState.DONE:
            broker = self.handshake.broker
            assert broker is not None
            self._heartbeat = Heartbeat(broker.heartbeat_interval, broker.max_missed_heartbeats, now)
            self._schedule_renewal(now)
            self._fire(SessionInput.CHANNEL_UP, now)

    def _pushed(self, event: Event, now: float) -> None:
        deliveries: list[tuple[Any, list[PushMessage]]] = []
        batch: list[PushMessage] = []
        last_queue, last_ids = -1, None
        if self._confirmed and now > self._confirmed_until:
            self._confirmed.clear()
        for message in decode_pushes(event.data, event.body):
            # Options are decoded once per distinct content: the same ids are the same object.
            if message.sub_ids is last_ids and message.queue_id == last_queue:
                batch.append(message)
                continue
            q_id, ids = message.queue_id, message.sub_ids
            routes = self.queues.routes.get(q_id, {})
            batch = [message]
            for s_id in ids:
                sub = routes.get(s_id) or self.queues.fallback(q_id)
                if sub is not None:
                    deliveries.append((sub, batch if len(ids) == 1 else [message]))
            last_queue, last_ids = q_id, ids if len(ids) == 1 else None
        if self._confirmed:
            deliveries = [(sub, self._drop_confirmed(sub, messages)) for sub, messages in deliveries]
        if deliveries:
            self.emit(Pushed(deliveries))

    def _drop_confirmed(self, sub: SubscriptionCore, messages: list[PushMessage]) -> list[PushMessage]:
        """Confirm again what was confirmed before the connection was lost; return the rest."""
        queue = sub.queue
        fresh: list[PushMessage] = []
        for message in messages:
            confirm = encode_confirm(queue.q_id, message.guid, queue.sub_id)
            if confirm in self._confirmed:
                self._confirmed.discard(confirm)
                self.outbox.confirm(confirm)
            else:
                fresh.append(message)
        return fresh

    def _settle(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self.emit(Acked(outcomes))

    def _answered(self, event: Event, now: float) -> None:
        message = decode_event(event, MessageKind.CONTROL)
        request = self._requests.resolve(message.r_id)
        if request is None:
            return  # brokers send nothing unasked; answers to forgotten requests do not matter
        if request.kind is RequestKind.DISCONNECT:
            self._fire(SessionInput.DISCONNECTED, now)
        else:
            self.queues.response(request, message.body, now)

    def _reauthenticated(self, event: Event, now: float) -> None:
        error = self.handshake.renewal_answered(event)
        if error is not None:
            raise error
        self._schedule_renewal(now)

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
        self.emit(ConnectionLost(self._stop_reason))
        self.queues.channel_down(now)

    def _restore(self, now: float) -> None:
        assert self.handshake.broker is not None
        self.emit(Reconnected(self.handshake.broker.name))
        self._confirmed_until = now + _REDELIVERY_WINDOW
        self._restoring.update(self.queues.channel_up(now))
        if self._restoring:
            self._patience = now + _RESTORE_PATIENCE
        else:
            self._finish_restore()

    def _disconnect(self, _now: float) -> None:
        assert self._stop_token is not None
        self.request(RequestKind.DISCONNECT, Disconnect(), None, self._stop_token.deadline)

    def _stop(self, now: float) -> None:
        self._requests.clear()
        self._restoring.clear()
        self.producer.deadline = None
        ended = SessionClosed("the session is closed") if not self._stop_reason else None
        self.queues.stop(ended or ConnectionFailed(self._stop_reason), now)
        self._settle(self.producer.give_up(lambda _: True, AckStatus.CANCELED))
        self.emit(CloseChannel(None))
        self.emit(Disconnected(self._stop_reason))
        if self._stop_token is not None:
            self.emit(Completed(self._stop_token.token, None))

    # helpers

    def _check_open(self) -> None:
        if self.state in (SessionState.CLOSED, SessionState.CLOSING) or self._stop_token is not None:
            raise SessionClosed("the session is closed")

    def _fail_channel(self, error: Error | None) -> None:
        self.emit(CloseChannel(error))

    def _schedule_renewal(self, now: float) -> None:
        lifetime = self.handshake.lifetime
        if lifetime is None:
            self._renew_at = self._lifetime_ends = None
            return
        self._renew_at = now + max(0.0, min(_RENEW_AT * lifetime, lifetime - _RENEW_MARGIN))
        self._lifetime_ends = now + lifetime

    def _finish_restore(self) -> None:
        self._patience = None
        self.producer.resume(list(self.queues))
        self.emit(StateRestored())
