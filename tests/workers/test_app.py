# SPDX-License-Identifier: Apache-2.0
"""A service of workers: its life, its queues, and its parts, which are apps with other brokers."""

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
from bmq.workers import SubscriberState
from tests.fakes.broker import Peer
from tests.waiting import eventually
from tests.workers.stage import Stage, numbered, post, seen_by

Fresh = Callable[..., str]
ORDERS = "bmq://bmq.test.mem.priority/orders"


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


# ---- the end


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


async def test_app_ends_at_once_without_a_broker() -> None:
    broker = bmq.broker.Broker()
    await broker.start()
    app = bmq.App(broker.uri, grace=3600)
    app.consumer(ORDERS)(never)
    async with asyncio.timeout(10), app:
        events = app.session.events()
        await broker.stop(graceful=False)
        async for event in events:
            if isinstance(event, bmq.events.ConnectionLost):
                break


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
    @app.consumer(stage.uri)
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        app.stop()

    for payload in numbered(2):
        await stage.post(payload)
        await app.run()
        assert await stage.next(1) == [payload]
    app.stop()  # without effect
    with pytest.raises(bmq.StateError, match="only while it runs"):
        _ = app.session
    assert await stage.left() == []


# ---- the start


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "a cancellation"])
async def test_a_start_without_an_answer_of_the_broker_can_be_ended(silent: Peer, by: str) -> None:
    app = bmq.App(silent.uri, connect_timeout=3600)
    app.consumer(ORDERS)(never)
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


async def test_cancelled_entry_ends_the_app(silent: Peer) -> None:
    app = bmq.App(silent.uri, connect_timeout=3600)
    app.consumer(ORDERS)(print)
    entering = asyncio.create_task(app.__aenter__())
    await eventually(lambda: silent.connections)
    entering.cancel()
    await asyncio.wait([entering])
    assert entering.cancelled()
    app.on_startup(print)  # refused while the app runs


@pytest.mark.parametrize(
    ("broker", "queue", "error"),
    [
        ("tcp://127.0.0.1:1", ORDERS, bmq.ConnectionFailed),
        (None, "bmq://no.such.domain/q", bmq.OpenQueueError),
    ],
    ids=["no broker", "refused queue"],
)
async def test_app_that_cannot_start_fails_on_entry(
    broker_uri: str, broker: str | None, queue: str, error: type[bmq.Error]
) -> None:
    app = bmq.App(broker or broker_uri)
    app.consumer(queue)(print)
    with pytest.raises(error):
        async with app:
            raise AssertionError("not begun")


async def test_hooks_run_around_the_handlers_with_a_session(app: bmq.App, uri: str) -> None:
    told: list[str] = []

    @app.on_startup
    async def open_database() -> None:
        app.state.rows = 0
        await (await app.queue(uri)).post(b"x")

    app.on_startup(lambda: told.append("second"))

    @app.on_shutdown
    async def close_database() -> None:
        told.append(f"close {app.state.rows} {app.session.state.name}")

    app.on_shutdown(lambda: told.append("before that"))

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        app.state.rows += 1
        told.append("handle")
        app.stop()

    await app.run(signals=False)
    assert told == ["second", "handle", "before that", "close 1 STARTED"]


async def test_failed_startup_ends_the_app_and_started_functions(app: bmq.App, uri: str) -> None:
    told: list[str] = []

    @app.on_startup
    def fail() -> None:
        raise OSError("no database")

    app.on_shutdown(lambda: told.append("end"))
    app.consumer(uri)(print)
    with pytest.raises(OSError, match="no database"):
        await app.run(signals=False)
    assert told == ["end"]
    with pytest.raises(OSError, match="no database"):
        async with app:
            told.append("body")
    assert told == ["end", "end"]


@pytest.mark.parametrize("by", ["a startup function", "an event of the session"])
async def test_an_app_stopped_during_its_start_handles_no_message(stage: Stage, by: str) -> None:
    told: list[str] = []
    if by == "a startup function":  # returns before its cancellation arrives
        app = bmq.App(stage.broker_uri)
        app.on_startup(app.stop)
        app.on_shutdown(lambda: told.append("end"))
    else:
        app = bmq.App(stage.broker_uri, on_event=lambda event: app.stop())
    app.consumer(stage.uri)(stage.handle)
    await stage.post(b"x")
    await app.run(signals=False)
    assert told == (["end"] if by == "a startup function" else [])
    assert stage.seen.empty()
    assert await stage.left() == [b"x"]


async def test_app_runs_inside_another_program(app: bmq.App, stage: Stage) -> None:
    app.consumer(stage.uri)(stage.hold)
    async with app as running:
        assert running is app
        with pytest.raises(bmq.StateError, match="running already"):
            async with app:
                pass
        for register in (
            lambda: app.on_startup(print),
            lambda: app.consumer(stage.uri)(print),
            lambda: app.include(bmq.Router()),
            lambda: app.include(bmq.App()),
        ):
            with pytest.raises(bmq.StateError, match="the app is running"):
                register()
        await stage.post(b"1")
        await stage.begun.wait()
        asyncio.get_running_loop().call_later(0.01, stage.go.set)
    assert await stage.left() == [], "the handler at work was waited for"


async def test_failure_inside_the_block_is_raised_at_the_end(uri: str) -> None:
    async with bmq.broker.Broker() as broker:
        app = bmq.App(broker.uri, reconnect=False)
        app.consumer(uri)(print)
        await app.__aenter__()
        await broker.stop()
        await eventually(lambda: app._session is None)  # a stop at the same time could be first
        assert app.status()[0].state is SubscriberState.CLOSED
        with pytest.raises(bmq.Error):
            await app.__aexit__(None, None, None)


async def test_misuse_raises_at_the_call() -> None:
    app = bmq.App()
    with pytest.raises(bmq.StateError, match="the app has no handler"):
        await app.run()
    with pytest.raises(bmq.InvalidURI):
        app.consumer("q")
    with pytest.raises(bmq.UsageError, match="not to an application"):
        app.consumer(ORDERS, retry=bmq.NoRetry(then=bmq.DeadLetter("bmq://bmq.test.mem.fanout/q?id=foo")))


# ---- queues to post to


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


async def test_failed_open_of_a_queue_is_retried() -> None:
    source, results = f"{ORDERS}.source", f"{ORDERS}.results"
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        broker.faults.refuse_open(uri=results, count=1)
        app = bmq.App(broker.uri)

        @app.consumer(source)
        async def handle(message: bmq.Message) -> None:
            if message.data == b"0":
                with pytest.raises(bmq.OpenQueueError):
                    await app.queue(results)
            else:
                await (await app.queue(results)).post(message.data)
                app.stop()

        await post(await session.open_queue(source, write=True), b"0", b"1")
        await app.run()
        assert await seen_by(session, results) == [b"1"]


# ---- parts


@pytest.fixture
async def there() -> AsyncIterator[bmq.broker.Broker]:
    """The broker of a part."""
    async with bmq.broker.Broker(port=0) as broker:
        yield broker


@pytest.fixture
def part(app: bmq.App, there: bmq.broker.Broker) -> bmq.App:
    """A part of the app, with a broker of its own."""
    part = bmq.App(there.uri)
    app.include(part)
    return part


async def test_a_service_uses_two_brokers(
    app: bmq.App, part: bmq.App, uri: str, there: bmq.broker.Broker
) -> None:
    back = asyncio.Event()

    @app.consumer(uri)
    async def copy(message: bmq.Message) -> None:
        await (await part.queue(ORDERS)).post(message.data + b" copied")

    @part.consumer(ORDERS)
    async def answer(message: bmq.Message) -> None:
        assert part.session is not app.session
        assert message.data == b"1 copied"
        back.set()

    async with app:
        await (await app.queue(uri)).post(b"1")
        await asyncio.wait_for(back.wait(), 10)
        assert [each.handler for each in app.status()] == ["answer", "copy"], "parts first"
        assert [each.handler for each in part.status()] == ["answer"]
    assert len(there.queues[ORDERS]) == 0, "confirmed there too"
    for each in (app, part):
        with pytest.raises(bmq.StateError, match="only while it runs"):
            _ = each.session


async def test_a_part_without_handlers_is_a_session_to_post_by(
    app: bmq.App, part: bmq.App, uri: str, there: bmq.broker.Broker
) -> None:
    @app.consumer(uri)
    async def copy(message: bmq.Message) -> None:
        await (await part.queue(ORDERS)).post(message.data)
        part.stop()  # that of the whole

    @app.on_startup
    async def begin() -> None:
        await (await app.queue(uri)).post(b"1")

    await asyncio.wait_for(app.run(signals=False), 10)
    assert len(there.queues[ORDERS]) == 1
    with pytest.raises(bmq.StateError, match="the app has no handler"):
        await part.run()


async def test_all_have_connected_before_a_startup_function_and_parts_end_last(
    app: bmq.App, part: bmq.App, uri: str, there: bmq.broker.Broker
) -> None:
    deeper = bmq.App(there.uri)
    app.consumer(uri)(print)
    part.include(deeper)
    told: list[str] = []

    def telling(text: str) -> Callable[[], None]:
        def tell() -> None:
            assert {each.session.state.name for each in (app, part, deeper)} == {"STARTED"}
            told.append(text)

        return tell

    for name, each in (("app", app), ("part", part), ("deeper", deeper)):
        each.on_startup(telling(f"begin {name}"))
        each.on_shutdown(telling(f"end {name}"))
    async with app:
        with pytest.raises(bmq.StateError, match="running already"):
            await part.run()
        with pytest.raises(bmq.StateError, match="the app is running"):
            deeper.consumer(uri)(print)
    assert told == ["begin deeper", "begin part", "begin app", "end app", "end part", "end deeper"]


async def test_failure_of_a_part_ends_the_whole_app(app: bmq.App, uri: str) -> None:
    async with bmq.broker.Broker(port=0) as broker:
        part = bmq.App(broker.uri, reconnect=False)
        app.include(part)
        app.consumer(uri)(print)
        part.consumer(ORDERS)(print)
        running = asyncio.create_task(app.run(signals=False))
        await eventually(lambda: len(app.status()) == 2 and app.session)
        await broker.stop()
        with pytest.raises(bmq.Error):
            await asyncio.wait_for(running, 30)


async def test_no_startup_function_runs_before_every_part_has_connected(app: bmq.App, uri: str) -> None:
    app.include(bmq.App("tcp://127.0.0.1:1"))
    app.consumer(uri)(print)
    app.on_startup(lambda: pytest.fail("it has not begun"))
    for _ in range(2):
        with pytest.raises(bmq.ConnectionFailed):
            await app.run(signals=False)


async def test_pause_applies_to_one_handler_in_all_its_queues_or_to_all(
    app: bmq.App, part: bmq.App, uri: str
) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @part.consumer(ORDERS)
    async def handle(message: bmq.Message) -> None:
        seen.put_nowait(message.data)

    app.consumer(uri)(handle)
    async with app:
        await app.pause(handle)
        assert all(each.paused for each in (app, part) for each in app.session.queues[0].consumers)
        await (await part.queue(ORDERS)).post(b"1")
        await (await app.queue(uri)).post(b"2")
        assert seen.empty()
        await app.resume()
        assert {await asyncio.wait_for(seen.get(), 10) for _ in range(2)} == {b"1", b"2"}
        with pytest.raises(bmq.StateError, match="not a handler"):
            await app.pause(print)


async def test_app_is_ready_when_all_parts_are(app: bmq.App, part: bmq.App, uri: str) -> None:
    app.consumer(uri)(print)
    async with app:
        assert str(app._health()) == "ready"
        part.session._connection.channel.abort()  # type: ignore[union-attr]
        await eventually(lambda: "connection was lost" in str(app._health()))
        assert app.session.health().ready


def test_an_app_can_be_included_once() -> None:
    one, two = bmq.App(), bmq.App()
    one.include(two)
    for whole, part in ((one, one), (one, two), (two, one)):
        with pytest.raises(bmq.UsageError, match="is already a part"):
            whole.include(part)
