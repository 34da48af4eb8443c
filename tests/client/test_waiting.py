# SPDX-License-Identifier: Apache-2.0
"""``Consumer.wait``: a caller learns about a message without taking it."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.waiting import eventually


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


async def test_waiting_takes_no_message(queue: bmq.Queue) -> None:
    async with queue.subscribe() as consumer:
        with pytest.raises(bmq.TimedOut, match="arrived"):
            await consumer.wait(timeout=0.001)
        await queue.post(b"1")
        await consumer.wait()
        await consumer.wait(timeout=0)
        assert consumer.buffered == 1
        message = consumer.receive_nowait()
        assert message is not None
        assert message.data == b"1"


@pytest.mark.parametrize("cancel", [False, True])
async def test_message_wakes_receivers_and_waiters(queue: bmq.Queue, cancel: bool) -> None:
    async with queue.subscribe() as consumer:
        waiting = [asyncio.create_task(consumer.wait()) for _ in range(3)]
        taking = asyncio.create_task(consumer.receive())
        await eventually(lambda: len(consumer._buffer.waiting) == 4)
        if cancel:
            waiting[0].cancel()
        await queue.post(b"1")
        assert (await taking).data == b"1"
        await queue.post(b"2")
        await asyncio.gather(*waiting, return_exceptions=True)
        assert consumer.buffered == 1


async def test_closing_a_consumer_ends_its_receivers(queue: bmq.Queue) -> None:
    consumer = await queue.subscribe()
    waiting = asyncio.create_task(consumer.wait())
    await eventually(lambda: len(consumer._buffer.waiting) == 1)
    await consumer.close()
    with pytest.raises(bmq.QueueClosed):
        await waiting
