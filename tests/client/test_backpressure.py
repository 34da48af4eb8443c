# SPDX-License-Identifier: Apache-2.0
"""Backpressure in both directions: no message is dropped, memory is bounded, and the counts are visible."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.events import SessionEvent, SlowConsumer, SlowConsumerRecovered
from bmq.wire.constants import EventType
from bmq.wire.event import pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer, guid
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.wire.messages import push_message

OTHER = "bmq://bmq.test.mem.priority/other"


@asynccontextmanager
async def writing(peer: Peer, **options: int) -> AsyncIterator[tuple[bmq.Session, bmq.Queue]]:
    async with opened(peer, write=True, **options) as (session, queue):
        peer.hold.add("PUT")
        try:
            yield session, queue
        finally:
            peer.answer("PUT")


async def nothing_more_is_read(session: bmq.Session) -> None:
    """Wait until a hundred turns of the loop, with their ready callbacks, have read no data."""
    quiet, before = 0, -1
    while quiet < 100:
        received = session.stats().bytes_received
        quiet = quiet + 1 if received == before else 0
        before = received
        await asyncio.sleep(0)


async def acknowledge(peer: Peer, session: bmq.Session, *numbers: int) -> None:
    """Have the broker acknowledge some posts, and wait until the session knows."""
    puts = peer.connection.script.puts
    await eventually(lambda: set(numbers) <= {int(put.data) for put in puts})
    some = [put for put in puts if int(put.data) in numbers]
    puts[:] = [put for put in puts if int(put.data) not in numbers]
    left = session.stats().acknowledged + len(numbers)
    peer.connection.send(peer.connection.script.ack(some))
    await eventually(lambda: session.stats().acknowledged == left)


def sent(peer: Peer) -> list[int]:
    return [int(put.data) for put in peer.connection.script.puts]


async def start(*posts: Coroutine[Any, Any, bmq.Ack]) -> list[asyncio.Task[bmq.Ack]]:
    tasks = [asyncio.ensure_future(post) for post in posts]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_a_later_post_does_not_overtake_a_waiting_post(peer: Peer) -> None:
    async with writing(peer, max_unacked_messages=4) as (session, queue):
        pending = [queue.post_nowait(b"%d" % n) for n in range(4)]
        waiting = await start(queue.post(b"4"), queue.post(b"5"))
        await eventually(lambda: len(sent(peer)) == 4)
        # Room exists, and the waiting task has not run yet.
        script = peer.connection.script
        peer.connection.send(script.ack([script.puts.pop(0)]))
        while session.stats().acknowledged < 1:  # noqa: ASYNC110 - each turn of the loop counts
            await asyncio.sleep(0)
        late = asyncio.ensure_future(queue.post(b"6"))
        with pytest.raises(bmq.BufferFull):
            queue.post_nowait(b"7")
        await eventually(lambda: sent(peer) == [1, 2, 3, 4])
        peer.answer("PUT")
        await asyncio.gather(*pending, *waiting, late)
        assert peer.posted == [*range(1, 7)]


@pytest.mark.parametrize("many", [False, True])
async def test_a_queue_that_fills_the_window_leaves_other_queues_their_shares(peer: Peer, many: bool) -> None:
    async with writing(peer, max_unacked_messages=30) as (session, stuck):
        others = [await session.open_queue(f"{OTHER}{n}", write=True) for n in range(2)]
        pending = [stuck.post_nowait(b"%d" % n) for n in range(30)]
        tasks: list[asyncio.Task[Any]] = []
        for first, queue in zip((100, 200), others, strict=True):
            payloads = [b"%d" % n for n in range(first, first + 20)]
            if many:
                tasks.append(asyncio.create_task(queue.post_many(payloads)))
            else:
                tasks += [asyncio.create_task(queue.post(payload)) for payload in payloads]
        await eventually(lambda: len(sent(peer)) == 30 + 2 * 10)
        assert session.stats().unacked_messages == 50, "less than twice the window"
        # They go on, one by one, while the first queue has no acknowledgement.
        for number in () if many else (100, 101):
            await acknowledge(peer, session, number)
            await eventually(lambda n=number: n + 10 in sent(peer))
        assert [queue.unacked for queue in (stuck, *others)] == [30, 10, 10]
        peer.answer("PUT")
        await asyncio.gather(*pending, *tasks)


async def test_more_queues_than_places_may_post_one_message_each(peer: Peer) -> None:
    async with writing(peer, max_unacked_messages=2) as (session, stuck):
        pending = [stuck.post_nowait(b"0"), stuck.post_nowait(b"1")]
        for n in range(4):
            queue = await session.open_queue(f"{OTHER}{n}", write=True)
            pending.append(queue.post_nowait(b"2"))
            with pytest.raises(bmq.BufferFull):
                queue.post_nowait(b"9")
        peer.answer("PUT")
        await asyncio.gather(*pending)


async def test_tasks_woken_together_do_not_exceed_the_bytes_of_the_window(peer: Peer) -> None:
    async with writing(peer, max_unacked_bytes=1000) as (session, queue):
        pending = [queue.post_nowait(b"%01000d" % 0)]
        with pytest.raises(bmq.BufferFull, match="bytes"):
            queue.post_nowait(b"x")
        waiting = await start(*(queue.post(b"%0600d" % n) for n in range(1, 6)))
        most = 0
        for n in range(6):
            await acknowledge(peer, session, n)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            most = max(most, session.stats().unacked_bytes)
        assert most == 1200, "the last one may exceed the limit"
        await asyncio.gather(*pending, *waiting)


@sweep("turns", range(6))
async def test_a_cancelled_task_passes_its_room_on(peer: Peer, turns: int) -> None:
    peer.posted.clear()
    async with writing(peer, max_unacked_messages=1) as (session, queue):
        pending = queue.post_nowait(b"0")
        first, second, third = await start(*(queue.post(b"%d" % n) for n in (1, 2, 3)))
        await eventually(lambda: len(sent(peer)) == 1)
        script = peer.connection.script
        peer.connection.send(script.ack([script.puts.pop(0)]))
        while session.stats().acknowledged < 1:  # noqa: ASYNC110 - each turn of the loop counts
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        peer.answer("PUT")
        async with asyncio.timeout(20):
            await asyncio.gather(pending, second, third)
        assert [n for n in peer.posted if n != 1] == [2, 3]


@pytest.mark.parametrize("many", [False, True])
async def test_posts_given_up_in_the_turn_of_their_wake_up_hold_no_space(peer: Peer, many: bool) -> None:
    """A task is cancelled, as by ``timeout``, after the wake-up and before it runs."""
    async with writing(peer, max_unacked_messages=2) as (session, queue):
        for _ in range(3):
            pending = [queue.post_nowait(b"0"), queue.post_nowait(b"1")]
            given_up: asyncio.Task[Any] = asyncio.ensure_future(
                queue.post_many([b"2", b"3"]) if many else queue.post(b"2", timeout=60)
            )
            await eventually(lambda: len(sent(peer)) == 2)
            # The outcome is reported before the space is given away, and the callback runs between the two.
            pending[-1].add_done_callback(lambda _, task=given_up: task.cancel())
            peer.answer("PUT")
            await asyncio.gather(*pending, return_exceptions=True)
            await asyncio.wait([given_up])
            assert given_up.cancelled()
            peer.hold.add("PUT")
        assert 2 not in peer.posted, "cancelled while waiting for space"
        assert session.stats().unacked_messages == 0
        peer.answer("PUT")
        await asyncio.gather(*(queue.post(b"4", timeout=20) for _ in range(4)))
        queue.post_nowait(b"5")


async def test_a_post_that_waits_learns_that_its_queue_was_closed(peer: Peer) -> None:
    async with writing(peer, max_unacked_messages=1) as (session, queue):
        other = await session.open_queue(OTHER, write=True)
        pending = [other.post_nowait(b"0"), queue.post_nowait(b"1")]
        (waiting,) = await start(queue.post(b"2"))
        closing = asyncio.ensure_future(queue.close(timeout=0))
        with pytest.raises(bmq.QueueClosed):
            await asyncio.wait_for(waiting, 20)
        peer.answer("PUT")
        await asyncio.gather(*pending, closing, return_exceptions=True)


async def test_posts_waiting_for_the_transport_continue_after_a_lost_connection(peer: Peer) -> None:
    async with writing(peer) as (session, queue):
        session._connection.writable = False
        (waiting,) = await start(queue.post(b"1"))
        assert not queue.unacked
        peer.hold.discard("PUT")
        assert peer.connection.transport is not None
        peer.connection.transport.abort()
        await asyncio.wait_for(waiting, 20)


async def test_post_many_posts_available_items_while_the_iterator_waits(peer: Peer) -> None:
    go_on = asyncio.Event()

    async def items() -> AsyncIterator[bytes]:
        yield b"1"
        await go_on.wait()
        yield b"2"

    async with opened(peer, write=True) as (_, queue):
        posting = asyncio.ensure_future(queue.post_many(items()))
        await eventually(lambda: peer.posted == [1])
        go_on.set()
        assert (await posting).acknowledged == 2


async def test_slow_application_pauses_reading_and_loses_no_message(peer: Peer) -> None:
    happened: list[SessionEvent] = []
    async with opened(
        peer, read=True, default_subscription=True, max_buffered_messages=10, on_event=happened.append
    ) as (session, queue):
        for number in range(2000):
            peer.connection.push(number, size=10_000)
        await eventually(lambda: any(isinstance(event, SlowConsumer) for event in happened))
        await nothing_more_is_read(session)
        stats = session.stats()
        # Reading has stopped: of 20 MB most is still with the operating systems.
        assert stats.buffered_bytes < 2 << 20
        slow = next(event for event in happened if isinstance(event, SlowConsumer))
        assert slow.messages > 10
        assert slow.bytes > 100_000
        got = [int((await queue.receive(timeout=20)).data) for _ in range(2000)]
        assert got == list(range(2000))
        assert isinstance(happened[-1], SlowConsumerRecovered)
        assert session.stats().buffered_messages == session.stats().buffered_bytes == 0


async def test_decompression_bomb_is_refused_on_access_without_side_effects(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True, max_message_size=1 << 20) as (
        _session,
        queue,
    ):
        bomb = zlib.compress(bytes(64 << 20))
        assert len(bomb) < 100_000
        s_ids = encode_sub_queue_ids((peer.connection.s_ids[0],))
        body = push_message(0, guid(1), bomb, s_ids, compression=1)
        peer.connection.send(pack_event_header(8 + len(body), EventType.PUSH) + body)
        peer.connection.push(2)
        message = await queue.receive(timeout=20)
        with pytest.raises(bmq.ProtocolError):
            _ = message.data
        message.confirm()  # out of the way
        assert (await queue.receive(timeout=20)).data == b"2"


@pytest.mark.parametrize("first", ["refused", "finished"])
async def test_a_woken_task_without_a_post_passes_the_space_to_the_next_task(peer: Peer, first: str) -> None:
    """The window is empty then, so no acknowledgement wakes the next task."""
    async with writing(peer, max_unacked_messages=1) as (session, queue):
        pending = queue.post_nowait(b"0")
        if first == "refused":
            one: asyncio.Task[Any] = asyncio.create_task(queue.post(b""))
        else:
            one = asyncio.create_task(queue.post_many([b"1", b"2"]))
        other = asyncio.create_task(queue.post(b"3"))
        await eventually(lambda: session.stats().buffer_full_waits == 2)
        peer.answer("PUT")
        peer.hold.discard("PUT")
        done, _ = await asyncio.wait({one, other, pending}, timeout=20)
        assert len(done) == 3
        assert other.exception() is None
        assert isinstance(one.exception(), bmq.InvalidPayload) == (first == "refused")


async def test_a_flush_waits_only_for_earlier_posts(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue, other = await session.open_queue(URI, write=True), await session.open_queue(OTHER, write=True)
        peer.hold = {"PUT"}
        pending = [queue.post_nowait(b"0"), other.post_nowait(b"1"), other.post_nowait(b"2")]
        first = asyncio.ensure_future(other.flush())
        await asyncio.sleep(0)
        pending.append(other.post_nowait(b"3"))
        second = asyncio.ensure_future(other.flush())
        script = (await eventually(lambda: len(peer.connection.script.puts) == 4 and peer.connection)).script
        # The acknowledgements come in another order than the posts.
        for number, done in ((3, (False, False)), (1, (False, False)), (2, (True, True))):
            [put] = [put for put in script.puts if int(put.data) == number]
            script.puts.remove(put)
            before = session.stats().acknowledged
            peer.connection.send(script.ack([put]))
            await eventually(lambda before=before: session.stats().acknowledged > before)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (first.done(), second.done()) == done
        peer.answer("PUT")
        await asyncio.gather(*pending, first, second)
