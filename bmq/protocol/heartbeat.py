# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: noticing a peer that has gone silent."""

from __future__ import annotations

from enum import Enum

__all__ = ["Heartbeat", "Pulse"]


class Pulse(Enum):
    """What a heartbeat timer asks for."""

    NOTHING = "nothing"
    SEND = "send a HEARTBEAT_REQ"
    QUIET = "the peer is silent, and was asked: report it"
    DEAD = "the peer missed too many: close the connection"


class Heartbeat:
    """Counts the intervals in which nothing arrived.

    Every ``interval`` seconds: if any event arrived since the last time, all is well; otherwise one more
    interval was missed and a request is sent. A silent interval after ``max_missed`` of them means the peer
    is gone.

    Args:
        interval: seconds between two checks.
        max_missed: how many silent intervals are tolerated; 0 or less turns the timer off.
        now: the time.
        grace: silent intervals that do not count, at the start (brokers allow three minutes' worth).

    Attributes:
        heard: whether anything arrived; to be set whenever something does.
    """

    __slots__ = ("_missed", "deadline", "heard", "interval", "max_missed")

    def __init__(self, interval: float, max_missed: int, now: float, *, grace: int = 0) -> None:
        self.interval = interval
        self.max_missed = max_missed
        self._missed = -grace
        self.heard = False
        #: When :meth:`poll` is to be called, or None.
        self.deadline: float | None = now + interval if max_missed > 0 and interval > 0 else None

    def poll(self, now: float) -> Pulse:
        """Return what to do at ``now``; nothing before the deadline."""
        if self.deadline is None or now < self.deadline:
            return Pulse.NOTHING
        self.deadline = now + self.interval
        if self.heard:
            self.heard = False
            self._missed = min(self._missed, 0)
            return Pulse.NOTHING
        if self._missed >= self.max_missed:
            self.deadline = None
            return Pulse.DEAD
        self._missed += 1
        return Pulse.SEND
