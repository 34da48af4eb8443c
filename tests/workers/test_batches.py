# SPDX-License-Identifier: Apache-2.0
"""Batches: filled or timed out, confirmed together, failing in part; the rate of a consumer; pauses."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, numbered


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


# ---- consumer.batches


async def test_a_batch_waits_until_it_is_full(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        batches = consumer.batches(max_messages=4, max_wait=60)
        first = asyncio.ensure_future(anext(batches))
        for payload in numbered(5):
            await stage.post(payload)
        assert [message.data for message in await first] == numbered(4)


async def test_a_batch_waits_at_most_max_wait(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        await stage.post(*numbered(2))
        began = time.monotonic()
        batch = await anext(consumer.batches(max_messages=100, max_wait=0.05))
        assert [message.data for message in batch] == numbered(2)
        assert time.monotonic() - began >= 0.04


async def test_batch_does_not_wait_for_messages_beyond_the_limits(stage: Stage) -> None:
    async with stage.queue.subscribe(max_unconfirmed_messages=2) as consumer:
        await stage.post(*numbered(5))
        batch = await asyncio.wait_for(anext(consumer.batches(max_messages=100, max_wait=600)), 10)
        assert len(batch) == 2


async def test_cancelling_loses_no_message_of_an_incomplete_batch(stage: Stage) -> None:
    async with stage.queue.subscribe() as consumer:
        waiting = asyncio.ensure_future(anext(consumer.batches(max_messages=3, max_wait=600)))
        await stage.post(*numbered(2))
        await eventually(lambda: consumer.buffered == 2)
        waiting.cancel()
        await asyncio.wait([waiting])
        await stage.post(b"2")
        assert [message.data for message in await anext(consumer.batches(3, 600))] == numbered(3)


# ---- handlers of batches


class Service:
    """An app with one handler of batches, and the lists that the handler has seen."""

    def __init__(self, stage: Stage, clock: FakeClock) -> None:
        self.stage = stage
        self.uri = stage.uri
        self.app = bmq.App(stage.broker_uri, on_error=stage.failures.put_nowait, clock=clock)
        self.seen: asyncio.Queue[Any] = asyncio.Queue()

    async def load(self, messages: list[bmq.Message]) -> None:
        self.seen.put_nowait([message.data for message in messages])

    async def post(self, *numbers: int) -> None:
        await self.stage.queue.typed(Order).post_many(Order(number) for number in numbers)


@pytest.fixture
def service(stage: Stage, clock: FakeClock) -> Service:
    return Service(stage, clock)


async def test_a_handler_receives_lists_and_all_messages_are_confirmed(service: Service) -> None:
    service.app.batch_consumer(service.uri, max_messages=3, max_wait=0.05)(service.load)
    await service.stage.post(*numbered(7))
    async with service.app:
        assert [await service.seen.get() for _ in range(3)] == [numbered(7)[:3], numbered(7)[3:6], [b"6"]]
    assert await service.stage.left() == []


async def test_values_in_a_thread_with_their_messages(service: Service) -> None:
    loop = asyncio.get_running_loop()

    @service.app.batch_consumer(service.uri, max_messages=2, expression="number < 2")
    def load(orders: list[Order], messages: list[bmq.Message]) -> None:
        found = (orders, [message.properties["number"] for message in messages])
        loop.call_soon_threadsafe(service.seen.put_nowait, found)

    await service.post(0, 1, 2)
    async with service.app:
        assert await service.seen.get() == ([Order(0), Order(1)], [0, 1])
    assert len(await service.stage.left()) == 1


async def test_a_batch_that_failed_is_tried_again_as_a_whole(
    service: Service, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=5, retry=bmq.Backoff(every=7))
    async def load(messages: list[bmq.Message]) -> None:
        await service.load(messages)
        if service.seen.qsize() == 1:
            raise ConnectionError("away")

    await service.stage.post(*numbered(3))
    caplog.set_level(logging.WARNING, "bmq.workers")
    async with service.app:
        await eventually(lambda: service.seen.qsize() >= 2)
    assert [service.seen.get_nowait() for _ in range(2)] == [numbered(3)] * 2
    assert clock.slept == [7]
    failures = [service.stage.failures.get_nowait() for _ in range(3)]
    assert [(each.attempt, each.retry_in) for each in failures] == [(1, 7.0)] * 3
    (record,) = caplog.records
    assert "failed on 3 messages of a batch of 3" in record.getMessage()
    assert "attempt 1; next attempt in 7 s: ConnectionError: away" in record.getMessage()
    assert await service.stage.left() == []


async def test_partly_failed_batch_is_retried_and_given_up_message_by_message(
    service: Service, session: bmq.Session
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

    letters = await session.open_queue(dead, read=True)
    await service.post(0, 1, 2, 3)
    async with service.app:
        found = [await letters.receive(timeout=10) for _ in range(2)]
    assert [service.seen.get_nowait() for _ in range(2)] == [[0, 1, 2, 3], [1, 3]]
    assert [each.properties["bmq_dead_error"] for each in found] == ["ValueError: no 1", "ValueError: no 3"]
    assert [each.properties["bmq_dead_attempts"] for each in found] == [2, 2]
    assert await service.stage.left() == []


async def test_a_partly_failed_batch_waits_for_its_longest_pause(service: Service, clock: FakeClock) -> None:
    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=5)
    async def load(orders: list[Order]) -> None:
        service.seen.put_nowait([order.number for order in orders])
        if not clock.slept:
            raise bmq.PartlyFailed({index: bmq.RetryAfter(pause) for index, pause in enumerate((3, 8, 5))})

    await service.post(*range(3))
    async with service.app:
        assert [await service.seen.get() for _ in range(2)] == [[0, 1, 2]] * 2
    assert clock.slept == [8]


@pytest.mark.parametrize("typed", [False, True])
async def test_indexes_of_failed_messages_count_in_the_list_as_the_handler_left_it(
    service: Service, typed: bool
) -> None:
    async def of_messages(messages: list[bmq.Message]) -> None:
        messages.sort(key=lambda message: message.data)
        raise bmq.PartlyFailed({messages.index(m): ValueError() for m in messages if m.data == b"[3]"})

    async def of_values(values: list[list[int]]) -> None:
        values.sort()
        raise bmq.PartlyFailed({values.index([3]): ValueError()})

    register = service.app.batch_consumer(service.uri, max_messages=3, max_wait=60, retry=bmq.NoRetry())
    register(of_values) if typed else register(of_messages)
    await service.stage.post(b"[3]", b"[1]", b"[2]")
    async with service.app:
        await eventually(lambda: service.app.status()[0].handled == 2)
    assert await service.stage.left() == [b"[3]"]


async def test_index_out_of_range_fails_the_whole_batch(service: Service) -> None:
    @service.app.batch_consumer(service.uri, max_messages=1, retry=bmq.NoRetry("discard"))
    async def load(messages: list[bmq.Message]) -> None:
        raise bmq.PartlyFailed({5: ValueError("x")})

    await service.stage.post(b"0")
    async with service.app:
        failure = await service.stage.failures.get()
    assert "PartlyFailed has the index [5], and the batch has 1 messages" in str(failure.error)


async def test_undecodable_messages_are_given_up_and_the_rest_handled(service: Service) -> None:
    @service.app.batch_consumer(service.uri, max_messages=3, max_wait=5)
    async def load(orders: list[Order]) -> None:
        service.seen.put_nowait(orders)

    await service.stage.post(b'{"number": 1}', b"no JSON", b'{"number": 2}')
    async with service.app:
        assert await service.seen.get() == [Order(1), Order(2)]
    assert isinstance(service.stage.failures.get_nowait().error, bmq.Undecodable)
    assert await service.stage.left() == [b"no JSON"]


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
        (of_orders, {"max_messages": 0}, "max_messages must be an integer from 1 to"),
        (of_orders, {"rate": 0}, "rate must be a number of messages a second"),
        (7, {}, "a handler of batches must be a function"),
    ],
)
def test_impossible_registrations_are_refused(handler: Any, options: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().batch_consumer("bmq://d.e/q", **options)(handler)


async def test_an_ending_app_finishes_the_running_batch_and_returns_the_rest(service: Service) -> None:
    stage = service.stage

    @service.app.batch_consumer(service.uri, max_messages=2, max_wait=5)
    async def load(messages: list[bmq.Message]) -> None:
        await stage.hold(messages[0])

    await stage.post(*numbered(4))
    async with service.app:
        await stage.begun.wait()
        service.app.stop()
        stage.go.set()
    assert await stage.left() == [b"2", b"3"]


# ---- rate


@pytest.mark.parametrize("key", [None, lambda message: message.data], ids=["arriving", "lanes"])
async def test_rate_limits_a_consumer(stage: Stage, key: Any) -> None:
    await stage.post(*numbered(20))
    began = time.monotonic()
    async with stage.consuming(stage.handle, rate=100, key=key, concurrency=3):
        await stage.next(20)
    assert time.monotonic() - began >= 0.16


async def test_waiting_messages_are_returned_at_the_end(stage: Stage) -> None:
    await stage.post(*numbered(3))
    async with stage.queue.subscribe() as consumer:
        task = asyncio.create_task(bmq.consume(consumer, stage.handle, rate=0.001))
        assert await stage.next(1) == [b"0"]
        await eventually(lambda: consumer.buffered == 1)
        task.cancel()
        await asyncio.wait([task])
        assert [message.data for message in await consumer.receive_many(timeout=10)] == [b"1", b"2"]


# ---- pauses


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
