# SPDX-License-Identifier: Apache-2.0
"""The event loop of bmq's programs and threads."""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

from bmq import _world
from bmq._logging import Log, elsewhere
from bmq.errors import TimedOut, UsageError

__all__ = [
    "LoopThread",
    "change_protocol",
    "check_greenlets",
    "create_connection",
    "has_running_loop",
    "new_event_loop",
    "of_uvloop",
    "raise_soon",
    "replaced_threads",
    "running_loop",
    "timeout",
    "weakly",
    "within",
]

T = TypeVar("T")

logger = Log("bmq")


def has_running_loop() -> bool:
    """Whether an event loop of asyncio runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Return a callback for a timer that does not keep the object of a method alive."""
    reference = WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call


def raise_soon(error: BaseException) -> None:
    """End the event loop with KeyboardInterrupt or SystemExit, as a callback of the program does."""

    def fail() -> None:
        raise error

    asyncio.get_running_loop().call_soon(fail)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        UsageError: no event loop of asyncio is running.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "no event loop of asyncio is running here: start the program with bmq.run(main()) or "
            "asyncio.run(main()); trio is not supported (with anyio: backend='asyncio')"
        ) from None


def replaced_threads() -> str:
    """Return which package has replaced the threads of Python, gevent or eventlet; empty if none has."""
    package = _thread.start_new_thread.__module__.partition(".")[0]
    return package if package in {"gevent", "eventlet"} else ""


# bmq took the locks of these threads when it was imported.
_at_import = replaced_threads()


def check_greenlets() -> None:
    """Raise an error if gevent or eventlet leaves no thread for another event loop.

    Raises:
        UsageError: bmq was imported before the threads were replaced, or the only thread has an event loop.
    """
    package = replaced_threads()
    if package and package != _at_import:
        raise UsageError(
            f"{package} replaced the threads of Python after bmq was imported, and waiting would never "
            "end: call monkey.patch_all() or eventlet.monkey_patch() before the first import of bmq"
        )
    if package and has_running_loop():
        raise UsageError(
            f"{package} has replaced the threads of Python, and an event loop runs in the only thread: a "
            "second event loop cannot run. Close what runs the first one, or move it to another process (for "
            "an embedded broker: bmq broker)"
        )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed, otherwise asyncio's.

    If gevent or eventlet has replaced the threads of Python, asyncio's: uvloop would block the only thread.
    """
    if replaced_threads():
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def of_uvloop(transport: asyncio.BaseTransport) -> bool:
    """Whether a transport is uvloop's.

    Only uvloop's ``writelines()`` sends the pieces unjoined and works correctly: asyncio's joins the pieces
    before Python 3.12. In some later releases it never pauses the protocol, and fails after the connection is
    lost. A turn of uvloop reads up to 32 times while bytes arrive; a turn of asyncio's event loop reads once.
    """
    return type(transport).__module__.startswith("uvloop")


def change_protocol(
    transport: asyncio.Transport, protocol: asyncio.Protocol | asyncio.BufferedProtocol, *, reading: bool
) -> None:
    """Give the next received bytes to another protocol, with or without a buffer of its own.

    Args:
        transport: the transport.
        protocol: the protocol; ``connection_made`` is not called.
        reading: whether the transport reads. uvloop looks at the kind of the protocol when reading starts.
    """
    restart = reading and of_uvloop(transport)
    if restart:
        transport.pause_reading()
    transport.set_protocol(protocol)
    if restart:
        transport.resume_reading()


def create_connection(protocol: Callable[[], asyncio.Protocol], *args: Any, **options: Any) -> Awaitable[Any]:
    """Connect as ``create_connection`` of the running event loop does, or as the world does.

    Returns:
        The transport and the protocol.

    Raises:
        OSError: as the event loop's method.

    Cancelling the call closes the connection.
    """
    create = _world.current().create_connection or asyncio.get_running_loop().create_connection
    return create(protocol, *args, **options)


def timeout(seconds: float, *, look_every: float | None = None) -> AbstractAsyncContextManager[object]:
    """Limit the time of a block, by the world's clock; TimeoutError as from :func:`asyncio.timeout`.

    Args:
        seconds: the limit. No call of the application runs within the block: its time is real.
        look_every: maximum number of seconds until the block ends anyway, because the time of day may be set.
            The clock of a test is never set; in a test, the block has only the limit.
    """
    after = _world.current().after
    if after is not None:
        return _WorldTimeout(after, seconds, look_every is not None)
    return asyncio.timeout(seconds if look_every is None else min(seconds, look_every))


class _WorldTimeout:
    def __init__(
        self,
        after: Callable[[float, Callable[[], object], bool], Callable[[], None]],
        seconds: float,
        routine: bool,
    ) -> None:
        self._after = after
        self._seconds = seconds
        self._routine = routine
        self._timeout = asyncio.timeout(None)
        self._cancel: Callable[[], None] | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._cancel = self._after(self._seconds, self._expire, self._routine)

    def _expire(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._cancel is not None:
            self._cancel()
        await self._timeout.__aexit__(exc_type, exc, tb)


class within:
    """``async with within(seconds, "no message arrived"):`` cancels the block at a deadline.

    Args:
        seconds: time until the deadline; None for no deadline.
        what: beginning of the error's text; "within ... s" is appended.

    Raises:
        TimedOut: the deadline passed.
    """

    __slots__ = ("_seconds", "_timeout", "_what")

    def __init__(self, seconds: float | None, what: str) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)
        self._what = what

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(exc_type, exc, tb)
        except TimeoutError:
            raise TimedOut(f"{self._what} within {self._seconds:g} s") from None


class LoopThread:
    """An event loop in a daemon thread.

    Blocking sessions, Spark's tasks, Arrow's sources and the background broker run on these threads. A fork
    has no copy of the thread, and must leave the thread's sockets alone.

    Args:
        name: name of the thread.
        log: logger for errors of callbacks.

    Raises:
        UsageError: as for :func:`check_greenlets`.

    Attributes:
        loop: event loop; the thread closes the loop at its end.
        over: whether the thread is ending.
        forked: whether the current process is a fork.
    """

    def __init__(self, name: str, log: Log = logger) -> None:
        check_greenlets()
        self._log = log
        self.loop = new_event_loop()
        self.over = False
        self.forked = False
        _threads[self] = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        with elsewhere():
            try:
                while not self.over:
                    try:
                        self.loop.run_forever()
                    except BaseException:
                        # SystemExit in a callback ends run_forever; the loop must continue.
                        self._log.exception("a callback ended the event loop; the loop continues")
            finally:
                self.loop.close()

    @property
    def current(self) -> bool:
        """Whether the caller runs in the thread."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a function in the event loop, from any thread; no effect after the loop was closed."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the event loop and wait for the result, from another thread.

        Args:
            work: the coroutine; cancelled if the wait ends early.
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: the coroutine took longer.
            BaseException: raised by the coroutine.
        """
        future = self.submit(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Begin to end the thread. Called in the event loop."""
        self.over = True
        self.loop.stop()

    def end(self, timeout: float | None) -> None:
        """End the thread and wait for its end. Called in another thread.

        Args:
            timeout: seconds to wait; None for no limit.
        """
        self.soon(self.stop)
        self.join(timeout)

    def join(self, timeout: float | None) -> None:
        """Wait for the end of the thread. Called in another thread."""
        self._thread.join(timeout)


# Used as an ordered set, in the order of creation.
_threads: WeakKeyDictionary[LoopThread, None] = WeakKeyDictionary()


def _note_fork() -> None:
    for each in _threads:
        each.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
