# SPDX-License-Identifier: Apache-2.0
"""An event loop for each worker process, in a separate thread, with sessions for more than one task.

Spark calls from a blocking thread, while sessions need an event loop. The portal connects the two. The first
task of a process creates the portal. The portal survives partitions and micro-batches, and ends after a
period without use. The import of this module starts no thread.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from bmq._loop import LoopThread
from bmq.client.address import find_broker
from bmq.errors import ConnectionFailed
from bmq.spark._security import Security
from bmq.wire.constants import Compression

if TYPE_CHECKING:
    # Imported when a session opens: processes without sessions also read the settings.
    from bmq.client.queue import Queue
    from bmq.client.session import Session

__all__ = ["ConnectionSettings", "Lease", "Portal", "portal", "shutdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Address and settings of a connection. Tasks with equal settings share a session.

    Attributes:
        broker: ``tcp://host:port``, or several separated by commas; None as for :class:`bmq.connect`.
        compression: compression of posted payloads.
        connect_timeout: seconds until an unreachable broker is an error.
        reconnect_timeout: seconds until a lost connection is an error.
        idle_timeout: seconds until an unused session is closed.
        security: credentials and TLS.
    """

    broker: str | None = None
    compression: Compression = Compression.NONE
    connect_timeout: float = 10.0
    reconnect_timeout: float = 120.0
    idle_timeout: float = 30.0
    security: Security = field(default_factory=Security)

    async def open(self, **fields: Any) -> Session:
        """Connect; retry an unreachable broker until ``connect_timeout``.

        Args:
            fields: further fields of :class:`bmq.SessionOptions`.

        Raises:
            ConnectionFailed: the broker was unreachable; the error names the address.
            NegotiationError, AuthenticationError: the broker refused.
            UsageError: a file, variable or function of ``security`` is missing.
        """
        from bmq.client.connect import connect

        security = self.security
        last: list[BaseException] = []

        def retryable(error: BaseException) -> bool:
            last[:] = [error]
            return getattr(error, "retryable", True)

        try:
            async with asyncio.timeout(self.connect_timeout):
                session = await connect(
                    self.broker,
                    credentials=security.source(),
                    ssl=security.context(),
                    server_hostname=security.tls_server_name or None,
                    process_name="bmq.spark",
                    user_agent="spark",
                    compression=self.compression,
                    connect_timeout=self.connect_timeout,
                    retry_first_connect=True,
                    reconnect_timeout=self.reconnect_timeout,
                    is_retryable=retryable,
                    **fields,
                )
            if _current is not None:
                _current.opened[session] = None
            return session
        except TimeoutError:
            why = f": {last[0]}" if last else ""
            raise ConnectionFailed(
                f"the broker at {find_broker(self.broker)} could not be reached within "
                f"{self.connect_timeout:g} s{why}"
            ) from None


class Lease:
    """A shared session, and its queues open for writing."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.users = 0
        self.idle: asyncio.TimerHandle | None = None
        self._queues: dict[str, Queue] = {}
        self._opening = asyncio.Lock()

    @property
    def usable(self) -> bool:
        """Whether the session is connected, or restoring its connection."""
        from bmq.protocol.client.core import SessionState

        return self.session.state in (SessionState.STARTED, SessionState.RECONNECTING)

    async def writer(self, uri: str) -> Queue:
        """Return a queue that is open for writing.

        Raises:
            OpenQueueError, RequestTimeout, InvalidURI: the queue cannot be opened.
        """
        async with self._opening:
            queue = self._queues.get(uri)
            if queue is None or queue.closed:
                queue = self._queues[uri] = await self.session.open_queue(uri, write=True)
            return queue


class Portal:
    """An event loop in a thread. Created by :class:`portal`, which each task enters anew."""

    def __init__(self) -> None:
        self.ended = False
        self._thread = LoopThread("bmq.spark")
        self._loop = self._thread.loop
        self.run = self._thread.run
        self.submit = self._thread.submit
        self._leases: dict[ConnectionSettings, Lease] = {}
        # All sessions, including those of readers, which may be open when the process ends.
        self.opened: WeakKeyDictionary[Session, None] = WeakKeyDictionary()
        self._connecting = asyncio.Lock()
        self._pending = 0

    @property
    def forked(self) -> bool:
        """Whether the present process was forked from the process of the portal."""
        return self._thread.forked

    # from any thread

    def close(self) -> None:
        """Close every session and end the thread; idempotent."""
        with _guard:
            if self.ended:
                return
            self.ended = True
        if not self.forked:
            self.run(self._close_all(), timeout=10)
            self._thread.end(timeout=10)

    # on the loop

    @asynccontextmanager
    async def lease(self, connection: ConnectionSettings) -> AsyncGenerator[Lease]:
        """Use a shared session; connect if necessary.

        Raises:
            ConnectionFailed: the broker cannot be reached within the connection's ``connect_timeout``.
        """
        lease = await self._acquire(connection)
        try:
            yield lease
        finally:
            self._release(connection, lease)

    async def _acquire(self, connection: ConnectionSettings) -> Lease:
        async with self._connecting:
            lease = self._leases.get(connection)
            if lease is not None and not lease.usable:
                del self._leases[connection]
                await lease.session.close()
                lease = None
            if lease is None:
                session = await connection.open(max_unacked_bytes=64 * 1024 * 1024)
                lease = self._leases[connection] = Lease(session)
            lease.users += 1
            if lease.idle is not None:
                lease.idle.cancel()
                lease.idle = None
            return lease

    def _release(self, connection: ConnectionSettings, lease: Lease) -> None:
        lease.users -= 1
        if not lease.users:
            lease.idle = self._loop.call_later(connection.idle_timeout, self._expire, connection, lease)

    def _expire(self, connection: ConnectionSettings, lease: Lease) -> None:
        if lease.users:
            return
        if self._leases.get(connection) is lease:
            del self._leases[connection]
        task = self._loop.create_task(lease.session.close())
        task.add_done_callback(lambda _: self._end_if_idle())

    def _end_if_idle(self) -> None:
        """End the thread if the loop has neither a session nor work."""
        with _guard:
            if self.ended or self._leases or self._pending or asyncio.all_tasks(self._loop):
                return
            self.ended = True
        self._thread.stop()

    async def _close_all(self) -> None:
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            if lease.idle is not None:
                lease.idle.cancel()
        working = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        working.sort(key=lambda task: task.get_name())
        await asyncio.gather(*(session.close(timeout=5) for session in list(self.opened)))
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    def enter(self) -> None:
        """Register a user of the portal. The caller must hold the guard."""
        self._pending += 1

    def leave(self) -> None:
        """Undo :meth:`enter`."""
        with _guard:
            self._pending -= 1
            if not self._pending and not self._leases and not self.ended:
                self._loop.call_soon_threadsafe(self._end_if_idle)


_guard = threading.Lock()
_current: Portal | None = None
# A forked process inherits the portal of the parent without the thread. The portal must be neither used nor
# collected: sockets and loop belong to the parent.
_inherited: list[Portal] = []


def shutdown() -> None:
    """Close all sessions of this process. Called automatically at the end of the process."""
    if _current is not None:
        _current.close()


class portal:
    """The portal of this process, for the duration of a ``with`` block."""

    def __init__(self) -> None:
        self._portal: Portal | None = None

    def __enter__(self) -> Portal:
        global _current
        with _guard:
            current = _current
            if current is not None and current.forked:
                _inherited.append(current)
                current = None
            if current is None or current.ended:
                if _current is None:
                    atexit.register(shutdown)
                current = _current = Portal()
            current.enter()
        self._portal = current
        return current

    def __exit__(self, *_: object) -> None:
        assert self._portal is not None
        self._portal.leave()
