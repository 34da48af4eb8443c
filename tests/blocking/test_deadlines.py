# SPDX-License-Identifier: Apache-2.0
"""A waiting thread keeps its own deadline, and no log handler blocks the thread of the sessions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker

#: A call of each kind with a timeout, on a session and a queue open for both directions.
CALLS: dict[str, Callable[[bmq.blocking.Session, bmq.blocking.Queue], object]] = {
    "post": lambda _, queue: queue.post(b"1", timeout=0.1),
    "receive": lambda _, queue: queue.receive(timeout=0.1),
    "open_queue": lambda session, queue: session.open_queue(queue.uri + "2", read=True, timeout=0.1),
    "session.close": lambda session, _: session.close(timeout=0.1),
    "connect": lambda session, _: bmq.blocking.connect(session.address, connect_timeout=0.1),
}


async def stopped(broker: bmq.broker.Broker) -> None:
    await broker.stop()


async def started(broker: bmq.broker.Broker) -> None:
    await broker.start()


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
