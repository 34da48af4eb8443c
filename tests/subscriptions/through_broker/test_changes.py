"""Subscriptions as objects: adding, changing and removing them while messages flow."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.protocol.requests import RequestKind
from tests.subscriptions.through_broker.scene import Scene, names, nothing


class Counting:
    """How many configure requests a session sends."""

    def __init__(self, queue: bmq.Queue) -> None:
        self.count = 0
        core = queue.driver.core
        request = core.request

        def counting(kind: RequestKind, *args: object, **kwargs: object) -> object:
            self.count += kind is RequestKind.CONFIGURE
            return request(kind, *args, **kwargs)  # type: ignore[arg-type]

        core.request = counting  # type: ignore[method-assign, assignment]


def refuse(consumer: bmq.Consumer) -> None:
    """Make a subscription one that a broker refuses: its priority says that it is not configured."""
    for core in consumer.cores:
        core.options.priority = -(2**31)


async def test_changes_of_one_turn_of_the_loop_are_one_request(scene: Scene) -> None:
    queue = await scene.reader()
    requests = Counting(queue)
    consumers = [queue.subscribe(f"x == {n}") for n in range(20)]
    await asyncio.gather(*[each.open() for each in consumers])
    assert requests.count == 1
    assert queue.subscriptions == consumers
    await asyncio.gather(*[each.configure(f"x == {n + 100}") for n, each in enumerate(consumers)])
    assert requests.count == 2
    await scene.post(**{str(n): {"x": n} for n in (100, 119, 107)})
    assert await names(consumers[0], 1) == ["100"]
    assert await names(consumers[19], 1) == ["119"]
    await asyncio.gather(*[each.close() for each in consumers])
    assert requests.count == 3
    assert queue.subscriptions == []


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


async def test_a_refused_subscription_leaves_the_others_as_they_were(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as good:
        bad = queue.subscribe("x == 2")
        refuse(bad)
        with pytest.raises(bmq.ConfigureQueueError, match="invalid priority"):
            await bad.open()
        assert queue.subscriptions == [good]
        assert not bad.closed
        await scene.post(b={"x": 2}, a={"x": 1})
        assert await names(good, 1) == ["a"]
        async with queue.subscribe("x == 2") as again:
            assert await names(again, 1) == ["b"]
            assert queue.subscriptions == [good, again]


async def test_a_refused_change_rolls_back_to_what_the_broker_has(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1", priority=7) as consumer:
        redefine = consumer.redefine

        def broken(*definition: object) -> None:
            redefine(*definition)  # type: ignore[arg-type]
            monkeypatch.setattr(consumer, "redefine", redefine)
            refuse(consumer)

        monkeypatch.setattr(consumer, "redefine", broken)
        with pytest.raises(bmq.ConfigureQueueError):
            await consumer.configure("x == 2", priority=9)
        assert consumer.expressions == ["x == 1"]
        assert consumer.options.priority == 7
        await scene.post(b={"x": 2}, a={"x": 1})
        assert await names(consumer, 1) == ["a"]
        await consumer.configure("x == 2")
        assert await names(consumer, 1) == ["b"]


async def test_a_message_says_which_subscription_it_came_for(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=True)
    async with queue.subscribe("x == 1", priority=1) as one, queue.subscribe("x == 2", priority=1) as two:
        await scene.post(a={"x": 1}, b={"x": 2})
        for consumer in (one, two):
            message = await consumer.receive(20)
            assert message.subscription is consumer
            assert message.subscription.expressions == consumer.expressions
            message.confirm()


async def test_what_was_routed_by_the_previous_configuration_still_arrives(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as one, queue.subscribe("x == 2") as two:
        posts = [scene.producer.post_nowait(b"%d" % n, properties={"x": 1 + n % 2}) for n in range(1000)]
        for number in range(20):
            await one.configure(f"x == 1 && y != {number} || x == 1", max_unconfirmed_messages=900 + number)
        for each in posts:
            await each
        assert await names(one, 500) == [str(n) for n in range(0, 1000, 2)]
        assert await names(two, 500) == [str(n) for n in range(1, 1000, 2)]
        assert nothing(one, two)


async def test_the_default_subscription_steps_aside_and_comes_back(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=True)
    assert [each.expressions for each in queue.subscriptions] == [[""]]
    await scene.post(before={"x": 2})
    assert await names(queue, 1) == ["before"]
    async with queue.subscribe("x == 1") as consumer:
        assert queue.subscriptions == [consumer]
        await scene.post(waits={"x": 2}, goes={"x": 1})
        assert await names(consumer, 1) == ["goes"]
        assert await names(queue, 1) == ["waits"]  # receiving from the queue itself brings it back
        assert len(queue.subscriptions) == 2
    await scene.post(after={"x": 2})
    assert await names(queue, 1) == ["after"]


async def test_the_default_subscription_stays_while_it_is_iterated_over(scene: Scene) -> None:
    queue = await scene.reader(default_subscription=True)
    messages = aiter(queue)
    async with queue.subscribe("x == 1", priority=1) as consumer:
        assert len(queue.subscriptions) == 2
        await scene.post(a={"x": 1}, b={"x": 2})
        assert await names(consumer, 1) == ["a"]
        message = await anext(messages)
        assert message.data == b"b"
        message.confirm()


async def test_messages_of_a_consumer_that_leaves_go_to_another_that_wants_them(scene: Scene) -> None:
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


async def test_messages_nobody_else_wants_go_back_to_the_broker(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 2") as other:
        leaving = await queue.subscribe("x == 1")
        await scene.post(**{str(n): {"x": 1} for n in range(10)}, end={"x": 2})
        held = await other.receive(20)
        assert leaving.buffered == 10
        await leaving.close()
        elsewhere = await scene.reader()
        async with elsewhere.subscribe("x == 1") as taking:
            await scene.round_trip(queue, elsewhere)
            assert nothing(taking)  # the application still holds a message of this queue
            held.confirm()
            assert await names(taking, 10) == [str(n) for n in range(10)]
        await scene.post(again={"x": 2})
        assert await names(other, 1) == ["again"]
        assert nothing(other)


async def test_going_back_waits_for_a_change_that_is_under_way(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 2") as other:
        leaving = await queue.subscribe("x == 1")
        await scene.post(**{str(n): {"x": 1} for n in range(10)}, end={"x": 2})
        assert await names(other, 1) == ["end"]
        closing = asyncio.create_task(leaving.close())
        while queue.state is not bmq.QueueState.RECONFIGURING:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.gather(closing, other.configure("x == 3"))
        elsewhere = await scene.reader()
        async with elsewhere.subscribe("x == 1") as taking:
            assert await names(taking, 10) == [str(n) for n in range(10)]


async def test_handing_messages_back_shows_none_of_them_twice(scene: Scene) -> None:
    """The broker goes on delivering while the reading side is closed and opened again."""
    queue, elsewhere = await scene.reader(), await scene.reader()
    leaving_now = asyncio.Event()
    posted = 0

    async def produce() -> None:
        nonlocal posted
        while not leaving_now.is_set():
            await scene.post(**{str(n): {"x": 2} for n in range(posted, posted + 20)})
            posted += 20

    async def consume(consumer: bmq.Consumer, into: list[str]) -> None:
        async for message in consumer:
            into.append(message.data.decode())
            message.confirm()

    steady_found: list[str] = []
    taken: list[str] = []
    async with queue.subscribe("x == 2") as steady, elsewhere.subscribe("x == 1") as taking:
        tasks = [
            asyncio.create_task(consume(steady, steady_found)),
            asyncio.create_task(consume(taking, taken)),
        ]
        producing = asyncio.create_task(produce())
        for number in range(30):
            leaving = await queue.subscribe("x == 1", priority=9)
            await scene.post(**{f"l{number}": {"x": 1}})
            await leaving.close()
        leaving_now.set()
        await producing
        while len(set(steady_found)) < posted or len(taken) < 30:
            await scene.round_trip(queue, elsewhere)
    await asyncio.gather(*tasks)
    assert sorted(steady_found, key=int) == [str(n) for n in range(posted)]
    assert sorted(taken) == sorted(f"l{number}" for number in range(30))


async def test_changes_that_share_a_request_share_its_refusal(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 0") as standing:
        good, bad = queue.subscribe("x == 1"), queue.subscribe("x == 2")
        refuse(bad)
        outcomes = await asyncio.gather(good.open(), bad.open(), return_exceptions=True)
        assert [type(each) for each in outcomes] == [bmq.ConfigureQueueError] * 2
        assert queue.subscriptions == [standing]
        await good.open()
        assert queue.subscriptions == [standing, good]
        await scene.post(b={"x": 2}, a={"x": 1}, z={"x": 0})
        assert await names(good, 1) == ["a"]
        assert await names(standing, 1) == ["z"]
    await queue.close()
    assert await scene.left() == ["b"]


async def test_cancelling_a_subscription_that_is_being_opened_takes_it_back(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as standing:
        await scene.post(**{str(n): {"x": 2} for n in range(10)})
        opening = asyncio.create_task(queue.subscribe("x == 2").open())
        while queue.state is not bmq.QueueState.RECONFIGURING:  # noqa: ASYNC110
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        elsewhere = await scene.reader()
        async with elsewhere.subscribe("x == 2") as taking:
            assert await names(taking, 10) == [str(n) for n in range(10)]
        assert queue.subscriptions == [standing]
        await scene.post(a={"x": 1})
        assert await names(standing, 1) == ["a"]
