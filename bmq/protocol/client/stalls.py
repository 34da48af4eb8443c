# SPDX-License-Identifier: Apache-2.0
"""Stalls: a session with a live connection, and without progress.

A live connection proves little. In a cluster the session's own node may be well while the primary of a
partition hangs: the node answers heartbeats and accepts posts, but acknowledges none. A broker owes a client
three things, each watched for ``patience``, half of the session's ``liveness``:

- bytes, after a heartbeat request (:class:`bmq.protocol.liveness.Liveness`), and an answer among the bytes
  (:class:`bmq.protocol.liveness.Answers`);
- an acknowledgement for each post. A queue has stalled when the oldest post is older than ``patience`` and
  the last acknowledgement too: a deep window with a flow of acknowledgements is full, not stalled;
- an answer to each request. The session repeats silent subscriptions with expressions: a broker without an
  answer to the repetition shows here.

No message is owed: a client cannot tell an empty queue from an undelivered one.

**The watch costs nothing per message.** The posts are examined when a deadline has passed, and during a stall
with each chunk of bytes. **A blocked event loop finds all posts old**, while the answers wait in the socket:
before a stall is reported, the loop gets one more turn to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bmq.protocol.client.events import SessionEvent, StallCause, Stalled, StallOver
from bmq.protocol.client.posts import Posts
from bmq.protocol.client.requests import Requests

__all__ = ["Stalls"]

# The causes of stalls found in the posts and requests.
_OWED: Final[tuple[StallCause, ...]] = ("posts", "requests")
# Seconds until a stall found by a timer is checked again.
_NEXT_TURN = 0.01
# Shortest pause between two checks, as a part of the patience.
_LEAST_PAUSE = 1 / 4


class Stalls:
    """The stalls of a session.

    Args:
        posts: the posts without an outcome.
        requests: the requests without an answer.
        patience: seconds without progress before a stall is reported; None to disable the watch.
        emit: reports an event.

    Attributes:
        causes: the current stalls, with the time of each report.
        deadline: time to call :meth:`tick`, or None.
        moved: time at which the broker took bytes of a backlog, or reading resumed after a pause.
    """

    __slots__ = (
        "_doubted",
        "_emit",
        "_patience",
        "_posts",
        "_requests",
        "_silent_since",
        "_unanswered_since",
        "causes",
        "deadline",
        "moved",
    )

    def __init__(
        self, posts: Posts, requests: Requests, patience: float | None, emit: Callable[[SessionEvent], None]
    ) -> None:
        self._posts = posts
        self._requests = requests
        self._patience = patience
        self._emit = emit
        self._doubted = False
        self._silent_since = 0.0
        self._unanswered_since = 0.0
        self.causes: dict[StallCause, float] = {}
        self.deadline: float | None = None
        self.moved = 0.0

    def watch(self, now: float) -> None:
        """Schedule a check: output requiring an answer was sent."""
        due = now + self._patience if self._patience is not None else None
        if due is not None and (self.deadline is None or due < self.deadline):
            self.deadline = due

    def sent(self, now: float) -> None:
        """Record the time of sending of the fresh requests, and schedule a check."""
        for request in self._requests.fresh:
            request.sent = now
        self._requests.fresh.clear()
        self.watch(now)

    def look(self, now: float) -> None:
        """Check posts and requests with the next :meth:`tick`."""
        if self._patience is not None:
            self.deadline = now

    def lost(self) -> None:
        """Forget all stalls: the connection is gone, and no answer is owed."""
        self.causes.clear()
        self.deadline = None
        self._doubted = False

    def silent(self, heard: float, now: float) -> None:
        """Report that the broker has been silent since ``heard``, although asked."""
        self._silent_since = heard
        self._begin(["silence"], now)

    def heard(self, now: float) -> None:
        """Record bytes from the broker."""
        self._end(["silence"], now)

    def unanswered(self, answered: float, now: float) -> None:
        """Report that the broker has not answered since ``answered``, although asked."""
        self._unanswered_since = answered
        if "silence" not in self.causes:
            self._begin(["answers"], now)

    def broker_answers(self, now: float) -> None:
        """Record an answer to a post or any request."""
        self._end(["answers"], now)

    def tick(self, now: float) -> None:
        """Check the posts and requests, once the deadline has passed."""
        if self.deadline is None or self._patience is None or now < self.deadline:
            return
        found = self._found(now)
        # A silent broker answers no post and no request either: report only the silence.
        mute = "silence" in self.causes or "answers" in self.causes
        new: list[StallCause] = [cause for cause in found if cause not in self.causes and not mute]
        if new and not self._doubted:
            self._doubted = True
            self.deadline = now + min(_NEXT_TURN, self._patience / 10)
            return
        self._doubted = False
        self._begin(new, now)
        self._end([cause for cause in _OWED if cause not in found], now)
        self.deadline = self._next_look(now)

    def answered(self, now: float) -> None:
        """Check for progress after an answer; call this while posts or requests have stalled."""
        if self._patience is not None:
            found = self._found(now)
            self._end([cause for cause in _OWED if cause not in found], now)

    def describe(self, now: float) -> Iterator[tuple[StallCause, str]]:
        """Describe the current state of each stall."""
        found = self._found(now)
        for cause in self.causes:
            if cause == "silence":
                yield cause, f"the broker has been silent for {_shown(now - self._silent_since)}"
            elif cause == "answers":
                answered = _shown(now - self._unanswered_since)
                yield cause, f"the broker has not answered for {answered}, not even a heartbeat"
            elif cause in found:
                yield cause, found[cause]

    # inside

    def _begin(self, causes: Sequence[StallCause], now: float) -> None:
        new: list[StallCause] = [cause for cause in causes if cause not in self.causes]
        for cause in new:
            self.causes[cause] = now
        reasons = dict(self.describe(now)) if new else {}
        for cause in new:
            self._emit(Stalled(cause, reasons[cause]))

    def _end(self, causes: Sequence[StallCause], now: float) -> None:
        for cause in causes:
            begun = self.causes.pop(cause, None)
            if begun is not None:
                self._emit(StallOver(cause, now - begun))

    def _found(self, now: float) -> dict[StallCause, str]:
        """Describe the stalls except silence."""
        found: dict[StallCause, str] = {}
        if self._patience is None:
            return found
        limit = now - self._patience
        waiting = self._posts.waiting()
        stuck = [
            queue
            for queue, oldest in waiting.items()
            if queue.sending and max(oldest, queue.answered_at, self.moved) <= limit
        ]
        if stuck:
            posts, oldest = sum(queue.unacked for queue in stuck), min(waiting[queue] for queue in stuck)
            where = stuck[0].uri_text if len(stuck) == 1 else f"{len(stuck):,} queues"
            which = "a post" if posts == 1 else f"the oldest of {posts:,} posts"
            found["posts"] = (
                f"{which} to {where} has been waiting for its acknowledgement for {_shown(now - oldest)}"
            )
        request = self._requests.oldest()
        if request is not None and max(request.sent, self.moved) <= limit:
            about = "" if request.subject is None else request.subject.uri_text
            what = f"{request.kind.value} of {about}" if about else request.kind.value
            found["requests"] = f"the broker has not answered {what} for {_shown(now - request.sent)}"
        return found

    def _next_look(self, now: float) -> float | None:
        assert self._patience is not None
        owed = [max(oldest, queue.answered_at) for queue, oldest in self._posts.waiting().items()]
        request = self._requests.oldest()
        if request is not None:
            owed.append(request.sent)
        if not owed:
            return None
        return max(min(owed) + self._patience, now + self._patience * _LEAST_PAUSE)


def _shown(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"
