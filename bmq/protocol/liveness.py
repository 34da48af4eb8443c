# SPDX-License-Identifier: Apache-2.0
"""Liveness: a silent or unresponsive peer is queried, then reported, then given up.

A connection can die without notice: a firewall drops packets, or the peer's process hangs. The operating
system detects neither for minutes or hours, and a broker's heartbeats are off unless enabled by the operator.
The client therefore sends heartbeat requests: a broker answers every HEARTBEAT_REQ, regardless of
configuration.

One period of silence passes through four stages, each entered by a call of :meth:`Liveness.poll`:

=========  ==================  =================================================
stage      entered after       on entry
=========  ==================  =================================================
LISTENING  the last byte
ASKED      1/3 of the limit    a HEARTBEAT_REQ is sent
QUIET      1/2 of the limit    the silence is reported
DOUBTED    the whole limit     the event loop gets one more turn to read
=========  ==================  =================================================

**A poll enters at most one stage, and at least half of the limit passes between the request and the
verdict.** A blocked event loop, or a stopped process, polls late: bytes received meanwhile are still in the
socket, and the request may not even be written. A rule based on the clock alone would give up a healthy
broker. With this rule the broker always has time to answer, and between the last two polls the loop reads. A
repeatedly blocked loop still reaches the verdict, later.

**A sending peer may still receive no bytes**: a middlebox acknowledges the client's bytes and drops them,
while messages continue to arrive. :class:`Answers` queries a sending peer too, with the same stages; only
answers count. A missing answer is weaker evidence than silence, because the answer may be in flight behind a
backlog: on a slow line, a full window takes minutes. The verdict requires a line with room to spare. If the
bytes received since the last answer, or the unacknowledged posts, would keep a line of 8 KiB/s busy, a
missing answer is only reported. Rejected alternatives: a verdict based on the clock alone drops slow lines,
only to receive the same backlog again; the size of the window is no evidence, because a peer without
confirmations stops within the window, and becomes silent.
"""

from __future__ import annotations

from enum import IntEnum

from bmq.protocol.heartbeat import Pulse

__all__ = ["Answers", "Liveness"]

# Fractions of the limit after which a silent peer is queried, and reported.
_ASK_AFTER = 1 / 3
_QUIET_AFTER = 1 / 2
# Minimum fraction of the limit between a request and the report.
_ANSWER_WITHIN = 1 / 10
# Length of the last turn to read, in seconds; a twentieth for shorter limits.
_LAST_TURN = 0.01
# Bytes per second. A slower flow leaves room on every line in use: no answer waits behind a backlog.
_SLOWEST_LINE = 8 * 1024
# Fraction of the limit by which a poll may be late; after a later poll, the event loop is to blame.
_ON_TIME = 1 / 4


class _Stage(IntEnum):
    LISTENING = 0
    ASKED = 1
    QUIET = 2
    DOUBTED = 3


class Liveness:
    """Watches the silence of a connection.

    Args:
        limit: seconds without a byte after which the peer is given up.
        now: the time.

    Attributes:
        limit: seconds without a byte after which the peer is given up.
        heard: time of the last arrived bytes, to be set on each arrival.
        deadline: time to call :meth:`poll`; None while paused, and after the verdict.
    """

    __slots__ = ("_asked", "_noted", "_stage", "deadline", "heard", "limit")

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.heard = now
        self.deadline: float | None = None
        self._noted = self._asked = now
        self._stage = _Stage.LISTENING
        self.resume(now)

    @property
    def quiet(self) -> bool:
        """Whether the silence has lasted for half of the limit, with an unanswered request."""
        return self._stage >= _Stage.QUIET and self.heard <= self._noted

    @property
    def _last_turn(self) -> float:
        return min(_LAST_TURN, self.limit / 20)

    def pause(self) -> None:
        """Stop the watch while reading is paused: silence is no evidence about the peer."""
        self._stage = _Stage.LISTENING
        self.deadline = None

    def resume(self, now: float) -> None:
        """Resume the watch with reading: silence counts from now on."""
        self.heard = self._noted = now
        self._stage = _Stage.LISTENING
        self.deadline = now + self.limit * _ASK_AFTER

    def relax(self, now: float) -> None:
        """Return from ASKED to LISTENING after an answer.

        A poll would do the same at the end of the stage. Without the stage, the timer of an idle session has
        no reason to run then.
        """
        if self._stage is _Stage.ASKED:
            self.resume(now)

    def poll(self, now: float) -> Pulse:
        """Return the action due at ``now``; no action before the deadline."""
        if self.deadline is None or now < self.deadline:
            return Pulse.NOTHING
        if self.heard > self._noted:
            self._noted = self.heard
            self._stage = _Stage.LISTENING
            self.deadline = self.heard + self.limit * _ASK_AFTER
            if now < self.deadline:
                return Pulse.NOTHING
        match self._stage:
            case _Stage.LISTENING:
                self._stage = _Stage.ASKED
                self._asked = now
                self.deadline = max(self.heard + self.limit * _QUIET_AFTER, now + self.limit * _ANSWER_WITHIN)
                return Pulse.SEND
            case _Stage.ASKED:
                self._stage = _Stage.QUIET
                end = max(self.heard + self.limit, self._asked + self.limit * _QUIET_AFTER)
                self.deadline = max(end, now + self._last_turn)
                return Pulse.QUIET
            case _Stage.QUIET:
                self._stage = _Stage.DOUBTED
                self.deadline = now + self._last_turn
                return Pulse.NOTHING
            case _Stage.DOUBTED:
                self.deadline = None
                return Pulse.DEAD


class Answers(Liveness):
    """Watches for answers on a connection, while the peer sends other bytes.

    An answer is two assignments by the owner, because every acknowledgement is an answer:
    ``answered`` is the time, and ``received`` is 0.

    Args:
        limit: seconds without an answer after which the peer is given up, if the line has room to spare.
        now: the time.

    Attributes:
        answered: when the last answer arrived: an acknowledgement, a response, or a heartbeat response.
        received: bytes received since the clock was started; to be counted by the owner.
        unacked: bytes of the unacknowledged posts, possibly ahead of a request; to be set before a poll.
    """

    __slots__ = ("_started", "answered", "received", "unacked")

    def __init__(self, limit: float, now: float) -> None:
        super().__init__(limit, now)
        self.answered = now
        self.unacked = 0

    def resume(self, now: float) -> None:
        """Start the clock again: until now, an answer could not have arrived."""
        self._started = now
        self.received = 0
        super().resume(now)

    def poll(self, now: float) -> Pulse:
        """Return the action due at ``now``; no action before the deadline."""
        if self.answered > self._started:
            self._started = self.heard = self.answered
        if self.deadline is None or now < self.deadline:
            return Pulse.NOTHING
        if now - self.deadline > self.limit * _ON_TIME:
            self.resume(now)
            return Pulse.NOTHING
        pulse = super().poll(now)
        if pulse is Pulse.DEAD and not self._room_to_spare(now):
            self.resume(now)
            return Pulse.NOTHING
        return pulse

    def _room_to_spare(self, now: float) -> bool:
        return (
            self.received <= (now - self._started) * _SLOWEST_LINE
            and self.unacked <= (now - self.answered) * _SLOWEST_LINE
        )
