# SPDX-License-Identifier: Apache-2.0
"""Lanes: messages of a key are handled sequentially in all cases, and different keys concurrently."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

import bmq
from tests.waiting import eventually
from tests.workers.conftest import Standstill
from tests.workers.stage import Stage, consuming, numbered
from tests.workers.test_parameters import Order


async def fill(queue: bmq.Queue, *keys: str | None) -> None:
    """Post messages with the given keys, numbered from 0."""
    await queue.post_many(
        bmq.PutMessage(b"%d" % number, {} if key is None else {"key": key}) for number, key in enumerate(keys)
    )


class Record:
    """A handler that records all calls, and the number of keys at work at once."""

    def __init__(self, expected: int) -> None:
        self.done: dict[Any, list[int]] = defaultdict(list)
        self.at_work: set[Any] = set()
        self.most = 0
        self.expected = expected

    async def handle(self, message: bmq.Message) -> None:
        key = message.properties.get("key")
        assert key not in self.at_work, "two of one key"
        self.at_work.add(key)
        self.most = max(self.most, len(self.at_work))
        await asyncio.sleep(0)
        self.at_work.discard(key)
        self.done[key].append(int(message.data))

    async def finish(self) -> None:
        await eventually(lambda: sum(map(len, self.done.values())) == self.expected)


async def test_messages_of_a_key_are_sequential_and_keys_are_parallel(stage: Stage) -> None:
    record = Record(40)
    await fill(stage.queue, *["a", "b", "c", None] * 10)
    async with consuming(stage.queue, record.handle, concurrency=8, key="key"):
        await record.finish()
    assert record.done == {key: list(range(n, 40, 4)) for n, key in enumerate(["a", "b", "c", None])}
    assert record.most == 4


async def test_the_key_may_be_a_function_of_the_message(stage: Stage) -> None:
    both = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"0":
            await both.wait()  # 2 and 4 are in the same lane, and wait
        if message.data == b"3":
            both.set()

    await stage.post(*numbered(5))
    async with stage.consuming(handle, concurrency=2, key=lambda message: int(message.data) % 2):
        assert await stage.next(5) == [b"0", b"1", b"3", b"2", b"4"]


async def test_handled_messages_leave_room_for_the_bytes_of_others(stage: Stage) -> None:
    together = asyncio.Barrier(3)

    async def handle(message: bmq.Message) -> None:
        await together.wait()
        await stage.handle(message)

    await stage.post(*[bmq.PutMessage(b"x" * 200, {"key": number % 3}) for number in range(12)])
    async with stage.consuming(handle, key="key", concurrency=3, max_unconfirmed_bytes=1_000):
        await asyncio.wait_for(stage.next(12), 10)


async def test_a_retry_holds_its_own_key_and_no_worker(stage: Stage, standstill: Standstill) -> None:
    """While a message of a key waits for a retry, the only worker handles the messages of the other key."""
    seen: list[tuple[bytes, int]] = []

    async def handle(message: bmq.Message, attempt: bmq.Attempt) -> None:
        seen.append((message.data, attempt.number))
        if (message.data, attempt.number) == (b"0", 1):
            raise ConnectionError("away")
        if message.data == b"3":
            await standstill.resting.wait()
            standstill.go_on.set()

    await fill(stage.queue, "a", "a", "b", "b")
    async with stage.consuming(handle, key="key", retry=bmq.Backoff(every=5), clock=standstill):
        await eventually(lambda: len(seen) >= 5)
    assert seen == [(b"0", 1), (b"2", 1), (b"3", 1), (b"0", 2), (b"1", 1)]


async def test_a_busy_key_does_not_starve_other_keys(stage: Stage) -> None:
    order: list[Any] = []

    async def handle(message: bmq.Message) -> None:
        order.append(message.properties["key"])
        await asyncio.sleep(0)

    await fill(stage.queue, *["hot"] * 100, "a", "b", "c", "d")
    async with stage.consuming(handle, key="key", max_unconfirmed_messages=104):
        await eventually(lambda: len(order) == 104)
    assert {"a", "b", "c", "d"} <= set(order[:12]), order


@pytest.mark.parametrize("key", [lambda message: 1 / 0, lambda message: []], ids=["raises", "unhashable"])
async def test_a_failing_key_function_fails_the_attempt(stage: Stage, key: Any) -> None:
    await stage.post(b"x", b"y")
    async with stage.consuming(stage.handle, key=key, concurrency=2, retry=bmq.NoRetry(then="discard")):
        found = {(await stage.failures.get()).message.data for _ in range(2)}
    assert found == {b"x", b"y"}
    assert stage.seen.empty()
    assert await stage.left() == []


async def test_unhandled_messages_are_returned_in_order(stage: Stage) -> None:
    await fill(stage.queue, *"aabbaabb")
    async with stage.queue.subscribe() as consumer:
        task = asyncio.create_task(bmq.consume(consumer, stage.hold, concurrency=1, key="key"))
        await stage.begun.wait()
        await eventually(lambda: not consumer.buffered)
        task.cancel()
        await asyncio.sleep(0)
        stage.go.set()
        await asyncio.wait([task])
        found = await consumer.receive_many(100, timeout=10)
        assert [message.data for message in found] == numbered(8)[1:]


def test_a_key_is_checked_when_the_handler_is_registered() -> None:
    async def handle(order: Order) -> None: ...

    for key, why in ((7, "not 7"), ("", "not ''"), ("numbr", "did you mean number")):
        with pytest.raises(bmq.UsageError, match=why):
            bmq.App().consumer("bmq://d.e/q", key=key)(handle)  # type: ignore[arg-type]
    bmq.App().consumer("bmq://d.e/q", key="number", concurrency=64)(handle)
