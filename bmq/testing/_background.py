# SPDX-License-Identifier: Apache-2.0
"""An embedded broker on a separate thread, for programs and tests without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from bmq import _checks
from bmq._live import live
from bmq._loop import LoopThread
from bmq.broker import Broker
from bmq.errors import StateError

__all__ = ["BackgroundBroker"]

T = TypeVar("T")
P = ParamSpec("P")


def _with_arguments_of(
    _: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Tell type checkers that a method takes the same arguments."""
    return lambda method: method


@live
class BackgroundBroker:
    """An embedded broker on a separate thread.

    ::

        with BackgroundBroker() as broker:
            start_my_service(broker.uri)

    The arguments are those of :class:`bmq.broker.Broker`. The broker belongs to its thread: use only
    :meth:`call` to reach the broker.
    """

    @_with_arguments_of(Broker)
    def __init__(self, **options: Any) -> None:
        _checks.keywords(f"{type(self).__qualname__}()", options, inspect.signature(Broker).parameters)
        Broker(**options)  # raise errors of the arguments here, not in a thread
        self._options = options
        self._broker: Broker | None = None
        self._thread: LoopThread | None = None
        self.uri = ""

    def start(self) -> None:
        """Start the broker, and wait until clients can connect.

        Raises:
            StateError: the broker is running.
            OSError: the address cannot be used.
        """
        if self._thread is not None:
            raise StateError("the broker is running")
        thread = LoopThread("bmq broker")

        async def start() -> Broker:
            broker = Broker(**self._options)
            await broker.start()
            return broker

        try:
            self._broker = thread.run(start())
        except BaseException:
            thread.end(None)
            raise
        self._thread, self.uri = thread, self._broker.uri

    def stop(self) -> None:
        """Stop the broker, and wait for the end. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._broker is not None:
            thread.run(self._broker.stop())
            thread.end(None)

    def call(self, function: Callable[[Broker], T | Coroutine[Any, Any, T]]) -> T:
        """Call a function, sync or async, with the broker, on the broker's thread; return the result.

        Raises:
            StateError: the broker is not running.
        """
        if self._thread is None or self._broker is None:
            raise StateError("the broker is not running")
        broker = self._broker

        async def call() -> T:
            result = function(broker)
            if asyncio.iscoroutine(result):
                return await result
            return result

        return self._thread.run(call())

    def __enter__(self) -> BackgroundBroker:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
