# SPDX-License-Identifier: Apache-2.0
"""The watch over the broker: a silent or stuck broker is asked, then reported, then given up.

A connection can die without notice: a firewall drops packets, or the peer's process hangs. The operating
system detects neither for minutes or hours, and a broker's heartbeats are off unless enabled by the operator.
And a live connection proves little: in a cluster the session's own node may be well while the primary of a
partition hangs. A broker owes a client four things:

- bytes, after a heartbeat request: a broker answers every HEARTBEAT_REQ, regardless of its configuration;
- an answer among the bytes. A middlebox may acknowledge the client's bytes and drop them, while messages
  continue to arrive;
- an acknowledgement for each post. A queue has stalled when the oldest post and the last acknowledgement are
  older than half of the limit: a deep window with a flow of acknowledgements is full, not stalled;
- an answer to each request. The session repeats silent subscriptions with expressions: a broker without an
  answer to the repetition shows here.

No message is owed: a client cannot tell an empty queue from an undelivered one.

A missing byte, and a missing answer, pass through five stages, each entered by a call of
:meth:`Watchdog.tick`:

=========  ==================  =================================================
stage      entered after       on entry
=========  ==================  =================================================
LISTENING  the last proof
ASKED      1/3 of the limit    a HEARTBEAT_REQ is sent
REPORTED   1/2 of the limit    the silence is reported
LAST_TURN  the whole limit     the event loop gets one more turn to read
GIVEN_UP   this turn           the connection is closed
=========  ==================  =================================================

**A tick enters at most one stage, and at least half of the limit passes between the request and the
verdict.** A blocked event loop, or a stopped process, is late: bytes received meanwhile are still in the
socket, and the request may not even be written. A rule based on the clock alone would give up a healthy
broker. With this rule the broker always has time to answer, and between the last two ticks the loop reads. A
repeatedly blocked loop still reaches the verdict, later. A stall of posts or requests is reported after one
more turn, too, and does not end the connection.

**A missing answer is weaker evidence than silence**, because the answer may be in flight behind a backlog: on
a slow line, a full window takes minutes. The verdict requires a line with room to spare. If the bytes
received since the last answer, or the unacknowledged posts, would keep a line of 8 KiB/s busy, a missing
answer is only reported. Rejected alternatives: a verdict based on the clock alone drops slow lines, only to
receive the same backlog again; the size of the window is no evidence, because a peer without confirmations
stops within the window, and becomes silent.

In addition, the broker's configuration may ask for heartbeats (:class:`~bmq.protocol.heartbeat.Heartbeat`).

The watch costs nothing per message. The posts are examined when a deadline has passed, and during a stall
with each chunk of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from bmq.errors import ConnectionFailed
from bmq.protocol.client.events import StallCause, Stalled, StallOver
from bmq.protocol.heartbeat import Heartbeat, HeartbeatAction
from bmq.wire.event import HEARTBEAT_REQ

if TYPE_CHECKING:
    from bmq.protocol.client.core import ClientCore

__all__ = ["Watchdog"]

# Fractions of the limit after which a silent peer is queried, and reported.
_ASK_AFTER: Final = 1 / 3
_REPORT_AFTER: Final = 1 / 2
# Minimum fraction of the limit between a request and the report.
_ANSWER_WITHIN: Final = 1 / 10
# Length of the last turn to read, in seconds; a twentieth for shorter limits.
_LAST_TURN: Final = 0.01
# Bytes per second. A slower flow leaves room on every line in use: no answer waits behind a backlog.
_SLOWEST_LINE: Final = 8 * 1024
# Fraction of the limit by which a tick may be late; after a later tick, the event loop is to blame.
_ON_TIME: Final = 1 / 4
# Shortest pause between two examinations of posts and requests, as a fraction of the limit: a report is late
# by this at most.
_LEAST_PAUSE: Final = 1 / 10
# Interval of heartbeats in seconds while reading is paused. The broker's own heartbeats go unread meanwhile,
# so these writes show the broker that the client is alive; and only a write can reveal a lost connection.
_PULSE_WHILE_PAUSED: Final = 1.0
# The causes of stalls found in the posts and requests.
_OWED: Final[tuple[StallCause, ...]] = ("posts", "requests")


class _Stage(IntEnum):
    LISTENING = 0
    ASKED = 1
    REPORTED = 2
    LAST_TURN = 3
    GIVEN_UP = 4


class _Silence:
    """The time without one kind of proof of life.

    Attributes:
        since: time of the last proof, to be set on each; silence counts from then on.
        deadline: time to call :meth:`enter_next`; None while not watched, and after the verdict.
    """

    __slots__ = ("_asked", "_limit", "_noted", "_stage", "deadline", "since")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._asked = self._noted = self.since = 0.0
        self._stage = _Stage.LISTENING
        self.deadline: float | None = None

    def start(self, now: float) -> None:
        self.since = self._noted = now
        self._stage = _Stage.LISTENING
        self.deadline = now + self._limit * _ASK_AFTER

    def stop(self) -> None:
        self.deadline = None

    def answered(self, now: float) -> None:
        """Start again after an answer to the request: the timer of an idle session need not run earlier."""
        if self.deadline is not None and self._stage is _Stage.ASKED:
            self.start(now)

    def enter_next(self, now: float) -> _Stage | None:
        """Return the stage entered at ``now``, or None."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.since > self._noted:
            self._noted = self.since
            self._stage = _Stage.LISTENING
            self.deadline = self.since + self._limit * _ASK_AFTER
            if now < self.deadline:
                return None
        limit, last_turn = self._limit, min(_LAST_TURN, self._limit / 20)
        if self._stage is _Stage.LISTENING:
            self._stage = _Stage.ASKED
            self._asked = now
            self.deadline = max(self.since + limit * _REPORT_AFTER, now + limit * _ANSWER_WITHIN)
        elif self._stage is _Stage.ASKED:
            self._stage = _Stage.REPORTED
            end = max(self.since + limit, self._asked + limit * _REPORT_AFTER)
            self.deadline = max(end, now + last_turn)
        elif self._stage is _Stage.REPORTED:
            self._stage = _Stage.LAST_TURN
            self.deadline = now + last_turn
        else:
            self._stage = _Stage.GIVEN_UP
            self.deadline = None
        return self._stage


class Watchdog:
    """Watches the broker of one session, on one connection after the other.

    Args:
        session: the session.
        limit: seconds without a byte or without an answer after which the connection is given up; None to
            rely on the heartbeats of the broker's configuration.

    Attributes:
        causes: the current stalls, with the time of each report.
        deadline: time to examine the posts and requests, or None.
        heartbeat, bytes, answers: further deadlines.
        pulse_at: time of the next heartbeat while reading is paused, or None.
    """

    def __init__(self, session: ClientCore, limit: float | None) -> None:
        self._session = session
        self._limit = limit
        self.heartbeat: Heartbeat | None = None
        self.bytes = _Silence(limit or 0.0)
        self.answers = _Silence(limit or 0.0)
        # Whether silence counts on this connection, unless reading is paused.
        self._watched = False
        self._paused = False
        # Time of the last byte before the reported silence.
        self._silent_since = 0.0
        # Time of the last answer, and number of bytes received since then or since the watch began.
        self._answered = 0.0
        self._received = 0
        self.pulse_at: float | None = None
        # Time at which the broker took bytes of a backlog, or reading resumed after a pause.
        self._moved = 0.0
        # Whether a stall of posts or requests is reported unless the next turn of the event loop ends it.
        self._doubted = False
        self.causes: dict[StallCause, float] = {}
        self.deadline: float | None = None

    # the connection

    def opened(self, heartbeat: Heartbeat, now: float) -> None:
        """Watch a new connection, with the heartbeats of the broker's configuration."""
        self.heartbeat = heartbeat
        if self._limit is not None:
            self._watched = True
            self._answered = now
            self.bytes.start(now)
            self._restart_answers(now)
        self._look_later(now)

    def disconnecting(self) -> None:
        """Expect nothing more after a disconnect: no output follows, so silence has no meaning."""
        self._watched = False
        self.bytes.stop()
        self.answers.stop()
        self.causes.clear()
        self.deadline = None
        self._doubted = False

    def closed(self) -> None:
        """Expect nothing: the connection is gone."""
        self.disconnecting()
        self.heartbeat = None
        self.pulse_at = None

    def pause(self, paused: bool, now: float) -> None:
        """Process a pause or resumption of reading: without reading, silence is no evidence."""
        if paused:
            self.bytes.stop()
            self.answers.stop()
        elif self._paused and self._watched:
            self.bytes.start(now)
            self._restart_answers(now)
        if self._paused or paused:
            self._moved = now
        self._paused = paused
        self.pulse_at = now + _PULSE_WHILE_PAUSED if paused and self._session.connected else None

    # proofs of life

    def received(self, data: bytes | memoryview, now: float) -> None:
        """Record bytes, not only whole events: an event of 64 MiB can take longer than several heartbeats."""
        if self.heartbeat is not None:
            self.heartbeat.heard = True
        # A request from the broker proves only one direction: our requests may still be lost.
        if data != HEARTBEAT_REQ:
            self.bytes.since = now
            self._received += len(data)
            if self.causes:
                self._end(["silence"], now)

    def answered(self, now: float) -> None:
        """Record an answer to a post or any request."""
        self.answers.since = self._answered = now
        self._received = 0
        if self.causes:
            self._end(["answers"], now)

    def heartbeat_answered(self, now: float) -> None:
        """Record an answer to a heartbeat request, which ends the silence."""
        self.bytes.answered(now)
        self.answers.answered(now)

    def written(self, now: float) -> None:
        """Record that the peer has accepted bytes of a backlog."""
        if self.heartbeat is not None:
            self.heartbeat.heard = True
        self._moved = now
        if self._watched and not self._paused:
            self.bytes.since = now
            self._restart_answers(now)

    def silence(self, now: float) -> float | None:
        """Seconds since the last byte; None while silence is not watched."""
        return None if self.bytes.deadline is None else max(0.0, now - self.bytes.since)

    # time

    def tick(self, now: float) -> None:
        """Perform due actions."""
        if self.pulse_at is not None and now >= self.pulse_at:
            self.pulse_at = now + _PULSE_WHILE_PAUSED
            self._session.heartbeat_owed = True
        ask = self._tick_bytes(now)
        if self._tick_answers(now) or ask:
            self._session.outbox.event(HEARTBEAT_REQ)
        if self.heartbeat is not None:
            if self._paused:
                self.heartbeat.heard = True
            action = self.heartbeat.poll(now)
            if action is HeartbeatAction.SEND:
                self._session.outbox.event(HEARTBEAT_REQ)
            elif action is HeartbeatAction.GIVE_UP:
                self._session.fail_channel(
                    ConnectionFailed("the broker has been silent: too many heartbeats were missed")
                )
        if self._paused:
            self._moved = now
        self._tick_owed(now)

    def _tick_bytes(self, now: float) -> bool:
        """Return whether to ask the broker."""
        stage = self.bytes.enter_next(now)
        if stage is _Stage.REPORTED:
            self._silent_since = self.bytes.since
            self._begin(["silence"], now)
        elif stage is _Stage.GIVEN_UP:
            self._session.fail_channel(ConnectionFailed(_silent(now - self.bytes.since)))
        return stage is _Stage.ASKED

    def _tick_answers(self, now: float) -> bool:
        """Return whether to ask the broker."""
        answers, limit = self.answers, self._limit or 0.0
        if answers.deadline is not None and now - answers.deadline > limit * _ON_TIME:
            self._restart_answers(now)
        stage = answers.enter_next(now)
        if stage is _Stage.REPORTED and "silence" not in self.causes:
            self._begin(["answers"], now)
        elif stage is _Stage.GIVEN_UP:
            idle = self._received <= (now - answers.since) * _SLOWEST_LINE
            if idle and self._session.posts.bytes <= (now - self._answered) * _SLOWEST_LINE:
                self._session.fail_channel(ConnectionFailed(_unanswered(now - self._answered)))
            else:
                self._restart_answers(now)
        return stage is _Stage.ASKED

    def _restart_answers(self, now: float) -> None:
        """Count from now: until now, an answer could not have arrived."""
        self._received = 0
        self.answers.start(now)

    # posts and requests

    def requests_sent(self, now: float) -> None:
        """Record the time of sending of the fresh requests."""
        for request in self._session.requests.fresh:
            request.sent = now
        self._session.requests.fresh.clear()
        self._look_later(now)

    def look(self, now: float) -> None:
        """Examine posts and requests with the next :meth:`tick`."""
        if self._limit is not None:
            self.deadline = now

    def look_for_progress(self, now: float) -> None:
        """Examine posts and requests after received bytes; call this during a stall."""
        found = self._overdue(now)
        self._end([cause for cause in _OWED if cause not in found], now)

    def describe(self, now: float) -> Iterator[tuple[StallCause, str]]:
        """Describe the current state of each stall."""
        found = self._overdue(now)
        for cause in self.causes:
            if cause == "silence":
                yield cause, _silent(now - self._silent_since)
            elif cause == "answers":
                yield cause, _unanswered(now - self._answered)
            elif cause in found:
                yield cause, found[cause]

    def _look_later(self, now: float) -> None:
        """Examine posts and requests after half of the limit: output requiring an answer was sent."""
        if self._limit is not None:
            due = now + self._limit / 2
            if self.deadline is None or due < self.deadline:
                self.deadline = due

    def _tick_owed(self, now: float) -> None:
        if self.deadline is None or self._limit is None or now < self.deadline:
            return
        found = self._overdue(now)
        # A silent broker answers no post and no request either: report only the silence.
        mute = "silence" in self.causes or "answers" in self.causes
        new: list[StallCause] = [cause for cause in found if cause not in self.causes and not mute]
        if new and not self._doubted:
            self._doubted = True
            self.deadline = now + min(_LAST_TURN, self._limit / 20)
            return
        self._doubted = False
        self._begin(new, now)
        self._end([cause for cause in _OWED if cause not in found], now)
        owed = [max(oldest, queue.answered_at) for queue, oldest in self._session.posts.waiting().items()]
        request = self._session.requests.oldest()
        if request is not None:
            owed.append(request.sent)
        self.deadline = max(min(owed) + self._limit / 2, now + self._limit * _LEAST_PAUSE) if owed else None

    def _overdue(self, now: float) -> dict[StallCause, str]:
        """Describe the posts and requests without an answer for too long."""
        found: dict[StallCause, str] = {}
        if self._limit is None:
            return found
        since = now - self._limit / 2
        waiting = self._session.posts.waiting()
        stuck = [
            queue
            for queue, oldest in waiting.items()
            if queue.sending and max(oldest, queue.answered_at, self._moved) <= since
        ]
        if stuck:
            posts, oldest = sum(queue.unacked for queue in stuck), min(waiting[queue] for queue in stuck)
            where = stuck[0].uri_text if len(stuck) == 1 else f"{len(stuck):,} queues"
            which = "a post" if posts == 1 else f"the oldest of {posts:,} posts"
            found["posts"] = (
                f"{which} to {where} has been waiting for its acknowledgement for {_shown(now - oldest)}"
            )
        request = self._session.requests.oldest()
        if request is not None and max(request.sent, self._moved) <= since:
            about = "" if request.subject is None else request.subject.uri_text
            what = f"{request.kind.value} of {about}" if about else request.kind.value
            found["requests"] = f"the broker has not answered {what} for {_shown(now - request.sent)}"
        return found

    # reports

    def _begin(self, causes: Sequence[StallCause], now: float) -> None:
        new: list[StallCause] = [cause for cause in causes if cause not in self.causes]
        for cause in new:
            self.causes[cause] = now
        reasons = dict(self.describe(now)) if new else {}
        for cause in new:
            self._session.emit(Stalled(cause, reasons[cause]))

    def _end(self, causes: Sequence[StallCause], now: float) -> None:
        for cause in causes:
            begun = self.causes.pop(cause, None)
            if begun is not None:
                self._session.emit(StallOver(cause, now - begun))


def _silent(seconds: float) -> str:
    return f"the broker has been silent for {_shown(seconds)}"


def _unanswered(seconds: float) -> str:
    return f"the broker has not answered for {_shown(seconds)}, not even a heartbeat"


def _shown(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
