# SPDX-License-Identifier: Apache-2.0
"""Retries that survive the worker: between two attempts the message waits in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import bmq
from bmq.conventions import waiting_queue
from bmq.workers import Failure
from tests.conformance.conftest import HasUri
from tests.conformance.test_delays import moving
from tests.workers.stage import consuming, seen_by

Connect = Callable[..., Awaitable[bmq.Session]]
NewUri = Callable[..., str]
AGAIN = bmq.Backoff(every=0.3, retries=2, durable=True)


async def opened(session: bmq.Session, uri: str, **options: object) -> bmq.Queue:
    return await session.open_queue(uri, read=True, write=True, default_subscription=False, **options)  # type: ignore[arg-type]


async def test_an_app_until_the_dead_letter(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """Others are handled meanwhile; what dies is as it was, with the GUID that it had at first."""
    uri, dead = bmq_new_queue_uri(), bmq_new_queue_uri()
    retry = bmq.Backoff(every=0.3, retries=2, durable=True, then=bmq.DeadLetter(dead))
    app = bmq.App(bmq_broker.uri)
    seen: list[bytes] = []
    failures: list[Failure] = []

    @app.consumer(uri, retry=retry, on_error=failures.append)
    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise ValueError(f"no {len(seen)}")

    queue = await bmq_session.open_queue(uri, write=True)
    ack = await queue.post(b"bad", properties={"CustomerId": 7})
    await queue.post(b"good")
    letters = await bmq_session.open_queue(dead, read=True)
    running = asyncio.create_task(app.run(signals=False))
    letter = await letters.receive(timeout=20)
    letter.confirm()
    await letters.close()
    app.stop()
    await running
    assert seen == [b"bad", b"good", b"bad", b"bad"]
    assert [failure.attempt for failure in failures] == [1, 2, 3]
    assert failures[1].message.properties["bmq_attempts"] == 1
    assert failures[1].message.properties["bmq_error"] == "ValueError: no 1"
    assert dict(letter.properties) == {
        "CustomerId": 7,
        "deadletter.attempts": 3,
        "deadletter.error": "ValueError: no 4",
        "deadletter.guid": ack.guid,
        "deadletter.queue": uri,
    }
    for each in (uri, waiting_queue(uri), dead):
        assert await seen_by(await bmq_connect(), each) == []


async def test_another_worker_makes_the_next_attempt(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    first, second = await bmq_connect(), await bmq_connect()
    failed, handled = asyncio.Event(), asyncio.Event()

    async def fail(message: bmq.Message) -> None:
        raise OSError("not now")

    async def handle(message: bmq.Message) -> None:
        assert message.properties["bmq_attempts"] == 1
        handled.set()

    queue = await opened(first, bmq_queue_uri)
    await queue.post(b"x")
    async with consuming(queue, fail, retry=AGAIN, on_error=lambda failure: failed.set()):
        await asyncio.wait_for(failed.wait(), 20)
    await first.close()
    async with (
        moving(bmq_session, bmq_queue_uri),
        consuming(await opened(second, bmq_queue_uri), handle, retry=AGAIN),
    ):
        await asyncio.wait_for(handled.wait(), 20)


async def test_what_is_put_off_on_purpose_is_no_attempt(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    attempts: list[int] = []
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        attempts.append(int(message.properties.get("bmq_attempts", 0)))
        if len(attempts) < 4:
            raise bmq.RetryAfter(0.1)
        done.set()

    queue = await opened(bmq_session, bmq_queue_uri)
    await queue.post(b"x")
    once = bmq.Backoff(every=0, retries=0, durable=True)
    async with moving(bmq_session, bmq_queue_uri), consuming(queue, handle, retry=once):
        await asyncio.wait_for(done.wait(), 20)
    assert attempts == [0, 0, 0, 0]


async def test_a_worker_that_dies_before_it_confirms(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attempt fails again elsewhere; what comes back is one message."""

    async def fail(message: bmq.Message) -> None:
        raise OSError("not now")

    producer = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await producer.post(b"x")
    with monkeypatch.context() as forgetful:
        forgetful.setattr(bmq.Message, "confirm", lambda self: None)
        for _ in range(2):
            session = await bmq_connect()
            failed = asyncio.Event()
            async with consuming(
                await opened(session, bmq_queue_uri),
                fail,
                retry=AGAIN,
                on_error=lambda failure, failed=failed: failed.set(),
            ):
                await asyncio.wait_for(failed.wait(), 20)
            await session.close()
    assert await seen_by(await bmq_connect(), waiting_queue(bmq_queue_uri)) == [b"x"]


async def test_without_a_queue_to_wait_in_it_waits_in_the_worker(
    bmq_session: bmq.Session, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await opened(bmq_session, bmq_queue_uri, waiting="bmq://no.such.domain/q")
    attempts: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        attempts.append(message.data)
        if len(attempts) == 3:
            done.set()
            return
        raise OSError("not now")

    output = await bmq_session.output(bmq_queue_uri)
    assert output is queue
    await queue.post(b"x")
    async with consuming(queue, handle, retry=AGAIN):
        await asyncio.wait_for(done.wait(), 20)
    assert attempts == [b"x"] * 3
    assert "waits here for its next attempt" in caplog.text


async def test_not_of_one_application_of_several(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    uri = bmq_new_queue_uri("bmq.test.mem.fanout") + "?id=foo"
    with pytest.raises(bmq.UsageError, match="every application"):
        bmq.App().consumer(uri, retry=AGAIN)
    queue = await bmq_session.open_queue(uri, read=True, default_subscription=False)
    with pytest.raises(bmq.UsageError, match="every application"):
        await bmq.consume(queue, print, retry=AGAIN)
