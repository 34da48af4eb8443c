"""The steps of a queue's state machine, client role: what the actions of :data:`QUEUE_TRANSITIONS` do."""

from __future__ import annotations

from typing import Protocol

from bmq.errors import (
    CloseQueueError,
    ConfigureQueueError,
    ConnectionFailed,
    Error,
    OpenQueueError,
    QueueClosed,
    RequestError,
    RequestTimeout,
)
from bmq.protocol.client.events import (
    Completed,
    QueueReopened,
    QueueReopenFailed,
    QueueResumed,
    QueueSuspended,
    SessionEvent,
    Signal,
)
from bmq.protocol.client.queue import Operation, QueueCore, SubscriptionCore
from bmq.protocol.client.requests import Request, RequestKind
from bmq.protocol.client.routes import Routes
from bmq.protocol.client.tables import QUEUE_TRANSITIONS, QueueInput, step
from bmq.protocol.deadlines import Deadlines
from bmq.wire.control import (
    INVALID_CONSUMER_PRIORITY,
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    ControlBody,
    OpenQueue,
    QueueStreamParameters,
    Status,
    SubQueueIdInfo,
)
from bmq.wire.printable import printable

__all__ = ["Link", "QueueSteps", "timeout_error"]


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
        self, kind: RequestKind, body: ControlBody, subject: QueueCore, deadline: float, detail: object = None
    ) -> Request:
        """Send a request."""
        ...

    def extend_request(self, request: Request, deadline: float) -> None:
        """Wait longer for a response."""
        ...

    def emit(self, event: SessionEvent | Signal) -> None:
        """Report something."""
        ...

    def queue_settled(self, queue: QueueCore, now: float) -> None:
        """A reopening queue is open again, or never will be."""
        ...

    def queue_answered(self, queue: QueueCore) -> None:
        """The broker said what kind of queue this is."""
        ...

    def give_up_posts(self, queue: QueueCore) -> None:
        """The queue is closed: its posts end here."""
        ...

    def fail_channel(self, error: Error) -> None:
        """The connection is of no more use."""
        ...


class QueueSteps:
    """Runs the table for one queue after another.

    Attributes:
        routes: the subscription for each (qId, sId).
        operations: when what callers wait for times out.
        dirty: the queues whose stream is to be configured.
    """

    def __init__(self, link: Link, reopen_timeout: float) -> None:
        self._link = link
        self._reopen_timeout = reopen_timeout
        self._now = 0.0
        self.routes = Routes()
        self.operations: Deadlines[Operation] = Deadlines()
        self.dirty: dict[QueueCore, None] = {}

    def fire(
        self,
        queue: QueueCore,
        event: QueueInput,
        now: float,
        request: Request | None = None,
        refusal: Status | None = None,
    ) -> None:
        """Run one transition.

        Raises:
            StateError: the table has none for this input in this state.
        """
        action, queue.state = step(QUEUE_TRANSITIONS, queue.state, event)
        self._now = now
        if action:
            getattr(self, f"_{action}")(queue, request, refusal)

    def watch(self, queue: QueueCore, operation: Operation) -> None:
        """Time an operation out at its deadline."""
        operation.queue = queue
        self.operations.set(operation, operation.deadline)

    def complete(self, operation: Operation | None, error: Error | None) -> None:
        """Tell the caller of an operation how it ended, once."""
        if operation is not None and not operation.done:
            operation.done = True
            self.operations.discard(operation)
            self._link.emit(Completed(operation.token, error))

    def fail_operations(self, queue: QueueCore, error: Error) -> None:
        """End whatever callers wait for, closing apart."""
        operations = (queue.opening, *queue.configuring, *queue.waiting_configure)
        queue.opening = None
        queue.configuring.clear()
        queue.waiting_configure.clear()
        for operation in operations:
            self.complete(operation, error)

    def report_suspension(self, queue: QueueCore) -> None:
        """Tell the application, once the stream is as the host's health wants it."""
        if queue.suspended is queue.reported_suspended:
            return
        queue.reported_suspended = queue.suspended
        uri = str(queue.uri)
        self._link.emit(QueueSuspended(uri) if queue.suspended else QueueResumed(uri))

    # opening

    def _send_open(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        deadline = queue.opening.deadline if queue.opening else self._now + self._reopen_timeout
        body = OpenQueue(handle_parameters=queue.handle_parameters())
        queue.request = self._link.request(RequestKind.OPEN, body, queue, deadline)

    def _wait_again(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        assert queue.request is not None
        assert queue.opening is not None
        self._link.extend_request(queue.request, queue.opening.deadline)

    def _finish_open(self, queue: QueueCore, request: Request | None, _refusal: Status | None) -> None:
        self._apply(queue, request)
        queue.attached = not queue.at_most_once  # such a queue takes no confirmations
        queue.sending = queue.writable
        operation, queue.opening = queue.opening, None
        self.complete(operation, None)
        self._report_when_settled(queue)

    def _fail_open(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        operation, queue.opening = queue.opening, None
        self.complete(operation, _refused(OpenQueueError, "open", queue, refusal))

    def _fail_configuring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        operation, queue.opening = queue.opening, None
        self.complete(operation, _refused(ConfigureQueueError, "configure", queue, refusal))
        self._send_close(queue, request, refusal)

    # configuring

    def _send_configure(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.configuring.extend(queue.waiting_configure)
        queue.waiting_configure.clear()
        self.dirty.pop(queue, None)
        deadlines = [operation.deadline for operation in queue.configuring]
        if queue.opening:
            deadlines.append(queue.opening.deadline)
        deadline = max(deadlines, default=self._now + self._reopen_timeout)
        self._request_configure(queue, queue.effective, deadline)

    def _commit_configure(self, queue: QueueCore, request: Request | None, _refusal: Status | None) -> None:
        self._apply(queue, request)
        done, queue.configuring = queue.configuring, []
        for operation in done:
            self.complete(operation, None)
        self._report_when_settled(queue)

    def _roll_back(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        assert request is not None
        if refusal is None:
            self.routes.settle(
                queue, request.detail
            )  # the broker may have it: messages may come with its sIds
        else:
            self.routes.drop(queue, request.detail)
        failed = [*queue.configuring, *queue.waiting_configure]
        queue.configuring.clear()
        queue.waiting_configure.clear()
        self.dirty.pop(queue, None)
        error = _refused(ConfigureQueueError, "configure", queue, refusal)
        if queue.suspended is not queue.reported_suspended:
            # Nobody asked for it, so nobody can be told. A new connection brings both sides back in line.
            what = "suspend" if queue.suspended else "resume"
            self._link.fail_channel(ConnectionFailed(f"could not {what} queue {queue.uri}: {error}"))
        elif not queue.suspended:
            queue.desired = list(queue.applied)
        for operation in failed:
            self.complete(operation, error)

    # reopening

    def _finish_reopen(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        queue.attached = not queue.at_most_once  # such a queue takes no confirmations
        if request is None or request.kind is not RequestKind.CONFIGURE:
            queue.applied = []
        self._commit_configure(queue, request, refusal)
        self._link.emit(QueueReopened(str(queue.uri)))
        self._link.queue_settled(queue, self._now)

    def _fail_reopen(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        error = _refused(OpenQueueError, "reopen", queue, refusal)
        self._link.emit(QueueReopenFailed(str(queue.uri), error))
        if refusal is None:
            queue.family.unclear = True
        self._let_go(queue, error)

    def _fail_restoring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        error = _refused(ConfigureQueueError, "configure", queue, refusal)
        self._link.emit(QueueReopenFailed(str(queue.uri), error))
        self._let_go(queue, error)
        self._send_close(queue, request, refusal)

    def _give_up_reopen(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._let_go(queue, _closed(queue))

    def _close_restoring(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        self._let_go(queue, _closed(queue))
        self._send_close(queue, request, refusal)

    def _let_go(self, queue: QueueCore, error: Error) -> None:
        """A queue that was being reopened is not wanted, or not to be had."""
        queue.sending = False
        self.fail_operations(queue, error)
        self._link.give_up_posts(queue)
        self._link.queue_settled(queue, self._now)

    # closing

    def _send_deconfigure(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.sending = False
        self.fail_operations(queue, _closed(queue))
        self._request_configure(queue, [], self._closing_deadline(queue))

    def _send_close(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        queue.sending = False
        self._request_close(queue, self._closing_deadline(queue))

    def _finish_close(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._end(queue, None)

    def _fail_close(self, queue: QueueCore, _request: Request | None, refusal: Status | None) -> None:
        queue.family.unclear = True
        self._end(queue, _refused(CloseQueueError, "close", queue, refusal))

    def _close_unanswered(self, queue: QueueCore, request: Request | None, refusal: Status | None) -> None:
        # There is no time left to wait for the answer.
        self._request_close(queue, self._now + self._reopen_timeout)
        self._fail_close(queue, request, refusal)

    def _stop(self, queue: QueueCore, _request: Request | None, _refusal: Status | None) -> None:
        self._end(queue, None)

    # helpers

    def _request_configure(self, queue: QueueCore, subs: list[SubscriptionCore], deadline: float) -> None:
        body: ControlBody
        if not self._link.uses_configure_stream:
            subs = [sub for sub in subs if sub is not queue.nothing]
        plain = len(subs) <= 1 and not any(sub.expression for sub in subs)
        if plain and not self._link.uses_configure_stream:
            # The old form names no subscription: messages carry the sub-queue id instead.
            numbered = [(queue.sub_id, sub) for sub in subs]
            body = ConfigureQueueStream(q_id=queue.q_id, stream_parameters=_old_parameters(queue, subs))
        else:
            numbered = self.routes.number(subs)
            body = ConfigureStream(q_id=queue.q_id, stream_parameters=queue.stream_parameters(numbered))
        numbered = [pair for pair in numbered if pair[1] is not queue.nothing]
        self.routes.add(queue, numbered)
        queue.request = self._link.request(RequestKind.CONFIGURE, body, queue, deadline, numbered)

    def _request_close(self, queue: QueueCore, deadline: float) -> None:
        queue.attached = False
        body = CloseQueue(
            handle_parameters=queue.handle_parameters(), is_final=not queue.family.others_open(queue)
        )
        queue.request = self._link.request(RequestKind.CLOSE, body, queue, deadline)

    def _apply(self, queue: QueueCore, request: Request | None) -> None:
        if request is not None and request.kind is RequestKind.CONFIGURE:
            queue.applied = [sub for _, sub in request.detail]
            self.routes.settle(queue, request.detail)

    def _report_when_settled(self, queue: QueueCore) -> None:
        if not queue.applied if queue.suspended else (queue.applied or not queue.desired):
            self.report_suspension(queue)

    def _closing_deadline(self, queue: QueueCore) -> float:
        return queue.closing.deadline if queue.closing else self._now + self._reopen_timeout

    def _end(self, queue: QueueCore, error: Error | None) -> None:
        queue.sending = queue.attached = False
        queue.request = None
        self.fail_operations(queue, _closed(queue))
        self._link.give_up_posts(queue)
        self.complete(queue.closing, error)


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


def timeout_error(what: str, queue: QueueCore) -> RequestTimeout:
    """Say which request was not answered."""
    return RequestTimeout(f"the broker did not answer the request to {what} queue {queue.uri} in time")


def _closed(queue: QueueCore) -> QueueClosed:
    return QueueClosed(f"queue {queue.uri} was closed")


def _refused(cls: type[RequestError], what: str, queue: QueueCore, refusal: Status | None) -> Error:
    if refusal is None:
        return timeout_error(what, queue)
    text = printable(refusal.message) or "no reason given"
    return cls(
        f"the broker refused to {what} queue {queue.uri}: {text} "
        f"({refusal.category.name}, code {refusal.code})",
        category=refusal.category,
        code=refusal.code,
        broker_message=refusal.message,
    )
