# SPDX-License-Identifier: Apache-2.0
"""A handler that fails: deadlines, retries, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from tests.waiting import eventually
from tests.workers.conftest import FakeClock, Standstill
from tests.workers.kinds import register
from tests.workers.stage import Stage, consuming, numbered

Fresh = Callable[..., str]


# ---- deadlines


async def test_a_handler_that_takes_too_long_has_failed(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            await asyncio.Event().wait()
        await stage.handle(message)

    await stage.post(*numbered(2))
    async with stage.consuming(handle, timeout=0.02, retry=bmq.NoRetry()):
        failure = await stage.failures.get()
        assert isinstance(failure.error, TimeoutError)
        assert "deadline of 0.02 s" in str(failure.error)
        assert failure.message.data == b"0"
        assert await stage.next(1) == [b"1"]
    assert await stage.left() == [b"0"]


async def test_a_handler_that_ignores_its_deadline_has_failed(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stage.handle(message)

    await stage.post(b"x")
    async with stage.consuming(handle, timeout=0.02):
        assert isinstance((await stage.failures.get()).error, TimeoutError)
    assert await stage.left() == [b"x"]


async def test_error_raised_after_the_deadline_is_the_failure(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("cleaning up")

    await stage.post(b"x")
    async with stage.consuming(handle, timeout=0.02):
        assert isinstance((await stage.failures.get()).error, KeyError)


async def test_each_message_has_the_full_timeout(stage: Stage) -> None:
    """Together, they take longer than a single deadline."""

    async def handle(message: bmq.Message) -> None:
        await asyncio.sleep(0.1)
        await stage.handle(message)

    await stage.post(*numbered(8))
    async with stage.consuming(handle, timeout=0.75):
        assert await stage.next(8) == numbered(8)
        assert stage.failures.empty()


async def test_worker_cancelled_after_its_deadline_ends(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stage.hold(message)

    await stage.post(b"x")
    async with consuming(stage.queue, handle, timeout=0.02, grace=0) as task:
        await stage.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_handlers_own_timeout_error_is_passed_on_unchanged(stage: Stage) -> None:
    await stage.post(b"x")
    async with stage.consuming(stage.failing(error=TimeoutError("its own")), timeout=60):
        assert str((await stage.failures.get()).error) == "its own"


# ---- retries


@pytest.mark.statement("6.6")
async def test_backoff_tries_three_more_times_then_discards_and_continues(
    stage: Stage, clock: FakeClock
) -> None:
    await stage.post(*numbered(2))
    retry = bmq.Backoff(every=10, retries=3, then="discard")
    async with stage.consuming(stage.failing(b"0"), retry=retry, clock=clock):
        assert await stage.next(5) == [b"0", b"0", b"0", b"0", b"1"]
    assert clock.slept == [10, 10, 10]
    failures = [stage.failures.get_nowait() for _ in range(4)]
    assert [(each.attempt, each.retry_in) for each in failures] == [(1, 10), (2, 10), (3, 10), (4, None)]
    assert await stage.left() == []


@pytest.mark.statement("6.7")
async def test_growing_backoff_blocks_later_messages_until_its_time_is_over(
    stage: Stage, clock: FakeClock
) -> None:
    await stage.post(*numbered(2))
    retry = bmq.Backoff(1, retries=None, factor=2, cap=4, give_up_after=10)
    async with consuming(stage.queue, stage.failing(b"0"), retry=retry, clock=clock):
        assert await stage.next(6) == [b"0", b"0", b"0", b"0", b"0", b"1"]
    assert clock.slept == [1, 2, 4, pytest.approx(2.9)], "the last attempt begins before the limit"


@pytest.mark.statement("6.7", "6.14")
@pytest.mark.parametrize("kind", ["single", "batches"])
async def test_failed_messages_are_retried_side_by_side_while_newer_ones_wait(
    stage: Stage, kind: str
) -> None:
    """Of ten messages four fail, and all at once; ten newer ones wait until the last one succeeds."""
    failing = {b"2", b"4", b"6", b"8"}
    seen: list[bytes] = []
    done: set[bytes] = set()
    together = asyncio.Barrier(10)

    async def attempt(message: bmq.Message) -> None:
        data = message.data
        seen.append(data)
        if seen.count(data) == 1 and int(data) < 10:
            await together.wait()
        if data in failing:
            raise OSError("away")
        done.add(data)

    app = bmq.App(stage.broker_uri, grace=1)
    options: dict[str, Any] = {"max_messages": 1} if kind == "batches" else {}
    retry = bmq.Backoff(0.001, factor=2, cap=0.01, retries=None, blocks=True)
    register(app, stage.uri, kind, attempt, concurrency=10, retry=retry, **options)
    async with app:
        await stage.post(*numbered(10))
        await eventually(lambda: all(seen.count(data) >= 2 for data in failing))
        assert app.status()[0].state is bmq.workers.SubscriberState.BLOCKED
        await stage.post(*numbered(20)[10:])
        before = len(seen)
        await eventually(lambda: len(seen) >= before + 20)
        assert set(seen) == set(numbered(10)), "newer messages wait"
        failing.remove(b"2")
        await eventually(lambda: b"2" in done)
        assert set(seen) == set(numbered(10)), "as long as any message fails"
        failing.clear()
        await eventually(lambda: done == set(numbered(20)))


@pytest.mark.parametrize("how", [{"key": "x"}, {"group": lambda queue: queue.group("x")}])
def test_with_a_key_only_its_messages_wait(how: dict[str, Any]) -> None:
    retry = bmq.Backoff(1, retries=None, blocks=True)
    with pytest.raises(bmq.UsageError, match=r"omit (key or )?blocks"):
        bmq.App().consumer("bmq://bmq.test.mem.priority/orders", retry=retry, **how)(print)


async def test_a_worker_waiting_for_a_retry_does_not_block_other_workers(
    stage: Stage, standstill: Standstill
) -> None:
    await stage.post(*numbered(5))
    handler, retry = stage.failing(b"0"), bmq.Backoff(1)
    async with consuming(stage.queue, handler, retry=retry, concurrency=2, clock=standstill):
        assert await stage.next(5) == numbered(5)


# ---- dead letters


async def test_dead_letter_has_origin_and_error(
    session: bmq.Session, stage: Stage, fresh: Fresh, clock: FakeClock
) -> None:
    dead = await session.open_queue(fresh(), read=True, write=True)
    ack = await stage.queue.post(
        b"payload",
        properties={"CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7), "raw": b"\0"},
        tags={"eu"},
    )
    handler = stage.failing(error=ValueError("no such customer ☹"))
    retry = bmq.Backoff(every=1, retries=2, then=bmq.DeadLetter(dead))
    async with consuming(stage.queue, handler, retry=retry, clock=clock):
        letter = await dead.receive(timeout=10)
    assert letter.data == b"payload"
    assert dict(letter.properties) == {
        "CustomerId": 7,
        "raw": b"\0",
        "t.eu": True,
        "bmq_dead_attempts": 3,
        "bmq_dead_error": "ValueError: no such customer ☹",
        "bmq_dead_guid": ack.guid,
        "bmq_dead_queue": stage.uri,
    }
    assert letter.property_types["CustomerId"] is bmq.PropertyType.SHORT
    assert letter.tags == {"eu"}
    letter.confirm()
    assert await stage.left() == []


@pytest.mark.parametrize("status", [bmq.AckStatus.UNKNOWN, bmq.AckStatus.LIMIT_MESSAGES])
async def test_a_dead_letter_refused_without_a_reason_or_for_lack_of_room_is_posted_again(
    bmq_broker: bmq.broker.Broker,
    bmq_session: bmq.Session,
    stage: Stage,
    fresh: Fresh,
    clock: FakeClock,
    status: bmq.AckStatus,
) -> None:
    """Behind a proxy, a broker may have stored the message: the GUID is the same."""
    dead = await bmq_session.open_queue(fresh(), read=True, write=True)
    await stage.post(b"x")
    bmq_broker.faults.nack(status, 2)
    retry = bmq.NoRetry(then=bmq.DeadLetter(dead))
    async with consuming(stage.queue, stage.failing(), retry=retry, clock=clock):
        assert (await dead.receive(timeout=10)).data == b"x"
    assert clock.slept == [1, 2]


# ---- results


@pytest.mark.parametrize("kind", ["single", "suspends", "middleware", "batches"])
async def test_a_returned_awaitable_is_no_success(stage: Stage, kind: str) -> None:
    """``return save(...)`` without ``await`` has saved nothing."""

    async def save() -> None:
        raise AssertionError("nothing awaits this")

    async def handle(message: bmq.Message) -> Any:
        if kind == "suspends":
            await asyncio.sleep(0)
        return save()

    async def handle_batch(messages: list[bmq.Message]) -> Any:
        return save()

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        return await call_next()

    app = bmq.App(stage.broker_uri, middlewares=[around] if kind == "middleware" else [])
    options: dict[str, Any] = {"retry": bmq.NoRetry(), "on_error": stage.failures.put_nowait}
    if kind == "batches":
        app.batch_consumer(stage.uri, max_messages=1, max_wait=0, **options)(handle_batch)
    else:
        app.consumer(stage.uri, **options)(handle)
    await stage.post(b"0")
    async with app:
        failure = await stage.failures.get()
    assert "returned an awaitable" in str(failure.error)
    assert await stage.left() == [b"0"]
