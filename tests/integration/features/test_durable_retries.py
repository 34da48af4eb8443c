# SPDX-License-Identifier: Apache-2.0
"""Retries that survive the worker: between two attempts the message waits in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.conventions import delay_queue_of
from bmq.testing import FaultProxy
from bmq.workers import Failure, SubscriberState, status
from tests.integration.features.test_delays import moving
from tests.integration.steps import HasUri
from tests.waiting import eventually
from tests.workers.stage import consuming, seen_by

Connect = Callable[..., Awaitable[bmq.Session]]
NewUri = Callable[..., str]
AGAIN = bmq.Backoff(every=0.3, retries=2, durable=True)


async def opened(session: bmq.Session, uri: str, **options: object) -> bmq.Queue:
    return await session.open_queue(uri, read=True, write=True, default_subscription=False, **options)  # type: ignore[arg-type]


async def test_an_app_retries_until_the_dead_letter(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """Other messages are handled meanwhile; the dead letter is unchanged, with the original GUID."""
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
        "bmq_dead_attempts": 3,
        "bmq_dead_error": "ValueError: no 4",
        "bmq_dead_guid": ack.guid,
        "bmq_dead_queue": uri,
    }
    for each in (uri, delay_queue_of(uri), dead):
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


async def test_delayed_message_does_not_count_as_an_attempt(
    bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
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


async def test_worker_killed_before_the_confirmation_duplicates_no_retry(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attempt fails again in another worker; only one message returns."""

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
    assert await seen_by(await bmq_connect(), delay_queue_of(bmq_queue_uri)) == [b"x"]


async def test_retry_without_a_delay_queue_waits_in_the_worker(
    bmq_session: bmq.Session, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await opened(bmq_session, bmq_queue_uri, delay_queue_uri="bmq://no.such.domain/q")
    attempts: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        attempts.append(message.data)
        if len(attempts) == 3:
            done.set()
            return
        raise OSError("not now")

    output = await bmq_session.open_output(bmq_queue_uri)
    assert output is queue
    await queue.post(b"x")
    async with consuming(queue, handle, retry=AGAIN):
        await asyncio.wait_for(done.wait(), 20)
    assert attempts == [b"x"] * 3
    assert "waits in the worker for its next attempt" in caplog.text


async def test_durable_retries_of_a_fanout_application_are_refused(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.mem.fanout") + "?id=foo"
    with pytest.raises(bmq.UsageError, match="every application"):
        bmq.App().consumer(uri, retry=AGAIN)
    queue = await bmq_session.open_queue(uri, read=True, default_subscription=False)
    with pytest.raises(bmq.UsageError, match="every application"):
        await bmq.consume(queue, print, retry=AGAIN)


async def filled(queue: bmq.Queue, text: bytes, **options: Any) -> list[bytes]:
    """Post until the queue is full; return the payloads."""
    posted: list[bytes] = []
    refused: bmq.PostError | None = None
    while refused is None:
        refused = await refusal(queue, text % len(posted), **options)
        posted.append(text % len(posted))
    assert refused.status is bmq.AckStatus.LIMIT_MESSAGES
    return posted[:-1]


async def refusal(queue: bmq.Queue, payload: bytes, **options: Any) -> bmq.PostError | None:
    """Post a message; return the error of the broker, or None."""
    try:
        await queue.post(payload, **options)
    except bmq.PostError as error:
        return error
    return None


@pytest.mark.parametrize("failing", [1, 3])
async def test_full_queue_and_full_delay_queue_do_not_deadlock(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_new_queue_uri: NewUri, failing: int
) -> None:
    """A failed message cannot be put off, and due messages cannot come back: the good ones make room."""
    uri = bmq_new_queue_uri("bmq.test.small.priority")
    session = await bmq_connect()
    queue = await opened(session, uri)
    bad = [b"bad %d" % n for n in range(failing)]
    (await queue.post_many(bad)).raise_for_failures()
    good = await filled(queue, b"good %d")
    later = await filled(queue, b"later %d", delay=0.001)
    total = len(bad) + len(good) + len(later)

    app = bmq.App(bmq_broker.uri)
    handled: list[bytes] = []
    attempts: list[bytes] = []
    healed = False

    @app.consumer(uri, retry=bmq.Backoff(every=0.05, retries=1_000_000, durable=True))
    async def handle(message: bmq.Message) -> None:
        if message.data.startswith(b"bad") and not healed:
            attempts.append(message.data)
            raise OSError("not now")
        handled.append(message.data)

    async with app:
        await eventually(lambda: len(handled) == total - failing, 20)
        assert sorted(handled) == sorted([*good, *later])
        spent = len(attempts)
        await eventually(lambda: len(attempts) >= spent + failing, 20)
        healed = True
        await eventually(lambda: len(handled) == total, 20)
        await eventually(lambda: app.status()[0].unconfirmed == 0)
        assert (app.status()[0].failing, app.status()[0].left) == (0, 0)
    assert sorted(handled) == sorted([*bad, *good, *later]), "none is lost, none is handled twice"
    for each in (uri, delay_queue_of(uri)):
        assert await seen_by(await bmq_connect(), each) == []


async def test_an_undelayable_message_keeps_its_count_and_occupies_no_worker(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    """With a delay queue that is never emptied too: a mover may be away."""
    uri = bmq_new_queue_uri("bmq.test.small.priority")
    session = await bmq_connect()
    queue = await opened(session, uri)
    await filled(queue, b"%d", delay=3600)
    (await queue.post_many([b"bad", b"good"])).raise_for_failures()
    seen: list[bytes] = []
    failures: list[Failure] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise OSError("not now")

    retry = bmq.Backoff(every=0.02, retries=3, durable=True, then="discard")
    async with consuming(queue, handle, retry=retry, on_error=failures.append):
        await eventually(lambda: len(failures) == 4, 20)
        [consumer] = queue.consumers
        await eventually(lambda: status(consumer)[0].unconfirmed == 0)
        assert (status(consumer)[0].failing, status(consumer)[0].handling) == (0, 0)
        assert status(consumer)[0].given_up == 1
    assert seen == [b"bad", b"good", b"bad", b"bad", b"bad"]
    assert [failure.attempt for failure in failures] == [1, 2, 3, 4]
    await queue.close()
    assert await seen_by(await bmq_connect(), uri) == []


async def test_messages_waiting_in_the_worker_return_at_its_end(
    bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.small.priority")
    session = await bmq_connect()
    queue = await opened(session, uri)
    await filled(queue, b"%d", delay=3600)
    (await queue.post_many([b"bad 1", b"bad 2", b"good"])).raise_for_failures()
    seen: list[bytes] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)
        if message.data != b"good":
            raise OSError("not now")

    async with consuming(queue, handle, retry=bmq.Backoff(every=3600, durable=True)):
        await eventually(lambda: seen == [b"bad 1", b"bad 2", b"good"])
        [consumer] = queue.consumers
        await eventually(lambda: status(consumer)[0].failing == 2)
        assert status(consumer)[0].state is SubscriberState.FAILING
    assert status(consumer)[0].failing == 0
    await queue.close()
    assert await seen_by(await bmq_connect(), uri) == [b"bad 1", b"bad 2"]


@pytest.mark.parametrize("every", [0.02, 3600])
async def test_messages_waiting_in_the_worker_survive_a_reconnect(
    bmq_proxy: FaultProxy, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, every: float
) -> None:
    """``bmq_session`` goes through the proxy."""
    queue = await opened(bmq_session, bmq_new_queue_uri("bmq.test.small.priority"))
    await filled(queue, b"%d", delay=3600)
    (await queue.post_many([b"bad", b"good"])).raise_for_failures()
    seen: list[bytes] = []
    healed = False

    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)
        if message.data == b"bad" and not healed:
            raise OSError("not now")

    async with consuming(queue, handle, retry=bmq.Backoff(every, retries=1_000_000, durable=True)):
        await eventually(lambda: b"good" in seen and seen[0] == b"bad")
        [consumer] = queue.consumers
        await eventually(lambda: status(consumer)[0].failing == 1)
        healed = every < 1
        bmq_proxy.cut()
        if healed:
            await eventually(lambda: b"bad" in seen[2:] and status(consumer)[0].handled >= 2, 20)
            await eventually(lambda: status(consumer)[0].unconfirmed == status(consumer)[0].failing == 0)
        else:
            await eventually(lambda: bmq_session.health().ready and bmq_session.stats().reconnects == 1)
            assert (status(consumer)[0].failing, seen) == (1, [b"bad", b"good"])
