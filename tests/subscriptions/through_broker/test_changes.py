# SPDX-License-Identifier: Apache-2.0
"""Subscriptions as objects: adding, changing and removing them during delivery."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import bmq
from tests.subscriptions.through_broker.scene import Scene, names, nothing
from tests.waiting import eventually


class Counting:
    """How many configure requests a session sends."""

    def __init__(self, queue: bmq.Queue) -> None:
        self.count = 0
        core = queue._driver.core
        data_to_send = core.data_to_send

        def counting(*arguments: float) -> list[bytes]:
            pieces = data_to_send(*arguments)
            self.count += b"".join(pieces).count(b'"configureStream"')
            return pieces

        core.data_to_send = counting  # type: ignore[method-assign, assignment]


def refuse(consumer: bmq.Consumer) -> None:
    """Give a subscription a priority refused by the broker."""
    for core in consumer._buffer.definition.subscriptions:
        core.options = core.options._replace(priority=-(2**31))


async def test_changes_of_one_turn_of_the_loop_are_one_request(scene: Scene) -> None:
    queue = await scene.reader()
    requests = Counting(queue)
    consumers = [queue.subscribe(f"x == {n}") for n in range(20)]
    await asyncio.gather(*[each.open() for each in consumers])
    assert requests.count == 1
    assert queue.consumers == consumers
    await asyncio.gather(*[each.configure(f"x == {n + 100}") for n, each in enumerate(consumers)])
    assert requests.count == 2
    await scene.post(**{str(n): {"x": n} for n in (100, 119, 107)})
    assert await names(consumers[0], 1) == ["100"]
    assert await names(consumers[19], 1) == ["119"]
    await asyncio.gather(*[each.close() for each in consumers])
    assert requests.count == 3
    assert queue.consumers == []


async def test_opening_closing_and_changing_together_are_one_request(scene: Scene) -> None:
    queue = await scene.reader()
    leaving, changing = await queue.subscribe("x == 1"), await queue.subscribe("x == 2")
    requests = Counting(queue)
    coming = queue.subscribe("x == 4")
    await asyncio.gather(leaving.close(), changing.configure("x == 3"), coming.open())
    assert requests.count == 1
    await scene.post(a={"x": 1}, b={"x": 2}, c={"x": 3}, d={"x": 4})
    assert await names(changing, 1) == ["c"]
    assert await names(coming, 1) == ["d"]
    await queue.close()
    assert await scene.left() == ["a", "b"]


async def test_a_refused_subscription_leaves_other_subscriptions_unchanged(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as good:
        bad = queue.subscribe("x == 2")
        refuse(bad)
        with pytest.raises(bmq.ConfigureQueueError, match="invalid priority"):
            await bad.open()
        assert queue.consumers == [good]
        assert not bad.closed
        await scene.post(b={"x": 2}, a={"x": 1})
        assert await names(good, 1) == ["a"]
        async with queue.subscribe("x == 2") as again:
            assert await names(again, 1) == ["b"]
            assert queue.consumers == [good, again]


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


async def test_message_names_its_subscription(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=True)
    async with queue.subscribe("x == 1", priority=1) as one, queue.subscribe("x == 2", priority=1) as two:
        await scene.post(a={"x": 1}, b={"x": 2})
        for consumer in (one, two):
            message = await consumer.receive(20)
            assert message.consumer is consumer
            assert message.consumer.expressions == consumer.expressions
            message.confirm()


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


async def test_receiving_requests_messages_and_opening_does_not(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=None)
    await scene.post(first={"x": 2}, second={"x": 1})
    await scene.round_trip(queue)
    assert queue.consumers == []
    assert scene.sessions[queue].stats().buffered_messages == 0
    async with queue.subscribe("x == 1") as consumer:
        assert queue.consumers == [consumer]
        assert await names(consumer, 1) == ["second"]
        assert await names(queue, 1) == ["first"]
        assert len(queue.consumers) == 2
    await scene.post(after={"x": 1})
    assert await names(queue, 1) == ["after"]  # once begun, the subscription stays


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


async def test_a_receive_may_time_out_before_the_brokers_answer(scene: Scene) -> None:
    """A cancelled wait has nevertheless begun the subscription, for further receivers."""
    queue = await scene.reader(default_subscription=None)
    await scene.post(a={}, b={})
    patient = asyncio.create_task(queue.receive(20))
    with pytest.raises(TimeoutError):
        await queue.receive(timeout=0)
    assert (await patient).data == b"a"
    assert (await queue.receive(20)).data == b"b"


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


async def test_unclaimed_messages_go_to_other_sessions_when_the_queue_closes(scene: Scene) -> None:
    queue = await scene.reader()
    leaving = await queue.subscribe("x == 1")
    await scene.post(**{str(n): {"x": 1} for n in range(10)})
    assert await names(leaving, 1) == ["0"]
    await leaving.close()
    await queue.close()
    assert queue.unclaimed == 0
    assert await scene.left() == [str(n) for n in range(1, 10)]


async def test_changed_consumer_receives_unclaimed_messages(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 2") as staying:
        leaving = await queue.subscribe("x == 1")
        await scene.post(a={"x": 1}, b={"x": 1}, end={"x": 2})
        assert await names(staying, 1) == ["end"]
        await leaving.close()
        assert queue.unclaimed == 2
        await scene.post(c={"x": 2})
        await staying.configure("x <= 2")
        assert sorted(await names(staying, 3)) == ["a", "b", "c"]


def holds(consumer: bmq.Consumer, count: int) -> bool:
    return consumer.buffered == count


async def test_unclaimed_messages_are_reported_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bmq.client._subscriptions._MENTION_UNCLAIMED_AFTER", 0)
    queue = await scene.reader()
    events = aiter(scene.sessions[queue].events())
    for _ in range(2):
        leaving = await queue.subscribe("x == 1")
        await scene.post(a={"x": 1}, b={"x": 1})
        await eventually(partial(holds, leaving, 2), timeout=20)
        await leaving.close()
        assert await anext(events) == bmq.events.UnclaimedMessages(queue.uri, 2)
        lines = [record.message for record in caplog.records if "unconfirmed" in record.message]
        assert len(lines) == 1
        assert queue.uri in lines[0]
        caplog.clear()
        async with queue.subscribe() as everything:
            assert await names(everything, 2) == ["a", "b"]


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


async def test_refusal_keeps_the_default_subscription(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await scene.reader(default_subscription=True, priority=3)
    [default] = queue.consumers
    redefine = queue._subscriptions.redefine

    def broken(line: Any, definition: Any) -> Any:
        for each in definition.subscriptions:
            each.options = each.options._replace(priority=-(2**31))
        return redefine(line, definition)

    monkeypatch.setattr(queue._subscriptions, "redefine", broken)
    with pytest.raises(bmq.ConfigureQueueError, match="invalid priority"):
        await queue.configure(priority=4)
    assert queue.consumers == [default]
    assert default.options.priority == 3
    monkeypatch.undo()
    await scene.post(a={})
    assert await names(queue, 1) == ["a"]
    await queue.configure(max_unconfirmed_messages=7)
    assert default.options.priority == 3


async def test_drain_skips_messages_of_its_full_filter(scene: Scene) -> None:
    """A filter too large to be negated drains with a catch-all of lower priority.

    A broker may give the catch-all messages of the full filter: the drain checks these messages and passes
    them to
    the consumer.
    """
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
