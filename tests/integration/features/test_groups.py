# SPDX-License-Identifier: Apache-2.0
"""The basis of consumer groups: owners of buckets, and the order when members join and leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import bmq
from bmq.groups import key_bucket
from bmq.wire.control import Subscription
from tests.fakes.client import dial, subscription
from tests.integration.steps import HasUri
from tests.waiting import eventually

Sessions = Callable[..., Awaitable[bmq.Session]]
BUCKETS = 16


def buckets() -> list[Subscription]:
    """The hand-written subscriptions of a member."""
    return [
        subscription(1 + bucket, f"bmq_bucket % {BUCKETS} == {bucket}", priority=1, messages=100_000)
        for bucket in range(BUCKETS)
    ]


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@pytest.fixture
async def open_reader(bmq_connect: Sessions, bmq_queue_uri: str) -> Callable[[], Awaitable[bmq.Queue]]:
    async def open_reader() -> bmq.Queue:
        return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)

    return open_reader


async def post(queue: bmq.Queue, numbers: range) -> None:
    report = await queue.post_many(bmq.PutMessage(b"%d" % number, {"k": number}) for number in numbers)
    report.raise_for_failures()


async def take(group: bmq.groups.Group, count: int) -> list[int]:
    taken: list[int] = []
    for _ in range(count):
        message = await group.receive(timeout=10)
        taken.append(int(message.data))
        message.confirm()
    return taken


def in_order(numbers: list[int]) -> bool:
    """Whether the numbers of each bucket ascend."""
    of = {bucket: [n for n in numbers if n % BUCKETS == bucket] for bucket in range(BUCKETS)}
    return all(each == sorted(each) for each in of.values())


EDGES = [0, 1, -1, 15, 16, -16, -17, 2**31, -(2**31), 2**63 - 1, -(2**63), -(2**63) + 3, -(2**63) + 16]


async def test_every_number_has_a_bucket(
    writer: bmq.Queue, open_reader: Callable[[], Awaitable[bmq.Queue]]
) -> None:
    async with (await open_reader()).group("k", buckets=16) as group:
        for number in EDGES:
            await writer.post(b"%d" % number, properties={"k": number})
        for _ in EDGES:
            message = await group.receive(timeout=10)
            assert group.bucket_of(message) == int(message.data) % 16
            message.confirm()


@pytest.mark.parametrize("window", [0, 1])
async def test_a_full_window_below_an_unmatched_expression_stops_no_other_subscription(
    writer: bmq.Queue, open_reader: Callable[[], Awaitable[bmq.Queue]], window: int
) -> None:
    """Without the unmatched expression, a real broker delivers nothing to the second bucket."""
    queue = await open_reader()
    await queue.subscribe("exists(bmq_none)", priority=3, max_unconfirmed_messages=1).open()
    full = await queue.subscribe("k % 2 == 0", priority=2, max_unconfirmed_messages=1).open()
    await full.configure(max_unconfirmed_messages=window)
    other = await queue.subscribe("k % 2 == 1", priority=1, max_unconfirmed_messages=100).open()
    await post(writer, range(20))
    assert [int((await other.receive(timeout=10)).data) for _ in range(10)] == list(range(1, 20, 2))
    assert full.buffered == window
    if not window:
        await full.configure(max_unconfirmed_messages=100)
        assert [int((await full.receive(timeout=10)).data) for _ in range(10)] == list(range(0, 20, 2))


async def test_leaving_member_returns_its_messages_before_new_ones(
    writer: bmq.Queue, open_reader: Callable[[], Awaitable[bmq.Queue]]
) -> None:
    first = (await open_reader()).group("k", member="a", buckets=16)
    await first.open()
    await post(writer, range(1000))
    taken = await take(first, 100)
    second = (await open_reader()).group("k", member="b", buckets=16)
    await second.open()
    await post(writer, range(1000, 1500))
    await first.close()
    await post(writer, range(1500, 2000))
    rest = await take(second, 1900)
    assert sorted(taken + rest) == list(range(2000))
    assert in_order(taken + rest)


async def test_killed_member_returns_its_messages_before_new_ones(
    bmq_broker: HasUri,
    writer: bmq.Queue,
    open_reader: Callable[[], Awaitable[bmq.Queue]],
    bmq_queue_uri: str,
) -> None:
    keys = {key_bucket(f"key-{number}") % BUCKETS: f"key-{number}" for number in range(200)}
    assert len(keys) == BUCKETS

    async def post_keyed(numbers: range) -> None:
        for number in numbers:
            await writer.post(b"%d" % number, key=keys[number % BUCKETS])

    async with dial(bmq_broker.uri) as raw:
        await raw.negotiate()
        await raw.open(bmq_queue_uri, read=True)
        await raw.configure(0, *buckets())
        await post_keyed(range(100))
        await raw.pushes(100)
        second = (await open_reader()).group(member="y", buckets=16)
        joining = second.open()
    # The connection has ended; no message was confirmed.
    await joining
    await post_keyed(range(100, 200))
    taken = await take(second, 200)
    assert sorted(taken) == list(range(200))
    assert in_order(taken)


async def test_a_joining_member_begins_where_the_owner_ended(
    writer: bmq.Queue, open_reader: Callable[[], Awaitable[bmq.Queue]]
) -> None:
    """Messages that were acknowledged before the join, and are delivered later, keep their order too."""
    first, second = [
        (await open_reader()).group("k", member=name, buckets=BUCKETS, lease=2.0) for name in ("a", "b")
    ]
    taken: list[tuple[str, int]] = []

    async def take_all(group: bmq.groups.Group) -> None:
        async for message in group:
            async with message:
                taken.append((group.member, int(message.data)))

    async with asyncio.timeout(60), first:
        tasks = [asyncio.create_task(take_all(first))]
        await post(writer, range(160))
        async with second:
            tasks.append(asyncio.create_task(take_all(second)))
            await post(writer, range(160, 240))
            await eventually(lambda: len(first.owned) == len(second.owned) == BUCKETS // 2)
            owned = {"a": first.owned, "b": second.owned}
            await post(writer, range(240, 320))
            await eventually(lambda: len(taken) == 320)
    await asyncio.gather(*tasks)
    assert sorted(number for _, number in taken) == list(range(320))
    assert in_order([number for _, number in taken])
    for bucket in range(BUCKETS):
        members = [member for member, number in taken if number % BUCKETS == bucket]
        assert members == sorted(members)
        assert members[-1] == ("a" if bucket in owned["a"] else "b")
