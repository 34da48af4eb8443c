# SPDX-License-Identifier: Apache-2.0
"""The event loop of Windows, on any system.

``asyncio.proactor_events`` has the loop and the transports of Windows in pure Python; only the completion
port below them needs the system. :class:`CompletionPort` stands for the port, with a selector. Its results
are those of ``asyncio.windows_events``:

- an operation begins at once, completes as a whole, and reports its result in a later turn;
- a connection that is reset has the errno 22, not ``ECONNRESET``, and the number of Windows in ``winerror``;
- a client that has gone before it was accepted is an error of the listening socket;
- a cancelled operation loses its bytes.

The loop has no ``add_reader``, ``add_signal_handler`` and Unix sockets, and its clock advances every 15.6 ms.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import time
from asyncio import proactor_events
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TICK", "CompletionPort", "ProactorLoop", "coarse", "windows_error"]

#: Seconds between two values of the clock.
TICK = 1 / 64

#: Operations of Windows never block, whatever the mode of the socket.
_NOW = getattr(socket, "MSG_DONTWAIT", 0)
_BEGUN = (errno.EINPROGRESS, errno.EWOULDBLOCK)

#: Errors of Windows, by number: the class that Python raises, and the text.
_ERRORS: dict[int, tuple[type[OSError], str]] = {
    64: (OSError, "The specified network name is no longer available"),
    1225: (ConnectionRefusedError, "The remote computer refused the network connection"),
    10053: (ConnectionAbortedError, "An established connection was aborted by the software in your host"),
    10054: (ConnectionResetError, "An existing connection was forcibly closed by the remote host"),
}


def coarse() -> float:
    return int(time.monotonic() / TICK) * TICK


def windows_error(number: int, kind: type[OSError] | None = None) -> OSError:
    """Return an error of Windows; asyncio raises some of another class than Python does."""
    usual, text = _ERRORS[number]
    error = (kind or usual)(errno.EINVAL, text)
    error.winerror = number  # type: ignore[attr-defined, unused-ignore]
    return error


class _Operation(asyncio.Future[Any]):
    """An operation that has begun, and the next attempt to complete the operation."""

    port: CompletionPort
    sock: socket.socket
    events: int
    attempt: Callable[[], Any]

    def cancel(self, msg: Any | None = None) -> bool:
        self.port.forget(self)
        return super().cancel(msg=msg)


@dataclass
class _Pending:
    sock: socket.socket
    operations: list[_Operation] = field(default_factory=list)

    @property
    def events(self) -> int:
        found = 0
        for each in self.operations:
            found |= each.events
        return found


class CompletionPort:
    """The completion port of a loop.

    Attributes:
        refusals: errors of the next accepted connections.
        begun: number of operations that did not complete at once.
    """

    def __init__(self) -> None:
        self.refusals: list[OSError] = []
        self.begun = 0
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, _Pending] = {}

    @property
    def left(self) -> int:
        return sum(len(each.operations) for each in self._pending.values())

    # ---- what a loop calls

    def set_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        for key, events in self._selector.select(timeout):
            for each in [each for each in self._pending[key.fd].operations if each.events & events]:
                if not each.done():
                    self._try(each)
        return []

    def close(self) -> None:
        for pending in list(self._pending.values()):
            for each in list(pending.operations):
                each.cancel()
        self._selector.close()

    def _stop_serving(self, sock: socket.socket) -> None:
        pass

    # ---- the operations

    def recv(self, conn: socket.socket, nbytes: int, flags: int = 0) -> asyncio.Future[Any]:
        return self._begin(conn, selectors.EVENT_READ, lambda: conn.recv(nbytes, flags | _NOW))

    def recv_into(self, conn: socket.socket, buf: Any, flags: int = 0) -> asyncio.Future[Any]:
        return self._begin(conn, selectors.EVENT_READ, lambda: conn.recv_into(buf, 0, flags | _NOW))

    def send(self, conn: socket.socket, buf: Any, flags: int = 0) -> asyncio.Future[Any]:
        left = memoryview(buf).cast("B")
        size = len(left)

        def rest() -> int:
            nonlocal left
            while left:
                left = left[conn.send(left, flags | _NOW) :]
            return size

        return self._begin(conn, selectors.EVENT_WRITE, rest)

    def connect(self, conn: socket.socket, address: Any) -> asyncio.Future[Any]:
        begun = conn.connect_ex(address)

        def connected() -> socket.socket:
            if begun in _BEGUN and not self._writable(conn):
                raise BlockingIOError
            if conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or begun not in (0, *_BEGUN):
                raise windows_error(1225)
            return conn

        return self._begin(conn, selectors.EVENT_WRITE, connected)

    def accept(self, listener: socket.socket) -> asyncio.Future[Any]:
        def accepted() -> tuple[socket.socket, Any]:
            conn, _ = listener.accept()
            conn.setblocking(False)
            if self.refusals:
                conn.close()
                raise self.refusals.pop(0)
            return conn, conn.getpeername()

        return self._begin(listener, selectors.EVENT_READ, accepted)

    @staticmethod
    def _writable(sock: socket.socket) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            return bool(selector.select(0))

    # ---- the life of an operation

    def _begin(self, sock: socket.socket, events: int, attempt: Callable[[], Any]) -> asyncio.Future[Any]:
        operation = _Operation(loop=self._loop)
        operation.port, operation.sock, operation.events, operation.attempt = self, sock, events, attempt
        self._try(operation)
        if not operation.done():
            self.begun += 1
            pending = self._pending.setdefault(sock.fileno(), _Pending(sock))
            pending.operations.append(operation)
            self._watch(sock.fileno())
        return operation

    def _try(self, operation: _Operation) -> None:
        try:
            result = operation.attempt()
        except (BlockingIOError, InterruptedError):
            return
        except (ConnectionResetError, BrokenPipeError):
            operation.set_exception(windows_error(64, ConnectionResetError))
        except OSError as error:
            operation.set_exception(error)
        else:
            operation.set_result(result)
        self.forget(operation)

    def forget(self, operation: _Operation) -> None:
        for number, pending in list(self._pending.items()):
            if operation in pending.operations:
                pending.operations.remove(operation)
                self._watch(number)

    def _watch(self, number: int) -> None:
        pending = self._pending[number]
        watched = number in self._selector.get_map()
        if not pending.operations:
            del self._pending[number]
            if watched:
                self._selector.unregister(number)
        elif watched:
            self._selector.modify(number, pending.events)
        else:
            self._selector.register(number, pending.events)


class _Transport(proactor_events._ProactorSocketTransport):  # type: ignore[misc, unused-ignore]
    """A transport that does not warn of a socket which :class:`ProactorLoop` has closed."""

    def __del__(self, *args: Any) -> None:
        sock: socket.socket | None = vars(self).get("_sock")
        if sock is not None and sock.fileno() >= 0:
            super().__del__(*args)


class ProactorLoop(proactor_events.BaseProactorEventLoop):
    """The event loop of Windows, above a :class:`CompletionPort`.

    Attributes:
        port: the port.
        failed_shutdowns: how often asyncio failed to close a socket that its peer had reset.
    """

    def __init__(self) -> None:
        self.port = CompletionPort()
        self.failed_shutdowns = 0
        super().__init__(self.port)  # type: ignore[call-arg, unused-ignore]
        self._clock_resolution = TICK

    def time(self) -> float:
        return coarse()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # On Windows, asyncio shuts down a socket that the peer has reset, logs the error of the shutdown, and
        # leaves the socket open. No program can prevent the error.
        transport = getattr(getattr(context.get("handle"), "_callback", None), "__self__", None)
        if "_call_connection_lost" in context["message"] and isinstance(context["exception"], OSError):
            self.failed_shutdowns += 1
            vars(transport)["_sock"].close()
        else:
            super().call_exception_handler(context)

    def _make_socket_transport(self, *args: Any, **kwargs: Any) -> _Transport:
        return _Transport(self, *args, **kwargs)

    def run_forever(self) -> None:
        # As asyncio.windows_events does.
        self.call_soon(self._loop_self_reading)  # type: ignore[attr-defined]
        try:
            super().run_forever()
        finally:
            reading: asyncio.Future[Any] | None = vars(self)["_self_reading_future"]
            if reading is not None:
                reading.cancel()
                vars(self)["_self_reading_future"] = None
