"""The queues of a session, client role: what callers ask for, what the connection and broker do to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bmq.errors import Error, ProtocolError, QueueClosed, StateError, StatusCategory
from bmq.protocol.client.events import HostHealthRestored, HostUnhealthy
from bmq.protocol.client.queue import Family, Operation, QueueCore, SubscriptionCore
from bmq.protocol.client.queue_steps import Link, QueueSteps, timeout_error
from bmq.protocol.client.requests import Request, RequestKind
from bmq.protocol.client.tables import QUEUE_TRANSITIONS, QueueInput, QueueState
from bmq.wire.control import (
    CloseQueueResponse,
    ConfigureQueueStreamResponse,
    ConfigureStreamResponse,
    ControlBody,
    OpenQueueResponse,
    QueueFlags,
    Status,
)
from bmq.wire.uri import QueueUri

__all__ = ["Queues"]

_ANSWERS: dict[RequestKind, tuple[type, ...]] = {
    RequestKind.OPEN: (OpenQueueResponse,),
    RequestKind.CONFIGURE: (ConfigureStreamResponse, ConfigureQueueStreamResponse),
    RequestKind.CLOSE: (CloseQueueResponse,),
}


class Queues:
    """Every queue of a session.

    Attributes:
        routes: the subscription for each (qId, sId).
        healthy: what the host health monitor says.
    """

    def __init__(self, link: Link, reopen_timeout: float) -> None:
        self._link = link
        self._steps = QueueSteps(link, reopen_timeout)
        self._queues: dict[tuple[str, str, QueueFlags], QueueCore] = {}
        self._families: dict[str, Family] = {}
        self._next_q_id = 0
        self.routes = self._steps.routes.by_queue
        self.healthy = True
        self._announce_health = False

    def __iter__(self) -> Iterator[QueueCore]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    # what callers ask for

    def open(
        self,
        uri: QueueUri,
        flags: QueueFlags,
        owner: Any,
        operation: Operation,
        *,
        suspends: bool,
    ) -> QueueCore:
        """Register a queue; :meth:`begin_open` starts opening it.

        Raises:
            StateError: it is open already, or an earlier open or close of it is still going on.
        """
        app_id = uri.app_id if flags & QueueFlags.READ else ""
        key = (uri.canonical, app_id, flags)
        family = self._families.get(uri.canonical)
        for other in family.members if family is not None else ():
            waits = other.state is QueueState.ABANDONED and other.closing is None and other.flags == flags
            if other.sub_app_id == app_id and other.flags & flags and not waits:
                raise StateError(_is_taken(uri, other, flags))
        queue = self._queues.get(key)
        if queue is not None:
            # An openQueue nobody waited for any more is still unanswered: its answer is for this caller.
            queue.owner = queue.anybody.owner = owner
            queue.suspends_on_bad_host_health = suspends
        else:
            if family is None:
                family = self._families[uri.canonical] = Family(self._next_q_id)
                self._next_q_id += 1
            queue = QueueCore(uri, family, app_id, flags, owner, suspends=suspends)
            family.members.add(queue)
            self._queues[key] = queue
        queue.suspended = suspends and not self.healthy
        queue.opening = operation
        self._steps.watch(queue, operation)
        return queue

    def begin_open(self, queue: QueueCore, now: float) -> None:
        """Start opening a queue whose subscriptions are set."""
        self._fire(queue, QueueInput.OPEN if self._link.connected else QueueInput.OPEN_LATER, now)

    def abandon(self, queue: QueueCore, now: float, deadline: float) -> None:
        """Nobody wants this queue any more: close it as soon as that is possible."""
        if queue.opening is not None:
            queue.opening.done = True
            self._steps.operations.discard(queue.opening)
            queue.opening = None
            self._fire(queue, QueueInput.ABANDON, now)
        elif queue.closing is None and (queue.state, _close_input(queue)) in QUEUE_TRANSITIONS:
            self.close(queue, Operation(None, deadline), now)

    def configure(self, queue: QueueCore, operation: Operation) -> None:
        """Bring the broker up to ``queue.desired``; changes until :meth:`flush` go out together.

        Raises:
            QueueClosed: the queue is closing or closed.
        """
        if queue.closing is not None or (queue.state, QueueInput.CONFIGURE) not in QUEUE_TRANSITIONS:
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")
        queue.waiting_configure.append(operation)
        self._steps.watch(queue, operation)
        self._steps.dirty[queue] = None
        if queue.state is not QueueState.OPEN:
            self._fire(queue, QueueInput.CONFIGURE, 0.0)  # it waits until the queue is open

    def close(self, queue: QueueCore, operation: Operation, now: float) -> None:
        """Close a queue.

        Raises:
            QueueClosed: it is closing or closed already.
        """
        event = _close_input(queue)
        if queue.closing is not None or (queue.state, event) not in QUEUE_TRANSITIONS:
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")
        queue.closing = operation
        queue.sending = False
        self._steps.watch(queue, operation)
        self._fire(queue, event, now)

    def host_health(self, healthy: bool) -> None:
        """Take queues that want it out of service while the host is unhealthy, and back in afterwards."""
        if healthy is self.healthy:
            return
        self.healthy = healthy
        if healthy:
            self._announce_health = True
        else:
            if not self._announce_health:
                self._link.emit(HostUnhealthy())
            self._announce_health = False
        for queue in self:
            if not queue.suspends_on_bad_host_health:
                continue
            queue.suspended = not healthy
            if queue.state in _STREAMING and queue.desired:
                self._steps.dirty[queue] = None
            elif queue.in_use:
                self._steps.report_suspension(queue)
        self.check_health()

    def check_health(self) -> None:
        """Announce that the host is healthy, once the last suspended queue has resumed."""
        if self._announce_health and not any(queue.reported_suspended for queue in self._queues.values()):
            self._announce_health = False
            self._link.emit(HostHealthRestored())

    # what happens to the connection

    def channel_up(self, now: float) -> list[QueueCore]:
        """Reopen what was open, open what waits; return the queues being reopened."""
        reopening: list[QueueCore] = []
        for queue in self:
            if queue.state is QueueState.LOST:
                reopening.append(queue)
                self._fire(queue, QueueInput.CHANNEL_UP, now)
            elif queue.state is QueueState.WAITING:
                self._fire(queue, QueueInput.CHANNEL_UP, now)
        return reopening

    def channel_down(self, now: float) -> None:
        """Nothing outstanding will be answered."""
        for queue in self:
            queue.request = None
            queue.sending = queue.attached = False
            queue.waiting_configure.extendleft(reversed(queue.configuring))
            queue.configuring.clear()
            self._fire(queue, QueueInput.CHANNEL_DOWN, now)
        # A new connection knows nothing of the old one.
        for uri, family in list(self._families.items()):
            family.unclear = False
            if not family.members:
                del self._families[uri]

    def stop(self, error: Error, now: float) -> None:
        """End every queue and every operation."""
        for queue in self:
            self._steps.fail_operations(queue, error)
            self._fire(queue, QueueInput.STOP, now)

    # time

    def flush(self, now: float) -> None:
        """Send the configurations that have gathered."""
        if not self._steps.dirty or not self._link.connected:
            return
        for queue in list(self._steps.dirty):
            if queue.state is QueueState.OPEN:
                self._steps.dirty.pop(queue, None)
                self._fire(queue, QueueInput.CONFIGURE, now)

    def next_deadline(self) -> float | None:
        """Return when the next operation times out."""
        return self._steps.operations.first()

    def tick(self, now: float) -> None:
        """Fail the operations whose deadline has passed, unless the request behind them does."""
        for operation in self._steps.operations.due(now):
            queue = operation.queue
            if queue is None or operation.done:
                continue
            if queue.state is QueueState.WAITING and queue.opening is operation:
                self._fire(queue, QueueInput.TIMEOUT, now)
            elif operation in queue.waiting_configure:
                queue.waiting_configure.remove(operation)
                self._steps.complete(operation, timeout_error("configure", queue))
            elif operation in queue.configuring:
                queue.configuring.remove(operation)
                self._steps.complete(operation, timeout_error("configure", queue))
            elif queue.closing is operation and queue.state is QueueState.ABANDONED:
                self._steps.complete(operation, timeout_error("close", queue))

    # responses

    def response(self, request: Request, body: ControlBody | None, now: float) -> None:
        """Take the answer to a request of a queue.

        Raises:
            ProtocolError: it answers something else.
        """
        queue: QueueCore = request.subject
        refusal = body if isinstance(body, Status) and body.category != StatusCategory.E_SUCCESS else None
        if refusal is None and not isinstance(body, _ANSWERS[request.kind]):
            raise ProtocolError(
                f"request {request.r_id} was {request.kind.value}, the answer is {type(body).__name__}",
                field="controlMessage.rId",
            )
        if queue.request is not request:
            # A configuration that had timed out locally has reached the broker after all.
            late = request.kind is RequestKind.CONFIGURE and refusal is None
            if late and queue.state is QueueState.OPEN and queue.closing is None:
                self._steps.dirty[queue] = None
            return
        queue.request = None
        if refusal is not None:
            self._fire(queue, QueueInput.REFUSED, now, request, refusal)
            return
        if isinstance(body, OpenQueueResponse):
            queue.note_routing(body.routing_configuration.flags, body.deduplication_time_ms)
            self._link.queue_answered(queue)
        plain = request.kind is RequestKind.OPEN and not queue.effective
        self._fire(queue, QueueInput.ACCEPTED_PLAIN if plain else QueueInput.ACCEPTED, now, request)

    def timed_out(self, request: Request, now: float) -> None:
        """Give up on an answer."""
        queue: QueueCore = request.subject
        if queue.request is not request:
            return
        if request.kind is not RequestKind.OPEN:
            queue.request = None  # an openQueue is still waited for: what it opens has to be closed
        self._fire(queue, QueueInput.TIMEOUT, now, request)

    def fallback(self, q_id: int) -> SubscriptionCore | None:
        """Return whom a message without a known subscription id is for, when there is no doubt."""
        readers = [q for q in self._queues.values() if q.q_id == q_id and q.readable and q.in_use]
        if len(readers) != 1:
            return None
        applied = readers[0].applied
        return applied[0] if len(applied) == 1 else readers[0].anybody

    # running the table

    def _fire(
        self,
        queue: QueueCore,
        event: QueueInput,
        now: float,
        request: Request | None = None,
        refusal: Status | None = None,
    ) -> None:
        self._steps.fire(queue, event, now, request, refusal)
        if queue.state is QueueState.CLOSED:
            self._remove(queue)
        if self._announce_health:
            self.check_health()

    def _remove(self, queue: QueueCore) -> None:
        del self._queues[queue.uri.canonical, queue.sub_app_id, queue.flags]
        self._steps.dirty.pop(queue, None)
        self._steps.routes.remove(queue)
        queue.applied = []
        family = queue.family
        family.members.discard(queue)
        if not family.members and not family.unclear:
            del self._families[queue.uri.canonical]


def _is_taken(uri: QueueUri, queue: QueueCore, flags: QueueFlags) -> str:
    """Say why a queue cannot be opened once more."""
    if queue.closing is not None or not queue.in_use:
        return f"queue {uri} is busy ({queue.state.value}); wait until that is done"
    sides = [name for side, name in _SIDES if queue.flags & flags & side]
    return (
        f"queue {uri} is already open in this session for {' and '.join(sides)}: use that bmq.Queue "
        "(session.queues has it), or open the queue in another session. A session opens each side of a queue "
        "once; reading here and writing there are two sides"
    )


_SIDES = ((QueueFlags.READ, "reading"), (QueueFlags.WRITE, "writing"))


def _close_input(queue: QueueCore) -> QueueInput:
    return QueueInput.CLOSE if queue.readable else QueueInput.CLOSE_PLAIN


# The broker has, or is just being told, its subscriptions.
_STREAMING = frozenset(
    {QueueState.OPEN, QueueState.RECONFIGURING, QueueState.RESTORING, QueueState.CONFIGURING}
)
