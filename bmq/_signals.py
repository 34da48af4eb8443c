# SPDX-License-Identifier: Apache-2.0
"""Signals as a request to end in good order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Final

from bmq import _world

__all__ = ["exit_on_sigterm", "on_interrupts", "on_signals"]

# Seconds within which interrupts are one: a terminal and a supervisor may both send one.
_TOGETHER: Final = 0.5
# Signals that are requests; the next one ends the process, whatever the program does with its cancellations.
_REQUESTS: Final = 2


@contextmanager
def on_signals(
    stop: Callable[[], object], numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Generator[None]:
    """Call ``stop`` in the running event loop when a signal comes. Afterwards all is as it was before.

    The third signal ends the process at once: code that ignores its cancellation cannot prevent that.

    Only the main thread is told of signals: elsewhere this does nothing. Not ``loop.add_signal_handler``:
    Windows has none, and what was there before it cannot be put back.
    """
    loop = asyncio.get_running_loop()
    received = 0

    def told(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > _REQUESTS:
            _end(number)
        loop.call_soon_threadsafe(stop)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, told) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def on_interrupts(
    stop: Callable[[], object], clock: Callable[[], float] = _world.monotonic
) -> Generator[None]:
    """Call ``stop`` in the running event loop for each SIGINT, those that come together counted as one.

    asyncio's own handler raises KeyboardInterrupt at the second SIGINT, wherever the event loop is then: in
    the middle of a transport's work, which logs a fatal error and drops the connection. Here only a loop that
    does not turn any more is ended this way, as nothing else can end it. The third SIGINT ends the process at
    once, as the third signal of :func:`on_signals` does.

    Outside the main thread, and where SIGINT is not Python's own, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    latest: float | None = None
    heard = True
    received = 0

    def hear() -> None:
        nonlocal heard
        heard = True
        stop()

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal latest, heard, received
        now = clock()
        if latest is not None and now - latest < _TOGETHER:
            return
        latest = now
        received += 1
        if not heard:
            raise KeyboardInterrupt
        if received > _REQUESTS:
            _end(number)
        heard = False
        loop.call_soon_threadsafe(hear)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _end(number: int) -> None:
    """End the process as the signal does by default."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def exit_on_sigterm() -> None:
    """Let the first SIGTERM end the process as ``sys.exit(0)`` does, so that ``finally`` blocks run.

    For programs without an event loop. In any other thread than the main one this does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who sends it may send it twice
    raise SystemExit(0)
