# SPDX-License-Identifier: Apache-2.0
"""Bundles: one subscription of a member for many of its buckets, at an embedded broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from bmq.client.consumer import Consumer
from bmq.groups._bundles import BUNDLES, Bundles
from tests.groups.conftest import Ledger, Open, handle, post
from tests.waiting import eventually

OPTIONS: dict[str, Any] = {"buckets": 8, "lease": 0.5}
WITHOUT_BUCKET_3 = ["(k - 1) % 4 == 0", "(k - 7) % 8 == 0", "k % 2 == 0"]


def bundles(*queues: bmq.Queue) -> list[str]:
    """The expressions of the bundles of members."""
    return sorted(
        text
        for queue in queues
        for consumer in queue.consumers
        for text in consumer.expressions
        if 0 < consumer.options.priority < BUNDLES
    )


async def test_a_member_has_few_subscriptions_above_those_of_its_buckets(
    writer: bmq.Queue, open_reader: Open
) -> None:
    first, second = await open_reader(), await open_reader()
    ledger = Ledger(8)
    async with first.group("k", **OPTIONS) as group:
        tasks = [asyncio.create_task(handle(group, "first", ledger))]
        await eventually(lambda: len(group.owned) == 8)
        assert bundles(first) == []
        await post(writer, *range(24))
        await eventually(lambda: bundles(first) == ["k % 1 == 0"])
        async with second.group("k", **OPTIONS) as other:
            tasks.append(asyncio.create_task(handle(other, "second", ledger)))
            await eventually(lambda: len(other.owned) == len(group.owned) == 4)
            await post(writer, *range(24, 48))
            await eventually(lambda: bundles(first, second) == ["(k - 1) % 2 == 0", "k % 2 == 0"])
            await post(writer, *range(48, 240))
            await eventually(lambda: len(ledger.done) == 240)
        await eventually(lambda: len(group.owned) == 8)
        await post(writer, *range(240, 264))
        await eventually(lambda: bundles(first) == ["k % 1 == 0"])
        await eventually(lambda: len(ledger.done) == 264)
    await asyncio.gather(*tasks)
    assert ledger.wrong == []
    assert len(ledger.handled) == 264
    assert not first.consumers


async def test_a_bucket_whose_former_owner_still_subscribes_stays_out_of_bundles(
    writer: bmq.Queue, reader: bmq.Queue, open_reader: Open
) -> None:
    """A bundle would take the messages away from the former owner, who has earlier ones unconfirmed."""
    former = await open_reader()
    standing = await former.subscribe("(k - 3) % 8 == 0", priority=-1000).open()
    ledger = Ledger(8)
    async with reader.group("k", **OPTIONS) as group:
        task = asyncio.create_task(handle(group, "new", ledger))
        await eventually(lambda: len(group.owned) == 8)
        await post(writer, *range(24))
        await eventually(lambda: bundles(reader) == WITHOUT_BUCKET_3)
        await post(writer, *range(24, 96))
        await eventually(lambda: len(ledger.done) == 84)
        assert not [number for number in ledger.done if number % 8 == 3]
        assert standing.buffered == 12
        await former.close()  # the broker delivers its messages first
        await eventually(lambda: len(ledger.done) == 96)
        await eventually(lambda: bundles(reader) == ["k % 1 == 0"])
    await task
    assert ledger.wrong == []


async def test_a_message_put_back_does_not_show_that_the_former_owner_has_gone(
    writer: bmq.Queue, reader: bmq.Queue, open_reader: Open
) -> None:
    former = await open_reader()
    await former.subscribe("(k - 3) % 8 == 0", priority=-1000).open()
    async with reader.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 8)
        await post(writer, *range(24))
        message = await group.receive()
        blocked = next(each for each in reader.consumers if each.expressions == ["(k - 3) % 8 == 0"])
        blocked.put_back([message])
        received = [await group.receive() for _ in range(21)]
        assert 3 in [group.bucket_of(each) for each in received]
        await eventually(lambda: bundles(reader))
        assert bundles(reader) == WITHOUT_BUCKET_3


async def test_messages_with_a_negative_bucket_go_where_they_went_without_bundles(
    writer: bmq.Queue, reader: bmq.Queue
) -> None:
    async with reader.group(**OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 8)
        for bucket in range(8):
            await writer.post(b"x", properties={"bmq_bucket": bucket})
            (await group.receive(timeout=20)).confirm()
        await eventually(lambda: bundles(reader) == ["bmq_bucket % 1 == 0"])
        for bucket, wanted in ((-4, None), (-8, 0), (-3, None), (2**62, 0)):
            await writer.post(b"x", properties={"bmq_bucket": bucket})
            message = await group.receive(timeout=20)
            assert (group.bucket_of(message), message.properties["bmq_bucket"]) == (wanted, bucket)


async def test_a_refused_bundle_is_left_out(
    writer: bmq.Queue, reader: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, refused = Consumer.open, list[str]()

    async def refuse(self: Consumer) -> Consumer:
        if self.queue is reader and 0 < self.options.priority < BUNDLES:
            refused.append(str(self.expression))
            await self.close()
            raise bmq.ConfigureQueueError("too many subscriptions")
        return await opened(self)

    monkeypatch.setattr(Consumer, "open", refuse)
    ledger = Ledger(8)
    async with reader.group("k", **OPTIONS) as group:
        task = asyncio.create_task(handle(group, "one", ledger))
        await eventually(lambda: len(group.owned) == 8)
        await post(writer, *range(24))
        await eventually(lambda: refused)
        await post(writer, *range(24, 144))
        await eventually(lambda: len(ledger.done) == 144)
        assert bundles(reader) == []
    await task
    assert ledger.wrong == []


def test_without_a_power_of_two_a_bundle_of_integer_keys_could_differ_from_its_buckets() -> None:
    """The lowest keys overflow: they are in another bucket of 6 than of 2."""
    parts: Any = None, None, [None] * 6, "k", None
    Bundles(*parts).change(range(6))  # asks no queue for a bundle
