"""SIGTERM and SIGINT as a request to end in good order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["on_signals"]


@contextmanager
def on_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call ``stop`` on SIGTERM and SIGINT, where the platform and the thread allow it."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        previous = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, stop)
        except (NotImplementedError, RuntimeError, ValueError):
            break  # this platform, or a thread that is not the main one, has no signals
        before[number] = previous
    try:
        yield
    finally:
        for number, previous in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous)
