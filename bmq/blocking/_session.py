# SPDX-License-Identifier: Apache-2.0
"""Sessions for threads."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import ssl as ssl_module
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from threading import get_ident
from typing import Any, Unpack

from bmq import _checks
from bmq._live import live
from bmq.blocking._calls import SessionCalls
from bmq.blocking._portal import FOR_THE_END, Portal, current_portal, forget_portal
from bmq.blocking._queue import Queue
from bmq.blocking._receive import waiting_for
from bmq.client.connect import connect as _connect
from bmq.client.connect import time_to_connect
from bmq.client.health import HostHealthMonitor
from bmq.client.interceptors import Interceptor
from bmq.client.options import Credentials, CredentialsSource, SessionFields, SessionOptions
from bmq.client.queue import Queue as _Queue
from bmq.client.session import CloseReport, close_left_open
from bmq.client.session import Session as _Session
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import SessionEvent

__all__ = ["Open", "Session", "connect"]

#: Opens a queue with subscriptions.
Open = Callable[[list[Any]], Coroutine[Any, Any, _Queue]]

# Timeout for closing a session that the program did not close, in seconds.
_ABANDONED = 0.5
# Maximum time in seconds to wait for the thread at the end of the process.
_AT_EXIT = 2.0
# The sessions of this process that may be open.
_sessions: weakref.WeakKeyDictionary[Session, None] = weakref.WeakKeyDictionary()
# Objects inherited from the parent process by a fork, which must not even be finalized.
_inherited: list[object] = []


def connect(
    broker: str | None = None,
    *,
    credentials: CredentialsSource | None = None,
    ssl: ssl_module.SSLContext | None = None,
    server_hostname: str | None = None,
    on_event: Callable[[SessionEvent], None] | None = None,
    host_health: HostHealthMonitor | None = None,
    interceptors: Iterable[Interceptor] = (),
    options: SessionOptions | None = None,
    **fields: Unpack[SessionFields],
) -> Session:
    """Connect to a broker: ``with bmq.blocking.connect(uri) as session``.

    The arguments are those of :class:`bmq.connect`. ``on_event``, ``host_health`` and interceptors are called
    in the session's thread: they must be fast, and cannot use the session. A callable for ``credentials`` may
    block.

    Raises:
        ConnectionFailed: no address answered within ``connect_timeout``.
        NegotiationError: the broker refused the session.
        AuthenticationError: the broker refused the credentials.
        InvalidURI, UsageError: an argument is not legal.

    Interrupting the call (Ctrl-C) closes the connection again.
    """
    connecting = _connect(
        broker,
        credentials=_off_the_loop(credentials),
        ssl=ssl,
        server_hostname=server_hostname,
        on_event=on_event,
        host_health=host_health,
        interceptors=interceptors,
        options=options,
        **fields,
    )
    portal = current_portal()
    session = portal.wait(
        connecting.__aenter__,
        timeout=time_to_connect(connecting),
        undo=lambda session: portal.watch(portal.loop.create_task(session.close(0))),
    )
    return Session(portal, session)


def _off_the_loop(source: CredentialsSource | None) -> CredentialsSource | None:
    """Run a credentials function in a thread, so that it may block."""
    if source is None or isinstance(source, Credentials) or inspect.iscoroutinefunction(source):
        return source

    async def ask() -> Credentials:
        found = await asyncio.to_thread(source)
        return found if isinstance(found, Credentials) else await found

    return ask


@live
class Session(SessionCalls):
    """A session with a broker, like :class:`bmq.Session`. Created by :func:`connect`.

    All threads of the process may use a session, several at the same time. A session belongs to its process:
    in a forked child, each use raises :class:`bmq.UsageError`, except for closing, which has no effect there.
    """

    def __init__(self, portal: Portal, session: _Session) -> None:
        self._portal = portal
        self._inner = session
        self._queues: dict[_Queue, Queue] = {}
        _sessions[self] = None

    def close(self, timeout: float | None = None) -> CloseReport:
        """Close the session in an orderly way, as :meth:`bmq.Session.close` does. Idempotent.

        Threads inside ``with message`` finish first, except for the calling thread. Threads that wait for
        messages receive :class:`bmq.QueueClosed`, and loops end.

        Args:
            timeout: seconds for all steps; None for ``disconnect_timeout``, 0 to give up at once.

        Returns:
            The work left at the timeout.

        Interrupting the call does not stop the closing, which continues in the background.
        """
        closer = get_ident()

        async def close() -> CloseReport:
            async with waiting_for([queue._held for queue in self._queues.values()], closer):
                return await self._inner.close(timeout)

        if self._portal.forked or self._portal.over:
            return CloseReport()
        limit = self.options.disconnect_timeout if timeout is None else timeout
        return self._portal.wait(close, timeout=limit + FOR_THE_END)

    def __del__(self) -> None:
        if hasattr(self, "_queues"):
            self._abandon()

    def _abandon(self) -> None:
        """Close a session that was garbage-collected, or that is open at the end of the process."""
        portal, session = self._portal, self._inner
        if portal.forked or session.state is SessionState.CLOSED:
            return
        try:
            warnings.warn(
                f"{self!r} was never closed: use 'with bmq.blocking.connect(...)' or 'session.close()'",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )
        finally:
            # Not here: garbage may be collected in any thread.
            portal.soon(_close_abandoned, portal, session)

    def _inherit(self, nothing: int) -> None:
        """Let go of the parent's connection, in the child of a fork.

        Args:
            nothing: the file descriptor of the null device.
        """
        # Do not close the descriptor object: it would later close an unrelated file with the same number.
        if (number := self._inner.fileno()) >= 0:
            os.dup2(nothing, number, inheritable=False)
        for queue in self._queues.values():
            queue._forget()
        _inherited.append(self._inner)

    def _open(self, open_queue: Open, subscriptions: Iterable[Any], timeout: float | None) -> Queue:
        """Open a queue; after an interruption it is closed again."""
        given: list[Any] = _checks.items("subscriptions", subscriptions, "bmq.Subscription and expressions")
        queue = self._portal.wait(
            lambda: open_queue(given),
            timeout=self.options.open_timeout if timeout is None else timeout,
            undo=lambda queue: self._portal.watch(self._portal.loop.create_task(queue.close())),
        )
        for each in [each for each in list(self._queues) if each.closed]:
            self._queues.pop(each, None)
        made = self._queues[queue] = Queue(self, queue, len(given))
        return made

    def _queue_of(self, queue: _Queue) -> Queue:
        """Return the blocking side of a queue."""
        return self._queues.get(queue) or self._queues.setdefault(queue, Queue(self, queue))


def _close_abandoned(portal: Portal, session: _Session) -> None:
    portal.watch(close_left_open(session, _ABANDONED))


# the end of the process, and forks


def _end() -> None:
    portal = forget_portal()
    if portal is not None:
        try:
            for session in list(_sessions):
                session._abandon()
        finally:
            portal.end(_AT_EXIT)


def _forked() -> None:
    """In a forked child, release the parent's connections; a new event loop is created when needed."""
    portal = forget_portal()
    if portal is None:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for session in list(_sessions):
        session._inherit(nothing)
    os.close(nothing)
    _inherited.append(portal)
    _sessions.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
