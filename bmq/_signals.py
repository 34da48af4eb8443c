# SPDX-License-Identifier: Apache-2.0
"""Signals as requests for an orderly shutdown."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Final

from bmq import _world
from bmq._turn import turn_of

__all__ = ["exit_on_sigterm", "on_interrupts", "on_signals"]

# Seconds within which interrupts count as one: a terminal and a supervisor may both send a SIGINT.
_TOGETHER: Final = 0.5
# Seconds between the effects of two signals.
_APART: Final = 0.05
# Number of signals treated as requests; the next signal ends the process, even if the program ignores
# cancellation.
_REQUESTS: Final = 2


@contextmanager
def on_signals(
    stop: Callable[[], object], numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Generator[None]:
    """Call ``stop`` in the running event loop at each signal. At the end, restore the previous handlers.

    No message is handed out between the signal and the effect of ``stop``.

    The third signal ends the process at once, even if code ignores its cancellation.

    Signals arrive only in the main thread; in other threads the context has no effect. The context does not
    use ``loop.add_signal_handler``, which does not exist on Windows and cannot restore previous handlers. A
    simulated process receives no signals: a killed process would never restore the handlers.
    """
    loop = asyncio.get_running_loop()
    turn = turn_of(loop)
    received = 0

    def told(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > _REQUESTS:
            _end(number)
        turn.hold(loop)
        loop.call_soon_threadsafe(stop if received == 1 else later)

    def later() -> None:
        # A task receives two cancellations at once as one. The event loop may see both signals together.
        loop.call_later(_APART, stop)

    if not _has_signals():
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
    """Call ``stop`` in the running event loop for each SIGINT; simultaneous ones count as one.

    No message is handed out between the signal and the effect of ``stop``.

    asyncio's own handler raises KeyboardInterrupt at the second SIGINT, anywhere in the event loop. In the
    middle of a transport's work, this logs a fatal error and drops the connection. Here, KeyboardInterrupt is
    raised only in a blocked loop, which nothing else can end. The third SIGINT ends the process at once, like
    the third signal of :func:`on_signals`.

    Outside the main thread, in a simulated process, and with a SIGINT handler other than Python's own, the
    context has no effect.
    """
    if not _has_signals():
        yield
        return
    loop = asyncio.get_running_loop()
    turn = turn_of(loop)
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
        turn.hold(loop)
        loop.call_soon_threadsafe(hear)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _has_signals() -> bool:
    """Whether signals arrive here: in the main thread of a real process."""
    return threading.current_thread() is threading.main_thread() and not _world.current().simulated


def _end(number: int) -> None:
    """End the process as the signal's default action does."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def exit_on_sigterm() -> None:
    """Make the first SIGTERM end the process like ``sys.exit(0)``, so that ``finally`` blocks run.

    For programs without an event loop. No effect outside the main thread.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the sender may repeat the signal
    raise SystemExit(0)
