# SPDX-License-Identifier: Apache-2.0
"""Several threads, lost connections, deadlines of blocked threads, and other event loops in the process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import bmq
from bmq.blocking import _portal
from bmq.testing import BackgroundBroker, FaultProxy
from tests.waiting import eventually

InThread = Callable[[Callable[[], object]], threading.Thread]


def test_threads_post_and_receive_at_once(
    session: bmq.blocking.Session, queue: bmq.blocking.Queue, in_thread: InThread
) -> None:
    """Four threads post in each way, four receive: every message once, each thread's own in order."""
    ways: dict[str, Callable[[list[bytes]], object]] = {
        "post": lambda payloads: [queue.post(payload) for payload in payloads],
        "nowait": lambda payloads: [queue.post_nowait(payload) for payload in payloads],
        "many": queue.post_many,
        "generator": lambda payloads: queue.post_many(payload for payload in payloads),
    }
    received: list[tuple[str, int]] = []
    lock = threading.Lock()
    done = threading.Event()

    def consume() -> None:
        for message in queue:
            way, _, number = message.data.decode().partition(" ")
            with lock:
                received.append((way, int(number)))
            message.confirm()
            if len(received) == 800:
                done.set()

    consumers = [in_thread(consume) for _ in range(4)]
    for name, post in ways.items():
        in_thread(lambda name=name, post=post: post([f"{name} {n}".encode() for n in range(200)]))  # type: ignore[misc]
    assert done.wait(30)
    assert Counter(received) == Counter((name, number) for name in ways for number in range(200))
    queue.flush()
    assert session.stats().confirmed == 800
    queue.close()
    for thread in consumers:
        thread.join(10)
    assert not any(thread.is_alive() for thread in consumers)


def test_slow_thread_delays_no_other_thread(queue: bmq.blocking.Queue, in_thread: InThread) -> None:
    """Messages that arrive together are shared: while one thread handles its message, others go on."""
    slow, go = threading.Event(), threading.Event()

    def handle_slowly() -> None:
        with queue.receive(timeout=10):
            slow.set()
            assert go.wait(20)

    in_thread(handle_slowly)
    queue.post_many([b"%d" % number for number in range(100)])
    assert slow.wait(10)
    seen = []
    while len(seen) < 99:
        with queue.receive(timeout=10) as message:
            seen.append(message.data)
    go.set()
    assert seen == [b"%d" % number for number in range(1, 100)]


async def stopped(broker: bmq.broker.Broker) -> None:
    await broker.stop()


async def started(broker: bmq.broker.Broker) -> None:
    await broker.start()


def fast() -> Any:
    while True:
        yield 0.02


def test_threads_wait_for_a_restarted_broker(
    bmq_background_broker: BackgroundBroker, bmq_queue_uri: str, in_thread: InThread
) -> None:
    with bmq.blocking.connect(bmq_background_broker.uri, reconnect_delays=fast) as session:
        queue = session.open_queue(bmq_queue_uri, read=True, write=True)
        received: list[bytes] = []
        receiver = in_thread(lambda: received.append(queue.receive(timeout=30).data))
        bmq_background_broker.call(stopped)
        while session.health().ready:
            time.sleep(0.001)
        poster = in_thread(lambda: queue.post(b"while it is away"))
        poster.join(0.1)
        assert poster.is_alive()
        bmq_background_broker.call(started)
        poster.join(20)
        receiver.join(20)
        assert received == [b"while it is away"]


async def test_prefetched_messages_arrive_once_after_a_loss(
    bmq_proxy: FaultProxy, bmq_queue_uri: str
) -> None:
    """A loop prefetches messages; messages unseen at a loss of the connection are delivered again."""

    def work(lost: Callable[[], None]) -> list[bytes]:
        with bmq.blocking.connect(bmq_proxy.uri, reconnect_delays=fast) as session:
            queue = session.open_queue(bmq_queue_uri, read=True, write=True)
            queue.post_many([b"%d" % number for number in range(50)])
            events = session.events()
            seen: list[bytes] = []
            for message in queue:
                seen.append(message.data)
                message.confirm()
                if len(seen) == 5:
                    time.sleep(0.1)
                    lost()
                    while not isinstance(next(events), bmq.events.StateRestored):
                        pass
                    assert message.stale
                if len(seen) >= 50:
                    break
            assert queue.receive_nowait() is None
            return seen

    loop = asyncio.get_running_loop()
    seen = await asyncio.to_thread(work, lambda: loop.call_soon_threadsafe(bmq_proxy.cut))  # type: ignore[arg-type, return-value]
    assert sorted(seen, key=int) == [b"%d" % number for number in range(50)]


async def test_a_session_works_beside_a_running_event_loop(broker: str, bmq_queue_uri: str) -> None:
    """As in a notebook, whose cells run in an event loop: a call blocks the loop, and works."""
    with bmq.blocking.connect(broker) as session:
        queue = session.open_queue(bmq_queue_uri, read=True, write=True)
        queue.post(b"1")
        await asyncio.gather(*(asyncio.to_thread(queue.post, b"2") for _ in range(5)))
        assert {queue.receive(timeout=10).data for _ in range(6)} == {b"1", b"2"}
        async with bmq.connect(broker) as other:
            output = await other.open_queue(bmq_queue_uri, write=True)
            await output.post(b"3")
        received = await asyncio.to_thread(queue.receive, 10)
        assert received.data == b"3"


def test_calling_from_the_sessions_own_thread_is_refused(broker: str, bmq_queue_uri: str) -> None:
    """on_event runs in the client's thread: a call would wait for itself."""
    said: list[str] = []
    sessions: list[bmq.blocking.Session] = []

    def on_event(event: bmq.events.SessionEvent) -> None:
        try:
            sessions[0].stats()
        except bmq.UsageError as error:
            said.append(str(error))

    with bmq.blocking.connect(broker, on_event=on_event) as session:
        sessions.append(session)
    assert "would wait for itself" in said[-1]


def test_a_failing_callback_does_not_end_the_event_loop(
    broker: str, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: bmq.events.SessionEvent) -> None:
        if isinstance(event, bmq.events.Connected):
            raise SystemExit(3)

    with bmq.blocking.connect(broker, on_event=on_event) as session:
        session.open_queue(bmq_queue_uri, write=True).post(b"x")
    # A separate thread passes the line to the handlers.
    asyncio.run(eventually(lambda: [each for each in caplog.records if each.name == "bmq.blocking"]))
    (record,) = [each for each in caplog.records if each.name == "bmq.blocking"]
    assert record.getMessage() == "a callback ended the event loop; the loop continues"


async def test_sessions_share_a_thread_and_closing_one_keeps_others(broker: str, bmq_queue_uri: str) -> None:
    with bmq.blocking.connect(broker) as one, bmq.blocking.connect(broker) as other:
        assert [thread.name for thread in threading.enumerate()].count("bmq") == 1
        queue = one.open_queue(bmq_queue_uri, write=True)
        other.close()
        queue.post(b"x")
    await eventually(lambda: one.state is bmq.SessionState.CLOSED)


def test_an_interruption_before_the_loop_has_the_call_leaves_no_error(
    queue: bmq.blocking.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture of each test checks that no callback of the event loop failed."""

    class Interrupted:
        def call_soon_threadsafe(self, *_: object) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_portal.current_portal(), "loop", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            queue.receive()
    queue.post(b"afterwards")
    assert queue.receive(timeout=10).data == b"afterwards"


#: A call of each kind with a timeout, on a session and a queue open for both directions.
CALLS: dict[str, Callable[[bmq.blocking.Session, bmq.blocking.Queue], object]] = {
    "post": lambda _, queue: queue.post(b"1", timeout=0.1),
    "receive": lambda _, queue: queue.receive(timeout=0.1),
    "open_queue": lambda session, queue: session.open_queue(queue.uri + "2", read=True, timeout=0.1),
    "session.close": lambda session, _: session.close(timeout=0.1),
    "connect": lambda session, _: bmq.blocking.connect(session.address, connect_timeout=0.1),
}


class Blocking(bmq.Interceptor):
    """An interceptor that waits for a lock of the application, in the thread of the sessions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = threading.Event()

    def on_post(self, queue: object, posts: Sequence[Any]) -> None:
        if posts[0].data == b"blocks":
            self.inside.set()
            with self.lock:
                pass

    @contextmanager
    def blocks(self, queue: bmq.blocking.Queue) -> Iterator[None]:
        poster = threading.Thread(target=queue.post, args=(b"blocks",))
        with self.lock:
            poster.start()
            assert self.inside.wait(10)
            yield
        poster.join(10)


@pytest.mark.parametrize("name", CALLS)
def test_a_blocked_thread_delays_no_deadline(broker: str, bmq_queue_uri: str, name: str) -> None:
    blocking = Blocking()
    with bmq.blocking.connect(broker, interceptors=[blocking]) as session:
        queue = session.open_queue(bmq_queue_uri, read=True, write=True)
        began = time.monotonic()
        with blocking.blocks(queue), pytest.raises(bmq.TimedOut, match="something blocks the thread"):
            CALLS[name](session, queue)
        assert time.monotonic() - began < 8
        if "close" not in name:
            queue.post(b"afterwards", timeout=10)


def test_a_timed_out_post_is_posted_once(bmq_background_broker: BackgroundBroker) -> None:
    with bmq.blocking.connect(bmq_background_broker.uri) as session:
        queue = session.open_queue("bmq://bmq.test.mem.priority/once", read=True, write=True)
        bmq_background_broker.call(stopped)
        with pytest.raises(bmq.TimedOut) as timed_out:
            queue.post(b"1", timeout=0.1)
        guid = timed_out.value.guid
        assert f"post it again with guid='{guid}'" in str(timed_out.value)
        bmq_background_broker.call(started)
        assert queue.post(b"1", guid=guid, timeout=20).guid == guid
        assert [message.data for message in queue.receive_many(timeout=10)] == [b"1"]
        with pytest.raises(bmq.TimedOut):
            queue.receive(timeout=0.2)


@pytest.mark.parametrize("timeout", [None, 0.2])
def test_a_log_handler_may_post(bmq_background_broker: BackgroundBroker, timeout: float | None) -> None:
    """The handler holds its lock while it waits for the session, whose broker goes and comes back."""
    shipped: list[str] = []

    class Shipping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                queue.post(record.getMessage().encode(), timeout=timeout)
                shipped.append(record.getMessage())
            except bmq.Error:
                pass

    handler = Shipping()
    logger = logging.getLogger("bmq")
    with bmq.blocking.connect(bmq_background_broker.uri) as session:
        queue = session.open_queue("bmq://bmq.test.mem.priority/logs", write=True)
        logger.addHandler(handler)
        try:
            bmq_background_broker.call(stopped)
            starting = threading.Timer(0.3, bmq_background_broker.call, [started])
            starting.start()
            logger.warning("from the application")
            starting.join()
            queue.post(b"1", timeout=20)
            assert session.health().ready
        finally:
            logger.removeHandler(handler)
        assert session.close(10).clean
