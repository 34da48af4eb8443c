# SPDX-License-Identifier: Apache-2.0
"""Requests and answers: correlation by request id, and deadlines."""

from __future__ import annotations

from collections import deque
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from bmq.errors import Error
from bmq.protocol.client.outbox import OutputBuffer
from bmq.protocol.client.subscription import Numbered
from bmq.protocol.deadlines import Deadlines
from bmq.wire.constants import EventType
from bmq.wire.control import Codec, ControlBody, ControlMessage, encode_json
from bmq.wire.event import pack_schema_event

if TYPE_CHECKING:
    from bmq.protocol.client.queue import QueueCore

__all__ = ["PendingRequests", "Request", "RequestKind"]

# Number of timed-out requests kept for late answers.
_MAX_EXPIRED = 1000
# A deadline in the past, for any clock.
_AT_ONCE = -inf


class RequestKind(Enum):
    """The kinds of requests to the broker."""

    OPEN = "openQueue"
    CONFIGURE = "configureStream"
    CLOSE = "closeQueue"
    DISCONNECT = "disconnect"


class Request:
    """A request.

    Attributes:
        r_id: request id.
        kind: kind of the request.
        subject: the queue that receives the answer; None for a disconnect.
        numbered: the subscriptions of a configureStream.
        failure: why the request was not sent; None if sent.
        unexpected: description of an answer that does not belong to the request.
        cause: why the answer was unreadable, or None.
        sent: time of sending; infinite before.
    """

    __slots__ = ("cause", "failure", "kind", "numbered", "r_id", "sent", "subject", "unexpected")

    def __init__(
        self, r_id: int, kind: RequestKind, subject: QueueCore | None, numbered: Numbered | None
    ) -> None:
        self.r_id = r_id
        self.kind = kind
        self.subject = subject
        self.numbered: Numbered = [] if numbered is None else numbered
        self.failure: Exception | None = None
        self.unexpected = ""
        self.cause: Error | None = None
        self.sent = inf


class PendingRequests:
    """The outstanding requests of a session. Request ids count up from 1 for the session's whole life.

    Args:
        outbox: receives requests to send.

    Attributes:
        deadlines: the timeouts, by request id; for reading only.
        fresh: requests without a recorded time of sending, which the owner records.
    """

    def __init__(self, outbox: OutputBuffer) -> None:
        self._outbox = outbox
        self._next = 1
        self._outstanding: dict[int, Request] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        self._expired: deque[int] = deque()
        self.fresh: list[Request] = []

    def __len__(self) -> int:
        return len(self._outstanding)

    def send(
        self,
        kind: RequestKind,
        body: ControlBody | Error,
        subject: QueueCore | None,
        deadline: float,
        numbered: Numbered | None = None,
    ) -> Request:
        """Send a request after all pending output.

        Never raises. An unencodable request is not sent: :attr:`Request.failure` has the error, and
        :meth:`expire` returns the request at the next opportunity. The failure ends only this operation,
        through the same transitions as a refusal of the broker: no state is left half changed.

        Args:
            kind: kind of the request.
            body: content of the request; an error if this broker cannot carry out the request.
            subject: receiver of the answer.
            deadline: time of the timeout.
            numbered: the subscriptions of a configureStream.
        """
        request = Request(self._next, kind, subject, numbered)
        self._next += 1
        self._outstanding[request.r_id] = request
        self.deadlines.set(request.r_id, _AT_ONCE)
        if isinstance(body, Error):
            request.failure = body
            return request
        try:
            text = encode_json(ControlMessage(r_id=request.r_id, body=body))
            event = pack_schema_event(EventType.CONTROL, Codec.JSON, text)
        except Exception as error:
            request.failure = error
        else:
            self.deadlines.set(request.r_id, deadline)
            self._outbox.event(event)
            self.fresh.append(request)
        return request

    def extend(self, request: Request, deadline: float) -> None:
        """Move the timeout of a request to ``deadline``, because a caller waits for the answer again."""
        if request.r_id in self._outstanding and request.failure is None:
            self.deadlines.set(request.r_id, deadline)

    def resolve(self, r_id: int | None) -> Request | None:
        """Return the request for an answer, including timed-out requests; None for an unknown id."""
        if r_id is None:
            return None
        self.deadlines.discard(r_id)
        return self._outstanding.pop(r_id, None)

    def oldest(self) -> Request | None:
        """Return the oldest unanswered request that has not timed out."""
        for r_id, request in self._outstanding.items():
            if r_id in self.deadlines and request.sent < inf and request.kind is not RequestKind.DISCONNECT:
                return request
        return None

    def expire(self, now: float) -> list[Request]:
        """Return the timed-out requests; late answers still resolve."""
        expired = [self._outstanding[r_id] for r_id in self.deadlines.due(now)]
        for request in expired:
            self._expired.append(request.r_id)
            if len(self._expired) > _MAX_EXPIRED:
                oldest = self._expired.popleft()
                if oldest not in self.deadlines:
                    self._outstanding.pop(oldest, None)
        return expired

    def clear(self) -> None:
        """Forget all outstanding requests: the connection is gone."""
        self._outstanding.clear()
        self.deadlines.clear()
        self._expired.clear()
        self.fresh.clear()
