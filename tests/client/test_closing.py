# SPDX-License-Identifier: Apache-2.0
"""Closing: complete and idempotent in every state; handlers in progress finish, and the rest is reported."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any

import pytest

import bmq
from bmq.events import Disconnected
from bmq.testing import FaultProxy
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


async def test_leaving_the_block_closes_in_order(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True, write=True) as (_, queue):
        peer.connection.push(1)
        message = await queue.receive(timeout=20)
        message.confirm()
        pending = queue.post_nowait(b"7")
    assert peer.log[3:] == ["CONFIRM", "PUT", "ConfigureStream", "CloseQueue", "Disconnect"]
    assert (await pending).status is bmq.AckStatus.SUCCESS
    await eventually(lambda: peer.connection.transport is None)


async def test_work_unfinished_at_the_deadline_is_told(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    peer.hold |= {"PUT", "ConfigureStream", "CloseQueue", "Disconnect"}
    pending = [queue.post_nowait(b"%d" % n) for n in range(3)]
    peer.connection.push(1)
    stuck = asyncio.ensure_future(_handle_for_ever(queue))
    await eventually(lambda: queue._handlers.busy(None))
    began = time.perf_counter()
    with caplog.at_level(logging.WARNING, "bmq"):
        async with asyncio.timeout(20):
            report = await session.close(timeout=0.1)
    assert time.perf_counter() - began >= 0.1
    assert not report.clean
    assert report == bmq.CloseReport(unacked_posts=3, unfinished_handlers=1, unclosed_queues=(URI,))
    assert "3 posts without outcome, 1 messages being handled, 1 queues not closed" in caplog.text
    for each in pending:
        with pytest.raises(bmq.PostError) as caught:
            await each
        assert caught.value.status is bmq.AckStatus.CANCELED
    assert await session.close() == report
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck


async def _handle_for_ever(queue: bmq.Queue) -> None:
    async for message in queue:
        async with message:
            await asyncio.Event().wait()


@pytest.mark.parametrize("what", ["session", "queue"])
async def test_a_handler_may_close_its_own_session_or_queue(peer: Peer, what: str) -> None:
    async with opened(peer, read=True, default_subscription=True) as (session, queue):
        peer.connection.push(1)
        async for message in queue:
            async with message, asyncio.timeout(20):
                await (queue.close() if what == "queue" else session.close())
        assert queue.closed
        assert (session.state is bmq.SessionState.CLOSED) is (what == "session")
    assert (await session.close()).clean


async def test_closing_may_be_repeated_at_any_time(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    first, second = await asyncio.gather(session.close(), session.close())
    assert first == second == await session.close()
    assert peer.log.count("Disconnect") == 1


async def test_leaving_an_unstarted_session_is_harmless() -> None:
    await bmq.connect("tcp://127.0.0.1:1").__aexit__(None, None, None)


async def test_closing_while_connecting_ends_the_connecting(peer: Peer) -> None:
    peer.hold.add("clientIdentity")
    connecting = bmq.connect(peer.uri)
    starting = asyncio.ensure_future(connecting.__aenter__())
    await eventually(lambda: peer.connections and peer.connection.script.identity)
    await connecting.__aexit__(None, None, None)
    with pytest.raises(bmq.SessionClosed, match="while it was connecting"):
        await starting
    await eventually(lambda: peer.connection.transport is None)


async def test_closing_while_disconnected_waits_for_posts_that_may_still_get_through() -> None:
    peer = Peer()
    await peer.start()
    attempts = 0

    def delays() -> Iterator[float]:
        nonlocal attempts
        while True:
            attempts += 1
            yield 0.001

    session = await bmq.connect(peer.uri, reconnect_delays=delays)
    queue = await session.open_queue(URI, write=True)
    await peer.stop()
    pending = queue.post_nowait(b"1")
    closing = asyncio.ensure_future(session.close())
    await eventually(lambda: attempts > 3)
    assert not closing.done()
    await peer.start()
    assert (await closing).clean
    await pending
    assert peer.posted == [1]
    await peer.stop()


@pytest.mark.parametrize("held", ["CloseQueue", "Disconnect"])
@pytest.mark.statement("4.28")
async def test_cancelled_close_continues_without_references(peer: Peer, held: str) -> None:
    async def close_and_be_cancelled() -> None:
        session = await bmq.connect(peer.uri)
        await session.open_queue(URI, write=True)
        peer.hold.add(held)
        closing = asyncio.ensure_future(session.close())
        await eventually(lambda: held in peer.log)
        closing.cancel()
        await asyncio.wait([closing])

    await close_and_be_cancelled()
    for _ in range(3):
        gc.collect()  # an unclosed session would cause a warning here
        await asyncio.sleep(0)
    assert peer.connection.transport is not None
    peer.answer(held)
    await eventually(lambda: peer.connection.transport is None)
    assert peer.log[-2:] == ["CloseQueue", "Disconnect"]


async def test_all_waits_end_with_the_session(peer: Peer) -> None:
    async def drained(items: AsyncIterable[Any]) -> list[Any]:
        return [item async for item in items]

    session = await bmq.connect(peer.uri, max_unacked_messages=1)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    consumer = await queue.subscribe("x > 1")
    peer.hold |= {"PUT", "OpenQueue"}
    waits = [
        (queue.post(b"1"), bmq.PostError),
        (queue.post(b"2"), bmq.SessionClosed),  # waits for room
        (queue.receive(), bmq.QueueClosed),
        (consumer.receive_many(), bmq.QueueClosed),
        (session.open_queue(URI + "2", write=True), bmq.SessionClosed),
        (queue.post_many([b"3", b"4"]), bmq.SessionClosed),
    ]
    waiting = [asyncio.ensure_future(wait) for wait, _ in waits]
    loops = [asyncio.ensure_future(drained(each)) for each in (queue, consumer.batches(), session.events())]
    await eventually(lambda: "OpenQueue" in peer.log[2:])
    await session.close(timeout=0.05)
    async with asyncio.timeout(20):
        results = await asyncio.gather(*waiting, return_exceptions=True)
        collected = await asyncio.gather(*loops)
    assert [type(result) for result in results] == [error for _, error in waits]
    assert collected[0] == collected[1] == []
    assert collected[2][-1] == Disconnected("")


async def test_messages_arriving_at_a_closing_queue_return_unseen(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True, write=True) as (session, queue):
        peer.hold.add("PUT")
        pending = queue.post_nowait(b"1")
        closing = asyncio.ensure_future(queue.close())
        await eventually(lambda: peer.connection.script.puts)
        for number in range(20):
            peer.connection.push(number)
            await asyncio.sleep(0)
        # The queue is not reopened to return these messages: closing does so. The next answer arrives behind
        # the messages.
        await session.open_queue("bmq://bmq.test.mem.priority/other", write=True)
        assert peer.log[3:] == ["PUT", "OpenQueue"]
        peer.answer("PUT")
        await closing
        await pending


@pytest.mark.parametrize("kind", ["a generator broken out of", "a block never left"])
async def test_a_message_left_in_a_task_that_has_ended_does_not_hold_up_closing(
    peer: Peer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(peer, read=True, default_subscription=True) as (_, queue):

        async def received() -> AsyncIterator[bytes]:
            """A typical generator: confirms each message after the loop has handled it."""
            async for message in queue:
                async with message:
                    yield message.data

        async def leave() -> None:
            if kind == "a generator broken out of":
                await anext(received())
            else:
                await (await queue.receive()).__aenter__()

        tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        for number in range(1, 200):
            peer.connection.push(number)
            task = asyncio.create_task(leave())
            tasks.append(weakref.ref(task))
            await task
            del task
        await asyncio.sleep(0)
        gc.collect()
        assert [each for each in tasks if each() is not None] == []
        async with asyncio.timeout(20):
            await queue.close()
    assert peer.connection.script.confirms == []
    assert caplog.records == []


async def test_draining_session_takes_posts_of_handlers_and_opens_no_queue(broker: bmq.broker.Broker) -> None:
    async with opened(broker, read=True, write=True) as (session, queue):
        await queue.post(b"1")
        async with await queue.receive(timeout=30):
            closing = asyncio.create_task(session.close())
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            with pytest.raises(bmq.SessionClosed, match="closing"):
                await session.open_queue(URI + "2", write=True)
            await queue.post(b"2")
        report = await closing
        assert report.clean
        assert session.state is bmq.SessionState.CLOSED
        with pytest.raises(bmq.SessionClosed):
            queue.post_nowait(b"3")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_broadcast_queue_whose_subscription_fails_is_closed(peer: Peer, cancelled: bool) -> None:
    peer.open_options = {"routing": 7}
    peer.hold.add("ConfigureStream")
    async with bmq.connect(peer.uri) as session:
        opening = asyncio.ensure_future(session.open_queue(URI, read=True))
        await eventually(lambda: peer.log.count("ConfigureStream") == 1)
        peer.answer("ConfigureStream")  # the stream of a reader without subscriptions
        peer.hold.add("ConfigureStream")
        await eventually(lambda: peer.log.count("ConfigureStream") == 2)
        assert not opening.done()
        if cancelled:
            opening.cancel()
        else:
            peer.refuse.add("ConfigureStream")
        peer.answer("ConfigureStream")
        with pytest.raises(asyncio.CancelledError if cancelled else bmq.ConfigureQueueError):
            await opening
        peer.refuse.clear()
        peer.answer("ConfigureStream")
        queue = await session.open_queue(URI, read=True)
        assert peer.log.count("CloseQueue") == 1
        peer.connection.push(1)
        assert (await queue.receive()).data == b"1"


async def test_a_connection_that_is_lost_while_a_session_drains_is_restored(
    broker: bmq.broker.Broker,
) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1")
        async with await queue.receive(timeout=30):
            closing = asyncio.create_task(session.close())
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            proxy.cut()
            await eventually(lambda: session.state is bmq.SessionState.DRAINING_LOST)
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            await queue.post(b"2")
        assert (await closing).clean
