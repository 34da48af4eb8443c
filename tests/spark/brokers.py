"""A broker beside the tests: in a thread, because what is tested here blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import bmq
from bmq.broker import Broker
from bmq.client.message import Message

T = TypeVar("T")

DOMAIN = "bmq.test.mem.priority"


class BrokerThread:
    """An embedded broker on a loop of its own."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        self.broker = self.run(self._start(options))
        self.uri = self.broker.uri

    @staticmethod
    async def _start(options: dict[str, Any]) -> Broker:
        broker = Broker(**options)
        await broker.start()
        return broker

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        self.run(self.broker.stop(graceful=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # what a user would do with a client

    def drain(
        self, uri: str, *, idle: float = 0.5, expect: int | None = None, expression: str = ""
    ) -> list[Message]:
        """Receive and confirm what is in a queue; with ``expect`` wait for that many, and for more after."""
        return self.run(self._drain(uri, idle, expect, expression))

    async def _drain(self, uri: str, idle: float, expect: int | None, expression: str = "") -> list[Message]:
        messages: list[Message] = []
        async with bmq.connect(self.uri) as session:
            opened = await session.open_queue(
                uri, read=True, max_unconfirmed_messages=1_000_000, default_subscription=False
            )
            queue = opened.subscribe(expression or None)
            while True:
                patience = 30.0 if expect is not None and len(messages) < expect else idle
                try:
                    batch = await queue.receive_many(10_000, timeout=patience)
                except TimeoutError:
                    return messages
                messages.extend(batch)
                batch.confirm()

    def start_draining(self, uri: str, expect: int) -> Callable[[], list[bytes]]:
        """Receive in the background; returns what waits for the payloads of that many messages."""
        future = asyncio.run_coroutine_threadsafe(self._drain(uri, 0.5, expect), self._loop)
        return lambda: [message.data for message in future.result(60)]

    def post(self, uri: str, items: list[Any]) -> None:
        """Post messages."""
        self.run(self._post(uri, items))

    async def _post(self, uri: str, items: list[Any]) -> None:
        async with bmq.connect(self.uri) as session:
            queue = await session.open_queue(uri, write=True)
            (await queue.post_many(items)).raise_for_failures()

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call something on the broker's loop."""

        async def caller() -> T:
            return function(self.broker)

        return self.run(caller())
