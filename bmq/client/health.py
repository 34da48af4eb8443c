# SPDX-License-Identifier: Apache-2.0
"""The health of a session, and of the host; an unhealthy host can suspend queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypedDict

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
    Stalled,
    StallOver,
    StateRestored,
)

__all__ = ["Ages", "HandlerReport", "Health", "HealthWatch", "HostHealth", "HostHealthMonitor", "Trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem of a session.

    Attributes:
        what: description in a sentence.
        since: start of the problem, in UTC.
        serious: whether the problem makes the session not ready; otherwise the session is degraded.
    """

    what: str
    since: datetime
    serious: bool


@dataclass(frozen=True, slots=True)
class HandlerReport:
    """How a handler is.

    Attributes:
        trouble: the present problem, if any.
        blocked: whether no message is handled before a retry or a confirmation.
        failing_seconds: time since the first failure since the latest success; 0 after a success.
        oldest: the message that the handler has been at for the longest time.
    """

    trouble: Trouble | None
    blocked: bool = False
    failing_seconds: float = 0.0
    oldest: object = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a session; see :meth:`bmq.Session.health`.

    Attributes:
        ready: whether work gets done: the session is connected, all queues are open, and handlers get
            messages and succeed.
        degraded: whether the session is ready, but has problems.
        troubles: problems, the oldest first.
        since: start of the present state (ready, degraded, or not ready), in UTC.
        silent_seconds: time since the last byte from the broker, not counting heartbeat requests. None
            without a connection, while the session pauses reading because the application is too slow, and if
            ``liveness`` is None.
        oldest_unacked_seconds: age of the oldest post without an outcome, or None.
        oldest_unconfirmed_seconds: time since the arrival of the oldest unconfirmed message on the present
            connection, or None. May be too low after messages have moved between consumers. Never makes a
            session degraded: some applications hold messages on purpose.
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
    """Ages in seconds of a session's oldest pending post, message and byte; see :class:`Health`."""

    silent_seconds: float | None
    oldest_unacked_seconds: float | None
    oldest_unconfirmed_seconds: float | None


class HealthWatch:
    """Judges a session: by its events, and by the handlers of its messages.

    This is the only place that decides whether work gets done.

    Attributes:
        handlers: by consumer, functions that report how its handler is.
    """

    def __init__(self) -> None:
        self.handlers: dict[Any, Callable[[], HandlerReport]] = {}
        # By kind and subject.
        self._troubles: dict[tuple[str, str], Trouble] = {}
        self._level = 0
        self._since = _world.now()
        self._begin("connection", "", "not connected yet")

    def report(self, ages: Ages, stalls: Mapping[str, str]) -> Health:
        """Return the health of the session.

        Args:
            ages: present ages of the session.
            stalls: present stalls, by cause, with descriptions.
        """
        for cause, what in stalls.items():
            trouble = self._troubles.get(("stalled", cause))
            if trouble is not None:
                self._troubles["stalled", cause] = replace(trouble, what=what)
        found = [*self._troubles.values()]
        if ("connection", "") not in self._troubles:  # the cause of everything else
            found += [each for handler in self.handlers.values() if (each := handler().trouble) is not None]
        troubles = tuple(sorted(found, key=lambda each: each.since))
        level = max((1 + trouble.serious for trouble in troubles), default=0)
        if level > self._level:
            self._since = next(each.since for each in troubles if 1 + each.serious == level)
        elif level < self._level:
            self._since = _world.now()
        self._level = level
        return Health(level < 2, level == 1, troubles, self._since, **ages)

    def note(self, event: SessionEvent) -> None:
        """Process an event."""
        match event:
            case Connected() | StateRestored():
                self._end("connection")
            case Stalled(cause, reason):
                self._begin("stalled", cause, reason)
            case StallOver(cause):
                self._end("stalled", cause)
            case ConnectionLost(reason):
                self._end_all("stalled", "delayed")
                self._begin("connection", "", f"the connection was lost: {reason}")
            case Reconnected():
                self._begin("connection", "", "the connection is restored, and queues are being opened again")
            case Disconnected(reason):
                self._end_all("stalled", "delayed")
                self._begin("connection", "", f"the session is over{': ' if reason else ''}{reason}")
            case SlowConsumer(messages):
                self._begin(
                    "slow", "", f"the application does not keep up: {messages:,} messages were waiting"
                )
            case SlowConsumerRecovered():
                self._end("slow")
            case QueueSuspended(uri):
                self._begin("suspended", uri, f"{uri} is suspended: the host is unhealthy")
            case QueueResumed(uri):
                self._end("suspended", uri)
            case QueueReopenDelayed(uri, error):
                self._begin("delayed", uri, f"{uri} could not be reopened yet, trying again: {error}")
            case QueueReopened(uri):
                self._end("delayed", uri)
            case QueueReopenFailed(uri, error):
                self._end("delayed", uri)
                self._begin("closed", uri, f"{uri} could not be reopened, and is closed: {error}")
            case _:
                pass

    def opened(self, uri: str) -> None:
        """Record a queue opened by the application."""
        self._end("closed", uri)

    def closed(self, uri: str, *, delayed: bool) -> None:
        """Record a queue closed by the application.

        Args:
            uri: URI of the queue.
            delayed: whether another queue with this URI waits to be reopened.
        """
        if not delayed:
            self._end("delayed", uri)
        self._end("suspended", uri)

    def _begin(self, kind: str, subject: str, what: str) -> None:
        key = kind, subject
        before = self._troubles.get(key)
        since = before.since if before else _world.now()
        self._troubles[key] = Trouble(what, since, serious=kind == "connection")
        self._look(since)  # only a new trouble changes the level

    def _end(self, kind: str, subject: str = "") -> None:
        if self._troubles.pop((kind, subject), None) is not None:
            self._look()

    def _end_all(self, *kinds: str) -> None:
        self._troubles = {key: each for key, each in self._troubles.items() if key[0] not in kinds}
        self._look()

    def _look(self, now: datetime | None = None) -> None:
        level = max((1 + trouble.serious for trouble in self._troubles.values()), default=0)
        if level != self._level:
            self._level, self._since = level, now or _world.now()


class HostHealthMonitor(Protocol):
    """A source of this host's health.

    The iterator yields the present state first, and afterwards each change: True for healthy. An async
    generator function, called once for each session, is enough::

        async def disk_space():
            while True:
                yield shutil.disk_usage("/").free > 1 << 30
                await asyncio.sleep(10)
    """

    def __aiter__(self) -> AsyncIterator[bool]:
        """Iterate over the states."""
        ...


class HostHealth:
    """A :class:`HostHealthMonitor` with a state set by the application. Several sessions may share it.

    Args:
        healthy: initial state.
    """

    def __init__(self, healthy: bool = True) -> None:
        self._healthy = healthy
        self._changed: list[asyncio.Event] = []

    @property
    def healthy(self) -> bool:
        """The present state."""
        return self._healthy

    def set(self, healthy: bool) -> None:
        """Change the state. Call this method in the event loop of the sessions."""
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
