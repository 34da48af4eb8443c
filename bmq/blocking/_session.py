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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from bmq import _checks
from bmq._live import live
from bmq.blocking._handlers import waiting_for
from bmq.blocking._line import following
from bmq.blocking._portal import FOR_THE_END, Portal, current_portal, forget_portal
from bmq.blocking._queue import Queue
from bmq.client.connect import connect as _connect
from bmq.client.connect import time_to_connect
from bmq.client.consumer import Subscription
from bmq.client.health import Health, HostHealthMonitor
from bmq.client.interceptors import Interceptor
from bmq.client.options import Credentials, CredentialsSource, SessionFields, SessionOptions, Trace
from bmq.client.queue import DEFAULT_MAX_UNCONFIRMED_BYTES, DEFAULT_MAX_UNCONFIRMED_MESSAGES
from bmq.client.queue import Queue as _Queue
from bmq.client.session import CloseReport, close_left_open
from bmq.client.session import Session as _Session
from bmq.client.stats import SessionStats
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import SessionEvent
from bmq.wire.constants import Compression

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._end import QueueEnd
    from bmq.subscriptions import ExpressionInput

__all__ = ["Session", "connect"]

# Timeout for closing a session that the program did not close, in seconds.
_ABANDONED = 0.5
# The sessions of this process that may be open.
_sessions: weakref.WeakKeyDictionary[Session, _Abandoned] = weakref.WeakKeyDictionary()
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
    session = portal.run(
        connecting.__aenter__,
        timeout=time_to_connect(connecting),
        undo=lambda session: portal.keep(session.close(0)),
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
class Session:
    """A session with a broker, like :class:`bmq.Session`. Created by :func:`connect`.

    All threads of the process may use a session, several at the same time. A session belongs to its process:
    in a forked child, each use raises :class:`bmq.UsageError`, except for closing, which has no effect there.
    """

    def __init__(self, portal: Portal, session: _Session) -> None:
        self._portal = portal
        self._session = session
        self._queues: dict[_Queue, Queue] = {}
        self._abandoned = _sessions[self] = _Abandoned(portal, session, self._queues)

    # life cycle

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
            async with waiting_for([queue._end.handlers for queue in self._queues.values()], closer):
                return await self._session.close(timeout)

        if self._portal.forked or self._portal.over:
            return CloseReport()
        limit = self.options.disconnect_timeout if timeout is None else timeout
        return self._portal.run(close, timeout=limit + FOR_THE_END)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_abandoned"):
            self._abandoned.close(self)

    def __repr__(self) -> str:
        return f"<bmq.blocking.Session with {self.address}, {self.state.value}>"

    # queues

    def open_queue(
        self,
        uri: str,
        *,
        read: bool = False,
        write: bool = False,
        priority: int = 0,
        max_unconfirmed_messages: int = DEFAULT_MAX_UNCONFIRMED_MESSAGES,
        max_unconfirmed_bytes: int = DEFAULT_MAX_UNCONFIRMED_BYTES,
        suspends_on_bad_host_health: bool = False,
        default_subscription: bool | None = None,
        subscriptions: Iterable[ExpressionInput | Subscription] = (),
        compression: Compression | None = None,
        delay_queue_uri: str | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Open a queue, as :meth:`bmq.Session.open_queue` does.

        Raises:
            OpenQueueError: the broker refused; ``broker_message`` has the broker's reason.
            RequestTimeout: the broker did not answer in time; an immediate retry is allowed.
            InvalidURI, InvalidExpression, UsageError: an argument is not legal.
            ConfigureQueueError: the broker refused the subscriptions.
            StateError: the session has already opened the queue for the same direction.
            SessionClosed: the session is closed.

        After an interruption, the queue is closed again as soon as the broker has opened it.
        """
        given: list[Any] = _checks.items("subscriptions", subscriptions, "bmq.Subscription and expressions")
        queue = self._portal.run(
            lambda: self._session.open_queue(
                uri,
                read=read,
                write=write,
                priority=priority,
                max_unconfirmed_messages=max_unconfirmed_messages,
                max_unconfirmed_bytes=max_unconfirmed_bytes,
                suspends_on_bad_host_health=suspends_on_bad_host_health,
                default_subscription=default_subscription,
                subscriptions=given,
                compression=compression,
                delay_queue_uri=delay_queue_uri,
                timeout=timeout,
            ),
            timeout=self.options.open_timeout if timeout is None else timeout,
            undo=lambda queue: self._portal.keep(queue.close()),
        )
        for each in [each for each in list(self._queues) if each.closed]:
            self._queues.pop(each, None)
        made = self._queues[queue] = Queue(self, self._portal, queue, self._end_of, len(given))
        return made

    def open_output(self, uri: str) -> Queue:
        """Return a queue for posting, as :meth:`bmq.Session.open_output` does.

        Raises:
            OpenQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
            InvalidURI: the URI is not legal.
            SessionClosed: the session is closed.
        """
        return self._queue_of(
            self._portal.run(lambda: self._session.open_output(uri), timeout=self.options.open_timeout)
        )

    @property
    def queues(self) -> list[Queue]:
        """The open queues."""
        return [self._queue_of(queue) for queue in self._session.queues]

    def _queue_of(self, queue: _Queue) -> Queue:
        """Return the blocking side of a queue."""
        made = self._queues.get(queue)
        return (
            made
            if made is not None
            else self._queues.setdefault(queue, Queue(self, self._portal, queue, self._end_of))
        )

    def _end_of(self, queue: _Queue) -> QueueEnd[Consumer]:
        return self._queue_of(queue)._end

    # events and state

    def events(self) -> Iterator[SessionEvent]:
        """Iterate over session events from now on, as :meth:`bmq.Session.events` does."""
        return _Events(self._portal, self._portal.call(self._session.events))

    @property
    def options(self) -> SessionOptions:
        """The options of the session."""
        return self._session.options

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._session.state

    @property
    def address(self) -> str:
        """The address of the connected broker, or the next address to try: ``tcp://host:port``."""
        return self._session.address

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """The interceptors of the session, installed ones first."""
        return self._session.interceptors

    def fileno(self) -> int:
        """Return the file descriptor of the connection, as :meth:`bmq.Session.fileno` does."""
        return self._session.fileno()

    def set_trace(self, trace: Trace, *, count: int | None = None) -> None:
        """Switch the wire trace on or off while the session runs, as :meth:`bmq.Session.set_trace` does."""
        self._portal.call(self._session.set_trace, trace, count=count)

    def health(self) -> Health:
        """Return the health of the session, as :meth:`bmq.Session.health` does."""
        return self._portal.call(self._session.health)

    def stats(self) -> SessionStats:
        """Return a snapshot of the session's statistics, as :meth:`bmq.Session.stats` does."""
        return self._portal.call(self._session.stats)


class _Events:
    """One loop over the events of a session."""

    def __init__(self, portal: Portal, events: AsyncIterator[SessionEvent]) -> None:
        self._portal = portal
        self._events = events
        # Events for a thread that was interrupted.
        self._left: deque[SessionEvent] = deque()

    def __iter__(self) -> Iterator[SessionEvent]:
        return self

    def __next__(self) -> SessionEvent:
        async def take() -> SessionEvent:
            return self._left.popleft() if self._left else await anext(self._events)

        return following(self._portal, take, self._left.appendleft)


class _Abandoned:
    """The end of a session that the program does not close.

    Args:
        portal: the event loop.
        session: the asyncio session.
        queues: the session's queues.
    """

    def __init__(self, portal: Portal, session: _Session, queues: dict[_Queue, Queue]) -> None:
        self._portal = portal
        self._session = session
        self._queues = queues

    def close(self, session: Session) -> None:
        """Close a session that was garbage-collected, or that is open at the end of the process."""
        if self._portal.forked or self._session.state is SessionState.CLOSED:
            return
        try:
            warnings.warn(
                f"{session!r} was never closed: use 'with bmq.blocking.connect(...)' or 'session.close()'",
                ResourceWarning,
                stacklevel=1,
                source=session,
            )
        finally:
            # Not here: garbage may be collected in any thread.
            self._portal.soon(_close_abandoned, self._portal, self._session)

    def inherit(self, nothing: int) -> None:
        """Let go of the parent's connection, in the child of a fork.

        Args:
            nothing: the file descriptor of the null device.
        """
        # Do not close the descriptor object: it would later close an unrelated file with the same number.
        if (number := self._session.fileno()) >= 0:
            os.dup2(nothing, number, inheritable=False)
        for queue in self._queues.values():
            queue._end.forget()
        _inherited.append(self._session)


def _close_abandoned(portal: Portal, session: _Session) -> None:
    portal.watch(close_left_open(session, _ABANDONED))


# the end of the process, and forks


def _end() -> None:
    portal = forget_portal()
    if portal is not None:
        try:
            for session, abandoned in list(_sessions.items()):
                abandoned.close(session)
        finally:
            portal.end()


def _forked() -> None:
    """In a forked child, release the parent's connections; a new event loop is created when needed."""
    portal = forget_portal()
    if portal is None:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for abandoned in list(_sessions.values()):
        abandoned.inherit(nothing)
    os.close(nothing)
    _inherited.append(portal)
    _sessions.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
