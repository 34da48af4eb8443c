# SPDX-License-Identifier: Apache-2.0
"""Connections of Spark's processes: address, credentials, TLS, and sessions for more than one task.

Spark calls from a blocking thread, while sessions need an event loop. The first task of a process starts the
loop in a thread, which survives partitions and micro-batches. The import of this module starts no thread.

A job contains only names: of environment variables, files and functions. They are resolved at each
connection, on the connecting machine, so that their values may change. A plain password is the exception: it
travels with the job.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from bmq._loop import LoopThread
from bmq.client.address import find_broker
from bmq.errors import ConnectionFailed, UsageError
from bmq.wire.constants import Compression

if TYPE_CHECKING:
    from bmq.client.options import Credentials, CredentialsSource
    from bmq.client.queue import Queue
    from bmq.client.session import Session

__all__ = ["ConnectionSettings", "Portal", "Security", "SharedSession", "portal", "shutdown"]

_BASIC = "BASIC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Credentials and TLS of a connection.

    Attributes:
        user: user name, for the mechanism BASIC.
        password: password, or the data of another mechanism. Omitted from the object's representation.
        password_env: environment variable with the password.
        mechanism: authentication mechanism, if not BASIC.
        credentials: ``MODULE:NAME`` of a function or class that returns :class:`bmq.Credentials`, in place of
            the fields above.
        tls_ca_file: trusted authorities in place of the system's, as PEM.
        tls_cert_file: client certificate, as PEM.
        tls_key_file: key of the client certificate, if in a separate file.
        tls_server_name: name in the broker's certificate, if different from the address.

    Raises:
        UsageError: two fields exclude each other, or a field requires another one.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    password_env: str = ""
    mechanism: str = ""
    credentials: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        if self.password and self.password_env:
            raise UsageError("password and passwordEnv exclude each other: give one of the two")
        if self.credentials:
            if self.user or self.password or self.password_env or self.mechanism:
                raise UsageError("credentials supplies user, password and mechanism: omit these options")
            module, _, name = self.credentials.partition(":")
            if not module or not name:
                raise UsageError(f"credentials must be MODULE:NAME, not {self.credentials!r}")
        if self.tls_key_file and not self.tls_cert_file:
            raise UsageError("tlsKeyFile is the key of tlsCertFile, which is missing")

    def source(self) -> CredentialsSource | None:
        """Return the source of the credentials; None without authentication.

        Raises:
            UsageError: the environment variable or the function does not exist.
        """
        if self.credentials:
            return self._imported()
        if not self.user and not self.mechanism:
            return None
        now = self._made()  # a missing value is an immediate error, and not a failed attempt to connect
        return self._made if self.password_env else now

    def _made(self) -> Credentials:
        from bmq.client.options import Credentials

        secret = self.password
        if self.password_env:
            found = os.environ.get(self.password_env)
            if found is None:
                where = socket.gethostname()
                raise UsageError(f"passwordEnv: no environment variable {self.password_env!r} on {where}")
            secret = found
        if self.mechanism and self.mechanism.upper() != _BASIC:
            return Credentials(self.mechanism, secret.encode())
        return Credentials(_BASIC, f"{self.user}:{secret}".encode())

    def _imported(self) -> CredentialsSource:
        module, _, name = self.credentials.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"credentials {self.credentials!r} on {socket.gethostname()}: {error}") from None
        made: CredentialsSource = found() if isinstance(found, type) else found
        return made

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for the system's defaults, if the address requires TLS.

        Raises:
            UsageError: a file is missing or malformed.
        """
        if not self.tls_ca_file and not self.tls_cert_file:
            return None
        for option, path in (
            ("tlsCaFile", self.tls_ca_file),
            ("tlsCertFile", self.tls_cert_file),
            ("tlsKeyFile", self.tls_key_file),
        ):
            if path and not os.path.isfile(path):
                raise UsageError(f"{option}: {socket.gethostname()} has no file {path!r}")
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
        except ssl.SSLError as error:
            raise UsageError(f"tlsCaFile {self.tls_ca_file!r}: {error}") from None
        if self.tls_cert_file:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
            except ssl.SSLError as error:
                raise UsageError(f"tlsCertFile {self.tls_cert_file!r}: {error}") from None
        return context


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


class SharedSession:
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
        self._leases: dict[ConnectionSettings, SharedSession] = {}
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
    async def lease(self, connection: ConnectionSettings) -> AsyncGenerator[SharedSession]:
        """Use a shared session; connect if necessary.

        Raises:
            ConnectionFailed: the broker cannot be reached within the connection's ``connect_timeout``.
        """
        lease = await self._acquire(connection)
        try:
            yield lease
        finally:
            self._release(connection, lease)

    async def _acquire(self, connection: ConnectionSettings) -> SharedSession:
        async with self._connecting:
            lease = self._leases.get(connection)
            if lease is not None and not lease.usable:
                del self._leases[connection]
                await lease.session.close()
                lease = None
            if lease is None:
                session = await connection.open(max_unacked_bytes=64 * 1024 * 1024)
                lease = self._leases[connection] = SharedSession(session)
            lease.users += 1
            if lease.idle is not None:
                lease.idle.cancel()
                lease.idle = None
            return lease

    def _release(self, connection: ConnectionSettings, lease: SharedSession) -> None:
        lease.users -= 1
        if not lease.users:
            lease.idle = self._loop.call_later(connection.idle_timeout, self._expire, connection, lease)

    def _expire(self, connection: ConnectionSettings, lease: SharedSession) -> None:
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
