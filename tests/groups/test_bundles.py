# SPDX-License-Identifier: Apache-2.0
"""Bundles: one subscription of a member for many of its buckets, at an embedded broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.client.consumer import Consumer
from bmq.groups._bundles import BUNDLES, Bundles
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]
OPTIONS: dict[str, Any] = {"buckets": 8, "lease": 0.5}


def bundles(queue: bmq.Queue) -> list[str]:
    """The expressions of the bundles of a member."""
    return sorted(
        text
        for consumer in queue.consumers
        for text in consumer.expressions
        if 0 < consumer.options.priority < BUNDLES
    )


class Flow:
    """A producer that posts numbers with keys in turn, and the members that handle them.

    Attributes:
        posted: how many messages were posted.
        handled: the numbers handled, by key.
        wrong: the messages handled out of order.
    """

    def __init__(self, writer: bmq.Queue, keys: int) -> None:
        self.posted = 0
        self.handled: dict[int, list[int]] = {key: [] for key in range(keys)}
        self.wrong: list[tuple[int, int, int]] = []
        self._writer = writer
        self._keys = keys

    async def post(self, count: int = 1) -> None:
        """Post as many messages for each key."""
        numbers = range(self.posted, self.posted + count * self._keys)
        self.posted += len(numbers)
        report = await self._writer.post_many(
            bmq.PutMessage(b"%d" % number, {"k": number % self._keys}) for number in numbers
        )
        report.raise_for_failures()

    async def handle(self, group: bmq.groups.Group, pause: float = 0.0) -> None:
        """Handle the messages of a member."""
        async for message in group:
            async with message:
                number, key = int(message.data), message.properties["k"]
                assert isinstance(key, int)
                assert group.bucket_of(message) == key % OPTIONS["buckets"]
                before = self.handled[key][-1] if self.handled[key] else -1
                if number != before + self._keys and before >= 0:
                    self.wrong.append((key, before, number))
                if pause:
                    await asyncio.sleep(pause)
                self.handled[key].append(number)

    def done(self) -> bool:
        """Whether every message was handled."""
        return sum(map(len, self.handled.values())) == self.posted


@pytest.fixture
async def flow(bmq_session: bmq.Session, bmq_queue_uri: str) -> Flow:
    return Flow(await bmq_session.open_queue(bmq_queue_uri, write=True), 24)


@pytest.fixture
async def tasks() -> AsyncIterator[list[asyncio.Task[None]]]:
    running: list[asyncio.Task[None]] = []
    yield running
    await asyncio.gather(*running)


async def test_a_member_has_few_subscriptions_above_those_of_its_buckets(
    bmq_connect: Connect, bmq_queue_uri: str, flow: Flow, tasks: list[asyncio.Task[None]]
) -> None:
    first = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    second = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    halves = ["(k - 1) % 2 == 0", "k % 2 == 0"]
    async with first.group("k", **OPTIONS) as group:
        tasks.append(asyncio.create_task(flow.handle(group)))
        await eventually(lambda: len(group.owned) == 8)
        assert bundles(first) == []
        await flow.post()
        await eventually(lambda: bundles(first) == ["k % 1 == 0"])
        async with second.group("k", **OPTIONS) as other:
            tasks.append(asyncio.create_task(flow.handle(other)))
            await eventually(lambda: len(other.owned) == len(group.owned) == 4)
            await flow.post()
            await eventually(lambda: sorted(bundles(first) + bundles(second)) == halves)
            await flow.post(10)
            await eventually(flow.done)
        await eventually(lambda: len(group.owned) == 8)
        await flow.post()
        await eventually(lambda: bundles(first) == ["k % 1 == 0"])
        await eventually(flow.done)
    assert flow.wrong == []
    assert not first.consumers


async def test_a_bucket_whose_former_owner_still_subscribes_stays_out_of_bundles(
    bmq_connect: Connect, bmq_queue_uri: str, flow: Flow, tasks: list[asyncio.Task[None]]
) -> None:
    """A bundle would take the messages away from the former owner, who has earlier ones unconfirmed."""
    former = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    standing = former.subscribe("(k - 3) % 8 == 0", priority=-1000)
    await standing.open()
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        tasks.append(asyncio.create_task(flow.handle(group)))
        await eventually(lambda: len(group.owned) == 8)
        await flow.post()
        await eventually(lambda: len(bundles(queue)) == 3)
        assert bundles(queue) == ["(k - 1) % 4 == 0", "(k - 7) % 8 == 0", "k % 2 == 0"]
        await flow.post(3)
        await eventually(lambda: all(len(flow.handled[key]) == 4 for key in range(24) if key % 8 != 3))
        assert [flow.handled[key] for key in (3, 11, 19)] == [[], [], []]
        assert standing.buffered == 12
        await former.close()  # the broker delivers its messages first
        await eventually(flow.done)
        await eventually(lambda: bundles(queue) == ["k % 1 == 0"])
    assert flow.wrong == []


async def test_a_message_put_back_does_not_show_that_the_former_owner_has_gone(
    bmq_connect: Connect, bmq_queue_uri: str, flow: Flow
) -> None:
    former = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    await former.subscribe("(k - 3) % 8 == 0", priority=-1000).open()
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 8)
        await flow.post()
        message = await group.receive()
        blocked = next(each for each in queue.consumers if each.expressions == ["(k - 3) % 8 == 0"])
        blocked.put_back([message])
        received = [await group.receive() for _ in range(21)]
        assert 3 in [group.bucket_of(each) for each in received]
        await eventually(lambda: bundles(queue))
        assert bundles(queue) == ["(k - 1) % 4 == 0", "(k - 7) % 8 == 0", "k % 2 == 0"]


async def test_messages_with_a_negative_bucket_go_where_they_went_without_bundles(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    writer = await bmq_session.open_queue(bmq_queue_uri, write=True)
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    received: list[tuple[int | None, object]] = []

    async def handle(group: bmq.groups.Group) -> None:
        async for message in group:
            async with message:
                received.append((group.bucket_of(message), message.properties["bmq_bucket"]))

    async with queue.group(**OPTIONS) as group:
        handling = asyncio.create_task(handle(group))
        await eventually(lambda: len(group.owned) == 8)
        for bucket in range(8):
            await writer.post(b"x", properties={"bmq_bucket": bucket})
        await eventually(lambda: bundles(queue) == ["bmq_bucket % 1 == 0"])
        received.clear()
        for bucket in (-4, -8, -3, 2**62):
            await writer.post(b"x", properties={"bmq_bucket": bucket})
        await eventually(lambda: len(received) == 4)
        assert sorted(received, key=repr) == sorted([(None, -4), (0, -8), (None, -3), (0, 2**62)], key=repr)
    await handling


async def test_a_refused_bundle_is_left_out(
    bmq_connect: Connect,
    bmq_queue_uri: str,
    flow: Flow,
    tasks: list[asyncio.Task[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, refused = Consumer.open, list[str]()

    async def refuse(self: Consumer) -> Consumer:
        if self.queue is queue and 0 < self.options.priority < BUNDLES:
            refused.append(str(self.expression))
            await self.close()
            raise bmq.ConfigureQueueError("too many subscriptions")
        return await opened(self)

    monkeypatch.setattr(Consumer, "open", refuse)
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        tasks.append(asyncio.create_task(flow.handle(group)))
        await eventually(lambda: len(group.owned) == 8)
        await flow.post()
        await eventually(lambda: refused)
        await flow.post(5)
        await eventually(flow.done)
        assert bundles(queue) == []
    assert flow.wrong == []


def test_without_a_power_of_two_a_bundle_of_integer_keys_could_differ_from_its_buckets() -> None:
    """The lowest keys overflow: they are in another bucket of 6 than of 2."""
    asked: list[str] = []

    class Queue:
        def subscribe(self, expression: object, **limits: object) -> Any:
            asked.append(str(expression))
            raise AssertionError("no bundle is asked for")

    parts: Any = Queue(), None, [None] * 6, "k", None
    made = Bundles(*parts)
    made.change(range(6))
    assert asked == []
