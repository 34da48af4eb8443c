# SPDX-License-Identifier: Apache-2.0
"""Batches: filled or timed out, confirmed together, failing in part; rate; pause and resume."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from bmq.workers import Failure
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered, post, seen_by


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


# ---- consumer.batches


async def test_a_batch_waits_until_it_is_full(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        batches = consumer.batches(max_messages=4, max_wait=60)
        first = asyncio.ensure_future(anext(batches))
        for number in range(5):
            await stage.queue.post(b"%d" % number)
        assert [message.data for message in await first] == numbered(4)


async def test_a_batch_waits_at_most_max_wait(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        await post(stage.queue, b"0", b"1")
        began = time.monotonic()
        batch = await anext(consumer.batches(max_messages=100, max_wait=0.05))
        assert [message.data for message in batch] == [b"0", b"1"]
        assert time.monotonic() - began >= 0.04


async def test_batch_does_not_wait_for_messages_beyond_the_limits(stage: Stage) -> None:
    async with stage.queue.subscribe(max_unconfirmed_messages=2) as consumer:
        await post(stage.queue, *numbered(5))
        batch = await asyncio.wait_for(anext(consumer.batches(max_messages=100, max_wait=600)), 10)
        assert len(batch) == 2


async def test_cancelling_loses_no_message_of_an_incomplete_batch(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        waiting = asyncio.ensure_future(anext(consumer.batches(max_messages=3, max_wait=600)))
        await post(stage.queue, b"0", b"1")
        while consumer.buffered < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await post(stage.queue, b"2")
        assert [message.data for message in await anext(consumer.batches(3, 600))] == numbered(3)


async def test_closed_consumer_returns_its_messages_or_ends(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        waiting = asyncio.ensure_future(anext(consumer.batches(max_messages=3, max_wait=600)))
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_impossible_bounds_are_refused(stage: Stage) -> None:
    for bounds in ((0, 1.0), (1, -1.0)):
        with pytest.raises(
            bmq.UsageError, match=r"max_messages must be an integer from 1 to|max_wait must be a number"
        ):
            stage.queue.subscribe().batches(*bounds)


# ---- handlers of batches


class Service:
    """An app with one handler of batches."""

    def __init__(self, broker: str, uri: str, session: bmq.Session, clock: FakeClock) -> None:
        self.app = bmq.App(broker, on_error=lambda failure: self.failures.append(failure), clock=clock)
        self.uri = uri
        self.session = session
        self.seen: asyncio.Queue[Any] = asyncio.Queue()
        self.failures: list[Failure] = []

    async def post(self, *items: Any) -> None:
        queue = await self.session.open_queue(self.uri, write=True)
        await queue.post_many(items)
        await queue.close()


@pytest.fixture
def service(broker_uri: str, uri: str, session: bmq.Session, clock: FakeClock) -> Service:
    return Service(broker_uri, uri, session, clock)


async def test_a_handler_receives_lists_and_all_messages_are_confirmed(service: Service) -> None:
    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=0.05)
    async def load(messages: list[bmq.Message]) -> None:
        service.seen.put_nowait([message.data for message in messages])

    await service.post(*numbered(7))
    async with service.app:
        assert [await service.seen.get() for _ in range(3)] == [numbered(7)[:3], numbered(7)[3:6], [b"6"]]
    assert await seen_by(service.session, service.uri) == []


async def test_values_in_a_thread_with_their_messages(service: Service) -> None:
    loop = asyncio.get_running_loop()

    @service.app.batch_consumer(service.uri, max_messages=2, expression="number < 2")
    def load(orders: list[Order], messages: list[bmq.Message]) -> None:
        found = (orders, [message.properties["number"] for message in messages])
        loop.call_soon_threadsafe(service.seen.put_nowait, found)

    queue = await service.session.open_queue(service.uri, write=True)
    await queue.typed(Order).post_many(Order(number) for number in range(3))
    async with service.app:
        assert await service.seen.get() == ([Order(0), Order(1)], [0, 1])
    await queue.close()
    assert len(await seen_by(service.session, service.uri)) == 1


async def test_a_batch_that_failed_is_tried_again_as_a_whole(
    service: Service, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=5, retry=bmq.Backoff(every=7))
    async def load(messages: list[bmq.Message]) -> None:
        service.seen.put_nowait([message.data for message in messages])
        if service.seen.qsize() == 1:
            raise ConnectionError("away")

    await service.post(*numbered(3))
    caplog.set_level(logging.WARNING, "bmq.workers")
    async with service.app:
        await eventually(lambda: service.seen.qsize() >= 2)
    assert [service.seen.get_nowait() for _ in range(2)] == [numbered(3)] * 2
    assert clock.slept == [7]
    assert [(each.attempt, each.retry_in) for each in service.failures] == [(1, 7.0)] * 3
    (record,) = caplog.records
    assert "failed on 3 messages of a batch of 3" in record.getMessage()
    assert "attempt 1; next attempt in 7 s: ConnectionError: away" in record.getMessage()
    assert await seen_by(service.session, service.uri) == []


async def test_partly_failed_batch_is_retried_and_given_up_message_by_message(
    service: Service, clock: FakeClock
) -> None:
    dead = service.uri + ".dead"
    policy = bmq.Backoff(every=1, retries=1, then=bmq.DeadLetter(dead))

    @service.app.batch_consumer(service.uri, max_messages=4, max_wait=5, retry=policy)
    async def load(orders: list[Order]) -> None:
        numbers = [order.number for order in orders]
        service.seen.put_nowait(numbers)
        failed = {index: ValueError(f"no {number}") for index, number in enumerate(numbers) if number % 2}
        if failed:
            raise bmq.PartlyFailed(failed)

    queue = await service.session.open_queue(service.uri, write=True)
    letters = await service.session.open_queue(dead, read=True)
    await queue.typed(Order).post_many(Order(number) for number in range(4))
    async with service.app:
        found = [await letters.receive(timeout=10) for _ in range(2)]
    assert [service.seen.get_nowait() for _ in range(2)] == [[0, 1, 2, 3], [1, 3]]
    assert [each.properties["bmq_dead_error"] for each in found] == ["ValueError: no 1", "ValueError: no 3"]
    assert [each.properties["bmq_dead_attempts"] for each in found] == [2, 2]
    await queue.close()
    assert await seen_by(service.session, service.uri) == []


async def test_undecodable_messages_are_put_aside_and_the_rest_handled(service: Service) -> None:
    dead = service.uri + ".dead"
    policy = bmq.Backoff(every=1, then=bmq.DeadLetter(dead))

    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=5, retry=policy)
    async def load(orders: list[Order]) -> None:
        service.seen.put_nowait(orders)

    letters = await service.session.open_queue(dead, read=True)
    await service.post(b'{"number": 1}', b"no JSON", b'{"number": 2}')
    async with service.app:
        assert await service.seen.get() == [Order(1), Order(2)]
        assert (await letters.receive(timeout=10)).data == b"no JSON"


async def test_index_out_of_range_fails_the_whole_batch(service: Service) -> None:
    @service.app.batch_consumer(service.uri, max_messages=1, retry=bmq.NoRetry("discard"))
    async def load(messages: list[bmq.Message]) -> None:
        raise bmq.PartlyFailed({5: ValueError("x")})

    await service.post(b"0")
    async with service.app:
        await eventually(lambda: service.failures)
    assert "PartlyFailed has the index [5], and the batch has 1 messages" in str(service.failures[0].error)


def nothing() -> None: ...
def one_value(order: Order) -> None: ...
def of_messages(messages: list[bmq.Message]) -> None: ...
def of_orders(orders: list[Order]) -> None: ...


@sweep(
    "handler, options, why",
    [
        (nothing, {}, "nothing takes no parameter: a handler of batches takes"),
        (one_value, {}, "one_value handles batches"),
        (of_messages, {"codec": "application/json"}, "of_messages takes messages"),
        (of_orders, {"expression": "numbar == 1"}, "Order has no property numbar"),
        (
            of_orders,
            {"max_messages": 10, "max_unconfirmed_messages": 9},
            "a batch of 10 messages can never fill up with max_unconfirmed_messages=9",
        ),
        (
            of_orders,
            {"max_messages": 0},
            "max_messages must be an integer from 1 to|max_wait must be a number",
        ),
        (of_orders, {"rate": 0}, "rate must be a number of messages a second"),
        (7, {}, "a handler of batches must be a function"),
    ],
)
def test_impossible_registrations_are_refused(handler: Any, options: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().batch_consumer("bmq://d.e/q", **options)(handler)


async def test_an_ending_app_finishes_the_running_batch_and_returns_the_rest(service: Service) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @service.app.batch_consumer(service.uri, max_messages=2, max_wait=5)
    async def load(messages: list[bmq.Message]) -> None:
        begun.set()
        await end.wait()

    await service.post(*numbered(4))
    async with service.app:
        await begun.wait()
        service.app.stop()
        end.set()
    assert await seen_by(service.session, service.uri) == [b"2", b"3"]


# ---- rate


async def timed(work: Callable[[], Any]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await work()
    return loop.time() - began


async def test_rate_limits_a_producer(stage: Stage) -> None:
    async def coming() -> AsyncIterator[bytes]:
        for payload in numbered(20):
            yield payload

    for items in (numbered(20), coming()):
        took = await timed(lambda items=items: stage.queue.post_many(items, rate=100))
        assert took >= 0.17
    await stage.queue.post_many(numbered(20), rate=1e9)
    with pytest.raises(bmq.UsageError, match=r"rate must be a number of messages a second, .* not -1"):
        await stage.queue.post_many([b"x"], rate=-1)


@pytest.mark.parametrize("key", [None, lambda message: message.data])
async def test_rate_limits_a_consumer(stage: Stage, key: Any) -> None:
    async def work() -> None:
        async with consuming(stage.queue, stage.handle, rate=100, key=key, concurrency=3):
            await stage.next(20)

    await post(stage.queue, *numbered(20))
    assert await timed(work) >= 0.16


async def test_waiting_messages_are_returned_at_the_end(stage: Stage) -> None:
    await post(stage.queue, *numbered(3))
    async with stage.queue.subscribe() as consumer:
        async with consuming(consumer, stage.handle, rate=0.001):
            assert await stage.next(1) == [b"0"]
            while consumer.buffered > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert [message.data for message in await consumer.receive_many(timeout=10)] == [b"1", b"2"]


# ---- pause and resume


async def test_paused_consumer_receives_no_message_and_resumes_in_order(
    stage: Stage, other_session: bmq.Session
) -> None:
    async with stage.queue.subscribe() as consumer:
        await post(stage.queue, *numbered(2))
        assert (await consumer.receive(timeout=10)).data == b"0"
        await consumer.pause()
        assert consumer.paused
        assert consumer.receive_nowait() is None
        waiting = asyncio.ensure_future(consumer.receive())
        other = await other_session.open_queue(stage.queue.uri, read=True)
        await post(stage.queue, b"2")
        message = await other.receive(timeout=10)
        assert message.data == b"2", "the broker delivers to others"
        message.confirm()
        await other.close()
        assert not waiting.done()
        await consumer.resume()
        assert (await asyncio.wait_for(waiting, 10)).data == b"1", "what was delivered before"
        await post(stage.queue, b"3")
        assert (await consumer.receive(timeout=10)).data == b"3"


async def test_closing_the_queue_ends_receivers_of_a_paused_consumer(stage: Stage) -> None:
    consumer = await stage.queue.subscribe()
    await consumer.pause()
    await consumer.pause()
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await stage.queue.close()
    with pytest.raises(bmq.QueueClosed):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(bmq.QueueClosed):
        await consumer.resume()


async def test_messages_put_back_come_first_and_in_order(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        await post(stage.queue, *numbered(6))
        taken = [await consumer.receive(timeout=10) for _ in range(4)]
        taken[1].confirm()
        consumer.put_back(taken[2:])
        consumer.put_back(taken[:2])
        assert [(await consumer.receive(timeout=10)).data for _ in range(5)] == [b"0", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("typed", [False, True])
async def test_indexes_of_failed_messages_count_in_the_list_as_the_handler_left_it(
    broker_uri: str, stage: Stage, other_session: bmq.Session, typed: bool
) -> None:
    app = bmq.App(broker_uri)
    payloads = [b"[3]", b"[1]", b"[2]"]

    async def of_messages(messages: list[bmq.Message]) -> None:
        messages.sort(key=lambda message: message.data)
        raise bmq.PartlyFailed({messages.index(m): ValueError() for m in messages if m.data == b"[3]"})

    async def of_values(values: list[list[int]]) -> None:
        values.sort()
        raise bmq.PartlyFailed({values.index([3]): ValueError()})

    register = app.batch_consumer(stage.queue.uri, max_messages=3, max_wait=60, retry=bmq.NoRetry())
    register(of_values) if typed else register(of_messages)
    await post(stage.queue, *payloads)
    async with app:
        await eventually(lambda: app.status() and app.status()[0].handled == 2)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"[3]"]


def test_partly_failed_names_a_message() -> None:
    with pytest.raises(bmq.UsageError, match="needs a failed message"):
        bmq.PartlyFailed({})
