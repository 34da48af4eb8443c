# SPDX-License-Identifier: Apache-2.0
"""Subscriptions as objects: adding, changing and removing them during delivery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from tests.subscriptions.through_broker.scene import Scene, names, nothing


def refuse(consumer: bmq.Consumer) -> None:
    """Give a subscription a priority refused by the broker."""
    for core in consumer._buffer.definition.subscriptions:
        core.options = core.options._replace(priority=-(2**31))


async def test_refused_change_restores_the_broker_state(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1", priority=7) as consumer:
        redefine = queue._subscriptions.redefine

        def broken(line: Any, definition: Any) -> Any:
            for each in definition.subscriptions:
                each.options = each.options._replace(priority=-(2**31))
            return redefine(line, definition)

        monkeypatch.setattr(queue._subscriptions, "redefine", broken)
        with pytest.raises(bmq.ConfigureQueueError):
            await consumer.configure("x == 2", priority=9)
        assert consumer.expressions == ["x == 1"]
        assert consumer.options.priority == 7
        assert queue.consumers == [consumer]
        monkeypatch.undo()
        await scene.post(b={"x": 2}, a={"x": 1})
        assert await names(consumer, 1) == ["a"]
        await consumer.configure("x == 2")
        assert await names(consumer, 1) == ["b"]


async def test_consumers_are_opened_closed_and_changed_together(scene: Scene) -> None:
    queue = await scene.reader()
    leaving, changing = await queue.subscribe("x == 1"), await queue.subscribe("x == 2")
    coming = queue.subscribe("x == 4")
    await asyncio.gather(leaving.close(), changing.configure("x == 3"), coming.open())
    await scene.post(a={"x": 1}, b={"x": 2}, c={"x": 3}, d={"x": 4})
    assert await names(changing, 1) == ["c"]
    assert await names(coming, 1) == ["d"]
    await queue.close()
    assert await scene.left() == ["a", "b"]


async def test_messages_routed_before_a_change_still_arrive(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as one, queue.subscribe("x == 2") as two:
        posts = [scene.producer.post_nowait(b"%d" % n, properties={"x": 1 + n % 2}) for n in range(1000)]
        for number in range(20):
            # Every text matches the same messages: the broker may route a message before any of the changes.
            await one.configure(f"x == 1 && x != {number + 2}", max_unconfirmed_messages=900 + number)
        for each in posts:
            await each
        assert await names(one, 500) == [str(n) for n in range(0, 1000, 2)]
        assert await names(two, 500) == [str(n) for n in range(1, 1000, 2)]
        assert nothing(one, two)


@pytest.mark.parametrize("way", ["iterating", "receive", "receive_many", "batches", "receive_nowait"])
async def test_every_way_to_receive_begins_the_default_subscription(scene: Scene, way: str) -> None:
    queue = await scene.reader(default_subscription=None)
    await scene.post(a={})
    if way == "iterating":
        message = await anext(aiter(queue))
    elif way == "receive":
        message = await queue.receive(20)
    elif way == "receive_many":
        message = (await queue.receive_many(timeout=20))[0]
    elif way == "batches":
        message = (await anext(aiter(queue.batches())))[0]
    else:
        async with asyncio.timeout(20):
            while (found := queue.receive_nowait()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        message = found
    assert message.data == b"a"


async def test_the_default_subscription_starts_at_once_or_never_on_request(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=True)
    assert [each.expressions for each in queue.consumers] == [[""]]
    async with queue.subscribe("x == 1"):
        assert len(queue.consumers) == 2
    await queue.close()
    without = await scene.reader(default_subscription=False)
    for receive in (without.receive_nowait, without.batches, lambda: aiter(without)):
        with pytest.raises(bmq.UsageError, match="default_subscription=False"):
            receive()


async def test_messages_of_a_closed_consumer_go_to_a_matching_consumer(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x >= 0", priority=1) as rest:
        leaving = await queue.subscribe("x == 1", priority=2)
        await scene.post(**{str(n): {"x": 1} for n in range(10)}, end={"x": 0})
        assert await names(rest, 1) == ["end"]
        assert leaving.buffered == 10
        assert await names(leaving, 2) == ["0", "1"]
        await leaving.close()
        assert await names(rest, 8) == [str(n) for n in range(2, 10)]
    await queue.close()
    assert await scene.left() == []


async def test_unclaimed_messages_stay_until_a_consumer_matches(scene: Scene) -> None:
    """Unclaimed messages block neither remaining consumers, here and elsewhere, nor new consumers."""
    queue, elsewhere = await scene.reader(), await scene.reader()
    async with queue.subscribe("x == 2") as other, elsewhere.subscribe("x == 3") as far:
        leaving = await queue.subscribe("x == 1")
        await scene.post(**{str(n): {"x": 1} for n in range(10)}, end={"x": 2})
        assert await names(other, 1) == ["end"]
        assert await names(leaving, 2) == ["0", "1"]
        await leaving.close()
        assert queue.unclaimed == 8
        await scene.post(two={"x": 2}, three={"x": 3}, four={"x": 4})
        assert await names(other, 1) == ["two"]
        assert await names(far, 1) == ["three"]
        async with queue.subscribe("x == 4") as coming:
            assert await names(coming, 1) == ["four"]
        await scene.post(late={"x": 1})
        async with queue.subscribe("x == 1") as again:
            assert queue.unclaimed == 0
            assert await names(again, 9) == [*map(str, range(2, 10)), "late"]
    await queue.close()
    await elsewhere.close()
    assert await scene.left() == []


async def test_changing_consumers_neither_lose_nor_duplicate_messages(scene: Scene) -> None:
    queue, elsewhere = await scene.reader(), await scene.reader()
    done = asyncio.Event()
    posted = 0

    async def produce() -> None:
        nonlocal posted
        while not done.is_set():
            await scene.post(**{str(n): {"x": 2} for n in range(posted, posted + 20)})
            posted += 20

    async def consume(consumer: bmq.Consumer, into: list[str]) -> None:
        async for message in consumer:
            into.append(message.data.decode())
            message.confirm()

    found: list[str] = []
    async with queue.subscribe("x == 2") as steady, elsewhere.subscribe("x == 3"):
        consuming = asyncio.create_task(consume(steady, found))
        producing = asyncio.create_task(produce())
        for number in range(30):
            leaving = await queue.subscribe("x == 1", priority=9)
            await scene.post(**{f"l{number}": {"x": 1}})
            await leaving.close()
        done.set()
        await producing
        while len(found) < posted:
            await scene.round_trip(queue)
    await consuming
    assert found == [str(n) for n in range(posted)]
    await queue.close()
    await elsewhere.close()
    assert sorted(await scene.left()) == sorted(f"l{number}" for number in range(30))


async def test_changes_that_share_a_request_share_its_refusal(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 0") as standing:
        good, bad = queue.subscribe("x == 1"), queue.subscribe("x == 2")
        refuse(bad)
        outcomes = await asyncio.gather(good.open(), bad.open(), return_exceptions=True)
        assert [type(each) for each in outcomes] == [bmq.ConfigureQueueError] * 2
        assert queue.consumers == [standing]
        await good.open()
        assert queue.consumers == [standing, good]
        await scene.post(b={"x": 2}, a={"x": 1}, z={"x": 0})
        assert await names(good, 1) == ["a"]
        assert await names(standing, 1) == ["z"]
    await queue.close()
    assert await scene.left() == ["b"]


async def test_cancelled_subscribe_withdraws_the_subscription(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as standing:
        await scene.post(**{str(n): {"x": 2} for n in range(10)})
        opening = asyncio.create_task(queue.subscribe("x == 2").open())
        while queue.state is not bmq.QueueState.RECONFIGURING:  # noqa: ASYNC110
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        await scene.post(a={"x": 1})
        assert await names(standing, 1) == ["a"]
        assert queue.consumers == [standing]
        await queue.close()
        elsewhere = await scene.reader()
        async with elsewhere.subscribe("x == 2") as taking:
            assert await names(taking, 10) == [str(n) for n in range(10)]


async def test_drain_skips_messages_of_its_full_filter(scene: Scene) -> None:
    """A broker may give the drain's catch-all messages of the full filter: they go to the consumer."""
    queue = await scene.reader()
    wanted = bmq.TagFilter(any_of=[f"tag{n}" for n in range(12)])
    async with queue.subscribe(wanted, max_unconfirmed_messages=3, discard_unmatched=True) as consumer:
        await scene.producer.post(b"other", tags=["unwanted"])
        for number in range(8):
            await scene.producer.post(b"%d" % number, tags=["tag0"])
        await scene.producer.post(b"other", tags=["unwanted"])
        message = await consumer.receive(20)
        await scene.round_trip(queue)
        message.confirm()
        found = [message.data.decode()]
        found += await names(consumer, 7)
        assert sorted(found) == [str(number) for number in range(8)]
