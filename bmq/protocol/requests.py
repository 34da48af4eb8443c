"""Requests and their responses: correlation by rId, and deadlines."""

from __future__ import annotations

import heapq
from enum import Enum
from typing import Any

__all__ = ["Request", "RequestKind", "Requests"]

# Requests that timed out are remembered for their late responses, up to this many.
_MAX_EXPIRED = 1000


class RequestKind(Enum):
    """What is asked of the broker."""

    OPEN = "openQueue"
    CONFIGURE = "configureStream"
    CLOSE = "closeQueue"
    DISCONNECT = "disconnect"


class Request:
    """One request that was sent.

    Attributes:
        kind: what was asked.
        subject: whom the response is for.
        detail: what the subject wants to remember with it.
        expired: the deadline has passed; the response, should it still come, is late.
    """

    __slots__ = ("detail", "expired", "kind", "r_id", "subject")

    def __init__(self, r_id: int, kind: RequestKind, subject: Any, detail: Any) -> None:
        self.r_id = r_id
        self.kind = kind
        self.subject = subject
        self.detail = detail
        self.expired = False


class Requests:
    """The outstanding requests of one session; rIds count up from 1 for its whole life."""

    def __init__(self) -> None:
        self._next = 1
        self._outstanding: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._expired: list[int] = []

    def __len__(self) -> int:
        return len(self._outstanding)

    def add(self, kind: RequestKind, subject: Any, deadline: float, detail: Any = None) -> Request:
        """Register a request and give it its rId."""
        request = Request(self._next, kind, subject, detail)
        self._next += 1
        self._outstanding[request.r_id] = request
        heapq.heappush(self._deadlines, (deadline, request.r_id))
        return request

    def resolve(self, r_id: int | None) -> Request | None:
        """Return the request that a response answers, late ones included, or None if there is none."""
        return None if r_id is None else self._outstanding.pop(r_id, None)

    def next_deadline(self) -> float | None:
        """Return when the next request times out."""
        heap = self._deadlines
        while heap and heap[0][1] not in self._outstanding:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def expire(self, now: float) -> list[Request]:
        """Return the requests whose deadline has passed, once each; late responses still resolve."""
        expired: list[Request] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, r_id = heapq.heappop(self._deadlines)
            request = self._outstanding[r_id]
            request.expired = True
            expired.append(request)
            self._expired.append(r_id)
            if len(self._expired) > _MAX_EXPIRED:
                self._outstanding.pop(self._expired.pop(0), None)
        return expired

    def clear(self) -> None:
        """Forget everything outstanding: the connection it was sent on is gone."""
        self._outstanding.clear()
        self._deadlines.clear()
        self._expired.clear()
