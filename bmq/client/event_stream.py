# SPDX-License-Identifier: Apache-2.0
"""Session events for the application: iterators and a callback."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable

from bmq._live import live
from bmq._logging import Log
from bmq._turn import turn_of
from bmq.protocol.client.events import SessionEvent

__all__ = ["EventStream"]

logger = Log("bmq.client", later=True)

_MAX_WAITING = 1000


@live
class _Subscriber(AsyncIterator[SessionEvent]):
    def __init__(self, ended: bool) -> None:
        self._waiting: deque[SessionEvent] = deque(maxlen=_MAX_WAITING)
        self._wakeup: asyncio.Event = asyncio.Event()
        self._ended = ended

    def put(self, event: SessionEvent) -> None:
        self._waiting.append(event)
        self._wakeup.set()

    def end(self) -> None:
        self._ended = True
        self._wakeup.set()

    async def __anext__(self) -> SessionEvent:
        turn = turn_of(asyncio.get_running_loop())
        while True:
            while not self._waiting:
                if self._ended:
                    raise StopAsyncIteration
                self._wakeup.clear()
                await self._wakeup.wait()
            if turn.clock() < turn.until:
                break
            await turn.wait()
            if self._waiting:
                break  # false if another loop over the same iterator was faster
        return self._waiting.popleft()


def _raise(error: BaseException) -> None:
    raise error


class EventStream:
    """Passes each event to all live subscribers.

    Args:
        callback: called with each event, in the event loop. Exceptions of the callback are logged;
            KeyboardInterrupt and SystemExit also end the event loop, in the next turn.
    """

    def __init__(self, callback: Callable[[SessionEvent], None] | None) -> None:
        self._callback = callback
        self._subscribers: weakref.WeakKeyDictionary[_Subscriber, None] = weakref.WeakKeyDictionary()
        self._ended = False

    def subscribe(self) -> AsyncIterator[SessionEvent]:
        """Return an iterator over the events from now on."""
        subscriber = _Subscriber(self._ended)
        if not self._ended:
            self._subscribers[subscriber] = None
        return subscriber

    def publish(self, event: SessionEvent) -> None:
        """Pass an event to the subscribers."""
        for subscriber in list(self._subscribers):
            subscriber.put(event)
        if self._callback is not None:
            try:
                self._callback(event)
            except (KeyboardInterrupt, SystemExit) as error:
                # These exceptions end the event loop, as from any other callback, but outside the client's
                # own code.
                asyncio.get_running_loop().call_soon(_raise, error)
            except BaseException:
                # Includes CancelledError: the callback may have awaited a cancelled future.
                logger.exception("the session event callback failed on %r", event)

    def end(self) -> None:
        """End the iterators of all subscribers after the last event."""
        self._ended = True
        for subscriber in list(self._subscribers):
            subscriber.end()
        self._subscribers.clear()
