# SPDX-License-Identifier: Apache-2.0
"""Handlers in threads: the deadline starts with the thread, and a worker waits for its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import bmq
from bmq.workers import SubscriberState, _workers, status
from tests.waiting import eventually
from tests.workers.stage import Stage, consuming, numbered, post, seen_by

SOON = 0.02


class Work:
    """A handler for threads that hangs on some messages until released.

    Attributes:
        begun: number of calls with each payload.
        together: keys with two messages handled at once.
    """

    def __init__(self, *hanging: bytes) -> None:
        self.hanging = set(hanging)
        self.go_on = threading.Event()
        self.begun: Counter[bytes] = Counter()
        self.together: list[object] = []
        self._at_work: set[object] = set()
        self._lock = threading.Lock()

    def __call__(self, message: bmq.Message) -> None:
        key = message.properties.get("key")
        with self._lock:
            self.begun[message.data] += 1
            first = self.begun[message.data] == 1
            if key in self._at_work:
                self.together.append(key)
            self._at_work.add(key)
        try:
            if message.data in self.hanging and first:
                self.go_on.wait(30)
        finally:
            with self._lock:
                self._at_work.discard(key)


@pytest.fixture
def release() -> Iterator[list[Work]]:
    works: list[Work] = []
    yield works
    for work in works:
        work.go_on.set()


async def test_no_message_is_given_up_before_its_call(stage: Stage, release: list[Work]) -> None:
    """All threads hang, with the one in another's place; further messages wait long after the deadline."""
    work = Work(b"0", b"1", b"2")
    release.append(work)
    await post(stage.queue, *numbered(10))
    failures: list[bytes] = []
    retry = bmq.Backoff(SOON, 1, then="discard")
    consuming_all = consuming(
        *(stage.queue, work),
        concurrency=2,
        timeout=SOON,
        retry=retry,
        on_error=lambda failure: failures.append(failure.message.data),
    )
    async with consuming_all:
        [consumer] = await eventually(lambda: stage.queue.consumers)
        await eventually(lambda: status(consumer)[0].hung == 3)
        assert status(consumer)[0].state is SubscriberState.BLOCKED
        health = stage.queue.session.health()
        assert health.ready
        assert "3 of 3 workers of" in str(health)
        assert "take no messages: their threads still run after the deadline" in str(health)
        await asyncio.sleep(5 * SOON)  # time for the deadlines of the waiting messages to pass
        assert set(work.begun) == {b"0", b"1", b"2"}
        work.go_on.set()
        await eventually(lambda: status(consumer)[0].handled == 10)
        assert status(consumer)[0].state is SubscriberState.ACTIVE
        assert str(stage.queue.session.health()) == "ready"
    assert sorted(failures) == [b"0", b"1", b"2"]
    assert work.begun == {**dict.fromkeys(numbered(3), 2), **dict.fromkeys(numbered(10)[3:], 1)}


@pytest.mark.parametrize("shape", ["single", "lanes", "batch", "group", "middleware", "repeating middleware"])
async def test_good_messages_pass_hung_threads(
    broker_uri: str, stage: Stage, release: list[Work], shape: str
) -> None:
    """Other workers take the places of workers whose threads hang, and leave when the threads have ended."""
    work = Work(*numbered(4))
    release.append(work)

    def of_message(message: bmq.Message) -> None:
        work(message)

    def of_batch(messages: list[bmq.Message]) -> None:
        work(messages[0])

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        try:
            return await call_next()
        except TimeoutError:
            if shape == "middleware":
                raise
            return await call_next()

    app = bmq.App(broker_uri, grace=5)
    options: dict[str, Any] = {"concurrency": 4, "timeout": SOON, "retry": bmq.Backoff(SOON, retries=2)}
    if shape == "lanes":
        options["key"] = "key"
    if shape == "group":
        options["group"] = lambda queue: queue.group("key", buckets=1)
        options["retry"] = bmq.Backoff(SOON, retries=2, then="discard")  # a group needs a decision
    if "middleware" in shape:
        options["middlewares"] = [around]
    if shape == "batch":
        app.batch_consumer(stage.queue.uri, max_messages=1, max_wait=0, **options)(of_batch)
    else:
        app.consumer(stage.queue.uri, **options)(of_message)
    items = [bmq.PutMessage(each, {"key": each.decode()}) for each in numbered(20)]
    (await stage.queue.post_many(items)).raise_for_failures()
    async with app:
        await eventually(lambda: app.status() and app.status()[0].handled == 16)
        assert app.status()[0].hung == 4
        assert app.status()[0].state is SubscriberState.FAILING
        assert all(work.begun[each] == 1 for each in numbered(20))
        work.go_on.set()
        await eventually(lambda: app.status()[0].handled == 20)
        assert app.status()[0].hung == 0
        work.hanging = set(numbered(24)[20:])
        work.go_on.clear()
        (await stage.queue.post_many([bmq.PutMessage(b"%d" % n, {"key": str(n)}) for n in range(20, 40)]))
        await eventually(lambda: app.status()[0].handled == 36)
        assert app.status()[0].hung == 4, "the places are free again"
        work.go_on.set()
        await eventually(lambda: app.status()[0].handled == 40)
        assert app.status()[0].state is SubscriberState.ACTIVE
    assert not work.together


@pytest.mark.parametrize("then", ["discard", "skip", "leave"])
async def test_a_lane_stays_closed_while_its_thread_works(
    stage: Stage, release: list[Work], then: Any
) -> None:
    """Also for the same message, tried again; and also when the message is given up."""
    work = Work(*numbered(4))
    release.append(work)
    items = [bmq.PutMessage(b"%d" % n, {"key": n % 2}) for n in range(20)]
    (await stage.queue.post_many(items)).raise_for_failures()
    retry = bmq.NoRetry(then=then)
    async with consuming(stage.queue, work, concurrency=4, key="key", timeout=SOON, retry=retry):
        [consumer] = await eventually(lambda: stage.queue.consumers)
        await eventually(lambda: status(consumer)[0].hung == 2)
        assert set(work.begun) == {b"0", b"1"}, "one of each key"
        work.hanging.clear()
        work.go_on.set()
        await eventually(lambda: status(consumer)[0].handled + status(consumer)[0].given_up == 20)
    assert not work.together
    assert set(work.begun.values()) == {1}


async def test_a_lane_goes_on_when_a_replaced_worker_leaves(stage: Stage, release: list[Work]) -> None:
    work = Work(b"0")
    release.append(work)
    items = [bmq.PutMessage(each, {"key": "one"}) for each in numbered(3)]
    (await stage.queue.post_many(items)).raise_for_failures()
    retry = bmq.NoRetry(then="discard")
    async with consuming(stage.queue, work, concurrency=2, key="key", timeout=SOON, retry=retry):
        [consumer] = await eventually(lambda: stage.queue.consumers)
        health = stage.queue.session.health
        await eventually(lambda: any("of 3 workers" in each.what for each in health().troubles))
        work.hanging.clear()
        work.go_on.set()
        await eventually(lambda: status(consumer)[0].handled + status(consumer)[0].given_up == 3)


async def test_a_message_is_not_tried_again_while_its_thread_works(stage: Stage, release: list[Work]) -> None:
    work = Work(b"0")
    release.append(work)
    await post(stage.queue, b"0", b"1")
    async with consuming(stage.queue, work, concurrency=2, timeout=SOON, retry=bmq.Backoff(SOON, 3)):
        [consumer] = await eventually(lambda: stage.queue.consumers)
        await eventually(lambda: status(consumer)[0].hung == 1)
        assert status(consumer)[0].state is SubscriberState.FAILING
        await eventually(lambda: work.begun[b"1"] == 1)
        await asyncio.sleep(5 * SOON)
        assert work.begun[b"0"] == 1
        work.go_on.set()
        await eventually(lambda: status(consumer)[0].handled == 2)
    assert work.begun[b"0"] == 2


async def test_a_batch_is_not_tried_again_while_its_thread_works(
    broker_uri: str, stage: Stage, release: list[Work]
) -> None:
    work, batches = Work(b"0"), list[list[bytes]]()
    release.append(work)

    def handle(messages: list[bmq.Message]) -> None:
        batches.append([message.data for message in messages])
        work(messages[0])

    await post(stage.queue, *numbered(3))
    app = bmq.App(broker_uri)
    app.batch_consumer(stage.queue.uri, max_messages=3, max_wait=5, timeout=SOON, retry=bmq.Backoff(SOON, 3))(
        handle
    )
    async with app:
        await eventually(lambda: app.status()[0].hung == 1)
        assert app.status()[0].state is SubscriberState.BLOCKED
        assert batches == [numbered(3)]
        work.go_on.set()
        await eventually(lambda: app.status()[0].handled == 3)
    assert batches == [numbered(3)] * 2


async def test_a_hung_thread_is_logged_and_does_not_delay_the_end(
    stage: Stage, release: list[Work], caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(b"0")
    release.append(work)
    await post(stage.queue, b"0")
    async with consuming(stage.queue, work, timeout=SOON, grace=60) as task:
        [consumer] = await eventually(lambda: stage.queue.consumers)
        await eventually(lambda: status(consumer)[0].hung == 1)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done(), "as for a message that waits for its next attempt"
    [line] = [each.getMessage() for each in caplog.records if "still runs in its thread" in each.getMessage()]
    assert "1 of 1 workers" in line


async def test_threads_do_not_keep_the_process_alive(stage: Stage, release: list[Work]) -> None:
    work = Work(b"0")
    release.append(work)
    await post(stage.queue, b"0")
    async with consuming(stage.queue, work, grace=0):
        await eventually(lambda: work.begun)
        named = [thread for thread in threading.enumerate() if thread.name.startswith(repr(work)[:10])]
        assert named
        assert all(thread.daemon for thread in named)


# abandoned work


@pytest.mark.parametrize("shape", ["async", "thread", "lanes", "batch"])
async def test_work_cut_off_by_the_grace_is_one_warning_with_the_guids(
    broker_uri: str, stage: Stage, release: list[Work], shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    work = Work(*numbered(3))
    release.append(work)

    async def handle(message: bmq.Message) -> None:
        begun.append(message.guid)
        await asyncio.Event().wait()

    def handle_in_thread(message: bmq.Message) -> None:
        begun.append(message.guid)
        work(message)

    async def handle_batch(messages: list[bmq.Message]) -> None:
        begun.extend(message.guid for message in messages)
        await asyncio.Event().wait()

    await post(stage.queue, *numbered(3))
    app = bmq.App(broker_uri, grace=0.01)
    if shape == "batch":
        app.batch_consumer(stage.queue.uri, max_messages=3, max_wait=5)(handle_batch)
    else:
        key = "key" if shape == "lanes" else None
        function = handle_in_thread if shape == "thread" else handle
        app.consumer(stage.queue.uri, concurrency=3, key=key)(function)
    many = 1 if shape == "lanes" else 3  # all messages have the same key
    with caplog.at_level(logging.WARNING, "bmq.workers"):
        async with app:
            await eventually(lambda: len(begun) == many)
    [record] = [each for each in caplog.records if "cut off" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"in the middle of {many} messages of {stage.queue.uri}" in record.getMessage()
    assert all(guid in record.getMessage() for guid in begun)
    assert sorted(record.guids) == sorted(begun)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", ["async", "inside the message", "lanes", "batch", "group", "responder"])
@pytest.mark.parametrize("way", ["app", "consume"])
async def test_a_handler_that_ignores_its_cancellation_is_left_and_named(
    broker_uri: str,
    session: bmq.Session,
    stage: Stage,
    shape: str,
    way: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_workers, "_TO_END", (0.01, 0.01))
    begun, go_on = asyncio.Event(), asyncio.Event()
    cancellations = 0
    left: list[asyncio.Task[Any]] = []

    async def stubborn(message: bmq.Message) -> None:
        nonlocal cancellations
        task = asyncio.current_task()
        assert task is not None
        left.append(task)
        begun.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                cancellations += 1

    async def inside(message: bmq.Message) -> None:
        async with message:
            await stubborn(message)

    async def stubborn_batch(messages: list[bmq.Message]) -> None:
        await stubborn(messages[0])

    uri = stage.queue.uri
    await stage.queue.post(b"0", properties={"key": "one"})
    app = bmq.App(broker_uri, grace=0)
    if way == "consume":
        if shape not in ("async", "lanes"):
            return
        key = "key" if shape == "lanes" else None
        working = asyncio.create_task(bmq.consume(stage.queue, stubborn, grace=0, key=key))
        await begun.wait()
        working.cancel()
        await asyncio.wait([working], timeout=10)
        assert working.cancelled()
    else:
        {
            "async": lambda: app.consumer(uri)(stubborn),
            "inside the message": lambda: app.consumer(uri)(inside),
            "lanes": lambda: app.consumer(uri, key="key")(stubborn),
            "batch": lambda: app.batch_consumer(uri)(stubborn_batch),
            "group": lambda: app.consumer(uri, group=lambda queue: queue.group("key"))(stubborn),
            "responder": lambda: app.responder(uri)(stubborn),
        }[shape]()
        async with asyncio.timeout(10):
            async with app:
                await begun.wait()
    assert cancellations == 2
    [line] = [each for each in caplog.records if "ignores its cancellation" in each.getMessage()]
    assert line.levelno == logging.ERROR
    name = stubborn_batch if shape == "batch" else inside if shape == "inside the message" else stubborn
    assert name.__name__ in line.getMessage()
    assert len(line.guids) == 1  # type: ignore[attr-defined]
    go_on.set()
    await asyncio.wait(left)
    await stage.queue.close()
    assert await seen_by(session, uri) == [b"0"], "the outcome counts no longer"
