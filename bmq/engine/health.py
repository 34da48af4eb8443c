# SPDX-License-Identifier: Apache-2.0
"""Health: that of a session, and that of its host, which suspends queues that want it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypedDict, get_args

from bmq import _world
from bmq.protocol.client.events import (
    Connected,
    ConnectionLost,
    Disconnected,
    QueueReopenDelayed,
    QueueReopened,
    QueueReopenFailed,
    QueueResumed,
    QueueSuspended,
    Reconnected,
    SessionEvent,
    SlowConsumer,
    SlowConsumerRecovered,
    StallCause,
    Stalled,
    StallOver,
    StateRestored,
)

__all__ = ["Ages", "Health", "HealthWatch", "HostHealth", "HostHealthMonitor", "Trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is not as it should be.

    Attributes:
        what: a sentence for people.
        since: since when, in UTC.
        serious: whether the session is not ready because of it; else it is degraded.
    """

    what: str
    since: datetime
    serious: bool


@dataclass(frozen=True, slots=True)
class Health:
    """How a session is; see :meth:`bmq.Session.health`.

    Attributes:
        ready: it is connected, and its queues are open.
        degraded: it is ready, but something is not as it should be.
        troubles: what is not, the oldest first.
        since: since when it has been like this (ready, degraded, or not ready), in UTC.
        silent_seconds: the time since the last byte from the broker, its heartbeat requests aside; None while
            there is no connection, while the session itself does not read because the application does not
            keep up, and where ``liveness`` is None.
        oldest_unacked_seconds: the age of the oldest post without outcome; None if there is none.
        oldest_unconfirmed_seconds: the time since the arrival of the oldest message of the present connection
            that is not confirmed; None if there is none. After messages have moved between consumers
            it may be less. It makes no session degraded: some applications hold messages on purpose.
    """

    ready: bool
    degraded: bool
    troubles: tuple[Trouble, ...]
    since: datetime
    silent_seconds: float | None = None
    oldest_unacked_seconds: float | None = None
    oldest_unconfirmed_seconds: float | None = None

    def __str__(self) -> str:
        how = "degraded" if self.degraded else "ready" if self.ready else "not ready"
        why = "; ".join(trouble.what for trouble in self.troubles)
        return f"{how}: {why}" if why else how


class Ages(TypedDict):
    """The ages of the oldest things that a session waits for, in seconds; see :class:`Health`."""

    silent_seconds: float | None
    oldest_unacked_seconds: float | None
    oldest_unconfirmed_seconds: float | None


class HealthWatch:
    """Concludes from a session's events how it is."""

    def __init__(self) -> None:
        self._troubles: dict[Hashable, Trouble] = {}
        # The troubles of queues that wait to be reopened, or did on this connection.
        self._delays: dict[Hashable, None] = {}
        self._level = 0
        self._since = _world.now()
        self._begin("connection", "not connected yet")

    def report(self, ages: Ages, stalls: Mapping[str, str]) -> Health:
        """Return how the session is.

        Args:
            ages: its ages at this moment.
            stalls: what has stalled, by cause, in words that fit this moment.
        """
        for cause, what in stalls.items():
            trouble = self._troubles.get(("stalled", cause))
            if trouble is not None:
                self._troubles["stalled", cause] = replace(trouble, what=what)
        troubles = tuple(sorted(self._troubles.values(), key=lambda each: each.since))
        return Health(self._level < 2, self._level == 1, troubles, self._since, **ages)

    def note(self, event: SessionEvent) -> None:
        """Take an event."""
        match event:
            case Connected() | StateRestored():
                self._end("connection")
            case Stalled(cause, reason):
                self._begin(("stalled", cause), reason, False)
            case StallOver(cause):
                self._end(("stalled", cause))
            case ConnectionLost(reason):
                self._end_stalls()
                self._end_delays()
                self._begin("connection", f"the connection was lost: {reason}")
            case Reconnected():
                self._begin("connection", "the connection is restored, and queues are being opened again")
            case Disconnected(reason):
                self._end_stalls()
                self._end_delays()
                self._begin("connection", f"the session is over{': ' if reason else ''}{reason}")
            case SlowConsumer(messages):
                self._begin(
                    "slow", f"the application does not keep up: {messages:,} messages waited for it", False
                )
            case SlowConsumerRecovered():
                self._end("slow")
            case QueueSuspended(uri):
                self._begin(("suspended", uri), f"{uri} is suspended: the host is unhealthy", False)
            case QueueResumed(uri):
                self._end(("suspended", uri))
            case QueueReopenDelayed(uri, error):
                self._delays["delayed", uri] = None
                self._begin(("delayed", uri), f"{uri} is not open again yet, tried again: {error}", False)
            case QueueReopened(uri):
                self._end(("delayed", uri))
            case QueueReopenFailed(uri, error):
                self._end(("delayed", uri))
                self._begin(("closed", uri), f"{uri} was not opened again, and is closed: {error}", False)
            case _:
                pass

    def opened(self, uri: str) -> None:
        """The application has opened a queue."""
        self._end(("closed", uri))

    def closed(self, uri: str, *, delayed: bool) -> None:
        """The application has closed a queue.

        Args:
            uri: the queue's.
            delayed: whether another queue of this URI waits to be reopened.
        """
        if not delayed:
            self._end(("delayed", uri))
        self._end(("suspended", uri))

    def hung(self, workers: object, what: str | None) -> None:
        """Some workers wait for threads that go on after their deadline.

        Args:
            workers: identifies the workers.
            what: a sentence for people; None: they wait no longer.
        """
        if what is None:
            self._end(("hung", workers))
        else:
            self._begin(("hung", workers), what, False)

    def _begin(self, key: Hashable, what: str, serious: bool = True) -> None:
        before = self._troubles.get(key)
        self._troubles[key] = Trouble(what, before.since if before else _world.now(), serious)
        self._look()

    def _end(self, key: Hashable) -> None:
        if self._troubles.pop(key, None) is not None:
            self._look()

    def _end_stalls(self) -> None:
        for cause in get_args(StallCause):
            self._end(("stalled", cause))

    def _end_delays(self) -> None:
        for key in self._delays:
            self._end(key)
        self._delays.clear()

    def _look(self) -> None:
        level = max((1 + trouble.serious for trouble in self._troubles.values()), default=0)
        if level != self._level:
            self._level, self._since = level, _world.now()


class HostHealthMonitor(Protocol):
    """Says whether this host is healthy.

    Iterating yields the present state first and then every change: True for healthy. An async generator
    function is enough, called once for each session::

        async def disk_space():
            while True:
                yield shutil.disk_usage("/").free > 1 << 30
                await asyncio.sleep(10)
    """

    def __aiter__(self) -> AsyncIterator[bool]:
        """Iterate over the states."""
        ...


class HostHealth:
    """A :class:`HostHealthMonitor` that is set by the application; several sessions may share it.

    Args:
        healthy: the state to begin with.
    """

    def __init__(self, healthy: bool = True) -> None:
        self._healthy = healthy
        self._changed: list[asyncio.Event] = []

    @property
    def healthy(self) -> bool:
        """The present state."""
        return self._healthy

    def set(self, healthy: bool) -> None:
        """Change the state; call it in the event loop of the sessions."""
        self._healthy = healthy
        for event in self._changed:
            event.set()

    def __repr__(self) -> str:
        return f"<bmq.HostHealth {'healthy' if self._healthy else 'unhealthy'}>"

    async def __aiter__(self) -> AsyncIterator[bool]:
        event = asyncio.Event()
        self._changed.append(event)
        try:
            while True:
                event.clear()
                yield self._healthy
                await event.wait()
        finally:
            self._changed.remove(event)
