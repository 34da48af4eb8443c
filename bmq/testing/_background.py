# SPDX-License-Identifier: Apache-2.0
"""An embedded broker on a thread of its own, for programs and tests without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from bmq.broker import Broker
from bmq.errors import StateError, UsageError

__all__ = ["BackgroundBroker"]

T = TypeVar("T")
P = ParamSpec("P")


def _with_arguments_of(
    _: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Tell type checkers that a method takes the same arguments."""
    return lambda method: method


class BackgroundBroker:
    """An embedded broker on a thread of its own.

    ::

        with BackgroundBroker() as broker:
            start_my_service(broker.uri)

    The arguments are those of :class:`bmq.broker.Broker`. The broker itself belongs to its thread: reach it
    only through :meth:`call`.
    """

    @_with_arguments_of(Broker)
    def __init__(self, **options: Any) -> None:
        unknown = set(options) - set(inspect.signature(Broker).parameters)
        if unknown:
            raise UsageError(f"a broker has no option {', '.join(sorted(unknown))}")
        Broker(**options)  # what is wrong with the arguments is raised here, not in a thread
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Event | None = None
        self.uri = ""

    def start(self) -> None:
        """Start it and wait until clients can connect.

        Raises:
            StateError: it is running.
            OSError: the address cannot be used.
        """
        if self._thread is not None:
            raise StateError("the broker is running")
        started = threading.Event()
        failure: list[BaseException] = []

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._ended = asyncio.Event()
            async with Broker(**self._options) as self._broker:
                self.uri = self._broker.uri
                started.set()
                await self._ended.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                failure.append(error)
                started.set()

        self._thread = threading.Thread(target=run, name="bmq broker", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            self._thread.join()
            self._thread = None
            raise failure[0]

    def stop(self) -> None:
        """Stop it and wait until it is gone. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def call(self, function: Callable[[Broker], T | Coroutine[Any, Any, T]]) -> T:
        """Call a function, sync or async, with the broker, on its thread; returns what it returns.

        Raises:
            StateError: it is not running.
        """
        if self._thread is None or self._loop is None or self._broker is None:
            raise StateError("the broker is not running")
        broker = self._broker

        async def call() -> T:
            result = function(broker)
            if asyncio.iscoroutine(result):
                return await result
            return result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def __enter__(self) -> BackgroundBroker:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
