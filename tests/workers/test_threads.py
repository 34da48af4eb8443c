# SPDX-License-Identifier: Apache-2.0
"""Handlers in threads: the deadline starts with the thread, and a worker waits for its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bmq
from bmq.workers import SubscriberState, SubscriberStatus, _workers, status
from tests.waiting import eventually
from tests.workers.kinds import keyed, register, register_in_thread
from tests.workers.stage import Stage, consuming, numbered, seen_by

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


Hanging = Callable[..., Work]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """Make handlers that hang on some messages, until the end of the test at the latest."""
    works: list[Work] = []

    def make(*payloads: bytes) -> Work:
        works.append(Work(*payloads))
        return works[-1]

    yield make
    for work in works:
        work.go_on.set()


def now(stage: Stage) -> SubscriberStatus:
    """The status of the only consumer."""
    (found,) = status(*stage.queue.consumers)
    return found


async def until_hung(stage: Stage, count: int) -> None:
    await eventually(lambda: stage.queue.consumers and now(stage).hung == count)


async def test_no_message_is_given_up_before_its_call(stage: Stage, hanging: Hanging) -> None:
    """All threads hang, with the one in another's place; further messages wait long after the deadline."""
    work = hanging(*numbered(3))
    await stage.post(*numbered(10))
    retry = bmq.Backoff(SOON, 1, then="discard")
    async with stage.consuming(work, concurrency=2, timeout=SOON, retry=retry):
        await until_hung(stage, 3)
        assert now(stage).state is SubscriberState.BLOCKED
        health = stage.queue.session.health()
        assert health.ready
        assert "3 of 3 workers of" in str(health)
        assert "take no messages: their threads still run after the deadline" in str(health)
        await asyncio.sleep(5 * SOON)  # time for the deadlines of the waiting messages to pass
        assert set(work.begun) == set(numbered(3))
        work.go_on.set()
        await eventually(lambda: now(stage).handled == 10)
        assert now(stage).state is SubscriberState.ACTIVE
        assert str(stage.queue.session.health()) == "ready"
    failed = [stage.failures.get_nowait().message.data for _ in range(3)]
    assert sorted(failed) == numbered(3)
    assert stage.failures.empty()
    assert work.begun == {**dict.fromkeys(numbered(3), 2), **dict.fromkeys(numbered(10)[3:], 1)}


@pytest.mark.parametrize(
    "kind", ["single", "lanes", "batches", "group", "middleware", "repeating middleware"]
)
async def test_good_messages_pass_hung_threads(stage: Stage, hanging: Hanging, kind: str) -> None:
    """Other workers take the places of workers whose threads hang, and leave when the threads have ended."""
    work = hanging(*numbered(4))

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        try:
            return await call_next()
        except TimeoutError:
            if kind == "middleware":
                raise
            return await call_next()

    def keyed_each(payloads: list[bytes]) -> list[bmq.PutMessage]:
        return [bmq.PutMessage(each, {"key": each.decode()}) for each in payloads]

    app = bmq.App(stage.broker_uri, grace=5, middlewares=[around] if "middleware" in kind else [])
    options: dict[str, Any] = {"concurrency": 4, "timeout": SOON, "retry": bmq.Backoff(SOON, retries=2)}
    if kind == "group":
        options["retry"] = bmq.Backoff(SOON, retries=2, then="discard")  # a group needs a decision
    if kind == "batches":
        options["max_messages"] = 1
    register_in_thread(app, stage.uri, "single" if "middleware" in kind else kind, work, **options)
    await stage.post(*keyed_each(numbered(20)))
    async with app:
        await eventually(lambda: app.status()[0].handled == 16)
        assert app.status()[0].hung == 4
        assert app.status()[0].state is SubscriberState.FAILING
        assert all(work.begun[each] == 1 for each in numbered(20))
        work.go_on.set()
        await eventually(lambda: app.status()[0].handled == 20)
        assert app.status()[0].hung == 0
        work.hanging = set(numbered(24)[20:])
        work.go_on.clear()
        await stage.post(*keyed_each(numbered(40)[20:]))
        await eventually(lambda: app.status()[0].handled == 36)
        assert app.status()[0].hung == 4, "the places are free again"
        work.go_on.set()
        await eventually(lambda: app.status()[0].handled == 40)
        assert app.status()[0].state is SubscriberState.ACTIVE
    assert not work.together


@pytest.mark.parametrize("then", ["discard", "skip", "leave"])
async def test_a_lane_stays_closed_while_its_thread_works(stage: Stage, hanging: Hanging, then: Any) -> None:
    """Also for the same message, tried again; and also when the message is given up."""
    work = hanging(*numbered(4))
    await stage.post(*(bmq.PutMessage(b"%d" % n, {"key": n % 2}) for n in range(20)))
    retry = bmq.NoRetry(then=then)
    async with consuming(stage.queue, work, concurrency=4, key="key", timeout=SOON, retry=retry):
        await until_hung(stage, 2)
        assert set(work.begun) == {b"0", b"1"}, "one of each key"
        work.hanging.clear()
        work.go_on.set()
        await eventually(lambda: now(stage).handled + now(stage).given_up == 20)
    assert not work.together
    assert set(work.begun.values()) == {1}


async def test_a_lane_goes_on_when_a_replaced_worker_leaves(stage: Stage, hanging: Hanging) -> None:
    work = hanging(b"0")
    await stage.post(*keyed(*numbered(3)))
    retry = bmq.NoRetry(then="discard")
    async with consuming(stage.queue, work, concurrency=2, key="key", timeout=SOON, retry=retry):
        health = stage.queue.session.health
        await eventually(lambda: any("of 3 workers" in each.what for each in health().troubles))
        work.hanging.clear()
        work.go_on.set()
        await eventually(lambda: now(stage).handled + now(stage).given_up == 3)


async def test_a_hung_thread_is_logged_and_does_not_delay_the_end(
    stage: Stage, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.post(b"0")
    retry = bmq.NoRetry()
    async with consuming(stage.queue, hanging(b"0"), timeout=SOON, grace=60, retry=retry) as task:
        await until_hung(stage, 1)
        assert now(stage).state is SubscriberState.BLOCKED, "also if the message is given up"
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done(), "as for a message that waits for its next attempt"
    [line] = [each.getMessage() for each in caplog.records if "still runs in its thread" in each.getMessage()]
    assert "1 of 1 workers" in line


async def test_threads_do_not_keep_the_process_alive(stage: Stage, hanging: Hanging) -> None:
    work = hanging(b"0")
    await stage.post(b"0")
    async with consuming(stage.queue, work, grace=0):
        await eventually(lambda: work.begun)
        named = [thread for thread in threading.enumerate() if thread.name.startswith(repr(work)[:10])]
        assert named
        assert all(thread.daemon for thread in named)


# abandoned work


@pytest.mark.parametrize("kind", ["concurrent", "thread", "lanes", "batches"])
async def test_work_cut_off_by_the_grace_is_one_warning_with_the_guids(
    stage: Stage, hanging: Hanging, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    work = hanging(*numbered(3))

    async def endless(*messages: bmq.Message) -> None:
        begun.extend(message.guid for message in messages)
        await asyncio.Event().wait()

    def endless_in_thread(message: bmq.Message) -> None:
        begun.append(message.guid)
        work(message)

    await stage.post(*keyed(*numbered(3)))
    app = bmq.App(stage.broker_uri, grace=0.01)
    if kind == "thread":
        register_in_thread(app, stage.uri, "concurrent", endless_in_thread)
    elif kind == "batches":
        register(app, stage.uri, kind, endless, max_messages=3, max_wait=5)
    else:
        register(app, stage.uri, kind, endless, concurrency=3)
    many = 1 if kind == "lanes" else 3  # all messages have the same key
    with caplog.at_level(logging.WARNING, "bmq.workers"):
        async with app:
            await eventually(lambda: len(begun) == many)
    [record] = [each for each in caplog.records if "cut off" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"in the middle of {many} messages of {stage.uri}" in record.getMessage()
    assert all(guid in record.getMessage() for guid in begun)
    assert sorted(record.guids) == sorted(begun)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kind",
    ["single", "inside the message", "lanes", "batches", "group", "requests", "consume", "consume in lanes"],
)
async def test_a_handler_that_ignores_its_cancellation_is_left_and_named(
    session: bmq.Session,
    stage: Stage,
    kind: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_workers, "_TO_END", (0.01, 0.01))  # it is seconds
    cancellations = 0
    left: list[asyncio.Task[Any]] = []

    async def stubborn(message: bmq.Message) -> None:
        nonlocal cancellations
        task = asyncio.current_task()
        assert task is not None
        left.append(task)
        while not stage.go.is_set():
            try:
                await stage.hold(message)
            except asyncio.CancelledError:
                cancellations += 1

    async def inside(message: bmq.Message) -> None:
        async with message:
            await stubborn(message)

    await stage.post(*keyed(b"0"))
    if kind.startswith("consume"):
        handler: Any = stubborn
        key = "key" if kind == "consume in lanes" else None
        async with consuming(stage.queue, stubborn, grace=0, key=key) as working:
            await stage.begun.wait()
            working.cancel()
            await asyncio.wait([working], timeout=10)
            assert working.cancelled()
    else:
        app = bmq.App(stage.broker_uri, grace=0)
        if kind == "inside the message":
            handler = app.consumer(stage.uri)(inside)
        else:
            handler = register(app, stage.uri, kind, stubborn)
        async with asyncio.timeout(10), app:
            await stage.begun.wait()
    assert cancellations == 2
    [line] = [each for each in caplog.records if "ignores its cancellation" in each.getMessage()]
    assert line.levelno == logging.ERROR
    assert handler.__name__ in line.getMessage()
    assert len(line.guids) == 1  # type: ignore[attr-defined]
    stage.go.set()
    await asyncio.wait(left)
    await stage.queue.close()
    assert await seen_by(session, stage.uri) == [b"0"], "the outcome counts no longer"
