# SPDX-License-Identifier: Apache-2.0
"""A primary dies and takes confirmations along, while the connection of the session lasts.

The next primary delivers the messages again. Whichever way an application receives, no message is handed out
twice, and each message is confirmed in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

import bmq
from tests.extras import with_tables
from tests.test_turns import MESSAGES, PATHS, Scene
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/lost"
LOST = MESSAGES // 2


def post(number: int) -> bmq.PutMessage:
    return bmq.PutMessage(b"%d" % number, {"lane": number % 3, "bmq_destination": f"{URI}.output"})


class Handed(Scene):
    """The same scene, which ends when every redelivery was handed out again or confirmed again."""

    handed = 0

    def saw(self, messages: int = 1) -> bool:
        if not self.enough.is_set():
            self.handed += messages
        return self.enough.is_set()

    async def end(self, queue: bmq.Queue) -> None:
        await eventually(
            lambda: self.handed + self.session.stats().confirmed_again == MESSAGES + LOST, timeout=20
        )
        self.enough.set()
        # A loop that waits for a message looks whether it is to end; one path takes messages by twos.
        (await queue.post_many([post(0), post(1)])).raise_for_failures()


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_no_way_to_receive_hands_a_message_out_twice(
    broker: bmq.broker.Broker, path: Callable[[Scene], Awaitable[None]]
) -> None:
    async with bmq.connect(broker.uri) as posting, bmq.connect(broker.uri) as session:
        queue = await posting.open_queue(URI, write=True)
        (await queue.post_many(map(post, range(MESSAGES)))).raise_for_failures()
        broker.faults.lose_confirms(LOST)
        scene = Handed(session, URI, broker.uri)
        ending = asyncio.create_task(scene.end(queue))
        await asyncio.wait_for(path(scene), 30)
        await ending
        assert scene.handed == MESSAGES
        await eventually(lambda: broker.queues[URI].stats().confirmed >= MESSAGES)


@pytest.mark.parametrize("way", ["iterate", *with_tables("tables")])
async def test_a_thousand_lost_confirmations_are_repeated(
    broker: bmq.broker.Broker, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Many at a time, as columns too, by a broker that is faster than any cluster."""
    caplog.set_level(logging.INFO, "bmq.client")
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True, max_unconfirmed_messages=10_000)
        (await queue.post_many([b"%d" % n for n in range(1000)])).raise_for_failures()
        broker.faults.lose_confirms(1000)
        consumer: Any = (
            queue.subscribe() if way == "iterate" else queue.tables(max_unconfirmed_messages=10_000)
        )
        received: list[bytes] = []

        async def receive() -> None:
            async for each in consumer:
                if way == "iterate":
                    received.append(each.data)
                    each.confirm()
                else:
                    received.extend(each.column("value").to_pylist())
                    consumer.confirm()

        receiving = asyncio.create_task(receive())
        await broker.drained(URI)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert sorted(received, key=int) == [b"%d" % n for n in range(1000)]
        stats = session.stats()
        assert (stats.received, stats.confirmed, stats.confirmed_again) == (1000, 1000, 1000)
        assert queue.stats().confirmed_again == 1000
        assert stats.unconfirmed == stats.redelivered == 0
        lines = [
            each.getMessage() for each in caplog.records if "confirms the messages again" in each.getMessage()
        ]
        assert len(lines) == 1
        assert URI in lines[0]


async def test_limits_and_statistics_ignore_the_lost_primary(broker: bmq.broker.Broker) -> None:
    """A window of two: were a redelivery neither handed out nor confirmed, nothing more would arrive."""
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        (await queue.post_many([b"%d" % n for n in range(20)])).raise_for_failures()
        broker.faults.lose_confirms(10)
        async with queue.subscribe(max_unconfirmed_messages=2) as consumer:
            for number in range(20):
                message = await consumer.receive(10)
                assert message.data == b"%d" % number
                message.confirm()
            await broker.drained(URI)
            stats = consumer.stats()
        assert (stats.received, stats.confirmed, stats.confirmed_again) == (20, 20, 10)
        assert stats.unconfirmed == stats.buffered_messages == 0


async def test_redeliveries_are_delivered_if_dropping_is_off(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri, drop_confirmed_redeliveries=False) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1")
        broker.faults.lose_confirms()
        for _ in range(2):
            (await queue.receive(10)).confirm()
        await broker.drained(URI)
        assert session.stats().confirmed_again == 0


async def test_message_left_by_a_worker_is_handled_on_redelivery(broker: bmq.broker.Broker) -> None:
    """Confirmations are remembered, and not that a message was handled."""
    tried: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        tried.put_nowait(message.data)
        raise ValueError

    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1")
        working = asyncio.create_task(bmq.consume(queue, handle, retry=bmq.NoRetry(then="leave")))
        assert await asyncio.wait_for(tried.get(), 10) == b"1"
        broker.faults.disconnect()
        assert await asyncio.wait_for(tried.get(), 10) == b"1"
        working.cancel()
        await asyncio.wait([working])
        assert session.stats().confirmed_again == 0
