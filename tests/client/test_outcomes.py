# SPDX-License-Identifier: Apache-2.0
"""A post has an outcome, also after a timeout, after an exception, and at the end of the program."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually


@sweep("delay", [None, 60.0])
async def test_a_post_that_timed_out_is_posted_again_with_its_guid(delay: float | None) -> None:
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        if delay is not None:
            await queue.post(b"opens the delay queue", delay=delay)
        stored = await session.open_queue(queue.delay_queue_uri if delay else URI, read=True)
        await broker.stop()
        for _ in range(2):
            with pytest.raises(bmq.TimedOut) as timed_out:
                await queue.post(b"1", delay=delay, timeout=0.05)
            guid = timed_out.value.guid
            assert f"post it again with guid={guid!r}" in str(timed_out.value)
            with pytest.raises(bmq.TimedOut) as again:
                await queue.post(b"1", delay=delay, guid=guid, timeout=0.05)
            assert again.value.guid == guid
        await broker.start()
        assert (await queue.post(b"1", delay=delay, guid=guid, timeout=20)).guid == guid
        await queue.post(b"last", delay=delay)
        seen: list[bytes] = []
        while b"last" not in seen:
            seen.append((await stored.receive(timeout=10)).data)
        assert [data for data in seen if data != b"opens the delay queue"] == [b"1", b"1", b"last"]


async def test_a_pending_post_is_found_by_its_guid(peer: Peer) -> None:
    async with opened(peer, write=True) as (_, queue):
        peer.hold.add("PUT")
        with pytest.raises(bmq.TimedOut) as timed_out:
            await queue.post(b"1", timeout=0.05)
        guid = timed_out.value.guid
        waiting = [asyncio.ensure_future(queue.post(b"1", guid=guid)), queue.post_nowait(b"1", guid=guid)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        peer.answer("PUT")
        assert (await waiting[1]).guid == guid
        assert len(peer.log) - peer.log.index("PUT") == 1


def failing() -> Iterator[bytes]:
    yield from [b"%d" % number for number in range(700)]
    raise LookupError("the source has failed")


async def failing_later() -> AsyncIterator[bytes]:
    for each in failing():
        yield each


SOURCES: dict[str, Callable[[], Any]] = {
    "iterator": failing,
    "async iterator": failing_later,
    "wrong item": lambda: [*(b"%d" % number for number in range(700)), 5],
}


@sweep("source", SOURCES)
@sweep("rate", [None, 100_000.0])
async def test_a_source_that_raises_reports_the_outcomes_so_far(source: str, rate: float | None) -> None:
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        with pytest.raises((LookupError, bmq.InvalidPayload)) as failed:
            await queue.post_many(SOURCES[source](), rate=rate)
        report: Any = failed.value.report  # type: ignore[union-attr]
        assert (report.posted, report.acknowledged, report.failures) == (700, 700, [])
        assert "the attribute report has the outcomes" in failed.value.__notes__[-1]


PROGRAM = """
import asyncio, sys, bmq

async def main():
    session = await bmq.connect(sys.argv[1])
    if "global" in sys.argv:
        globals()["kept"] = session
    queue = await session.open_queue("bmq://bmq.test.mem.priority/q", write=True)
    if "kept posts" in sys.argv:
        globals()["posts"] = [queue.post_nowait(b"x") for _ in range(500)]
        return
    for _ in range(500):
        queue.post_nowait(b"x" * 20_000)
    if "raises" in sys.argv:
        raise SystemExit(3)

{start}(main())
"""

ENDS = [[], ["global", "raises"]]


def program(start: str, broker_uri: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(start=start), broker_uri, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == (3 if "raises" in arguments else 0)
    return run


@pytest.mark.parametrize("arguments", ENDS)
def test_a_program_that_forgets_to_close_loses_no_post(
    bmq_background_broker: BackgroundBroker, arguments: list[str]
) -> None:
    assert program("bmq.run", bmq_background_broker.uri, arguments).stderr == ""
    with bmq.blocking.connect(bmq_background_broker.uri) as session:
        queue = session.open_queue(URI, read=True)
        count = 0
        while count < 500:
            count += len(queue.receive_many(timeout=10))


@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        *(("asyncio.run", each) for each in ENDS),
        ("bmq.run", ["global"]),
        ("bmq.run", ["kept posts"]),
    ],
)
async def test_posts_without_outcome_are_counted_at_end(peer: Peer, start: str, arguments: list[str]) -> None:
    """The broker acknowledges nothing; the program must end all the same, and say how many posts are left."""
    peer.hold.add("PUT")
    run = await asyncio.to_thread(program, start, peer.uri, arguments)
    assert run.stderr.count("500 posts without outcome") == 1, run.stderr
    assert "never retrieved" not in run.stderr


async def test_a_dropped_session_still_settles_its_posts(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, write=True)
    peer.hold.add("PUT")
    posts = [queue.post_nowait(b"%d" % number) for number in range(10)]
    await eventually(lambda: peer.connection.script.puts)
    del session, queue
    with pytest.warns(ResourceWarning, match="was never closed"):
        gc.collect()
    await asyncio.sleep(0)
    peer.answer("PUT")
    assert len(await asyncio.gather(*posts)) == 10
    await eventually(lambda: "Disconnect" in peer.log)


async def test_a_session_that_gives_up_counts_its_posts(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    session = await bmq.connect(peer.uri, reconnect=False)
    queue = await session.open_queue(URI, write=True)
    peer.hold.add("PUT")
    posts = [queue.post_nowait(b"%d" % number) for number in range(3)]
    await eventually(lambda: peer.connection.script.puts)
    peer.cut()
    outcomes = await asyncio.gather(*posts, return_exceptions=True)
    assert [type(each) for each in outcomes] == [bmq.PostError] * 3
    await asyncio.sleep(0)
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert line.getMessage().endswith("; 3 posts without outcome")


async def test_items_with_a_delay_wait_in_their_queue(broker: bmq.broker.Broker) -> None:
    """Also from an asynchronous iterator, and seen by an interceptor; an illegal delay ends the call."""

    async def items() -> AsyncIterator[bmq.PutMessage]:
        for n in range(3000):
            yield bmq.PutMessage(b"%d" % n, {"n": n}, delay=3600.0 if n % 3 == 1 else None)

    async def some(queue: bmq.Queue, count: int) -> list[bmq.Message]:
        found: list[bmq.Message] = []
        while len(found) < count:
            batch = await queue.receive_many(timeout=20)
            batch.confirm()
            found += batch
        return found

    seen: list[bytes] = []

    class Watching(bmq.Interceptor):
        def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
            seen.extend(post.data for post in posts)

    for interceptors in ((), (Watching(),)):
        async with bmq.connect(broker.uri, interceptors=interceptors) as session:
            queue = await session.open_queue(f"{URI}{len(interceptors)}", read=True, write=True)
            waiting = await session.open_queue(queue.delay_queue_uri, read=True)
            report = await queue.post_many(items() if interceptors else [each async for each in items()])
            assert (report.posted, report.acknowledged, report.failures) == (3000, 3000, [])
            due = await some(waiting, 1000)
            assert [message.data for message in due] == [b"%d" % n for n in range(3000) if n % 3 == 1]
            assert {message.properties["bmq_destination"] for message in due} == {queue.uri}
            assert due[0].properties["n"] == 1
            now = await some(queue, 2000)
            assert [message.data for message in now] == [b"%d" % n for n in range(3000) if n % 3 != 1]
            assert len(seen) == 3000 * len(interceptors)
            with pytest.raises(bmq.UsageError, match="delay"):
                await queue.post_many([b"x", bmq.PutMessage(b"y", delay=-1.0), b"z"])
            assert (await queue.receive(20)).data == b"x"
            await queue.flush()
            assert queue.receive_nowait() is None
