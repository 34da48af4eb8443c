# SPDX-License-Identifier: Apache-2.0
"""A service of workers: opening queues, sharing them among handlers, and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import bmq
from bmq.client.buffer import ConsumerInput
from tests.fakes.broker import Peer
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.test_consume import seen_by

Fresh = Callable[..., str]


async def post(session: bmq.Session, uri: str, *items: bytes | bmq.PutMessage) -> None:
    queue = await session.open_queue(uri, write=True)
    (await queue.post_many(items)).raise_for_failures()
    await queue.close()


@pytest.fixture
async def silent() -> AsyncIterator[Peer]:
    """A broker that takes connections and never says a word."""
    async with Peer() as peer:
        peer.hold.add("clientIdentity")
        yield peer


async def test_a_service_from_start_to_stop(broker_uri: str, session: bmq.Session, uri: str) -> None:
    app = bmq.App(broker_uri)
    handled: list[bytes] = []

    @app.consumer(uri, concurrency=1)
    async def handle(message: bmq.Message) -> None:
        handled.append(message.data)
        if len(handled) == 3:
            app.stop()

    await post(session, uri, b"0", b"1", b"2")
    await app.run()
    assert handled == [b"0", b"1", b"2"]
    assert await seen_by(session, uri) == []


async def test_a_handler_stays_a_function(uri: str) -> None:
    app = bmq.App()

    @app.consumer(uri)
    async def handle(message: str) -> str:
        return message.upper()

    assert await handle("called in a test") == "CALLED IN A TEST"


async def test_handlers_share_a_queue_by_their_subscriptions(
    broker_uri: str, session: bmq.Session, uri: str
) -> None:
    app = bmq.App(broker_uri)
    handled: dict[str, list[bytes]] = {"express": [], "rest": []}

    def note(who: str, message: bmq.Message) -> None:
        handled[who].append(message.data)
        if sum(map(len, handled.values())) == 4:
            app.stop()

    @app.consumer(uri, expression=bmq.P.OrderType == "EXPRESS", priority=10)
    async def express(message: bmq.Message) -> None:
        note("express", message)

    @app.consumer(uri, priority=1)
    async def rest(message: bmq.Message) -> None:
        note("rest", message)

    items = [
        bmq.PutMessage(b"%d" % n, properties={"OrderType": kind})
        for n, kind in enumerate(["EXPRESS", "PLAIN", "EXPRESS", "PLAIN"])
    ]
    await post(session, uri, *items)
    await app.run()
    # Both subscriptions reach the broker in one request: no message goes astray between the two.
    assert handled == {"express": [b"0", b"2"], "rest": [b"1", b"3"]}


async def test_dead_letters_and_results_go_to_queues_the_app_opens(
    broker_uri: str, session: bmq.Session, fresh: Fresh
) -> None:
    orders, dead, results = fresh(), fresh(), fresh()
    clock = FakeClock()
    app = bmq.App(broker_uri, clock=clock)
    letters: list[dict[str, Any]] = []

    @app.consumer(orders, retry=bmq.Backoff(every=60, retries=2, then=bmq.DeadLetter(dead)))
    async def ship(message: bmq.Message) -> None:
        if message.data == b"bad":
            raise ValueError("no address")
        queue = await app.queue(results)
        await queue.post(b"shipped " + message.data)

    @app.consumer(dead)
    async def look(message: bmq.Message) -> None:
        letters.append({**message.properties})
        app.stop()

    await post(session, orders, b"1", b"2", b"bad")
    await app.run()
    assert clock.slept == [60, 60]
    assert [letter["bmq_dead_error"] for letter in letters] == ["ValueError: no address"]
    assert await seen_by(session, results) == [b"shipped 1", b"shipped 2"]
    assert await seen_by(session, orders) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_handlers_finish(
    broker_uri: str, session: bmq.Session, uri: str, number: signal.Signals
) -> None:
    app = bmq.App(broker_uri)
    go = asyncio.Event()
    before = signal.getsignal(number)
    finished: list[bytes] = []

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        os.kill(os.getpid(), number)
        asyncio.get_running_loop().call_later(0.05, go.set)
        await go.wait()
        finished.append(message.data)

    await post(session, uri, b"0", b"1")
    await app.run()
    assert finished == [b"0"]
    assert signal.getsignal(number) is before
    assert await seen_by(session, uri) == [b"1"]


async def test_a_second_signal_cancels_handlers(broker_uri: str, session: bmq.Session, uri: str) -> None:
    app = bmq.App(broker_uri, grace=3600)

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        # At once: the event loop sees both together.
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    await post(session, uri, b"x")
    await app.run()
    assert await seen_by(session, uri) == [b"x"]


async def test_app_ends_at_once_without_a_broker() -> None:
    broker = bmq.broker.Broker()
    await broker.start()
    app = bmq.App(broker.uri, grace=3600)

    @app.consumer("bmq://bmq.test.mem.priority/q")
    async def handle(message: bmq.Message) -> None:
        raise AssertionError("there is none")

    async with asyncio.timeout(10), app:
        events = app.session.events()
        await broker.stop(graceful=False)
        async for event in events:
            if isinstance(event, bmq.events.ConnectionLost):
                break


async def test_cancelled_run_lets_handlers_finish(broker_uri: str, session: bmq.Session, uri: str) -> None:
    app = bmq.App(broker_uri)
    working, go = asyncio.Event(), asyncio.Event()

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        working.set()
        await go.wait()

    await post(session, uri, b"0", b"1")
    task = asyncio.create_task(app.run())
    await working.wait()
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    await asyncio.wait([task])
    assert task.cancelled()
    assert await seen_by(session, uri) == [b"1"]


async def test_handler_posts_to_its_own_queue(broker_uri: str, session: bmq.Session, uri: str) -> None:
    app = bmq.App(broker_uri)
    handled: list[bytes] = []

    @app.consumer(uri, concurrency=2)
    async def count_down(message: bmq.Message) -> None:
        handled.append(message.data)
        number = int(message.data)
        if number == 0:
            app.stop()
            return
        queue = await app.queue(uri)
        await queue.post(b"%d" % (number - 1))

    for _ in range(2):
        await post(session, uri, b"3")
        await app.run()
        assert handled == [b"3", b"2", b"1", b"0"]
        handled.clear()
    assert await seen_by(session, uri) == []


async def test_a_handler_of_an_application_posts_to_its_queue(
    broker_uri: str, session: bmq.Session, fresh: Fresh
) -> None:
    uri = fresh("bmq.test.mem.fanout")
    app = bmq.App(broker_uri)
    handled: list[bytes] = []

    @app.consumer(f"{uri}?id=foo")
    async def handle(message: bmq.Message) -> None:
        handled.append(message.data)
        if message.data == b"again":
            app.stop()
        else:
            await (await app.queue(uri)).post(b"again")

    await post(session, uri, b"x")
    await app.run()
    assert handled == [b"x", b"again"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_app_while_no_broker_answers(silent: Peer, number: signal.Signals) -> None:
    app = bmq.App(silent.uri, connect_timeout=3600)

    @app.consumer("bmq://bmq.test.mem.priority/q")
    async def handle(message: bmq.Message) -> None: ...

    task = asyncio.create_task(app.run())
    await eventually(lambda: silent.connections)
    os.kill(os.getpid(), number)
    await task


async def test_run_without_an_answering_broker_can_be_cancelled(silent: Peer) -> None:
    app = bmq.App(silent.uri, connect_timeout=3600)

    @app.consumer("bmq://bmq.test.mem.priority/q")
    async def handle(message: bmq.Message) -> None: ...

    task = asyncio.create_task(app.run())
    await eventually(lambda: silent.connections)
    with pytest.raises(bmq.StateError, match="running already"):
        await app.run()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_failing_consumer_ends_all_with_the_reason(
    broker_uri: str, session: bmq.Session, fresh: Fresh
) -> None:
    good, bad = fresh(), fresh()
    app = bmq.App(broker_uri)
    finished: list[bytes] = []

    class Refusal(bmq.Error):
        pass

    @app.consumer(good)
    async def handle(message: bmq.Message) -> None:
        failing = next(queue for queue in app.session.queues if queue.uri == bad)
        failing.consumers[0]._buffer.fire(ConsumerInput.SHUT, Refusal("the queue is gone"))
        await eventually(lambda: f"consume {bad}" not in {task.get_name() for task in asyncio.all_tasks()})
        finished.append(message.data)

    @app.consumer(bad)
    async def never(message: bmq.Message) -> None:
        raise AssertionError

    await post(session, good, b"x")
    with pytest.raises(Refusal, match="the queue is gone"):
        await app.run()
    assert finished == [b"x"]
    assert await seen_by(session, good) == []


async def test_app_can_run_again(broker_uri: str, session: bmq.Session, uri: str) -> None:
    app = bmq.App(broker_uri)
    handled: list[bytes] = []

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        handled.append(message.data)
        with pytest.raises(bmq.StateError, match="running already"):
            await app.run()
        with pytest.raises(bmq.StateError, match="register its handlers before"):
            app.consumer(uri)(handle)
        app.stop()

    for payload in (b"0", b"1"):
        await post(session, uri, payload)
        await app.run()
    assert handled == [b"0", b"1"]
    app.stop()  # without effect
    with pytest.raises(bmq.StateError, match="only while it runs"):
        _ = app.session


async def test_app_stopped_during_its_start_handles_no_message(
    broker_uri: str, session: bmq.Session, uri: str
) -> None:
    app = bmq.App(broker_uri, on_event=lambda event: app.stop())

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        raise AssertionError

    await post(session, uri, b"x")
    await app.run()
    assert await seen_by(session, uri) == [b"x"]


async def test_failed_open_of_a_queue_is_retried() -> None:
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        source, results = "bmq://bmq.test.mem.priority/source", "bmq://bmq.test.mem.priority/results"
        broker.faults.refuse_open(uri=results, count=1)
        app = bmq.App(broker.uri)
        asked: list[BaseException | None] = []

        @app.consumer(source, concurrency=1)
        async def handle(message: bmq.Message) -> None:
            try:
                await (await app.queue(results)).post(message.data)
            except bmq.OpenQueueError as error:
                asked.append(error)
                return
            asked.append(None)
            app.stop()

        await post(session, source, b"0", b"1")
        await app.run()
        assert [type(error) for error in asked] == [bmq.OpenQueueError, type(None)]
        assert await seen_by(session, results) == [b"1"]


async def test_a_queue_that_is_refused_ends_the_start(broker_uri: str) -> None:
    app = bmq.App(broker_uri)

    @app.consumer("bmq://no.such.domain/q")
    async def handle(message: bmq.Message) -> None: ...

    with pytest.raises(bmq.OpenQueueError):
        await app.run()


async def test_misuse_raises_at_the_call() -> None:
    app = bmq.App()
    uri = "bmq://bmq.test.mem.priority/q"
    with pytest.raises(bmq.StateError, match="the app has no handler"):
        await app.run()
    with pytest.raises(bmq.InvalidURI):
        app.consumer("q")
    with pytest.raises(bmq.InvalidExpression):
        app.consumer(uri, expression="x >")
    with pytest.raises(bmq.UsageError, match="would return to it"):
        app.consumer(uri, retry=bmq.NoRetry(then=bmq.DeadLetter(uri)))
    with pytest.raises(bmq.UsageError, match="not to an application"):
        app.consumer(uri, retry=bmq.NoRetry(then=bmq.DeadLetter("bmq://bmq.test.mem.fanout/q?id=foo")))
    with pytest.raises(bmq.UsageError, match="concurrency must be an integer from 1 to"):
        app.consumer(uri, concurrency=0)(print)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
