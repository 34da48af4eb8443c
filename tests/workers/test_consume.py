# SPDX-License-Identifier: Apache-2.0
"""A function fed from a queue: confirmation, order, concurrency, hooks, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.workers import Failure
from tests.workers.conftest import FakeClock, Standstill
from tests.workers.stage import Stage, consuming, numbered

Fresh = Callable[..., str]


# ---- confirming


async def test_on_receipt_confirms_before_the_only_attempt(stage: Stage, clock: FakeClock) -> None:
    async def handle(message: bmq.Message) -> None:
        assert message.confirmed
        await stage.handle(message)
        raise OSError("lost")

    await stage.post(*numbered(2))
    async with consuming(stage.queue, handle, ack=bmq.AckPolicy.ON_RECEIPT, clock=clock):
        assert await stage.next(2) == numbered(2)
    assert clock.slept == []
    assert await stage.left() == []


async def test_manual_leaves_confirming_to_the_handler(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            message.confirm()
        await stage.handle(message)

    await stage.post(*numbered(2))
    async with consuming(stage.queue, handle, ack=bmq.AckPolicy.MANUAL):
        await stage.next(2)
    assert await stage.left() == [b"1"]


async def test_message_confirmed_before_a_failure_is_not_retried(stage: Stage, clock: FakeClock) -> None:
    async def handle(message: bmq.Message) -> None:
        message.confirm()
        await stage.handle(message)
        if message.data == b"0":
            raise ValueError("late")

    await stage.post(*numbered(2))
    async with stage.consuming(handle, retry=bmq.Backoff(1), clock=clock):
        assert await stage.next(2) == numbered(2)
    assert clock.slept == []
    assert stage.failures.get_nowait().retry_in is None
    assert stage.failures.empty()


# ---- selecting, order, concurrency


async def test_a_consumer_may_be_given_and_is_left_open(stage: Stage) -> None:
    async with stage.queue.subscribe("x == 1") as consumer:
        async with consuming(consumer, stage.handle):
            await stage.queue.post(b"a", properties={"x": 1})
            assert await stage.next(1) == [b"a"]
        assert not consumer.closed
        await stage.queue.post(b"b", properties={"x": 1})
        assert (await consumer.receive()).data == b"b"


async def test_concurrency_one_keeps_the_order(stage: Stage) -> None:
    running = asyncio.Lock()

    async def handle(message: bmq.Message) -> None:
        assert not running.locked()
        async with running:
            await asyncio.sleep(0)
        await stage.handle(message)

    await stage.post(*numbered(50))
    async with consuming(stage.queue, handle):
        assert await stage.next(50) == numbered(50)


async def test_concurrency_limits_the_running_handlers(stage: Stage) -> None:
    running: set[bytes] = set()
    most = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal most
        running.add(message.data)
        most = max(most, len(running))
        if len(running) == 4:
            stage.go.set()
        await stage.hold(message)
        running.discard(message.data)

    await stage.post(*numbered(20))
    async with consuming(stage.queue, handle, concurrency=4):
        assert sorted(await stage.next(20)) == sorted(numbered(20))
    assert most == 4


# ---- sync handlers


async def test_a_plain_function_runs_in_a_thread_and_its_message_is_confirmed(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    threads: set[int] = set()

    def handle(message: bmq.Message) -> None:
        threads.add(threading.get_ident())
        loop.call_soon_threadsafe(stage.seen.put_nowait, message)
        if message.data == b"1":
            raise ValueError("no")

    await stage.post(*numbered(4))
    async with consuming(stage.queue, handle):
        assert await stage.next(4) == numbered(4)
    assert threading.get_ident() not in threads
    assert len(threads) == 1
    assert await stage.left() == [b"1"]


# ---- reports


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_failing_hook_stops_no_worker(
    stage: Stage, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(failure: Failure) -> None:
        raise RuntimeError("hook")

    async def fail_later(failure: Failure) -> None:
        raise RuntimeError("hook")

    hook = fail_later if asynchronous else fail
    await stage.post(*numbered(2), b"good")
    async with consuming(stage.queue, stage.failing(error=ValueError("no")), on_error=hook):
        assert await stage.next(3) == [*numbered(2), b"good"]
    assert sum("on_error itself failed" in each.message for each in caplog.records) == 2
    assert await stage.left() == numbered(2)


# ---- the end


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "a cancellation"])
async def test_a_request_to_stop_finishes_the_running_handler_and_returns_the_rest(
    stage: Stage, by: str
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    cancelling = None

    async def main() -> None:
        nonlocal cancelling
        await bmq.consume(stage.queue, stage.hold, signals=by != "a cancellation")
        cancelling = asyncio.current_task().cancelling()  # type: ignore[union-attr]

    await stage.post(*numbered(3))
    task = asyncio.create_task(main())
    await stage.stop(task, by)
    assert task.cancelled() is (by == "a cancellation")
    assert cancelling == (None if by == "a cancellation" else 0)
    assert {number: signal.getsignal(number) for number in before} == before
    assert await stage.next(1) == [b"0"]
    assert await stage.left() == [b"1", b"2"]


async def test_consume_cancelled_beside_a_signal_is_cancelled(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        await asyncio.Event().wait()

    await stage.post(b"x")
    task = asyncio.create_task(bmq.consume(stage.queue, handle, signals=True, grace=3600))
    await asyncio.wait([task])
    assert task.cancelled()


async def test_shutdown_does_not_wait_for_pending_retries(stage: Stage, standstill: Standstill) -> None:
    await stage.post(b"x")
    retry = bmq.Backoff(3600)
    async with consuming(stage.queue, stage.failing(), retry=retry, grace=3600, clock=standstill):
        await standstill.resting.wait()
    assert await stage.left() == [b"x"]


@pytest.mark.parametrize("closed", ["queue", "session"])
async def test_consume_returns_when_its_source_is_closed(stage: Stage, closed: str) -> None:
    await stage.post(b"x")
    async with consuming(stage.queue, stage.handle, concurrency=3) as task:
        await stage.next(1)
        await (stage.queue if closed == "queue" else stage.queue.session).close()
        await task


async def test_worker_cancelled_from_outside_ends_consume_with_an_error(stage: Stage) -> None:
    task = asyncio.create_task(bmq.consume(stage.queue, stage.handle, concurrency=2))
    await stage.post(b"x")
    await stage.next(1)
    next(each for each in asyncio.all_tasks() if "worker 1" in each.get_name()).cancel()
    with pytest.raises(bmq.StateError, match="cancelled from outside"):
        await task


async def test_subscription_is_withdrawn_even_without_grace(
    broker_uri: str, uri: str, other_session: bmq.Session
) -> None:
    other = await other_session.open_queue(uri, read=True, write=True, default_subscription=False)
    async with FaultProxy(broker_uri) as proxy, bmq.connect(proxy.uri) as own:
        stage = Stage(await own.open_queue(uri, read=True, default_subscription=False), broker_uri)
        async with consuming(stage.queue, stage.handle, priority=2, grace=0) as task:
            await other.post(b"before")
            assert await stage.next(1) == [b"before"]
            async with other.subscribe(priority=1) as next_in_line:
                proxy.delay(0.1)
                task.cancel()
                await asyncio.wait([task])
                await other.post(b"after")
                message = await next_in_line.receive(timeout=10)
                # A message from the worker would be marked as redelivered.
                assert (message.data, message.redelivered) == (b"after", False)
                message.confirm()


# ---- misuse


def dead_letters(queue: bmq.Queue) -> dict[str, Any]:
    return {"retry": bmq.NoRetry(then=bmq.DeadLetter(queue))}


async def test_contradictory_arguments_are_refused(session: bmq.Session, stage: Stage, fresh: Fresh) -> None:
    queue, reading = stage.queue, await session.open_queue(fresh(), read=True)
    on_receipt: dict[str, Any] = {"ack": bmq.AckPolicy.ON_RECEIPT, "retry": bmq.Backoff(1)}
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        (queue, stage.handle, {"concurrency": 0}, "concurrency must be an integer from 1 to"),
        (queue, stage.handle, {"timeout": 0}, "timeout must be a number of seconds, more than 0"),
        (queue, stage.handle, {"grace": -1}, "grace must be a number of seconds"),
        (queue, stage.handle, {"expression": "x >"}, "x >"),
        (queue, stage.handle, on_receipt, "retry is not possible"),
        (queue, lambda message: None, {"ack": bmq.AckPolicy.MANUAL}, "runs in a thread"),
        (queue, None, {}, "a handler must be a function"),
        (queue, stage.handle, dead_letters(queue), "would return to it"),
        (queue, stage.handle, dead_letters(reading), "not open for writing"),
        (queue.subscribe(), stage.handle, {"priority": 3}, "a consumer already has a subscription"),
    ]
    for source, handler, arguments, why in wrong:
        with pytest.raises(bmq.UsageError, match=why):
            await bmq.consume(source, handler, **arguments)
