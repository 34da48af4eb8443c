# SPDX-License-Identifier: Apache-2.0
"""Connections of Spark's processes: address, credentials, TLS, and sessions for more than one task.

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
from collections.abc import Coroutine, Hashable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from bmq._loop import LoopThread
from bmq.client.address import find_broker, parse_addresses
from bmq.errors import ConnectionFailed, UsageError
from bmq.wire.constants import Compression

if TYPE_CHECKING:
    # Imported when a session opens: processes without sessions also read the options.
    from bmq.admin import connect
    from bmq.client.options import Credentials, CredentialsSource
    from bmq.client.queue import Queue
    from bmq.client.session import Session

__all__ = [
    "ConnectionOptions",
    "Seconds",
    "Secret",
    "SessionValues",
    "SharedSession",
    "run",
    "session_thread",
    "shutdown",
]

T = TypeVar("T")

_BASIC = "BASIC"
# Timeout of an admin command, in seconds.
_ADMIN_TIMEOUT = 2.0


_guard = threading.Lock()


class Secret(str):
    """A text that representations do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Seconds(float):
    """A time in seconds, given as a whole number of milliseconds."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Seconds:
        """Parse an option."""
        number = int(text)
        if number < 0:
            raise ValueError("must not be negative")
        return cls(number / 1000)


class SessionValues(tuple[tuple[str, Any], ...]):
    """Further fields of :class:`bmq.SessionOptions` by name: each is the option ``bmq.NAME``."""

    __slots__ = ()


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options of a connection; docs/data/spark-options.md describes each."""

    broker: str | None = None
    connect_timeout: Seconds = msgspec.field(default=Seconds(10), name="connectTimeoutMs")
    reconnect_timeout: Seconds = msgspec.field(default=Seconds(120), name="reconnectTimeoutMs")
    user: str = ""
    password: Secret = Secret()
    password_env: str = ""
    mechanism: str = ""
    credentials: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""
    session: SessionValues = msgspec.field(default=SessionValues(), name="bmq.NAME")

    def check(self) -> None:
        """Check all options together.

        Raises:
            UsageError: an option is not legal, excludes another option, or requires another option.
        """
        if self.broker is not None:
            parse_addresses(self.broker)
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
        if self.session:
            from bmq.client.options import SessionOptions

            SessionOptions(**dict(self.session))

    @property
    def key(self) -> Hashable:
        """The options that a session depends on."""
        return tuple(getattr(self, name) for name in ConnectionOptions.__struct_fields__)

    def credentials_source(self) -> CredentialsSource | None:
        """Return the source of the credentials; None without authentication.

        Raises:
            UsageError: the environment variable or the function does not exist.
        """
        if self.credentials:
            module, _, name = self.credentials.partition(":")
            try:
                found: Any = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                where = socket.gethostname()
                raise UsageError(f"credentials {self.credentials!r} on {where}: {error}") from None
            source: CredentialsSource = found() if isinstance(found, type) else found
            return source
        if not self.user and not self.mechanism:
            return None
        now = self._current_credentials()  # a missing value is an error at once, not a failed attempt
        return self._current_credentials if self.password_env else now

    def _current_credentials(self) -> Credentials:
        from bmq.client.options import Credentials

        secret: str | None = self.password
        if self.password_env:
            secret = os.environ.get(self.password_env)
        if secret is None:
            where = socket.gethostname()
            raise UsageError(f"passwordEnv: no environment variable {self.password_env!r} on {where}")
        if self.mechanism and self.mechanism.upper() != _BASIC:
            return Credentials(self.mechanism, secret.encode())
        return Credentials(_BASIC, f"{self.user}:{secret}".encode())

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for the system's defaults, if the address requires TLS.

        Raises:
            UsageError: a file is missing or malformed.
        """
        if not self.tls_ca_file and not self.tls_cert_file:
            return None
        files = [self.tls_ca_file, self.tls_cert_file, self.tls_key_file]
        where = socket.gethostname()
        for path in files:
            if path and not os.path.isfile(path):
                raise UsageError(f"TLS: {where} has no file {path!r}")
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
        except ssl.SSLError as error:
            raise UsageError(f"TLS: the files {', '.join(filter(None, files))} on {where}: {error}") from None
        return context

    async def open(self, **fields: Any) -> Session:
        """Connect; retry an unreachable broker until ``connect_timeout``.

        Args:
            fields: further fields of :class:`bmq.SessionOptions`.

        Raises:
            ConnectionFailed: the broker was unreachable; the error names the address.
            NegotiationError, AuthenticationError: the broker refused.
            UsageError: a file, variable or function of the options is missing.
        """
        from bmq.client.connect import connect

        last: list[BaseException] = []

        def retryable(error: BaseException) -> bool:
            last[:] = [error]
            return getattr(error, "retryable", True)

        try:
            async with asyncio.timeout(self.connect_timeout):
                settings: dict[str, Any] = {"user_agent": "spark", **self._identity(), **fields}
                session = await connect(
                    self.broker,
                    connect_timeout=self.connect_timeout,
                    retry_first_connect=True,
                    reconnect_timeout=self.reconnect_timeout,
                    is_retryable=retryable,
                    **settings | dict(self.session),
                )
        except TimeoutError:
            why = f": {last[0]}" if last else ""
            raise ConnectionFailed(
                f"the broker at {find_broker(self.broker)} could not be reached within "
                f"{self.connect_timeout:g} s{why}"
            ) from None
        if _current is not None:
            _current.opened[session] = None
        return session

    def admin(self) -> connect:
        """Prepare a connection for admin commands."""
        from bmq import admin

        return admin.connect(self.broker, timeout=_ADMIN_TIMEOUT, **self._identity())

    def _identity(self) -> dict[str, Any]:
        return {
            "credentials": self.credentials_source(),
            "ssl": self.ssl_context(),
            "server_hostname": self.tls_server_name or None,
            "process_name": "bmq.spark",
        }


class SharedSession:
    """A session of several tasks, and its queues open for writing."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.users = 0
        self.expiry: asyncio.TimerHandle | None = None
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


class SessionThread(LoopThread):
    """The event loop of this process, in a thread, and its sessions: Spark calls from blocking threads."""

    def __init__(self) -> None:
        super().__init__("bmq.spark")
        # All sessions, including those of readers, which may be open when the process ends.
        self.opened: WeakKeyDictionary[Session, None] = WeakKeyDictionary()
        self._shared: dict[Hashable, SharedSession] = {}
        self._connecting = asyncio.Lock()

    async def acquire(self, options: ConnectionOptions, compression: Compression) -> SharedSession:
        """Use the session of these options; connect if necessary. :meth:`release` ends the use.

        Raises:
            ConnectionFailed: the broker cannot be reached within ``connect_timeout``.
        """
        key = options.key, compression
        async with self._connecting:
            shared = self._shared.get(key)
            if shared is not None and not shared.usable:
                del self._shared[key]
                await shared.session.close()
                shared = None
            if shared is None:
                session = await options.open(compression=compression, max_unacked_bytes=64 * 1024 * 1024)
                shared = self._shared[key] = SharedSession(session)
            shared.users += 1
            if shared.expiry is not None:
                shared.expiry.cancel()
            return shared

    def release(self, shared: SharedSession, idle_timeout: float) -> None:
        """End the use of a session, which is closed after a time without use. Called in the event loop."""
        shared.users -= 1
        if not shared.users:
            shared.expiry = self.loop.call_later(idle_timeout, self._expire, shared)

    def _expire(self, shared: SharedSession) -> None:
        if not shared.users:
            self._shared = {key: each for key, each in self._shared.items() if each is not shared}
            self._closing = self.loop.create_task(shared.session.close())

    async def close_all(self) -> None:
        """Close every session, and cancel all other tasks."""
        for shared in self._shared.values():
            if shared.expiry is not None:
                shared.expiry.cancel()
        self._shared.clear()
        working = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        working.sort(key=lambda task: task.get_name())
        await asyncio.gather(*(session.close(timeout=5) for session in list(self.opened)))
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


_current: SessionThread | None = None
# A forked process inherits the object of the parent without the thread. The object must be neither used nor
# collected: sockets and loop belong to the parent.
_inherited: list[SessionThread] = []


def session_thread() -> SessionThread:
    """Return the event loop of this process with its sessions; the first call starts the thread."""
    global _current
    with _guard:
        if _current is not None and _current.forked:
            _inherited.append(_current)
            _current = None
        if _current is None:
            _current = SessionThread()
        return _current


def run(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine in the event loop of this process; see :meth:`bmq._loop.LoopThread.run`."""
    return session_thread().run(work, timeout)


def shutdown() -> None:
    """Close all sessions of this process. Called automatically at the end of the process."""
    global _current
    with _guard:
        current, _current = _current, None
    if current is not None and not current.forked:
        current.run(current.close_all(), timeout=10)
        current.end(timeout=10)


atexit.register(shutdown)
