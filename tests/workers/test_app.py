# SPDX-License-Identifier: Apache-2.0
"""A service of workers: opening queues, sharing them among handlers, and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest

import bmq
from bmq.client.buffer import ConsumerInput
from tests.fakes.broker import Peer
from tests.waiting import eventually
from tests.workers.stage import Stage, numbered, post, seen_by

Fresh = Callable[..., str]
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture
def app(broker_uri: str) -> bmq.App:
    return bmq.App(broker_uri)


@pytest.fixture
async def silent() -> AsyncIterator[Peer]:
    """A broker that takes connections and never says a word."""
    async with Peer() as peer:
        peer.hold.add("clientIdentity")
        yield peer


async def never(message: bmq.Message) -> None:
    raise AssertionError


async def test_handlers_share_a_queue_by_their_subscriptions(app: bmq.App, stage: Stage) -> None:
    handled: dict[str, list[bytes]] = {"express": [], "rest": []}

    def note(who: str, message: bmq.Message) -> None:
        handled[who].append(message.data)
        if sum(map(len, handled.values())) == 4:
            app.stop()

    @app.consumer(stage.uri, expression=bmq.P.OrderType == "EXPRESS", priority=10)
    async def express(message: bmq.Message) -> None:
        note("express", message)

    @app.consumer(stage.uri, priority=1)
    async def rest(message: bmq.Message) -> None:
        note("rest", message)

    kinds = ["EXPRESS", "PLAIN", "EXPRESS", "PLAIN"]
    await stage.post(*(bmq.PutMessage(b"%d" % n, {"OrderType": kind}) for n, kind in enumerate(kinds)))
    await app.run()
    # Both subscriptions reach the broker in one request: no message goes astray between the two.
    assert handled == {"express": [b"0", b"2"], "rest": [b"1", b"3"]}


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "a cancellation"])
async def test_a_request_to_stop_lets_handlers_finish(app: bmq.App, stage: Stage, by: str) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    app.consumer(stage.uri)(stage.hold)
    await stage.post(b"0", b"1")
    task = asyncio.create_task(app.run())
    await stage.stop(task, by)
    assert task.cancelled() is (by == "a cancellation")
    assert await stage.next(1) == [b"0"]
    assert {number: signal.getsignal(number) for number in before} == before
    assert await stage.left() == [b"1"]


async def test_a_second_signal_cancels_handlers(broker_uri: str, stage: Stage) -> None:
    app = bmq.App(broker_uri, grace=3600)

    @app.consumer(stage.uri)
    async def handle(message: bmq.Message) -> None:
        # At once: the event loop sees both together.
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    await stage.post(b"x")
    await app.run()
    assert await stage.left() == [b"x"]


STUBBORN = """
import asyncio, bmq

async def main():
    async with bmq.broker.Broker() as broker:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/q", write=True)
            await queue.post(b"x")
        app = bmq.App(broker.uri, grace=0)

        @app.consumer("bmq://bmq.test.mem.priority/q")
        async def handle(message: bmq.Message) -> None:
            print("begun", flush=True)
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    print("ignored", flush=True)

        await app.run()

asyncio.run(main())
"""


@SIGNALS
def test_the_third_signal_ends_the_process_whatever_handlers_do(number: signal.Signals) -> None:
    program = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    for _ in range(2):
        program.send_signal(number)
        assert program.stdout.readline() == "ignored\n"
    program.send_signal(number)
    program.communicate(timeout=30)
    assert program.returncode == -number


async def test_app_ends_at_once_without_a_broker() -> None:
    broker = bmq.broker.Broker()
    await broker.start()
    app = bmq.App(broker.uri, grace=3600)
    app.consumer("bmq://bmq.test.mem.priority/q")(never)
    async with asyncio.timeout(10), app:
        events = app.session.events()
        await broker.stop(graceful=False)
        async for event in events:
            if isinstance(event, bmq.events.ConnectionLost):
                break


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "a cancellation"])
async def test_a_start_without_an_answer_of_the_broker_can_be_ended(silent: Peer, by: str) -> None:
    app = bmq.App(silent.uri, connect_timeout=3600)
    app.consumer("bmq://bmq.test.mem.priority/q")(never)
    task = asyncio.create_task(app.run())
    await eventually(lambda: silent.connections)
    with pytest.raises(bmq.StateError, match="running already"):
        await app.run()
    if by == "a cancellation":
        task.cancel()
    else:
        os.kill(os.getpid(), signal.Signals[by])
    await asyncio.wait([task])
    assert task.cancelled() is (by == "a cancellation")
    assert task.cancelled() or task.exception() is None


@pytest.mark.parametrize("application", ["", "?id=foo"], ids=["a queue", "an application"])
async def test_a_handler_posts_to_its_own_queue(
    app: bmq.App, session: bmq.Session, fresh: Fresh, application: str
) -> None:
    uri = fresh("bmq.test.mem.fanout" if application else "bmq.test.mem.priority")
    handled: list[bytes] = []

    @app.consumer(uri + application, concurrency=2)
    async def count_down(message: bmq.Message) -> None:
        handled.append(message.data)
        if message.data == b"0":
            app.stop()
        else:
            await (await app.queue(uri)).post(b"%d" % (int(message.data) - 1))

    await post(await session.open_queue(uri, write=True), b"3")
    await app.run()
    assert handled == [b"3", b"2", b"1", b"0"]
    assert [each.handled for each in app.status()] == [4]


async def test_one_failing_consumer_ends_all_with_the_reason(
    app: bmq.App, stage: Stage, fresh: Fresh
) -> None:
    bad = fresh()

    class Refusal(bmq.Error):
        pass

    @app.consumer(stage.uri)
    async def handle(message: bmq.Message) -> None:
        failing = next(queue for queue in app.session.queues if queue.uri == bad)
        failing.consumers[0]._buffer.fire(ConsumerInput.SHUT, Refusal("the queue is gone"))
        await eventually(lambda: f"consume {bad}" not in {task.get_name() for task in asyncio.all_tasks()})
        await stage.handle(message)

    app.consumer(bad)(never)
    await stage.post(b"x")
    with pytest.raises(Refusal, match="the queue is gone"):
        await app.run()
    assert await stage.next(1) == [b"x"]
    assert await stage.left() == []


async def test_app_can_run_again(app: bmq.App, stage: Stage) -> None:
    handled: list[bytes] = []

    @app.consumer(stage.uri)
    async def handle(message: bmq.Message) -> None:
        handled.append(message.data)
        with pytest.raises(bmq.StateError, match="running already"):
            await app.run()
        with pytest.raises(bmq.StateError, match="register its handlers before"):
            app.consumer(stage.uri)(handle)
        app.stop()

    for payload in numbered(2):
        await stage.post(payload)
        await app.run()
    assert handled == numbered(2)
    app.stop()  # without effect
    with pytest.raises(bmq.StateError, match="only while it runs"):
        _ = app.session
    assert await stage.left() == []


async def test_failed_open_of_a_queue_is_retried() -> None:
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        source, results = "bmq://bmq.test.mem.priority/source", "bmq://bmq.test.mem.priority/results"
        broker.faults.refuse_open(uri=results, count=1)
        app = bmq.App(broker.uri)
        asked: list[type[BaseException] | None] = []

        @app.consumer(source, concurrency=1)
        async def handle(message: bmq.Message) -> None:
            try:
                await (await app.queue(results)).post(message.data)
            except bmq.OpenQueueError as error:
                asked.append(type(error))
                return
            asked.append(None)
            app.stop()

        await post(await session.open_queue(source, write=True), b"0", b"1")
        await app.run()
        assert asked == [bmq.OpenQueueError, None]
        assert await seen_by(session, results) == [b"1"]


async def test_misuse_raises_at_the_call() -> None:
    app = bmq.App()
    uri = "bmq://bmq.test.mem.priority/q"
    with pytest.raises(bmq.StateError, match="the app has no handler"):
        await app.run()
    with pytest.raises(bmq.InvalidURI):
        app.consumer("q")
    with pytest.raises(bmq.UsageError, match="not to an application"):
        app.consumer(uri, retry=bmq.NoRetry(then=bmq.DeadLetter("bmq://bmq.test.mem.fanout/q?id=foo")))
