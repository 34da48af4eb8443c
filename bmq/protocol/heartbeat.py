# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of the broker's configuration: detection of a silent peer, by both roles."""

from __future__ import annotations

from enum import Enum

__all__ = ["Heartbeat", "HeartbeatAction"]


class HeartbeatAction(Enum):
    """The action due at a heartbeat timer."""

    NOTHING = "nothing"
    SEND = "send a HEARTBEAT_REQ"
    GIVE_UP = "the peer missed too many: close the connection"


class Heartbeat:
    """Counts intervals without an event.

    After each ``interval``: if an event has arrived since the previous check, the count restarts. Otherwise
    the interval counts as missed, and a request is due. After ``max_missed`` silent intervals, the next
    silent interval means that the peer is gone.

    Args:
        interval: seconds between two checks.
        max_missed: number of tolerated silent intervals; 0 or less disables the timer.
        now: the time.
        grace: silent intervals before the first event that do not count (brokers allow three minutes).

    Attributes:
        heard: whether an event has arrived; set by the owner.
    """

    __slots__ = ("_missed", "deadline", "heard", "interval", "max_missed")

    def __init__(self, interval: float, max_missed: int, now: float, *, grace: int = 0) -> None:
        self.interval = interval
        self.max_missed = max_missed
        self._missed = -grace
        self.heard = False
        #: Time of the next :meth:`poll`, or None.
        self.deadline: float | None = now + interval if max_missed > 0 and interval > 0 else None

    def poll(self, now: float) -> HeartbeatAction:
        """Return the action due at ``now``; before the deadline none is due."""
        if self.deadline is None or now < self.deadline:
            return HeartbeatAction.NOTHING
        self.deadline = now + self.interval
        if self.heard:
            self.heard = False
            self._missed = 0
            return HeartbeatAction.NOTHING
        if self._missed >= self.max_missed:
            self.deadline = None
            return HeartbeatAction.GIVE_UP
        self._missed += 1
        return HeartbeatAction.SEND
