# SPDX-License-Identifier: Apache-2.0
"""Statistics in the log: a line at each interval while the session runs, and a last line at its end.

Stands on the public session alone: its events and :meth:`bmq.Session.stats`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from bmq._logging import Log
from bmq.client.stats import SessionStats
from bmq.protocol.client.events import Connected, Disconnected, SessionEvent

if TYPE_CHECKING:
    from bmq.client.session import Session

__all__ = ["StatsLog", "stats_line"]

logger = Log("bmq.stats", later=True)


def stats_line(stats: SessionStats) -> str:
    """Return statistics as one line; names and order stay within a minor release."""
    ack = stats.ack_seconds.quantile(0.5)
    values: dict[str, object] = {
        "queues": stats.queues,
        "posted": stats.posted,
        "acknowledged": stats.acknowledged,
        "refused": sum(stats.refused.values()),
        "retransmitted": stats.retransmitted,
        "unacked": stats.unacked_messages,
        "received": stats.received,
        "confirmed": stats.confirmed,
        "redelivered": stats.redelivered,
        "unconfirmed": stats.unconfirmed,
        "buffered": stats.buffered_messages,
        "bytes_sent": stats.bytes_sent,
        "bytes_received": stats.bytes_received,
        "reconnects": stats.reconnects,
        "seconds_disconnected": f"{stats.seconds_disconnected:.3f}",
        "ack_seconds_p50": "-" if ack is None else f"{ack:.6f}",
    }
    return " ".join(f"{name}={value}" for name, value in values.items())


class StatsLog:
    """Logs the statistics of one session. Keeps neither the session nor its event loop alive.

    Args:
        session: the session.
        every: seconds between two lines.
        on_event: the application's callback for session events, called first.
    """

    def __init__(
        self, session: Session, every: float, on_event: Callable[[SessionEvent], None] | None
    ) -> None:
        self._session = weakref.ref(session)
        self._every = every
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, event: SessionEvent) -> None:
        """Begin at the first connection, and end with the session."""
        try:
            if self._on_event is not None:
                self._on_event(event)
        finally:
            self._note(event)

    def _note(self, event: SessionEvent) -> None:
        if isinstance(event, Connected):
            if self._timer is None:
                self._wait()
        elif isinstance(event, Disconnected):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._log("final statistics")

    def _wait(self) -> None:
        this: weakref.ref[StatsLog] = weakref.ref(self)
        self._timer = self._loop.call_later(self._every, _again, this)

    def again(self) -> None:
        """Log a line, and wait for the next."""
        if self._log("statistics"):
            self._wait()

    def _log(self, what: str) -> bool:
        session = self._session()
        if session is None:
            return False
        stats, address = session.stats(), session.address
        logger.info(
            "%s of the session with %s: %s",
            what,
            address,
            stats_line(stats),
            extra={"broker": address, "statistics": stats},
        )
        return True


def _again(log: weakref.ref[StatsLog]) -> None:
    alive = log()
    if alive is not None:
        alive.again()
