# SPDX-License-Identifier: Apache-2.0
"""Spark's partition writer, with its event loop in the calling thread: every step is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

if TYPE_CHECKING:
    from bmq.spark._sink_settings import SinkSettings

__all__ = ["batches_of", "in_this_thread", "settings_for"]

T = TypeVar("T")
PAYLOAD = 256


class _Outcome:
    """A task of the event loop, as a future of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._task = loop.create_task(work)

    def result(self, timeout: float | None = None) -> Any:
        return self._loop.run_until_complete(self._task)

    def cancel(self) -> bool:
        return self._task.cancel()


class _Here:
    """An event loop that runs while its caller waits, in place of :class:`bmq._loop.LoopThread`."""

    forked = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return self.loop.run_until_complete(work)

    def submit(self, work: Coroutine[Any, Any, Any]) -> _Outcome:
        return _Outcome(self.loop, work)

    def end(self, timeout: float | None) -> None:
        pass


@contextmanager
def in_this_thread(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Let the writers of the block use an event loop of this thread, and close their sessions afterwards."""
    from bmq.spark import _portal

    def here(_: str) -> _Here:
        return _Here(loop)

    with mock.patch.object(_portal, "LoopThread", here), mock.patch.object(_portal, "_current", None):
        yield
        _portal.shutdown()


def settings_for(uri: str, queue: str) -> SinkSettings:
    """Return the settings of a sink with two properties."""
    from bmq.spark import write_partition

    return write_partition(queue=queue, broker=uri, properties=["CustomerId", "OrderType"]).settings


def batches_of(rows: int, size: int, first: int = 0, payload: int = PAYLOAD) -> Generator[tuple[int, Any]]:
    """Yield different rows in Arrow batches of a size, each with the position of its first row."""
    from bmq.spark._arrow import pa

    for start in range(0, rows, size):
        values = [f"row {first + at}".ljust(payload, ".").encode() for at in range(start, start + size)]
        columns = {"value": values, "CustomerId": [1234] * size, "OrderType": ["EXPRESS"] * size}
        yield start, pa.record_batch(columns)
