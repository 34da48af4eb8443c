# SPDX-License-Identifier: Apache-2.0
"""A broker in a thread, because the code under test blocks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import bmq
from bmq.client.message import Message
from bmq.testing import BackgroundBroker

DOMAIN = "bmq.test.mem.priority"


class BrokerThread(BackgroundBroker):
    """An embedded broker, with a user's typical actions through a client."""

    def drain(
        self, uri: str, *, idle: float = 0.5, expect: int | None = None, expression: str = ""
    ) -> list[Message]:
        """Receive and confirm what is in a queue; with ``expect`` wait for that many, and for more after."""
        return self.call(lambda _: self._drain(uri, idle, expect, expression))

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
        """Receive in the background; return a function that waits for this many payloads."""
        task = self.call(lambda _: asyncio.ensure_future(self._drain(uri, 0.5, expect)))
        return lambda: [message.data for message in self.call(lambda _: asyncio.wait_for(task, 60))]

    def post(self, uri: str, items: list[Any]) -> None:
        """Post messages."""
        self.call(lambda _: self._post(uri, items))

    @contextmanager
    def posting(self, uri: str, items: list[Any], pause: float) -> Iterator[None]:
        """Post messages again and again, singly, with a pause after each."""
        task = self.call(lambda _: asyncio.ensure_future(self._posting(uri, items, pause)))
        try:
            yield
        finally:
            self.call(lambda _: task.cancel())

    async def _posting(self, uri: str, items: list[Any], pause: float) -> None:
        async with bmq.connect(self.uri) as session:
            queue = await session.open_queue(uri, write=True)
            for item in itertools.cycle(items):
                await queue.post_many([item])
                await asyncio.sleep(pause)

    async def _post(self, uri: str, items: list[Any]) -> None:
        async with bmq.connect(self.uri) as session:
            queue = await session.open_queue(uri, write=True)
            (await queue.post_many(items)).raise_for_failures()
