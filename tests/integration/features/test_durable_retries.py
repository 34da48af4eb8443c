# SPDX-License-Identifier: Apache-2.0
"""Retries that survive the worker: between two attempts the message waits in the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from bmq.conventions import delay_queue_of
from bmq.testing import FaultProxy
from bmq.workers import Failure, SubscriberState, status
from tests.integration.features.test_delays import moving
from tests.integration.steps import Connect, HasUri, NewUri
from tests.waiting import eventually
from tests.workers.stage import consuming, seen_by

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


async def fail_once(session: bmq.Session, uri: str) -> None:
    """Let a worker fail on a message, and end the worker with its session."""
    failed = asyncio.Event()

    async def fail(message: bmq.Message) -> None:
        raise OSError("not now")

    queue = await opened(session, uri)
    async with consuming(queue, fail, retry=AGAIN, on_error=lambda failure: failed.set()):
        await asyncio.wait_for(failed.wait(), 20)
    await session.close()


async def test_another_worker_makes_the_next_attempt(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    handled = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        assert message.properties["bmq_attempts"] == 1
        handled.set()

    await (await bmq_session.open_queue(bmq_queue_uri, write=True)).post(b"x")
    await fail_once(await bmq_connect(), bmq_queue_uri)
    queue = await opened(await bmq_connect(), bmq_queue_uri)
    async with moving(bmq_session, bmq_queue_uri), consuming(queue, handle, retry=AGAIN):
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
    producer = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await producer.post(b"x")
    with monkeypatch.context() as forgetful:
        forgetful.setattr(bmq.Message, "confirm", lambda self: None)
        for _ in range(2):
            await fail_once(await bmq_connect(), bmq_queue_uri)
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
    while True:
        try:
            await queue.post(text % len(posted), **options)
        except bmq.PostError as refused:
            if refused.status is not bmq.AckStatus.LIMIT_MESSAGES:
                raise
            return posted
        posted.append(text % len(posted))


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


@pytest.fixture
async def undelayable(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> bmq.Queue:
    """A queue with a delay queue that is full: a mover may be away."""
    queue = await opened(bmq_session, bmq_new_queue_uri("bmq.test.small.priority"))
    await filled(queue, b"%d", delay=3600)
    return queue


class Failing:
    """A handler that fails on bad messages until it is healed."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.healed = False

    async def handle(self, message: bmq.Message) -> None:
        self.seen.append(message.data)
        if message.data.startswith(b"bad") and not self.healed:
            raise OSError("not now")


async def test_an_undelayable_message_keeps_its_count_and_occupies_no_worker(
    undelayable: bmq.Queue, bmq_connect: Connect
) -> None:
    (await undelayable.post_many([b"bad", b"good"])).raise_for_failures()
    worker = Failing()
    failures: list[Failure] = []
    retry = bmq.Backoff(every=0.02, retries=3, durable=True, then="discard")
    async with consuming(undelayable, worker.handle, retry=retry, on_error=failures.append):
        await eventually(lambda: len(failures) == 4, 20)
        [consumer] = undelayable.consumers
        await eventually(lambda: status(consumer)[0].unconfirmed == 0)
        assert (status(consumer)[0].failing, status(consumer)[0].handling) == (0, 0)
        assert status(consumer)[0].given_up == 1
    assert worker.seen == [b"bad", b"good", b"bad", b"bad", b"bad"]
    assert [failure.attempt for failure in failures] == [1, 2, 3, 4]
    await undelayable.close()
    assert await seen_by(await bmq_connect(), undelayable.uri) == []


async def test_messages_waiting_in_the_worker_return_at_its_end(
    undelayable: bmq.Queue, bmq_connect: Connect
) -> None:
    (await undelayable.post_many([b"bad 1", b"bad 2", b"good"])).raise_for_failures()
    worker = Failing()
    async with consuming(undelayable, worker.handle, retry=bmq.Backoff(every=3600, durable=True)):
        await eventually(lambda: worker.seen == [b"bad 1", b"bad 2", b"good"])
        [consumer] = undelayable.consumers
        await eventually(lambda: status(consumer)[0].failing == 2)
        assert status(consumer)[0].state is SubscriberState.FAILING
    assert status(consumer)[0].failing == 0
    await undelayable.close()
    assert await seen_by(await bmq_connect(), undelayable.uri) == [b"bad 1", b"bad 2"]


@pytest.mark.parametrize("every", [0.02, 3600])
async def test_messages_waiting_in_the_worker_survive_a_reconnect(
    bmq_proxy: FaultProxy, undelayable: bmq.Queue, every: float
) -> None:
    """The session goes through the proxy."""
    (await undelayable.post_many([b"bad", b"good"])).raise_for_failures()
    worker, session = Failing(), undelayable.session
    retry = bmq.Backoff(every, retries=1_000_000, durable=True)
    async with consuming(undelayable, worker.handle, retry=retry):
        await eventually(lambda: b"good" in worker.seen and worker.seen[0] == b"bad")
        [consumer] = undelayable.consumers
        await eventually(lambda: status(consumer)[0].failing == 1)
        worker.healed = every < 1
        bmq_proxy.cut()
        if worker.healed:
            await eventually(lambda: b"bad" in worker.seen[2:] and status(consumer)[0].handled >= 2, 20)
            await eventually(lambda: status(consumer)[0].unconfirmed == status(consumer)[0].failing == 0)
        else:
            await eventually(lambda: session.health().ready and session.stats().reconnects == 1)
            assert (status(consumer)[0].failing, worker.seen) == (1, [b"bad", b"good"])
