# SPDX-License-Identifier: Apache-2.0
"""The loggers of bmq: handlers, filters and record factories of the application cannot affect the caller.

All log lines of the package pass here. Their handlers are code of the application, which may raise, block, or
use the session. Three rules keep such code out of the client:

- An exception of a handler or filter ends there. The first of each kind is shown on stderr, as the handlers
  of the standard library do with their own errors.
- A line of a module that changes the state of a session is made at once, and passed to the handlers in the
  next turn of the event loop, after the change; in a simulation at once.
- A line of an event loop on which other threads wait (:class:`bmq._loop.LoopThread`) is passed to the
  handlers in a thread of its own: a waiting thread may hold the lock of a handler.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from bmq import _world

__all__ = ["Log", "elsewhere", "flush"]

# Maximum number of kinds of errors to remember.
_MOST_KINDS = 100
# Maximum number of lines that wait for event loops. Loops that end before the next turn leave lines behind.
_MOST_WAITING = 1000
# Maximum time in seconds to wait for handlers at the end of the process.
_AT_EXIT = 1.0


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger of the standard library, for the modules of bmq.

    Args:
        name: name of the logger.
        later: whether lines logged in an event loop are passed to the handlers in its next turn.

    Attributes:
        logger: logger of the standard library.
    """

    def __init__(self, name: str, *, later: bool = False) -> None:
        super().__init__(logging.getLogger(name))
        self._later = later

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: Any = None,
        extra: Mapping[str, object] | None = None,
        **other: object,
    ) -> None:
        """Log a line; all other methods of the base class end here."""
        logger = self.logger
        if not logger.isEnabledFor(level):
            return
        error: BaseException | None = sys.exception() if exc_info is True else exc_info or None
        about = (type(error), error, error.__traceback__) if error is not None else None
        path, line, function, _ = logger.findCaller(stacklevel=2)
        try:
            record = logger.makeRecord(logger.name, level, path, line, msg, args, about, function, extra)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as fault:  # the application's record factory
            _report(logger, fault)
            return
        made = _Line(logger, record)
        if getattr(_thread, "elsewhere", False):
            _writer.put(made)
            return
        # In a simulation, what is logged must not change the order of events.
        if self._later and not _world.current().simulated:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                if len(_waiting) >= _MOST_WAITING:
                    _make_room()
                _waiting[made] = None
                loop.call_soon(made.write)
                return
        _handle(logger, record)


class _Line:
    """A line on the way to the handlers."""

    __slots__ = ("_context", "_logger", "_record")

    def __init__(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        self._logger = logger
        self._record = record
        self._context = copy_context()

    def write(self) -> None:
        """Pass the line to the handlers, unless this was done before."""
        if self.taken():
            _handle(self._logger, self._record)

    def taken(self) -> bool:
        """Take the line from the waiting lines; return False if this was done before."""
        return _waiting.pop(self, self) is None

    def write_here(self) -> None:
        """Pass the line to the handlers, in the context of the line's origin."""
        self._context.run(_handle, self._logger, self._record)


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        logger.handle(record)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # pytest.fail() and CancelledError, too
        _report(logger, error)


def _report(logger: logging.Logger, error: BaseException) -> None:
    kind = logger.name, type(error)
    if kind in _reported or len(_reported) >= _MOST_KINDS or not logging.raiseExceptions:
        return
    _reported.add(kind)
    try:
        sys.stderr.write(
            f"a log handler or filter failed on a line of {logger.name!r}; bmq goes on, and does not repeat "
            "this report:\n"
        )
        traceback.print_exception(error, file=sys.stderr)
    except Exception:  # no stderr
        pass


class _Writer:
    """The thread that passes lines of other threads to the handlers, started with the first line."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[_Line | threading.Event] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, line: _Line | threading.Event) -> None:
        """Pass a line to the handlers soon; or set an event when all lines so far have passed."""
        self._lines.put(line)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="bmq log", daemon=True)
                    self._thread.start()

    def flush(self, timeout: float) -> None:
        """Wait until all lines so far have passed."""
        if self._thread is not None and self._thread is not threading.current_thread():
            done = threading.Event()
            self.put(done)
            done.wait(timeout)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                line.write_here()
            except BaseException as error:  # SystemExit of a handler ends nothing here
                _report(logging.getLogger("bmq"), error)


@contextmanager
def elsewhere() -> Generator[None]:
    """Pass the lines of this thread to the handlers in another thread, inside the block."""
    _thread.elsewhere = True
    try:
        yield
    finally:
        _thread.elsewhere = False


def flush(timeout: float = _AT_EXIT) -> None:
    """Pass all lines to the handlers that still wait for an event loop or a thread.

    Args:
        timeout: maximum time to wait for the handlers of another thread, in seconds.
    """
    for line in list(_waiting):
        line.write()
    _writer.flush(timeout)


def _make_room() -> None:
    """Pass the waiting lines to the thread of the handlers: a change of state may be in progress here."""
    for line in list(_waiting):
        if line.taken():
            _writer.put(line)


def _forked() -> None:
    global _writer
    _writer = _Writer()
    _waiting.clear()


# Lines that wait for the next turn of an event loop, in order.
_waiting: dict[_Line, None] = {}
_reported: set[tuple[str, type[BaseException]]] = set()
_thread = threading.local()
_writer = _Writer()
atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
