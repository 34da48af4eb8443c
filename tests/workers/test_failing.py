# SPDX-License-Identifier: Apache-2.0
"""A handler that fails: deadlines, retries, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.workers import Failure
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered, post, seen_by

Fresh = Callable[..., str]


# ---- deadlines


async def test_a_handler_that_takes_too_long_has_failed(stage: Stage, other_session: bmq.Session) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            await asyncio.Event().wait()
        await stage.handle(message)

    await post(stage.queue, *numbered(2))
    once = bmq.NoRetry()
    async with consuming(stage.queue, handle, timeout=0.02, retry=once, on_error=failures.put_nowait):
        failure = await failures.get()
        assert isinstance(failure.error, TimeoutError)
        assert "deadline of 0.02 s" in str(failure.error)
        assert failure.message.data == b"0"
        assert await stage.next(1) == [b"1"]
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"0"]


async def test_a_handler_that_ignores_its_deadline_has_failed(
    stage: Stage, other_session: bmq.Session
) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stage.handle(message)

    await post(stage.queue, b"x")
    async with consuming(stage.queue, handle, timeout=0.02, on_error=failures.put_nowait):
        assert isinstance((await failures.get()).error, TimeoutError)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"x"]


async def test_error_raised_after_the_deadline_is_the_failure(stage: Stage) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("cleaning up")

    await post(stage.queue, b"x")
    async with consuming(stage.queue, handle, timeout=0.02, on_error=failures.put_nowait):
        assert isinstance((await failures.get()).error, KeyError)


async def test_each_message_has_the_full_timeout(stage: Stage) -> None:
    """Together, they take longer than a single deadline."""
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        await asyncio.sleep(0.1)
        await stage.handle(message)

    await post(stage.queue, *numbered(8))
    async with consuming(stage.queue, handle, timeout=0.75, on_error=failures.put_nowait):
        assert await stage.next(8) == [b"%d" % number for number in range(8)]
        assert failures.empty()


async def test_worker_cancelled_after_its_deadline_ends(stage: Stage) -> None:
    began = asyncio.Event()
    late = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            late.set()
            await asyncio.Event().wait()

    await post(stage.queue, b"x")
    task = asyncio.create_task(bmq.consume(stage.queue, handle, timeout=0.02, grace=0))
    await began.wait()
    await late.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_handlers_own_timeout_error_is_passed_on_unchanged(stage: Stage) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        raise TimeoutError("its own")

    await post(stage.queue, b"x")
    async with consuming(stage.queue, handle, timeout=60, on_error=failures.put_nowait):
        assert str((await failures.get()).error) == "its own"


# ---- retries


@pytest.mark.statement("6.6")
async def test_backoff_tries_three_more_times_then_discards_and_continues(
    stage: Stage, clock: FakeClock, other_session: bmq.Session
) -> None:
    failures: list[Failure] = []

    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"0":
            raise ValueError("never")

    await post(stage.queue, *numbered(2))
    retry = bmq.Backoff(every=10, retries=3, then="discard")
    async with consuming(stage.queue, handle, retry=retry, clock=clock, on_error=failures.append):
        assert await stage.next(5) == [b"0", b"0", b"0", b"0", b"1"]
    assert clock.slept == [10, 10, 10]
    assert [(failure.attempt, failure.retry_in) for failure in failures] == [
        (1, 10),
        (2, 10),
        (3, 10),
        (4, None),
    ]
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == []


@pytest.mark.statement("6.7")
async def test_growing_backoff_blocks_later_messages_until_its_time_is_over(
    stage: Stage, clock: FakeClock
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"0":
            raise ValueError("never")

    await post(stage.queue, *numbered(2))
    retry = bmq.Backoff(1, retries=None, factor=2, cap=4, give_up_after=10)
    async with consuming(stage.queue, handle, retry=retry, clock=clock):
        assert await stage.next(6) == [b"0", b"0", b"0", b"0", b"0", b"1"]
    assert clock.slept == [1, 2, 4, pytest.approx(2.9)], "the last attempt begins before the limit"


@pytest.mark.statement("6.7", "6.14")
@pytest.mark.parametrize("batch", [False, True])
async def test_failed_messages_are_retried_side_by_side_while_newer_ones_wait(
    stage: Stage, session: bmq.Session, broker_uri: str, batch: bool
) -> None:
    """Of ten messages four fail, and all at once; ten newer ones wait until the last one succeeds."""
    failing = {b"2", b"4", b"6", b"8"}
    seen: list[bytes] = []
    done: set[bytes] = set()
    all_done, together = asyncio.Event(), asyncio.Barrier(10)

    async def attempt(data: bytes) -> None:
        seen.append(data)
        if seen.count(data) == 1 and int(data) < 10:
            await together.wait()
        if data in failing:
            raise OSError("away")
        done.add(data)
        if len(done) == 20:
            all_done.set()

    app = bmq.App(broker_uri, grace=1)
    how: dict[str, Any] = {
        "concurrency": 10,
        "retry": bmq.Backoff(0.001, factor=2, cap=0.01, retries=None, blocks=True),
    }
    if batch:

        @app.batch_consumer(stage.queue.uri, max_messages=1, **how)
        async def handle_batch(messages: list[bmq.Message]) -> None:
            await attempt(messages[0].data)

    else:

        @app.consumer(stage.queue.uri, **how)
        async def handle(message: bmq.Message) -> None:
            await attempt(message.data)

    async with app:
        await post(stage.queue, *numbered(10))
        await eventually(lambda: all(seen.count(data) >= 2 for data in failing))
        assert app.status()[0].state is bmq.workers.SubscriberState.BLOCKED
        await post(stage.queue, *numbered(20)[10:])
        before = len(seen)
        await eventually(lambda: len(seen) >= before + 20)
        assert set(seen) == set(numbered(10)), "newer messages wait"
        failing.remove(b"2")
        await eventually(lambda: b"2" in done)
        assert set(seen) == set(numbered(10)), "as long as any message fails"
        failing.clear()
        await asyncio.wait_for(all_done.wait(), 30)
    assert done == set(numbered(20))


@pytest.mark.parametrize("how", [{"key": "x"}, {"group": lambda queue: queue.group("x")}])
def test_with_a_key_only_its_messages_wait(how: dict[str, Any]) -> None:
    with pytest.raises(bmq.UsageError, match=r"omit (key or )?blocks"):
        bmq.App().consumer(
            "bmq://bmq.test.mem.priority/orders", retry=bmq.Backoff(1, retries=None, blocks=True), **how
        )(print)


async def test_a_worker_waiting_for_a_retry_does_not_block_other_workers(stage: Stage) -> None:
    class Standstill(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            raise ValueError("never")
        await stage.handle(message)

    await post(stage.queue, *numbered(5))
    async with consuming(stage.queue, handle, retry=bmq.Backoff(1), concurrency=2, clock=Standstill()):
        assert await stage.next(4) == numbered(5)[1:]


async def test_awaiting_a_cancelled_task_is_a_failure_of_the_handler(stage: Stage, clock: FakeClock) -> None:
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        await stage.handle(message)

    await post(stage.queue, b"x")
    async with consuming(stage.queue, handle, retry=bmq.Backoff(1), clock=clock) as task:
        assert await stage.next(1) == [b"x"]
        assert not task.done()


# ---- dead letters


async def test_dead_letter_has_origin_and_error(
    session: bmq.Session, stage: Stage, fresh: Fresh, clock: FakeClock, other_session: bmq.Session
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        raise ValueError("no such customer ☹")

    dead = await session.open_queue(fresh(), read=True, write=True)
    ack = await stage.queue.post(
        b"payload",
        properties={"CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7), "raw": b"\0"},
        tags={"eu"},
    )
    retry = bmq.Backoff(every=1, retries=2, then=bmq.DeadLetter(dead))
    async with consuming(stage.queue, handle, retry=retry, clock=clock):
        letter = await dead.receive(timeout=10)
    assert letter.data == b"payload"
    assert dict(letter.properties) == {
        "CustomerId": 7,
        "raw": b"\0",
        "t.eu": True,
        "bmq_dead_attempts": 3,
        "bmq_dead_error": "ValueError: no such customer ☹",
        "bmq_dead_guid": ack.guid,
        "bmq_dead_queue": stage.queue.uri,
    }
    assert letter.property_types["CustomerId"] is bmq.PropertyType.SHORT
    assert letter.tags == {"eu"}
    letter.confirm()
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == []


async def test_a_full_queue_for_dead_letters_is_waited_for(
    session: bmq.Session, stage: Stage, fresh: Fresh, other_session: bmq.Session
) -> None:
    small = fresh("bmq.test.small.priority")
    filling = await other_session.open_queue(small, read=True, write=True)
    accepted = (await filling.post_many([b"filler"] * 20)).acknowledged
    assert 10 <= accepted < 20
    emptied = asyncio.Event()

    class Emptying(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if len(self.slept) == 2:
                for _ in range(accepted):
                    (await filling.receive()).confirm()
                while (await filling.post_many([b"after the confirmations"])).failures:
                    pass  # the confirmations are still on their way
                emptied.set()

    async def handle(message: bmq.Message) -> None:
        raise ValueError("no")

    clock = Emptying()
    dead = await session.open_queue(small, write=True)
    await stage.queue.post(b"x")
    async with consuming(stage.queue, handle, retry=bmq.NoRetry(then=bmq.DeadLetter(dead)), clock=clock):
        await emptied.wait()
        found = [await filling.receive(timeout=10) for _ in range(2)]
        assert [message.data for message in found] == [b"after the confirmations", b"x"]
        for message in found:
            message.confirm()
    assert clock.slept == [1, 2]


async def test_a_dead_letter_without_a_reason_for_its_refusal_is_posted_again(
    bmq_broker: bmq.broker.Broker, bmq_session: bmq.Session, stage: Stage, fresh: Fresh
) -> None:
    """Behind a proxy, a broker may have stored the message: the GUID is the same."""

    async def handle(message: bmq.Message) -> None:
        raise ValueError("no")

    clock = FakeClock()
    dead = await bmq_session.open_queue(fresh(), read=True, write=True)
    await stage.queue.post(b"x")
    bmq_broker.faults.nack(bmq.AckStatus.UNKNOWN, 2)
    async with consuming(stage.queue, handle, retry=bmq.NoRetry(then=bmq.DeadLetter(dead)), clock=clock):
        assert (await dead.receive(timeout=10)).data == b"x"
    assert clock.slept == [1, 2]


@pytest.mark.parametrize("shape", ["plain", "suspends", "middleware", "batch"])
async def test_a_returned_awaitable_is_no_success(
    broker_uri: str, stage: Stage, other_session: bmq.Session, shape: str
) -> None:
    """``return save(...)`` without ``await`` has saved nothing."""

    async def save() -> None:
        raise AssertionError("nothing awaits this")

    async def handle(message: bmq.Message) -> Any:
        if shape == "suspends":
            await asyncio.sleep(0)
        return save()

    async def handle_batch(messages: list[bmq.Message]) -> Any:
        return save()

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        return await call_next()

    app = bmq.App(broker_uri, middlewares=[around] if shape == "middleware" else [])
    failures: list[Failure] = []
    options: dict[str, Any] = {"retry": bmq.NoRetry(), "on_error": failures.append}
    if shape == "batch":
        app.batch_consumer(stage.queue.uri, max_messages=1, max_wait=0, **options)(handle_batch)
    else:
        app.consumer(stage.queue.uri, **options)(handle)
    await post(stage.queue, b"0")
    async with app:
        await eventually(lambda: failures)
    assert "returned an awaitable" in str(failures[0].error)
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"0"]
