# SPDX-License-Identifier: Apache-2.0
"""The Prometheus collector: values, names, bounded labels, growing counters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import bmq
from bmq.prometheus import SessionCollector, exposition
from bmq.testing import BackgroundBroker
from tests.integration.steps import TIMEOUT, Connect, NewUri
from tests.waiting import eventually

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: bytes) -> Samples:
    """Every sample of the exposition, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def queues_of(samples: Samples) -> set[str]:
    return {dict(labels)["queue"] for _, labels in samples if "queue" in dict(labels)}


def total(samples: Samples, name: str) -> float:
    return sum(value for (each, _), value in samples.items() if each == name)


async def exchange(queue: bmq.Queue, count: int = 1) -> None:
    await queue.post_many([b"12345"] * count)
    for _ in range(count):
        (await queue.receive(timeout=TIMEOUT)).confirm()


async def test_counts_of_a_session_are_exposed(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    orders, small = bmq_new_queue_uri(), bmq_new_queue_uri("bmq.test.small.priority")
    queue = await bmq_session.open_queue(orders, read=True, write=True)
    full = await bmq_session.open_queue(small, write=True)
    await exchange(queue, 3)
    await full.post_many([b"x"] * 13)  # room for eleven messages
    await queue.post(b"12345")
    await queue.receive(timeout=TIMEOUT)
    samples = read(exposition(bmq_session))
    assert queues_of(samples) == {orders, small}
    for name, value in {
        "bmq_posted_messages_total": 4,
        "bmq_posted_bytes_total": 20,
        "bmq_acknowledged_messages_total": 4,
        "bmq_received_messages_total": 4,
        "bmq_confirmed_messages_total": 3,
        "bmq_unconfirmed_messages": 1,
        "bmq_unacked_messages": 0,
        "bmq_ack_seconds_count": 4,
        "bmq_confirm_seconds_count": 3,
    }.items():
        assert (name, of(samples, name, queue=orders)) == (name, value)
    assert of(samples, "bmq_refused_messages_total", queue=small, status="LIMIT_MESSAGES") == 2
    assert of(samples, "bmq_acknowledged_messages_total", queue=small) == 11
    stats = queue.stats()
    assert of(samples, "bmq_ack_seconds_sum", queue=orders) == pytest.approx(stats.ack_seconds.sum)
    assert of(samples, "bmq_ack_seconds_bucket", queue=orders, le="+Inf") == 4
    assert of(samples, "bmq_ack_seconds_bucket", queue=orders, le="300.0") == 4
    assert of(samples, "bmq_sessions", state="started") == 1
    assert of(samples, "bmq_open_queues") == 2
    assert of(samples, "bmq_network_sent_bytes_total") == bmq_session.stats().bytes_sent
    assert of(samples, "bmq_reconnects_total") == 0


async def test_labels_are_bounded_and_everything_is_counted(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    collector = SessionCollector(bmq_session, max_queues=2)
    uris = [bmq_new_queue_uri() for _ in range(5)]
    queues = [await bmq_session.open_queue(uri, read=True, write=True) for uri in uris]
    for number, queue in enumerate(queues):
        await exchange(queue, number + 1)
    samples = read(collector.exposition())
    assert queues_of(samples) == {uris[0], uris[1], "other"}
    assert of(samples, "bmq_posted_messages_total", queue="other") == 3 + 4 + 5
    assert of(samples, "bmq_ack_seconds_count", queue="other") == 3 + 4 + 5
    # Labels are permanent, and closed queues keep their counts.
    await queues[0].close()
    await exchange(queues[2])
    samples = read(collector.exposition())
    assert queues_of(samples) == {uris[0], uris[1], "other"}
    assert of(samples, "bmq_posted_messages_total", queue=uris[0]) == 1
    assert of(samples, "bmq_posted_messages_total", queue="other") == 3 + 4 + 5 + 1
    # A queue opened and closed between two scrapes is counted.
    brief = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    await exchange(brief, 2)
    await brief.close()
    assert of(read(collector.exposition()), "bmq_posted_messages_total", queue="other") == 15


async def test_counters_never_fall(bmq_connect: Connect, bmq_new_queue_uri: NewUri) -> None:
    collector, uris = SessionCollector(max_queues=1), (bmq_new_queue_uri(), bmq_new_queue_uri())
    before: Samples = {}
    posted = 0
    for number in range(4):
        session = await bmq_connect()
        collector.add(session)
        for uri in uris:
            queue = await session.open_queue(uri, read=True, write=True)
            await exchange(queue, number + 1)
            posted += number + 1
            if number % 2:
                collector.exposition()
        if number == 2:
            await queue.close()
        await session.close()
        samples = read(collector.exposition())
        assert total(samples, "bmq_posted_messages_total") == posted
        growing = [each for each in before if each[0].endswith(("_total", "_bucket", "_count", "_sum"))]
        assert [each for each in growing if samples[each] < before[each]] == []
        before = samples
    assert of(before, "bmq_open_queues") == 0
    assert total(before, "bmq_sessions") == 0
    assert read(collector.exposition()) == before


async def test_function_returns_the_current_session(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    current: list[bmq.Session] = []

    def session() -> bmq.Session:
        if not current:
            raise bmq.StateError("not yet")
        return current[0]

    collector = SessionCollector(session)
    assert total(read(collector.exposition()), "bmq_sessions") == 0
    current.append(await bmq_connect())
    await exchange(await current[0].open_queue(bmq_queue_uri, read=True, write=True))
    for closed in (False, False, True, True):  # the function still returns the closed session
        if closed:
            await current[0].close()
        assert of(read(collector.exposition()), "bmq_posted_messages_total", queue=bmq_queue_uri) == 1


async def test_the_server_of_prometheus_client_serves_the_metrics(
    bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    """The server collects in a separate thread."""
    await exchange(await bmq_session.open_queue(bmq_queue_uri, read=True, write=True))
    registry = prometheus_client.CollectorRegistry()
    registry.register(SessionCollector(bmq_session))
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=TIMEOUT).read())
        assert of(read(text), "bmq_posted_messages_total", queue=bmq_queue_uri) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_closed_or_hung_loop_leaves_the_last_values() -> None:
    async def work(uri: str) -> tuple[SessionCollector, bytes]:
        async with bmq.connect(uri) as session:
            collector = SessionCollector(session)
            queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
            await exchange(queue)
            seen = await asyncio.to_thread(collector.exposition)
            await exchange(queue)
            answers: list[Any] = []
            thread = threading.Thread(target=lambda: answers.append(collector.exposition()))
            thread.start()
            thread.join(TIMEOUT)  # the loop stands still meanwhile
            assert read(answers[0]) == read(seen)
            return collector, seen

    with BackgroundBroker() as broker:
        collector, seen = asyncio.run(work(broker.uri))
    assert read(collector.exposition()) == read(seen)


def test_collector_for_a_thread_needs_the_event_loop() -> None:
    with pytest.raises(bmq.UsageError, match="created in the event loop"):
        SessionCollector().exposition()
    with pytest.raises(bmq.UsageError, match="max_queues must be an integer from 0"):
        SessionCollector(max_queues=-1)


def test_import_without_the_client_names_the_package() -> None:
    program = "import sys; sys.modules['prometheus_client.core'] = None; import bmq.prometheus"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: bmq.prometheus needs prometheus-client, which is not installed: "
        "pip install 'bmq[prometheus]'"
    )


async def test_a_blocked_handler_is_measured(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    fails = True

    async def handle(message: bmq.Message) -> None:
        if fails:
            raise ConnectionError("away")
        began.set()
        await go.wait()

    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    retry = bmq.Backoff(every=0.01, retries=None)
    working = asyncio.create_task(bmq.consume(queue, handle, retry=retry))
    collector = SessionCollector(bmq_session)

    def measure(name: str) -> float:
        return read(collector.exposition()).get((name, (("queue", bmq_queue_uri),)), 0)

    await queue.post(b"1")
    await eventually(lambda: measure("bmq_blocked_handlers") == 1)
    await eventually(lambda: measure("bmq_failing_seconds") > 0.02)
    fails = False
    await began.wait()
    await eventually(lambda: measure("bmq_oldest_in_hand_seconds") > 0.02)
    go.set()
    await eventually(lambda: measure("bmq_oldest_in_hand_seconds") == 0)
    assert [measure(name) for name in ("bmq_blocked_handlers", "bmq_failing_seconds")] == [0, 0]
    working.cancel()
    await asyncio.wait([working])


async def test_a_member_of_a_group_tells_its_buckets(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", buckets=4, lease=1.0) as group:
        await eventually(lambda: len(group.owned) == 4)
        samples = read(exposition(bmq_session))
        assert of(samples, "bmq_group_buckets", queue=bmq_queue_uri) == 4
        assert of(samples, "bmq_group_waiting_buckets", queue=bmq_queue_uri) == 0
        assert of(samples, "bmq_group_silent_members", queue=bmq_queue_uri) == 0
        assert 0 <= of(samples, "bmq_group_granted_seconds", queue=bmq_queue_uri) < 1
