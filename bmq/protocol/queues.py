"""The queues of a session, client role: runs :data:`QUEUE_TRANSITIONS` for each of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Protocol

from bmq.errors import (
    CloseQueueError,
    ConfigureQueueError,
    Error,
    OpenQueueError,
    QueueClosed,
    RequestError,
    RequestTimeout,
    StateError,
    StatusCategory,
)
from bmq.protocol.events import Completed, QueueReopened, QueueReopenFailed, SessionEvent, Signal
from bmq.protocol.queue import Operation, QueueCore, SubscriptionCore
from bmq.protocol.requests import Request, RequestKind
from bmq.protocol.tables import QUEUE_TRANSITIONS, QueueInput, QueueState, step
from bmq.wire.control import (
    INVALID_CONSUMER_PRIORITY,
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    ControlBody,
    OpenQueue,
    OpenQueueResponse,
    QueueFlags,
    QueueStreamParameters,
    Status,
    SubQueueIdInfo,
)
from bmq.wire.uri import QueueUri

__all__ = ["Queues"]

# How many generations of sIds stay resolvable.
_GENERATIONS = 2


class Link(Protocol):
    """What the queues need of the session."""

    @property
    def connected(self) -> bool:
        """Requests can be sent."""
        ...

    @property
    def uses_configure_stream(self) -> bool:
        """The broker announces configureStream."""
        ...

    def request(
        self, kind: RequestKind, body: ControlBody, subject: QueueCore, deadline: float, detail: Any = None
    ) -> Request:
        """Send a request."""
        ...

    def emit(self, event: SessionEvent | Signal) -> None:
        """Report something."""
        ...

    def queue_settled(self, queue: QueueCore, now: float) -> None:
        """A reopening queue is open again, or never will be."""
        ...

    def give_up_posts(self, queue: QueueCore) -> None:
        """The queue is closed: its posts end here."""
        ...


class Queues:
    """Every queue of a session.

    Attributes:
        routes: the subscription for each (qId, sId).
    """

    def __init__(self, link: Link, reopen_timeout: float) -> None:
        self._link = link
        self._reopen_timeout = reopen_timeout
        self._queues: dict[tuple[str, str], QueueCore] = {}
        self._ids: dict[str, tuple[int, dict[str, int]]] = {}
        self._next_s_id = 1
        self._deadlines: list[tuple[float, int, QueueCore, Operation]] = []
        self._serial = 0
        self._dirty: dict[QueueCore, None] = {}
        self._now = 0.0
        self.routes: dict[int, dict[int, SubscriptionCore]] = {}

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
        key = (uri.canonical, app_id)
        queue = self._queues.get(key)
        if queue is not None:
            if queue.state is not QueueState.ABANDONED or queue.flags != flags:
                busy = queue.state not in (QueueState.OPEN, QueueState.RECONFIGURING)
                state = f"is still busy ({queue.state.value})" if busy else "is already open in this session"
                raise StateError(f"queue {uri} {state}; a session opens each queue once")
            queue.owner = owner
        else:
            q_id, sub_ids = self._ids.setdefault(uri.canonical, (len(self._ids), {}))
            sub_id = sub_ids.setdefault(app_id, len(sub_ids) + 1) if app_id else 0
            queue = QueueCore(uri, q_id, sub_id, flags, owner, suspends=suspends)
            self._queues[key] = queue
        queue.opening = operation
        self._watch(queue, operation)
        return queue

    def begin_open(self, queue: QueueCore, now: float) -> None:
        """Start opening a queue whose subscriptions are set."""
        self._fire(queue, QueueInput.OPEN if self._link.connected else QueueInput.OPEN_LATER, now)

    def abandon(self, queue: QueueCore, now: float) -> None:
        """Nobody waits for the queue to open any more: close it as soon as that is possible."""
        if queue.opening is not None:
            queue.opening.done = True
            queue.opening = None
            self._fire(queue, QueueInput.ABANDON, now)

    def configure(self, queue: QueueCore, operation: Operation) -> None:
        """Bring the broker up to ``queue.desired``; changes until :meth:`flush` go out together.

        Raises:
            QueueClosed: the queue is closing or closed.
        """
        if queue.closing is not None or (queue.state, QueueInput.CONFIGURE) not in QUEUE_TRANSITIONS:
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")
        queue.waiting_configure.append(operation)
        self._watch(queue, operation)
        self._mark_dirty(queue)

    def close(self, queue: QueueCore, operation: Operation, now: float) -> None:
        """Close a queue.

        Raises:
            QueueClosed: it is closing or closed already.
        """
        event = QueueInput.CLOSE if queue.readable else QueueInput.CLOSE_PLAIN
        if queue.closing is not None or (queue.state, event) not in QUEUE_TRANSITIONS:
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")
        queue.closing = operation
        queue.sending = False
        self._watch(queue, operation)
        self._fire(queue, event, now)

    def release(self, queue: QueueCore, now: float) -> bool:
        """Hand every unconfirmed message back to the broker, by closing and opening the reading side.

        Returns:
            Whether that was begun; only an open queue with nothing outstanding can do it.
        """
        if queue.state is not QueueState.OPEN or not queue.readable or not self._link.connected:
            return False
        self._fire(queue, QueueInput.RELEASE, now)
        return True

    def suspend(self, queue: QueueCore, suspended: bool) -> None:
        """Take a queue out of service, or back in."""
        queue.suspended = suspended
        if queue.readable:
            self._mark_dirty(queue)

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
            queue.sending = False
            queue.releasing = False
            for operation in reversed(queue.configuring):
                queue.waiting_configure.appendleft(operation)
            queue.configuring.clear()
            self._fire(queue, QueueInput.CHANNEL_DOWN, now)

    def stop(self, error: Error, now: float) -> None:
        """End every queue and every operation."""
        for queue in self:
            for operation in (queue.opening, *queue.configuring, *queue.waiting_configure):
                self._complete(operation, error)
            self._fire(queue, QueueInput.STOP, now)

    # time

    def flush(self, now: float) -> None:
        """Send the configurations that have gathered."""
        if not self._dirty:
            return
        for queue in list(self._dirty):
            if queue.state is QueueState.OPEN and self._link.connected:
                del self._dirty[queue]
                self._fire(queue, QueueInput.CONFIGURE, now)

    def next_deadline(self) -> float | None:
        """Return when the next operation times out."""
        heap = self._deadlines
        while heap and heap[0][3].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def tick(self, now: float) -> None:
        """Fail the operations whose deadline has passed while they waited for a connection."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, queue, operation = heapq.heappop(self._deadlines)
            if queue.state is QueueState.WAITING and queue.opening is operation:
                self._fire(queue, QueueInput.TIMEOUT, now)
            elif operation in queue.waiting_configure:
                queue.waiting_configure.remove(operation)
                self._complete(operation, _timeout("configure", queue))
            elif queue.closing is operation and queue.state is QueueState.ABANDONED:
                self._complete(operation, _timeout("close", queue))

    # responses

    def response(self, request: Request, body: ControlBody | None, now: float) -> None:
        """Take the answer to a request of a queue."""
        queue: QueueCore = request.subject
        refusal = body if isinstance(body, Status) and body.category != StatusCategory.E_SUCCESS else None
        if queue.request is not request:
            # A configuration that had timed out locally has reached the broker after all.
            if request.kind is RequestKind.CONFIGURE and refusal is None and queue.state is QueueState.OPEN:
                self._mark_dirty(queue)
            return
        queue.request = None
        if refusal is not None:
            self._fire(queue, QueueInput.REFUSED, now, request, refusal)
            return
        if isinstance(body, OpenQueueResponse):
            queue.note_routing(body.routing_configuration.flags, body.deduplication_time_ms)
        plain = request.kind is RequestKind.OPEN and not self._effective(queue)
        self._fire(queue, QueueInput.ACCEPTED_PLAIN if plain else QueueInput.ACCEPTED, now, request)

    def timed_out(self, request: Request, now: float) -> None:
        """Give up on an answer."""
        queue: QueueCore = request.subject
        if queue.request is not request or (queue.state, QueueInput.TIMEOUT) not in QUEUE_TRANSITIONS:
            return
        if request.kind is not RequestKind.OPEN:
            queue.request = None  # an openQueue is still waited for: what it opens has to be closed
        self._fire(queue, QueueInput.TIMEOUT, now, request)

    def fallback(self, q_id: int) -> SubscriptionCore | None:
        """Return whom a message without a known subscription id is for, when there is no doubt."""
        readers = [q for q in self._queues.values() if q.q_id == q_id and q.applied]
        return readers[0].applied[0] if len(readers) == 1 else None

    # running the table

    def _fire(
        self,
        queue: QueueCore,
        event: QueueInput,
        now: float,
        request: Request | None = None,
        refusal: Status | None = None,
    ) -> None:
        action, queue.state = step(QUEUE_TRANSITIONS, queue.state, event)
        self._now = now
        if action:
            getattr(self, f"_{action}")(queue, request, refusal)
        if queue.state is QueueState.CLOSED and event is not QueueInput.OPEN_LATER:
            self._remove(queue)

    def _send_open(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        deadline = queue.opening.deadline if queue.opening else self._now + self._reopen_timeout
        body = OpenQueue(handle_parameters=queue.handle_parameters())
        queue.request = self._link.request(RequestKind.OPEN, body, queue, deadline)

    def _finish_open(self, queue: QueueCore, request: Request | None, _refusal: Status | None) -> None:
        self._apply(queue, request)
        queue.sending = queue.writable
        operation, queue.opening = queue.opening, None
        self._complete(operation, None)

    def _fail_open(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        operation, queue.opening = queue.opening, None
        self._complete(operation, _refused(OpenQueueError, "open", queue, refusal))

    def _fail_configuring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        operation, queue.opening = queue.opening, None
        self._complete(operation, _refused(ConfigureQueueError, "configure", queue, refusal))
        self._send_close(queue, request, refusal)

    def _forget(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.opening = None

    def _send_configure(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.configuring.extend(queue.waiting_configure)
        queue.waiting_configure.clear()
        self._dirty.pop(queue, None)
        deadlines = [operation.deadline for operation in queue.configuring]
        if queue.opening:
            deadlines.append(queue.opening.deadline)
        deadline = max(deadlines, default=self._now + self._reopen_timeout)
        self._request_configure(queue, self._effective(queue), deadline)

    def _commit_configure(self, queue: QueueCore, request: Request | None, _refusal: Status | None) -> None:
        self._apply(queue, request)
        done, queue.configuring = queue.configuring, []
        for operation in done:
            self._complete(operation, None)

    def _roll_back(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        if request is not None:
            self._forget_ids(queue, [s_id for s_id, _ in request.detail])
        if not queue.suspended:
            queue.desired = list(queue.applied)
        failed = [*queue.configuring, *queue.waiting_configure]
        queue.configuring.clear()
        queue.waiting_configure.clear()
        self._dirty.pop(queue, None)
        for operation in failed:
            self._complete(operation, _refused(ConfigureQueueError, "configure", queue, refusal))

    def _finish_reopen(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        released, queue.releasing = queue.releasing, False
        self._commit_configure(queue, request, refusal)
        if not released:
            self._link.emit(QueueReopened(str(queue.uri)))
            self._link.queue_settled(queue, self._now)

    def _fail_reopen(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        error = _refused(OpenQueueError, "reopen", queue, refusal)
        queue.sending = False
        self._link.emit(QueueReopenFailed(str(queue.uri), error))
        for operation in (*queue.configuring, *queue.waiting_configure):
            self._complete(operation, error)
        self._link.give_up_posts(queue)
        self._link.queue_settled(queue, self._now)

    def _fail_restoring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        self._fail_reopen(queue, request, refusal)
        self._send_close(queue, request, refusal)

    def _give_up_reopen(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._link.give_up_posts(queue)
        self._link.queue_settled(queue, self._now)

    def _close_restoring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        self._give_up_reopen(queue, request, refusal)
        self._send_close(queue, request, refusal)

    def _send_release(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.releasing = True
        self._request_close(queue, self._now + self._reopen_timeout)

    def _send_deconfigure(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        closed = QueueClosed(f"queue {queue.uri} was closed")
        for operation in (*queue.configuring, *queue.waiting_configure):
            self._complete(operation, closed)
        queue.configuring.clear()
        queue.waiting_configure.clear()
        self._request_configure(queue, [], self._closing_deadline(queue))

    def _send_close(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._request_close(queue, self._closing_deadline(queue))

    def _finish_close(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._end(queue, None)

    def _fail_close(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        self._end(queue, _refused(CloseQueueError, "close", queue, refusal))

    def _stop(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._end(queue, None)

    # helpers

    def _effective(self, queue: QueueCore) -> list[SubscriptionCore]:
        return [] if queue.suspended else queue.desired

    def _request_configure(self, queue: QueueCore, subs: list[SubscriptionCore], deadline: float) -> None:
        body: ControlBody
        plain = len(subs) <= 1 and not any(sub.expression for sub in subs)
        if plain and not self._link.uses_configure_stream:
            # The old form names no subscription: messages carry the sub-queue id instead.
            numbered = [(queue.sub_id, sub) for sub in subs]
            body = ConfigureQueueStream(q_id=queue.q_id, stream_parameters=_old_parameters(queue, subs))
        else:
            numbered = [(self._next_s_id + i, sub) for i, sub in enumerate(subs)]
            self._next_s_id += len(subs)
            body = ConfigureStream(q_id=queue.q_id, stream_parameters=queue.stream_parameters(numbered))
        # Messages may arrive in the same chunk as the response.
        self.routes.setdefault(queue.q_id, {}).update(numbered)
        queue.request = self._link.request(RequestKind.CONFIGURE, body, queue, deadline, numbered)

    def _request_close(self, queue: QueueCore, deadline: float) -> None:
        others = any(
            other is not queue and other.q_id == queue.q_id and other.state is not QueueState.WAITING
            for other in self._queues.values()
        )
        body = CloseQueue(
            handle_parameters=queue.handle_parameters(),
            is_final=not others and not (queue.releasing and queue.writable),
        )
        queue.request = self._link.request(RequestKind.CLOSE, body, queue, deadline)

    def _apply(self, queue: QueueCore, request: Request | None) -> None:
        if request is None or request.kind is not RequestKind.CONFIGURE:
            return
        queue.applied = [sub for _, sub in request.detail]
        queue.generations.append([s_id for s_id, _ in request.detail])
        while len(queue.generations) > _GENERATIONS:
            current = queue.generations[-1]
            self._forget_ids(queue, [s_id for s_id in queue.generations.popleft() if s_id not in current])

    def _forget_ids(self, queue: QueueCore, s_ids: list[int]) -> None:
        routes = self.routes.get(queue.q_id, {})
        for s_id in s_ids:
            routes.pop(s_id, None)

    def _mark_dirty(self, queue: QueueCore) -> None:
        self._dirty[queue] = None

    def _closing_deadline(self, queue: QueueCore) -> float:
        return queue.closing.deadline if queue.closing else self._now + self._reopen_timeout

    def _watch(self, queue: QueueCore, operation: Operation) -> None:
        self._serial += 1
        heapq.heappush(self._deadlines, (operation.deadline, self._serial, queue, operation))

    def _complete(self, operation: Operation | None, error: Error | None) -> None:
        if operation is not None and not operation.done:
            operation.done = True
            self._link.emit(Completed(operation.token, error))

    def _end(self, queue: QueueCore, error: Error | None) -> None:
        queue.sending = False
        closed = QueueClosed(f"queue {queue.uri} was closed")
        for operation in (queue.opening, *queue.configuring, *queue.waiting_configure):
            self._complete(operation, closed)
        queue.opening = None
        queue.configuring.clear()
        queue.waiting_configure.clear()
        self._link.give_up_posts(queue)
        self._complete(queue.closing, error)

    def _remove(self, queue: QueueCore) -> None:
        key = (queue.uri.canonical, queue.uri.app_id if queue.readable else "")
        if self._queues.get(key) is queue:
            del self._queues[key]
        self._dirty.pop(queue, None)
        routes = self.routes.get(queue.q_id, {})
        for s_id in [s_id for s_id, sub in routes.items() if sub.queue is queue]:
            del routes[s_id]


def _old_parameters(queue: QueueCore, subs: list[SubscriptionCore]) -> QueueStreamParameters:
    info = SubQueueIdInfo(sub_id=queue.sub_id, app_id=queue.uri.app_id) if queue.sub_id else None
    options = subs[0].options if subs else None
    return QueueStreamParameters(
        sub_id_info=info,
        max_unconfirmed_messages=options.max_unconfirmed_messages if options else 0,
        max_unconfirmed_bytes=options.max_unconfirmed_bytes if options else 0,
        consumer_priority=options.priority if options else INVALID_CONSUMER_PRIORITY,
        consumer_priority_count=1 if options else 0,
    )


def _timeout(what: str, queue: QueueCore) -> RequestTimeout:
    return RequestTimeout(f"the broker did not answer the request to {what} queue {queue.uri} in time")


def _refused(cls: type[RequestError], what: str, queue: QueueCore, refusal: Status | None) -> Error:
    if refusal is None:
        return _timeout(what, queue)
    text = refusal.message or "no reason given"
    return cls(
        f"the broker refused to {what} queue {queue.uri}: {text} "
        f"({refusal.category.name}, code {refusal.code})",
        category=refusal.category,
        code=refusal.code,
        broker_message=refusal.message,
    )
