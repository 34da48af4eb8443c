# SPDX-License-Identifier: Apache-2.0
"""Several threads, lost connections, sleeping programs, and other event loops in the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.blocking import _portal
from bmq.testing import BackgroundBroker, FaultProxy
from tests.ports import reserved_port
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
    """Messages that arrive together are shared: while one thread handles its message, another takes the
    rest.
    """
    slow, go = threading.Event(), threading.Event()
    seen: list[bytes] = []
    others = threading.Event()

    def handle_slowly() -> None:
        with queue.receive(timeout=10):
            slow.set()
            assert go.wait(20)

    def handle() -> None:
        while len(seen) < 99:
            with queue.receive(timeout=10) as message:
                seen.append(message.data)
        others.set()

    in_thread(handle_slowly)
    queue.post_many([b"%d" % number for number in range(100)])
    assert slow.wait(10)
    in_thread(handle)
    assert others.wait(10)
    go.set()
    assert seen == [b"%d" % number for number in range(1, 100)]


@pytest.fixture
def restarting() -> Any:
    """An embedded broker with a fixed port, which can be killed and restarted."""
    with reserved_port() as port:
        brokers = [BackgroundBroker(port=port)]
        brokers[0].start()

        class Restarting:
            uri = brokers[0].uri

            def kill(self) -> None:
                brokers.pop().stop()

            def restart(self) -> None:
                brokers.append(BackgroundBroker(port=port))
                brokers[-1].start()

        yield Restarting()
        for broker in brokers:
            broker.stop()


def fast() -> Any:
    while True:
        yield 0.02


def test_threads_wait_for_a_restarted_broker(
    restarting: Any, bmq_queue_uri: str, in_thread: InThread
) -> None:
    with bmq.blocking.connect(restarting.uri, reconnect_delays=fast) as session:
        queue = session.open_queue(bmq_queue_uri, read=True, write=True)
        received: list[bytes] = []
        acks: list[bmq.Ack] = []

        def receive() -> None:
            with queue.receive(timeout=30) as message:
                received.append(message.data)

        receiver = in_thread(receive)
        restarting.kill()
        while session.health().ready:
            time.sleep(0.001)
        poster = in_thread(lambda: acks.append(queue.post(b"while it is away")))
        poster.join(0.1)
        assert poster.is_alive()
        restarting.restart()
        poster.join(20)
        receiver.join(20)
        assert received == [b"while it is away"]
        assert acks


async def test_prefetched_messages_arrive_once_after_a_reconnect(
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


async def test_sessions_share_a_thread_and_closing_one_keeps_the_others(
    broker: str, bmq_queue_uri: str
) -> None:
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
