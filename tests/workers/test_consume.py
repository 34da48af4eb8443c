# SPDX-License-Identifier: Apache-2.0
"""A function fed from a queue: confirmation, order, concurrency, hooks, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.workers import Failure
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered, post, seen_by

Fresh = Callable[..., str]


# ---- confirming


async def test_a_failed_message_stays_and_is_delivered_again_after_the_queue_is_closed(
    stage: Stage, other_session: bmq.Session
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"1":
            raise ValueError("no")

    await post(stage.queue, *numbered(3))
    async with consuming(stage.queue, handle):
        assert await stage.next(3) == numbered(3)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"1"]


async def test_on_receipt_confirms_before_the_handler_runs(stage: Stage, other_session: bmq.Session) -> None:
    async def handle(message: bmq.Message) -> None:
        assert message.confirmed
        await stage.handle(message)
        raise ValueError("lost")

    await post(stage.queue, b"x")
    async with consuming(stage.queue, handle, ack=bmq.AckPolicy.ON_RECEIPT):
        await stage.next(1)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == []


async def test_manual_leaves_confirming_to_the_handler(stage: Stage, other_session: bmq.Session) -> None:
    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            message.confirm()
        await stage.handle(message)

    await post(stage.queue, *numbered(2))
    async with consuming(stage.queue, handle, ack=bmq.AckPolicy.MANUAL):
        await stage.next(2)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"1"]


async def test_message_confirmed_before_a_failure_is_not_retried(stage: Stage, clock: FakeClock) -> None:
    failures: list[Failure] = []

    async def handle(message: bmq.Message) -> None:
        message.confirm()
        await stage.handle(message)
        if message.data == b"0":
            raise ValueError("late")

    await post(stage.queue, *numbered(2))
    async with consuming(stage.queue, handle, retry=bmq.Backoff(1), clock=clock, on_error=failures.append):
        assert await stage.next(2) == numbered(2)
    assert clock.slept == []
    assert [failure.retry_in for failure in failures] == [None]


# ---- selecting, order, concurrency


async def test_a_subscription_selects(stage: Stage) -> None:
    async with consuming(stage.queue, stage.handle, expression="x == 1"):
        for x in (0, 1, 0, 1):
            await stage.queue.post(b"%d" % x, properties={"x": x})
        assert await stage.next(2) == [b"1", b"1"]
        assert stage.seen.empty()


async def test_a_consumer_may_be_given_and_is_left_open(stage: Stage) -> None:
    async with stage.queue.subscribe("x == 1") as consumer:
        async with consuming(consumer, stage.handle):
            await stage.queue.post(b"a", properties={"x": 1})
            assert await stage.next(1) == [b"a"]
        assert not consumer.closed
        await stage.queue.post(b"b", properties={"x": 1})
        assert (await consumer.receive()).data == b"b"


async def test_concurrency_one_keeps_the_order(stage: Stage) -> None:
    running = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        await stage.handle(message)

    await post(stage.queue, *numbered(50))
    async with consuming(stage.queue, handle):
        assert await stage.next(50) == numbered(50)


async def test_concurrency_limits_the_running_handlers(stage: Stage) -> None:
    gate = asyncio.Event()
    running: set[bytes] = set()
    most = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal most
        running.add(message.data)
        most = max(most, len(running))
        if len(running) == 4:
            gate.set()
        await gate.wait()
        running.discard(message.data)
        await stage.handle(message)

    await post(stage.queue, *numbered(20))
    async with consuming(stage.queue, handle, concurrency=4):
        assert sorted(await stage.next(20)) == sorted(numbered(20))
    assert most == 4


# ---- sync handlers


async def test_a_plain_function_runs_in_a_thread_and_its_message_is_confirmed(
    stage: Stage, other_session: bmq.Session
) -> None:
    loop = asyncio.get_running_loop()
    threads: set[int] = set()

    def handle(message: bmq.Message) -> None:
        threads.add(threading.get_ident())
        loop.call_soon_threadsafe(stage.seen.put_nowait, message)
        if message.data == b"1":
            raise ValueError("no")

    await post(stage.queue, *numbered(4))
    async with consuming(stage.queue, handle):
        assert await stage.next(4) == numbered(4)
    assert threading.get_ident() not in threads
    assert len(threads) == 1
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"1"]


async def test_plain_functions_have_concurrency_threads(stage: Stage) -> None:
    together = threading.Barrier(12, timeout=30)
    loop = asyncio.get_running_loop()

    def handle(message: bmq.Message) -> None:
        together.wait()
        loop.call_soon_threadsafe(stage.seen.put_nowait, message)

    await post(stage.queue, *numbered(24))
    async with consuming(stage.queue, handle, concurrency=12):
        await stage.next(24)


# ---- reports


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_failing_hook_stops_no_worker(
    stage: Stage, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(failure: Failure) -> Awaitable[None] | None:
        async def later() -> None:
            raise RuntimeError("hook")

        if asynchronous:
            return later()
        raise RuntimeError("hook")

    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data != b"good":
            raise ValueError("no")

    await post(stage.queue, *numbered(2))
    await post(stage.queue, b"good")
    async with consuming(stage.queue, handle, on_error=hook):
        assert await stage.next(3) == [*numbered(2), b"good"]
    assert sum("on_error itself failed" in each.message for each in caplog.records) == 2


# ---- the end


async def test_cancelling_finishes_the_running_handler_and_returns_the_rest(
    stage: Stage, other_session: bmq.Session
) -> None:
    working, go = asyncio.Event(), asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        working.set()
        await go.wait()
        await stage.handle(message)

    await post(stage.queue, *numbered(3))
    task = asyncio.create_task(bmq.consume(stage.queue, handle))
    await working.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stage.next(1) == [b"0"]
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"1", b"2"]


async def test_after_the_grace_handlers_are_cancelled_and_their_messages_not_confirmed(
    stage: Stage, other_session: bmq.Session
) -> None:
    working = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        working.set()
        await asyncio.Event().wait()

    await post(stage.queue, b"x")
    task = asyncio.create_task(bmq.consume(stage.queue, handle, grace=0.02))
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"x"]


async def test_second_cancellation_ends_consume_at_once(stage: Stage, other_session: bmq.Session) -> None:
    working = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # the message of a handler that swallows its cancellation is not confirmed

    await post(stage.queue, b"x")
    task = asyncio.create_task(bmq.consume(stage.queue, handle, grace=3600))
    await working.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"x"]


async def test_shutdown_does_not_wait_for_pending_retries(stage: Stage, other_session: bmq.Session) -> None:
    resting = asyncio.Event()

    class Standstill(FakeClock):
        async def sleep(self, seconds: float) -> None:
            resting.set()
            await asyncio.Event().wait()

    async def handle(message: bmq.Message) -> None:
        raise ValueError("never")

    await post(stage.queue, b"x")
    task = asyncio.create_task(
        bmq.consume(stage.queue, handle, retry=bmq.Backoff(3600), grace=3600, clock=Standstill())
    )
    await resting.wait()
    task.cancel()
    await asyncio.wait([task])
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"x"]


@pytest.mark.parametrize("resting", [False, True], ids=["at work", "between attempts"])
async def test_message_redelivered_during_handling_is_handled_once(
    broker_uri: str, session: bmq.Session, uri: str, resting: bool
) -> None:
    go, holding = asyncio.Event(), asyncio.Event()
    finished: asyncio.Queue[bytes] = asyncio.Queue()
    calls: list[bytes] = []

    class Standstill(FakeClock):
        async def sleep(self, seconds: float) -> None:
            holding.set()
            await go.wait()

    async def handle(message: bmq.Message) -> None:
        calls.append(message.data)
        if message.data == b"slow":
            if resting and len(calls) == 1:
                raise ValueError("once more")
            holding.set()
            await go.wait()
        finished.put_nowait(message.data)

    async with FaultProxy(broker_uri) as proxy, bmq.connect(proxy.uri) as own:
        events = own.events()
        queue = await own.open_queue(uri, read=True, write=True, default_subscription=False)
        await queue.post(b"slow")
        async with consuming(queue, handle, concurrency=2, retry=bmq.Backoff(1), clock=Standstill()):
            await holding.wait()
            proxy.cut()
            async for event in events:
                if isinstance(event, bmq.events.StateRestored):
                    break
            await queue.post(b"next")
            assert await finished.get() == b"next"  # the slow message was redelivered first
            go.set()
            assert await finished.get() == b"slow"
    assert calls.count(b"slow") == 1 + resting
    assert await seen_by(session, uri) == []


async def test_consume_returns_when_the_queue_is_closed(stage: Stage) -> None:
    task = asyncio.create_task(bmq.consume(stage.queue, stage.handle, concurrency=3))
    await stage.queue.post(b"x")
    await stage.next(1)
    await stage.queue.close()
    await task


async def test_consume_returns_when_the_session_is_closed(broker_uri: str, uri: str) -> None:
    session = await bmq.connect(broker_uri)
    stage = Stage(await session.open_queue(uri, read=True, write=True, default_subscription=False))
    task = asyncio.create_task(bmq.consume(stage.queue, stage.handle))
    await stage.queue.post(b"x")
    await stage.next(1)
    await session.close()
    await task


async def test_worker_cancelled_from_outside_ends_consume_with_an_error(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)

    task = asyncio.create_task(bmq.consume(stage.queue, handle, concurrency=2))
    await stage.queue.post(b"x")
    await stage.next(1)
    next(each for each in asyncio.all_tasks() if "worker 1" in each.get_name()).cancel()
    with pytest.raises(bmq.StateError, match="cancelled from outside"):
        await task


async def test_subscription_is_withdrawn_even_without_grace(
    broker_uri: str, uri: str, other_session: bmq.Session
) -> None:
    other = await other_session.open_queue(uri, read=True, write=True, default_subscription=False)
    async with FaultProxy(broker_uri) as proxy, bmq.connect(proxy.uri) as own:
        stage = Stage(await own.open_queue(uri, read=True, default_subscription=False))
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_consume_returns_after_a_signal_and_the_running_handler(
    stage: Stage, other_session: bmq.Session, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    go = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        asyncio.get_running_loop().call_later(0.05, go.set)
        os.kill(os.getpid(), number)
        await go.wait()
        await stage.handle(message)

    await post(stage.queue, *numbered(3))
    await bmq.consume(stage.queue, handle, signals=True)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    assert signal.getsignal(number) is before
    assert await stage.next(1) == [b"0"]
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"1", b"2"]


async def test_a_second_signal_does_not_wait_for_the_handler(
    stage: Stage, other_session: bmq.Session
) -> None:
    async def handle(message: bmq.Message) -> None:
        loop = asyncio.get_running_loop()
        os.kill(os.getpid(), signal.SIGTERM)
        loop.call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    await post(stage.queue, b"x")
    await bmq.consume(stage.queue, handle, signals=True, grace=3600)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"x"]


async def test_consume_cancelled_beside_a_signal_is_cancelled(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        await asyncio.Event().wait()

    await post(stage.queue, b"x")
    task = asyncio.create_task(bmq.consume(stage.queue, handle, signals=True, grace=3600))
    await asyncio.wait([task])
    assert task.cancelled()


# ---- misuse


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"concurrency": 0}, "concurrency must be an integer from 1 to"),
        ({"timeout": 0}, "timeout must be a number of seconds, more than 0"),
        ({"grace": -1}, "grace must be a number of seconds"),
        ({"ack": bmq.AckPolicy.ON_RECEIPT, "retry": bmq.Backoff(1)}, "retry is not possible"),
        ({"expression": "x >"}, "x >"),
    ],
)
async def test_contradictory_arguments_are_refused(stage: Stage, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        await bmq.consume(stage.queue, stage.handle, **arguments)


async def test_invalid_arguments_are_refused(session: bmq.Session, stage: Stage, fresh: Fresh) -> None:
    with pytest.raises(bmq.UsageError, match="runs in a thread"):
        await bmq.consume(stage.queue, lambda message: None, ack=bmq.AckPolicy.MANUAL)
    with pytest.raises(bmq.UsageError, match="a handler must be a function"):
        await bmq.consume(stage.queue, None)  # type: ignore[arg-type]
    with pytest.raises(bmq.UsageError, match="would return to it"):
        await bmq.consume(stage.queue, stage.handle, retry=bmq.NoRetry(then=bmq.DeadLetter(stage.queue)))
    reading = await session.open_queue(fresh(), read=True)
    with pytest.raises(bmq.UsageError, match="not open for writing"):
        await bmq.consume(stage.queue, stage.handle, retry=bmq.NoRetry(then=bmq.DeadLetter(reading)))
    with pytest.raises(bmq.UsageError, match="a consumer already has a subscription"):
        await bmq.consume(stage.queue.subscribe(), stage.handle, priority=3)
